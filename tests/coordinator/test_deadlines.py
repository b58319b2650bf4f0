"""One deadline per call: every caller is answered by then. The store keeps it where it waits, and
the coordinator carries out no call whose deadline has passed. [K16]"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import pytest

from tenure.coordinator.service import Coordinator
from tenure.core.commands import Enqueue
from tenure.core.ids import DEFAULT_NAMESPACE, JobId, new_job_id
from tenure.core.instants import Instant
from tenure.deadlines import DEADLINE, deadline, waiting_at_most
from tenure.errors import StoreUnavailable
from tenure.stores.sqlite.memory import MemoryStore
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.support.coordinators import CLIENT, KIND, QUEUE, VirtualClock, World
from tests.support.doubles import instead
from tests.support.hanging import write_lock

TIMEOUT_S = 0.3
LATE_S = 0.2
"""A store may be late: libpq needs two seconds for a connection."""
LATEST_S = 5.0
"""Generous: a loaded machine is not a bug. What hung before the change hung for ever here."""


class HangingStore(MemoryStore):
    """A store one of whose methods hangs until shortly after the deadline, and then fails."""

    def __init__(self, clock: VirtualClock, method: str) -> None:
        super().__init__(clock=clock)
        self.was_asked = Semaphore(0)
        self.hangs = False
        self.load = self.jobs.load
        self._own = instead(self, method, self._hang)

    def _hang(self, *arguments: Any, **named: Any) -> Any:
        if self.hangs:
            self.was_asked.release()
            Event().wait(deadline(TIMEOUT_S).remaining_s + LATE_S)
            raise StoreUnavailable("the store hangs")
        return self._own(*arguments, **named)


@pytest.fixture
def hanging() -> Iterator[Callable[[str], tuple[World, HangingStore]]]:
    with ExitStack() as made:

        def make(method: str) -> tuple[World, HangingStore]:
            clock = VirtualClock()
            store = HangingStore(clock, method)
            world = World(store, clock, threads=1, timeout_s=TIMEOUT_S)
            made.callback(world.coordinator.close)
            return world, store

        yield make


def new_job(number: int) -> Enqueue:
    return Enqueue(
        job_id=new_job_id(Instant(1), bytes([number]) * 16),
        namespace=DEFAULT_NAMESPACE,
        queue=QUEUE,
        kind=KIND,
        actor=CLIENT,
    )


def failure(call: "Future[Any]") -> BaseException | None:
    return call.exception(LATEST_S)


def is_there(world: World, job_id: JobId) -> bool:
    """Whether it is, after another batch."""
    world.enqueue()
    assert isinstance(world.store, HangingStore)
    return job_id in world.store.jobs.load([job_id]).jobs


@spec("K16")
def test_a_call_whose_store_hangs_is_answered_in_time_and_never_carried_out(
    hanging: Callable[[str], tuple[World, HangingStore]],
) -> None:
    world, store = hanging("jobs.load")
    command = new_job(1)
    store.hangs = True

    call = world.coordinator.submit(command)
    problem = failure(call)

    assert type(problem) is StoreUnavailable
    store.hangs = False
    assert not is_there(world, command.job_id)


@spec("K16")
def test_a_call_behind_one_that_hangs_is_answered_in_time_and_never_carried_out(
    hanging: Callable[[str], tuple[World, HangingStore]],
) -> None:
    world, store = hanging("jobs.save")
    store.hangs = True
    world.coordinator.submit(new_job(1))
    assert store.was_asked.acquire(timeout=LATEST_S)
    commands = [new_job(number) for number in range(2, 7)]

    calls = [world.coordinator.submit(command) for command in commands]

    assert all(type(failure(call)) is StoreUnavailable for call in calls)
    assert not store.was_asked.acquire(blocking=False)
    store.hangs = False
    assert not any(is_there(world, command.job_id) for command in commands)


@spec("K16")
def test_a_call_that_may_wait_longer_is_not_in_the_batch_of_one_that_may_not() -> None:
    store, was_asked, may_continue = MemoryStore(), Event(), Event()
    left_s: list[float] = []

    def save(*arguments: Any, **named: Any) -> Any:
        until = DEADLINE.get()
        assert until is not None
        left_s.append(until.remaining_s)
        was_asked.set()
        assert may_continue.wait(LATEST_S)
        return own(*arguments, **named)

    own = instead(store, "jobs.save", save)
    with closing(World(store, threads=1, timeout_s=30.0).coordinator) as coordinator:
        first = coordinator.submit(new_job(1))
        assert was_asked.wait(LATEST_S)
        with waiting_at_most(10.0):
            shorter = coordinator.submit(new_job(2))
        longer = coordinator.submit(new_job(3))
        may_continue.set()
        answers = [call.result(LATEST_S) for call in (first, shorter, longer)]

    assert len(answers) == 3
    assert [round(each, -1) for each in left_s] == [30, 10, 30]


@spec("K16")
def test_a_claim_that_may_wait_longer_is_not_in_the_batch_of_one_that_may_not() -> None:
    store, was_asked, may_continue = MemoryStore(), Event(), Event()
    left_s: list[float] = []

    def claim(*arguments: Any) -> Any:
        until = DEADLINE.get()
        assert until is not None
        left_s.append(until.remaining_s)
        was_asked.set()
        assert may_continue.wait(LATEST_S)
        return own(*arguments)

    own = instead(store, "claims.claim", claim)
    world = World(store, threads=1, timeout_s=30.0)
    with closing(world.coordinator) as coordinator:
        first = coordinator.submit_claim(world.claim_request("w1"))
        assert was_asked.wait(LATEST_S)
        with waiting_at_most(10.0):
            shorter = coordinator.submit_claim(world.claim_request("w2"))
        longer = coordinator.submit_claim(world.claim_request("w3"))
        may_continue.set()
        answers = [call.result(LATEST_S) for call in (first, shorter, longer)]

    assert len(answers) == 3
    assert [round(each, -1) for each in left_s] == [30, 10, 30]


@spec("K16")
def test_a_claim_that_hangs_is_granted_nothing_afterwards(
    hanging: Callable[[str], tuple[World, HangingStore]],
) -> None:
    world, store = hanging("claims.claim")
    job = world.enqueue()
    store.hangs = True

    call = world.coordinator.submit_claim(world.claim_request())
    problem = failure(call)
    store.hangs = False

    assert type(problem) is StoreUnavailable
    assert [grant.job_id for grant in world.claim("w2")] == [job.id]


@spec("K16")
def test_all_callers_of_a_locked_file_are_answered_in_time(tmp_path: Path) -> None:
    path = tmp_path / "tenure.db"
    with (
        closing(SqliteStore(path, timeout_s=1.0)) as store,
        closing(Coordinator(store, timeout_s=1.0)) as coordinator,
    ):
        coordinator.submit(new_job(1)).result()
        with write_lock(path):
            began = time.monotonic()
            calls = [coordinator.submit(new_job(number)) for number in range(2, 8)]
            wait(calls)
            waited_s = time.monotonic() - began
            problems = [call.exception() for call in calls]
        commands = [new_job(number) for number in range(2, 8)]
        coordinator.submit_many(commands).result()

    assert all(isinstance(problem, StoreUnavailable) for problem in problems)
    assert waited_s < 2.5  # before: ten seconds for the first, and again for each of the others


@spec("K16")
def test_a_write_that_was_given_up_before_it_began_never_happens(tmp_path: Path) -> None:
    path = tmp_path / "tenure.db"
    with closing(SqliteStore(path, timeout_s=0.2)) as store:
        with write_lock(path), pytest.raises(StoreUnavailable) as given_up:
            store.raise_epoch()
        epoch = store.jobs.load([]).epoch

    assert given_up.value.nothing_changed
    assert epoch == 1
