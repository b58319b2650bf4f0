"""Reads that sweep: what a reader may record, and what it must leave to the rules of a sweeper."""

from collections.abc import Iterator

import pytest

from tenure.coordinator import sweeper
from tenure.coordinator.sweeper import SWEEP_INTERVAL, Sweeper
from tenure.core.commands import Outage
from tenure.core.ids import DEFAULT_NAMESPACE, SYSTEM, JobId
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import EventCause, JobStatus
from tenure.errors import StoreRefused, StoreUnavailable
from tenure.ports import Tick
from tenure.stores.sqlite.memory import MemoryStore
from tenure_conformance.spec import spec
from tests.support.coordinators import VirtualClock, World
from tests.support.doubles import threads_by_hand

TWO_INTERVALS_S = 2 * SWEEP_INTERVAL / 1e6


class Reader:
    """A process that reads and has no running sweeper, in virtual time."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.elapsed = VirtualClock()
        self.store = MemoryStore(clock=self.clock)
        self.world = World(self.store, self.clock, monotonic=self.elapsed)
        self.pause = self.advance
        self.ticks = 0
        tick = self.store.upkeep.tick

        def counted(*, after: Instant | None = None) -> Tick:
            self.ticks += 1
            return tick(after=after)

        self.store.upkeep.tick = counted  # type: ignore[method-assign]  # the test counts its calls
        with threads_by_hand(sweeper):
            self.sweeper = Sweeper(
                self.world.coordinator,
                monotonic=self.elapsed,
                pause=lambda amount_s: self.pause(amount_s),
            )
        self.world.coordinator.sweep_overdue = self.sweeper.sweep_overdue

    def advance(self, amount_s: float) -> None:
        self.clock.advance(amount_s)
        self.elapsed.advance(amount_s)

    def read(self, job_id: JobId) -> Job:
        return self.world.coordinator.read_jobs([job_id])[job_id]

    def stalled_by(self, job_id: JobId) -> EventCause | None:
        """What the log says ended the attempt; None if it has not ended."""
        events = self.store.events.load([job_id])[job_id]
        return next((event.cause for event in events if event.type == "stalled"), None)


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.world.coordinator.close()


@spec("W5")
def test_whoever_reads_a_job_whose_lease_is_over_sweeps_it_first(reader: Reader) -> None:
    grant = reader.world.running()
    reader.advance(480)

    job = reader.read(grant.job_id)

    assert (job.status, job.failures) == (JobStatus.QUEUED, 1)
    assert reader.stalled_by(grant.job_id) is EventCause.LEASE_EXPIRED
    assert reader.store.events.load([grant.job_id])[grant.job_id][-1].actor == SYSTEM


@spec("W5")
def test_reads_write_nothing_while_the_lease_is_valid(reader: Reader) -> None:
    grant = reader.world.running()
    reader.advance(59.9)

    for _ in range(10):
        assert reader.read(grant.job_id).status is JobStatus.RUNNING

    assert reader.ticks == 0


@spec("W5")
def test_a_list_sweeps_its_page_and_shows_what_still_has_the_wanted_status(reader: Reader) -> None:
    lost = [reader.world.running() for _ in range(3)]
    reader.advance(61)
    kept = reader.world.running()
    running = JobFilter(namespace=DEFAULT_NAMESPACE, statuses=(JobStatus.RUNNING,))

    listed = reader.world.coordinator.list_jobs(running).jobs

    assert [job.id for job in listed] == [kept.job_id]
    assert all(reader.stalled_by(grant.job_id) for grant in lost)


@spec("W5")
def test_a_script_that_reads_many_lost_jobs_ticks_once(reader: Reader) -> None:
    lost = [reader.world.running() for _ in range(20)]
    reader.advance(61)

    for grant in lost:
        assert reader.read(grant.job_id).status is JobStatus.QUEUED

    assert reader.ticks == 1


@spec("W5", "O6")
def test_a_reader_waits_two_intervals_for_those_who_saw_an_outage(reader: Reader) -> None:
    grant = reader.world.running()
    renewed_at = reader.clock.now
    reader.advance(61)
    reader.store.upkeep.tick()  # another process sweeps here
    began = reader.elapsed.now

    def pause(amount_s: float) -> None:
        reader.advance(amount_s)
        reader.store.upkeep.record_outage(Outage(renewed_at, reader.clock.now))

    reader.pause = pause
    job = reader.read(grant.job_id)

    assert reader.elapsed.now - began >= seconds(TWO_INTERVALS_S)
    assert (job.status, job.failures) == (JobStatus.QUEUED, 0)
    assert reader.stalled_by(grant.job_id) is EventCause.OUTAGE


@spec("W5")
def test_a_reader_that_has_not_swept_for_a_while_waits_again(reader: Reader) -> None:
    first = reader.world.running()
    reader.advance(61)
    reader.read(first.job_id)
    reader.advance(3600)
    grant = reader.world.running()
    reader.advance(61)
    began = reader.elapsed.now

    assert reader.read(grant.job_id).status is JobStatus.QUEUED
    assert reader.elapsed.now - began >= seconds(TWO_INTERVALS_S)


@spec("W5", "W2")
def test_a_single_wrong_reading_of_the_clock_expires_nothing_for_a_reader(reader: Reader) -> None:
    first = reader.world.running()
    reader.advance(61)
    reader.read(first.job_id)
    grant = reader.world.running()

    def pause(amount_s: float) -> None:
        reader.clock.now = Instant(reader.clock.now - seconds(90))
        reader.pause = reader.advance
        reader.advance(amount_s)

    reader.pause = pause
    reader.clock.advance(90)
    job = reader.read(grant.job_id)

    assert job.status is JobStatus.RUNNING
    assert reader.stalled_by(grant.job_id) is None


@spec("W5", "O11")
def test_a_jump_that_a_reader_confirms_costs_no_attempt(reader: Reader) -> None:
    first = reader.world.running()
    reader.advance(61)
    reader.read(first.job_id)
    grant = reader.world.running()

    reader.clock.advance(90)
    job = reader.read(grant.job_id)

    assert (job.status, job.failures) == (JobStatus.QUEUED, 0)


@spec("W5", "O6")
def test_a_reader_records_the_outage_that_it_saw_before_it_sweeps(reader: Reader) -> None:
    grant = reader.world.running()
    watch = reader.world.coordinator.outages
    sent_us = watch.monotonic()
    reader.advance(61)
    watch.failed(sent_us=sent_us)

    job = reader.read(grant.job_id)

    assert (job.status, job.failures) == (JobStatus.QUEUED, 0)
    assert reader.stalled_by(grant.job_id) is EventCause.OUTAGE


@spec("W5", "O5")
def test_a_failure_of_hours_ago_is_no_outage_until_the_next_read(reader: Reader) -> None:
    watch = reader.world.coordinator.outages
    watch.failed(sent_us=watch.monotonic())
    reader.advance(4 * 3600)
    grant = reader.world.running()
    reader.advance(61)

    job = reader.read(grant.job_id)

    assert (job.status, job.failures) == (JobStatus.QUEUED, 1)
    assert reader.store.upkeep.outages(since=Instant(0)) == []


@spec("W5", "O5")
def test_failures_an_hour_apart_are_not_one_outage(reader: Reader) -> None:
    watch = reader.world.coordinator.outages
    watch.failed(sent_us=watch.monotonic())
    reader.advance(3600)
    sent_us = watch.monotonic()
    reader.advance(6)
    watch.failed(sent_us=sent_us)
    began_at = Instant(reader.clock.now - seconds(6))
    reader.advance(600)
    grant = reader.world.running()
    reader.advance(61)

    reader.read(grant.job_id)

    assert reader.store.upkeep.outages(since=Instant(0)) == [
        Outage(began_at, Instant(began_at + seconds(6)))
    ]


@spec("W5")
@pytest.mark.parametrize("failure", [StoreUnavailable("away"), StoreRefused("read-only")])
def test_a_read_does_not_fail_because_its_sweep_did(
    reader: Reader, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    grant = reader.world.running()
    reader.advance(61)
    tried = 0

    def refuse(*, after: Instant | None = None) -> Tick:
        nonlocal tried
        tried += 1
        raise failure

    reader.store.upkeep.tick = refuse  # type: ignore[method-assign]  # the store cannot be written
    jobs = [reader.read(grant.job_id) for _ in range(5)]

    assert {job.status for job in jobs} == {JobStatus.RUNNING}
    assert tried == 1
    assert len(caplog.messages) == 1
    assert "leases that are over could not be recorded" in caplog.messages[0]


@spec("W5")
def test_a_reader_beside_a_running_sweeper_does_not_wait(reader: Reader) -> None:
    grant = reader.world.running()
    reader.store.upkeep.tick()
    reader.advance(61)
    reader.sweeper.start()
    began = reader.elapsed.now

    assert reader.read(grant.job_id).status is JobStatus.RUNNING
    assert reader.elapsed.now == began

    reader.sweeper.sweep_once()  # as its thread does
    reader.advance(TWO_INTERVALS_S)
    reader.sweeper.sweep_once()
    assert reader.read(grant.job_id).status is JobStatus.QUEUED
