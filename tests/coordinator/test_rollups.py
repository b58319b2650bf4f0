"""Folding: how often, how much at once, and what happens when another process is faster."""

from collections.abc import Callable
from typing import Any

from tenure.coordinator import retention
from tenure.coordinator.retention import FOLD_INTERVAL, PAUSE_PER_COST, Folder
from tenure.core.ids import DEFAULT_NAMESPACE
from tenure.core.instants import seconds
from tenure.core.views.overview import OutcomeCounts, OverviewFilter
from tenure.core.views.rollups import SHORTEST
from tenure.stores.sqlite.memory import MemoryStore
from tenure_conformance.spec import spec
from tests.support.coordinators import VirtualClock, World
from tests.support.doubles import instead, threads_by_hand


class SlowStore(MemoryStore):
    """Takes a while to read a page, and lets somebody else act before it gives it."""

    def __init__(self, clock: VirtualClock, *, takes_s: float = 1) -> None:
        super().__init__(clock=clock)
        self._takes_s = takes_s
        self._slow_clock = clock
        self.meanwhile: Callable[[], object] = lambda: None
        self._own_page = instead(self, "views.unfolded", self._late_page)

    def _late_page(self, **named: Any) -> Any:
        page = self._own_page(**named)
        self._slow_clock.advance(self._takes_s)
        self.meanwhile()
        return page


def counted(world: World) -> OutcomeCounts:
    """The events of the last hour."""
    found = world.store.views.overview(OverviewFilter(namespace=DEFAULT_NAMESPACE))
    return OutcomeCounts(enqueued=sum(bucket.enqueued for bucket in found.buckets))


@spec("OB36")
def test_a_folder_that_is_behind_goes_on_after_nine_times_what_a_page_took() -> None:
    clock = VirtualClock()
    world = World(SlowStore(clock, takes_s=0.1), clock)
    for _ in range(5):
        world.enqueue()
    with threads_by_hand(retention) as threads:
        Folder(world.store, page=2, monotonic=clock)
    [thread] = threads
    pauses = []

    for _ in range(3):
        assert not thread.work()
        pauses.append(thread.pause_us)

    behind_us = seconds(0.1 * PAUSE_PER_COST)
    assert pauses == [behind_us, behind_us, FOLD_INTERVAL]
    assert world.store.views.unfolded(limit=1).end is None


@spec("OB33")
def test_a_folder_that_is_overtaken_saves_nothing_and_leaves_the_rest_to_the_other() -> None:
    clock = VirtualClock()
    store = SlowStore(clock)
    world = World(store, clock)
    for _ in range(5):
        world.enqueue()
    slow, other = Folder(store, page=2, monotonic=clock), Folder(store, page=3, monotonic=clock)

    def overtake() -> None:
        store.meanwhile = lambda: None
        assert other.fold_once().was_saved

    store.meanwhile = overtake
    report = slow.fold_once()

    assert (report.was_saved, report.is_behind) == (False, False)
    assert counted(world).enqueued == 5


@spec("OB33")
def test_an_idle_store_is_not_written() -> None:
    world = World()
    folder = Folder(world.store, monotonic=world.clock)
    world.enqueue()
    folder.fold_once()
    progress = world.store.views.unfolded(limit=1).progress

    world.clock.advance(60)

    assert not folder.fold_once().was_saved
    assert world.store.views.unfolded(limit=1).progress == progress


@spec("OB36")
def test_a_clock_that_was_set_back_does_not_stop_folding() -> None:
    world = World()
    folder = Folder(world.store, monotonic=world.clock)
    world.enqueue()
    folder.fold_once()
    world.clock.advance(-3600)
    world.enqueue()

    assert folder.fold_once().was_saved


@spec("OB34")
def test_a_full_page_says_up_to_which_rollup_it_reached_and_the_last_one_up_to_now() -> None:
    world = World()
    for _ in range(3):
        world.enqueue()
        world.clock.advance(100)
    folder = Folder(world.store, page=2, monotonic=world.clock)

    reached = []
    for _ in range(2):
        folder.fold_once()
        reached.append(world.store.views.unfolded(limit=1).progress.folded_until)

    now = world.clock()
    second = now - seconds(200)
    assert reached == [second // SHORTEST * SHORTEST, now]
