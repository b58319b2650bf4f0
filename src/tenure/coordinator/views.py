"""Views: what people and programs are shown of jobs and events. Read only, one shape for all.

Instants are ISO 8601 in UTC, durations seconds. Payloads, results and checkpoints may hold
secrets: they are shown only when asked for.
"""

from datetime import UTC, datetime, timedelta

import msgspec

from tenure.core.beside import Artifact, Resolution, WorkerSeen
from tenure.core.deadlines import is_suspect
from tenure.core.events import Event, Facts
from tenure.core.ids import shown_lease
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant, seconds
from tenure.core.job import Job, JobError, Progress

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SILENT_AFTER = seconds(60)
"""How long a worker may give no sign of life before it is shown as silent."""

_LAST = datetime.max.replace(tzinfo=UTC)


def iso(instant: Instant | None) -> str | None:
    """An instant as people and programs read it."""
    if instant is None:
        return None
    try:
        moment = _EPOCH + timedelta(microseconds=instant)
    except OverflowError:
        moment = _LAST
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def in_seconds(duration: Duration | None) -> float | None:
    """A duration in seconds."""
    return None if duration is None else duration / MICROSECONDS_PER_SECOND


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it is shown."""

    id: str
    namespace: str
    queue: str
    kind: str
    status: str
    priority: int
    attempt: int
    failures: int
    max_attempts: int
    releases: int
    rev: int
    enqueued_at: str | None
    run_at: str | None
    started_at: str | None
    finished_at: str | None
    owner: str | None
    lease_expires_at: str | None
    suspect: bool
    progress: Progress | None
    cancel_requested_at: str | None
    cancel_reason: str | None
    stall_cause: str | None
    error: JobError | None
    reason_code: str | None
    stage: str | None
    last_error: JobError | None
    last_owner: str | None
    last_lease_expires_at: str | None
    dedupe_key: str | None
    correlation_id: str | None
    trace_id: str | None
    origin_id: str | None
    origin_cause: str | None
    lease_s: float | None
    timeout_s: float | None
    payload: msgspec.Raw | None = None
    result: msgspec.Raw | None = None
    checkpoint: msgspec.Raw | None = None


def _raw(body: bytes | None) -> msgspec.Raw | None:
    return None if body is None else msgspec.Raw(body)


def job_view(job: Job, now: Instant, *, with_bodies: bool = False) -> JobView:
    """What is shown of a job at `now`."""
    return JobView(
        id=job.id,
        namespace=job.namespace,
        queue=job.queue,
        kind=job.kind,
        status=job.status,
        priority=job.priority,
        attempt=job.attempt,
        failures=job.failures,
        max_attempts=job.policy.max_attempts,
        releases=job.releases,
        rev=job.rev,
        enqueued_at=iso(job.enqueued_at),
        run_at=iso(job.run_at),
        started_at=iso(job.started_at),
        finished_at=iso(job.finished_at),
        owner=job.owner,
        lease_expires_at=iso(job.lease_expires_at),
        suspect=is_suspect(job, now),
        progress=job.progress,
        cancel_requested_at=iso(job.cancel_requested_at),
        cancel_reason=job.cancel_reason,
        stall_cause=job.stall_cause,
        error=job.error,
        reason_code=job.reason_code,
        stage=job.stage,
        last_error=job.last_error,
        last_owner=job.last_owner,
        last_lease_expires_at=iso(job.last_lease_expires_at),
        dedupe_key=job.dedupe_key,
        correlation_id=job.correlation_id,
        trace_id=job.trace_id,
        origin_id=job.origin_id,
        origin_cause=job.origin_cause,
        lease_s=in_seconds(job.policy.lease_us),
        timeout_s=in_seconds(job.policy.timeout_us),
        payload=_raw(job.payload) if with_bodies else None,
        result=_raw(job.result) if with_bodies else None,
        checkpoint=_raw(job.checkpoint) if with_bodies else None,
    )


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """An event as it is shown; `id` is `job_id:seq`."""

    id: str
    job_id: str
    seq: int
    type: str
    event_class: str = msgspec.field(name="class")
    ts: str | None
    actor: str
    attempt: int
    lease_id: str | None
    owner: str | None
    lease_expires_at: str | None
    from_status: str | None
    to_status: str
    request_id: str
    fingerprint: str | None
    correlation_id: str | None
    trace_id: str | None
    cause: str | None
    payload: Facts
    version: int


def event_view(event: Event) -> EventView:
    """What is shown of an event. [E1]"""
    lease_id, request_id = event.lease_id, str(event.request_id)
    if lease_id is not None:
        # A heartbeat's request id is made of it. [Q6]
        request_id = request_id.replace(lease_id, shown_lease(lease_id))
    return EventView(
        id=f"{event.job_id}:{event.seq}",
        job_id=event.job_id,
        seq=event.seq,
        type=event.type,
        event_class=event.event_class,
        ts=iso(event.ts),
        actor=event.actor,
        attempt=event.attempt,
        lease_id=None if lease_id is None else shown_lease(lease_id),
        owner=event.owner,
        lease_expires_at=iso(event.lease_expires_at),
        from_status=event.from_status,
        to_status=event.to_status,
        request_id=request_id,
        fingerprint=event.fingerprint,
        correlation_id=event.correlation_id,
        trace_id=event.trace_id,
        cause=event.cause,
        payload=event.payload,
        version=event.version,
    )


class ResolutionView(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a dead letter, as it is shown."""

    kind: str
    ts: str | None
    actor: str
    request_id: str
    note: str
    new_job_id: str | None


def resolution_view(resolution: Resolution | None) -> ResolutionView | None:
    """What is shown of a resolution; None while there is none."""
    if resolution is None:
        return None
    return ResolutionView(
        kind=resolution.kind,
        ts=iso(resolution.ts),
        actor=resolution.actor,
        request_id=resolution.request_id,
        note=resolution.note,
        new_job_id=resolution.new_job_id,
    )


class ArtifactView(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact as it is shown, without its body."""

    job_id: str
    attempt: int
    name: str
    media_type: str
    size: int
    sha256: str
    ts: str | None


def artifact_view(artifact: Artifact) -> ArtifactView:
    """What is shown of an artifact."""
    return ArtifactView(
        job_id=artifact.job_id,
        attempt=artifact.attempt,
        name=artifact.name,
        media_type=artifact.media_type,
        size=artifact.size,
        sha256=artifact.sha256,
        ts=iso(artifact.ts),
    )


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as it is shown; `state` is `alive`, `draining` or `silent`."""

    worker: str
    actor: str
    state: str
    host: str
    pid: int
    queues: tuple[str, ...]
    kinds: tuple[str, ...]
    concurrency: int
    version: str
    started_at: str | None
    seen_at: str | None


def worker_view(seen: WorkerSeen, now: Instant) -> WorkerView:
    """What is shown of a worker at `now`."""
    state = "draining" if seen.draining else "alive"
    return WorkerView(
        worker=seen.worker,
        actor=seen.actor,
        state="silent" if now - seen.seen_at > SILENT_AFTER else state,
        host=seen.host,
        pid=seen.pid,
        queues=seen.queues,
        kinds=seen.kinds,
        concurrency=seen.concurrency,
        version=seen.version,
        started_at=iso(seen.started_at),
        seen_at=iso(seen.seen_at),
    )
