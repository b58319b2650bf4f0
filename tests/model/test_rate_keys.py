"""Two claimers on the rate keys of a kind, exhaustively: every order of their statements with
enqueues, jobs that are given back and steps of the clock in between.

The real planner decides, and the real rates say how many turns are open, on what the SQL stores
would show them. A claim is several statements under the lock of the group of the kind's rate keys,
each of which sees what has been committed by then, and the clock as it is by then; a job becomes
ready at any moment, without that lock (docs/adr/0069). Not in this model: jobs without a rate key,
jobs with a concurrency key as well, changes of the rate.
"""

from collections.abc import Iterator, Mapping, Set

import msgspec
import pytest
from msgspec.structs import replace

from tenure.core.claims import ClaimView, GrantRoom, QueueState, kind_meter, rate_key_turns
from tenure.core.ids import Epoch
from tenure.core.instants import Instant
from tenure.core.job import AT_ONCE, Job
from tenure.core.kind_settings import KindSettings
from tenure.core.rates import NOTHING_GRANTED, Rate, parse_rate
from tenure_conformance.spec import spec
from tests.core.test_rates import most_in_any_window
from tests.model.two_claimers import KIND, NOBODY, NOW, QUEUE, explored, plan_of_all, ready_job

MOST_GRANTS = 3
"""A job is given back only while there were fewer."""

NONE: frozenset[int] = frozenset()

Log = tuple[tuple[str, Instant], ...]
"""The grants in the order of their commits: of which rate key, and when."""


class Claimer(msgspec.Struct, frozen=True):
    """How far a claim is, and what it has read."""

    step: str = "lock"  # what it does next
    keys: frozenset[str] = frozenset()  # those whose turns it chooses again
    tats: frozenset[tuple[str, Instant]] = frozenset()  # where their rates stand
    now: Instant = NOW
    seen: frozenset[int] = frozenset()  # jobs, which it holds locked


class Note(msgspec.Struct, frozen=True):
    """The turns of this key must be chosen again at this time; with `noted_at`, for its rate."""

    key: str
    at: Instant = AT_ONCE
    noted_at: Instant = AT_ONCE


class State(msgspec.Struct, frozen=True):
    """What is committed, and how far each claimer is. Jobs are numbers, in claim order."""

    absent: frozenset[int]
    now: Instant = NOW
    ticks: int = 0
    ready: frozenset[int] = frozenset()
    live: frozenset[int] = frozenset()
    log: Log = ()
    tats: frozenset[tuple[str, Instant]] = frozenset()
    turns: frozenset[int] = frozenset()
    notes: frozenset[Note] = frozenset()
    locked_by: int = NOBODY
    claimers: tuple[Claimer, Claimer] = (Claimer(), Claimer())


class World(msgspec.Struct, frozen=True, kw_only=True):
    """The rate of the kind, the rate key of each job, and the steps of the clock in halves of the
    rate's interval. Without locks, or without notes of what waits for the rate, it is wrong."""

    rate: Rate
    keys: tuple[str, ...]
    clock: tuple[int, ...]
    has_locks: bool = True
    notes_waits: bool = True

    def states(self) -> set[State]:
        """Every state that can be reached."""
        return explored(State(absent=frozenset(range(len(self.keys)))), self.following)

    def following(self, state: State) -> Iterator[State]:
        """Every state that one statement, one commit or one step of the clock leads to."""
        if state.ticks < len(self.clock):
            step = self.clock[state.ticks] * self.rate.interval_us // 2
            yield replace(state, ticks=state.ticks + 1, now=Instant(state.now + step))
        for number in state.absent:
            yield self._becomes_ready(replace(state, absent=state.absent - {number}), number)
        if len(state.log) < MOST_GRANTS:
            for number in state.live:  # it is given back
                yield self._becomes_ready(replace(state, live=state.live - {number}), number)
        for claimer in (0, 1):
            if not self.has_locks or state.locked_by in (NOBODY, claimer):
                yield self.claim(state, claimer)

    def _becomes_ready(self, state: State, number: int) -> State:
        note = Note(self.keys[number])
        return replace(state, ready=state.ready | {number}, notes=state.notes | {note})

    def claim(self, state: State, claimer: int) -> State:
        """The state after the next statement of a claimer."""
        own = state.claimers[claimer]
        match own.step:
            case "lock":
                due = {each for each in state.notes if _is_due(each, state.now)}
                state = replace(state, notes=state.notes - due, locked_by=claimer)
                keys = frozenset(each.key for each in due)
                own = Claimer(step="count" if keys else "read", keys=keys)
            case "count":
                tats = frozenset(each for each in state.tats if each[0] in own.keys)
                own = replace(own, step="choose", tats=tats, now=state.now)
            case "choose":
                state = self._choose_turns(state, own)
                own = replace(own, step="read")
            case "read":  # passes by what the other one holds locked
                found = (state.turns & state.ready) - state.claimers[1 - claimer].seen
                own = replace(own, step="check", seen=found, now=state.now)
            case "check":  # what was read when turns were chosen is not read again
                more = {each for each in state.tats if each[0] not in own.keys}
                own = replace(own, step="commit", tats=own.tats | more)
            case _:
                state = replace(self._commit(state, own), locked_by=NOBODY)
                own = Claimer()
        both = (own, state.claimers[1]) if claimer == 0 else (state.claimers[0], own)
        return replace(state, claimers=both)

    def _choose_turns(self, state: State, own: Claimer) -> State:
        """As many turns of each key as there is room for, and notes when there is room for more."""
        room = self.room(own.now, dict(own.tats))
        turns, notes = state.turns - self._of_keys(own.keys), set(state.notes)
        for key in own.keys:
            most = rate_key_turns(room, KIND, key)
            first = sorted(state.ready & self._of_keys({key}))[:most]
            turns |= set(first)
            wait = room.wait_of_key(KIND, key, more=True)
            if len(first) >= most and wait and self.notes_waits:
                notes.add(Note(key, Instant(own.now + wait), own.now))
        return replace(state, turns=turns, notes=frozenset(notes))

    def _commit(self, state: State, own: Claimer) -> State:
        """The grants of the real planner, where their rates stand then, and who waits for them."""
        jobs = {self._job(number): number for number in sorted(own.seen & state.ready)}
        view = ClaimView(
            now=own.now,
            epoch=Epoch(1),
            sessions={},
            queues={QUEUE: QueueState(name=QUEUE)},
            candidates=list(jobs),
            kinds={KIND: KindSettings(kind=KIND, rate=self.rate)},
            rate_states={kind_meter(KIND, key): tat for key, tat in own.tats},
        )
        plan = plan_of_all(view)
        numbers = {job.id: number for job, number in jobs.items()}
        granted = [numbers[change.job.id] for change in plan.changes]
        logged = [change.events[0].ts for change in plan.changes]
        written = {meter.key: tat for meter, tat in plan.rate_states.items()}
        state = replace(
            state,
            ready=state.ready - set(granted),
            live=state.live | set(granted),
            log=(*state.log, *zip([self.keys[each] for each in granted], logged, strict=True)),
            tats=frozenset((dict(state.tats) | written).items()),
            turns=state.turns - set(granted),
        )
        room = self.room(own.now, dict(own.tats) | written)
        for key in {self.keys[number] for number in granted}:
            state = self._end_turns(state, key, room.wait_of_key(KIND, key), own.now)
        return state

    def _end_turns(self, state: State, key: str, wait: int, now: Instant) -> State:
        """The turns of a key without room wait; those of another are chosen again at once."""
        if not wait:
            return replace(state, notes=state.notes | {Note(key)})
        turns = state.turns - self._of_keys({key})
        noted = {Note(key, Instant(now + wait), now)} if self.notes_waits else set()
        return replace(state, turns=turns, notes=state.notes | noted)

    def room(self, now: Instant, tats: Mapping[str, Instant]) -> GrantRoom:
        """How many grants each key may have, as the real core counts them."""
        return GrantRoom(
            now=now,
            queues={},
            kinds={KIND: KindSettings(kind=KIND, rate=self.rate)},
            rate_states={kind_meter(KIND, key): tat for key, tat in tats.items()},
        )

    def _job(self, number: int) -> Job:
        return ready_job(number, rate_key=self.keys[number])

    def _of_keys(self, keys: Set[str]) -> frozenset[int]:
        return frozenset(number for number, key in enumerate(self.keys) if key in keys)

    # --- what must be true ---------------------------------------------------------------------

    def exceeding(self, states: Set[State]) -> set[Log]:
        """The logs in which a window has more grants of a key than burst + rate·T."""
        return {
            log
            for log in {state.log for state in states}
            for key in set(self.keys)
            if most_in_any_window(self.rate, [at for each, at in log if each == key]) > 0
        }

    def stranding(self, states: Set[State]) -> set[State]:
        """Those in which a ready job is not granted by the next claim though its key has room, or
        after which not each key with ready jobs is granted one in every interval. What was logged
        and what is not there yet make no difference."""
        alike = {replace(each, log=(), ticks=0, absent=NONE, live=NONE) for each in states}
        ends = {each: replace(self._claimed(each), log=(), live=NONE) for each in alike}
        wrong = {state for state in set(ends.values()) if self._strands(state)}
        return {state for state, end in ends.items() if end in wrong}

    def _claimed(self, state: State) -> State:
        """After a claim that was under way has ended, and another one has been made."""
        for claimer in (state.locked_by, 0):
            if claimer != NOBODY:
                state = self.claim(state, claimer)
                while state.claimers[claimer].step != "lock":
                    state = self.claim(state, claimer)
        return state

    def _strands(self, state: State) -> bool:
        while state.ready:
            if any(self.has_room(state, number) for number in state.ready):
                return True
            later = self._claimed(replace(state, now=Instant(state.now + self.rate.interval_us)))
            waiting = {self.keys[number] for number in state.ready}
            if {self.keys[number] for number in state.ready - later.ready} != waiting:
                return True
            state = later
        return False

    def has_room(self, state: State, number: int) -> bool:
        """Whether the rate of a job's key has room for it."""
        tat = dict(state.tats).get(self.keys[number], NOTHING_GRANTED)
        return self.rate.room(tat, state.now) > 0


def _is_due(note: Note, now: Instant) -> bool:
    """A note of a rate that was written later than now is: the clock was set back."""
    return note.at <= now or note.noted_at > now


ONE_KEY = World(rate=parse_rate("rate", "1/s", 2), keys=("a", "a", "a"), clock=(1, 1))
TWO_KEYS = World(rate=parse_rate("rate", "1/s", 1), keys=("a", "a", "b"), clock=(1, 1))
SET_BACK = World(rate=parse_rate("rate", "1/s", 1), keys=("a", "a"), clock=(6, -6, 1))


@spec("RL1", "RL2", "RL11", "I30")
@pytest.mark.parametrize("world", [ONE_KEY, TWO_KEYS], ids=["one key", "two keys"])
def test_no_order_of_statements_exceeds_the_rate_of_a_key_or_strands_a_job(world: World) -> None:
    states = world.states()

    assert len(states) > 1000
    assert max(len(state.log) for state in states) >= MOST_GRANTS
    assert world.exceeding(states) == set()
    assert world.stranding(states) == set()


@spec("RL8", "RL3", "CK10")
@pytest.mark.parametrize(
    "world", [ONE_KEY, TWO_KEYS, SET_BACK], ids=["one key", "two keys", "set back"]
)
def test_a_claim_that_passes_by_keys_without_due_notes_and_turns_misses_no_job(
    world: World,
) -> None:
    """Without the lock a claim sees what is committed: here, states in which nobody holds it."""
    passed_by = {
        state
        for state in world.states()
        if state.locked_by == NOBODY
        and not any(_is_due(note, state.now) for note in state.notes)
        and not state.turns & state.ready
    }

    assert any(state.ready for state in passed_by)
    assert not any(world.has_room(state, each) for state in passed_by for each in state.ready)


@spec("RL3")
def test_no_job_of_a_key_is_stranded_when_the_clock_is_set_back() -> None:
    assert SET_BACK.stranding(SET_BACK.states()) == set()


@spec("RL3")
def test_if_a_rate_far_ahead_is_not_written_down_the_model_finds_a_job_that_waits_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GrantRoom, "_too_far_ahead", lambda room: {})

    assert SET_BACK.stranding(SET_BACK.states())


@spec("RL1", "I30")
def test_without_the_lock_the_model_finds_too_many_grants_of_one_key() -> None:
    wrong = replace(TWO_KEYS, keys=("a", "a"), clock=(), has_locks=False)

    assert wrong.exceeding(wrong.states())


@spec("RL3", "RL11")
def test_without_a_note_when_there_is_room_the_model_finds_a_job_that_waits_for_ever() -> None:
    wrong = replace(TWO_KEYS, keys=("a", "a"), notes_waits=False)

    assert wrong.stranding(wrong.states())
