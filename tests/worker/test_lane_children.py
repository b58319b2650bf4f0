"""Which child takes an attempt, when another one is started, how many attempts begin at once."""

from typing import cast

from tenure.clock import NEVER, Boot
from tenure.handlers.registry import Isolation
from tenure.worker.supervisor.children import MOMENT, Child, LaneChildren, RecentlyBegun


def a_child() -> Child:
    """Something to tell children apart by: nothing here looks inside."""
    return cast(Child, object())


def a_lane(
    isolation: Isolation, *, warm: int, most: int | None = None, most_starting: int = 8
) -> LaneChildren:
    """One that keeps only its warm children ready, unless `most` is larger."""
    return LaneChildren(isolation, warm=warm, most=most or warm, most_starting=most_starting)


def serving(lane: LaneChildren, children: int) -> list[Child]:
    made = [a_child() for _ in range(children)]
    for child in made:
        lane.started(child)
        lane.ready(child)
    return made


def test_warm_children_and_one_for_each_waiting_attempt_are_missing() -> None:
    lane = a_lane(Isolation.PROCESS, warm=2)
    assert lane.missing == 2

    serving(lane, 2)
    taken = [lane.take(), lane.take()]
    lane.waiting[3] = None
    lane.waiting[4] = None

    assert None not in taken
    assert lane.take() is None
    assert lane.missing == 2
    lane.started(a_child())
    assert lane.missing == 1


def test_when_all_children_are_taken_one_more_is_started_unless_there_are_enough() -> None:
    lane = a_lane(Isolation.PROCESS, warm=1, most=3, most_starting=2)
    serving(lane, 1)
    assert lane.missing == 0

    lane.take()
    assert lane.missing == 1
    starting = a_child()
    lane.started(starting)
    assert lane.missing == 0, "one at a time"
    lane.ready(starting)
    assert lane.missing == 0, "it is free"

    lane.take()
    serving(lane, 1)
    lane.take()
    assert (lane.serving, lane.missing) == (3, 0)


def test_only_a_few_children_start_at_a_time() -> None:
    lane = a_lane(Isolation.PROCESS, warm=1, most=32, most_starting=4)
    [only] = serving(lane, 1)
    assert lane.take() is only
    lane.waiting.update(dict.fromkeys(range(2, 33)))
    assert lane.missing == 4

    first = [a_child() for _ in range(4)]
    for child in first:
        lane.started(child)
    assert lane.missing == 0
    lane.ready(first[0])
    assert lane.missing == 1

    lane.waiting.clear()
    lane.give_back(only)
    assert lane.missing == 0, "all have run meanwhile"


def test_a_process_child_runs_one_attempt_at_a_time_and_the_last_used_comes_first() -> None:
    lane = a_lane(Isolation.PROCESS, warm=2)
    serving(lane, 2)
    first, second = lane.take(), lane.take()
    assert first is not None
    assert second is not None
    assert first is not second

    lane.give_back(second)
    lane.give_back(first)

    assert lane.take() is first


def test_a_child_that_expires_is_used_until_it_leaves_and_has_a_successor_before() -> None:
    lane = a_lane(Isolation.PROCESS, warm=1)
    [old] = serving(lane, 1)
    assert lane.take() is old

    lane.expire(old)
    assert lane.missing == 1
    [new] = serving(lane, 1)
    lane.give_back(old)

    assert lane.missing == 0
    assert lane.take() is old, "the new one waits until it is needed"
    lane.leave(old)
    assert lane.missing == 0
    assert lane.take() is new


def test_a_shared_child_that_expires_is_replaced_when_another_one_is_ready() -> None:
    lane = a_lane(Isolation.ASYNC, warm=1)
    [old] = serving(lane, 1)
    lane.expire(old)
    assert (lane.missing, lane.take()) == (1, old)

    new = a_child()
    lane.started(new)
    assert lane.missing == 0
    assert lane.take() is old

    assert lane.ready(new) == [old]
    lane.leave(old)
    assert lane.take() is new


def test_a_child_that_left_is_not_given_back() -> None:
    lane = a_lane(Isolation.PROCESS, warm=1)
    [child] = serving(lane, 1)
    lane.take()

    lane.leave(child)
    lane.give_back(child)

    assert not lane.has_free
    assert not lane.serving
    assert lane.missing == 1


# --- how many begin at once --------------------------------------------------------------------


def test_a_few_attempts_begin_at_once_and_another_one_when_one_of_them_has_ended() -> None:
    recent = RecentlyBegun(most=2)
    assert (recent.has_room(Boot(0)), recent.next_at) == (True, NEVER)

    recent.begun(1, Boot(0))
    recent.begun(2, Boot(10))
    assert not recent.has_room(Boot(10))
    recent.ended(1)

    assert recent.has_room(Boot(10))
    assert recent.next_at == 10 + MOMENT


def test_an_attempt_that_has_run_for_a_moment_holds_up_no_other() -> None:
    recent = RecentlyBegun(most=1)
    recent.begun(1, Boot(0))

    assert not recent.has_room(Boot(MOMENT - 1))
    assert recent.has_room(Boot(MOMENT))
