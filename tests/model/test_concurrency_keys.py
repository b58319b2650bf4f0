"""Two claimers on one concurrency key, exhaustively: every order of their statements with enqueues
and ends of attempts in between.

The real planner decides on what the SQL stores would show it. A claim is several statements under
the lock of the group, each of which sees what has been committed by then; an enqueue and the end of
an attempt commit at any moment, without that lock (docs/adr/0054).
"""

from collections.abc import Iterator
from typing import TypeVar

import msgspec
import pytest
from msgspec.structs import replace

from tenure.core.claims import ClaimView, QueueState
from tenure.core.concurrency import ConcurrencyKey, KeyState, with_room
from tenure.core.ids import Epoch
from tenure.core.job import Job
from tenure_conformance.spec import spec
from tests.model.two_claimers import KIND, NOBODY, NOW, QUEUE, explored, plan_of_all, ready_job

T = TypeVar("T")

KEY = ConcurrencyKey(KIND, "42")
JOBS = 3


class State(msgspec.Struct, frozen=True):
    """What is committed, and how far each claimer is. Jobs are numbers, in claim order."""

    absent: frozenset[int] = frozenset(range(JOBS))
    ready: frozenset[int] = frozenset()
    live: frozenset[int] = frozenset()
    turns: frozenset[int] = frozenset()
    changes: int = 0  # rows that say that the key must be looked at
    locked_by: int = NOBODY
    steps: tuple[str, str] = ("lock", "lock")  # what each claimer does next
    room: tuple[int, int] = (0, 0)  # as each of them has read it last
    seen: tuple[frozenset[int], frozenset[int]] = (frozenset(), frozenset())  # and holds locked


def _job(number: int) -> Job:
    return ready_job(number, concurrency_key=KEY.key)


def _granted(seen: frozenset[int], live: int, limit: int) -> frozenset[int]:
    """What the real planner grants of these turns."""
    keys = {KEY: KeyState(limit=limit, live=live)}
    view = ClaimView(
        now=NOW,
        epoch=Epoch(1),
        sessions={},
        queues={QUEUE: QueueState(name=QUEUE)},
        candidates=with_room([_job(number) for number in sorted(seen)], keys),
        keys=keys,
    )
    plan = plan_of_all(view)
    ids = {change.job.id for change in plan.changes}
    return frozenset(number for number in seen if _job(number).id in ids)


def _next(state: State, limit: int, *, locks: bool) -> Iterator[State]:
    """Every state that one statement or one commit leads to."""
    for number in state.absent:
        yield replace(
            state,
            absent=state.absent - {number},
            ready=state.ready | {number},
            changes=state.changes + 1,
        )
    for number in state.live:
        yield replace(state, live=state.live - {number}, changes=state.changes + 1)
    for claimer in (0, 1):
        if not locks or state.locked_by in (NOBODY, claimer):
            yield from _claim(state, claimer, limit)


def _claim(state: State, claimer: int, limit: int) -> Iterator[State]:
    """The next statement of a claimer."""

    def set_own(values: tuple[T, T], value: T) -> tuple[T, T]:
        return (value, values[1]) if claimer == 0 else (values[0], value)

    def goes_on(step: str, **fields: object) -> State:
        holder = NOBODY if step == "lock" else claimer
        return replace(state, steps=set_own(state.steps, step), locked_by=holder, **fields)

    room, seen = state.room[claimer], state.seen[claimer]
    counted = set_own(state.room, max(0, limit - len(state.live)))
    match state.steps[claimer]:
        case "lock":
            yield goes_on("count" if state.changes else "read", changes=0)
        case "count":
            yield goes_on("choose", room=counted)
        case "choose":
            yield goes_on("read", turns=frozenset(sorted(state.ready)[:room]))
        case "read":  # passes by what the other one holds locked
            found = (state.turns & state.ready) - state.seen[1 - claimer]
            yield goes_on("check", seen=set_own(state.seen, found))
        case "check":
            yield goes_on("commit", room=counted)
        case _:
            granted = _granted(seen & state.ready, limit - room, limit)
            left = state.turns - granted if len(granted) < room else frozenset()
            yield goes_on(
                "lock",
                ready=state.ready - granted,
                live=state.live | granted,
                turns=left,
                seen=set_own(state.seen, frozenset()),
            )


def _explored(limit: int, *, locks: bool = True) -> set[State]:
    def following(state: State) -> Iterator[State]:
        return (each for each in _next(state, limit, locks=locks) if each.changes <= 3)

    return explored(State(), following)


def _settles(state: State, limit: int) -> State:
    """The state after both claimers have ended what they began, and one has claimed again."""
    for claimer in (state.locked_by, 0):
        if claimer != NOBODY:
            while True:
                [state] = _claim(state, claimer, limit)
                if state.steps[claimer] == "lock":
                    break
    return state


@spec("CK3", "CK4")
@pytest.mark.parametrize("limit", [1, 2])
def test_no_order_of_statements_passes_the_limit_or_strands_a_job(limit: int) -> None:
    states = _explored(limit)

    assert len(states) > 500
    assert all(len(state.live) <= limit for state in states)
    for state in states:
        settled = _settles(state, limit)
        assert not settled.ready or len(settled.live) == limit, (state, settled)


@spec("CK4", "CK10")
@pytest.mark.parametrize("limit", [1, 2])
def test_a_claim_that_passes_by_a_key_without_changes_and_turns_misses_no_job(limit: int) -> None:
    """Without the lock a claim sees what is committed: here, states in which nobody holds it."""
    for state in _explored(limit):
        if state.locked_by == NOBODY and len(state.live) < limit:
            assert not state.ready or state.changes or state.turns & state.ready, state


@spec("CK6")
def test_with_a_limit_of_one_a_later_job_is_never_granted_before_one_that_was_seen() -> None:
    for state in _explored(1):
        for step, room, seen in zip(state.steps, state.room, state.seen, strict=True):
            if step == "commit" and seen:
                assert _granted(seen, 1 - room, 1) <= {min(seen)}


@spec("CK3")
def test_without_the_lock_the_model_finds_two_jobs_of_one_key() -> None:
    assert any(len(state.live) > 1 for state in _explored(1, locks=False))
