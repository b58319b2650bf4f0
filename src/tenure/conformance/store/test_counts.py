"""Counts on their way from one process to another: each is given to one taker, once."""

from tenure.conformance.harness import Kit, race
from tenure.conformance.spec import spec
from tenure.coordinator.retention import UNTAKEN, Retention
from tenure.core.instants import seconds


@spec("B16")
def test_counts_are_taken_once(kit: Kit) -> None:
    for counts in (b"one", b"\x00two", b"three"):
        kit.store.hand_over_counts(counts)

    taken = [kit.store.take_counts(limit=2) for _ in range(3)]

    assert [len(each) for each in taken] == [2, 1, 0]
    assert {*taken[0], *taken[1]} == {b"one", b"\x00two", b"three"}


@spec("B16")
def test_takers_that_race_get_each_once(kit: Kit) -> None:
    handed = [f"{number}".encode() for number in range(40)]
    for counts in handed:
        kit.store.hand_over_counts(counts)
    stores = [kit.store, *(kit.rival().store for _ in range(3))]

    def take(number: int) -> list[bytes]:
        taken: list[bytes] = []
        for _ in handed:  # a store that gives them for ever is wrong, not endless
            taken.extend(stores[number].take_counts(limit=3))
        return taken

    taken = race(*[lambda number=number: take(number) for number in range(4)])

    # A taker passes by what another holds, so the last ones may need another look.
    left = kit.store.take_counts(limit=100)
    assert sorted(counts for each in (*taken, left) for counts in each) == sorted(handed)


@spec("B16")
def test_counts_that_nobody_takes_are_forgotten_in_time(kit: Kit) -> None:
    for counts in (b"old", b"also old"):
        kit.store.hand_over_counts(counts)
    kit.advance(seconds=1)
    kit.store.hand_over_counts(b"newer")
    kit.advance(microseconds=UNTAKEN)

    assert kit.store.forget_counts(older_than_us=UNTAKEN, limit=1) == 1
    assert Retention(kit.store).run_once().counts_forgotten == 1
    assert kit.store.take_counts(limit=10) == [b"newer"]
    assert kit.store.forget_counts(older_than_us=seconds(0), limit=10) == 0
