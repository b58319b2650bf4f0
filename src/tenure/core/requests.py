"""Requests of clients and operators: enqueue, cancel, stall, requeue, dead-letter and so on.

Every one is idempotent under its request id (an enqueue's is the job id): a repeated request gets
the recorded answer, a different one under the same id is refused. [Q4] Refusals carry the
current record, so that a caller can see what it ran into.
"""

from collections.abc import Callable
from functools import wraps
from typing import TypeVar

from msgspec.structs import replace

from tenure.core.attempt_end import requeued, stalled_by_operator
from tenure.core.changes import Draft, Origin, apply, ending, new_job, origin_of
from tenure.core.commands import (
    Cancel,
    DeadLetter,
    Discard,
    Enqueue,
    FollowUp,
    OperatorCommand,
    ParentAttempt,
    Redrive,
    Requeue,
    ScheduledEnqueue,
    Stall,
    fingerprint,
    redriven_id,
)
from tenure.core.events import Event, Facts, enqueued_facts, facts_of_another
from tenure.core.ids import Fingerprint, JobId, RequestId
from tenure.core.instants import Instant, later
from tenure.core.job import Job, JobError, compensation_id, needs_compensation
from tenure.core.leases import why_no_lease
from tenure.core.outcomes import (
    NO_POLICIES,
    Applied,
    DecisionContext,
    History,
    Moment,
    NeedsHistory,
    Outcome,
    Refused,
    Replayed,
    Resolved,
)
from tenure.core.policy import Policy
from tenure.core.verdicts import Reply, Resolution
from tenure.core.vocabulary import (
    CancelMode,
    Cause,
    EventCause,
    EventType,
    JobStatus,
    ReasonCode,
    ResolutionKind,
)

_C = TypeVar("_C", bound=OperatorCommand)


def enqueue(command: Enqueue, at: DecisionContext) -> Outcome:
    """Make a job, or find the one that is already there under this id or dedupe key. [T1]"""
    cause, parent = None, None
    if isinstance(command, FollowUp):
        cause, parent = EventCause.FOLLOW_UP, at.others.get(command.parent.job_id)
        refused = why_no_parent(command.parent, command, at)
        if refused is not None:
            return refused
    existing = at.key_holder or at.job
    if existing is not None and not may_take_key(existing, command, at.now):
        return answer_existing(existing, command, at)
    facts = enqueued_facts(
        command,
        now=at.now,
        policy=policy_of(command, at),
        origin_id=None if parent is None else parent.id,
    )
    if isinstance(command, ScheduledEnqueue):
        cause = EventCause.SCHEDULE
        facts = replace(facts, schedule=command.schedule, scheduled_for=command.scheduled_for)
    applied = new_job(
        command.job_id,
        facts,
        command.payload,
        origin=Origin(
            actor=command.actor,
            request_id=RequestId(command.job_id),
            fingerprint=fingerprint(command),
        ),
        at=at,
        cause=cause,
        ids=(command.correlation_id, command.trace_id)
        if parent is None
        else inherited_ids(command, parent),
        not_after=None if parent is None else parent.due_at,
        undeclared=command.policy is None and is_undeclared(command, at),
    )
    return applied if existing is None else _taking_key(applied, existing)


def inherited_ids(command: Enqueue, parent: Job | None) -> tuple[str | None, str | None]:
    """The correlation id and the trace id of a new job: its own, or the ids of the job whose
    handler enqueues it. [OB4]"""
    correlation_id, trace_id = command.correlation_id, command.trace_id
    if parent is not None:
        correlation_id = parent.correlated_by if correlation_id is None else correlation_id
        trace_id = parent.trace_id if trace_id is None else trace_id
    return correlation_id, trace_id


def may_take_key(holder: Job, command: Enqueue | Redrive, now: Instant) -> bool:
    """Whether the new job may take the dedupe key of `holder`, which has ended: its `unique_for` is
    over [D14], or the new job redrives it [D16]."""
    wanted = command.job_id if isinstance(command, Enqueue) else redriven_id(command)
    if not holder.status.is_terminal or holder.id == wanted:
        return False
    until = holder.key_free_at
    if until is None or until <= now:
        return True
    return isinstance(command, Redrive) and holder.id == command.job_id


def _taking_key(applied: Applied, holder: Job) -> Applied:
    return replace(applied, change=replace(applied.change, takes_key_from=holder.id))


def policy_of(command: Enqueue, at: Moment) -> Policy:
    """The policy of a new job. If its enqueue brings none, what workers declared for its kind, else
    the default. [F9]"""
    if command.policy is not None:
        return command.policy
    declared = NO_POLICIES if at.shared is None else at.shared.policies
    return declared.get((command.namespace, command.kind)) or Policy()


def is_undeclared(command: Enqueue, at: Moment) -> bool:
    """Whether the enqueue brings no policy and no worker declared one for its kind. [F11]"""
    if command.policy is not None:
        return False
    return at.shared is None or (command.namespace, command.kind) not in at.shared.policies


def why_no_parent(
    parent: ParentAttempt, command: Enqueue, at: DecisionContext
) -> Refused | NeedsHistory | None:
    """The answer if this attempt may enqueue nothing; None if it may. [D10] [R24]"""
    job, history = at.others.get(parent.job_id), at.histories.get(parent.job_id)
    if job is not None and job.namespace != command.namespace:
        return _refused(None, Cause.UNKNOWN_JOB)
    cause = why_no_lease(job, parent.lease_id, command.actor, at, history)
    return _refused(None, cause) if isinstance(cause, Cause) else cause


def answer_existing(job: Job, command: Enqueue | Redrive, at: DecisionContext) -> Outcome:
    """The answer where the job exists already: a replay, a reused id, or a duplicate by its dedupe
    key. [D5] [D3]"""
    wanted = command.job_id if isinstance(command, Enqueue) else redriven_id(command)
    if job.id != wanted:
        return Replayed(answer=Reply(job=job, deduplicated=True))
    if isinstance(command, FollowUp):
        # An earlier attempt of the same parent enqueued it, perhaps with another payload. [D9]
        return Replayed(answer=Reply(job=job, replayed=True))
    history = at.history if job.id == command.job_id else at.histories.get(job.id)
    if not history:  # an empty one: the job was purged since its row was read, so read again
        return NeedsHistory(job_id=job.id)
    if history[0].fingerprint == fingerprint(command):
        return Replayed(answer=Reply(job=job, replayed=True))
    # A caller learns of a job of another namespace only that its id is taken. [H21]
    is_elsewhere = isinstance(command, Enqueue) and command.namespace != job.namespace
    return _refused(None if is_elsewhere else job, Cause.IDEMPOTENCY_KEY_REUSE)


def _refused(job: Job | None, cause: Cause) -> Refused:
    return Refused(answer=Reply(job=job, cause=cause))


def _recorded(command: OperatorCommand | Discard, history: History) -> Event | None:
    """The event that this request wrote. ENQUEUED events are ignored: they bear the job's own id,
    or the id of a request about another job."""
    return next(
        (
            event
            for event in history
            if event.request_id == command.request_id
            and event.actor == command.actor
            and event.type is not EventType.ENQUEUED
        ),
        None,
    )


def _replay(job: Job, command: OperatorCommand | Discard, recorded: Event) -> Outcome:
    if recorded.fingerprint != fingerprint(command):
        return _refused(job, Cause.IDEMPOTENCY_KEY_REUSE)
    return Replayed(answer=Reply(job=job, pending=_is_pending(job, recorded), replayed=True))


def _is_pending(job: Job, event: Event) -> bool:
    """Whether what was asked is still to come: only a soft cancel of a running job waits. [T19]"""
    return event.type is EventType.CANCEL_REQUESTED and not job.status.is_terminal


def _mismatch(job: Job, command: OperatorCommand | Discard) -> Cause | None:
    """Why this is not the job that the caller expects, if it is not. A caller that expects a dead
    letter gets `not_dead_lettered`, as after a discard. [K12]"""
    if command.expected_status not in (None, job.status):
        is_for_letters = command.expected_status is JobStatus.DEAD_LETTERED
        return Cause.NOT_DEAD_LETTERED if is_for_letters else Cause.REVISION_MISMATCH
    return None if command.expected_rev in (None, job.rev) else Cause.REVISION_MISMATCH


def _apply_request(drafts: list[Draft], rule: str, job: Job, command: _C, at: Moment) -> Applied:
    return apply(
        rule,
        job,
        drafts,
        origin=origin_of(command),
        at=at,
        answer=lambda after, events: Reply(job=after, pending=_is_pending(after, events[-1])),
    )


def _answered_before(
    job: Job, command: OperatorCommand | Discard, history: History | None
) -> Outcome | None:
    """The recorded answer, or why the request is refused; None if it is new. [Q4] [K12]

    A live job that was never claimed has only its ENQUEUED event: its log need not be read.
    """
    mismatch = _mismatch(job, command)
    if job.attempt == 0 and not job.status.is_terminal and mismatch is None:
        return None
    if history is None:
        return NeedsHistory(job_id=job.id)
    recorded = _recorded(command, history)
    if recorded is not None:
        return _replay(job, command, recorded)
    return None if mismatch is None else _refused(job, mismatch)


def _idempotent(
    decide: Callable[[Job, _C, Moment], Outcome],
) -> Callable[[_C, DecisionContext], Outcome]:
    """Answers a request about an unknown job, a repeated request [Q4] and one that expects another
    revision than the job has [K12]; `decide` decides about the others."""

    @wraps(decide)
    def answer(command: _C, at: DecisionContext) -> Outcome:
        if at.job is None:
            return _refused(None, Cause.UNKNOWN_JOB)
        before = _answered_before(at.job, command, at.history)
        return decide(at.job, command, at) if before is None else before

    return answer


@_idempotent
def cancel(job: Job, command: Cancel, at: Moment) -> Outcome:
    """Stop a job: at once where nothing runs, else by request (soft) or revocation (hard)."""
    if job.status is JobStatus.CANCELLED:
        return Replayed(answer=Reply(job=job))
    if job.status.is_terminal:
        return _refused(job, Cause.JOB_FINISHED)
    if job.cancel_requested_at is not None and command.mode is CancelMode.SOFT:
        return Replayed(answer=Reply(job=job, pending=True))
    if job.compensates is not None:
        return _refused(job, Cause.COMPENSATION_PROTECTED)
    return _cancel_live(job, command, at)


def _cancel_live(job: Job, command: Cancel, at: Moment) -> Applied:
    mode = EventCause(command.mode.value)
    if job.status is JobStatus.RUNNING and command.mode is CancelMode.SOFT:
        # The worker gets it with its next heartbeat, so the grace starts there. [C1]
        ts = later(at.now, job.updated_at)
        deadline = Instant(ts + job.policy.heartbeat_interval_us + job.policy.grace_us)
        draft = Draft(
            type=EventType.CANCEL_REQUESTED,
            to=JobStatus.RUNNING,
            cause=mode,
            facts=Facts(reason=command.reason, cancel_deadline=deadline),
        )
        return _apply_request([draft], "T19", job, command, at)
    rules = {
        JobStatus.WAITING: "T17",
        JobStatus.QUEUED: "T17",
        JobStatus.CLAIMED: "T18",
        JobStatus.RUNNING: "T20",
        JobStatus.STALLED: "T16",
    }
    draft = ending(job, EventType.CANCELLED, Facts(reason=command.reason), cause=mode)
    return _apply_request([draft], rules[job.status], job, command, at)


@_idempotent
def stall(job: Job, command: Stall, at: Moment) -> Outcome:
    """Take a job from its worker. Nothing follows by itself: the same or another operator decides
    what becomes of it. [T33]"""
    if job.status is JobStatus.STALLED:
        return Replayed(answer=Reply(job=job))
    if not job.status.is_leased:
        return _refused(job, Cause.JOB_FINISHED if job.status.is_terminal else Cause.NOT_LEASED)
    return _apply_request(stalled_by_operator(job, at), "T33", job, command, at)


@_idempotent
def requeue(job: Job, command: Requeue, at: Moment) -> Outcome:
    """Send a job that is on hold back to its queue. A repeated request changes nothing, even if the
    job was put on hold again in the meantime. [T14]"""
    if job.status is not JobStatus.STALLED:
        return _refused(job, Cause.JOB_FINISHED if job.status.is_terminal else Cause.NOT_HELD)
    draft = requeued(later(at.now, job.updated_at), cause=EventCause.OPERATOR)
    return _apply_request([draft], "T14", job, command, at)


@_idempotent
def dead_letter(job: Job, command: DeadLetter, at: Moment) -> Outcome:
    """Turn a live job into a dead letter. [T21]"""
    if job.status.is_terminal:
        return _refused(job, Cause.JOB_FINISHED)
    is_compensation = job.compensates is not None
    reason_code = ReasonCode.COMPENSATION_FAILED if is_compensation else command.reason_code
    error = JobError(
        type="DeadLettered",
        message=command.message,
        stage=command.stage,
        reason_code=command.reason_code,
    )
    facts = Facts(error=error, reason_code=reason_code, stage=command.stage, reason=command.message)
    draft = ending(job, EventType.DEAD_LETTERED, facts, cause=EventCause.OPERATOR)
    return _apply_request([draft], "T21", job, command, at)


def redrive(command: Redrive, at: DecisionContext) -> Outcome:
    """A new job out of a finished one; out of a dead letter only if it is the first to resolve
    it, unless another one is asked for. [T27] [B17] [B18]"""
    job, existing = at.job, at.others.get(redriven_id(command)) or at.key_holder
    if existing is not None and not may_take_key(existing, command, at.now):
        return answer_existing(existing, command, at)  # a repeat finds the job that it made [Q4]
    if job is None:
        return _refused(None, Cause.UNKNOWN_JOB)
    mismatch = _mismatch(job, command)
    if mismatch is not None:
        return _refused(job, mismatch)
    if not job.status.is_terminal:
        return _refused(job, Cause.NOT_FINISHED)
    if job.flow_id is not None:
        return _refused(job, Cause.PART_OF_FLOW)  # [FL12]
    known = at.resolution
    if known is not None and not command.again:
        return Refused(answer=Reply(job=job, cause=Cause.ALREADY_RESOLVED, resolution=known))
    if is_being_compensated(job, at.others.get(compensation_id(job.id))):
        return _refused(job, Cause.COMPENSATION_PENDING)
    payload = job.payload if command.payload is None else command.payload
    applied = new_job(
        redriven_id(command),
        facts_of_another(job, payload, at.now),
        payload,
        origin=origin_of(command),
        at=at,
        cause=command.cause,
        ids=(job.correlated_by, job.trace_id),
    )
    if existing is not None:
        applied = _taking_key(applied, existing)
    change = applied.change
    if job.status is JobStatus.DEAD_LETTERED and known is None:
        asked = fingerprint(command)
        change = replace(change, resolution=redriven(job.id, change.events[0], asked))
    return Applied(rule="T27", change=change, answer=applied.answer)


def is_being_compensated(job: Job, compensation: Job | None) -> bool:
    """Whether this finished job has a compensation that has not ended."""
    is_live = compensation is not None and not compensation.status.is_terminal
    return is_live and needs_compensation(job)


def redriven(job_id: JobId, enqueued: Event, asked: Fingerprint) -> Resolution:
    """The resolution of a dead letter that became a new job. [B17]"""
    return Resolution(
        job_id=job_id,
        kind=ResolutionKind.REDRIVEN,
        ts=enqueued.ts,
        actor=enqueued.actor,
        request_id=enqueued.request_id,
        fingerprint=asked,
        new_job_id=enqueued.job_id,
    )


def discard(command: Discard, at: DecisionContext) -> Outcome:
    """Resolve a dead letter without a new job; its row and log stay as they are. [B3]"""
    job, known = at.job, at.resolution
    if job is None:
        return _refused(None, Cause.UNKNOWN_JOB)
    if known is not None and (known.actor, known.request_id) == (command.actor, command.request_id):
        if known.fingerprint == fingerprint(command):
            return Replayed(answer=Reply(job=job, resolution=known, replayed=True))
        return _refused(job, Cause.IDEMPOTENCY_KEY_REUSE)
    before = _answered_before(job, command, at.history)
    if before is not None:
        return before
    if job.status is not JobStatus.DEAD_LETTERED:
        return _refused(job, Cause.NOT_DEAD_LETTERED)
    if known is not None:
        return Refused(answer=Reply(job=job, cause=Cause.ALREADY_RESOLVED, resolution=known))
    resolution = Resolution(
        job_id=job.id,
        kind=ResolutionKind.DISCARDED,
        ts=later(at.now, job.updated_at),
        actor=command.actor,
        request_id=command.request_id,
        fingerprint=fingerprint(command),
        note=command.note,
    )
    return Resolved(resolution=resolution, answer=Reply(job=job, resolution=resolution))
