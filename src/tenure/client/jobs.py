"""A handle on one job: how it stands, its result, its history, and a way to stop it.

Each look asks the coordinator again, until the job has ended; an ended job never changes and is not
asked for again. The methods with an `a` in front do the same without blocking an event loop.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Generic, NoReturn, TypeVar

from tenure.client.channel import Channel, Link, poll_pauses
from tenure.client.options import Span, duration, plain
from tenure.core.beside import Artifact
from tenure.core.commands import Cancel
from tenure.core.events import Event
from tenure.core.ids import JobId, Kind
from tenure.core.instants import MICROSECONDS_PER_SECOND
from tenure.core.job import Job as JobRecord
from tenure.core.job import JobError, Progress
from tenure.core.verdicts import Answer, Reply
from tenure.core.vocabulary import CancelMode, Cause, JobStatus
from tenure.errors import (
    Conflict,
    JobCancelled,
    JobDeadLettered,
    JobFailed,
    RequestRefused,
    TenureError,
    UnknownJob,
    WaitTimeout,
)

R = TypeVar("R")


class Job(Generic[R]):
    """One job, by its id. `R` is what its function returns."""

    def __init__(
        self,
        channel: Channel,
        job_id: JobId,
        *,
        record: JobRecord | None = None,
        decode: Callable[[Kind, bytes], R],
        deduplicated: bool = False,
    ) -> None:
        self.id = job_id
        self.deduplicated = deduplicated
        """Whether this is an earlier job that already held the dedupe key. [D5]"""
        self._channel = channel
        self._record = record
        self._decode = decode

    def __repr__(self) -> str:
        record = self._record
        seen = "" if record is None else f" {record.kind}, last seen {record.status}"
        return f"<Job {self.id}{seen}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    # --- how it stands -------------------------------------------------------------------------

    def refresh(self) -> JobRecord:
        """The job's record as it is now."""
        if self._record is None or not self._record.status.is_terminal:
            self._record = self._channel.load(self.id)
        return self._record

    async def arefresh(self) -> JobRecord:
        """The job's record as it is now."""
        return await asyncio.to_thread(self.refresh)

    @property
    def kind(self) -> Kind:
        """What it does."""
        return (self._record or self.refresh()).kind

    @property
    def status(self) -> JobStatus:
        """Where it stands now."""
        return self.refresh().status

    async def astatus(self) -> JobStatus:
        """Where it stands now."""
        return (await self.arefresh()).status

    @property
    def attempts(self) -> int:
        """How often it was handed to a worker."""
        return self.refresh().attempt

    @property
    def progress(self) -> Progress | None:
        """How far its handler last said it was."""
        return self.refresh().progress

    @property
    def error(self) -> JobError | None:
        """What ended it, or what its last failed attempt reported."""
        record = self.refresh()
        return record.error or record.last_error

    def events(self) -> list[Event]:
        """Everything that happened to it, in order."""
        return self._channel.events(self.id)

    async def aevents(self) -> list[Event]:
        """Everything that happened to it, in order."""
        return await asyncio.to_thread(self.events)

    def artifacts(self) -> list[Artifact]:
        """The files of the attempt that succeeded, by name; none before it has."""
        self._channel.load(self.id)
        return self._channel.ask(lambda coordination: coordination.list_artifacts(self.id))

    async def aartifacts(self) -> list[Artifact]:
        """The files of the attempt that succeeded."""
        return await asyncio.to_thread(self.artifacts)

    def artifact(self, name: str) -> bytes | None:
        """One of them; None if there is none of this name."""
        self._channel.load(self.id)
        wanted = plain(name)
        stored = self._channel.ask(lambda coordination: coordination.load_artifact(self.id, wanted))
        return None if stored is None else stored.body

    async def aartifact(self, name: str) -> bytes | None:
        """One of them."""
        return await asyncio.to_thread(self.artifact, name)

    # --- waiting -------------------------------------------------------------------------------

    def wait(self, timeout: Span | None = None) -> JobStatus:
        """Wait until the job has ended, and say how; `WaitTimeout` when the time is over."""
        link = self._channel.link()
        for pause in self._pauses(link, timeout):
            link.pause(pause)
        assert self._record is not None
        return self._record.status

    async def await_(self, timeout: Span | None = None) -> JobStatus:
        """Wait until the job has ended, and say how; `WaitTimeout` when the time is over."""
        link = await self._channel.alink()
        pauses = self._pauses(link, timeout)
        while True:
            pause = await asyncio.to_thread(next, pauses, None)
            if pause is None:
                break
            await link.apause(pause)
        assert self._record is not None
        return self._record.status

    def _pauses(self, link: Link, timeout: Span | None) -> Iterator[float]:
        """Look, and yield how long to pause before the next look, until the job has ended."""
        limit_s = None
        if timeout is not None:
            limit_s = duration("timeout", timeout) / MICROSECONDS_PER_SECOND
        began = link.monotonic()
        for pause in poll_pauses():
            record = self.refresh()
            if record.status.is_terminal:
                return
            if limit_s is None:
                yield pause
                continue
            left_s = limit_s - (link.monotonic() - began)
            if left_s <= 0:
                raise WaitTimeout(
                    job_id=self.id,
                    status=record.status,
                    waited_s=limit_s,
                    reason=_why_unfinished(record, link),
                )
            yield min(pause, left_s)

    def result(self, timeout: Span | None = None) -> R:
        """Wait for the job and return what its function returned.

        Raises `JobFailed`, `JobCancelled` or `JobDeadLettered` if it ended without a result, and
        `WaitTimeout` if it did not end in time.
        """
        self.wait(timeout)
        return self._outcome()

    async def aresult(self, timeout: Span | None = None) -> R:
        """Wait for the job and return what its function returned, or raise as `result` does."""
        await self.await_(timeout)
        return self._outcome()

    def _outcome(self) -> R:
        record = self._record
        assert record is not None
        if record.status is not JobStatus.SUCCEEDED:
            _raise_no_result(record)
        if record.result is None:
            raise RequestRefused(
                f"the result of job {record.id} is hidden from a viewer",
                reason="out_of_scope",
                field="result",
                hint="ask under the token of a client or an operator",
            )
        return self._decode(record.kind, record.result)

    # --- stopping ------------------------------------------------------------------------------

    def cancel(self, *, hard: bool = False, reason: str = "") -> JobStatus:
        """Stop the job, and say how it stands: `cancelled`, or `running` while a soft cancel waits
        for the handler to notice. `Conflict` if it has already ended in another way."""
        if self._record is None:
            self.refresh()  # an id alone does not say whether the job is of this namespace
        [answer] = self._channel.send([self._cancellation(hard, reason)])
        return self._cancelled(answer)

    async def acancel(self, *, hard: bool = False, reason: str = "") -> JobStatus:
        """Stop the job, as `cancel` does."""
        if self._record is None:
            await self.arefresh()
        [answer] = await self._channel.asend([self._cancellation(hard, reason)])
        return self._cancelled(answer)

    def _cancellation(self, hard: bool, reason: str) -> Cancel:
        return Cancel(
            job_id=self.id,
            actor=self._channel.actor,
            request_id=self._channel.new_request_id(),
            mode=CancelMode.HARD if hard else CancelMode.SOFT,
            reason=plain(reason),
        )

    def _cancelled(self, answer: Answer) -> JobStatus:
        assert isinstance(answer, Reply)
        if answer.job is None:
            raise UnknownJob(self.id)
        self._record = answer.job
        if answer.cause is not None:
            raise refusal(self.id, answer)
        return answer.job.status


_HINTS = {
    Cause.IDEMPOTENCY_KEY_REUSE: "this job id was used for another request; make a new one",
    Cause.JOB_FINISHED: "it has ended, and ended jobs do not change",
    Cause.DEDUPE_KEY_HELD: "a job that this token may not see holds the dedupe key; keys are unique"
    " within a namespace and a kind, whatever the queue",
    Cause.COMPENSATION_PROTECTED: "a compensation cannot be cancelled",
}


def refusal(job_id: JobId, reply: Reply) -> Conflict:
    """Why a request was refused, as an error."""
    assert reply.cause is not None
    return Conflict(
        job_id=job_id,
        cause=reply.cause,
        status=None if reply.job is None else reply.job.status,
        hint=_HINTS.get(reply.cause, ""),
    )


def _why_unfinished(record: JobRecord, link: Link) -> str:
    """What is known of why the job has not ended."""
    reasons = []
    if record.failures and record.last_error is not None:
        spent = f"{record.failures} of {record.policy.max_attempts} attempts failed"
        reasons.append(f"{spent}, the last with {record.last_error.headline}")
    try:
        waiting = link.why_waiting(record)
    except TenureError:  # the caller is to hear that the time is over, not what else went wrong
        waiting = None
    reasons += [] if waiting is None else [waiting]
    return "; ".join(reasons)


def _raise_no_result(record: JobRecord) -> NoReturn:
    error = record.error or record.last_error or JobError()
    facts: dict[str, Any] = {
        "job_id": record.id,
        "kind": record.kind,
        "status": record.status.value,
        "error_type": error.type,
        "error_message": error.message,
    }
    if record.status is JobStatus.CANCELLED:
        raise JobCancelled(reason=record.cancel_reason or "", **facts)
    reason = record.reason_code or error.reason_code
    if record.status is JobStatus.DEAD_LETTERED:
        raise JobDeadLettered(reason=reason or "", **facts)
    raise JobFailed(reason=reason or "", **facts)
