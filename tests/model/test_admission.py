"""Two claimers that decide about one key, exhaustively: every order of their statements with
claims, enqueues, ends of attempts, crashes and steps of the clock in between.

The real core decides, on what the SQL stores would show it. Deciding is several statements under
the lock of the kind's keys: marks are taken, the jobs of their keys are read, and what was decided
is written. Everything else commits at any moment, without that lock; a claim under a rate holds
the rule of its kind, and so is one step here (docs/adr/0095).
"""

from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

from tenure.core.concurrency import Key, KeyedJob, KeyRules, admit
from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.instants import Instant
from tenure.core.job import AT_ONCE, Job
from tenure.core.kind_settings import KindSettings
from tenure.core.rates import NOTHING_GRANTED, Rate, parse_rate
from tenure_conformance.spec import spec
from tests.core.test_rates import most_in_any_window
from tests.model.two_claimers import KIND, NOBODY, NOW, QUEUE, explored, ready_job

Jobs = frozenset[int]
Mark = tuple[int, int]
"""When the key must be decided about, and when that was written if a claim wrote it."""
NONE: Jobs = frozenset()
MOST_GRANTS = 3


class Decider(msgspec.Struct, frozen=True):
    """How far a claimer is, and what it has read."""

    step: str = "take"
    taken: frozenset[Mark] = frozenset()
    parked: Jobs = NONE
    admitted: Jobs = NONE
    uses: int | None = None
    now: Instant = NOW


class State(msgspec.Struct, frozen=True):
    """What is committed, and how far each claimer is. Jobs are numbers, in claim order."""

    absent: Jobs
    parked: Jobs = NONE
    admitted: Jobs = NONE
    live: Jobs = NONE
    marks: frozenset[Mark] = frozenset()
    now: Instant = NOW
    ticks: int = 0
    tat: Instant = NOTHING_GRANTED
    log: tuple[Instant, ...] = ()
    locked_by: int = NOBODY
    deciders: tuple[Decider, Decider] = (Decider(), Decider())


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The rule of a key, and what may happen."""

    jobs: int = 3
    limit: int = 1
    rate: Rate | None = None
    clock: tuple[int, ...] = ()  # seconds
    has_lock: bool = True
    marks_grants: bool = True

    @property
    def key(self) -> Key:
        return Key(KIND, self.rate is not None, "42")

    def rules(self, now: Instant) -> KeyRules:
        settings = KindSettings(kind=KIND, rate=self.rate, concurrency_limit=self.limit)
        return KeyRules({Kind(KIND): settings}, now)

    def job(self, number: int) -> Job:
        of_rate = self.rate is not None
        return ready_job(
            number,
            concurrency_key=None if of_rate else self.key.key,
            rate_key=self.key.key if of_rate else None,
        )

    def states(self) -> set[State]:
        return explored(State(absent=frozenset(range(self.jobs))), self.following)

    def following(self, state: State) -> Iterator[State]:
        """Every state that one statement or one commit leads to."""
        at_once = state.marks | {(AT_ONCE, 0)}
        for number in state.absent:
            yield replace(
                state,
                absent=state.absent - {number},
                parked=state.parked | {number},
                marks=at_once,
            )
        for number in state.live:
            left = replace(state, live=state.live - {number}, marks=at_once)
            yield left
            if len(state.log) < MOST_GRANTS:
                yield replace(left, parked=state.parked | {number})
        if state.ticks < len(self.clock):
            later = Instant(state.now + self.clock[state.ticks] * 1_000_000)
            yield replace(state, now=later, ticks=state.ticks + 1)
        yield from self.claimed(state)
        for claimer in (0, 1):
            if not self.has_lock or state.locked_by in (NOBODY, claimer):
                yield self.decide(state, claimer)
                if state.deciders[claimer].step != "take":
                    yield self.crashed(state, claimer)

    def claimed(self, state: State) -> Iterator[State]:
        """After a claim of one admitted job: of any, because others may be locked."""
        for number in sorted(state.admitted):
            granted = replace(
                state,
                admitted=state.admitted - {number},
                live=state.live | {number},
                log=(*state.log, state.now) if self.rate is not None else (),
            )
            if self.rate is None:
                yield granted
            elif self.rate.room(state.tat, state.now):
                granted = replace(granted, tat=self.rate.after(state.tat, state.now))
                states = {self.key.meter: granted.tat}
                dirty = self.rules(state.now).dirtied_by_grant(self.job(number), states)
                marks = {(at, int(state.now)) for _, at in dirty} if self.marks_grants else set()
                yield replace(granted, marks=state.marks | marks)

    def crashed(self, state: State, claimer: int) -> State:
        """What a claimer has taken is there again."""
        own = state.deciders[claimer]
        state = replace(state, marks=state.marks | own.taken, locked_by=NOBODY)
        return _with(state, claimer, Decider())

    def decide(self, state: State, claimer: int) -> State:
        """The state after the next statement of a claimer."""
        own = state.deciders[claimer]
        match own.step:
            case "take":
                due = frozenset(each for each in state.marks if _is_due(each, state.now))
                if not due:
                    return state
                state = replace(state, marks=state.marks - due, locked_by=claimer)
                return _with(state, claimer, Decider("read", due))
            case "read":
                uses = len(state.live) if self.rate is None else state.tat
                read = Decider("write", own.taken, state.parked, state.admitted, uses, state.now)
                return _with(state, claimer, read)
            case _:
                return _with(
                    replace(self.written(state, own), locked_by=NOBODY), claimer, Decider()
                )

    def written(self, state: State, own: Decider) -> State:
        """What is decided on what was read, where that is still so."""
        rules, now = self.rules(own.now), own.now
        jobs = [_keyed(number, None) for number in sorted(own.parked)]
        jobs += [_keyed(number, now) for number in sorted(own.admitted)]
        decided = admit(jobs, rules.room(self.key, own.uses), now=now, queues={QUEUE})
        corrected = rules.corrected(self.key, own.uses)
        if corrected is not None and state.tat == own.uses:
            state = replace(state, tat=corrected)
        again = {(int(at), int(now)) for at in rules.again_at(self.key, own.uses, decided)}
        parked = {int(each) for each in decided.parked}
        admitted = {int(each) for each in decided.admitted}
        if not parked <= state.admitted or not admitted <= state.parked:
            return replace(state, marks=state.marks | again | {(AT_ONCE, int(now))})
        return replace(
            state,
            parked=state.parked - admitted | parked,
            admitted=state.admitted - parked | admitted,
            marks=state.marks | again,
        )

    def settled(self, state: State) -> State:
        """After both claimers have finished what they began, and claims have taken what they
        can."""
        for claimer in (0, 1):
            while state.deciders[claimer].step != "take":
                state = self.decide(state, claimer)
        while True:
            before = state
            state = self.decide(state, 0)
            while state.deciders[0].step != "take":
                state = self.decide(state, 0)
            state = next(self.claimed(state), state)
            if state == before:
                return state

    def strands(self, state: State) -> bool:
        """Whether a parked job is not granted though its key has room, now or in time."""
        state = self.settled(state)
        if self.rate is None:
            return bool(state.parked) and len(state.live) < self.limit
        while state.parked or state.admitted:
            later = replace(state, now=Instant(state.now + self.rate.interval_us), live=NONE)
            later = self.settled(later)
            if len(later.parked | later.admitted) == len(state.parked | state.admitted):
                return True
            state = later
        return False


def _with(state: State, claimer: int, own: Decider) -> State:
    one, other = state.deciders
    return replace(state, deciders=(own, other) if claimer == 0 else (one, own))


def _is_due(mark: Mark, now: Instant) -> bool:
    """One that a claim wrote later than now: the clock was set back."""
    return mark[0] <= now or mark[1] > now


def _keyed(number: int, admitted_at: Instant | None) -> KeyedJob:
    return KeyedJob(
        JobId(str(number)), QueueName(QUEUE), 0, NOW, Instant(AT_ONCE), None, admitted_at
    )


ONE, TWO = World(limit=1), World(limit=2)
RATED = World(jobs=2, rate=parse_rate("rate", "1/s", 1), clock=(1, 1))
BURST = World(jobs=2, rate=parse_rate("rate", "1/s", 2), clock=(1,))
SET_BACK = World(jobs=2, rate=parse_rate("rate", "1/s", 1), clock=(6, -6, 1))


@spec("CK3", "CK4", "CK10")
@pytest.mark.parametrize("world", [ONE, TWO], ids=["limit 1", "limit 2"])
def test_no_order_of_statements_passes_the_limit_or_strands_a_job(world: World) -> None:
    states = world.states()

    assert len(states) > 500
    assert all(len(state.live) + len(state.admitted) <= world.limit for state in states)
    assert not [state for state in states if world.strands(state)]


@spec("RL1", "RL11", "I30", "RL3", "CK10")
@pytest.mark.parametrize("world", [RATED, BURST, SET_BACK], ids=["rate", "burst", "set back"])
@pytest.mark.slow
def test_no_order_of_statements_exceeds_the_rate_of_a_key_or_strands_a_job(world: World) -> None:
    states = world.states()
    alike = {replace(state, log=(), ticks=0, absent=NONE) for state in states}

    assert len(states) > 500
    assert world.rate is not None
    if min(world.clock) > 0:
        for log in {state.log for state in states}:
            assert most_in_any_window(world.rate, list(log)) <= 0
    assert not [state for state in alike if world.strands(state)]


@spec("CK3")
@pytest.mark.slow
def test_without_the_lock_the_model_finds_two_jobs_of_one_key() -> None:
    states = replace(ONE, has_lock=False).states()

    assert any(len(state.live) + len(state.admitted) > 1 for state in states)


@spec("RL3", "RL11")
def test_without_a_mark_at_a_grant_the_model_finds_a_job_that_waits_for_ever() -> None:
    world = replace(RATED, marks_grants=False)

    assert any(world.strands(replace(state, log=())) for state in world.states())
