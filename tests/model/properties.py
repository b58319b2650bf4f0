"""What must hold in every state and across every step, said a second time and without the core.

The expectations are the tables of docs/spec written as small functions over rows and grips; only
the table of lawful edges and `row_violations` are the core's own. Each complaint has a kind, by
which the seeded bugs are told apart.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tenure.core.commands import Claim, Command, Sweep
from tenure.core.ids import SYSTEM, Actor, fence
from tenure.core.instants import Instant
from tenure.core.job import Job, row_violations
from tenure.core.outcomes import Applied, Outcome, Refused, Replayed
from tenure.core.transitions import EDGES, allows
from tenure.core.verdicts import Grant, Reply, Verdict
from tenure.core.vocabulary import (
    Cause,
    Disposition,
    EventCause,
    EventType,
    JobStatus,
    OnExhausted,
    OnLost,
    VerdictKind,
)
from tests.model.world import SETTLES, STARTS, Grip, State, ask, saying

CREDITS = 3
BAD_ENDS = (JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.DEAD_LETTERED)


class Violation(NamedTuple):
    """One broken expectation."""

    kind: str
    text: str

    def __str__(self) -> str:
        return f"[{self.kind}] {self.text}"


def ended_by(job: Job, now: Instant) -> Cause | None:
    """What has ended the authority of the row's lease by `now`. [L9] [N2]"""
    assert job.claimed_at is not None
    assert job.lease_expires_at is not None
    if job.cancel_deadline is not None and now >= job.cancel_deadline:
        return Cause.JOB_CANCELLED
    if job.started_at is not None:
        runs_out_at = job.started_at + (job.policy.timeout_us or 0)
    elif job.hb_seq > 0:
        runs_out_at = job.claimed_at + (job.policy.timeout_us or 0)
    else:
        runs_out_at = job.claimed_at + job.policy.start_within_us
    if now >= runs_out_at:
        return Cause.TIMED_OUT
    return Cause.LEASE_EXPIRED if now >= job.lease_expires_at else None


def is_expired(state: State) -> bool:
    """Whether the job waits although it should have been started before now, by its log. [EX2]"""
    start_by = state.log[0].payload.start_by
    was_started = any(event.type is EventType.STARTED for event in state.log)
    waits = state.job.status is JobStatus.QUEUED or (
        state.job.status is JobStatus.STALLED and state.job.policy.on_lost is OnLost.RECLAIM
    )
    return start_by is not None and waits and state.now >= start_by and not was_started


def is_valid(state: State, grip: Grip) -> bool:
    """Whether a lease carries authority, from everything the outside knows."""
    return (
        state.job.lease_id == grip.id
        and not grip.is_settled
        and grip.lost_by is None
        and grip.epoch == state.epoch
        and ended_by(state.job, state.now) is None
    )


# --- Workers' requests --------------------------------------------------------------------------


def expected_verdict(state: State, grip: Grip, action: str) -> tuple[VerdictKind, Cause | None]:
    """The response tables [R10] to [R21], for a caller who owns the lease."""
    if grip.is_settled:
        return _of_settled(grip, action)
    if grip.epoch < state.epoch:
        return VerdictKind.CANCELLED, Cause.EPOCH_CHANGED
    if grip.lost_by is not None:
        return VerdictKind.CANCELLED, _of_lost(state.job.status, grip.lost_by)
    ended = ended_by(state.job, state.now)
    if ended is not None:
        return VerdictKind.CANCELLED, ended
    if action == "take back" and state.job.cancel_requested_at is not None:
        return VerdictKind.REJECTED, Cause.ALREADY_STARTED
    if action in SETTLES or action == "take back":
        return VerdictKind.COMMITTED, None
    if action in STARTS and grip.started_by not in ("", action):
        return VerdictKind.REJECTED, Cause.ALREADY_STARTED
    return VerdictKind.OK, None


def _of_settled(grip: Grip, action: str) -> tuple[VerdictKind, Cause | None]:
    if action in STARTS:
        return VerdictKind.REJECTED, Cause.LEASE_SETTLED
    if action not in SETTLES:
        return VerdictKind.OK, None
    if action == grip.report:
        return VerdictKind.COMMITTED, None
    if "complete again" in (action, grip.report):  # the only one with a request id of its own
        return VerdictKind.REJECTED, Cause.DUPLICATE_COMPLETION
    return VerdictKind.REJECTED, Cause.IDEMPOTENCY_KEY_REUSE


def _of_lost(status: JobStatus, lost_by: Cause) -> Cause:
    if status is JobStatus.CANCELLED:
        return Cause.JOB_CANCELLED
    if status is JobStatus.DEAD_LETTERED:
        return Cause.JOB_DEAD_LETTERED
    is_waiting = status in (JobStatus.QUEUED, JobStatus.STALLED)
    return lost_by if is_waiting else Cause.SUPERSEDED


def judge_verdict(state: State, grip: Grip, action: str, outcome: Outcome) -> Iterator[Violation]:
    """What the owner of a lease hears, and whether it was allowed to change anything."""
    answer = getattr(outcome, "answer", None)
    if not isinstance(answer, Verdict):
        yield Violation("verdict", f"{action} was answered with {answer}")
        return
    kind, cause = expected_verdict(state, grip, action)
    if (answer.kind, answer.cause) != (kind, cause):
        wrong = "verdict"
        if kind is VerdictKind.CANCELLED and answer.kind is VerdictKind.COMMITTED:
            wrong = "late-accept"
        elif kind is VerdictKind.CANCELLED and answer.kind is VerdictKind.OK:
            wrong = "dead-start" if action in STARTS else "dead-heartbeat"
        yield Violation(
            wrong, f"{action} heard {answer.kind} ({answer.cause}), not {kind} ({cause})"
        )
    accepted = answer.kind in (VerdictKind.COMMITTED, VerdictKind.OK)
    if grip.heard_cancelled and accepted:
        yield Violation("reversed", f"{action} heard {answer.kind} after CANCELLED [R4]")
    if isinstance(outcome, Applied) and not is_valid(state, grip):
        yield Violation("late-accept", f"{action} changed the job without authority")
    yield from _replays(grip, action, answer)
    yield from _bounded_ttl(state, outcome, answer)
    if isinstance(outcome, Refused) and answer.kind is VerdictKind.CANCELLED:
        must = action in SETTLES and action not in ("release", "snooze")
        if must != (outcome.observation is not None):
            yield Violation("observation", f"{action} was refused and left {outcome.observation}")


def _replays(grip: Grip, action: str, answer: Verdict) -> Iterator[Violation]:
    if answer.kind is not VerdictKind.COMMITTED or not grip.is_settled:
        return
    told = grip.answer
    assert told is not None
    first = (told.job_status, told.disposition, told.run_at)
    if (answer.job_status, answer.disposition, answer.run_at) != first or not answer.replayed:
        yield Violation("replay", f"{action} heard {answer}, but first {told} [R15]")


def _bounded_ttl(state: State, outcome: Outcome, answer: Verdict) -> Iterator[Violation]:
    """The ttl of an OK is what is left of the lease, never more. [L8]"""
    if answer.kind is not VerdictKind.OK or answer.settled:
        return
    job = outcome.change.job if isinstance(outcome, Applied) else state.job
    if job.due_at is None or answer.ttl_us != max(0, job.due_at - state.now):
        yield Violation("ttl", f"ttl {answer.ttl_us} at {state.now} of a lease due {job.due_at}")
    if (answer.cancel is not None) != (job.cancel_requested_at is not None):
        yield Violation("directive", f"cancel directive {answer.cancel}")


def judge_stranger(state: State, grip: Grip, outcome: Outcome) -> Iterator[Violation]:
    """Another principal under somebody's lease. [R2] [R6] [R16]"""
    answer = getattr(outcome, "answer", None)
    cause = Cause.INVALID_LEASE if grip.epoch == state.epoch else Cause.EPOCH_CHANGED
    ok = isinstance(answer, Verdict) and answer.cause is cause
    if isinstance(outcome, Applied) or not ok:
        yield Violation("stranger", f"a stranger's report heard {answer}")


# --- People's requests --------------------------------------------------------------------------


def expected_reply(state: State, action: str) -> tuple[bool, Cause | None]:
    """Whether a client's or operator's request changes the job, and why it is refused. [Q4] [Q5]"""
    status = state.job.status
    if action in state.asked:
        return False, None
    if action.startswith("requeue"):
        if status is JobStatus.STALLED:
            return True, None
        return False, Cause.JOB_FINISHED if status.is_terminal else Cause.NOT_HELD
    if action == "stall":
        if status.is_leased or status is JobStatus.STALLED:
            return status.is_leased, None
        return False, Cause.JOB_FINISHED if status.is_terminal else Cause.NOT_LEASED
    if status.is_terminal:
        was_cancel = action.endswith("cancel") and status is JobStatus.CANCELLED
        return False, None if was_cancel else Cause.JOB_FINISHED
    if action.endswith("cancel") and state.job.compensates is not None:
        return False, Cause.COMPENSATION_PROTECTED
    if action == "soft cancel" and state.cancel_heard:
        return False, None
    return True, None


def judge_reply(state: State, action: str, outcome: Outcome) -> Iterator[Violation]:
    """What a client or an operator hears."""
    answer = getattr(outcome, "answer", None)
    if not isinstance(answer, Reply):
        yield Violation("reply", f"{action} was answered with {answer}")
        return
    changes, cause = expected_reply(state, action)
    if isinstance(outcome, Applied) != changes or answer.cause != cause:
        yield Violation("reply", f"{action} heard {answer.cause}, changed: {not changes}")
    elif action in state.asked and not answer.replayed:
        yield Violation("reply", f"{action} was asked before and not replayed [Q4]")


# --- Changes ------------------------------------------------------------------------------------


def expected_status(state: State, action: str, *, has_outage: bool) -> JobStatus:
    """Where an accepted request leads, by the transition table."""
    job = state.job
    exhausts = job.failures + expected_cost(state, action, has_outage=has_outage) >= (
        job.policy.max_attempts
    )
    is_asked_to_stop = job.cancel_requested_at is not None
    match action:
        case "parent succeeds":
            return JobStatus.QUEUED
        case "parent fails":
            return JobStatus.CANCELLED
        case "claim":
            return JobStatus.CLAIMED
        case "start" | "start again" | "start as claimed":
            return JobStatus.RUNNING
        case "heartbeat 1" | "heartbeat 2":
            return job.status
        case "complete" | "complete again":
            return JobStatus.SUCCEEDED
        case "invalid" | "bury" | "dead-letter":
            return JobStatus.DEAD_LETTERED
        case "fail for good":
            return JobStatus.FAILED if job.compensates is None else JobStatus.DEAD_LETTERED
        case "hard cancel":
            return JobStatus.CANCELLED
        case "soft cancel":
            is_running = job.status is JobStatus.RUNNING
            return JobStatus.RUNNING if is_running else JobStatus.CANCELLED
        case _ if is_asked_to_stop or (action.startswith("sweep") and is_expired(state)):
            return JobStatus.CANCELLED
        case "stall":
            return JobStatus.STALLED
        case "fail" if exhausts:
            may_fail = job.policy.on_exhausted is OnExhausted.FAIL and job.compensates is None
            return JobStatus.FAILED if may_fail else JobStatus.DEAD_LETTERED
        case _ if exhausts:
            return JobStatus.DEAD_LETTERED
        case _ if action.startswith("sweep") and job.policy.on_lost is not OnLost.REQUEUE:
            return JobStatus.STALLED
        case _:
            return JobStatus.QUEUED


def expected_cost(state: State, action: str, *, has_outage: bool) -> int:
    """What an accepted request takes from the retry budget. [A13] [A4] [A7] [O10] [O12] [O3]"""
    job = state.job
    if action == "fail":
        return int(job.cancel_requested_at is None)
    if action == "release":
        return int(job.cancel_requested_at is None and job.releases >= job.policy.max_releases)
    if not action.startswith("sweep") or is_expired(state):
        return 0
    ended = ended_by(job, state.now)
    if ended is Cause.JOB_CANCELLED:
        return 0
    is_excused = (has_outage and ended is Cause.LEASE_EXPIRED) or action == "sweep after a jump"
    is_credited = is_excused and job.outage_credits < CREDITS
    is_of_earlier_epoch = state.grips[-1].epoch < state.epoch
    return int(not is_credited and not is_of_earlier_epoch)


def judge_change(
    state: State, action: str, command: Command, outcome: Applied
) -> Iterator[Violation]:
    """Everything that must hold between a row and the row a decision makes of it."""
    before, after = state.job, outcome.change.job
    for text in row_violations(after):
        yield Violation("row", text)
    yield from _path(before, outcome)
    has_outage = isinstance(command, Sweep) and bool(command.outages)
    starts = action in STARTS or (isinstance(command, Claim) and command.start)
    wanted = expected_status(state, action, has_outage=has_outage)
    if action == "claim" and starts:
        wanted = JobStatus.RUNNING
    if after.status is not wanted:
        yield Violation("target", f"{action} leads to {after.status}, not {wanted}")
    cost = expected_cost(state, action, has_outage=has_outage)
    if after.failures != before.failures + cost:
        yield Violation("failures", f"{before.failures} + {cost} became {after.failures}")
    yield from _budget(before, after)
    grants = 1 if action == "claim" else 0
    if after.attempt != before.attempt + grants:
        yield Violation("attempt", f"{action}: attempt {before.attempt} became {after.attempt}")
    if action == "claim":
        yield from _grant(state, outcome)
    if action == "hard cancel" and (after.lease_id, after.owner, after.due_at) != (None,) * 3:
        yield Violation("hard-cancel", f"lease {after.lease_id} survived a hard cancel")
    yield from _cancelled(state, before, after)
    yield from _starts(before, action, outcome, starts=starts)
    yield from _deadlines(state, action, outcome, starts=starts)
    yield from _spawns(before, outcome)


def _path(before: Job, outcome: Applied) -> Iterator[Violation]:
    change, here = outcome.change, before.status
    for offset, event in enumerate(change.events, start=1):
        if (here, event.type, event.to_status) not in EDGES or event.from_status is not here:
            yield Violation("edge", f"{event.from_status} -{event.type}-> {event.to_status}")
        if event.seq != before.rev + offset:
            yield Violation("rev", f"event {offset} after rev {before.rev} has seq {event.seq}")
        here = event.to_status
    path = tuple((event.type, event.to_status) for event in change.events)
    if not allows(outcome.rule, before.status, path):
        yield Violation("edge", f"{outcome.rule} does not lead from {before.status} by {path}")
    if here is not change.job.status:
        yield Violation("edge", f"the events lead to {here}, the row is {change.job.status}")
    if change.expected_rev != before.rev or change.job.rev != before.rev + len(change.events):
        yield Violation("rev", f"rev {before.rev} + {len(change.events)} is {change.job.rev}")
    if before.status.is_terminal:
        yield Violation("terminal", f"a {before.status} job was changed by {outcome.rule}")


def _budget(before: Job, after: Job) -> Iterator[Violation]:
    limit = before.policy.max_attempts
    if after.failures > limit:
        yield Violation("exhaustion", f"{after.failures} failures of {limit}")
    if after.failures >= limit and not after.status.is_terminal:
        yield Violation("exhaustion", f"exhausted and {after.status}")
    if after.outage_credits > CREDITS:
        yield Violation("credits", f"{after.outage_credits} outage credits")


def _grant(state: State, outcome: Applied) -> Iterator[Violation]:
    job, answer = state.job, outcome.answer
    may = job.status is JobStatus.QUEUED or (
        job.status is JobStatus.STALLED and job.policy.on_lost is OnLost.RECLAIM
    )
    if not may or job.run_at is None or job.run_at > state.now:  # here no clock is set back
        yield Violation("grant", f"granted while {job.status}, run_at {job.run_at}")
    if is_expired(state):
        yield Violation("expired", "granted after its time to be started [EX2]")
    if state.cancel_heard or job.cancel_requested_at is not None:
        yield Violation("cancel", "granted after its cancellation was acknowledged [I14]")
    lease_id = outcome.change.job.lease_id
    if any(grip.id == lease_id for grip in state.grips):
        yield Violation("grant", f"lease {lease_id} was granted twice")
    if not isinstance(answer, Grant) or answer.lease_id != lease_id:
        yield Violation("grant", f"the claim heard {answer}")
    elif answer.fence != fence(state.epoch, len(state.grips) + 1):  # type: ignore[arg-type]  # the model counts epochs as plain integers
        yield Violation("attempt", f"fence {answer.fence} of grant {len(state.grips) + 1} [A6]")


def _cancelled(state: State, before: Job, after: Job) -> Iterator[Violation]:
    was_asked = before.cancel_requested_at is not None or bool(state.cancel_heard)
    if was_asked and after.status is JobStatus.QUEUED:
        yield Violation("cancel", "queued again although its cancellation was requested [I15]")
    kept = (before.cancel_requested_at, before.cancel_deadline)
    if kept[0] is not None and (after.cancel_requested_at, after.cancel_deadline) != kept:
        yield Violation("cancel", "a cancel request was moved or forgotten [N3]")


def _starts(before: Job, action: str, outcome: Applied, *, starts: bool) -> Iterator[Violation]:
    started = [event for event in outcome.change.events if event.type is EventType.STARTED]
    reports = action in SETTLES and action not in ("release", "snooze")
    is_implicit = reports and before.status is JobStatus.CLAIMED
    if [event.cause for event in started] != (
        [EventCause.IMPLICIT] if is_implicit else [None] if starts else []
    ):
        yield Violation("implicit-start", f"{action} while {before.status} recorded {len(started)}")


def _deadlines(state: State, action: str, outcome: Applied, *, starts: bool) -> Iterator[Violation]:
    """[L16]: claim, start and newer heartbeats set the expiry; nothing else moves it."""
    before, after = state.job, outcome.change.job
    if not after.status.is_leased:
        return
    renews = action == "claim" or starts or action.startswith("heartbeat")
    expiry = state.now + before.policy.lease_us if renews else before.lease_expires_at
    claimed_at = state.now if action == "claim" else before.claimed_at
    started_at = state.now if starts else before.started_at
    if (after.lease_expires_at, after.claimed_at, after.started_at) != (
        expiry,
        claimed_at,
        started_at,
    ):
        yield Violation("deadline", f"{action} moved a deadline it must not move")


def _spawns(before: Job, outcome: Applied) -> Iterator[Violation]:
    after = outcome.change.job
    wanted = (
        after.status in BAD_ENDS
        and before.was_started
        and before.policy.compensation is not None
        and before.compensates is None
    )
    if len(outcome.change.spawned) != int(wanted):
        yield Violation("spawn", f"{len(outcome.change.spawned)} compensations on {after.status}")
    undone = after.status is JobStatus.SUCCEEDED and before.compensates is not None
    if bool(outcome.change.observations) != undone:
        yield Violation("spawn", f"observations {outcome.change.observations}")


# --- States -------------------------------------------------------------------------------------


def judge_state(state: State) -> Iterator[Violation]:
    """What must hold in a state, whoever brought it about."""
    job = state.job
    for text in row_violations(job):
        yield Violation("row", text)
    if job.attempt != len(state.grips):
        yield Violation("attempt", f"attempt {job.attempt} after {len(state.grips)} grants [I7]")
    heirs = [grip for grip in state.grips if _could_commit(state, grip)]
    if len(heirs) > 1:
        yield Violation("authority", f"leases {[grip.number for grip in heirs]} could all report")
    if heirs and not is_valid(state, heirs[0]):
        yield Violation("late-accept", f"dead lease {heirs[0].number} could still report")
    if state.cancel_heard == "done" and job.status is not JobStatus.CANCELLED:
        yield Violation("cancel", f"{job.status} after its cancellation was acknowledged")
    waits = job.status in (JobStatus.QUEUED, JobStatus.CLAIMED, JobStatus.STALLED)
    if state.cancel_heard == "pending" and waits:
        yield Violation("cancel", f"{job.status} although its cancellation was requested [I15]")
    for grip in state.grips:
        told = grip.answer.disposition if grip.answer is not None else None
        is_final = told not in (None, Disposition.RETRY_SCHEDULED, Disposition.RELEASED)
        if told is not None and is_final and job.status.value != told.value:
            yield Violation("terminal", f"{job.status} after {told} was acknowledged")


def _could_commit(state: State, grip: Grip) -> bool:
    probe = saying("complete", state.job.id, grip.id, grip.principal)
    return isinstance(ask(state, probe), Applied)


def stranger_to(grip: Grip, actors: tuple[Actor, ...]) -> Actor:
    """A worker that does not own the lease."""
    return next(actor for actor in actors if actor not in (grip.principal, SYSTEM))


def judge_redrive(state: State, outcome: Outcome) -> Iterator[Violation]:
    """A finished job can be had again, as another job; a live one, or one of a flow, cannot. [T27]
    [FL12]"""
    if not state.job.status.is_terminal or state.job.flow_id is not None:
        if isinstance(outcome, Applied):
            yield Violation("redrive", f"redriven while {state.job.status}")
        return
    if not isinstance(outcome, Applied) or outcome.change.job.id == state.job.id:
        yield Violation("redrive", f"a finished job's redrive heard {outcome}")


def judge_unblock(state: State, outcome: Outcome) -> Iterator[Violation]:
    """The end of a parent moves a job that waits, and no other. [T28] [T29]"""
    waits = state.job.status is JobStatus.WAITING
    if isinstance(outcome, Applied) != waits or not isinstance(outcome, Applied | Replayed):
        yield Violation("unblock", f"{state.job.status}, outcome {type(outcome).__name__}")


def judge_sweep(state: State, outcome: Outcome) -> Iterator[Violation]:
    """A sweep records a deadline exactly when one has passed. [W1]"""
    is_due = state.job.status.is_leased and ended_by(state.job, state.now) is not None
    is_due = is_due or is_expired(state)
    if isinstance(outcome, Applied) != is_due or not isinstance(outcome, Applied | Replayed):
        yield Violation("sweep", f"due: {is_due}, outcome {type(outcome).__name__}")
