"""How an attempt ends: by its owner's report or by time.

A report is decided once; a repeat gets the recorded answer. A lease ends by time without a report:
the sweep only records that. Which reason and stage a dead letter carries is
decided here and nowhere else.
"""

from typing import assert_never

from msgspec.structs import replace

from tenure.core.changes import (
    Draft,
    Origin,
    apply,
    attempt_summary,
    ending,
    ending_after_stall,
    origin_of,
)
from tenure.core.commands import (
    Complete,
    Fail,
    Release,
    Settle,
    Sweep,
    fingerprint,
    start_request_id,
)
from tenure.core.events import Event, Facts, digest
from tenure.core.ids import SYSTEM, epoch_of
from tenure.core.instants import Instant, later
from tenure.core.job import Job, JobError
from tenure.core.leases import (
    CLAIMED,
    LeaseJudgement,
    Situation,
    is_expired,
    judge_lease,
    renewed_expiry,
    revocation,
    states_another_rev,
    time_limit_of,
)
from tenure.core.outcomes import (
    Applied,
    DecisionContext,
    History,
    Moment,
    NeedsHistory,
    Outcome,
    Refused,
    Replayed,
    Session,
)
from tenure.core.policy import backoff_us, spread
from tenure.core.verdicts import Observation, Reply, Verdict
from tenure.core.vocabulary import (
    Cause,
    Disposition,
    ErrorClass,
    EventCause,
    EventType,
    JobStatus,
    ObservationType,
    OnExhausted,
    OnLost,
    ReasonCode,
    ReleaseKind,
    Stage,
    VerdictKind,
)

DEAD_LETTERS_AT_ONCE = frozenset({ReasonCode.POLICY_VIOLATION, ReasonCode.INFRASTRUCTURE_FAILURE})
"""Reasons with which a worker makes its job a dead letter, whatever attempts are left. [T34]"""
MAX_OUTAGE_CREDITS = 3  # so that a poison job cannot hide behind a flapping store [O3]
OBSERVED_BODY_BYTES = 4096
EXPIRED_REASON = "expired: no attempt was started in time"


def settle(command: Settle, at: DecisionContext) -> Outcome:
    """The owner's report: accepted, replayed or refused."""
    job = at.job
    judgement = judge_lease(command, at)
    if not isinstance(judgement, LeaseJudgement):
        return judgement
    if not judgement.is_valid:
        if judgement.situation is Situation.SETTLED:
            return _settled_before(command, judgement, at)
        return _refused(job, command, judgement, at)
    assert job is not None
    if command.actor == SYSTEM:
        if at.history is None:
            return NeedsHistory(job_id=job.id)
        if _may_have_arrived(job, judgement, at.history, at.session):
            # The worker may have received the grant, so the coordinator must not take it back.
            return rejected(Cause.ALREADY_STARTED)
    if states_another_rev(job, command):
        return another_rev(job)
    match command:
        case Complete():
            return _complete(job, command, at)
        case Fail():
            return _fail(job, command, at)
        case Release():
            return _release(job, command, at)
        case _:
            assert_never(command)


def _may_have_arrived(
    job: Job, judgement: LeaseJudgement, history: History, session: Session | None
) -> bool:
    """Whether the worker may know of this grant, whose caller has gone: the claim came again, or
    the worker has claimed anew, started or renewed, or a cancel of the job was requested. A start
    by the claim itself proves nothing about that. [Q8] [N4]"""
    assert job.lease_id is not None
    of_lease = [event for event in history if event.lease_id == job.lease_id]
    granted_by = {each.request_id for each in of_lease if each.type is EventType.CLAIMED}
    if session is None or session.is_repeated or granted_by != {session.request_id}:
        return True
    if judgement is CLAIMED:
        return job.hb_seq > 0
    started_by = {each.request_id for each in of_lease if each.type is EventType.STARTED}
    is_started_by_claim = started_by == {start_request_id(job.lease_id)}
    is_cancelling = judgement.situation is not Situation.RUNNING
    return job.hb_seq > 0 or is_cancelling or not is_started_by_claim


# Module constants: finding an enumeration's member costs 0.09 µs, see `evolution`.
_COMMITTED, _RUNNING = VerdictKind.COMMITTED, JobStatus.RUNNING
_SUCCEEDED, _TO_SUCCEEDED = EventType.SUCCEEDED, JobStatus.SUCCEEDED

_DISPOSITIONS = {status: Disposition(status.value) for status in JobStatus if status.is_terminal}


def committed(events: tuple[Event, ...], *, replayed: bool = False) -> Verdict:
    """COMMITTED, derived from the events of the report; a replay reads the same ones. [R3]"""
    last = events[-1]
    disposition = _DISPOSITIONS.get(last.to_status)
    if disposition is None:  # requeued; an implicit start may be the first event [T6]
        end = events[1] if events[0].type is EventType.STARTED else events[0]
        failed = end.cause is EventCause.ATTEMPT_FAILED
        disposition = Disposition.RETRY_SCHEDULED if failed else Disposition.RELEASED
    return Verdict(
        kind=_COMMITTED,
        job_status=last.to_status,
        disposition=disposition,
        run_at=last.payload.run_at,
        replayed=replayed,
    )


def rejected(cause: Cause, observation: Observation | None = None) -> Refused:
    """The answer to a request that carries no authority, or comes a second time."""
    answer = Verdict(kind=VerdictKind.REJECTED, cause=cause)
    return Refused(answer=answer, observation=observation)


def refusal(judgement: LeaseJudgement, job: Job | None) -> Verdict:
    """The verdict for a worker without a valid lease: CANCELLED if it once had one, else REJECTED.

    A stranger to the lease does not get the job's status: it must not learn whether the lease
    exists.
    """
    was_lost = judgement.situation in (Situation.EXPIRED, Situation.LOST)
    must_stop = was_lost or judgement.cause is Cause.EPOCH_CHANGED
    return Verdict(
        kind=VerdictKind.CANCELLED if must_stop else VerdictKind.REJECTED,
        cause=judgement.cause,
        job_status=job.status if job is not None and was_lost else None,
    )


def another_rev(job: Job) -> Refused:
    """The answer to a request that states another `rev` than the job has: the `rev` that it has.
    Nothing is kept of it: its lease is still valid. [K13]"""
    return Refused(
        answer=Verdict(
            kind=VerdictKind.REJECTED,
            cause=Cause.REVISION_MISMATCH,
            job_status=job.status,
            rev=job.rev,
        )
    )


def _settled_before(command: Settle, judgement: LeaseJudgement, at: Moment) -> Outcome:
    end = judgement.settled[0]
    if end.request_id != command.request_id:
        cause = Cause.DUPLICATE_COMPLETION
        return rejected(cause, _discarded(command, cause, at))
    if end.fingerprint != fingerprint(command):
        return rejected(Cause.IDEMPOTENCY_KEY_REUSE)
    return Replayed(answer=committed(judgement.settled, replayed=True))


def _refused(job: Job | None, command: Settle, judgement: LeaseJudgement, at: Moment) -> Refused:
    observation = None
    if job is not None and judgement.was_issued and judgement.cause is not None:
        if judgement.situation is Situation.FOREIGN:
            # Another principal's lease was used. That is recorded, the result is not. [U2]
            observation = _observed(ObservationType.FOREIGN_LEASE, command, judgement.cause, at)
        else:
            observation = _discarded(command, judgement.cause, at)
    return Refused(answer=refusal(judgement, job), observation=observation)


def _observed(type_: ObservationType, command: Settle, cause: Cause, at: Moment) -> Observation:
    return Observation(
        job_id=command.job_id,
        type=type_,
        ts=at.now,
        actor=command.actor,
        lease_id=command.lease_id,
        request_id=command.request_id,
        cause=cause.value,
    )


def _discarded(command: Settle, cause: Cause, at: Moment) -> Observation | None:
    """What is kept of a result that came too late: who, why, and a bounded body. [U1]"""
    if isinstance(command, Release):
        return None
    body = command.result if isinstance(command, Complete) else command.error.message.encode()
    return replace(
        _observed(ObservationType.RESULT_DISCARDED, command, cause, at),
        size=len(body),
        sha256=digest(body),
        body=body[:OBSERVED_BODY_BYTES],
    )


def _report(
    rule: str, job: Job, drafts: list[Draft], command: Settle, at: Moment, *, starts: bool = True
) -> Applied:
    if starts and job.status is not _RUNNING:
        # The job was not reported as started: the start is recorded with its end. [T6]
        start = Draft(
            type=EventType.STARTED,
            to=JobStatus.RUNNING,
            cause=EventCause.IMPLICIT,
            expires_at=renewed_expiry(job, at.now),
        )
        rule, drafts = "T6", [start, *drafts]
    return apply(
        rule,
        job,
        drafts,
        origin=origin_of(command),
        at=at,
        answer=lambda _, events: committed(events),
        not_after=job.due_at,
    )


def _complete(job: Job, command: Complete, at: Moment) -> Applied:
    if job.renewals or job.origin_id is not None:
        drafts = [_completion(job, command.result)]
    elif at.shared is None:
        drafts = [_completion(None, command.result)]
    else:
        known = at.shared.completion
        if known is None or known[0] != command.result:
            known = (command.result, [_completion(None, command.result)])
            at.shared.completion = known
        drafts = known[1]
    return _report("T5", job, drafts, command, at)


def _completion(job: Job | None, result: bytes) -> Draft:
    """The draft of a success. `job` is None if the draft depends on the result alone: the attempt
    had no renewals, and the job was not made by another job."""
    facts = Facts(sha256=digest(result), size=len(result))
    is_compensation = job is not None and job.compensates is not None
    return Draft(
        type=_SUCCEEDED,
        to=_TO_SUCCEEDED,
        cause=EventCause.COMPENSATION if is_compensation else None,
        facts=facts if job is None else attempt_summary(job, facts),
        body=result,
    )


def _fail(job: Job, command: Fail, at: Moment) -> Applied:
    """What an error leads to: by its reason, or else by its class and its stage. [F13]"""
    error = command.error
    if error.reason_code is not None and error.reason_code in DEAD_LETTERS_AT_ONCE:
        return _report("T34", job, [_dead_letter(job, error, error.reason_code)], command, at)
    match error.error_class:
        case ErrorClass.TRANSIENT | ErrorClass.UNCLASSIFIED:
            return _fail_retryable(job, command, at)
        case ErrorClass.VALIDATION if error.stage is Stage.INPUT:
            # No user code has run, so the input itself is wrong: it goes to the dead letters.
            is_parse_error = error.reason_code is ReasonCode.PARSE_ERROR
            reason = ReasonCode.PARSE_ERROR if is_parse_error else ReasonCode.VALIDATION_FAILED
            return _report("T9b", job, [_dead_letter(job, error, reason)], command, at)
        case ErrorClass.PERMANENT | ErrorClass.VALIDATION:
            if job.compensates is None:
                draft = ending(job, EventType.FAILED, Facts(error=error))
            else:
                draft = _dead_letter(job, error, ReasonCode.COMPENSATION_FAILED)
            return _report("T7", job, [draft], command, at)
        case _:
            assert_never(error.error_class)


def _fail_retryable(job: Job, command: Fail, at: Moment) -> Applied:
    error = command.error
    if job.cancel_requested_at is not None:
        return _report("T10", job, [_cancel_acknowledged(job, error)], command, at)
    failures = job.failures + 1
    if failures >= job.policy.max_attempts:
        if job.policy.on_exhausted is OnExhausted.FAIL and job.compensates is None:
            draft = ending(job, EventType.FAILED, Facts(error=error, failures=failures))
        else:
            draft = _dead_letter(job, error, _exhaustion_reason(job, error), failures=failures)
        return _report("T9", job, [draft], command, at)
    wait_us = max(
        command.retry_after_us,
        backoff_us(job.policy.backoff, failures=failures, entropy=at.entropy),
    )
    facts = Facts(error=error, failures=failures)
    stalled = ending(job, EventType.STALLED, facts, cause=EventCause.ATTEMPT_FAILED)
    drafts = [stalled, requeued(Instant(later(at.now, job.updated_at) + wait_us))]
    return _report("T8", job, drafts, command, at)


def _dead_letter(
    job: Job, error: JobError, reason: ReasonCode, *, failures: int | None = None
) -> Draft:
    if job.compensates is not None:
        reason = ReasonCode.COMPENSATION_FAILED
    facts = Facts(error=error, failures=failures, reason_code=reason, stage=error.stage)
    return ending(job, EventType.DEAD_LETTERED, facts)


def _cancel_acknowledged(job: Job, error: JobError | None) -> Draft:
    facts = Facts(error=error, reason=job.cancel_reason)
    return ending(job, EventType.CANCELLED, facts, cause=EventCause.ACKNOWLEDGED)


def requeued(run_at: Instant, *, cause: EventCause | None = None) -> Draft:
    """Back to the queue, for not before `run_at`. [T14]"""
    return Draft(
        type=EventType.REQUEUED, to=JobStatus.QUEUED, cause=cause, facts=Facts(run_at=run_at)
    )


def _exhaustion_reason(
    job: Job, error: JobError | None, *, lost_by: EventCause | None = None
) -> ReasonCode:
    """Why a job whose budget is spent is a dead letter: after this error, or after an attempt that
    was lost. [F12]"""
    if job.compensates is not None:
        return ReasonCode.COMPENSATION_FAILED
    if lost_by in _TIME_OUTS:
        return ReasonCode.TIMEOUT
    if lost_by is not None and error is None and job.releases <= job.policy.max_releases:
        return ReasonCode.INFRASTRUCTURE_FAILURE  # each of its failures is an attempt that was lost
    if error is not None and error.reason_code is ReasonCode.DEPENDENCY_UNAVAILABLE:
        return ReasonCode.DEPENDENCY_UNAVAILABLE
    return ReasonCode.EXHAUSTED_RETRIES


_TIME_OUTS = (EventCause.TIMEOUT, EventCause.START_TIMEOUT)
_RELEASE_CAUSE = {
    ReleaseKind.DEPLOY: EventCause.RELEASED,
    ReleaseKind.SNOOZE: EventCause.SNOOZED,
    ReleaseKind.UNDELIVERED: EventCause.UNDELIVERED,
}


def _release(job: Job, command: Release, at: Moment) -> Applied:
    if job.cancel_requested_at is not None:
        return _report("T10", job, [_cancel_acknowledged(job, None)], command, at)
    counts = command.kind is ReleaseKind.DEPLOY
    releases = job.releases + 1 if counts else job.releases
    costs = counts and releases > job.policy.max_releases
    failures = job.failures + 1 if costs else job.failures
    facts = Facts(releases=releases if counts else None, failures=failures if costs else None)
    stalled = ending(job, EventType.STALLED, facts, cause=_RELEASE_CAUSE[command.kind])
    if costs and failures >= job.policy.max_attempts:
        error = JobError(type="ReleasedTooOften", message=f"handed back {releases} times")
        reason = _exhaustion_reason(job, job.last_error)
        facts = Facts(error=error, reason_code=reason)
        end = ending_after_stall(EventType.DEAD_LETTERED, facts)
    else:
        end = requeued(_released_to(job, command, at))
    return _report("T11", job, [stalled, end], command, at, starts=False)


def _released_to(job: Job, command: Release, at: Moment) -> Instant:
    """The `run_at` of a job that was handed back: the place it had, not one behind the backlog,
    unless its worker asked for a delay. A snooze asks for one even if it is zero. [Z5]"""
    if command.delay_us or command.kind is ReleaseKind.SNOOZE:
        return Instant(later(at.now, job.updated_at) + command.delay_us)
    assert job.claimed_run_at is not None
    return job.claimed_run_at


def sweep(command: Sweep, at: DecisionContext) -> Outcome:
    """Record what time revoked; change nothing where it has not. Safe to repeat. [W1]"""
    job = at.job
    if job is None or at.is_settling:  # [A10]
        return Replayed(answer=Reply(job=job, replayed=True))
    if is_expired(job, at.now):
        expired = Facts(reason=EXPIRED_REASON)
        draft = ending(job, EventType.CANCELLED, expired, cause=EventCause.EXPIRED)
        return _swept("T31", job, [draft], at)  # [EX2]
    if not job.status.is_leased:
        return Replayed(answer=Reply(job=job, replayed=True))
    cause = revocation(job, at.now)
    if cause is None:
        return Replayed(answer=Reply(job=job, replayed=True))
    if cause is EventCause.GRACE_OVER:
        draft = ending(job, EventType.CANCELLED, Facts(reason=job.cancel_reason), cause=cause)
        return _swept("T20", job, [draft], at)
    is_expiry = cause is EventCause.LEASE_EXPIRED
    is_excused = _excuses_expiry(job, command) if is_expiry else _excuses_timeout(job, command)
    has_credit = is_excused and job.outage_credits < MAX_OUTAGE_CREDITS  # [O3]
    # Whether the raise of the epoch took the lease: its worker was asked to stop, and could not
    # have reported. Such an end is free even if all credits are used: an epoch is raised once per
    # loss, so that no poison job can hide behind it. [A7]
    assert job.lease_id is not None
    is_of_earlier_epoch = epoch_of(job.lease_id) < at.epoch
    if is_of_earlier_epoch or (has_credit and is_expiry):
        cause = EventCause.OUTAGE  # an excused time-out stays one: its worker gets `timed_out`
    is_free = has_credit or is_of_earlier_epoch
    drafts = _lose(job, cause, at, is_free=is_free, not_before=_old_end(job, command, at))
    return _swept("T12" if is_expiry else "T13", job, drafts, at)


def _swept(rule: str, job: Job, drafts: list[Draft], at: Moment) -> Applied:
    origin = Origin(actor=SYSTEM, request_id=None)  # no request: its id is job_id:seq [Q6]
    return apply(rule, job, drafts, origin=origin, at=at, answer=lambda swept, _: Reply(job=swept))


def _excuses_expiry(job: Job, command: Sweep) -> bool:
    """Whether an outage, or a jump of the clock, overlapped the lease since its last renewal.

    Since the renewal, not the claim: an outage early in a long attempt must not excuse a crash
    hours later. [O10]
    """
    assert job.lease_expires_at is not None
    renewed_at = Instant(job.lease_expires_at - job.policy.lease_us)
    return any(outage.overlaps(renewed_at, job.lease_expires_at) for outage in command.outages)


def _excuses_timeout(job: Job, command: Sweep) -> bool:
    """Whether a jump of the clock shortened the time that the attempt had. A store that failed did
    not: handlers work while it is away. [O12]"""
    began_at, over_at = time_limit_of(job)
    return any(outage.is_jump and outage.overlaps(began_at, over_at) for outage in command.outages)


def _old_end(job: Job, command: Sweep, at: Moment) -> Instant:
    """When the lease is over by the clock as it was before it jumped: its worker may be at work
    until then, so the job is not granted again. [O13]

    Several processes may record the same jump, so the union of the records counts. A record may be
    too long by the time between two readings; the wait is capped at one ttl.
    """
    assert job.lease_expires_at is not None
    assert job.due_at is not None
    renewed_at = Instant(job.lease_expires_at - job.policy.lease_us)
    jumped_us, jumped_to = 0, Instant(0)
    for jump in sorted(
        (each for each in command.outages if each.is_jump), key=lambda each: each.began_at
    ):
        if jump.overlaps(renewed_at, job.due_at):
            jumped_us += max(0, jump.ended_at - later(jump.began_at, jumped_to))
            jumped_to = later(jump.ended_at, jumped_to)
    return Instant(min(job.due_at + jumped_us, later(at.now, job.updated_at) + job.policy.lease_us))


def _lose(
    job: Job, cause: EventCause, at: Moment, *, is_free: bool, not_before: Instant
) -> list[Draft]:
    """Record that the attempt is lost, and move the job on: T16 before T15 before T14. [N2]"""
    failures = job.failures if is_free else job.failures + 1
    exhausted = failures >= job.policy.max_attempts
    ts = later(at.now, job.updated_at)
    if is_free:
        run_at = spread(ts, backoff=job.policy.backoff, entropy=at.entropy)
    else:
        run_at = Instant(ts + backoff_us(job.policy.backoff, failures=failures, entropy=at.entropy))
    run_at = later(run_at, not_before)
    ends_here = job.cancel_requested_at is not None or exhausted
    reclaims = job.policy.on_lost is OnLost.RECLAIM and not ends_here
    facts = Facts(
        failures=None if is_free else failures,
        outage_credits=min(job.outage_credits + 1, MAX_OUTAGE_CREDITS) if is_free else None,
        run_at=run_at if reclaims else None,
    )
    stalled = ending(job, EventType.STALLED, facts, cause=cause)
    if job.cancel_requested_at is not None:
        return [stalled, _outlived_cancel(job)]
    if exhausted:
        return [stalled, _lost_for_good(job, cause)]
    if job.policy.on_lost is OnLost.REQUEUE:
        return [stalled, requeued(run_at)]
    return [stalled]


def stalled_by_operator(job: Job, at: Moment) -> list[Draft]:
    """The attempt is lost because an operator declared it lost. This costs no failure: nothing is
    known against the job. [T33]"""
    reclaims = job.policy.on_lost is OnLost.RECLAIM and job.cancel_requested_at is None
    facts = Facts(run_at=later(at.now, job.updated_at) if reclaims else None)
    stalled = ending(job, EventType.STALLED, facts, cause=EventCause.OPERATOR)
    return [stalled] if job.cancel_requested_at is None else [stalled, _outlived_cancel(job)]


def _outlived_cancel(job: Job) -> Draft:
    """A cancel request whose attempt is lost ends the job. [T16]"""
    return ending_after_stall(EventType.CANCELLED, Facts(reason=job.cancel_reason))


def _lost_for_good(job: Job, cause: EventCause) -> Draft:
    error = JobError(
        type="TimedOut" if cause in _TIME_OUTS else "LeaseExpired",
        message=f"attempt {job.attempt} was lost: {cause.value}, owner {job.owner}",
        stage=Stage.EXEC if job.status is _RUNNING or job.renewals else Stage.FETCH,
    )
    reason = _exhaustion_reason(job, job.last_error, lost_by=cause)
    facts = Facts(error=error, reason_code=reason, stage=error.stage)
    return ending_after_stall(EventType.DEAD_LETTERED, facts)
