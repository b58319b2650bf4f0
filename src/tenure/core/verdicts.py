"""Answers: verdicts for workers, replies for clients and operators, grants for claims.

And what is kept beside the log and never changes a job: the resolution of a dead letter, which
`requests` decides, and observations of refused reports and of compensations that succeeded.
"""

import msgspec

from tenure.core.flow_rows import FlowRedrive
from tenure.core.ids import Actor, Fingerprint, JobId, LeaseId, RequestId
from tenure.core.instants import Duration, Instant
from tenure.core.job import Job
from tenure.core.vocabulary import (
    Cause,
    Disposition,
    JobStatus,
    ObservationType,
    ResolutionKind,
    VerdictKind,
)


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


MAX_OBSERVATIONS_PER_LEASE = 10
MAX_OBSERVATIONS_READ = 500
"""The limit for one job; a job whose workers are late every time has ten more with each attempt."""


class Observation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A fact that is kept apart from the job's history: no seq, no rev, never applied. [U1]"""

    job_id: JobId
    type: ObservationType
    ts: Instant
    actor: Actor
    lease_id: LeaseId | None = None
    request_id: RequestId | None = None
    cause: str | None = None
    size: int | None = None
    sha256: str | None = None
    body: bytes | None = None

    @property
    def compensated_by(self) -> JobId | None:
        """The compensation that succeeded. Its id names the request: a compensation succeeds
        once. [M2]"""
        is_end = self.type is ObservationType.COMPENSATED and self.request_id is not None
        return JobId(str(self.request_id)) if is_end else None


class CancelDirective(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Asks a handler to stop: how long it still has, and why."""

    reason: str
    remaining_us: Duration


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to a worker's start, heartbeat, complete, fail or release."""

    kind: VerdictKind
    cause: Cause | None = None
    job_status: JobStatus | None = None
    rev: int | None = None
    """With OK and with revision_mismatch: what the next request may state. [K13]"""
    disposition: Disposition | None = None
    run_at: Instant | None = None
    ttl_us: Duration | None = None
    cancel: CancelDirective | None = None
    settled: bool = False
    replayed: bool = False


_LOST_LEASE = frozenset(
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


def verdict_for(cause: Cause | None) -> VerdictKind:
    """The verdict on what a lease was needed for besides reports: an upload, output, the results of
    parents. CANCELLED if the lease was lost, REJECTED for any other cause. [R10]"""
    if cause is None:
        return VerdictKind.OK
    return VerdictKind.CANCELLED if cause in _LOST_LEASE else VerdictKind.REJECTED


class Reply(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The answer to a client or operator. `cause` is None when the call was accepted."""

    job: Job | None
    cause: Cause | None = None
    pending: bool = False
    deduplicated: bool = False
    replayed: bool = False
    resolution: Resolution | None = None
    redrive: FlowRedrive | None = None  # of a flow
    undeclared: bool = False
    """Whether a new job has the default policy because no worker declared its kind. [F11]"""

    @property
    def is_ok(self) -> bool:
        """Whether the call was accepted (now, or earlier under the same request id)."""
        return self.cause is None


class Grant(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One job handed to a worker: everything it needs to run it, durations only. [L8]"""

    job_id: JobId
    lease_id: LeaseId
    attempt: int
    fence: int
    ttl_us: Duration
    job: Job

    @property
    def is_started(self) -> bool:
        """Whether its job is running: its claim started it, or a repeated claim found it so."""
        return self.job.status is JobStatus.RUNNING


Answer = Verdict | Reply | Grant
