"""Flows before they are sent: the jobs that were added, and which of them wait for which.

Shared by `app.flow` and `ctx.flow`. Says at once what is wrong with a call; the core says what is
wrong with the whole. [FL3]
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar

import msgspec

from tenure.core.checks import MAX_NAME, quoted
from tenure.core.commands import JobSpec, Parent
from tenure.core.ids import JOB_ID_PATTERN, FlowId, JobId, Kind, handler_flow_id, handler_member_id
from tenure.core.vocabulary import JobStatus, counted
from tenure.errors import InvalidInput
from tenure.handlers.calls import (
    Call,
    Enqueued,
    JobHandle,
    check_id_is_derived,
    checked_call,
    checked_step,
)
from tenure.handlers.options import plain

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

When: TypeAlias = Literal["succeeded", "ended"]


class FlowJob(Generic[R_co]):
    """A job of a flow, before and after it is sent. `R` is what its function returns."""

    __slots__ = ("after", "call", "id", "name")

    def __init__(
        self, call: Call[R_co], job_id: JobId, name: str, after: tuple[Parent, ...]
    ) -> None:
        self.call = call
        self.id = job_id
        self.name = name
        self.after = after

    def __repr__(self) -> str:
        return f"<FlowJob {self.name}, job {self.id}>"


After: TypeAlias = FlowJob[Any] | JobHandle | Enqueued | str
"""What a job can wait for: a job of the flow, or one that exists, also by its id."""


class FlowBuilder(ABC):
    """Takes the jobs of one flow."""

    def __init__(self, flow_id: FlowId, name: str) -> None:
        self.id = flow_id
        self.name = plain(name)
        self._jobs: list[FlowJob[Any]] = []
        self._numbers: Counter[Kind] = Counter()
        self._is_sent = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {counted(len(self._jobs), 'job')}>"

    @property
    def jobs(self) -> tuple[FlowJob[Any], ...]:
        """Its jobs in the order in which they were added."""
        return tuple(self._jobs)

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
        checked_call(call, example="flow.add(function.call(argument, …))")
        if when not in ("succeeded", "ended"):
            raise InvalidInput("when", f"{str(when)[:40]!a} is neither succeeded nor ended")
        self._numbers[call.spec.kind] += 1
        if name is None:
            name = f"{call.spec.kind}-{self._numbers[call.spec.kind]}"
        needs = JobStatus.SUCCEEDED if when == "succeeded" else None
        parents = tuple(_parent(each, needs) for each in _listed(after))
        job = FlowJob(call, self._job_id(call, plain(name)), plain(name), parents)
        self._jobs.append(job)
        return job

    @abstractmethod
    def _job_id(self, call: Call[Any], name: str) -> JobId:
        """The id of the job that is added."""


def _listed(after: After | Iterable[After]) -> list[After]:
    if isinstance(after, FlowJob | JobHandle | Enqueued | str):
        return [after]
    if not isinstance(after, Iterable):
        raise _no_job(after)
    return list(after)


def _parent(after: After, needs: JobStatus | None) -> Parent:
    if isinstance(after, FlowJob):
        return Parent(job_id=after.id, step=after.name, needs=needs)
    if isinstance(after, JobHandle | Enqueued):
        return Parent(job_id=after.id, step=after.id, needs=needs)
    if isinstance(after, str):
        job_id = plain(after)
        if JOB_ID_PATTERN.fullmatch(job_id) is None:
            raise InvalidInput(
                "after",
                f"{quoted(job_id)} is not a job id",
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


# --- in a handler --------------------------------------------------------------------------------


class FlowPlanJob(msgspec.Struct, frozen=True):
    """A job of a flow that a handler makes, its name there, and the jobs that it waits for."""

    call: JobSpec
    name: str
    after: tuple[Parent, ...]


class FlowPlan(msgspec.Struct, frozen=True):
    """A flow that a handler makes, as its child sends it to the supervisor."""

    step: str
    name: str
    jobs: tuple[FlowPlanJob, ...]


class HandlerFlow(FlowBuilder):
    """Jobs that wait for each other, made by a handler: `with ctx.flow() as flow:` sends them at
    its end. There is nothing to wait with: the handler would keep its slot all the while. Return,
    and let the last job of the flow continue the work.

    All attempts of the handler's job together make it once: if an earlier attempt made it, the
    block's end finds it, whatever was added this time. [FL13]
    """

    def __init__(
        self, job_id: JobId, name: str, step: str | int, send: Callable[[FlowPlan], bool]
    ) -> None:
        self._step = checked_step(step)
        super().__init__(handler_flow_id(job_id, step=self._step), name)
        self._job = job_id
        self._send = send
        self.is_new: bool | None = None
        """Whether this attempt made the flow; None before the end of the block."""

    def _job_id(self, call: Call[Any], name: str) -> JobId:
        check_id_is_derived(call)
        return handler_member_id(self._job, step=self._step, name=name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._send_once()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await asyncio.to_thread(self._send_once)

    def _send_once(self) -> None:
        """Send all jobs in one transaction. A flow without jobs sends nothing."""
        self._is_sent = True
        if self._jobs:
            jobs = tuple(FlowPlanJob(job.call.spec, job.name, job.after) for job in self._jobs)
            self.is_new = self._send(FlowPlan(self._step, self.name, jobs))
