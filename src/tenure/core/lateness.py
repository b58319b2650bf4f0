"""Lateness: whether a lease has ended by now, why, and what its owner is told.

The only place that decides this: reports, sweeps, uploads and displays all use it. Knows rows and
instants, no commands.
"""

from tenure.core.ids import Epoch, LeaseId, epoch_of
from tenure.core.instants import Duration, Instant, later
from tenure.core.job import Job, time_limit, waits_for_start
from tenure.core.policy import Policy
from tenure.core.vocabulary import Cause, EventCause

_CAUSE_OF_REVOCATION = {
    EventCause.GRACE_OVER: Cause.JOB_CANCELLED,
    EventCause.TIMEOUT: Cause.TIMED_OUT,
    EventCause.START_TIMEOUT: Cause.TIMED_OUT,
    EventCause.LEASE_EXPIRED: Cause.LEASE_EXPIRED,
}


def revocation(job: Job, now: Instant) -> EventCause | None:
    """What has ended the lease by `now`; None if it is still valid. [L9]

    If several limits have passed, the grace period of a cancel counts first, then the time-out,
    then the expiry: a report that comes before the sweep gets the same answer as one that comes
    after it. [N2] If the clock was set back, the time of the job's last event counts, because the
    report's event would have that time too, and it must be before the lease's end. [E13] [I10]
    """
    now = later(now, job.updated_at)
    assert job.lease_expires_at is not None
    if job.cancel_deadline is not None and now >= job.cancel_deadline:
        return EventCause.GRACE_OVER
    if now >= time_limit_of(job)[1]:
        waits = waits_for_start(started_at=job.started_at, renewals=job.renewals)
        return EventCause.START_TIMEOUT if waits else EventCause.TIMEOUT
    if now >= job.lease_expires_at:
        return EventCause.LEASE_EXPIRED
    return None


def renewed_expiry(job: Job, now: Instant) -> Instant:
    """When a lease that is granted or renewed now expires: one ttl from now, also if the clock was
    set back since the job's last event. [L16] It stays behind that event, whose time the next ones
    have, and never falls. [E13] [I10]"""
    least = job.updated_at + 1 if job.lease_expires_at is None else job.lease_expires_at
    return Instant(max(now + job.policy.lease_us, least))


def time_limit_of(job: Job) -> tuple[Instant, Instant]:
    """When the attempt's time-out, or its wait for a start, began and when it is over. [L9]"""
    assert job.claimed_at is not None
    return time_limit(
        policy=job.policy,
        claimed_at=job.claimed_at,
        started_at=job.started_at,
        renewals=job.renewals,
    )


def lateness(job: Job, now: Instant) -> Cause | None:
    """What the owner of a lease that is no longer valid is told; None while it is. [R10]"""
    revoked_by = revocation(job, now)
    return None if revoked_by is None else _CAUSE_OF_REVOCATION[revoked_by]


def why_not_on_record(
    lease_id: LeaseId, *, is_known_job: bool, epoch: Epoch, is_settling: bool
) -> Cause:
    """The cause for a lease that is not the job's current one. If its record may have been lost
    in a failover, its holder must stop, but did nothing wrong. [R2] [A10]"""
    if is_settling or epoch_of(lease_id) < epoch:
        return Cause.EPOCH_CHANGED
    return Cause.INVALID_LEASE if is_known_job else Cause.UNKNOWN_JOB


def is_overdue(job: Job, now: Instant) -> bool:
    """Whether the job's lease is over and nobody has recorded it yet. [L9]"""
    return job.due_at is not None and later(now, job.updated_at) >= job.due_at


def is_expired(job: Job, now: Instant) -> bool:
    """Whether a job that waits should have been started before now: it is granted to nobody, and
    the next sweep cancels it. [EX2]"""
    if job.start_by is None or job.not_before is None:
        return False
    return later(now, job.updated_at) >= job.start_by


def needs_sweep(job: Job, now: Instant) -> bool:
    """Whether time has ended the job's lease or its wait, and nobody has recorded it yet. [W5]"""
    return is_overdue(job, now) or is_expired(job, now)


def is_suspect(job: Job, now: Instant) -> bool:
    """Whether the owner has been silent for two heartbeats. Nothing follows from it. [L18]"""
    if job.lease_expires_at is None:
        return False
    return job.lease_expires_at <= latest_suspect_expiry(job.policy, now)


def silent_for(job: Job, now: Instant) -> Duration:
    """How long ago the lease was last renewed."""
    assert job.lease_expires_at is not None
    return Duration(now - job.lease_expires_at + job.policy.lease_us)


def latest_suspect_expiry(policy: Policy, now: Instant) -> Instant:
    """A lease of this policy that ends by then was renewed two heartbeats ago or earlier. [L18]"""
    return Instant(now + policy.lease_us - 2 * policy.heartbeat_interval_us)
