"""Firing: by whoever sweeps, in virtual time; never on a clock that jumped and is not confirmed."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.coordinator.schedules import Firer
from tenure.coordinator.sweeper import SWEEP_INTERVAL, Sweeper
from tenure.core.commands import Cancel, Start
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    SYSTEM,
    JobId,
    ScheduleName,
    operator_actor,
    worker_actor,
)
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job
from tenure.core.schedules import PutSchedule, Schedule, ScheduleChange, ScheduleSpec
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import CatchUp, EventType, JobStatus, Overlap
from tenure.errors import StoreUnavailable
from tenure_conformance.spec import spec
from tests.support.coordinators import KIND, QUEUE, VirtualClock, World

HOUR = seconds(3600)
HOURLY = ScheduleName("hourly")
STEP_S = SWEEP_INTERVAL / 1e6


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.coordinator.close()


def put(world: World, **fields: Any) -> Schedule:
    spec_ = replace(ScheduleSpec(kind=KIND, queue=QUEUE, every_us=HOUR), **fields)
    command = PutSchedule(
        namespace=DEFAULT_NAMESPACE, name=HOURLY, actor=operator_actor("o"), spec=spec_
    )
    reply = world.coordinator.change_schedule(command)
    assert reply.schedule is not None
    return reply.schedule


def stored(world: World) -> Schedule:
    found = world.store.schedules.load(DEFAULT_NAMESPACE, HOURLY).schedule
    assert found is not None
    return found


def runs(world: World) -> list[Job]:
    """Oldest first."""
    found = world.store.views.jobs(JobFilter(namespace=DEFAULT_NAMESPACE, schedule=HOURLY)).jobs
    return list(reversed(found))


def times(world: World) -> list[Instant | None]:
    return [job.scheduled_for for job in runs(world)]


def sweeping(world: World) -> Sweeper:
    """A sweeper that has begun, and trusts the clock."""
    sweeper = Sweeper(world.coordinator, monotonic=world.clock)
    for _ in range(3):
        sweeper.sweep_once()
        world.clock.advance(STEP_S)
    return sweeper


@spec("SC25")
def test_a_sweeper_fires_within_a_second_of_the_nominal_time(world: World) -> None:
    sweeper = sweeping(world)
    first = put(world, overlap=Overlap.ALLOW).next_at
    assert first is not None

    while world.clock.now < first + HOUR + seconds(5):
        world.clock.advance(STEP_S)
        sweeper.sweep_once()

    assert times(world) == [first, first + HOUR]
    assert all(0 <= job.enqueued_at - (job.scheduled_for or 0) <= seconds(1) for job in runs(world))


@spec("SC25")
def test_a_pass_says_when_the_next_schedule_is_due(world: World) -> None:
    sweeper = sweeping(world)
    assert sweeper.sweep_once().next_in_us is None
    at = put(world).next_at
    assert at is not None

    assert sweeper.sweep_once().next_in_us == at - world.clock.now


class JumpingClock(VirtualClock):
    """The store's clock; the process's own does not jump with it."""

    def __init__(self) -> None:
        super().__init__()
        self.jumped = 0

    def monotonic(self) -> int:
        return self.now - self.jumped

    def jump(self, by_us: int) -> None:
        self.now = Instant(self.now + by_us)
        self.jumped += by_us


@spec("SC25", "W2")
@pytest.mark.parametrize("catch_up", list(CatchUp))
def test_nothing_fires_on_a_jump_until_it_is_confirmed(catch_up: CatchUp) -> None:
    clock = JumpingClock()
    world = World(clock=clock)
    sweeper = Sweeper(world.coordinator, monotonic=clock.monotonic)
    for _ in range(3):
        sweeper.sweep_once()
        clock.advance(STEP_S)
    first = put(world, catch_up=catch_up, overlap=Overlap.ALLOW).next_at
    assert first is not None

    clock.jump(3 * HOUR)
    suspicious = sweeper.sweep_once()
    unconfirmed = times(world)
    clock.advance(STEP_S)
    sweeper.sweep_once()

    assert suspicious.distrusts_clock
    assert unconfirmed == []
    latest = first + 2 * HOUR
    is_late = clock.now - latest > seconds(60)
    expected = {
        CatchUp.LATEST: [latest],
        CatchUp.ALL: [first, first + HOUR, latest],
        CatchUp.NONE: [] if is_late else [latest],
    }
    assert times(world) == expected[catch_up]
    world.coordinator.close()


@spec("SC25", "SC2")
def test_a_jump_that_is_taken_back_fires_nothing() -> None:
    clock = JumpingClock()
    world = World(clock=clock)
    sweeper = Sweeper(world.coordinator, monotonic=clock.monotonic)
    for _ in range(3):
        sweeper.sweep_once()
        clock.advance(STEP_S)
    put(world)

    clock.jump(3 * HOUR)
    sweeper.sweep_once()
    clock.jump(-3 * HOUR)
    clock.advance(STEP_S)
    sweeper.sweep_once()

    assert times(world) == []
    world.coordinator.close()


POLICIES = [
    (catch_up, overlap)
    for catch_up in CatchUp
    for overlap in Overlap
    if (catch_up, overlap) != (CatchUp.ALL, Overlap.SKIP)
]


@spec("SC7", "SC8")
@pytest.mark.parametrize(("catch_up", "overlap"), POLICIES)
def test_a_stop_of_three_hours_under_each_policy(
    world: World, catch_up: CatchUp, overlap: Overlap
) -> None:
    """One run before the stop has not ended; then nobody sweeps for three hours."""
    sweeper = sweeping(world)
    first = put(world, catch_up=catch_up, overlap=overlap).next_at
    assert first is not None
    while world.clock.now < first:
        world.clock.advance(STEP_S)
        sweeper.sweep_once()
    assert times(world) == [first]

    world.clock.advance(3 * 3600 + 120)
    for _ in range(4):  # a process that starts lets the others record an outage first
        world.clock.advance(STEP_S)
        sweeper.sweep_once()

    missed = [first + hour * HOUR for hour in (1, 2, 3)]
    caught_up = {CatchUp.LATEST: missed[2:], CatchUp.ALL: missed, CatchUp.NONE: []}[catch_up]
    made = [] if overlap is Overlap.SKIP else caught_up
    assert times(world) == [first, *made]
    after = stored(world)
    assert after.fired == 1 + len(made)
    assert after.missed == 3 - len(caught_up)
    assert after.skipped == len(caught_up) - len(made)
    assert after.next_at == first + 4 * HOUR
    is_cancelled = overlap is Overlap.CANCEL and bool(made)
    statuses = [job.status for job in runs(world)]
    assert statuses[-1] is JobStatus.QUEUED
    assert all((each is JobStatus.CANCELLED) is is_cancelled for each in statuses[:-1])


@spec("V1", "SC8")
def test_a_pass_fires_for_a_bounded_time_and_the_next_one_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeper = sweeping(world)
    put(world, catch_up=CatchUp.ALL, overlap=Overlap.ALLOW)
    save = world.store.schedules.save

    def slowly(*arguments: Any, **keywords: Any) -> bool:
        world.clock.advance(0.1)
        return save(*arguments, **keywords)

    monkeypatch.setattr(world.store.schedules, "save", slowly)
    world.clock.advance(20 * 3600)

    reports = []
    for _ in range(15):
        world.clock.advance(STEP_S)
        reports.append(sweeper.sweep_once())

    assert max(report.fired for report in reports) == 3
    assert len(times(world)) == 20
    assert {report.next_in_us for report in reports if report.fired == 3} == {0}


@spec("SC7")
def test_a_running_job_is_asked_to_stop_softly_and_once(world: World) -> None:
    first = put(world, overlap=Overlap.CANCEL).next_at
    assert first is not None
    world.clock.now = first
    firer = Firer(world.coordinator)
    firer.fire_due()
    (grant,) = world.claim()
    start_running(world, grant.job_id)
    world.clock.now = Instant(first + HOUR)

    firer.fire_due()
    firer.fire_due()

    assert world.types(grant.job_id).count(EventType.CANCEL_REQUESTED) == 1
    [*_, request] = world.store.events.load([grant.job_id])[grant.job_id]
    assert (request.actor, request.to_status) == (SYSTEM, JobStatus.RUNNING)
    assert len(runs(world)) == 2


def start_running(world: World, job_id: JobId) -> None:
    job = world.reload(job_id)
    assert job.lease_id is not None
    world.coordinator.execute(
        Start(
            job_id=job_id,
            lease_id=job.lease_id,
            actor=worker_actor("w1"),
            request_id=world.request_id(),
        )
    )


@spec("SC7")
def test_a_process_that_dies_after_the_cancel_leaves_the_occurrence_to_another(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = put(world, overlap=Overlap.CANCEL).next_at
    assert first is not None
    world.clock.now = first
    Firer(world.coordinator).fire_due()
    world.clock.now = Instant(first + HOUR)

    def dies(*_: Any, **__: Any) -> bool:
        raise StoreUnavailable("killed")

    with monkeypatch.context() as patch:
        patch.setattr(world.store.schedules, "save", dies)
        with pytest.raises(StoreUnavailable):
            Firer(world.coordinator).fire_due()
    assert [job.status for job in runs(world)] == [JobStatus.CANCELLED]
    Firer(world.coordinator).fire_due()

    assert [job.status for job in runs(world)] == [JobStatus.CANCELLED, JobStatus.QUEUED]
    assert len(world.types(runs(world)[0].id)) == 2


@spec("SC25")
def test_one_schedule_that_cannot_be_fired_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("broken", "hourly"):
        spec_ = ScheduleSpec(kind=KIND, queue=QUEUE, every_us=HOUR, overlap=Overlap.CANCEL)
        world.coordinator.change_schedule(
            PutSchedule(
                namespace=DEFAULT_NAMESPACE,
                name=ScheduleName(name),
                actor=operator_actor("o"),
                spec=spec_,
            )
        )
    firer = Firer(world.coordinator)
    world.clock.advance(3601)
    firer.fire_due()
    world.clock.advance(3600)
    execute = world.coordinator.execute

    def fails(command: Any) -> Any:
        if isinstance(command, Cancel) and "broken" in command.reason:
            raise AssertionError("a bug")
        return execute(command)

    monkeypatch.setattr(world.coordinator, "execute", fails)

    assert firer.fire_due().fired == 1
    assert len(runs(world)) == 2


@spec("SC25", "Y5")
def test_a_schedule_with_a_word_of_a_newer_version_is_left_alone(world: World) -> None:
    schedule = put(world)
    assert schedule.next_at is not None
    newer = replace(schedule.spec, overlap=Overlap("queue"))
    theirs = replace(schedule, spec=newer, rev=schedule.rev + 1)
    change = ScheduleChange(schedule=theirs, expected_rev=schedule.rev)
    assert world.store.schedules.save(change, epoch=world.store.jobs.load([]).epoch)
    world.clock.now = schedule.next_at

    report = Firer(world.coordinator).fire_due()

    assert (report.fired, report.next_in_us) == (0, None)
    assert stored(world) == theirs
