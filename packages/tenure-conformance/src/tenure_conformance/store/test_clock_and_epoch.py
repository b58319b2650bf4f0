"""The store's clock, the sweeper's ticks, outages, and the epoch."""

import pytest

from tenure.coordinator.outages import OutageWatch
from tenure.coordinator.retention import KEEP_OUTAGES, Retention
from tenure.coordinator.sweeper import Sweeper
from tenure.core.commands import Outage
from tenure.core.ids import epoch_of
from tenure.core.instants import Instant, after, seconds
from tenure.core.vocabulary import Cause, EventCause, JobStatus, VerdictKind
from tenure.ports import ClockWindow, DueJobs, LeasedJobs, Store
from tenure_conformance.harness import CLIENT, Kit, policy
from tenure_conformance.spec import spec


def test_the_clock_is_the_stores_and_the_same_for_every_handle(kit: Kit) -> None:
    before = kit.now()
    kit.advance(seconds=1.5)

    assert kit.now() == before + seconds(1.5)
    assert kit.factory.reopen().now() == kit.now()
    assert kit.store.jobs.load([]).now == kit.now()


@spec("W2")
def test_a_tick_returns_the_highest_one_before_it(kit: Kit) -> None:
    start = kit.now()
    assert kit.store.upkeep.last_tick() == (None, start)
    assert _ticked(kit.store) == (None, start, start)
    kit.advance(seconds=3)
    highest, later = after(start, seconds(3)), after(start, seconds(1))
    assert _ticked(kit.store) == (start, highest, highest)
    kit.step_back(seconds=2)

    assert _ticked(kit.factory.reopen()) == (highest, later, highest)
    assert _ticked(kit.store) == (highest, later, highest)
    assert kit.factory.reopen().upkeep.last_tick() == (highest, later)


@spec("W6")
def test_a_tick_after_another_one_is_written_only_if_that_is_still_the_highest(kit: Kit) -> None:
    first = kit.store.upkeep.tick().written
    kit.advance(seconds=1)
    second = kit.store.upkeep.tick(after=first).written
    kit.advance(seconds=1)

    overtaken = kit.factory.reopen().upkeep.tick(after=first)

    assert second == after(first or kit.now(), seconds(1))
    assert (overtaken.before, overtaken.written) == (second, None)
    assert kit.store.upkeep.last_tick() == (second, kit.now())


@spec("W6")
def test_a_tick_says_whether_there_may_be_something_to_do(kit: Kit) -> None:
    kit.running_job(lease_s=30)
    kit.advance(seconds=31)

    assert kit.store.upkeep.tick().has_work


def _ticked(store: Store) -> tuple[Instant | None, Instant, Instant | None]:
    tick = store.upkeep.tick()
    return tick.before, tick.now, tick.written


@spec("O5")
def test_an_outage_is_remembered_by_every_handle(kit: Kit) -> None:
    now = kit.now()
    first = Outage(Instant(now - seconds(100)), Instant(now - seconds(50)))
    second = Outage(Instant(now - seconds(20)), now)
    kit.store.upkeep.record_outage(first)
    kit.store.upkeep.record_outage(second)

    store = kit.factory.reopen()

    assert _sorted(store.upkeep.outages(since=Instant(0))) == [first, second]
    assert store.upkeep.outages(since=first.ended_at) == [second]
    assert store.upkeep.outages(since=second.ended_at) == []
    assert _sorted(store.upkeep.outages(since=Instant(first.ended_at - 1))) == [first, second]


def _sorted(outages: list[Outage]) -> list[Outage]:
    return sorted(outages, key=lambda outage: outage.began_at)


@spec("O5")
def test_two_processes_may_record_the_same_outage(kit: Kit) -> None:
    outage = Outage(kit.now(), after(kit.now(), seconds(9)))
    kit.store.upkeep.record_outage(outage)
    kit.factory.reopen().upkeep.record_outage(outage)

    assert set(kit.store.upkeep.outages(since=kit.now())) == {outage}


@spec("O11")
def test_a_jump_and_an_outage_of_the_same_time_are_told_apart(kit: Kit) -> None:
    outage = Outage(kit.now(), after(kit.now(), seconds(9)))
    jump = Outage(outage.began_at, outage.ended_at, is_jump=True)
    kit.store.upkeep.record_outage(outage)
    kit.store.upkeep.record_outage(jump)

    assert set(kit.factory.reopen().upkeep.outages(since=kit.now())) == {outage, jump}


@spec("O5")
def test_a_failure_of_more_than_five_seconds_is_an_outage(kit: Kit) -> None:
    watch = OutageWatch(kit.monotonic)
    watch.read_clock(kit.now(), sent_us=watch.monotonic())
    watch.failed(sent_us=watch.monotonic())
    kit.advance(seconds=5)
    assert watch.wrote(kit.now()) is None

    began, sent_us = kit.now(), watch.monotonic()
    kit.advance(seconds=5, microseconds=1)
    watch.failed(sent_us=sent_us)

    assert watch.wrote(kit.now()) == Outage(began, kit.now())


@spec("O10")
def test_a_lease_that_expired_in_an_outage_costs_nothing(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)
    kit.advance(seconds=31)
    outage = Outage(Instant(kit.now() - seconds(20)), kit.now())
    kit.store.upkeep.record_outage(outage)

    kit.sweep(job, *kit.store.upkeep.outages(since=Instant(0)))

    stored = kit.reload(job)
    assert (stored.status, stored.failures, stored.outage_credits) == (JobStatus.QUEUED, 0, 1)
    assert kit.events(job)[-2].cause is EventCause.OUTAGE


@spec("O11", "O10", "O12", "W2")
def test_a_step_ahead_of_the_clock_costs_nothing(kit: Kit) -> None:
    expired = kit.running_job(lease_s=30, policy=policy(lease_s=30, max_attempts=1))
    timed_out = kit.running_job(
        policy=policy(lease_s=60, max_attempts=1, timeout_us=seconds(45)),
    )
    sweeper = Sweeper(kit.coordinator, monotonic=kit.monotonic)
    sweeper.sweep_once()

    kit.step_ahead(seconds=90)
    for _ in range(2):
        sweeper.sweep_once()
        kit.advance(seconds=1)

    [jump] = kit.factory.reopen().upkeep.outages(since=Instant(0))
    assert jump.is_jump
    assert jump.ended_at - jump.began_at == seconds(90)
    for job in (expired, timed_out):
        stored = kit.reload(job)
        assert (stored.status, stored.failures, stored.outage_credits) == (JobStatus.QUEUED, 0, 1)
    assert [kit.events(job)[-2].cause for job in (expired, timed_out)] == [
        EventCause.OUTAGE,
        EventCause.TIMEOUT,
    ]


@spec("O13")
def test_after_a_step_ahead_no_job_is_granted_before_its_lease_is_over_by_the_old_clock(
    kit: Kit,
) -> None:
    job = kit.running_job(lease_s=60)
    sweepers = [Sweeper(kit.coordinator, monotonic=kit.monotonic) for _ in range(3)]
    for _ in range(3):
        for sweeper in sweepers:
            sweeper.sweep_once()
        kit.advance(seconds=1)

    kit.step_ahead(seconds=90)
    for _ in range(4):
        for sweeper in sweepers:
            sweeper.sweep_once()
        kit.advance(seconds=1)

    assert kit.reload(job).status is JobStatus.QUEUED
    kit.advance_to(after(job.lease_expires_at or kit.now(), seconds(90)))
    early = kit.reload(job).run_at
    assert early is not None
    assert early >= kit.now()
    kit.advance(seconds=60)
    assert [again.id for again in kit.claimed()] == [job.id]


@spec("O13")
def test_a_step_ahead_holds_no_job_back_for_longer_than_a_lease(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)
    kit.step_ahead(seconds=3600)
    jump = Outage(Instant(kit.now() - seconds(9000)), kit.now(), is_jump=True)

    kit.sweep(job, jump)

    run_at = kit.reload(job).run_at
    assert run_at is not None
    assert kit.now() < run_at <= after(kit.now(), seconds(60))  # [W4] spreads over a minute


@spec("K11")
@pytest.mark.parametrize("off_s", [-10, 10])
def test_what_an_estimate_decided_is_written_only_if_the_clock_agrees(
    kit: Kit, off_s: float
) -> None:
    job = kit.running_job()
    changes = [kit.change(kit.completion(job)), kit.change(kit.new())]
    loaded = kit.store.jobs.load([])
    middle = loaded.now + seconds(off_s)
    elsewhere = ClockWindow(Instant(middle - seconds(2)), Instant(middle + seconds(2)))
    around = ClockWindow(Instant(loaded.now - seconds(2)), Instant(loaded.now + seconds(2)))

    for change in changes:
        refused = kit.store.jobs.save([change], epoch=loaded.epoch, window=elsewhere)
        assert refused.applied == frozenset()
    both = kit.store.jobs.save(changes, epoch=loaded.epoch, window=elsewhere)
    written = kit.store.jobs.save(changes, epoch=loaded.epoch, window=around)

    assert both.applied == frozenset()
    assert written.applied == {change.job.id for change in changes}


@spec("K11")
def test_the_first_enqueue_after_a_step_of_the_clock_is_dated_by_the_new_clock(kit: Kit) -> None:
    for ahead_s in (95, -50):
        kit.enqueue()  # the coordinator has read the clock
        kit.advance(seconds=20)
        if ahead_s > 0:
            kit.step_ahead(seconds=ahead_s)
        else:
            kit.step_back(seconds=-ahead_s)

        delayed = kit.enqueue(delay_s=60)
        kit.advance(seconds=1)
        expiring = kit.enqueue(expires_us=seconds(20))

        assert delayed.run_at == kit.now() + seconds(59)
        assert expiring.start_by == after(kit.now(), seconds(20))


@spec("L16", "L8")
def test_a_lease_that_is_granted_after_a_step_back_counts_from_now(kit: Kit) -> None:
    kit.enqueue(lease_s=60)
    kit.step_back(seconds=50)

    (grant,) = kit.claim().grants
    renewed_in = kit.reload(grant.job).lease_expires_at

    assert grant.ttl_us == seconds(60)
    assert renewed_in == after(kit.now(), seconds(60))
    kit.start(grant.job)
    kit.advance(seconds=10)
    assert kit.heartbeat(kit.reload(grant.job)).ttl_us == seconds(60)


@spec("L16", "E13")
def test_a_lease_that_is_shorter_than_a_step_back_ends_when_the_clock_has_caught_up(
    kit: Kit,
) -> None:
    enqueued = kit.enqueue(lease_s=30)
    kit.step_back(seconds=50)

    (grant,) = kit.claim().grants
    kit.start(grant.job)
    job = kit.reload(grant.job)

    assert job.updated_at == enqueued.updated_at
    assert job.lease_expires_at == enqueued.updated_at + 1
    kit.advance(seconds=49)
    assert kit.heartbeat(job).ttl_us == seconds(30)
    assert kit.complete(job).kind is VerdictKind.COMMITTED


@spec("O4")
@pytest.mark.parametrize(("more_us", "gone"), [(-1, 0), (0, 0), (1, 1)])
def test_an_outage_is_deleted_when_it_ended_more_than_a_week_ago(
    kit: Kit, more_us: int, gone: int
) -> None:
    outage = Outage(Instant(kit.now() - seconds(60)), kit.now())
    kit.store.upkeep.record_outage(outage)
    kit.advance(microseconds=KEEP_OUTAGES + more_us)
    late = Outage(Instant(kit.now() - seconds(6)), kit.now())
    kit.store.upkeep.record_outage(late)

    report = Retention(kit.store).run_once()

    assert report.deleted["outages"] == gone
    assert _sorted(kit.store.upkeep.outages(since=Instant(0))) == [outage, late][gone:]


@spec("O4", "O10")
def test_an_outage_is_kept_while_a_lease_that_it_overlapped_waits_for_a_sweep(kit: Kit) -> None:
    job = kit.running_job(policy=policy(lease_s=30, timeout_us=None))
    kit.advance(seconds=20)
    outage = Outage(Instant(kit.now() - seconds(10)), kit.now())
    kit.store.upkeep.record_outage(outage)
    kit.advance(seconds=30 * 24 * 3600)

    assert kit.store.upkeep.delete("outages", older_than_us=KEEP_OUTAGES, limit=10).deleted == 0

    kit.sweep(job, *kit.store.upkeep.outages(since=Instant(0)))
    assert (kit.reload(job).failures, kit.reload(job).outage_credits) == (0, 1)
    assert kit.store.upkeep.delete("outages", older_than_us=KEEP_OUTAGES, limit=10).deleted == 1


@spec("O4")
def test_a_lease_granted_after_an_outage_does_not_keep_its_record(kit: Kit) -> None:
    kit.store.upkeep.record_outage(Outage(Instant(kit.now() - seconds(10)), kit.now()))
    kit.running_job()
    kit.advance(microseconds=KEEP_OUTAGES + 1)

    assert kit.store.upkeep.delete("outages", older_than_us=KEEP_OUTAGES, limit=10).deleted == 1


@spec("O4", "G4")
def test_outages_are_forgotten_in_pages(kit: Kit) -> None:
    for _ in range(3):
        kit.advance(seconds=60)
        kit.store.upkeep.record_outage(Outage(Instant(kit.now() - seconds(10)), kit.now()))
    kit.advance(seconds=61)

    pages = [
        kit.store.upkeep.delete("outages", older_than_us=seconds(60), limit=2).deleted
        for _ in range(3)
    ]

    assert pages == [2, 1, 0]


@spec("A5")
def test_the_epoch_starts_at_one_and_rises_by_one(kit: Kit) -> None:
    assert kit.store.jobs.load([]).epoch == 1

    assert kit.store.raise_epoch() == 2
    assert kit.factory.reopen().raise_epoch() == 3

    assert kit.store.jobs.load([]).epoch == 3
    assert kit.store.jobs.load(LeasedJobs(kit.claim_request().session), bodies=False).epoch == 3
    assert kit.store.jobs.load(DueJobs(1)).epoch == 3


@spec("A5", "R2")
def test_leases_of_an_earlier_epoch_are_lost_at_once(kit: Kit) -> None:
    job = kit.running_job(lease_s=60)
    kit.store.raise_epoch()

    heartbeat, complete = kit.heartbeat(job), kit.complete(job)

    assert (heartbeat.kind, heartbeat.cause) == (VerdictKind.CANCELLED, Cause.EPOCH_CHANGED)
    assert (complete.kind, complete.cause) == (VerdictKind.CANCELLED, Cause.EPOCH_CHANGED)
    assert kit.reload(job) == job


@spec("A5", "T12", "A6")
def test_a_job_of_an_earlier_epoch_moves_on_when_its_lease_expires(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)
    kit.store.raise_epoch()
    kit.sweep(job)
    assert kit.reload(job) == job
    kit.advance_to(job.due_at)

    kit.sweep(job)

    assert kit.reload(job).status is JobStatus.QUEUED
    kit.advance(seconds=60)
    (grant,) = kit.claim().grants
    assert epoch_of(grant.lease_id) == 2
    assert grant.fence == (2 << 32) + 2


@spec("A7")
def test_a_raised_epoch_costs_a_job_no_attempt(kit: Kit) -> None:
    job = kit.running_job(policy=policy(lease_s=30, max_attempts=1))
    kit.store.raise_epoch()
    kit.advance_to(job.due_at)

    kit.sweep(job)

    stored = kit.reload(job)
    assert (stored.status, stored.failures, stored.outage_credits) == (JobStatus.QUEUED, 0, 1)


@spec("A5", "Q1")
def test_a_claim_of_an_earlier_epoch_is_not_repeated(kit: Kit) -> None:
    kit.enqueue()
    request = kit.claim_request()
    kit.coordinator.claim(request)
    kit.store.raise_epoch()

    assert kit.coordinator.claim(request).grants == ()


@spec("A5")
def test_a_report_decided_before_the_epoch_was_raised_is_refused(kit: Kit) -> None:
    job = kit.running_job()
    once = iter([True])

    def fail_over(_: object) -> None:
        if next(once, False):
            kit.store.raise_epoch()

    verdict = kit.interpose(fail_over).execute(kit.completion(job))

    assert getattr(verdict, "cause", None) is Cause.EPOCH_CHANGED
    assert kit.reload(job) == job


@spec("A5")
def test_clients_can_continue_in_the_new_epoch(kit: Kit) -> None:
    job = kit.running_job()
    kit.store.raise_epoch()

    assert kit.cancel_hard(job).is_ok
    assert kit.enqueue(actor=CLIENT).status is JobStatus.QUEUED
