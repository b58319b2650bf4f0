"""What is shown of jobs, events and what is kept beside them, and how a client reads it back.

One document for each, whoever asks: a server's answers and `--json` of the commands show the same.
A lease id is the right to report: no record carries a usable one, only grants do. [H7] Bodies
(payload, result, checkpoint) are there when they were asked for and may be seen.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, overload

import msgspec

from tenure.core.artifacts import Artifact
from tenure.core.attempt_logs import AttemptLog
from tenure.core.claims import QueueState
from tenure.core.deadlines import is_suspect
from tenure.core.events import Event, Facts
from tenure.core.ids import (
    LEASE_ID_PATTERN,
    Actor,
    Fingerprint,
    JobId,
    Kind,
    LeaseId,
    Namespace,
    QueueName,
    RequestId,
    WorkerId,
    shown_lease,
)
from tenure.core.instants import Instant
from tenure.core.job import Job, JobError, Progress, not_before
from tenure.core.resolutions import Resolution
from tenure.core.vocabulary import (
    ErrorClass,
    EventCause,
    EventClass,
    EventType,
    JobStatus,
    ReasonCode,
    ResolutionKind,
    Stage,
    WorkerState,
)
from tenure.core.workers import WorkerSeen
from tenure.protocol.fields import (
    instant,
    moment,
    optional_instant,
    optional_moment,
    optional_seconds,
)
from tenure.protocol.policies import PolicyRecord, policy_of, policy_record


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The root of everything that is answered; unknown fields are ignored on reading. [H2]"""


def _same(value: Any) -> Any:
    return value


def _fields(
    value: object, names: Iterable[str], translate: Callable[[Any], Any] = _same
) -> dict[str, Any]:
    """These fields of a value, each translated alike."""
    return {name: translate(getattr(value, name)) for name in names}


class ErrorRecord(Record, frozen=True, kw_only=True):
    """What went wrong in an attempt."""

    error_class: ErrorClass = msgspec.field(name="class", default=ErrorClass.UNCLASSIFIED)
    type: str = ""
    message: str = ""
    traceback: str = ""
    stage: Stage | None = None
    reason_code: ReasonCode | None = None


def error_record(error: JobError | None) -> ErrorRecord | None:
    """An error as it is shown."""
    if error is None:
        return None
    return ErrorRecord(**_fields(error, JobError.__struct_fields__))


def error_of(record: ErrorRecord | None) -> JobError | None:
    """An error as it was."""
    if record is None:
        return None
    return JobError(**_fields(record, JobError.__struct_fields__))


class JobRecord(Record, frozen=True, kw_only=True):
    """A job. `suspect` says that its worker has been silent for two heartbeats. [L6]

    A job that finished while an attempt was running keeps that attempt's `started_at`, and
    `duration_s` says how long the attempt ran. [S10]
    """

    id: JobId
    namespace: Namespace
    queue: QueueName
    kind: Kind
    status: JobStatus
    rev: int
    priority: int
    attempt: int
    failures: int
    releases: int
    outage_credits: int
    enqueued_at: datetime
    updated_at: datetime
    run_at: datetime | None
    policy: PolicyRecord
    owner: WorkerId | None
    principal: Actor | None
    claimed_at: datetime | None
    lease_expires_at: datetime | None
    due_at: datetime | None
    started_at: datetime | None
    was_started: bool
    finished_at: datetime | None
    duration_s: float | None = None
    suspect: bool
    hb_seq: int
    renewals: int
    progress: Progress | None
    cancel_requested_at: datetime | None
    cancel_deadline: datetime | None
    cancel_reason: str | None
    stall_cause: EventCause | None
    last_owner: WorkerId | None
    last_lease_expires_at: datetime | None
    last_error: ErrorRecord | None
    error: ErrorRecord | None
    reason_code: ReasonCode | None
    stage: Stage | None
    dedupe_key: str | None
    correlation_id: str | None
    trace_id: str | None
    origin_id: JobId | None
    origin_cause: EventCause | None
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    checkpoint: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


_BODIES = ("payload", "result", "checkpoint")
_INSTANTS = (
    "run_at",
    "claimed_at",
    "lease_expires_at",
    "due_at",
    "started_at",
    "finished_at",
    "cancel_requested_at",
    "cancel_deadline",
    "last_lease_expires_at",
)
_ERRORS = ("last_error", "error")
_TRANSLATED = {
    *_BODIES,
    *_INSTANTS,
    *_ERRORS,
    "enqueued_at",
    "updated_at",
    "policy",
    "suspect",
    "duration_s",
    "lease_id",
}
_AS_THEY_ARE = tuple(name for name in JobRecord.__struct_fields__ if name not in _TRANSLATED)


def raw_body(body: bytes | None) -> msgspec.Raw | msgspec.UnsetType:
    """A body as it travels: the bytes that were stored, in place."""
    return msgspec.UNSET if body is None else msgspec.Raw(body)


def body_of(raw: msgspec.Raw | msgspec.UnsetType) -> bytes | None:
    """The bytes of a body that came."""
    return None if raw is msgspec.UNSET else bytes(raw)


def body_or_null(raw: msgspec.Raw | msgspec.UnsetType) -> bytes:
    """The same where a body that is left out means null."""
    return b"null" if raw is msgspec.UNSET else bytes(raw)


def job_record(job: Job, *, now: Instant, bodies: bool) -> JobRecord:
    """A job as it is shown at `now`."""
    shown = _BODIES if bodies else ()
    return JobRecord(
        **_fields(job, _AS_THEY_ARE),
        **_fields(job, _INSTANTS, optional_moment),
        **_fields(job, _ERRORS, error_record),
        **_fields(job, shown, raw_body),
        enqueued_at=moment(job.enqueued_at),
        updated_at=moment(job.updated_at),
        policy=policy_record(job.policy),
        suspect=is_suspect(job, now),
        duration_s=optional_seconds(job.duration_us),
    )


def job_of(record: JobRecord) -> Job:
    """The job behind a record, without its lease's id and the place it was claimed from; a payload
    that was not asked for is null."""
    return Job(
        **_fields(record, _AS_THEY_ARE),
        **_fields(record, _INSTANTS, optional_instant),
        **_fields(record, _ERRORS, error_of),
        enqueued_at=instant(record.enqueued_at),
        updated_at=instant(record.updated_at),
        not_before=not_before(
            optional_instant(record.run_at), queued_at=instant(record.updated_at)
        ),
        policy=policy_of(record.policy),
        payload=body_or_null(record.payload),
        result=body_of(record.result),
        checkpoint=body_of(record.checkpoint),
    )


class EventRecord(Record, frozen=True, kw_only=True):
    """One event of a job's log; its `id` is `job_id:seq`. [E1]"""

    id: str
    job_id: JobId
    seq: int
    type: EventType
    event_class: EventClass = msgspec.field(name="class")
    ts: datetime
    actor: Actor
    attempt: int
    from_status: JobStatus | None
    to_status: JobStatus
    request_id: RequestId
    lease_id: str | None
    owner: WorkerId | None
    lease_expires_at: datetime | None
    fingerprint: Fingerprint | None
    correlation_id: str | None
    trace_id: str | None
    cause: EventCause | None
    payload: Facts
    version: int


_EVENT_AS_IT_IS = tuple(
    name
    for name in Event.__struct_fields__
    if name not in ("ts", "lease_expires_at", "lease_id", "request_id")
)


def event_record(event: Event, *, digests: bool = True) -> EventRecord:
    """An event as it is shown; without digests for those who may not see bodies, because a payload
    that is one of a few can be guessed from its digest. [H46]"""
    if not digests:
        facts = msgspec.structs.replace(event.payload, sha256=None, checkpoint_sha256=None)
        event = msgspec.structs.replace(event, fingerprint=None, payload=facts)
    lease_id = event.lease_id
    # Request ids are made of lease ids: a heartbeat's by rule [Q6], a report's by our own worker,
    # and what follows from a report bears its request id, but no lease.
    request_id = LEASE_ID_PATTERN.sub(lambda found: shown_lease(found[0]), event.request_id)
    return EventRecord(
        **_fields(event, _EVENT_AS_IT_IS),
        id=f"{event.job_id}:{event.seq}",
        event_class=event.event_class,
        ts=moment(event.ts),
        lease_id=None if lease_id is None else shown_lease(lease_id),
        lease_expires_at=optional_moment(event.lease_expires_at),
        request_id=RequestId(request_id),
    )


def event_of(record: EventRecord) -> Event:
    """The event behind a record; its lease id is only what may be shown of it."""
    return Event(
        **_fields(record, _EVENT_AS_IT_IS),
        ts=instant(record.ts),
        lease_id=None if record.lease_id is None else LeaseId(record.lease_id),
        lease_expires_at=optional_instant(record.lease_expires_at),
        request_id=record.request_id,
    )


class ResolutionRecord(Record, frozen=True, kw_only=True):
    """What became of a dead letter. [B1]"""

    job_id: JobId
    kind: ResolutionKind
    ts: datetime
    actor: Actor
    request_id: RequestId
    note: str
    new_job_id: JobId | None


@overload
def resolution_record(resolution: Resolution) -> ResolutionRecord: ...
@overload
def resolution_record(resolution: Resolution | None) -> ResolutionRecord | None: ...
def resolution_record(resolution: Resolution | None) -> ResolutionRecord | None:
    """A resolution as it is shown; its fingerprint is nobody's business."""
    if resolution is None:
        return None
    return ResolutionRecord(
        job_id=resolution.job_id,
        kind=resolution.kind,
        ts=moment(resolution.ts),
        actor=resolution.actor,
        request_id=resolution.request_id,
        note=resolution.note,
        new_job_id=resolution.new_job_id,
    )


@overload
def resolution_of(record: ResolutionRecord) -> Resolution: ...
@overload
def resolution_of(record: ResolutionRecord | None) -> Resolution | None: ...
def resolution_of(record: ResolutionRecord | None) -> Resolution | None:
    """The resolution behind a record."""
    if record is None:
        return None
    return Resolution(
        job_id=record.job_id,
        kind=record.kind,
        ts=instant(record.ts),
        actor=record.actor,
        request_id=record.request_id,
        fingerprint=Fingerprint(""),
        note=record.note,
        new_job_id=record.new_job_id,
    )


class ArtifactRecord(Record, frozen=True, kw_only=True):
    """An artifact without its body."""

    job_id: JobId
    attempt: int
    name: str
    media_type: str
    size: int
    sha256: str | None
    ts: datetime


def artifact_record(artifact: Artifact, *, digests: bool = True) -> ArtifactRecord:
    """An artifact as it is shown; without its digest for those who may not see bodies. [H46]"""
    shown = ArtifactRecord(**_with_ts(artifact, moment(artifact.ts)))
    return shown if digests else msgspec.structs.replace(shown, sha256=None)


def artifact_of(record: ArtifactRecord) -> Artifact:
    """The artifact behind a record."""
    return Artifact(**_with_ts(record, instant(record.ts)) | {"sha256": record.sha256 or ""})


def _with_ts(artifact: Artifact | ArtifactRecord, ts: object) -> dict[str, Any]:
    return _fields(artifact, Artifact.__struct_fields__) | {"ts": ts}


class OutputRecord(Record, frozen=True, kw_only=True):
    """The kept output of one attempt. [B20]"""

    job_id: JobId
    attempt: int
    text: str
    left_out_bytes: int


def output_record(log: AttemptLog) -> OutputRecord:
    """An attempt's output as it is shown."""
    return OutputRecord(**_fields(log, AttemptLog.__struct_fields__))


def output_of(record: OutputRecord) -> AttemptLog:
    """The output behind a record."""
    return AttemptLog(**_fields(record, AttemptLog.__struct_fields__))


class QueueRecord(Record, frozen=True, kw_only=True):
    """A queue; `live` is the number of its leases."""

    name: QueueName
    paused: bool
    limit: int | None
    live: int


def queue_record(queue: QueueState) -> QueueRecord:
    """A queue as it is shown."""
    return QueueRecord(name=queue.name, paused=queue.paused, limit=queue.limit, live=queue.live)


def queue_of(record: QueueRecord) -> QueueState:
    """The queue behind a record."""
    return QueueState(name=record.name, paused=record.paused, limit=record.limit, live=record.live)


class WorkerRecord(Record, frozen=True, kw_only=True):
    """A worker process as it last described itself. [B13]"""

    namespace: Namespace
    worker: WorkerId
    actor: Actor
    host: str
    pid: int
    queues: tuple[QueueName, ...]
    kinds: tuple[Kind, ...]
    concurrency: int
    version: str
    started_at: datetime
    seen_at: datetime
    drain_requested_at: datetime | None
    draining: bool
    state: WorkerState


_WORKER_INSTANTS = ("started_at", "seen_at", "drain_requested_at")
_WORKER_AS_IT_IS = tuple(
    name for name in WorkerSeen.__struct_fields__ if name not in _WORKER_INSTANTS
)


def worker_record(seen: WorkerSeen, *, now: Instant) -> WorkerRecord:
    """A worker as it is shown at `now`."""
    return WorkerRecord(
        **_fields(seen, _WORKER_AS_IT_IS),
        started_at=moment(seen.started_at),
        seen_at=moment(seen.seen_at),
        drain_requested_at=optional_moment(seen.drain_requested_at),
        draining=seen.draining,
        state=seen.state(now),
    )


def worker_of(record: WorkerRecord) -> WorkerSeen:
    """The worker behind a record."""
    return WorkerSeen(
        **_fields(record, _WORKER_AS_IT_IS),
        started_at=instant(record.started_at),
        seen_at=instant(record.seen_at),
        drain_requested_at=optional_instant(record.drain_requested_at),
    )
