"""The service: coalescing, lost races, and errors that reach exactly those they concern."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Event as Signal
from threading import Semaphore
from typing import Any

import pytest

from tenure.coordinator import service
from tenure.coordinator.batches import (
    DECIDED_TOGETHER,
    LARGEST_REMEMBERED_BYTES,
    MAX_TRIES,
)
from tenure.coordinator.service import UNDELAYED_BATCHES, Coordinator, _Claim, _Commands
from tenure.core.commands import Cancel, Complete, Enqueue, Heartbeat, Start, Sweep
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    JobId,
    RequestId,
    new_job_id,
    worker_actor,
)
from tenure.core.instants import Instant
from tenure.core.job import Progress
from tenure.core.outcomes import Change
from tenure.core.validation import MAX_PER_JOB
from tenure.core.verdicts import Reply, Verdict
from tenure.core.vocabulary import CancelMode, Cause, JobStatus, VerdictKind
from tenure.deadlines import deadline
from tenure.errors import (
    Closed,
    Contended,
    InvalidInput,
    OutcomeUnknown,
    StoreRefused,
    StoreUnavailable,
)
from tenure.ports import LeasedJobs, Loaded, Saved
from tenure.stores.sqlite.memory import MemoryStore
from tenure_conformance.spec import spec
from tests.support.coordinators import CLIENT, KIND, QUEUE, VirtualClock, World
from tests.support.doubles import instead
from tests.support.waiting import PATIENCE_S

W1 = worker_actor("w1")


class ScriptedStore(MemoryStore):
    """A memory store that counts calls and lets a test step in before a save."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self.saves: list[int] = []
        self.loads: list[int] = []
        self.before_save: Callable[[Sequence[Change]], None] = lambda changes: None
        self.after_load: Callable[[], None] = lambda: None
        self._own_load = instead(self, "jobs.load", self._load)
        self._own_save = instead(self, "jobs.save", self._save)

    def _load(self, ids: Sequence[JobId]) -> Any:
        self.loads.append(len(ids))
        loaded = self._own_load(ids)
        self.after_load()
        return loaded

    def _save(self, changes: Iterable[Change], **named: Any) -> Any:
        whole = list(changes)
        self.saves.append(len(whole))
        self.before_save(whole)
        return self._own_save(whole, **named)


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore(VirtualClock())


@pytest.fixture
def world(store: ScriptedStore) -> Iterator[World]:
    clock = store.database.clock
    assert isinstance(clock, VirtualClock)
    world = World(store, clock)
    yield world
    world.coordinator.close()


def enqueue_command(world: World, *, queue: str = QUEUE) -> Enqueue:
    return Enqueue(
        job_id=new_job_id(world.clock(), world.entropy(16)),
        namespace=DEFAULT_NAMESPACE,
        queue=queue,  # type: ignore[arg-type]  # tests also send names that are none
        kind=KIND,
        actor=CLIENT,
    )


def test_calls_that_wait_for_a_running_batch_share_one_transaction(
    world: World, store: ScriptedStore
) -> None:
    world.enqueue()
    taken, go_on = Signal(), Signal()

    def hold(changes: Sequence[Change]) -> None:
        taken.set()
        go_on.wait(30)
        store.before_save = lambda changes: None

    store.before_save = hold
    first = world.coordinator.submit(enqueue_command(world))
    taken.wait(30)
    others = [world.coordinator.submit(enqueue_command(world)) for _ in range(64)]
    go_on.set()
    answers = [future.result(30)[0] for future in [first, *others]]

    assert all(isinstance(answer, Reply) and answer.is_ok for answer in answers)
    assert store.saves == [1, 1, 64]


def test_a_call_that_is_larger_than_a_batch_is_answered(
    world: World, store: ScriptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_BATCH", 2)
    calls = [
        world.coordinator.submit_many([enqueue_command(world) for _ in range(size)])
        for size in (3, 1)
    ]

    answers = [answer for call in calls for answer in call.result(PATIENCE_S)]

    assert [isinstance(answer, Reply) and answer.is_ok for answer in answers] == [True] * 4
    assert store.saves[0] == 3


def test_claims_that_do_not_fit_into_a_batch_are_answered_by_the_next(
    world: World, store: ScriptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_BATCH", 3)
    for _ in range(6):
        world.enqueue()
    taken, go_on = Signal(), Signal()

    def hold(changes: Sequence[Change]) -> None:
        taken.set()
        go_on.wait(PATIENCE_S)
        store.before_save = lambda changes: None

    store.before_save = hold
    blocker = world.coordinator.submit(enqueue_command(world))
    taken.wait(PATIENCE_S)
    requests = [world.claim_request(worker, limit=2) for worker in ("w1", "w2", "w3")]
    claims = [world.coordinator.submit_claim(request) for request in requests]
    go_on.set()
    blocker.result(PATIENCE_S)

    assert [len(claim.result(PATIENCE_S).grants) for claim in claims] == [2, 2, 2]


def test_a_batch_that_hangs_in_the_store_is_abandoned_and_logged(
    world: World,
    store: ScriptedStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("tenure.coordinator.service.CLOSE_WITHIN_S", 0.01)
    world.enqueue()
    taken, go_on = Signal(), Signal()

    def hold(changes: Sequence[Change]) -> None:
        taken.set()
        go_on.wait(300)

    store.before_save = hold
    asked = world.coordinator.submit(enqueue_command(world))
    assert taken.wait(30)

    world.coordinator.close()

    assert not asked.done()
    assert "the store does not answer" in caplog.text
    go_on.set()
    assert isinstance(asked.result(30)[0], Reply)


def test_a_hung_batch_does_not_block_other_batches(store: ScriptedStore) -> None:
    clock = store.database.clock
    assert isinstance(clock, VirtualClock)
    world = World(store, clock, threads=UNDELAYED_BATCHES + 1)
    world.enqueue()
    stuck, go_on = Semaphore(0), Signal()
    held = [enqueue_command(world) for _ in range(UNDELAYED_BATCHES)]
    slow = {command.job_id for command in held}

    def hold(changes: Sequence[Change]) -> None:
        if changes[0].job.id in slow:
            stuck.release()
            go_on.wait(300)

    store.before_save = hold
    late = []
    for command in held:
        late.append(world.coordinator.submit(command))
        assert stuck.acquire(timeout=30)
    quick = world.coordinator.submit(enqueue_command(world))

    try:
        assert isinstance(quick.result(30)[0], Reply)
    finally:
        go_on.set()
    assert all(isinstance(future.result(30)[0], Reply) for future in late)
    world.coordinator.close()


def test_a_store_is_asked_for_nothing_while_it_takes_the_changes() -> None:
    """On PostgreSQL that would be one more connection for a flight that holds one."""

    class Jealous(MemoryStore):
        is_taking = False

        def __init__(self, *, clock: VirtualClock) -> None:
            super().__init__(clock=clock)
            self._own_save = instead(self, "jobs.save", self._save)
            self._own_load = instead(self, "events.load", self._load)

        def _save(self, changes: Iterable[Change], **named: Any) -> Any:
            self.is_taking = True
            whole = list(changes)
            self.is_taking = False
            return self._own_save(whole, **named)

        def _load(self, ids: Sequence[JobId], **named: Any) -> Any:
            assert not self.is_taking
            return self._own_load(ids, **named)

    clock = VirtualClock()
    store = Jealous(clock=clock)
    world = World(store, clock)
    repeated = [enqueue_command(world) for _ in range(10)]
    world.coordinator.submit_many(repeated).result(30)
    world.claim(limit=10)  # now only their histories tell what was asked first
    new = [enqueue_command(world) for _ in range(2 * DECIDED_TOGETHER)]
    world.coordinator.close()
    newcomer = World(store, clock)

    answers = newcomer.coordinator.submit_many([*new, *repeated]).result(30)

    assert [isinstance(each, Reply) and each.is_ok for each in answers] == [True] * len(answers)
    newcomer.coordinator.close()


def test_a_report_after_a_claim_needs_no_load(world: World, store: ScriptedStore) -> None:
    grant = world.running()
    loads = len(store.loads)

    verdict = world.complete(grant, actor=W1)

    assert verdict.kind is VerdictKind.COMMITTED
    assert len(store.loads) == loads


@spec("L16", "L8")
def test_a_clock_reading_that_arrived_late_grants_no_lease(
    world: World, store: ScriptedStore
) -> None:
    world.enqueue()
    (grant,) = world.claim()
    store.after_load = lambda: world.clock.advance(25)  # this process stands still
    world.coordinator.execute(
        Cancel(job_id=enqueue_command(world).job_id, actor=CLIENT, request_id=RequestId("c"))
    )
    store.after_load = lambda: None

    told = world.coordinator.execute(
        Start(
            job_id=grant.job_id,
            lease_id=grant.lease_id,
            actor=W1,
            request_id=RequestId("s"),
        )
    )

    expires_at = world.reload(grant.job_id).lease_expires_at
    assert isinstance(told, Verdict)
    assert expires_at is not None
    assert told.ttl_us == expires_at - store.now()


def test_a_large_row_is_loaded_again_rather_than_kept(world: World, store: ScriptedStore) -> None:
    grant = world.running()
    world.coordinator.execute(
        Heartbeat(
            job_id=grant.job_id,
            lease_id=grant.lease_id,
            actor=W1,
            hb_seq=1,
            checkpoint=b'"' + b"x" * LARGEST_REMEMBERED_BYTES + b'"',
        )
    )
    loads = len(store.loads)

    verdict = world.complete(grant, actor=W1)

    assert verdict.kind is VerdictKind.COMMITTED
    assert len(store.loads) == loads + 1


@spec("K1", "K8")
def test_a_lost_race_is_decided_again_on_the_new_row(world: World, store: ScriptedStore) -> None:
    grant = world.running()
    other = Coordinator(store, entropy=world.entropy, monotonic=world.clock)

    def cancel_first(changes: Sequence[Change]) -> None:
        store.before_save = lambda changes: None
        other.execute(
            Cancel(
                job_id=grant.job_id, actor=CLIENT, request_id=RequestId("c1"), mode=CancelMode.HARD
            )
        )

    store.before_save = cancel_first
    verdict = world.complete(grant, actor=W1)

    assert (verdict.kind, verdict.cause) == (VerdictKind.CANCELLED, Cause.JOB_CANCELLED)
    assert world.reload(grant.job_id).status is JobStatus.CANCELLED
    other.close()


@spec("K8")
def test_endless_races_end_in_a_retryable_error_and_change_nothing(
    world: World, store: ScriptedStore
) -> None:
    class Loser(ScriptedStore):
        def _save(self, changes: Iterable[Change], **_: Any) -> Saved:
            self.saves.append(len(list(changes)))
            return Saved(self.now(), frozenset())

    loser = Loser(world.clock)
    racing = Coordinator(loser, entropy=world.entropy, monotonic=world.clock)

    command = enqueue_command(world)

    with pytest.raises(Contended, match=str(command.job_id)) as caught:
        racing.execute(command)

    assert caught.value.tries == MAX_TRIES
    assert len(loser.saves) == MAX_TRIES
    assert store.jobs.load([command.job_id]).jobs == {}
    racing.close()


@spec("K2", "R10")
def test_a_decision_made_in_time_but_saved_too_late_is_refused(
    world: World, store: ScriptedStore
) -> None:
    grant = world.running()

    def stall(changes: Sequence[Change]) -> None:
        store.before_save = lambda changes: None
        world.clock.advance(60)

    store.before_save = stall
    verdict = world.complete(grant, actor=W1)

    assert (verdict.kind, verdict.cause) == (VerdictKind.CANCELLED, Cause.LEASE_EXPIRED)
    assert world.reload(grant.job_id).status is JobStatus.RUNNING


def test_two_commands_for_one_job_in_one_batch_are_decided_one_after_the_other(
    world: World,
) -> None:
    grant = world.running()
    report = Complete(
        job_id=grant.job_id, lease_id=grant.lease_id, actor=W1, request_id=RequestId("r")
    )

    first, second = world.coordinator.submit_many([report, report]).result(30)

    assert isinstance(first, Verdict)
    assert isinstance(second, Verdict)
    assert (first.kind, first.replayed) == (VerdictKind.COMMITTED, False)
    assert (second.kind, second.replayed) == (VerdictKind.COMMITTED, True)


def test_many_commands_about_one_job_do_not_hold_up_the_others(
    world: World, store: ScriptedStore
) -> None:
    grant = world.running()
    beats = [
        Heartbeat(
            job_id=grant.job_id,
            lease_id=grant.lease_id,
            actor=W1,
            hb_seq=number,
            progress=Progress(done=number),
        )
        for number in range(1, MAX_PER_JOB + 1)
    ]
    taken, go_on = Signal(), Signal()

    def hold(changes: Sequence[Change]) -> None:
        taken.set()
        go_on.wait(30)
        store.before_save = lambda changes: written.append({change.job.id for change in changes})

    written: list[set[JobId]] = []
    store.before_save = hold
    many = world.coordinator.submit_many(beats)
    taken.wait(30)
    other = enqueue_command(world)
    one = world.coordinator.submit(other)
    go_on.set()
    one.result(30)

    assert [type(answer) for answer in many.result(30)] == [Verdict] * MAX_PER_JOB
    assert other.job_id in written[0]
    assert len(written) >= MAX_PER_JOB - 1


@spec("J7")
def test_a_call_takes_at_most_ten_commands_about_one_job(
    world: World, store: ScriptedStore
) -> None:
    grant = world.running()
    before = len(store.saves)
    beats = [
        Heartbeat(job_id=grant.job_id, lease_id=grant.lease_id, actor=W1, hb_seq=number)
        for number in range(1, MAX_PER_JOB + 2)
    ]

    with pytest.raises(InvalidInput, match=rf"^commands: {MAX_PER_JOB + 1} of them are about job"):
        world.coordinator.submit_many(beats)

    assert len(store.saves) == before


def test_a_call_that_fails_half_way_does_not_say_that_nothing_was_written(
    world: World, store: ScriptedStore
) -> None:
    grant = world.running()
    beat = Heartbeat(job_id=grant.job_id, lease_id=grant.lease_id, actor=W1, hb_seq=1)
    report = Complete(
        job_id=grant.job_id, lease_id=grant.lease_id, actor=W1, request_id=RequestId("r")
    )

    def fail(changes: Sequence[Change]) -> None:
        if changes[0].job.status is JobStatus.SUCCEEDED:
            raise StoreUnavailable("gone")

    store.before_save = fail

    with pytest.raises(OutcomeUnknown, match="a part of the call was carried out, then: gone"):
        world.coordinator.submit_many([beat, report]).result(30)

    assert world.reload(grant.job_id).hb_seq == 1


def test_a_change_that_a_guard_refuses_costs_its_own_caller_only(
    world: World, store: ScriptedStore
) -> None:
    bad, good = enqueue_command(world), enqueue_command(world)

    def refuse(changes: Sequence[Change]) -> None:
        if any(change.job.id == bad.job_id for change in changes):
            raise StoreRefused("a guard said no")

    store.before_save = refuse
    taken, go_on = Signal(), Signal()
    original = store.before_save

    def hold(changes: Sequence[Change]) -> None:
        taken.set()
        go_on.wait(30)
        store.before_save = original

    store.before_save = hold
    blocker = world.coordinator.submit(enqueue_command(world))  # in the only thread
    taken.wait(30)
    bad_future, good_future = world.coordinator.submit(bad), world.coordinator.submit(good)
    go_on.set()
    blocker.result(30)

    assert isinstance(good_future.result(30)[0], Reply)
    with pytest.raises(StoreRefused):
        bad_future.result(30)


def test_every_waiting_caller_gets_the_error_of_a_store_that_fails(
    world: World, store: ScriptedStore
) -> None:
    world.enqueue()

    def fail(changes: Sequence[Change]) -> None:
        raise StoreUnavailable("gone")

    store.before_save = fail

    with pytest.raises(StoreUnavailable):
        world.enqueue()


@spec("J6")
def test_a_bad_command_in_a_batch_is_refused_before_anything_is_sent(
    world: World, store: ScriptedStore
) -> None:
    good, bad = enqueue_command(world), enqueue_command(world, queue="no spaces")

    with pytest.raises(InvalidInput, match=r"^queue: "):
        world.coordinator.submit_many([good, bad])

    assert store.saves == []
    assert store.jobs.load([good.job_id, bad.job_id]).jobs == {}


def test_a_cancelled_future_is_never_sent(world: World, store: ScriptedStore) -> None:
    world.enqueue()
    taken, go_on = Signal(), Signal()

    def hold(changes: Sequence[Change]) -> None:
        taken.set()
        go_on.wait(30)
        store.before_save = lambda changes: None

    store.before_save = hold
    blocker = world.coordinator.submit(enqueue_command(world))
    taken.wait(30)
    unwanted = enqueue_command(world)
    future = world.coordinator.submit(unwanted)
    assert future.cancel()
    go_on.set()
    blocker.result(30)
    world.enqueue()

    assert store.jobs.load([unwanted.job_id]).jobs == {}


def test_closing_finishes_what_was_submitted_and_refuses_what_comes_after() -> None:
    world = World()
    futures = [world.coordinator.submit(enqueue_command(world)) for _ in range(50)]

    world.coordinator.close()

    assert all(future.done() for future in futures)
    with pytest.raises(Closed):
        world.coordinator.submit(enqueue_command(world))
    with pytest.raises(Closed):
        world.coordinator.submit_claim(world.claim_request())


def test_an_empty_batch_is_answered_at_once(world: World) -> None:
    assert world.coordinator.submit_many([]).result(0) == []


@spec("D3", "T26")
def test_an_enqueue_repeated_while_its_job_is_purged_makes_the_job_anew(world: World) -> None:
    class Purging(ScriptedStore):
        def __init__(self, clock: VirtualClock) -> None:
            super().__init__(clock)
            self._own_history = instead(self, "events.load", self._history)

        def _history(self, ids: Sequence[JobId], **named: Any) -> Any:
            self.upkeep.delete("jobs", limit=1)
            return self._own_history(ids, **named)

    store = Purging(world.clock)
    coordinator = Coordinator(store, entropy=world.entropy, monotonic=world.clock)
    command = enqueue_command(world)
    coordinator.execute(command)
    coordinator.execute(Cancel(job_id=command.job_id, actor=CLIENT, request_id=RequestId("c1")))
    world.clock.advance(1)

    again = coordinator.execute(command)

    assert isinstance(again, Reply)
    assert again.job is not None
    assert (again.job.status, again.replayed) == (JobStatus.QUEUED, False)
    coordinator.close()


@spec("Q1")
def test_a_repeated_claim_that_cannot_be_answered_costs_its_own_caller_only(
    world: World, store: ScriptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.enqueue()
    world.enqueue()
    first, other = world.claim_request("w1"), world.claim_request("w2")
    world.coordinator.claim(first)

    def fail(wanted: LeasedJobs, *, bodies: bool) -> Loaded:
        raise StoreUnavailable("the test cut the network")

    monkeypatch.setattr(store.jobs, "load", fail)
    calls = [_Claim(first, deadline(10)), _Claim(other, deadline(10))]
    world.coordinator._run_claims(calls)

    assert isinstance(calls[0].future.exception(), StoreUnavailable)
    assert len(calls[1].future.result().grants) == 1


def test_a_command_without_an_answer_does_not_shift_the_answers_of_the_others() -> None:
    job_ids = [new_job_id(Instant(0), bytes([number] * 16)) for number in range(2)]
    call = _Commands([Sweep(job_id=each) for each in job_ids], deadline(10))
    call.pending[1].answer = Reply(job=None)

    with pytest.raises(AssertionError):
        call.answers()
