"""Leases: whether a worker's lease still carries authority, before its report is decided.

Answers questions three to eight of docs/spec/responses.md in their order; the first two are asked
before a command gets here, the ninth, the state guard, is `lifecycle`'s. A lease that is not the
job's current one is looked up in the log: the log is the memory, so no second table can disagree
with it.
"""

from enum import StrEnum
from typing import assert_never

import msgspec

from tenure.core.checks import check_fields
from tenure.core.commands import WorkerCommand
from tenure.core.events import Event
from tenure.core.ids import SYSTEM, Actor, Epoch, JobId, LeaseId, epoch_of
from tenure.core.instants import Duration, Instant, later
from tenure.core.job import Job, time_limit
from tenure.core.outcomes import DecisionContext, History, Moment, NeedsHistory
from tenure.core.policy import Policy
from tenure.core.vocabulary import (
    ATTEMPT_ENDS,
    Cause,
    EventCause,
    JobStatus,
    LeaseNews,
)


class Situation(StrEnum):
    """The rows of the response matrices."""

    UNKNOWN = "L0"
    FOREIGN = "L1"
    CLAIMED = "L2"
    RUNNING = "L3"
    CANCELLING = "L3c"
    EXPIRED = "L4"
    LOST = "L5"
    SETTLED = "L6"


class LeaseJudgement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a report's lease is worth: its situation, why it is refused, and the report that settled
    it."""

    situation: Situation
    is_valid: bool = False  # whether the lease carries authority now
    cause: Cause | None = None
    settled: tuple[Event, ...] = ()
    was_issued: bool = True


def judge_lease(command: WorkerCommand, at: DecisionContext) -> LeaseJudgement | NeedsHistory:
    """The first question that has an answer decides. [R1]"""
    actor = command.actor
    if actor == SYSTEM and command.needs().session:
        return _judge(at.job, command.lease_id, None, at, at.history)
    return _judge(at.job, command.lease_id, actor, at, at.history)


def why_no_lease(
    job: Job | None, lease_id: LeaseId, actor: Actor, at: Moment, history: History | None
) -> Cause | NeedsHistory | None:
    """Why `actor` has no valid lease of this id on the job now; None if it has. What is sent or
    read under a lease besides reports is judged as reports are. [R24]"""
    judgement = _judge(job, lease_id, actor, at, history)
    if isinstance(judgement, NeedsHistory):
        return judgement
    return Cause.LEASE_SETTLED if judgement.situation is Situation.SETTLED else judgement.cause


def _judge(
    job: Job | None, lease_id: LeaseId, actor: Actor | None, at: Moment, history: History | None
) -> LeaseJudgement | NeedsHistory:
    """Judge a lease for `actor`; None is the coordinator that takes a grant back."""
    of_earlier_epoch = epoch_of(lease_id) < at.epoch
    if job is None:
        if of_earlier_epoch or at.is_settling:
            return _foreign(of_earlier_epoch=True, was_issued=False)
        return LeaseJudgement(
            situation=Situation.UNKNOWN, cause=Cause.UNKNOWN_JOB, was_issued=False
        )
    if job.lease_id != lease_id:
        if history is None:
            return NeedsHistory(job_id=job.id)
        if at.is_settling and not any(each.lease_id == lease_id for each in history):
            # The failover may have lost the event of this grant. Without that event no report under
            # the lease can be accepted. [A10] [R4]
            return _foreign(of_earlier_epoch=True, was_issued=False)
        return _remembered(job, lease_id, actor, history, of_earlier_epoch=of_earlier_epoch)
    if actor is not None and job.principal != actor:
        return _foreign(of_earlier_epoch=of_earlier_epoch)
    if of_earlier_epoch:
        return LeaseJudgement(situation=Situation.LOST, cause=Cause.EPOCH_CHANGED)
    return _current(job, at.now)


def _foreign(*, of_earlier_epoch: bool, was_issued: bool = True) -> LeaseJudgement:
    """Not this caller's lease. In an earlier epoch its record may be exactly what was lost, so
    the caller must stop, not complain. The answer is the same for a guessed lease id and for one
    that exists. [R2]"""
    return LeaseJudgement(
        situation=Situation.FOREIGN,
        cause=Cause.EPOCH_CHANGED if of_earlier_epoch else Cause.INVALID_LEASE,
        was_issued=was_issued,
    )


def states_another_rev(job: Job, command: WorkerCommand) -> bool:
    """Whether a request was made for another revision of the job than the current one. Asked last:
    a repeat of a request that was carried out states the `rev` from before it. [K13]"""
    return command.expected_rev is not None and command.expected_rev != job.rev


def _current(job: Job, now: Instant) -> LeaseJudgement:
    if is_overdue(job, now):
        late = lateness(job, now)
        if late is not None:
            return LeaseJudgement(situation=Situation.EXPIRED, cause=late)
    if job.status is _CLAIMED_STATUS:
        return CLAIMED
    return _RUNNING if job.cancel_requested_at is None else _CANCELLING


# Made once: almost every report gets one of them.
CLAIMED = LeaseJudgement(situation=Situation.CLAIMED, is_valid=True)
_RUNNING = LeaseJudgement(situation=Situation.RUNNING, is_valid=True)
_CANCELLING = LeaseJudgement(situation=Situation.CANCELLING, is_valid=True)
_CLAIMED_STATUS = JobStatus.CLAIMED  # a constant: see `evolution`


def _remembered(
    job: Job, lease_id: LeaseId, actor: Actor | None, history: History, *, of_earlier_epoch: bool
) -> LeaseJudgement | NeedsHistory:
    of_lease = [event for event in history if event.lease_id == lease_id]
    if not of_lease:
        return _foreign(of_earlier_epoch=of_earlier_epoch, was_issued=False)
    if actor is not None and of_lease[0].actor != actor:
        return _foreign(of_earlier_epoch=of_earlier_epoch)
    end = next((event for event in of_lease if event.type in ATTEMPT_ENDS), None)
    if end is None:
        return NeedsHistory(job_id=job.id)  # the log is newer than the row: read both again
    if end.is_by_worker:
        # A request id means something only within its lease: a later attempt, or a client that
        # cancels, may have used the same one, and its events are no part of this report. [R23]
        same_request = [
            event
            for event in history
            if event.seq >= end.seq
            and event.request_id == end.request_id
            and event.attempt == end.attempt
            and event.actor == end.actor
        ]
        return LeaseJudgement(situation=Situation.SETTLED, settled=tuple(same_request))
    cause = Cause.EPOCH_CHANGED if of_earlier_epoch else _cause_of_loss(job, end)
    return LeaseJudgement(situation=Situation.LOST, cause=cause)  # [R2]


def _cause_of_loss(job: Job, end: Event) -> Cause:
    match job.status:
        # A job that waits for its parents has had no lease; it is named so that none is missing.
        case JobStatus.WAITING | JobStatus.QUEUED | JobStatus.STALLED:
            if end.cause in (EventCause.TIMEOUT, EventCause.START_TIMEOUT):
                return Cause.TIMED_OUT
            if end.cause in (EventCause.LEASE_EXPIRED, EventCause.OUTAGE):
                return Cause.LEASE_EXPIRED
            return Cause.REVOKED
        case JobStatus.CLAIMED | JobStatus.RUNNING | JobStatus.SUCCEEDED | JobStatus.FAILED:
            return Cause.SUPERSEDED
        case JobStatus.CANCELLED:
            return Cause.JOB_CANCELLED
        case JobStatus.DEAD_LETTERED:
            return Cause.JOB_DEAD_LETTERED
        case _:
            assert_never(job.status)


class LeaseRef(msgspec.Struct, frozen=True, gc=False):
    """A lease as a worker knows it."""

    job_id: JobId
    lease_id: LeaseId

    def __post_init__(self) -> None:
        """Refuse what cannot be a lease. [J5]"""
        check_fields(self)


class LeaseRow(msgspec.Struct, frozen=True, gc=False):
    """What a job's row states about its lease."""

    lease_id: LeaseId | None
    principal: Actor | None
    cancel_requested_at: Instant | None


def lease_news(row: LeaseRow | Job | None, lease_id: LeaseId, actor: Actor) -> LeaseNews:
    """What `actor` should ask about. Only the answer to a heartbeat decides anything. [C2]"""
    if row is None or (row.lease_id, row.principal) != (lease_id, actor):
        return LeaseNews.LOST
    return LeaseNews.NONE if row.cancel_requested_at is None else LeaseNews.CANCEL


# --- Lateness ------------------------------------------------------------------------------------


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
        waits_for_start = job.started_at is None and not job.renewals
        return EventCause.START_TIMEOUT if waits_for_start else EventCause.TIMEOUT
    if now >= job.lease_expires_at:
        return EventCause.LEASE_EXPIRED
    return None


def renewed_expiry(job: Job, now: Instant) -> Instant:
    """When a lease that is granted or renewed now expires: one ttl from now, also if the clock was
    set back since the job's last event. [L16] It is always later than that event, whose time the
    next ones repeat, and never moves back. [E13] [I10]"""
    least = job.updated_at + 1 if job.lease_expires_at is None else job.lease_expires_at
    return Instant(max(now + job.policy.lease_us, least))


def time_limit_of(job: Job) -> tuple[Instant, Instant]:
    """The start and the end of the attempt's time-out, or of its wait for a start. [L9]"""
    assert job.claimed_at is not None
    return time_limit(
        policy=job.policy,
        claimed_at=job.claimed_at,
        started_at=job.started_at,
        renewals=job.renewals,
    )


def lateness(job: Job, now: Instant) -> Cause | None:
    """What the owner of a lease that is no longer valid gets; None while it is valid. [R10]"""
    revoked_by = revocation(job, now)
    return None if revoked_by is None else _CAUSE_OF_REVOCATION[revoked_by]


def why_not_on_record(
    lease_id: LeaseId, *, is_known_job: bool, epoch: Epoch, is_settling: bool
) -> Cause:
    """The cause for a lease that is not the job's current one. If its record may have been lost
    in a failover, its worker must stop, but did nothing wrong. [R2] [A10]"""
    if is_settling or epoch_of(lease_id) < epoch:
        return Cause.EPOCH_CHANGED
    return Cause.INVALID_LEASE if is_known_job else Cause.UNKNOWN_JOB


def is_overdue(job: Job, now: Instant) -> bool:
    """Whether the job's lease is over, which is not recorded yet. [L9]"""
    return job.due_at is not None and later(now, job.updated_at) >= job.due_at


def is_expired(job: Job, now: Instant) -> bool:
    """Whether a job that waits should have been started before now: it is not granted, and
    the next sweep cancels it. [EX2]"""
    if job.start_by is None or job.not_before is None:
        return False
    return later(now, job.updated_at) >= job.start_by


def needs_sweep(job: Job, now: Instant) -> bool:
    """Whether time has ended the job's lease or its wait, which is not recorded yet. [W5]"""
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
