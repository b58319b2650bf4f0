"""A handle on one job: its record, its result, its history, and what can be decided about it.

Each method asks the coordinator again until the job has ended; an ended job never changes. Every
method that blocks has a twin for async code, named with an `a` in front; that of `wait` is
`await_end`, because `await` is a keyword. [ADR 0034]
"""

import asyncio
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, Generic, NoReturn, TypedDict, TypeVar, Unpack

from tenure.client.channel import Channel, Link, pausing, poll_pauses
from tenure.client.records import JobRecord, record_of
from tenure.client.shells import Operation, Wait, arun, awaiting, blocking, in_thread, run
from tenure.core.checks import check_job_id, check_name
from tenure.core.commands import Cancel, Command, DeadLetter, Discard, Redrive, Requeue, Stall
from tenure.core.ids import JobId, Kind, Namespace, RequestId
from tenure.core.instants import MICROSECONDS_PER_SECOND
from tenure.core.job import HIDDEN, JobError, Progress
from tenure.core.job import Job as StoredJob
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import (
    CancelMode,
    Cause,
    EventCause,
    JobStatus,
    ReasonCode,
    Stage,
    counted,
)
from tenure.errors import (
    Conflict,
    JobCancelled,
    JobDeadLettered,
    JobFailed,
    RequestRefused,
    TenureError,
    UnknownJob,
    UnreadableRow,
    WaitTimeout,
)
from tenure.handlers.calls import JobHandle
from tenure.handlers.options import Span, check_known, duration, plain, word
from tenure.ports import Hint, HintedChange, JobStore
from tenure.protocol.fields import iso
from tenure.protocol.records import (
    ArtifactRecord,
    ErrorRecord,
    EventRecord,
    JobOutcome,
    ObservationRecord,
    artifact_record,
    event_record,
    observation_record,
    resolution_record,
)

_T = TypeVar("_T")
R_co = TypeVar("R_co", covariant=True)  # what the job's function returns


class RequestOptions(TypedDict, total=False):
    """What every request about one job may state. Repeated under the same `request_id`, it is
    carried out once. [Q4] With an `expected_rev`, the `rev` of a `JobRecord`, it is carried out
    only if the job has not changed since; otherwise it raises `Conflict`. [K12]"""

    request_id: str
    expected_rev: int


_OPTIONS = frozenset(RequestOptions.__annotations__)


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
        job = self._ended()
        if job is None:
            self._stored = job = yield from self._channel.loading(self.id)
        return job

    def _ended(self) -> StoredJob | None:
        """The ended job with its result, if it was read: a server's replies have no bodies."""
        job = self._stored
        is_whole = job is not None and job.status.is_terminal and job.payload != HIDDEN
        return job if is_whole else None

    @property
    def kind(self) -> Kind:
        """What it does."""
        return (self._stored or run(self._loading())).kind

    @property
    def meta(self) -> dict[str, str]:
        """What it was enqueued with; a copy."""
        return dict((self._stored or run(self._loading())).meta or {})

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
        """The progress that its handler last reported."""
        return run(self._loading()).progress

    @property
    def error(self) -> ErrorRecord | None:
        """What ended it, or what its last failed attempt reported."""
        record = self.refresh()
        error: ErrorRecord | None = record.error or record.last_error
        return error

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
        job = self._ended()
        if job is None:
            ended = yield from ending(self._channel, [self.id], timeout)
            self._stored = job = ended[self.id]
        return job

    @blocking
    def result(self, timeout: Span | None = None) -> Operation[R_co]:
        """Wait for the job and return what its function returned.

        Raises `JobFailed`, `JobCancelled` or `JobDeadLettered` if it ended without a result, and
        `WaitTimeout` if it did not end in time.
        """
        return self._resulting(timeout)

    aresult = awaiting(result)

    def _resulting(self, timeout: Span | None) -> Operation[R_co]:
        """`result` as an operation."""
        job = yield from self._waiting(timeout)
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
        fields = cancel_fields(self._channel, hard=hard, reason=reason)
        return self._changing(Cancel, request, **fields)

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
        """Turn the job into a dead letter, if it has not ended: it does not run unless it is
        redriven. The message is kept as its error."""
        return self._changing(DeadLetter, request, **dead_letter_fields(reason, stage, message))

    adead_letter = awaiting(dead_letter)

    @blocking
    def rerun(
        self, *, again: bool = False, **request: Unpack[RequestOptions]
    ) -> Operation["Job[R_co]"]:
        """Make a new job like this one, which has ended and stays unchanged. A dead letter that was
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
        waiting = link.coordination.why_waiting(job)
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


def cancel_fields(channel: Channel, *, hard: bool, reason: str) -> dict[str, Any]:
    """What a cancellation says of itself; a client may ask for it."""
    mode = CancelMode.HARD if hard else CancelMode.SOFT
    return {"actor": channel.actor, "mode": mode, "reason": plain(reason)}


def dead_letter_fields(
    reason: ReasonCode | str, stage: Stage | str | None, message: str
) -> dict[str, Any]:
    """Why a job becomes a dead letter."""
    return {
        "reason_code": word("reason", ReasonCode, reason),
        "stage": None if stage is None else word("stage", Stage, stage),
        "message": plain(message),
    }


def requested(channel: Channel, options: RequestOptions, *, of: str) -> dict[str, Any]:
    """The fields of a command that these options set; `of` is what was called."""
    check_known(dict(options), _OPTIONS, of=of)
    given = options.get("request_id")
    return {
        "request_id": channel.new_request_id() if given is None else RequestId(plain(given)),
        "expected_rev": options.get("expected_rev"),
    }


def commanding(channel: Channel, command: Command) -> Operation[StoredJob]:
    """The job after the command, or the new one of a redrive. Raises why it was refused."""
    [answer] = yield from channel.submitting([command])
    assert isinstance(answer, Reply)
    if answer.cause is not None or answer.job is None:
        raise refusal(command.job_id, answer)
    if isinstance(command, Redrive) and answer.deduplicated:
        raise Conflict(
            job_id=command.job_id,
            cause=Cause.DEDUPE_KEY_HELD,
            status=command.expected_status,
            hint=f"{_held_by(answer.job.id)}; nothing was made",
        )
    return answer.job


DECIDED_TOGETHER = 100
"""How many jobs one request is about, if it is about many."""


def deciding_many(
    channel: Channel,
    job_ids: Iterable[str],
    command: Callable[..., Command],
    request: RequestOptions,
    **fields: Any,
) -> Operation[list[JobOutcome]]:
    """What becomes of these jobs if the same is asked about each, under one request id."""
    fields = {"actor": channel.operator} | fields
    fields |= requested(channel, request, of="a request about jobs")
    ids = [JobId(plain(job_id)) for job_id in dict.fromkeys(job_ids)]
    for job_id in ids:
        check_job_id("job_ids", job_id)
    commands = [command(job_id=each, **fields) for each in ids]
    answers = yield from submitting_each(channel, commands)
    return list(map(_outcome_of, commands, answers))


def submitting_each(
    channel: Channel, commands: Sequence[Command]
) -> Operation[list[Reply | UnreadableRow]]:
    """The answers to requests about many jobs, which are sent in batches. An unreadable row fails
    its whole batch, which is sent again without that row under the same request id."""
    answers: dict[JobId, Reply | UnreadableRow] = {}
    left = list(commands)
    while left:
        batch = left[:DECIDED_TOGETHER]
        try:
            found = yield from channel.submitting(batch)
        except UnreadableRow as row:
            if row.job_id not in [each.job_id for each in batch]:
                raise
            answers[JobId(row.job_id)] = row
            left = [each for each in left if each.job_id != row.job_id]
            continue
        for each, answer in zip(batch, found, strict=True):
            assert isinstance(answer, Reply)
            answers[each.job_id] = answer
        left = left[len(batch) :]
    return [answers[each.job_id] for each in commands]


def _outcome_of(command: Command, answer: Reply | UnreadableRow) -> JobOutcome:
    if isinstance(answer, UnreadableRow):
        return JobOutcome(job_id=command.job_id, problem=str(answer))
    if answer.cause is not None or answer.job is None:
        return JobOutcome(
            job_id=command.job_id,
            cause=answer.cause,
            resolution=resolution_record(answer.resolution),
            problem=why_refused(answer),
        )
    job = answer.job
    if isinstance(command, Redrive) and answer.deduplicated:
        return JobOutcome(job_id=command.job_id, held_by=job.id, problem=_held_by(job.id))
    if isinstance(command, Redrive):
        return JobOutcome(job_id=command.job_id, new_job_id=job.id)
    if isinstance(command, Discard):
        return JobOutcome(job_id=command.job_id)
    return JobOutcome(job_id=command.job_id, status=job.status, pending=answer.pending)


def _held_by(job_id: JobId) -> str:
    return f"its dedupe key is held by job {job_id}"


_WHY = {
    Cause.UNKNOWN_JOB: "there is no such job",
    Cause.IDEMPOTENCY_KEY_REUSE: "this request id was used for another request",
    Cause.COMPENSATION_PROTECTED: "it compensates another job and cannot be cancelled",
    Cause.COMPENSATION_PENDING: "its compensation has not ended yet; wait for that",
    Cause.DEDUPE_KEY_HELD: "its dedupe key is held by a job out of this token's scope",  # [D6]
}
_WHY_OF_JOB = {
    Cause.JOB_FINISHED: "it is {job.status} already",
    Cause.NOT_FINISHED: "it is {job.status} and has not finished",
    Cause.NOT_HELD: "it is {job.status}, not stalled",
    Cause.NOT_LEASED: "it is {job.status}: no worker has it",
    Cause.NOT_DEAD_LETTERED: "it is {job.status}, not a dead letter",
    Cause.REVISION_MISMATCH: "it is {job.status} and has rev {job.rev} now",
    Cause.PART_OF_FLOW: "it is a job of flow {job.flow_id}; `tenure flows redrive {job.flow_id}`,"
    " or app.flows.redrive(flow_id), replaces its jobs that did not succeed",
}


def why_refused(reply: Reply) -> str:
    """Why a request about a job was refused, in words."""
    job, cause, resolution = reply.job, reply.cause, reply.resolution
    if resolution is not None:
        new = "" if resolution.new_job_id is None else f" as job {resolution.new_job_id}"
        return f"it was {resolution.kind}{new} by {resolution.actor} at {iso(resolution.ts)}"
    if job is not None and cause is Cause.NOT_HELD and job.status is JobStatus.QUEUED:
        return "it is queued already"
    if job is not None and cause is Cause.NOT_HELD and job.status is JobStatus.WAITING:
        return f"it waits for other jobs of its flow {job.flow_id}"
    if job is not None and cause in _WHY_OF_JOB:
        return _WHY_OF_JOB[cause].format(job=job)
    return _WHY.get(cause or Cause.UNKNOWN_JOB, "the coordinator refused it")


def refusal(job_id: JobId, reply: Reply) -> TenureError:
    """Why a request was refused, as an error."""
    job, cause = reply.job, reply.cause
    if cause is None or cause is Cause.UNKNOWN_JOB:
        return UnknownJob(job_id)
    return Conflict(
        job_id=job_id,
        cause=cause,
        status=None if job is None else job.status,
        rev=None if job is None else job.rev,
        hint=why_refused(reply),
    )


READ_TOGETHER = 100
"""How many jobs of a flow are read at once while they are waited for."""


def ending(
    channel: Channel, ids: Sequence[JobId], timeout: Span | None
) -> Operation[dict[JobId, StoredJob]]:
    """Wait until these jobs have ended. Raises `WaitTimeout` if they have not in time, and
    `UnknownJob` if one was purged, or never committed: it may never end."""
    limit_s = math.inf
    if timeout is not None:
        limit_s = duration("timeout", timeout) / MICROSECONDS_PER_SECOND
    link = yield from channel.linking()
    began = link.monotonic()
    ended: dict[JobId, StoredJob] = {}
    left = list(ids)
    pauses = poll_pauses()
    with closing(EndHints(link, channel.namespace)) as hints:
        while left:
            rows = yield from channel.reading(left[:READ_TOGETHER])
            for job_id in left[:READ_TOGETHER]:
                job = rows.get(job_id)
                if job is None or job.namespace != channel.namespace:
                    raise UnknownJob(job_id)
                if job.status.is_terminal:
                    ended[job_id] = job
            still = [job_id for job_id in left if job_id not in ended]
            has_moved, left = len(still) < len(left), still
            if not left or has_moved:
                continue
            waited_s = link.monotonic() - began
            if waited_s >= limit_s:
                first = rows[left[0]]
                reason = f"not ended: {len(left)} of {counted(len(ids), 'job')} of the flow"
                if len(ids) == 1:
                    reason = yield in_thread(partial(_why_unfinished, first, link))
                raise WaitTimeout(
                    job_id=first.id, status=first.status, waited_s=limit_s, reason=reason
                )
            yield hints.pausing(min(next(pauses), limit_s - waited_s))
    return ended


LONGEST_PAUSE_S = 0.1
PAUSE_SHARE = 0.1
"""How long hints are ignored after a read: this share of the time that was waited."""


class EndHints:
    """Receives the hints of one link during a wait. Close it."""

    def __init__(self, link: Link, namespace: Namespace) -> None:
        self._link = link
        self._namespace = namespace
        self._began_s = link.monotonic()
        self._has_hint = threading.Event()
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._stop = None if link.watch is None else link.watch(self._receive)

    def close(self) -> None:
        """Stop listening."""
        if self._stop is not None:
            self._stop()

    def pausing(self, pause_s: float) -> Wait:
        """A pause, until a job may have ended or the time is over."""
        if self._stop is None:
            return pausing(self._link, pause_s)
        waited_s = self._link.monotonic() - self._began_s
        ignored_s = min(PAUSE_SHARE * waited_s, LONGEST_PAUSE_S, pause_s)
        return Wait(
            lambda: self._pause(ignored_s, pause_s - ignored_s),
            lambda: self._apause(ignored_s, pause_s - ignored_s),
        )

    def _receive(self, hint: Hint | None) -> None:
        if hint is not None:
            is_mine = hint.change is HintedChange.ENDED and hint.namespace == self._namespace
            if not is_mine:
                return
        self._has_hint.set()
        waiting = self._waiting
        if waiting is not None:
            with suppress(RuntimeError):  # the loop has ended
                waiting[0].call_soon_threadsafe(waiting[1].set)

    def _pause(self, ignored_s: float, pause_s: float) -> None:
        self._link.pause(ignored_s)
        self._has_hint.wait(pause_s)
        self._has_hint.clear()

    async def _apause(self, ignored_s: float, pause_s: float) -> None:
        await self._link.apause(ignored_s)
        event = asyncio.Event()
        self._waiting = (asyncio.get_running_loop(), event)
        if not self._has_hint.is_set():  # else the hint came before there was an event
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await event.wait()
        self._waiting = None
        self._has_hint.clear()
