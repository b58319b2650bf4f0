"""Sweeping: which jobs are due, in which order, and that each end is recorded once."""

from tenure.coordinator.sweeper import Sweeper
from tenure.core.ids import DEFAULT_NAMESPACE
from tenure.core.instants import Instant, seconds
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import EventType, JobStatus, OnLost
from tenure.ports import DueJobs
from tenure_conformance.harness import Kit, ids, policy
from tenure_conformance.spec import spec


@spec("T12")
def test_jobs_are_due_from_the_microsecond_of_their_end(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)
    assert job.due_at is not None
    kit.advance_to(Instant(job.due_at - 1))
    assert kit.store.jobs.load(DueJobs(10)).jobs == {}

    kit.advance(microseconds=1)
    due = kit.store.jobs.load(DueJobs(10))

    assert due.jobs == {job.id: job}
    assert due.now == job.due_at


def test_the_longest_overdue_come_first_and_no_more_than_asked(kit: Kit) -> None:
    jobs = [kit.running_job(lease_s=lease_s) for lease_s in (50, 30, 40, 60)]
    kit.advance(seconds=61)

    due = kit.store.jobs.load(DueJobs(3))

    assert ids(list(due.jobs.values())) == [jobs[1].id, jobs[2].id, jobs[0].id]


def test_whichever_bound_comes_first_makes_a_job_due(kit: Kit) -> None:
    by_timeout = kit.running_job(policy=policy(lease_s=60, timeout_us=seconds(5)))
    by_start = kit.claimed_job(policy=policy(lease_s=60, start_within_us=seconds(6)))
    by_grace = kit.running_job(policy=policy(lease_s=60, grace_us=seconds(0)))
    kit.cancel(by_grace)
    kit.advance(seconds=35)

    due = kit.store.jobs.load(DueJobs(10))

    assert list(due.jobs) == [by_timeout.id, by_start.id, by_grace.id]


def test_only_leased_jobs_are_due(kit: Kit) -> None:
    kit.enqueue(delay_s=1000)
    kit.stalled_job(policy=policy(lease_s=30, on_lost=OnLost.HOLD))
    kit.stalled_job(policy=policy(lease_s=30, on_lost=OnLost.RECLAIM))
    kit.succeeded_job()
    kit.advance(seconds=10_000)

    assert kit.store.jobs.load(DueJobs(10)).jobs == {}


@spec("W1", "T14")
def test_a_swept_job_is_no_longer_due(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)
    kit.advance_to(job.due_at)

    kit.sweep(job)
    kit.sweep(job)

    assert kit.store.jobs.load(DueJobs(10)).jobs == {}
    assert kit.types(job)[-2:] == [EventType.STALLED, EventType.REQUEUED]
    stored = kit.reload(job)
    assert (stored.status, stored.failures) == (JobStatus.QUEUED, 1)
    assert (stored.last_owner, stored.last_lease_expires_at) == (job.owner, job.lease_expires_at)


@spec("T15")
def test_a_lost_job_without_budget_is_a_dead_letter(kit: Kit) -> None:
    job = kit.running_job(policy=policy(lease_s=30, max_attempts=1))
    kit.advance_to(job.due_at)

    kit.sweep(job)

    stored = kit.reload(job)
    assert stored.status is JobStatus.DEAD_LETTERED
    assert kit.types(job)[-2:] == [EventType.STALLED, EventType.DEAD_LETTERED]


@spec("T16", "I15")
def test_a_lost_job_whose_cancel_was_requested_is_cancelled(kit: Kit) -> None:
    job = kit.running_job(policy=policy(lease_s=60, grace_us=seconds(600)))
    kit.cancel(job)
    kit.advance_to(job.due_at)

    kit.sweep(job)

    assert kit.reload(job).status is JobStatus.CANCELLED
    assert kit.types(job)[-2:] == [EventType.STALLED, EventType.CANCELLED]


@spec("V1", "W1")
def test_a_sweeper_records_everything_that_is_due(kit: Kit) -> None:
    jobs = [kit.running_job(lease_s=lease_s) for lease_s in (30, 30, 31)]
    finished = kit.running_job(lease_s=30)
    kit.complete(finished)
    sweeper = Sweeper(kit.coordinator, monotonic=kit.monotonic)
    swept = 0
    for _ in range(5):
        kit.advance(seconds=6)
        swept += sweeper.sweep_once().swept

    assert swept == 2
    assert [kit.reload(job).status for job in jobs] == [
        JobStatus.QUEUED,
        JobStatus.QUEUED,
        JobStatus.RUNNING,
    ]
    assert kit.reload(finished).status is JobStatus.SUCCEEDED


@spec("W5", "W1")
def test_reading_a_job_whose_lease_is_over_sweeps_it(kit: Kit) -> None:
    lost, listed = kit.running_job(lease_s=30), kit.running_job(lease_s=30)
    kit.advance(seconds=20)
    kept = kit.running_job(lease_s=30)
    kit.advance(seconds=10)
    sweeper = Sweeper(
        kit.coordinator,
        monotonic=kit.monotonic,
        pause=lambda pause_s: kit.advance(seconds=pause_s),
    )
    kit.coordinator.sweep_overdue = sweeper.sweep_overdue
    running = JobFilter(namespace=DEFAULT_NAMESPACE, statuses=(JobStatus.RUNNING,))

    found = kit.coordinator.read_jobs([lost.id, kept.id], bodies=False)
    others = kit.coordinator.list_jobs(running).jobs

    assert [found[job.id].status for job in (lost, kept)] == [JobStatus.QUEUED, JobStatus.RUNNING]
    assert [job.id for job in others] == [kept.id]
    for job in (lost, listed):
        assert kit.types(job)[-2:] == [EventType.STALLED, EventType.REQUEUED]
        assert kit.reload(job).failures == 1


@spec("W1")
def test_a_job_that_was_renewed_in_the_meantime_is_left_alone(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)
    kit.advance(seconds=29)
    kit.heartbeat(job)
    kit.advance(seconds=2)

    kit.sweep(job)

    assert kit.reload(job).status is JobStatus.RUNNING
