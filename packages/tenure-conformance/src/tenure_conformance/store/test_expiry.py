"""Jobs that expire: never granted from `start_by` on, and cancelled by the next sweep."""

from tenure.coordinator.sweeper import Sweeper
from tenure.core.ids import SYSTEM
from tenure.core.instants import Instant, seconds
from tenure.core.vocabulary import (
    EventCause,
    EventType,
    JobStatus,
    OnLost,
    ReleaseKind,
    VerdictKind,
)
from tenure.ports import DueJobs
from tenure_conformance.harness import Kit, ids, policy
from tenure_conformance.spec import spec


@spec("EX1")
def test_the_time_counts_from_when_the_job_could_have_been_started(kit: Kit) -> None:
    at_once = kit.enqueue(expires_us=seconds(10))
    delayed = kit.enqueue(expires_us=seconds(10), delay_us=seconds(60))
    in_the_past = kit.enqueue(expires_us=seconds(10), run_at=Instant(kit.now() - seconds(60)))
    never = kit.enqueue()

    assert at_once.start_by == at_once.enqueued_at + seconds(10)
    assert delayed.start_by == delayed.enqueued_at + seconds(70)
    assert in_the_past.start_by == in_the_past.enqueued_at + seconds(10)
    assert never.start_by is None
    assert kit.events(at_once)[0].payload.start_by == at_once.start_by


@spec("EX2")
def test_no_claim_gets_an_expired_job_though_no_sweeper_runs(kit: Kit) -> None:
    expiring = [kit.enqueue(expires_us=seconds(10), priority=5) for _ in range(3)]
    delayed = kit.enqueue(expires_us=seconds(5), delay_us=seconds(5))
    patient = kit.enqueue()
    kit.advance_to(Instant(needed(expiring[0].start_by) - 1))
    assert ids(kit.claim(1).grants) == [expiring[0].id]

    kit.advance(microseconds=1)
    found = kit.claim(1)

    assert ids(found.grants) == [patient.id], "expired jobs do not lie in its way"
    assert kit.claim(10).grants == ()
    assert kit.reload(delayed).status is JobStatus.QUEUED


@spec("EX2", "T31")
def test_the_next_sweep_cancels_it_once(kit: Kit) -> None:
    job = kit.enqueue(expires_us=seconds(10))
    other = kit.enqueue(expires_us=seconds(5), delay_us=seconds(4))
    kit.advance_to(Instant(needed(other.start_by) - 1))
    assert kit.store.jobs.load(DueJobs(10)).jobs == {}

    kit.advance_to(job.start_by)
    assert list(kit.store.jobs.load(DueJobs(10)).jobs) == [other.id, job.id], (
        "longest overdue first"
    )
    assert list(kit.store.jobs.load(DueJobs(1)).jobs) == [other.id]
    kit.sweep(job)
    kit.sweep(job)

    stored = kit.reload(job)
    end = kit.events(job)[-1]
    assert (stored.status, stored.attempt, stored.failures) == (JobStatus.CANCELLED, 0, 0)
    assert (end.type, end.cause, end.actor) == (EventType.CANCELLED, EventCause.EXPIRED, SYSTEM)
    assert stored.cancel_reason == end.payload.reason
    assert len(kit.events(job)) == 2
    assert list(kit.store.jobs.load(DueJobs(10)).jobs) == [other.id]


@spec("EX2", "W1")
def test_a_sweeper_records_expired_jobs_beside_lost_leases(kit: Kit) -> None:
    lost = kit.running_job(lease_s=30)
    expired = kit.enqueue(expires_us=seconds(10))
    sweeper = Sweeper(kit.coordinator, monotonic=kit.monotonic)

    for _ in range(6):
        kit.advance(seconds=6)
        sweeper.sweep_once()

    assert kit.reload(lost).status is JobStatus.QUEUED
    assert kit.reload(expired).status is JobStatus.CANCELLED


@spec("EX2", "W5")
def test_reading_an_expired_job_sweeps_it(kit: Kit) -> None:
    job = kit.enqueue(expires_us=seconds(10))
    kit.advance(seconds=11)
    sweeper = Sweeper(
        kit.coordinator,
        monotonic=kit.monotonic,
        pause=lambda pause_s: kit.advance(seconds=pause_s),
    )
    kit.coordinator.sweep_overdue = sweeper.sweep_overdue

    found = kit.coordinator.read_jobs([job.id], bodies=False)

    assert found[job.id].status is JobStatus.CANCELLED


@spec("EX3")
def test_an_attempt_that_was_granted_in_time_goes_on(kit: Kit) -> None:
    job = kit.claimed_job(expires_us=seconds(10), policy=policy(lease_s=60))
    kit.advance(seconds=11)

    assert kit.store.jobs.load(DueJobs(10)).jobs == {}
    assert kit.start(job).kind is VerdictKind.OK
    assert kit.complete(job).kind is VerdictKind.COMMITTED


@spec("EX3")
def test_a_retry_is_not_affected(kit: Kit) -> None:
    job = kit.running_job(expires_us=seconds(10))
    kit.fail(job)
    kit.advance(seconds=600)

    again = kit.reload(job)
    assert again.start_by is None
    assert kit.store.jobs.load(DueJobs(10)).jobs == {}
    assert ids(kit.claim(1).grants) == [job.id]


@spec("EX3", "T6")
def test_an_implicit_start_counts(kit: Kit) -> None:
    job = kit.claimed_job(expires_us=seconds(10))
    kit.fail(job)

    assert kit.reload(job).start_by is None


@spec("EX2", "EX3")
def test_an_attempt_that_was_never_started_does_not_count(kit: Kit) -> None:
    job = kit.claimed_job(expires_us=seconds(10))
    kit.release(job, kind=ReleaseKind.DEPLOY)
    kit.advance(seconds=10)

    assert kit.claim(1).grants == ()
    kit.sweep(job)

    assert kit.reload(job).status is JobStatus.CANCELLED


@spec("EX2", "T31")
def test_a_job_that_waits_for_a_reclaim_expires_too(kit: Kit) -> None:
    job = kit.claimed_job(expires_us=seconds(10), policy=policy(lease_s=30, on_lost=OnLost.RECLAIM))
    kit.advance_to(job.due_at)
    kit.sweep(job)
    assert kit.reload(job).status is JobStatus.STALLED
    assert list(kit.store.jobs.load(DueJobs(10)).jobs) == [job.id]

    kit.sweep(job)

    assert kit.reload(job).status is JobStatus.CANCELLED


@spec("EX2", "D5")
def test_an_expired_job_does_not_stand_for_new_work_with_the_same_dedupe_key(kit: Kit) -> None:
    job = kit.enqueue(expires_us=seconds(10), dedupe_key="k")
    in_time = kit.reply(kit.new(dedupe_key="k"))
    kit.advance(seconds=10)

    reply = kit.reply(kit.new(dedupe_key="k"))

    assert in_time.deduplicated
    assert reply.job is not None
    assert not reply.deduplicated
    assert kit.reload(job).status is JobStatus.CANCELLED
    assert ids(kit.claimed(limit=10)) == [reply.job.id]


@spec("EX1")
def test_a_redriven_job_does_not_expire(kit: Kit) -> None:
    job = kit.enqueue(expires_us=seconds(10))
    kit.advance(seconds=10)
    kit.sweep(job)

    made = kit.redrive(job).job

    assert made is not None
    assert made.start_by is None


def needed(instant: Instant | None) -> Instant:
    """An instant that must be there."""
    assert instant is not None
    return instant
