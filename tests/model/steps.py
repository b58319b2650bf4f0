"""Steps: everything that can happen next in a state, each judged as it is taken.

With an open network (`in_flight` None) every request whose sender was ever able to send it may
arrive now: delay, loss, reordering and any number of duplicates are the same thing there, because
a request that may come at any time may also come late, twice or never. With a bounded network
requests are sent, fly, arrive once or more, or get lost, and worker processes believe only what
they were told. In a racy configuration a decision can also reach the store later than it was made.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from msgspec.structs import replace

from tenure.core.commands import Claim, Command
from tenure.core.ids import SYSTEM, Actor, Fingerprint, RequestId, WorkerId
from tenure.core.instants import Instant
from tenure.core.outcomes import Applied, Change, Outcome, Session, SessionKey
from tenure.core.transitions import BY_ID
from tenure.core.verdicts import Grant, Verdict
from tenure.core.vocabulary import Cause, EventType, JobStatus, VerdictKind
from tests.model import world
from tests.model.properties import (
    Violation,
    ended_by,
    judge_change,
    judge_redrive,
    judge_reply,
    judge_stranger,
    judge_sweep,
    judge_unblock,
    judge_verdict,
    stranger_to,
)
from tests.model.world import (
    PEOPLE,
    SETTLES,
    START_AS_CLAIMED,
    STARTS,
    WORKERS,
    Belief,
    Bounds,
    Grip,
    Message,
    Proposal,
    State,
    ask,
    asking,
    saying,
)

MAX_SAVE_DELAY = 2  # ticks between a decision and its write in a racy configuration
PARENT_ENDS = ("parent succeeds", "parent fails")
HELPLESS = PEOPLE | {"crash"}

_SECOND_HALF = {
    (EventType.STALLED, EventType.REQUEUED): "T14",
    (EventType.STALLED, EventType.DEAD_LETTERED): "T15",
    (EventType.STALLED, EventType.CANCELLED): "T16",
}


class Step(NamedTuple):
    """One thing that happened: what it is called, where it led, and what was wrong with it."""

    label: str
    state: State
    wrong: list[Violation]
    is_helpful: bool  # done by time, the system or workers; not by people, nor by a crash


def rows_of(change: Change, rule: str) -> Iterator[str]:
    """The rows of the table that a change goes along, those of its second half included."""
    yield rule
    types = [event.type for event in change.events]
    for pair in pairwise(types):
        if rule != "T8" and pair in _SECOND_HALF:
            yield _SECOND_HALF[pair]
    if change.observations:
        yield "T24"


class Stepper:
    """Takes every step of one configuration and remembers which rows of the table it used."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.rows: set[str] = set()
        self.transitions = 0

    def steps(self, state: State) -> Iterator[Step]:
        """Everything that can happen in `state`; steps that lead nowhere new included."""
        yield self._step("tick", self._ticked(state), [])
        yield from self._system(state)
        for action in self.bounds.asked:
            yield from self._asked(state, action)
        if self.bounds.is_bounded:
            yield from self._bounded(state)
        else:
            yield from self._open(state)
        if state.proposal is not None:
            yield self._saved(state, state.proposal)

    def _step(self, label: str, state: State, wrong: list[Violation]) -> Step:
        self.transitions += 1
        return Step(label, state, wrong, label.partition(" ->")[0] not in HELPLESS)

    # --- Time and the system --------------------------------------------------------------------

    def _ticked(self, state: State) -> State:
        now = Instant(state.now + 1)
        proposal = state.proposal
        if proposal is not None and now - proposal.decided_at > MAX_SAVE_DELAY:
            proposal = None
        return replace(state, now=now, proposal=proposal)

    def _system(self, state: State) -> Iterator[Step]:
        sweeps = ["sweep"]
        if state.outages < self.bounds.outages:
            sweeps += ["sweep after an outage", "sweep after a jump"]
        for action in sweeps:
            command = asking(action, state.job.id)
            outcome = ask(state, command)
            yield from self._decided(
                state, action, 0, command, outcome, list(judge_sweep(state, outcome))
            )
        for action in PARENT_ENDS if self.bounds.waits else ():
            command = asking(action, state.job.id)
            outcome = ask(state, command)
            wrong = list(judge_unblock(state, outcome))
            yield from self._decided(state, action, 0, command, outcome, wrong)
        if state.epoch < self.bounds.epochs:
            yield self._step("raise epoch", replace(state, epoch=state.epoch + 1), [])
        if state.job.status.is_terminal:
            outcome = ask(state, asking("redrive", state.job.id))
            self.rows.add("T27")
            yield self._step("redrive", state, list(judge_redrive(state, outcome)))

    def _asked(self, state: State, action: str) -> Iterator[Step]:
        command = asking(action, state.job.id)
        outcome = ask(state, command)
        wrong = list(judge_reply(state, action, outcome))
        yield from self._decided(state, action, 0, command, outcome, wrong)

    # --- An open network ------------------------------------------------------------------------

    def _open(self, state: State) -> Iterator[Step]:
        # Nothing tells the workers apart before the first grant: it is Ann's.
        for actor in WORKERS[: 1 if state.job.attempt == 0 else 2]:
            yield from self._claimed(state, actor, WorkerId(actor), len(state.grips) + 1)
        for grip in state.grips:
            for action in (*self.bounds.starts, *self.bounds.renews, *self.bounds.reports):
                yield from self._told(state, grip, action)
            if state.snoozes < self.bounds.snoozes:
                yield from self._told(state, grip, "snooze")
        if state.grips:
            grip = state.grips[-1]
            is_unstarted = grip.started_by in ("", START_AS_CLAIMED)
            is_fresh = state.job.lease_id == grip.id and is_unstarted and state.job.hb_seq == 0
            if state.undelivered < self.bounds.undelivered and is_fresh:
                yield from self._told(state, grip, "take back")
            intruder = saying("complete", state.job.id, grip.id, stranger_to(grip, WORKERS))
            wrong = list(judge_stranger(state, grip, ask(state, intruder)))
            yield self._step("a stranger reports", state, wrong)

    def _told(self, state: State, grip: Grip, action: str) -> Iterator[Step]:
        """A worker's request under a lease arrives."""
        actor = SYSTEM if action == "take back" else grip.principal
        command = saying(action, state.job.id, grip.id, actor)
        outcome = ask(state, command)
        wrong = list(judge_verdict(state, grip, action, outcome))
        yield from self._decided(state, action, grip.number, command, outcome, wrong)

    def _claimed(
        self, state: State, actor: Actor, worker: WorkerId, claim_seq: int
    ) -> Iterator[Step]:
        for label, after, _, wrong in self._claim(state, actor, worker, claim_seq):
            yield self._step(label, after, wrong)

    def _claim(
        self, state: State, actor: Actor, worker: WorkerId, claim_seq: int
    ) -> Iterator[tuple[str, State, int | None, list[Violation]]]:
        """A claim arrives: label, state, what it heard, complaints. It hears a lease's number, 0 if
        it was answered before and its lease has ended, or None: nothing is ready."""
        starts = self.bounds.claims_start
        request = world.claim_request(actor, worker, claim_seq, start=starts)
        plan = world.plan(state, request)
        answer = plan.answers[0]
        label = f"{worker} claims ({claim_seq})"
        if answer.is_repeat:
            grant = world.repeated_grant(state, request)
            yield f"{label} -> again", state, 0 if grant is None else grant.attempt, []
            return
        if not plan.changes:
            yield f"{label} -> {answer.cause or 'nothing'}", state, None, []
            return
        change, grant = plan.changes[0], answer.grants[0]
        rule = "T22" if state.job.status is JobStatus.STALLED else "T2"
        outcome = Applied(rule=rule, change=change, answer=grant)
        command = Claim(
            job_id=state.job.id,
            actor=actor,
            owner=worker,
            request_id=RequestId("claim"),
            fingerprint=Fingerprint(""),
            start=starts,
        )
        wrong = list(judge_change(state, "claim", command, outcome))
        after = self._applied(state, "claim", 0, outcome)
        if self.bounds.is_bounded:
            after = replace(after, sessions=_remembered(state, plan.sessions))
        yield f"{label} -> lease {grant.attempt}", after, len(after.grips), wrong

    # --- Decisions and the store ----------------------------------------------------------------

    def _decided(
        self,
        state: State,
        action: str,
        number: int,
        command: Command,
        outcome: Outcome,
        wrong: list[Violation],
    ) -> Iterator[Step]:
        """What follows from a decision: at once, or, in a racy configuration, some time later."""
        label = _label(action, number, outcome)
        if not isinstance(outcome, Applied):
            if state.job.status.is_terminal:
                self.rows.add("T25")
            yield self._step(label, _heard(state, number, outcome), wrong)
            return
        wrong += judge_change(state, action, command, outcome)
        yield self._step(label, self._applied(state, action, number, outcome), wrong)
        if self.bounds.is_racy and state.proposal is None:
            proposal = Proposal(
                action=action,
                number=number,
                decided_at=state.now,
                epoch=state.epoch,
                outcome=outcome,
                command=command,
            )
            yield self._step(f"{label} is decided", replace(state, proposal=proposal), [])

    def _saved(self, state: State, proposal: Proposal) -> Step:
        """A decision reaches the store: it sticks iff nothing has moved and time is left. [K1] [K2]

        A proposal that another change has overtaken is dropped where that change is applied.
        """
        label = f"{_label(proposal.action, proposal.number, proposal.outcome)} is saved"
        change = proposal.outcome.change
        assert change.expected_rev == state.job.rev
        is_late = change.not_after is not None and state.now >= change.not_after
        if is_late or proposal.epoch != state.epoch:
            return self._step(f"{label} -> refused", replace(state, proposal=None), [])
        wrong = []
        if proposal.number and ended_by(state.job, state.now) is not None:
            wrong.append(Violation("late-accept", "written after the lease had ended [K2]"))
        then = replace(state, now=proposal.decided_at)
        after = self._applied(then, proposal.action, proposal.number, proposal.outcome)
        return self._step(label, replace(after, now=state.now), wrong)

    def _applied(self, state: State, action: str, number: int, outcome: Applied) -> State:
        """The world after a change, and what the outside now knows."""
        change = outcome.change
        self.rows.update(rows_of(change, outcome.rule))
        log, log_key = world.extended(state.log, state.log_key, change.events)
        cancel_heard = state.cancel_heard
        if action.endswith("cancel"):
            cancel_heard = "done" if change.job.status is JobStatus.CANCELLED else "pending"
        return replace(
            state,
            job=change.job,
            log=log,
            log_key=log_key,
            grips=_regripped(state, action, number, outcome),
            cancel_heard=cancel_heard,
            asked=(*state.asked, action) if action in PEOPLE else state.asked,
            snoozes=state.snoozes + (action == "snooze"),
            undelivered=state.undelivered + (action == "take back"),
            outages=state.outages + (action.startswith("sweep after")),
            proposal=None,
        )

    # --- A bounded network ----------------------------------------------------------------------

    def _bounded(self, state: State) -> Iterator[Step]:
        limit = self.bounds.in_flight
        assert limit is not None
        if len(state.flying) < limit:
            for index, belief in enumerate(state.beliefs):
                yield from self._sent(state, index, belief)
        for message in state.flying:
            yield self._step(f"{_name(message)} is lost", _without(state, message), [])
            yield from self._arrives(state, message)
        if state.crashes < self.bounds.crashes and not state.job.status.is_terminal:
            for index, belief in enumerate(state.beliefs):
                reborn = Belief(generation=belief.generation + 1)
                crashed = replace(_believing(state, index, reborn), crashes=state.crashes + 1)
                yield self._step("crash", crashed, [])

    def _sent(self, state: State, index: int, belief: Belief) -> Iterator[Step]:
        """What a worker process that keeps to the contract may send now."""
        wishes: list[tuple[str, Belief]] = []
        if belief.phase == "idle":
            if not state.job.status.is_terminal and (index == 0 or state.job.attempt > 0):
                wishes.append(("claim", belief))
        elif belief.phase == "reporting":
            wishes.append((belief.report, belief))
        else:
            if belief.phase == "held":
                wishes.append(("start", belief))
            wishes += [(action, belief) for action in self.bounds.renews]
            for action in self.bounds.reports:
                wishes.append((action, replace(belief, phase="reporting", report=action)))
        for action, after in wishes:
            number = belief.claim_seq if action == "claim" else belief.lease
            message = Message(index, belief.generation, number, action)
            if message not in state.flying:
                sent = replace(
                    _believing(state, index, after), flying=tuple(sorted((*state.flying, message)))
                )
                yield self._step(f"{_name(message)} is sent", sent, [])

    def _arrives(self, state: State, message: Message) -> Iterator[Step]:
        """A message arrives and may arrive again; its answer reaches its sender, or nobody."""
        for label, after, told, wrong in self._answered(state, message):
            named = f"{_name(message)} arrives: {label}"
            belief = state.beliefs[message.worker]
            wiser = belief
            if belief.generation == message.generation:
                phase = "running" if self.bounds.claims_start else "held"
                wiser = _wiser(belief, message, told, granted=phase)
            for is_copy in (False, True):
                there = after if is_copy else _without(after, message)
                yield self._step(named, there, wrong)
                if wiser != belief:
                    yield self._step(
                        f"{named}, and is heard", _believing(there, message.worker, wiser), wrong
                    )

    def _answered(
        self, state: State, message: Message
    ) -> Iterator[tuple[str, State, "Verdict | int | None", list[Violation]]]:
        actor = WORKERS[message.worker]
        if message.action == "claim":
            worker = WorkerId(f"{actor}.{message.generation}")
            yield from self._claim(state, actor, worker, message.number)
            return
        grip = state.grips[message.number - 1]
        command = saying(message.action, state.job.id, grip.id, actor)
        outcome = ask(state, command)
        wrong = list(judge_verdict(state, grip, message.action, outcome))
        answer = getattr(outcome, "answer", None)
        assert isinstance(answer, Verdict)
        for step in self._decided(state, message.action, grip.number, command, outcome, wrong):
            yield step.label, step.state, answer, step.wrong


def _label(action: str, number: int, outcome: Outcome) -> str:
    answer = getattr(outcome, "answer", None)
    where = f"lease {number}: {action}" if number else action
    if isinstance(answer, Verdict):
        return f"{where} -> {answer.kind}" + (f" ({answer.cause})" if answer.cause else "")
    return f"{where} -> {type(outcome).__name__.lower()}"


def _name(message: Message) -> str:
    who = WORKERS[message.worker].partition(":")[2]
    return f"{who}.{message.generation}'s {message.action} ({message.number})"


def _heard(state: State, number: int, outcome: Outcome) -> State:
    """A refusal changes nothing but what its caller has heard."""
    answer = getattr(outcome, "answer", None)
    if not number or not isinstance(answer, Verdict) or answer.kind is not VerdictKind.CANCELLED:
        return state
    grip = state.grips[number - 1]
    if grip.heard_cancelled:
        return state
    return replace(state, grips=_with(state.grips, replace(grip, heard_cancelled=True)))


def _with(grips: tuple[Grip, ...], grip: Grip) -> tuple[Grip, ...]:
    return (*grips[: grip.number - 1], grip, *grips[grip.number :])


def _regripped(state: State, action: str, number: int, outcome: Applied) -> tuple[Grip, ...]:
    """What the outside knows of the leases after a change: from requests and answers only."""
    answer = outcome.answer
    if isinstance(answer, Grant):
        job, count = outcome.change.job, len(state.grips)
        assert job.principal is not None
        assert job.owner is not None
        fresh = Grip(
            number=count + 1,
            id=answer.lease_id,
            principal=job.principal,
            owner=job.owner,
            epoch=state.epoch,
            started_by=START_AS_CLAIMED if answer.is_started else "",
        )
        return (*state.grips, fresh)
    if number and action in SETTLES:
        assert isinstance(answer, Verdict)
        grip = replace(state.grips[number - 1], is_settled=True, report=action, answer=answer)
    elif number and action in STARTS:
        grip = replace(state.grips[number - 1], started_by=action)
    elif state.job.status.is_leased and not action.startswith(("heartbeat", "soft cancel")):
        grip = replace(state.grips[-1], lost_by=_loss(state, action))
    elif action == "soft cancel" and state.job.status is JobStatus.CLAIMED:
        grip = replace(state.grips[-1], lost_by=Cause.REVOKED)
    else:
        return state.grips
    return _with(state.grips, grip)


def _loss(state: State, action: str) -> Cause:
    ended = ended_by(state.job, state.now) if action.startswith("sweep") else None
    return ended or Cause.REVOKED


def _remembered(state: State, news: tuple[Session, ...]) -> tuple[tuple[SessionKey, Session], ...]:
    sessions = dict(state.sessions) | {session.key: session for session in news}
    return tuple(sorted(sessions.items(), key=lambda item: item[0].worker))


def _without(state: State, message: Message) -> State:
    return replace(state, flying=tuple(other for other in state.flying if other != message))


def _believing(state: State, index: int, belief: Belief) -> State:
    beliefs = (*state.beliefs[:index], belief, *state.beliefs[index + 1 :])
    return replace(state, beliefs=beliefs)


def _wiser(
    belief: Belief, message: Message, told: "Verdict | int | None", *, granted: str
) -> Belief:
    """What a worker process believes once it has heard an answer it still waits for. `granted` is
    the phase that a grant begins with."""
    free = replace(belief, phase="idle", lease=0, report="")
    if message.action == "claim":
        if belief.phase != "idle" or belief.claim_seq != message.number:
            return belief
        assert not isinstance(told, Verdict)
        if told is None:
            return belief
        if told == 0:  # the grant it asks about is gone: only a new claim can help
            return replace(belief, claim_seq=belief.claim_seq + 1)
        return replace(belief, phase=granted, lease=told, claim_seq=belief.claim_seq + 1)
    if belief.lease != message.number:
        return belief
    assert isinstance(told, Verdict)
    if message.action == "start" and told.kind is VerdictKind.OK:
        return replace(belief, phase="running") if belief.phase == "held" else belief
    if told.kind is VerdictKind.OK:
        return free if told.settled else belief
    return free


assert set(_SECOND_HALF.values()) <= set(BY_ID)
