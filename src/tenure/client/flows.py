"""Flows: jobs that wait for other jobs, made together when a block ends.

Nothing is sent before the end of the block, and then all of it in one transaction. A block that
raises sends nothing. What is wrong with a flow is said before anything is written. [FL3]
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar

from tenure.client.channel import poll_pauses
from tenure.client.end_hints import EndHints
from tenure.client.functions import Enqueueable, Sender
from tenure.client.jobs import Job, refusal
from tenure.client.shells import Operation, Wait, arun, run
from tenure.core.checks import MAX_NAME, shown
from tenure.core.commands import EnqueueFlow, FlowMember, Parent
from tenure.core.ids import JOB_ID_PATTERN, FlowId, JobId, Kind
from tenure.core.instants import MICROSECONDS_PER_SECOND
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import JobStatus
from tenure.errors import InvalidInput, WaitTimeout
from tenure.handlers.context import Call
from tenure.handlers.options import Span, duration, naming_options, plain

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

When: TypeAlias = Literal["succeeded", "ended"]

READ_TOGETHER = 100
"""So many jobs of a flow are read at once by those who wait for it."""


class FlowJob(Generic[R_co]):
    """A job of a flow, before and after it is sent. `R` is what its function returns."""

    __slots__ = ("after", "call", "id", "name")

    def __init__(self, call: Call[R_co], name: str, after: tuple[Parent, ...]) -> None:
        self.call = call
        self.id: JobId = call.job_id
        self.name = name
        self.after = after

    def __repr__(self) -> str:
        return f"<FlowJob {self.name}, job {self.id}>"


After: TypeAlias = FlowJob[Any] | Job[Any] | str
"""What a job can wait for: a job of the flow, or one that exists, also by its id."""


class Flow:
    """Jobs that wait for each other. `with app.flow("name") as flow:` sends them at its end."""

    def __init__(self, sender: Sender, name: str, connection: Any = None) -> None:
        self.name = plain(name)
        self.id = FlowId(sender.channel.new_job_id())
        self._sender = sender
        self._channel = sender.channel
        self._connection = connection
        self._jobs: list[FlowJob[Any]] = []
        self._numbers: Counter[Kind] = Counter()
        self._is_sent = False

    def __repr__(self) -> str:
        return f"<Flow {self.name}, {len(self._jobs)} jobs>"

    # --- adding jobs ---------------------------------------------------------------------------

    def add(
        self,
        call: Call[R],
        *,
        after: After | Iterable[After] = (),
        when: When = "succeeded",
        name: str | None = None,
    ) -> FlowJob[R]:
        """Add a job: `flow.add(merge.call(), after=pages)`. It runs when all jobs that it waits for
        have succeeded, or with `when="ended"` when they have ended, whatever the outcome. Its
        children find its result under `name`, which is the kind and a number unless it is given.
        """
        if self._is_sent:
            raise InvalidInput("flow", "has been sent", hint="add all jobs within the block")
        if not isinstance(call, Call):
            raise InvalidInput(
                "call",
                f"{type(call).__name__} is not a call of a job",
                hint="write flow.add(function.call(argument, …))",
            )
        if when not in ("succeeded", "ended"):
            raise InvalidInput("when", f"{str(when)[:40]!a} is neither succeeded nor ended")
        self._numbers[call.spec.kind] += 1
        if name is None:
            name = f"{call.spec.kind}-{self._numbers[call.spec.kind]}"
        needs = JobStatus.SUCCEEDED if when == "succeeded" else None
        parents = tuple(_parent(each, needs) for each in _listed(after))
        job = FlowJob(call, plain(name), parents)
        self._jobs.append(job)
        return job

    # --- sending -------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            run(self.sending())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await arun(self.sending())

    def sending(self) -> Operation[Self]:
        """Send all jobs in one transaction. A flow without jobs sends nothing."""
        self._is_sent = True
        if not self._jobs:
            return self
        command = EnqueueFlow(
            flow_id=self.id,
            name=self.name,
            members=tuple(
                FlowMember(job=self._sender.command(job.call), step=job.name, after=job.after)
                for job in self._jobs
            ),
        )
        with naming_options():
            [answer] = yield from self._submitting(command)
        assert isinstance(answer, Reply)
        if answer.cause is not None:
            raise refusal(command.job_id, answer)
        return self

    def _submitting(self, command: EnqueueFlow) -> Operation[Sequence[Any]]:
        if self._connection is None:
            return (yield from self._channel.submitting([command]))
        link = yield from self._channel.linking()
        answers: list[Reply] = yield Wait(
            lambda: link.enqueue_within(self._connection, [command], False),
            lambda: link.aenqueue_within(self._connection, [command], False),
        )
        return answers

    # --- waiting -------------------------------------------------------------------------------

    @property
    def jobs(self) -> tuple[FlowJob[Any], ...]:
        """Its jobs in the order in which they were added."""
        return tuple(self._jobs)

    def job(self, job: FlowJob[R]) -> Job[R]:
        """A handle on one of its jobs."""
        return Job(self._channel, job.id, decode=self._sender.decode)

    def result(self, job: FlowJob[R], timeout: Span | None = None) -> R:
        """Wait for one of its jobs and return what its function returned; see `Job.result`."""
        self._check_sent()
        return self.job(job).result(timeout)

    async def aresult(self, job: FlowJob[R], timeout: Span | None = None) -> R:
        """`result` for async code."""
        self._check_sent()
        return await self.job(job).aresult(timeout)

    def wait(self, timeout: Span | None = None) -> dict[str, JobStatus]:
        """Wait until every job has ended, and return their statuses by name; raises `WaitTimeout`
        if they have not ended in time."""
        return run(self._waiting(timeout))

    async def await_end(self, timeout: Span | None = None) -> dict[str, JobStatus]:
        """`wait` for async code."""
        return await arun(self._waiting(timeout))

    def _check_sent(self) -> None:
        if not self._is_sent:
            raise InvalidInput(
                "flow", "has not been sent", hint="it is sent when its block ends; ask after it"
            )

    def _waiting(self, timeout: Span | None) -> Operation[dict[str, JobStatus]]:
        self._check_sent()
        limit_s = math.inf
        if timeout is not None:
            limit_s = duration("timeout", timeout) / MICROSECONDS_PER_SECOND
        link = yield from self._channel.linking()
        began = link.monotonic()
        ended: dict[JobId, JobStatus] = {}
        left = [job.id for job in self._jobs]
        pauses = poll_pauses()
        with closing(EndHints(link, self._channel.namespace)) as hints:
            while left:
                some = left[:READ_TOGETHER]
                rows = yield from self._channel.asking(lambda store, ids=some: store.load_jobs(ids))  # type: ignore[misc]  # a default binds the loop's value
                ended |= {
                    job_id: job.status for job_id, job in rows.items() if job.status.is_terminal
                }
                now_left = [job_id for job_id in left if job_id not in ended]
                has_moved, left = len(now_left) < len(left), now_left
                if not left or has_moved:
                    continue
                waited_s = link.monotonic() - began
                if waited_s >= limit_s:
                    first = left[0]
                    status = rows[first].status if first in rows else JobStatus.WAITING
                    raise WaitTimeout(
                        job_id=first,
                        status=status,
                        waited_s=limit_s,
                        reason=f"{len(left)} of {len(self._jobs)} jobs of the flow have not ended",
                    )
                yield hints.pausing(min(next(pauses), limit_s - waited_s))
        return {job.name: ended[job.id] for job in self._jobs}


def _listed(after: After | Iterable[After]) -> list[After]:
    if isinstance(after, FlowJob | Job | str):
        return [after]
    if not isinstance(after, Iterable):
        raise _no_job(after)
    return list(after)


def _parent(after: After, needs: JobStatus | None) -> Parent:
    if isinstance(after, FlowJob):
        return Parent(job_id=after.id, step=after.name, needs=needs)
    if isinstance(after, Job):
        return Parent(job_id=after.id, step=after.id, needs=needs)
    if isinstance(after, str):
        job_id = plain(after)
        if JOB_ID_PATTERN.fullmatch(job_id) is None:
            raise InvalidInput(
                "after",
                f"{shown(job_id)} is not a job id",
                hint=f"give what flow.add returned for {job_id[:MAX_NAME]}, or the id of a job",
            )
        return Parent(job_id=JobId(job_id), step=job_id, needs=needs)
    raise _no_job(after)


def _no_job(after: object) -> InvalidInput:
    return InvalidInput(
        "after",
        f"{type(after).__name__} is not a job",
        hint="give what flow.add returned, a job, or the id of one",
    )


# --- shorthands ----------------------------------------------------------------------------------


def chain_of(flow: Flow, calls: Sequence[Call[Any]]) -> Flow:
    """Add these so that each waits for the one before it."""
    last: tuple[After, ...] = ()
    for call in calls:
        last = (flow.add(call, after=last),)
    return flow


class MappedCalls(Generic[R_co]):
    """Calls of one function, not sent yet: `app.map(fetch, urls).then(merge.call())`."""

    def __init__(self, flow: Flow, function: Enqueueable[Any, R_co], values: Iterable[Any]) -> None:
        self._flow = flow
        self._parts = [flow.add(function.call(value)) for value in values]

    def then(self, call: Call[Any], *, when: When = "succeeded") -> Flow:
        """Send them, and a job that runs when all of them have succeeded, or ended."""
        return run(self._then(call, when))

    async def athen(self, call: Call[Any], *, when: When = "succeeded") -> Flow:
        """`then` for async code."""
        return await arun(self._then(call, when))

    def _then(self, call: Call[Any], when: When) -> Operation[Flow]:
        self._flow.add(call, after=self._parts, when=when)
        return self._flow.sending()
