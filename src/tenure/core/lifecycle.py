"""The job lifecycle: the only place where a job changes state.

Pure: no IO, no clock, no randomness. Callers pass the `Moment` (now, epoch, entropy), so equal
inputs give equal outcomes; the model checker and virtual time depend on that. Rule ids such as
[T8] refer to docs/spec. This module picks the function for each command and decides claims, starts
and heartbeats; `attempt_end` decides how an attempt ends, `requests` what clients and operators
ask.
"""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from tenure.core.attempt_end import another_rev, refusal, rejected, settle, sweep
from tenure.core.changes import Draft, Origin, apply
from tenure.core.commands import (
    Cancel,
    Claim,
    Command,
    Complete,
    DeadLetter,
    Discard,
    Enqueue,
    EnqueueFlow,
    Fail,
    FollowUp,
    Heartbeat,
    Redrive,
    RedriveFlow,
    Release,
    Requeue,
    ScheduledEnqueue,
    Stall,
    Start,
    Sweep,
    Unblock,
    start_request_id,
)
from tenure.core.events import Facts, digest, has_unknown_value
from tenure.core.flows import enqueue_flow, redrive_flow, unblock
from tenure.core.ids import fence, new_lease_id
from tenure.core.instants import Instant
from tenure.core.job import Job, remaining
from tenure.core.leases import (
    CLAIMED,
    LeaseJudgement,
    Situation,
    is_expired,
    judge_lease,
    renewed_expiry,
    states_another_rev,
)
from tenure.core.outcomes import DecisionContext, Moment, NeedsHistory, Outcome, Refused, Replayed
from tenure.core.requests import cancel, dead_letter, discard, enqueue, redrive, requeue, stall
from tenure.core.verdicts import CancelDirective, Grant, Reply, Verdict
from tenure.core.vocabulary import (
    Cause,
    EventCause,
    EventType,
    JobStatus,
    OnLost,
    VerdictKind,
)

EARLY_PART = 4
"""A heartbeat is early before this part of the heartbeat interval is over. [L16]"""

# Module constants: finding an enumeration's member costs 0.09 µs, see `evolution`.
_OK = VerdictKind.OK
_CLAIMED, _STARTED = EventType.CLAIMED, EventType.STARTED
_QUEUED, _TO_CLAIMED, _TO_RUNNING = JobStatus.QUEUED, JobStatus.CLAIMED, JobStatus.RUNNING


def decide(command: Command, context: DecisionContext) -> Outcome:
    """What `command` does to its job at this moment, and the answer to its caller."""
    return _DECISIONS[type(command)](command, context)


def is_ready(job: Job, now: Instant) -> bool:
    """Whether a job may be granted now, its queue permitting. [T2] [T22] [Z6] [Y5]"""
    if job.not_before is None or job.not_before > now or job.cancel_requested_at is not None:
        return False
    if job.start_by is not None and is_expired(job, now):  # [EX2]
        return False
    if has_unknown_value(job):  # left to processes of the version that wrote it [Y5]
        return False
    if job.status is _QUEUED:
        return True
    is_held = job.status is JobStatus.STALLED and job.policy.on_lost is OnLost.RECLAIM
    return is_held and not job.is_exhausted


def _claim(command: Claim, at: DecisionContext) -> Outcome:
    job = at.job
    if job is None or not is_ready(job, at.now):
        return Refused(answer=Reply(job=job, cause=Cause.NOT_READY))
    is_reclaim = job.status is not _QUEUED
    lease_id = new_lease_id(at.epoch, at.entropy)
    draft = Draft(
        type=_CLAIMED,
        to=_TO_CLAIMED,
        cause=EventCause.RECLAIM if is_reclaim else None,
        expires_at=renewed_expiry(job, at.now),
        lease_id=lease_id,
        owner=command.owner,
    )
    drafts = [draft]
    if command.start:
        drafts.append(
            Draft(
                type=_STARTED,
                to=_TO_RUNNING,
                expires_at=draft.expires_at,
                request_id=start_request_id(lease_id),
            )
        )
    return apply(
        "T22" if is_reclaim else "T2",
        job,
        drafts,
        origin=Origin(
            actor=command.actor, request_id=command.request_id, fingerprint=command.fingerprint
        ),
        at=at,
        answer=lambda granted, _: grant_of(granted, at),
    )


def grant_of(job: Job, at: Moment) -> Grant:
    """The grant of a claimed or running job. Its lease is of the current epoch; `ttl_us` is what is
    left of it."""
    assert job.lease_id is not None
    assert job.due_at is not None
    return Grant(
        job_id=job.id,
        lease_id=job.lease_id,
        attempt=job.attempt,
        fence=fence(at.epoch, job.attempt),
        ttl_us=remaining(job.due_at, at.now),
        job=job,
    )


def _authority(job: Job, at: Moment) -> Verdict:
    """OK, with the time that is left of the lease and the cancel request, if any. [R17] [L8]"""
    assert job.due_at is not None
    directive = None
    if job.cancel_deadline is not None:
        directive = CancelDirective(
            reason=job.cancel_reason or "", remaining_us=remaining(job.cancel_deadline, at.now)
        )
    return Verdict(
        kind=_OK,
        job_status=job.status,
        rev=job.rev,
        ttl_us=remaining(job.due_at, at.now),
        cancel=directive,
    )


def _origin_without_fingerprint(command: Start | Heartbeat) -> Origin:
    """A repeated start or heartbeat is judged anew, never compared with the first one. [R17]"""
    return Origin(actor=command.actor, request_id=command.request_id)


def _start(command: Start, at: DecisionContext) -> Outcome:
    job = at.job
    judgement = judge_lease(command, at)
    if not isinstance(judgement, LeaseJudgement):
        return judgement
    if not judgement.is_valid:
        if judgement.situation is Situation.SETTLED:
            return rejected(Cause.LEASE_SETTLED)
        return Refused(answer=refusal(judgement, job))
    assert job is not None
    if judgement is not CLAIMED:
        return _start_again(job, command, at)
    if states_another_rev(job, command):
        return another_rev(job)
    draft = Draft(
        type=_STARTED,
        to=_TO_RUNNING,
        expires_at=renewed_expiry(job, at.now),
    )
    return apply(
        "T3",
        job,
        [draft],
        origin=_origin_without_fingerprint(command),
        at=at,
        answer=lambda started, _: _authority(started, at),
        not_after=job.due_at,
    )


def _start_again(job: Job, command: Start, at: DecisionContext) -> Outcome:
    """A repeated start is OK only under its own request id. The lease was found valid before this
    was called. [R18]"""
    if at.history is None:
        return NeedsHistory(job_id=job.id)
    started_by = [
        event.request_id
        for event in at.history
        if event.type is EventType.STARTED and event.lease_id == command.lease_id
    ]
    if command.request_id in started_by:
        return Replayed(answer=replace(_authority(job, at), replayed=True))
    return rejected(Cause.ALREADY_STARTED)


def _heartbeat(command: Heartbeat, at: DecisionContext) -> Outcome:
    job = at.job
    judgement = judge_lease(command, at)
    if not isinstance(judgement, LeaseJudgement):
        return judgement
    if judgement.situation is Situation.SETTLED:
        # The worker's own completion overtook its heartbeat; that is no error. [R21]
        assert job is not None
        return Replayed(answer=Verdict(kind=VerdictKind.OK, job_status=job.status, settled=True))
    if not judgement.is_valid:
        return Refused(answer=refusal(judgement, job))
    assert job is not None
    if command.hb_seq <= job.hb_seq:
        return Replayed(answer=_authority(job, at))
    if states_another_rev(job, command):
        return another_rev(job)
    carries_news = command.progress is not None or command.checkpoint is not None
    if not carries_news and _is_early(job, at.now):
        return Replayed(answer=replace(_authority(job, at), replayed=True))
    draft = Draft(
        type=EventType.HEARTBEAT if carries_news else EventType.LEASE_RENEWED,
        to=job.status,
        facts=Facts(
            hb_seq=command.hb_seq,
            progress=command.progress,
            checkpoint_sha256=None if command.checkpoint is None else digest(command.checkpoint),
            size=None if command.checkpoint is None else len(command.checkpoint),
        ),
        body=command.checkpoint,
        expires_at=renewed_expiry(job, at.now),
    )
    return apply(
        "T4",
        job,
        [draft],
        origin=_origin_without_fingerprint(command),
        at=at,
        answer=lambda renewed, _: _authority(renewed, at),
        not_after=job.due_at,
    )


def _is_early(job: Job, now: Instant) -> bool:
    """Whether a heartbeat without news comes so soon after the last renewal that recording it would
    only fill the log: 300 in a second wrote 1.4 MB. The first of an attempt is always recorded,
    because it ends the wait for a start. [L16]"""
    assert job.lease_expires_at is not None
    renewed_at = job.lease_expires_at - job.policy.lease_us
    early_us = job.policy.heartbeat_interval_us // EARLY_PART
    return job.renewals > 0 and 0 <= now - renewed_at < early_us


_DECISIONS: dict[type[Command], Callable[[Any, DecisionContext], Outcome]] = {
    Start: _start,
    Complete: settle,
    Fail: settle,
    Release: settle,
    Claim: _claim,
    Heartbeat: _heartbeat,
    Enqueue: enqueue,
    FollowUp: enqueue,
    EnqueueFlow: enqueue_flow,
    RedriveFlow: redrive_flow,
    Unblock: unblock,
    ScheduledEnqueue: enqueue,
    Sweep: sweep,
    Cancel: cancel,
    Stall: stall,
    Requeue: requeue,
    DeadLetter: dead_letter,
    Redrive: redrive,
    Discard: discard,
}
"""One per command. A dictionary, not a `match`: each case that is not the one costs 0.1 µs."""
