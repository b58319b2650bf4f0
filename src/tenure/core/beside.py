"""What is kept beside the log: resolutions of dead letters, artifacts, output, worker processes.

None of it is part of a job's history and none of it can change a job: no seq, no rev, no event.
The values, their limits and the few decisions about them are here; all of it is pure.
"""

import hashlib

import msgspec

from tenure.core.deadlines import why_not_held
from tenure.core.ids import (
    Actor,
    Epoch,
    Fingerprint,
    JobId,
    Kind,
    LeaseId,
    Namespace,
    QueueName,
    RequestId,
    WorkerId,
)
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.job import Job
from tenure.core.vocabulary import Cause, JobStatus, LeaseNews, ResolutionKind, WorkerState

MAX_ARTIFACT_BYTES = 16 << 20
MAX_ARTIFACTS_PER_ATTEMPT = 100
JOB_QUOTA_VARIABLE = "TENURE_ARTIFACT_QUOTA_PER_JOB"
NAMESPACE_QUOTA_VARIABLE = "TENURE_ARTIFACT_QUOTA_PER_NAMESPACE"
MAX_ATTEMPT_LOG_BYTES = 64 << 10
MAX_OUTPUT_PARTS = 2**31 - 1  # one every two seconds for a century
MAX_SHOWN_LOGS = 100
"""Attempts whose output is read at once: the latest ones. [B26]"""
SILENT_AFTER = seconds(60)
"""How long a worker may give no sign of life before it is shown as silent."""


class Resolution(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of a dead letter: one per job, the first one stays. [B1]"""

    job_id: JobId
    kind: ResolutionKind
    ts: Instant
    actor: Actor
    request_id: RequestId
    fingerprint: Fingerprint
    note: str = ""
    new_job_id: JobId | None = None


class ArtifactUpload(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file that an attempt leaves behind, sent under its lease."""

    job_id: JobId
    lease_id: LeaseId
    actor: Actor
    name: str
    body: bytes
    media_type: str = "application/octet-stream"


class Artifact(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is known of an artifact without its body."""

    job_id: JobId
    attempt: int
    name: str
    media_type: str
    size: int
    sha256: str
    ts: Instant


class StoredArtifact(msgspec.Struct, frozen=True, gc=False):
    """An artifact with its body."""

    artifact: Artifact
    body: bytes


class ArtifactQuotas(msgspec.Struct, frozen=True, kw_only=True):
    """How many bytes of artifacts are kept; None is no quota. [J9]"""

    job_bytes: int | None = 1 << 30
    namespace_bytes: int | None = 100 << 30


class ArtifactUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is stored when an upload is decided."""

    others: int
    """The attempt's artifacts of other names."""
    others_bytes: int
    replaced_bytes: int
    """The size of the attempt's artifact of the same name; 0 if there is none."""
    earlier_bytes: int
    """The artifacts of the job's earlier attempts, as far as they are not collected yet."""
    namespace_bytes: int
    """All artifacts of the job's namespace, including those of this job."""


class Staging(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to an upload: the artifact, or why it was not taken. A quota that was exceeded
    comes with its size, and with the bytes in use without this upload. [B28]"""

    artifact: Artifact | None = None
    cause: Cause | None = None
    used_bytes: int | None = None
    quota_bytes: int | None = None

    @property
    def problem(self) -> str | None:
        """Which quota was exceeded and what to do about it; None if it was not a quota."""
        match self.cause:
            case Cause.JOB_ARTIFACT_QUOTA:
                whose, variable = "this job", JOB_QUOTA_VARIABLE
                advice = "put large files into an object store and their addresses into the result"
            case Cause.NAMESPACE_ARTIFACT_QUOTA:
                whose, variable = "the job's namespace", NAMESPACE_QUOTA_VARIABLE
                advice = "keep finished jobs for a shorter time"
            case _:
                return None
        return (
            f"the artifacts of {whose} use {self.used_bytes} bytes of their quota of"
            f" {self.quota_bytes}, and this one does not fit; {advice}, or have {variable} raised"
            " where the coordinator runs"
        )


def stage(
    job: Job | None,
    upload: ArtifactUpload,
    *,
    now: Instant,
    epoch: Epoch,
    usage: ArtifactUsage,
    quotas: ArtifactQuotas,
    is_settling: bool = False,
) -> Staging:
    """The artifact an upload becomes, if its lease is valid now and there is room. Whoever stores
    it deletes those of the job's earlier attempts. [B7] [B9] [B28]"""
    cause = why_not_held(
        job, upload.lease_id, upload.actor, now=now, epoch=epoch, is_settling=is_settling
    )
    if job is None or cause is not None:
        return Staging(cause=cause)
    if usage.others >= MAX_ARTIFACTS_PER_ATTEMPT:
        return Staging(cause=Cause.TOO_MANY_ARTIFACTS)
    exceeded = _exceeded_quota(len(upload.body), usage, quotas)
    if exceeded is not None:
        return exceeded
    return Staging(
        artifact=Artifact(
            job_id=job.id,
            attempt=job.attempt,
            name=upload.name,
            media_type=upload.media_type,
            size=len(upload.body),
            sha256=hashlib.sha256(upload.body).hexdigest(),
            ts=now,
        )
    )


def _exceeded_quota(size: int, usage: ArtifactUsage, quotas: ArtifactQuotas) -> Staging | None:
    # Neither what this upload replaces nor what earlier attempts left counts: both are deleted with
    # it. Otherwise a retry soon after a failure would have less room than the first attempt.
    of_namespace = usage.namespace_bytes - usage.replaced_bytes - usage.earlier_bytes
    for cause, used, quota in (
        (Cause.JOB_ARTIFACT_QUOTA, usage.others_bytes, quotas.job_bytes),
        (Cause.NAMESPACE_ARTIFACT_QUOTA, of_namespace, quotas.namespace_bytes),
    ):
        if quota is not None and used + size > quota:
            return Staging(cause=cause, used_bytes=used, quota_bytes=quota)
    return None


def shown_attempt(job: Job | None) -> int | None:
    """The attempt whose artifacts can be seen: the one that succeeded, or none. [B8]"""
    if job is None or job.status is not JobStatus.SUCCEEDED:
        return None
    return job.attempt


def is_leftover(attempt: int, *, of: int | None, leased: bool, status: JobStatus | None) -> bool:
    """Whether an attempt's artifacts can never be seen: the attempt has ended, and not well.

    `of` is the job's latest attempt, None if the job is gone. [B10]
    """
    if attempt != of:
        return True
    return not leased and status is not JobStatus.SUCCEEDED


class AttemptOutput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a handler wrote to its standard streams during one attempt, sent under its lease.

    It may be sent again while the attempt runs, whole and with a higher `part`. [B20]"""

    job_id: JobId
    lease_id: LeaseId
    actor: Actor
    text: str
    left_out_bytes: int = 0
    part: int = 0


class AttemptLog(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The kept output of one attempt, and how much of it was not kept."""

    job_id: JobId
    attempt: int
    text: str
    left_out_bytes: int


class HeldLease(msgspec.Struct, frozen=True, gc=False):
    """A lease as a worker knows it."""

    job_id: JobId
    lease_id: LeaseId


class LeaseRow(msgspec.Struct, frozen=True, gc=False):
    """What a job's row says of its lease."""

    lease_id: LeaseId | None
    principal: Actor | None
    cancel_requested_at: Instant | None


def lease_news(row: LeaseRow | None, lease_id: LeaseId, actor: Actor) -> LeaseNews:
    """What `actor` should ask about. It is no verdict: a heartbeat brings that. [C2]"""
    if row is None or (row.lease_id, row.principal) != (lease_id, actor):
        return LeaseNews.LOST
    return LeaseNews.NONE if row.cancel_requested_at is None else LeaseNews.CANCEL


class WorkerProcess(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker as it describes itself. `uptime_us` is a duration, because only the store's clock
    is ever written."""

    namespace: Namespace
    worker: WorkerId
    actor: Actor
    host: str
    pid: int
    queues: tuple[QueueName, ...]
    concurrency: int
    version: str
    uptime_us: Duration
    kinds: tuple[Kind, ...] = ()
    is_ending: bool = False  # its last word: it is not listed any more [B13]
    instance: str = ""  # made anew at each start, so that its start is worked out once [B21]


class WorkerSeen(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A worker as the store last saw it."""

    namespace: Namespace
    worker: WorkerId
    actor: Actor
    host: str
    pid: int
    queues: tuple[QueueName, ...]
    kinds: tuple[Kind, ...]
    concurrency: int
    version: str
    started_at: Instant
    seen_at: Instant
    drain_requested_at: Instant | None = None

    @property
    def draining(self) -> bool:
        """Whether this process was asked to stop; a request to an earlier process of the same
        name is not meant for it. [B12]"""
        return self.drain_requested_at is not None and self.drain_requested_at >= self.started_at

    def state(self, now: Instant) -> WorkerState:
        """How it is at `now`, as far as its signs of life tell."""
        if now - self.seen_at > SILENT_AFTER:
            return WorkerState.SILENT
        return WorkerState.DRAINING if self.draining else WorkerState.ALIVE
