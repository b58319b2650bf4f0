"""A handle on one job: its record, its result, its history, and what can be decided about it.

Each method asks the coordinator again until the job has ended; an ended job never changes. Every
method that blocks has a twin for async code, named with an `a` in front; that of `wait` is
`await_end`, because `await` is a keyword. [ADR 0034]
"""

import math
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar, Unpack

from tenure.client.channel import Channel, Link, poll_pauses
from tenure.client.end_hints import EndHints
from tenure.client.records import JobRecord, record_of
from tenure.client.requests import RequestOptions, commanding, requested
from tenure.client.shells import Operation, arun, awaiting, blocking, in_thread, run
from tenure.core.checks import check_name
from tenure.core.commands import Cancel, Command, DeadLetter, Redrive, Requeue, Stall
from tenure.core.counting import counted
from tenure.core.ids import JobId, Kind
from tenure.core.instants import MICROSECONDS_PER_SECOND
from tenure.core.job import Job as StoredJob
from tenure.core.job import JobError, Progress
from tenure.core.vocabulary import CancelMode, EventCause, JobStatus, ReasonCode, Stage
from tenure.errors import (
    JobCancelled,
    JobDeadLettered,
    JobFailed,
    RequestRefused,
    TenureError,
    WaitTimeout,
)
from tenure.handlers.calls import JobHandle
from tenure.handlers.options import Span, duration, plain, word
from tenure.ports import JobStore
from tenure.protocol.records import (
    ArtifactRecord,
    ErrorRecord,
    EventRecord,
    ObservationRecord,
    artifact_record,
    event_record,
    observation_record,
)

_T = TypeVar("_T")
R_co = TypeVar("R_co", covariant=True)  # what the job's function returns


class Job(JobHandle, Generic[R_co]):
    """One job, by its id. `R` is what its function returns."""

    def __init__(
        self,
        channel: Channel,
        job_id: JobId,
        *,
        stored: StoredJob | None = None,
        decode: Callable[[Kind, bytes], R_co],
        deduplicated: bool = False,
    ) -> None:
        self.id = job_id
        self.deduplicated = deduplicated
        """Whether this is an earlier job that already held the dedupe key. [D5]"""
        self._channel = channel
        self._stored = stored
        self._decode = decode

    def __repr__(self) -> str:
        job = self._stored
        seen = "" if job is None else f" {job.kind}, last seen {job.status}"
        return f"<Job {self.id}{seen}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    # --- looking -------------------------------------------------------------------------------

    @blocking
    def refresh(self) -> Operation[JobRecord]:
        """The job's record as it is now."""
        job = yield from self._loading()
        now = job.updated_at
        if job.lease_expires_at is not None:  # whether a worker is suspect depends on the time
            now = yield from self._channel.asking(lambda store: store.now())
        return record_of(job, now=now, bodies=True)

    arefresh = awaiting(refresh)

    def _loading(self) -> Operation[StoredJob]:
        if self._stored is None or not self._stored.status.is_terminal:
            self._stored = yield from self._channel.loading(self.id)
        return self._stored

    @property
    def kind(self) -> Kind:
        """What it does."""
        return (self._stored or run(self._loading())).kind

    @property
    def status(self) -> JobStatus:
        """Its status now."""
        return run(self._loading()).status

    async def astatus(self) -> JobStatus:
        """`status` for async code."""
        return (await arun(self._loading())).status

    @property
    def attempts(self) -> int:
        """How often it was given to a worker."""
        return run(self._loading()).attempt

    @property
    def progress(self) -> Progress | None:
        """How far its handler last said it was."""
        return run(self._loading()).progress

    @property
    def error(self) -> ErrorRecord | None:
        """What ended it, or what its last failed attempt reported."""
        record = self.refresh()
        return record.error or record.last_error

    @blocking
    def events(self) -> Operation[list[EventRecord]]:
        """Everything that happened to it, in order."""
        events = yield from self._asking(lambda store: store.events.load([self.id])[self.id])
        return [event_record(event) for event in events]

    aevents = awaiting(events)

    @blocking
    def observations(self) -> Operation[list[ObservationRecord]]:
        """What is kept beside its history, oldest first: results that were refused, reports under
        another worker's lease, a compensation that succeeded."""
        found = yield from self._asking(lambda store: store.jobs.observations(self.id))
        return [observation_record(seen, bodies=True) for seen in found]

    aobservations = awaiting(observations)

    @blocking
    def artifacts(self) -> Operation[list[ArtifactRecord]]:
        """The files of the attempt that succeeded, by name; none before it has."""
        found = yield from self._asking(lambda store: store.artifacts.of_job(self.id))
        return [artifact_record(artifact) for artifact in found]

    aartifacts = awaiting(artifacts)

    @blocking
    def artifact(self, name: str) -> Operation[bytes | None]:
        """The content of one of its files; None if there is none of this name."""
        wanted = plain(name)
        check_name("name", wanted)
        stored = yield from self._asking(lambda store: store.artifacts.load(self.id, wanted))
        return None if stored is None else stored.body

    aartifact = awaiting(artifact)

    def _asking(self, question: Callable[[JobStore], _T]) -> Operation[_T]:
        """Ask about this job, which must be one of the application's namespace."""
        yield from self._channel.loading(self.id)
        return (yield from self._channel.asking(question))

    # --- waiting -------------------------------------------------------------------------------

    @blocking
    def wait(self, timeout: Span | None = None) -> Operation[JobStatus]:
        """Wait until the job has ended, and return its status; raises `WaitTimeout` if it has not
        ended in time."""
        return (yield from self._waiting(timeout)).status

    await_end = awaiting(wait, name="await_end")

    def _waiting(self, timeout: Span | None) -> Operation[StoredJob]:
        limit_s = math.inf
        if timeout is not None:
            limit_s = duration("timeout", timeout) / MICROSECONDS_PER_SECOND
        link = yield from self._channel.linking()
        began = link.monotonic()
        pauses = poll_pauses()
        with closing(EndHints(link, self._channel.namespace)) as hints:
            while True:
                job = yield from self._loading()
                if job.status.is_terminal:
                    return job
                left_s = limit_s - (link.monotonic() - began)
                if left_s <= 0:
                    reason = yield in_thread(partial(_why_unfinished, job, link))
                    raise WaitTimeout(
                        job_id=self.id, status=job.status, waited_s=limit_s, reason=reason
                    )
                yield hints.pausing(min(next(pauses), left_s))

    @blocking
    def result(self, timeout: Span | None = None) -> Operation[R_co]:
        """Wait for the job and return what its function returned.

        Raises `JobFailed`, `JobCancelled` or `JobDeadLettered` if it ended without a result, and
        `WaitTimeout` if it did not end in time.
        """
        return self._outcome((yield from self._waiting(timeout)))

    aresult = awaiting(result)

    def _outcome(self, job: StoredJob) -> R_co:
        if job.status is not JobStatus.SUCCEEDED:
            _raise_no_result(job)
        if job.result is None:
            raise RequestRefused(
                f"the result of job {job.id} is hidden from a viewer",
                reason="out_of_scope",
                field="result",
                hint="ask with the token of a client or an operator",
            )
        return self._decode(job.kind, job.result)

    # --- deciding ------------------------------------------------------------------------------

    @blocking
    def cancel(
        self, *, hard: bool = False, reason: str = "", **request: Unpack[RequestOptions]
    ) -> Operation[JobStatus]:
        """Stop the job and return its status: `cancelled`, or `running` while a soft cancel waits
        for the handler to notice. Raises `Conflict` if it has already ended in another way."""
        mode = CancelMode.HARD if hard else CancelMode.SOFT
        actor = self._channel.actor
        return self._changing(Cancel, request, actor=actor, mode=mode, reason=plain(reason))

    acancel = awaiting(cancel)

    @blocking
    def stall(self, **request: Unpack[RequestOptions]) -> Operation[JobStatus]:
        """Take the job from a worker that you no longer trust, and leave it stalled. Over HTTP this
        and the following need an operator's token."""
        return self._changing(Stall, request)

    astall = awaiting(stall)

    @blocking
    def requeue(self, **request: Unpack[RequestOptions]) -> Operation[JobStatus]:
        """Send the job back to its queue, if it is stalled."""
        return self._changing(Requeue, request)

    arequeue = awaiting(requeue)

    @blocking
    def dead_letter(
        self,
        reason: ReasonCode | str = ReasonCode.POLICY_VIOLATION,
        message: str = "",
        *,
        stage: Stage | str | None = None,
        **request: Unpack[RequestOptions],
    ) -> Operation[JobStatus]:
        """Turn the job into a dead letter, if it has not ended: it does not run unless somebody
        redrives it. The message is kept as its error."""
        return self._changing(
            DeadLetter,
            request,
            reason_code=word("reason", ReasonCode, reason),
            stage=None if stage is None else word("stage", Stage, stage),
            message=plain(message),
        )

    adead_letter = awaiting(dead_letter)

    @blocking
    def rerun(
        self, *, again: bool = False, **request: Unpack[RequestOptions]
    ) -> Operation["Job[R_co]"]:
        """Make a new job like this one, which has ended and stays as it is. A dead letter that was
        redriven or discarded before raises `Conflict`, unless `again` asks for another job."""
        made = yield from self._deciding(Redrive, request, cause=EventCause.RERUN, again=again)
        return Job(self._channel, made.id, stored=made, decode=self._decode)

    arerun = awaiting(rerun)

    def _changing(
        self, command: Callable[..., Command], request: RequestOptions, **fields: Any
    ) -> Operation[JobStatus]:
        self._stored = yield from self._deciding(command, request, **fields)
        return self._stored.status

    def _deciding(
        self, command: Callable[..., Command], request: RequestOptions, **fields: Any
    ) -> Operation[StoredJob]:
        fields = {"actor": self._channel.operator} | fields
        fields |= requested(self._channel, request, of="a request about a job")
        if self._stored is None:
            yield from self._loading()  # an id alone does not say whose namespace it is in
        return (yield from commanding(self._channel, command(job_id=self.id, **fields)))


def _why_unfinished(job: StoredJob, link: Link) -> str:
    """What is known of why the job has not ended."""
    reasons = []
    if job.failures and job.last_error is not None:
        spent = f"{job.failures} of {counted(job.policy.max_attempts, 'attempt')} failed"
        reasons.append(f"{spent}, the last with {job.last_error.headline}")
    try:
        waiting = link.why_waiting(job)
    except TenureError:  # the caller must get WaitTimeout, whatever else goes wrong
        waiting = None
    reasons += [] if waiting is None else [waiting]
    return "; ".join(reasons)


def _raise_no_result(job: StoredJob) -> NoReturn:
    error = job.error or job.last_error or JobError()
    facts: dict[str, Any] = {
        "job_id": job.id,
        "kind": job.kind,
        "status": job.status.value,
        "error_type": error.type,
        "error_message": error.message,
    }
    if job.status is JobStatus.CANCELLED:
        raise JobCancelled(reason=job.cancel_reason or "", **facts)
    reason = job.reason_code or error.reason_code
    if job.status is JobStatus.DEAD_LETTERED:
        raise JobDeadLettered(reason=reason or "", **facts)
    raise JobFailed(reason=reason or "", **facts)
