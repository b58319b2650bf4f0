"""What the coordinator answers: verdicts, replies, grants and problems, and how they are read back.

A verdict is in the body; the status code only says whether there is one. [H4] [H5]
"""

from datetime import datetime

import msgspec

from tenure.core.artifacts import Staging
from tenure.core.claims import ClaimAnswer
from tenure.core.ids import JobId, Kind, LeaseId, Namespace, QueueName
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.job import Job, Progress
from tenure.core.policy import Policy
from tenure.core.verdicts import CancelDirective, Grant, Reply, Verdict
from tenure.core.vocabulary import Cause, Disposition, JobStatus, LeaseNews, VerdictKind
from tenure.protocol.fields import (
    in_seconds,
    moment,
    optional_duration,
    optional_instant,
    optional_moment,
    optional_seconds,
)
from tenure.protocol.records import (
    ArtifactRecord,
    EventRecord,
    JobRecord,
    OutputRecord,
    QueueRecord,
    Record,
    ResolutionRecord,
    WorkerRecord,
    artifact_of,
    artifact_record,
    body_of,
    job_of,
    job_record,
    raw_body,
    resolution_of,
    resolution_record,
)

# --- Verdicts ----------------------------------------------------------------------------------


class CancelRecord(Record, frozen=True, kw_only=True):
    """Stop soon: why, and how long the handler still has."""

    reason: str
    remaining_s: float


class VerdictReply(Record, frozen=True, kw_only=True):
    """The answer to a start, heartbeat, complete, fail or release.

    `lease_ttl_s` is the time that remains, counted from the decision: count it from when the
    request was sent. `settled` answers a heartbeat of an attempt whose report was accepted.
    """

    verdict: VerdictKind
    cause: Cause | None = None
    job_status: JobStatus | None = None
    disposition: Disposition | None = None
    run_at: datetime | None = None
    lease_ttl_s: float | None = None
    cancel: CancelRecord | None = None
    settled: bool = False
    replayed: bool = False


class VerdictsReply(Record, frozen=True, kw_only=True):
    """Verdicts in the order of the reports they answer."""

    verdicts: tuple[VerdictReply, ...]


def verdict_reply(verdict: Verdict) -> VerdictReply:
    """A verdict as it travels."""
    asked = verdict.cancel
    return VerdictReply(
        verdict=verdict.kind,
        cause=verdict.cause,
        job_status=verdict.job_status,
        disposition=verdict.disposition,
        run_at=optional_moment(verdict.run_at),
        lease_ttl_s=optional_seconds(verdict.ttl_us),
        cancel=None
        if asked is None
        else CancelRecord(reason=asked.reason, remaining_s=in_seconds(asked.remaining_us)),
        settled=verdict.settled,
        replayed=verdict.replayed,
    )


def verdict_of(reply: VerdictReply) -> Verdict:
    """The verdict that came."""
    asked = reply.cancel
    return Verdict(
        kind=reply.verdict,
        cause=reply.cause,
        job_status=reply.job_status,
        disposition=reply.disposition,
        run_at=optional_instant(reply.run_at),
        ttl_us=optional_duration(reply.lease_ttl_s),
        cancel=None
        if asked is None
        else CancelDirective(reason=asked.reason, remaining_us=seconds(asked.remaining_s)),
        settled=reply.settled,
        replayed=reply.replayed,
    )


# --- Grants ------------------------------------------------------------------------------------


class GrantRecord(Record, frozen=True, kw_only=True):
    """One job handed to a worker: everything it needs to run it, durations only. [L8]

    `lease_ttl_s` is what remains of the lease, `lease_s` what a renewal gives. `hb_seq` is the
    highest heartbeat seen, not 0 when a repeated claim finds its lease in use.
    """

    job_id: JobId
    namespace: Namespace
    queue: QueueName
    kind: Kind
    attempt: int
    fence: int
    lease_id: LeaseId
    lease_ttl_s: float
    lease_s: float
    heartbeat_s: float
    timeout_s: float | None
    grace_s: float
    hb_seq: int
    job_status: JobStatus
    rev: int
    priority: int
    failures: int
    max_attempts: int
    enqueued_at: datetime
    payload: msgspec.Raw
    checkpoint: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    progress: Progress | None = None
    correlation_id: str | None = None
    trace_id: str | None = None


class ClaimReply(Record, frozen=True, kw_only=True):
    """Grants, perhaps none; or REJECTED and why. `repeated`: these were granted before. [Q1]

    `waited_s`: so long was the claim held before these were granted; their leases count from
    the sending of the claim and that. [WP12]"""

    verdict: VerdictKind
    grants: tuple[GrantRecord, ...] = ()
    cause: Cause | None = None
    repeated: bool = False
    waited_s: float = 0.0


def grant_record(grant: Grant) -> GrantRecord:
    """A grant as it travels."""
    job, policy = grant.job, grant.job.policy
    return GrantRecord(
        job_id=grant.job_id,
        namespace=job.namespace,
        queue=job.queue,
        kind=job.kind,
        attempt=grant.attempt,
        fence=grant.fence,
        lease_id=grant.lease_id,
        lease_ttl_s=in_seconds(grant.ttl_us),
        lease_s=in_seconds(policy.lease_us),
        heartbeat_s=in_seconds(policy.heartbeat_us),
        timeout_s=optional_seconds(policy.timeout_us),
        grace_s=in_seconds(policy.grace_us),
        hb_seq=job.hb_seq,
        job_status=job.status,
        rev=job.rev,
        priority=job.priority,
        failures=job.failures,
        max_attempts=policy.max_attempts,
        enqueued_at=moment(job.enqueued_at),
        payload=msgspec.Raw(job.payload),
        checkpoint=raw_body(job.checkpoint),
        progress=job.progress,
        correlation_id=job.correlation_id,
        trace_id=job.trace_id,
    )


def grant_of(record: GrantRecord) -> Grant:
    """The grant that came. Its job is what a worker needs of one: no instants but its beginning."""
    enqueued_at = optional_instant(record.enqueued_at) or Instant(0)
    job = Job(
        id=record.job_id,
        namespace=record.namespace,
        queue=record.queue,
        kind=record.kind,
        priority=record.priority,
        payload=bytes(record.payload),
        policy=Policy(
            lease_us=seconds(record.lease_s),
            timeout_us=optional_duration(record.timeout_s),
            grace_us=seconds(record.grace_s),
            max_attempts=record.max_attempts,
        ),
        dedupe_key=None,
        correlation_id=record.correlation_id,
        trace_id=record.trace_id,
        origin_id=None,
        origin_cause=None,
        enqueued_at=enqueued_at,
        status=record.job_status,
        rev=record.rev,
        updated_at=enqueued_at,
        run_at=None,
        not_before=None,
        attempt=record.attempt,
        failures=record.failures,
        hb_seq=record.hb_seq,
        checkpoint=body_of(record.checkpoint),
        progress=record.progress,
    )
    return Grant(
        job_id=record.job_id,
        lease_id=record.lease_id,
        attempt=record.attempt,
        fence=record.fence,
        ttl_us=Duration(seconds(record.lease_ttl_s)),
        job=job,
    )


def claim_reply(answer: ClaimAnswer) -> ClaimReply:
    """The answer to a claim as it travels."""
    return ClaimReply(
        verdict=VerdictKind.OK if answer.cause is None else VerdictKind.REJECTED,
        grants=tuple(grant_record(grant) for grant in answer.grants),
        cause=answer.cause,
        repeated=answer.is_repeat,
        waited_s=in_seconds(answer.waited_us),
    )


def claim_answer(reply: ClaimReply) -> ClaimAnswer:
    """The answer to a claim that came."""
    return ClaimAnswer(
        grants=tuple(grant_of(record) for record in reply.grants),
        cause=reply.cause,
        is_repeat=reply.repeated,
        waited_us=seconds(reply.waited_s),
    )


# --- Replies to clients and operators ----------------------------------------------------------


class JobReply(Record, frozen=True, kw_only=True):
    """The answer to a client or operator: the job, or why the request was refused."""

    job: JobRecord | None
    cause: Cause | None = None
    pending: bool = False
    deduplicated: bool = False
    replayed: bool = False
    resolution: ResolutionRecord | None = None


class JobsReply(Record, frozen=True, kw_only=True):
    """Replies in the order of the jobs they answer."""

    replies: tuple[JobReply, ...]


def job_reply(reply: Reply, *, now: Instant, bodies: bool) -> JobReply:
    """A reply as it travels."""
    job = reply.job
    return JobReply(
        job=None if job is None else job_record(job, now=now, bodies=bodies),
        cause=reply.cause,
        pending=reply.pending,
        deduplicated=reply.deduplicated,
        replayed=reply.replayed,
        resolution=resolution_record(reply.resolution),
    )


def reply_of(reply: JobReply) -> Reply:
    """The reply that came."""
    return Reply(
        job=None if reply.job is None else job_of(reply.job),
        cause=reply.cause,
        pending=reply.pending,
        deduplicated=reply.deduplicated,
        replayed=reply.replayed,
        resolution=resolution_of(reply.resolution),
    )


# --- What is looked at -------------------------------------------------------------------------


class JobPage(Record, frozen=True, kw_only=True):
    """Jobs, newest first. `next_before` is the `before` of the next page; null: the last one.

    `resolutions` is what became of those that are dead letters, where jobs were asked for by id.
    """

    jobs: tuple[JobRecord, ...]
    next_before: JobId | None = None
    resolutions: tuple[ResolutionRecord, ...] = ()


class DeadLetterRecord(Record, frozen=True, kw_only=True):
    """A dead letter and what became of it."""

    job: JobRecord
    resolution: ResolutionRecord | None


class DeadLetterPage(Record, frozen=True, kw_only=True):
    """Dead letters, newest first; `next_before` as in a page of jobs."""

    dead_letters: tuple[DeadLetterRecord, ...]
    next_before: JobId | None = None


class EventsReply(Record, frozen=True, kw_only=True):
    """A job's log in order of seq; `next_after_seq` asks for the next page, null at the end."""

    events: tuple[EventRecord, ...]
    next_after_seq: int | None = None


class ArtifactsReply(Record, frozen=True, kw_only=True):
    """The artifacts of the attempt that succeeded, by name. [B8]"""

    artifacts: tuple[ArtifactRecord, ...]


class LogsReply(Record, frozen=True, kw_only=True):
    """The kept output of each attempt, in order."""

    logs: tuple[OutputRecord, ...]


class QueuesReply(Record, frozen=True, kw_only=True):
    """Every queue that has jobs or settings, by name."""

    queues: tuple[QueueRecord, ...]


class WorkersReply(Record, frozen=True, kw_only=True):
    """The workers that were seen within a day, by name."""

    workers: tuple[WorkerRecord, ...]


class TimeReply(Record, frozen=True, kw_only=True):
    """The store's clock, for display and for making ids."""

    now: datetime


# --- Beside the log ----------------------------------------------------------------------------

_LOST = frozenset(
    {
        Cause.LEASE_EXPIRED,
        Cause.TIMED_OUT,
        Cause.REVOKED,
        Cause.SUPERSEDED,
        Cause.JOB_CANCELLED,
        Cause.JOB_DEAD_LETTERED,
        Cause.EPOCH_CHANGED,
    }
)


def verdict_word(cause: Cause | None) -> VerdictKind:
    """The verdict on something sent under a lease, as reports hear it: a lease that was lost is
    CANCELLED, anything else that stands against it REJECTED. [R10]"""
    if cause is None:
        return VerdictKind.OK
    return VerdictKind.CANCELLED if cause in _LOST else VerdictKind.REJECTED


class StagingReply(Record, frozen=True, kw_only=True):
    """The artifact that was taken, or why it was not. [B7] If a quota has no room for it, how many
    bytes are in use, how many the quota has, and what to do. [B28]"""

    verdict: VerdictKind
    artifact: ArtifactRecord | None = None
    cause: Cause | None = None
    used_bytes: int | None = None
    quota_bytes: int | None = None
    message: str | None = None


def staging_reply(staging: Staging) -> StagingReply:
    """The answer to an upload as it travels."""
    return StagingReply(
        verdict=verdict_word(staging.cause),
        artifact=None if staging.artifact is None else artifact_record(staging.artifact),
        cause=staging.cause,
        used_bytes=staging.used_bytes,
        quota_bytes=staging.quota_bytes,
        message=staging.problem,
    )


def staging_of(reply: StagingReply) -> Staging:
    """The answer to an upload that came."""
    return Staging(
        artifact=None if reply.artifact is None else artifact_of(reply.artifact),
        cause=reply.cause,
        used_bytes=reply.used_bytes,
        quota_bytes=reply.quota_bytes,
    )


class KeptReply(Record, frozen=True, kw_only=True):
    """Whether an attempt's output was kept, or why not. [B20]"""

    verdict: VerdictKind
    cause: Cause | None = None


class LookReply(Record, frozen=True, kw_only=True):
    """Of each lease `none`, or what to send a heartbeat for: `cancel` or `lost`. [C2]"""

    news: tuple[LeaseNews, ...]


class AliveReply(Record, frozen=True, kw_only=True):
    """Whether the worker is to claim nothing more, finish and stop. [B12]"""

    drain: bool


class DrainReply(Record, frozen=True, kw_only=True):
    """The worker that was asked to stop."""

    worker: str
    draining: bool = True


# --- The server itself -------------------------------------------------------------------------


class HealthReply(Record, frozen=True, kw_only=True):
    """Whether the server lives, or is ready for work."""

    status: str


class Problem(Record, frozen=True, kw_only=True):
    """Every answer that is not a success: what happened, to which field, and what to do. [H8]

    `verdict` is REJECTED where the coordinator's word is final, and null where the request can be
    sent again as it is (408, 425, 429 and 5xx). `nothing_changed` is true where it is certain that
    this one was not carried out, not even in part. `request_id` is that of the `X-Request-Id`
    header.
    """

    code: str
    message: str
    verdict: VerdictKind | None = None
    field: str | None = None
    hint: str = ""
    nothing_changed: bool = False
    request_id: str = ""
