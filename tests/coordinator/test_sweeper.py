"""The sweeper: what time revoked is recorded once, never on a clock that jumped."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from random import Random
from threading import Barrier, Thread
from typing import Any

import pytest

from tenure.coordinator import sweeper as sweeper_module
from tenure.coordinator.outages import OutageWatch
from tenure.coordinator.sweeper import LONGEST_PAUSE, SWEEP_INTERVAL, ClockGuard, Sweeper
from tenure.core.commands import Outage
from tenure.core.ids import JobId, worker_actor
from tenure.core.instants import Instant, seconds
from tenure.core.outcomes import Change
from tenure.core.policy import Backoff, Policy, backoff_us
from tenure.core.vocabulary import EventCause, EventType, JobStatus, VerdictKind
from tenure.errors import StoreRefused, StoreUnavailable
from tenure.ports import Tick
from tenure.stores.sqlite.memory import MemoryStore
from tenure_conformance.spec import spec
from tests.support.coordinators import VirtualClock, World
from tests.support.doubles import instead, threads_by_hand
from tests.support.waiting import joined, until

W1 = worker_actor("w1")


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.coordinator.close()


def sweeper(world: World) -> Sweeper:
    return Sweeper(world.coordinator, monotonic=world.clock)


@spec("T12", "V2", "L9")
def test_a_killed_workers_job_is_ready_again_after_ttl_sweep_and_backoff(world: World) -> None:
    policy = Policy()
    grant = world.running(policy=policy)
    sweeping = sweeper(world)
    sweeping.sweep_once()
    longest_backoff_s = policy.backoff.initial_us / 1e6

    for _ in range(62):  # ttl 60 s and one sweep interval
        world.clock.advance(1)
        sweeping.sweep_once()
    world.clock.advance(longest_backoff_s)

    (again,) = world.claim("w2")
    assert again.job_id == grant.job_id
    assert again.attempt == 2
    assert world.reload(grant.job_id).failures == 1


@spec("V1")
def test_no_lease_outlives_its_end_by_more_than_a_sweep_interval(world: World) -> None:
    grants = [world.running(policy=Policy(lease_us=seconds(30 + number))) for number in range(20)]
    sweeping = sweeper(world)

    for _ in range(60):
        world.clock.advance(SWEEP_INTERVAL / 1e6)
        sweeping.sweep_once()

        rows = [world.reload(grant.job_id) for grant in grants]
        assert all(row.due_at is None or row.due_at > world.clock.now for row in rows)


@spec("W1")
def test_many_sweepers_record_each_deadline_once() -> None:
    clock = VirtualClock()
    store = MemoryStore(clock=clock)
    worlds = [World(store, clock) for _ in range(4)]
    grants = [worlds[0].running() for _ in range(200)]
    clock.advance(61)
    barrier = Barrier(len(worlds))

    def sweep(world: World) -> None:
        barrier.wait()
        sweeper(world).sweep_once()

    threads = [Thread(target=sweep, args=(world,)) for world in worlds]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(thread, "it has swept")

    for grant in grants:
        types = worlds[0].types(grant.job_id)
        assert types == ["enqueued", "claimed", "started", "stalled", "requeued"]
    for world in worlds:
        world.coordinator.close()


@spec("W1", "R8")
def test_a_report_accepted_in_time_is_not_undone_by_a_later_sweep(world: World) -> None:
    grant = world.running()
    world.clock.advance(59.999999)
    verdict = world.complete(grant, actor=W1)
    world.clock.advance(60)

    report = sweeper(world).sweep_once()

    assert verdict.kind is VerdictKind.COMMITTED
    assert report.swept == 0
    assert world.reload(grant.job_id).status is JobStatus.SUCCEEDED


@spec("H88")
def test_a_job_that_cannot_be_swept_leaves_the_store_writable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.running()
    sweeping = sweeper(world)
    sweeping.sweep_once()
    world.clock.advance(61)

    def refuse(changes: object, *, epoch: object, window: object) -> None:
        raise StoreUnavailable("a transaction of the caller's own holds the row")

    monkeypatch.setattr(world.store.jobs, "save", refuse)
    with pytest.raises(StoreUnavailable):
        sweeping.sweep_once()

    assert world.coordinator.writability.is_writable


@spec("V1")
def test_answers_that_are_always_late_do_not_end_all_sweeping(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.running()
    sweeping = sweeper(world)
    sweeping.sweep_once()
    world.clock.advance(60)
    tick = world.store.upkeep.tick

    def heard_late(*, after: Instant | None = None) -> Tick:
        answer = tick(after=after)
        world.clock.advance(6)
        return answer

    monkeypatch.setattr(world.store.upkeep, "tick", heard_late)
    reports = [sweeping.sweep_once() for _ in range(2)]

    assert [report.swept for report in reports] == [0, 1]


@spec("W2")
def test_a_jump_ahead_expires_nothing_until_a_second_reading_confirms_it(world: World) -> None:
    grant = world.running()
    monotonic = VirtualClock()
    sweeping = Sweeper(world.coordinator, monotonic=monotonic)
    sweeping.sweep_once()

    world.clock.advance(3600)  # the store's clock alone
    at_once = sweeping.sweep_once()
    status_at_once = world.reload(grant.job_id).status
    monotonic.advance(1)
    world.clock.advance(1)
    confirmed = sweeping.sweep_once()

    assert at_once.distrusts_clock
    assert status_at_once is JobStatus.RUNNING
    assert not confirmed.distrusts_clock
    assert confirmed.swept == 1


def stepped_ahead(world: World, monotonic: VirtualClock, *, by_s: float) -> Sweeper:
    """A sweeper that read the clock before it was set ahead, and has confirmed the jump."""
    sweeping = Sweeper(world.coordinator, monotonic=monotonic)
    sweeping.sweep_once()
    monotonic.advance(0.75)
    world.clock.advance(0.75 + by_s)
    sweeping.sweep_once()
    monotonic.advance(0.75)
    world.clock.advance(0.75)
    sweeping.sweep_once()
    return sweeping


@spec("O11", "O10", "O12")
def test_what_ends_because_the_clock_was_set_ahead_costs_nothing(world: World) -> None:
    expired = world.running(policy=Policy(max_attempts=1))
    timed_out = world.running(
        policy=Policy(max_attempts=1, lease_us=seconds(120), timeout_us=seconds(80))
    )

    stepped_ahead(world, VirtualClock(), by_s=90)

    for grant in (expired, timed_out):
        job = world.reload(grant.job_id)
        assert (job.status, job.failures, job.outage_credits) == (JobStatus.QUEUED, 0, 1)


@spec("O11")
def test_a_jump_is_recorded_from_the_last_reading_before_it_to_the_first_after_it(
    world: World,
) -> None:
    before = world.clock.now

    stepped_ahead(world, VirtualClock(), by_s=90)

    first_after = Instant(before + seconds(90.75))
    assert world.store.upkeep.outages(since=Instant(0)) == [
        Outage(before, first_after, is_jump=True)
    ]


@spec("O11", "O12")
def test_a_jump_gives_no_credit_to_leases_granted_after_it(world: World) -> None:
    sweeping = stepped_ahead(world, monotonic := VirtualClock(), by_s=90)
    grant = world.running(
        policy=Policy(max_attempts=1, lease_us=seconds(120), timeout_us=seconds(40))
    )

    for _ in range(45):
        monotonic.advance(1)
        world.clock.advance(1)
        sweeping.sweep_once()

    assert world.reload(grant.job_id).status is JobStatus.DEAD_LETTERED


@spec("O11", "W2")
def test_a_new_process_does_not_mistake_downtime_for_a_jump(world: World) -> None:
    grant = world.running(policy=Policy(max_attempts=1))
    sweeper(world).sweep_once()
    world.clock.advance(3600)  # nothing runs for an hour

    sweeping = sweeper(world)
    for _ in range(5):
        sweeping.sweep_once()
        world.clock.advance(1)

    assert world.store.upkeep.outages(since=Instant(0)) == []
    assert world.reload(grant.job_id).status is JobStatus.DEAD_LETTERED


@spec("O11")
def test_a_suspended_process_does_not_mistake_the_pause_for_a_jump(world: World) -> None:
    grant = world.running(policy=Policy(max_attempts=1))
    sweeping = sweeper(world)
    sweeping.sweep_once()

    world.clock.advance(3600)  # for the store and for this process alike
    sweeping.sweep_once()

    assert world.store.upkeep.outages(since=Instant(0)) == []
    assert world.reload(grant.job_id).status is JobStatus.DEAD_LETTERED


@spec("O11")
def test_a_jump_counts_even_if_the_store_fails_while_it_is_recorded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = world.running(policy=Policy(max_attempts=1))
    monotonic = VirtualClock()
    sweeping = Sweeper(world.coordinator, monotonic=monotonic)
    sweeping.sweep_once()
    world.clock.advance(90)
    sweeping.sweep_once()

    def fail(outage: Outage) -> None:
        raise StoreUnavailable("the test cut the network")

    monotonic.advance(1)
    world.clock.advance(1)
    with monkeypatch.context() as patched:
        patched.setattr(world.store.upkeep, "record_outage", fail)
        with pytest.raises(StoreUnavailable):
            sweeping.sweep_once()
    sweeping.sweep_once()

    job = world.reload(grant.job_id)
    assert (job.status, job.failures, job.outage_credits) == (JobStatus.QUEUED, 0, 1)


@spec("W2", "O11")
def test_a_single_bad_reading_is_forgotten_when_the_clock_steps_back(world: World) -> None:
    grant = world.running()
    monotonic = VirtualClock()
    sweeping = Sweeper(world.coordinator, monotonic=monotonic)
    sweeping.sweep_once()

    world.clock.advance(3600)
    sweeping.sweep_once()
    world.clock.advance(-3599)
    monotonic.advance(1)
    report = sweeping.sweep_once()

    assert report.swept == 0
    assert world.reload(grant.job_id).status is JobStatus.RUNNING
    assert world.store.upkeep.outages(since=Instant(0)) == []


@spec("W2")
def test_a_new_sweeper_distrusts_a_clock_far_ahead_of_the_last_recorded_tick() -> None:
    guard = ClockGuard(threshold_us=seconds(10), interval_us=seconds(1))
    ahead = Instant(seconds(3600))

    first = guard.admits(last_tick=Instant(0), now=ahead, monotonic_us=0)
    too_soon = guard.admits(last_tick=ahead, now=ahead, monotonic_us=seconds(0.5))
    second = guard.admits(last_tick=ahead, now=Instant(ahead + seconds(1)), monotonic_us=seconds(1))

    assert (first, too_soon, second) == (False, False, True)


class FlakyStore(MemoryStore):
    """A memory store whose tick can be made to fail, at once as behind a cut network, or after a
    while as with a server that hangs."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self._virtual = clock
        self.is_down = False
        self.hangs_s: float | None = None
        self._own_tick = instead(self, "upkeep.tick", self._tick)

    def _tick(self, *, after: Instant | None = None) -> Any:
        if self.hangs_s is not None:
            self._virtual.advance(self.hangs_s)
        if self.is_down or self.hangs_s is not None:
            raise StoreUnavailable("the test cut the network")
        return self._own_tick(after=after)


@spec("O5", "O10")
def test_an_outage_is_recorded_and_excuses_the_leases_it_overlapped() -> None:
    clock = VirtualClock()
    store = FlakyStore(clock=clock)
    world = World(store, clock)
    grant = world.running(policy=Policy(max_attempts=1))
    sweeping = sweeper(world)
    sweeping.sweep_once()

    store.is_down = True
    for _ in range(65):
        clock.advance(1)
        with pytest.raises(StoreUnavailable):
            sweeping.sweep_once()
    store.is_down = False
    clock.advance(1)
    report = sweeping.sweep_once()

    assert report.outage is not None
    assert report.outage.ended_at - report.outage.began_at == seconds(65)
    job = world.reload(grant.job_id)
    assert (job.status, job.failures, job.outage_credits) == (JobStatus.QUEUED, 0, 1)
    stalled = store.events.load([grant.job_id])[grant.job_id][3]
    assert (stalled.type, stalled.cause) == (EventType.STALLED, EventCause.OUTAGE)
    world.coordinator.close()


@spec("O5", "O10")
def test_an_outage_counts_even_if_the_store_fails_while_it_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualClock()
    store = FlakyStore(clock=clock)
    world = World(store, clock)
    grant = world.running(policy=Policy(max_attempts=1))
    sweeping = sweeper(world)
    sweeping.sweep_once()
    store.is_down = True
    with pytest.raises(StoreUnavailable):
        sweeping.sweep_once()
    store.is_down = False
    clock.advance(61)

    def fail(outage: Outage) -> None:
        raise StoreUnavailable("the test cut the network again")

    with monkeypatch.context() as patched:
        patched.setattr(store.upkeep, "record_outage", fail)
        with pytest.raises(StoreUnavailable):
            sweeping.sweep_once()
    clock.advance(1)
    sweeping.sweep_once()

    job = world.reload(grant.job_id)
    assert (job.status, job.failures, job.outage_credits) == (JobStatus.QUEUED, 0, 1)
    world.coordinator.close()


@spec("O5", "O10")
def test_an_outage_begins_when_the_first_unanswered_call_was_sent() -> None:
    clock = VirtualClock()
    store = FlakyStore(clock=clock)
    world = World(store, clock)
    grant = world.running(policy=Policy(max_attempts=1, lease_us=seconds(30)))
    sweeping = sweeper(world)
    sweeping.sweep_once()
    store.hangs_s = 40

    with pytest.raises(StoreUnavailable):
        sweeping.sweep_once()
    store.hangs_s = None
    report = sweeping.sweep_once()

    assert report.outage is not None
    assert report.outage.ended_at - report.outage.began_at == seconds(40)
    job = world.reload(grant.job_id)
    assert (job.status, job.failures, job.outage_credits) == (JobStatus.QUEUED, 0, 1)
    world.coordinator.close()


@spec("O5", "O10")
@pytest.mark.parametrize("outcome", ["fails", "succeeds late"])
@pytest.mark.parametrize("asked", ["jobs.load", "claims.claim"])
def test_an_unanswered_call_of_any_kind_begins_an_outage(
    monkeypatch: pytest.MonkeyPatch, asked: str, outcome: str
) -> None:
    clock = VirtualClock()
    world = World(MemoryStore(clock=clock), clock)
    grant = world.running(policy=Policy(max_attempts=1))
    sweeping = sweeper(world)
    sweeping.sweep_once()
    clock.advance(58)
    sweeping.sweep_once()
    subject_name, _, method = asked.partition(".")
    subject = getattr(world.store, subject_name)
    answer = getattr(subject, method)

    def hang(*arguments: object) -> object:
        clock.advance(6)
        if outcome == "fails":
            raise StoreUnavailable("the test let it hang")
        return answer(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(subject, method, hang)
        with suppress(StoreUnavailable):
            world.claim() if method == "claim" else world.coordinator.read_jobs([grant.job_id])
    report = sweeping.sweep_once()

    assert report.outage is not None
    job = world.reload(grant.job_id)
    assert (job.status, job.failures, job.outage_credits) == (JobStatus.QUEUED, 0, 1)
    world.coordinator.close()


@spec("O6")
def test_a_sweeper_that_has_just_begun_lets_others_record_their_outage_first() -> None:
    clock = VirtualClock()
    store = FlakyStore(clock=clock)
    world, fresh = World(store, clock), World(store, clock)
    grant = world.running(policy=Policy(max_attempts=1, lease_us=seconds(30)))
    sweeping = sweeper(world)
    sweeping.sweep_once()
    store.hangs_s = 40
    with pytest.raises(StoreUnavailable):
        sweeping.sweep_once()
    store.hangs_s = None
    store.upkeep.tick()  # the first process is between its tick and its next call

    beginner = sweeper(fresh)
    first = beginner.sweep_once()
    sweeping.sweep_once()
    clock.advance(2 * SWEEP_INTERVAL / 1e6)
    beginner.sweep_once()

    assert first.swept == 0
    job = world.reload(grant.job_id)
    assert (job.status, job.failures, job.outage_credits) == (JobStatus.QUEUED, 0, 1)
    for each in (world, fresh):
        each.coordinator.close()


@spec("O5")
def test_a_short_failure_is_no_outage() -> None:
    clock = VirtualClock()
    watch = OutageWatch(clock)
    watch.failed(sent_us=watch.monotonic())
    clock.advance(5)

    brief = watch.wrote(clock.now)
    began = clock.now
    watch.failed(sent_us=watch.monotonic())
    clock.advance(6)
    long = watch.wrote(clock.now)

    assert brief is None
    assert long == Outage(began, clock.now)


@spec("O5", "O10")
@pytest.mark.parametrize("asked", ["upkeep.tick", "jobs.load"])
def test_a_store_that_hangs_is_an_outage_too(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    clock = VirtualClock()
    world = World(MemoryStore(clock=clock), clock)
    grant = world.running(policy=Policy(max_attempts=1))
    world.running(policy=Policy(lease_us=seconds(51)))  # jobs are only searched if one is due
    sweeping = sweeper(world)
    sweeping.sweep_once()
    clock.advance(50)
    sweeping.sweep_once()
    clock.advance(1)
    subject_name, _, method = asked.partition(".")
    subject = getattr(world.store, subject_name)
    answer = getattr(subject, method)

    def hang(*wanted: object, **named: object) -> object:
        clock.advance(14)
        return answer(*wanted, **named)

    with monkeypatch.context() as patched:
        patched.setattr(subject, method, hang)
        report = sweeping.sweep_once()
    later = sweeping.sweep_once()
    sweeping.sweep_once()

    outage = report.outage or later.outage
    assert outage is not None
    assert outage.ended_at - outage.began_at == seconds(14)
    job = world.reload(grant.job_id)
    assert (job.status, job.failures, job.outage_credits) == (JobStatus.QUEUED, 0, 1)
    world.coordinator.close()


@spec("O5")
def test_an_answer_that_only_arrives_late_is_no_outage() -> None:
    monotonic = VirtualClock()
    watch = OutageWatch(monotonic)
    watch.read_clock(Instant(0), sent_us=watch.monotonic())
    monotonic.advance(1)
    sent_us = watch.monotonic()
    monotonic.advance(19)

    watch.read_clock(Instant(seconds(2)), sent_us=sent_us)

    assert not watch.is_out
    assert watch.wrote(Instant(seconds(20))) is None


@spec("W4")
def test_jobs_requeued_with_a_credit_come_back_spread_over_the_backoff_cap() -> None:
    clock = VirtualClock()
    world = World(clock=clock)
    policy = Policy(backoff=Backoff(cap_us=seconds(40)))
    grants = [world.running(policy=policy) for _ in range(20)]
    world.store.upkeep.record_outage(
        Outage(Instant(clock.now + 1), Instant(clock.now + seconds(30)))
    )
    clock.advance(61)

    sweeper(world).sweep_once()

    waits = sorted((world.reload(g.job_id).run_at or 0) - clock.now for g in grants)
    assert waits[0] >= 0
    assert waits[-1] <= seconds(40)
    assert len(set(waits)) == len(waits)
    assert waits[-1] > backoff_us(Backoff(), failures=1, entropy=b"\xff" * 16)
    world.coordinator.close()


def test_the_thread_sweeps_until_it_is_stopped() -> None:
    world = World()
    grant = world.running()
    world.clock.advance(61)
    sweeping = Sweeper(world.coordinator, interval_us=seconds(0.001), monotonic=world.clock)

    sweeping.start()
    until(lambda: world.reload(grant.job_id).status is not JobStatus.RUNNING, "the job was swept")
    sweeping.stop()

    assert world.reload(grant.job_id).status is JobStatus.QUEUED
    world.coordinator.close()


class StubbornStore(MemoryStore):
    """A store whose guard refuses one job's every change."""

    stubborn: JobId | None = None

    def __init__(self, *, clock: VirtualClock) -> None:
        super().__init__(clock=clock)
        self._own_save = instead(self, "jobs.save", self._save)

    def _save(self, changes: Iterable[Change], **named: Any) -> Any:
        whole = list(changes)
        if any(change.job.id == self.stubborn for change in whole):
            raise StoreRefused("a guard said no")
        return self._own_save(whole, **named)


def test_a_job_that_cannot_be_swept_does_not_block_the_others() -> None:
    clock = VirtualClock()
    store = StubbornStore(clock=clock)
    world = World(store, clock)
    grants = [world.running() for _ in range(3)]
    store.stubborn = grants[0].job_id
    clock.advance(61)

    report = sweeper(world).sweep_once()

    assert report.swept == 2
    statuses = [world.reload(grant.job_id).status for grant in grants]
    assert statuses == [JobStatus.RUNNING, JobStatus.QUEUED, JobStatus.QUEUED]
    world.coordinator.close()


class Fleet:
    """Processes that sweep one store, each by its own pauses, in virtual time."""

    def __init__(self, processes: int) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(clock=self.clock)
        self.worlds = [World(self.store, self.clock) for _ in range(processes)]
        luck = Random(1)
        with threads_by_hand(sweeper_module) as threads:
            self.sweepers = [
                Sweeper(world.coordinator, monotonic=world.clock, fraction=luck.random)
                for world in self.worlds
            ]
        self._threads = dict(zip(self.sweepers, threads, strict=True))
        self.next_at = {
            each: self.clock.now + int(seconds(luck.random())) for each in self.sweepers
        }
        self.passes: list[tuple[Instant, Sweeper]] = []
        self.reads = 0

    def run(self, amount_s: float) -> None:
        """Let them sweep for so long; each pass takes no time."""
        until_at = self.clock.now + seconds(amount_s)
        while True:
            sweeping = min(self.next_at, key=lambda each: self.next_at[each])
            if self.next_at[sweeping] > until_at:
                self.clock.advance((until_at - self.clock.now) / 1e6)
                return
            self.clock.advance(max(0, self.next_at[sweeping] - self.clock.now) / 1e6)
            self._threads[sweeping].work()
            if sweeping.is_sweeping:
                self.passes.append((self.clock.now, sweeping))
            else:
                self.reads += 1
            self.next_at[sweeping] = self.clock.now + self._threads[sweeping].pause_us

    def gaps(self) -> list[int]:
        return [later - before for (before, _), (later, _) in pairwise(self.passes)]

    def close(self) -> None:
        for world in self.worlds:
            world.coordinator.close()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    fleet = Fleet(50)
    yield fleet
    fleet.close()


@spec("W6")
def test_one_of_many_processes_sweeps_every_interval_and_the_others_seldom_ask(
    fleet: Fleet,
) -> None:
    fleet.run(10)
    fleet.passes, fleet.reads = [], 0

    fleet.run(100)

    assert len({sweeping for _, sweeping in fleet.passes}) == 1
    assert max(fleet.gaps()) <= SWEEP_INTERVAL
    assert fleet.reads <= 0.6 * 49 * 100


@spec("W6", "V1")
def test_a_lease_is_swept_within_a_second_by_the_process_that_sweeps(fleet: Fleet) -> None:
    fleet.run(10)
    grant = fleet.worlds[0].running(policy=Policy(lease_us=seconds(30)))

    fleet.run(31)

    assert "stalled" in fleet.worlds[0].types(grant.job_id)


@spec("W6")
@pytest.mark.parametrize("processes", [2, 50])
def test_another_process_takes_over_when_the_one_that_sweeps_is_gone(processes: int) -> None:
    fleet = Fleet(processes)
    fleet.run(10)
    _, sweeping = fleet.passes[-1]
    del fleet.next_at[sweeping]
    fleet.passes = fleet.passes[-1:]

    fleet.run(30)

    assert fleet.gaps()[0] <= LONGEST_PAUSE + SWEEP_INTERVAL
    assert max(fleet.gaps()[1:]) <= SWEEP_INTERVAL
    assert len({each for at, each in fleet.passes if at > fleet.clock.now - seconds(10)}) == 1
    fleet.close()


@spec("W6", "O6")
def test_a_process_that_follows_and_saw_no_outage_sweeps_as_soon_as_it_takes_over(
    fleet: Fleet,
) -> None:
    fleet.run(10)
    grant = fleet.worlds[0].running(policy=Policy(lease_us=seconds(30)))
    fleet.run(29.9)
    del fleet.next_at[fleet.passes[-1][1]]

    fleet.run(LONGEST_PAUSE / 1e6)

    assert "stalled" in fleet.worlds[0].types(grant.job_id)


@spec("W6", "O6")
def test_a_process_that_takes_over_after_a_slow_answer_lets_others_record_first() -> None:
    fleet = Fleet(2)
    grant = fleet.worlds[0].running(policy=Policy(max_attempts=1, lease_us=seconds(30)))
    fleet.run(29)
    follower = next(each for each in fleet.sweepers if not each.is_sweeping)
    fleet.clock.advance(4.5)  # its next reading waits, but for less than an outage

    reports = []
    for _ in range(4):
        reports.append(follower.sweep_once().swept)
        fleet.clock.advance(SWEEP_INTERVAL / 1e6)

    assert reports == [0, 0, 1, 0]
    assert "stalled" in fleet.worlds[0].types(grant.job_id)
    fleet.close()


@spec("W6", "O5", "O10")
def test_a_process_that_follows_records_an_outage_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet(2)
    fleet.run(10)
    follower = next(each for each in fleet.sweepers if not each.is_sweeping)
    mine = fleet.worlds[fleet.sweepers.index(follower)]
    began = fleet.clock.now
    mine.coordinator.outages.failed(sent_us=mine.coordinator.outages.monotonic())

    del fleet.next_at[follower]
    fleet.run(6)
    outage = follower.sweep_once().outage

    assert outage == Outage(began, fleet.clock.now)
    assert fleet.store.upkeep.outages(since=began) == [outage]


@spec("W6", "O11")
def test_a_process_that_follows_records_a_jump_of_the_clock() -> None:
    clock, elapsed = VirtualClock(), VirtualClock()
    worlds = [World(MemoryStore(clock=clock), clock)]
    worlds.append(World(worlds[0].store, clock))
    first, second = (Sweeper(each.coordinator, monotonic=elapsed) for each in worlds)
    for _ in range(3):
        first.sweep_once()
        second.sweep_once()
        clock.advance(SWEEP_INTERVAL / 1e6)
        elapsed.advance(SWEEP_INTERVAL / 1e6)
    began = clock.now
    assert second.sweep_once().follows

    clock.advance(3600)
    is_suspect = second.sweep_once().distrusts_clock
    clock.advance(SWEEP_INTERVAL / 1e6)
    elapsed.advance(SWEEP_INTERVAL / 1e6)
    second.sweep_once()

    [jump] = worlds[0].store.upkeep.outages(since=began)
    assert is_suspect
    assert jump.is_jump
    for world in worlds:
        world.coordinator.close()


@spec("W6")
def test_a_reader_that_ticks_once_does_not_stop_the_process_that_sweeps(fleet: Fleet) -> None:
    fleet.run(10)
    fleet.passes = []

    fleet.store.upkeep.tick()
    fleet.run(10)

    assert len({sweeping for _, sweeping in fleet.passes}) == 1
    assert max(fleet.gaps()) <= SWEEP_INTERVAL
