"""A caller that waits: its own thread runs its batch if nothing else is under way. And one that
repeats its names: every field of every call is checked all the same."""

from collections.abc import Callable, Iterable, Iterator
from threading import Event, Thread, get_ident
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.core.commands import Cancel, Enqueue
from tenure.core.ids import DEFAULT_NAMESPACE, new_job_id
from tenure.core.instants import Instant
from tenure.core.outcomes import Change
from tenure.core.policy import Policy
from tenure.core.verdicts import Reply
from tenure.deadlines import DEADLINE, deadline
from tenure.errors import Closed, InvalidInput, StoreUnavailable
from tenure.stores.sqlite.memory import MemoryStore
from tenure_conformance.spec import spec
from tests.support.coordinators import CLIENT, KIND, QUEUE, VirtualClock, World
from tests.support.doubles import instead
from tests.support.interrupts import interrupted_everywhere
from tests.support.waiting import PATIENCE_S, until


class WatchedStore(MemoryStore):
    """Says in which thread it was written, and lets a test step in before."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.threads: list[int] = []
        self.before_save: Callable[[], object] = lambda: None
        self._own_save = instead(self, "jobs.save", self._save)

    def _save(self, changes: Iterable[Change], **named: Any) -> Any:
        self.threads.append(get_ident())
        self.before_save()
        return self._own_save(changes, **named)


class Scene:
    """A world over such a store."""

    def __init__(self) -> None:
        clock = VirtualClock()
        self.store = WatchedStore(clock)
        self.world = World(self.store, clock, timeout_s=0.3)
        self.coordinator = self.world.coordinator
        self._release = Event()

    def hold_next_save(self) -> Event:
        """The next save waits; the event says when it does."""
        is_held = Event()

        def hold() -> None:
            self.store.before_save = lambda: None
            is_held.set()
            assert self._release.wait(PATIENCE_S)

        self.store.before_save = hold
        return is_held

    def hang_saves(self) -> Event:
        """Every save fails at its deadline, as a store's does; the event says when one waits."""
        is_held = Event()

        def hang() -> None:
            is_held.set()
            self._release.wait(deadline(PATIENCE_S).remaining_s)
            raise StoreUnavailable("the store hangs")

        self.store.before_save = hang
        return is_held

    def let_go(self) -> None:
        self._release.set()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.let_go()
    made.coordinator.close()


def new_job(number: int) -> Enqueue:
    return Enqueue(
        job_id=new_job_id(Instant(1), bytes([number]) * 16),
        namespace=DEFAULT_NAMESPACE,
        queue=QUEUE,
        kind=KIND,
        actor=CLIENT,
    )


def test_a_caller_that_waits_runs_its_batch_itself_if_nothing_else_runs(scene: Scene) -> None:
    scene.coordinator.execute(new_job(1))
    scene.coordinator.submit(new_job(2)).result(PATIENCE_S)

    mine, others = scene.store.threads
    assert mine == get_ident() != others


@spec("J6")
@pytest.mark.parametrize(
    "wrong",
    [{"queue": "no queue"}, {"policy": Policy(max_attempts=0)}, {"priority": 1 << 20}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_call_that_repeats_names_of_an_accepted_one_is_checked(
    scene: Scene, wrong: dict[str, Any]
) -> None:
    accepted = new_job(1)
    refused = replace(accepted, job_id=new_job(2).job_id, **wrong)
    scene.coordinator.execute(accepted)

    for _ in range(2):  # a refused one is not remembered as checked
        with pytest.raises(InvalidInput) as problem:
            scene.coordinator.execute(refused)
        assert problem.value.field.partition(".")[0] in wrong


def test_commands_about_one_job_in_one_call_are_answered_in_order(scene: Scene) -> None:
    job = new_job(1)
    cancel = Cancel(job_id=job.job_id, actor=CLIENT, request_id=scene.world.request_id())

    answers = scene.coordinator.execute_many([job, cancel])

    assert [isinstance(answer, Reply) and answer.is_ok for answer in answers] == [True, True]


@spec("K16")
def test_a_caller_that_comes_while_another_ones_store_hangs_is_answered_in_time(
    scene: Scene,
) -> None:
    is_held = scene.hang_saves()
    first = Thread(
        target=pytest.raises, args=[StoreUnavailable, scene.coordinator.execute, new_job(1)]
    )
    first.start()
    assert is_held.wait(PATIENCE_S)

    with pytest.raises(StoreUnavailable):  # it is about the same job, and waits for the first
        scene.coordinator.execute(new_job(1))

    first.join(PATIENCE_S)
    assert not first.is_alive()


def test_closing_waits_for_a_caller_that_runs_its_own_batch(scene: Scene) -> None:
    is_held = scene.hold_next_save()
    answers: list[object] = []
    caller = Thread(target=lambda: answers.append(scene.coordinator.execute(new_job(1))))
    caller.start()
    assert is_held.wait(PATIENCE_S)
    closing = Thread(target=scene.coordinator.close)

    def is_refused() -> bool:
        try:
            scene.coordinator.execute(new_job(2))
        except Closed:
            return True
        return False

    closing.start()
    until(is_refused, "the coordinator closes")
    assert closing.is_alive()

    scene.let_go()
    closing.join(PATIENCE_S)
    caller.join(PATIENCE_S)
    assert not closing.is_alive()
    assert len(answers) == 1


def test_a_signal_handler_that_closes_does_not_wait_for_the_call_it_interrupts(
    scene: Scene,
) -> None:
    scene.store.before_save = scene.coordinator.close

    answer = scene.coordinator.execute(new_job(1))

    assert isinstance(answer, Reply)
    assert answer.is_ok


def test_an_interrupted_caller_leaves_its_job_to_others(scene: Scene) -> None:
    def interrupt() -> None:
        scene.store.before_save = lambda: None
        raise KeyboardInterrupt

    scene.store.before_save = interrupt
    with pytest.raises(KeyboardInterrupt):
        scene.coordinator.execute(new_job(1))

    again = scene.coordinator.submit(new_job(1)).result(PATIENCE_S)
    scene.coordinator.execute(new_job(2))

    assert isinstance(again[0], Reply)
    assert again[0].is_ok
    assert scene.store.threads[-1] == get_ident()


def test_an_interrupt_at_any_place_leaves_the_job_to_others(scene: Scene) -> None:
    job = new_job(1)
    coordinator = scene.coordinator
    coordinator.timeout_s = PATIENCE_S

    for number in interrupted_everywhere(lambda: coordinator.execute(job)):
        assert not coordinator.is_busy, number
        assert DEADLINE.get() is None, number
        [answer] = coordinator.submit(job).result(PATIENCE_S)
        until(lambda: not coordinator.is_busy, "nothing is under way")
        assert isinstance(answer, Reply)
        assert not coordinator._under_way, number
        assert not coordinator._deciding_callers, number
