"""Leases and time: what a report is worth before, at and after the end of its lease."""

from typing import Any

import pytest

from tenure.core.ids import JobId, worker_actor
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job, Progress
from tenure.core.leases import LeaseRef
from tenure.core.vocabulary import (
    Cause,
    Disposition,
    ErrorClass,
    EventCause,
    EventType,
    JobStatus,
    LeaseNews,
    ReleaseKind,
    VerdictKind,
)
from tenure_conformance.harness import WORKER, Kit, policy
from tenure_conformance.spec import spec


@spec("C2")
def test_polling_leases_finds_cancels_and_lost_leases_and_changes_nothing(kit: Kit) -> None:
    held, asked_to_stop, gone = [kit.running_job() for _ in range(3)]
    kit.cancel(asked_to_stop)
    kit.cancel_hard(gone)
    leases = [_lease(job) for job in (held, asked_to_stop, gone)]
    stranger = LeaseRef(held.id, leases[1].lease_id)
    nobody = LeaseRef(JobId("01900000-0000-7000-8000-000000000000"), leases[0].lease_id)
    before = [kit.reload(job) for job in (held, asked_to_stop, gone)]

    found = kit.coordinator.store.jobs.peek_leases([*leases, stranger, nobody], WORKER)

    assert found == [
        LeaseNews.NONE,
        LeaseNews.CANCEL,
        LeaseNews.LOST,
        LeaseNews.LOST,
        LeaseNews.LOST,
    ]
    assert [kit.reload(job) for job in (held, asked_to_stop, gone)] == before
    assert kit.coordinator.store.jobs.peek_leases(leases[:1], worker_actor("another")) == [
        LeaseNews.LOST
    ]
    assert kit.coordinator.store.jobs.peek_leases([], WORKER) == []


def _lease(job: Job) -> LeaseRef:
    assert job.lease_id is not None
    return LeaseRef(job.id, job.lease_id)


@spec("K13")
def test_a_report_for_another_rev_is_rejected_and_changes_nothing(kit: Kit) -> None:
    job = kit.claimed_job()
    started = kit.start(job, expected_rev=job.rev)
    assert started.rev == job.rev + 1
    kit.cancel(job)  # raises the rev and leaves the lease valid
    before = kit.reload(job), kit.events(job)

    answers = [
        kit.complete(job, expected_rev=started.rev),
        kit.fail(job, expected_rev=started.rev),
        kit.release(job, expected_rev=started.rev),
        kit.heartbeat(job, expected_rev=started.rev),
    ]

    refused = (VerdictKind.REJECTED, Cause.REVISION_MISMATCH, before[0].rev)
    assert [(each.kind, each.cause, each.rev) for each in answers] == [refused] * 4
    assert (kit.reload(job), kit.events(job)) == before
    assert kit.observations(job) == []
    renewed = kit.heartbeat(job, expected_rev=before[0].rev)
    settled = kit.complete(job, request_id="done", expected_rev=renewed.rev)
    again = kit.complete(job, request_id="done", expected_rev=renewed.rev)
    assert (settled.kind, again.kind) == (VerdictKind.COMMITTED, VerdictKind.COMMITTED)
    assert again.replayed


@spec("R10", "L9")
def test_a_report_after_expiry_is_cancelled_and_changes_nothing(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)
    kit.advance(seconds=31)

    verdict = kit.complete(job, result=b'"late"')

    assert (verdict.kind, verdict.cause) == (VerdictKind.CANCELLED, Cause.LEASE_EXPIRED)
    assert kit.reload(job) == job
    assert len(kit.events(job)) == job.rev


@spec("L9")
@pytest.mark.parametrize(
    ("late_us", "kind"),
    [(-1, VerdictKind.COMMITTED), (0, VerdictKind.CANCELLED), (1, VerdictKind.CANCELLED)],
)
def test_a_lease_is_over_at_the_microsecond_of_its_end(
    kit: Kit, late_us: int, kind: VerdictKind
) -> None:
    job = kit.running_job(lease_s=30)
    assert job.due_at is not None
    kit.advance_to(Instant(job.due_at + late_us))

    assert kit.complete(job).kind is kind


@spec("L9", "T13")
def test_a_claim_that_is_not_started_within_its_time_is_lost(kit: Kit) -> None:
    job = kit.claimed_job(policy=policy(lease_s=60, start_within_us=seconds(10)))
    kit.advance(seconds=10)

    verdict = kit.start(job)

    assert (verdict.kind, verdict.cause) == (VerdictKind.CANCELLED, Cause.TIMED_OUT)
    swept = kit.sweep(job).job
    assert swept is not None
    assert kit.events(job)[-2].cause is EventCause.START_TIMEOUT
    assert swept == kit.reload(job)


@spec("L9", "T6")
def test_a_worker_that_never_sends_start_may_work_for_longer_than_start_within(kit: Kit) -> None:
    job = kit.claimed_job(policy=policy(lease_s=60, start_within_us=seconds(10)))

    for beat in range(1, 9):
        kit.advance(seconds=9)
        kit.sweep(job)
        assert kit.heartbeat(job, hb_seq=beat).ttl_us == seconds(60)
    kit.advance(seconds=9)

    assert kit.reload(job).status is JobStatus.CLAIMED
    assert kit.complete(job).kind is VerdictKind.COMMITTED


@spec("L9", "T13")
def test_without_a_start_the_time_out_counts_from_the_claim(kit: Kit) -> None:
    limits = policy(lease_s=60, start_within_us=seconds(10), timeout_us=seconds(100))
    job = kit.claimed_job(policy=limits)
    for beat in (1, 2, 3):
        kit.advance(seconds=9)
        kit.heartbeat(job, hb_seq=beat)
    kit.advance(seconds=55)
    assert kit.heartbeat(job, hb_seq=4).ttl_us == seconds(18)
    kit.advance(seconds=18)

    verdict = kit.complete(job)

    assert (verdict.kind, verdict.cause) == (VerdictKind.CANCELLED, Cause.TIMED_OUT)
    kit.sweep(job)
    assert kit.events(job)[-2].cause is EventCause.TIMEOUT


@spec("L9", "T3")
def test_after_a_late_start_the_time_out_counts_from_the_start(kit: Kit) -> None:
    limits = policy(lease_s=60, start_within_us=seconds(10), timeout_us=seconds(100))
    job = kit.claimed_job(policy=limits)
    kit.advance(seconds=9)
    kit.heartbeat(job, hb_seq=1)
    kit.advance(seconds=41)

    kit.start(job)

    started = kit.reload(job)
    assert started.due_at == kit.now() + seconds(60)
    kit.advance(seconds=55)
    kit.heartbeat(job, hb_seq=2)
    assert kit.reload(job).due_at == kit.now() + seconds(45)


@spec("L9", "T13")
def test_heartbeats_do_not_extend_a_lease_past_the_time_out(kit: Kit) -> None:
    job = kit.running_job(policy=policy(lease_s=60, timeout_us=seconds(100)))
    for beat in (1, 2):
        kit.advance(seconds=49)
        assert kit.heartbeat(job, hb_seq=beat).kind is VerdictKind.OK
    kit.advance(seconds=2)

    verdict = kit.complete(job)

    assert (verdict.kind, verdict.cause) == (VerdictKind.CANCELLED, Cause.TIMED_OUT)
    kit.sweep(job)
    assert kit.types(job)[-2:] == [EventType.STALLED, EventType.REQUEUED]
    assert kit.events(job)[-2].cause is EventCause.TIMEOUT


@spec("C1", "R10")
def test_a_lease_ends_at_its_cancel_deadline(kit: Kit) -> None:
    job = kit.running_job(policy=policy(lease_s=60, grace_us=seconds(5)))
    kit.cancel(job, reason="enough")
    asked = kit.reload(job)
    assert asked.cancel_deadline == kit.now() + seconds(30 + 5)
    kit.advance_to(asked.cancel_deadline)

    verdict = kit.complete(job)

    assert (verdict.kind, verdict.cause) == (VerdictKind.CANCELLED, Cause.JOB_CANCELLED)
    assert kit.reload(job) == asked
    kit.sweep(job)
    assert kit.reload(job).status is JobStatus.CANCELLED
    assert kit.events(job)[-1].cause is EventCause.GRACE_OVER


@spec("L16", "T4")
def test_a_heartbeat_renews_and_stores_progress_and_checkpoint(kit: Kit) -> None:
    job = kit.running_job(lease_s=60)
    kit.advance(seconds=20)

    kit.heartbeat(job, hb_seq=3, progress=Progress(done=2, total=9, note="é"), checkpoint=b"[2]")

    stored = kit.reload(job)
    assert stored.lease_expires_at == kit.now() + seconds(60)
    assert stored.progress == Progress(done=2, total=9, note="é")
    assert (stored.checkpoint, stored.hb_seq, stored.renewals) == (b"[2]", 3, 1)
    assert kit.types(job)[-1] is EventType.HEARTBEAT


@spec("N3", "R18")
def test_an_old_heartbeat_writes_nothing(kit: Kit) -> None:
    job = kit.running_job()
    kit.heartbeat(job, hb_seq=5)
    before = kit.reload(job)
    kit.advance(seconds=1)

    for stale in (5, 4):
        assert kit.heartbeat(job, hb_seq=stale, checkpoint=b"0").kind is VerdictKind.OK

    assert kit.reload(job) == before


@spec("T3", "L16")
def test_a_start_renews_the_lease(kit: Kit) -> None:
    job = kit.claimed_job(lease_s=60)
    kit.advance(seconds=30)

    kit.start(job)

    stored = kit.reload(job)
    assert stored.status is JobStatus.RUNNING
    assert stored.started_at == kit.now()
    assert stored.lease_expires_at == kit.now() + seconds(60)


@spec("T6")
def test_a_report_of_a_claimed_job_starts_it_implicitly(kit: Kit) -> None:
    job = kit.claimed_job()

    verdict = kit.complete(job, result=b"7")

    assert verdict.kind is VerdictKind.COMMITTED
    assert kit.types(job)[-2:] == [EventType.STARTED, EventType.SUCCEEDED]
    assert kit.reload(job).rev == 4
    assert kit.reload(job).result == b"7"


@spec("T8", "A13")
def test_a_retryable_failure_writes_two_events_and_costs_one_failure(kit: Kit) -> None:
    job = kit.running_job()

    verdict = kit.fail(job)

    stored = kit.reload(job)
    assert verdict.disposition is Disposition.RETRY_SCHEDULED
    assert (stored.status, stored.failures, stored.rev) == (JobStatus.QUEUED, 1, job.rev + 2)
    assert stored.run_at == verdict.run_at
    assert [event.seq for event in kit.events(job)] == list(range(1, stored.rev + 1))


@spec("T9", "S8")
def test_the_last_failure_is_a_dead_letter(kit: Kit) -> None:
    job = kit.running_job(policy=policy(max_attempts=1))

    kit.fail(job)

    stored = kit.reload(job)
    assert stored.status is JobStatus.DEAD_LETTERED
    assert stored.error is not None
    assert stored.reason_code is not None
    assert stored.finished_at == kit.now()


@spec("T7", "S6")
def test_a_permanent_failure_ends_the_job(kit: Kit) -> None:
    job = kit.running_job()

    kit.fail(job, ErrorClass.PERMANENT)

    stored = kit.reload(job)
    assert stored.status is JobStatus.FAILED
    assert stored.error == stored.last_error


@spec("T11", "A4")
@pytest.mark.parametrize("kind", list(ReleaseKind))
def test_a_released_job_returns_to_the_queue_and_costs_no_failure(
    kit: Kit, kind: ReleaseKind
) -> None:
    job = kit.running_job()

    verdict = kit.release(job, kind=kind, delay_us=seconds(9))

    stored = kit.reload(job)
    assert verdict.disposition is Disposition.RELEASED
    assert (stored.status, stored.failures) == (JobStatus.QUEUED, 0)
    assert stored.releases == (1 if kind is ReleaseKind.DEPLOY else 0)
    assert stored.run_at == kit.now() + seconds(9)


@spec("Z5", "Z1")
def test_a_released_job_goes_back_to_its_place_and_a_snoozed_one_to_its_time(kit: Kit) -> None:
    first = kit.running_job()
    kit.advance(seconds=1)
    second = kit.running_job()
    kit.advance(seconds=1)
    backlog = kit.enqueue()
    kit.advance(seconds=1)

    kit.release(second)
    kit.release(first, kind=ReleaseKind.SNOOZE)

    stored = kit.reload(second)
    assert (stored.run_at, stored.claimed_run_at) == (second.enqueued_at, None)
    assert second.claimed_run_at == second.enqueued_at
    assert kit.reload(first).run_at == kit.now()
    assert [job.id for job in kit.claimed(limit=10)] == [second.id, backlog.id, first.id]


@spec("R12", "L1")
def test_the_lease_of_an_earlier_attempt_is_superseded(kit: Kit) -> None:
    old = kit.running_job(lease_s=30)
    kit.advance_to(old.due_at)
    kit.sweep(old)
    kit.advance(seconds=120)
    (new,) = kit.claimed()
    kit.start(new)

    verdict = kit.complete(old)

    assert (verdict.kind, verdict.cause) == (VerdictKind.CANCELLED, Cause.SUPERSEDED)
    assert kit.complete(new).kind is VerdictKind.COMMITTED


@spec("R6", "L1")
def test_another_principal_cannot_use_a_lease(kit: Kit) -> None:
    job = kit.running_job()

    verdict = kit.complete(job, actor=worker_actor("thief"))

    assert (verdict.kind, verdict.cause) == (VerdictKind.REJECTED, Cause.INVALID_LEASE)
    assert kit.reload(job) == job


@spec("R5")
def test_a_report_about_an_unknown_job_is_rejected(kit: Kit) -> None:
    job = kit.running_job()

    verdict = kit.complete(job, job_id=kit.new_id())

    assert (verdict.kind, verdict.cause) == (VerdictKind.REJECTED, Cause.UNKNOWN_JOB)


@spec("E13")
def test_event_times_never_decrease_when_the_clock_steps_back(kit: Kit) -> None:
    job = kit.running_job(lease_s=60)
    before = kit.now()
    kit.step_back(seconds=10)

    kit.heartbeat(job)
    kit.complete(job)

    stamps = [event.ts for event in kit.events(job)]
    assert stamps == sorted(stamps)
    assert stamps[-1] == before
    assert kit.events(job)[-2].lease_expires_at == before + seconds(60)


@spec("E13")
def test_an_event_is_dated_by_the_stores_clock(kit: Kit) -> None:
    job = kit.claimed_job()
    stamps = []
    steps: list[Any] = [
        lambda: kit.start(job),
        lambda: kit.heartbeat(job),
        lambda: kit.complete(job),
    ]
    for step in steps:
        kit.advance(seconds=1)
        stamps.append(kit.now())
        step()

    assert [event.ts for event in kit.events(job)][-3:] == stamps
    assert kit.reload(job).finished_at == stamps[-1]


@spec("K2", "R10")
def test_the_lease_of_every_report_is_checked_at_the_write(kit: Kit) -> None:
    jobs: dict[str, Job] = {
        name: kit.running_job(lease_s=30) for name in ("complete", "fail", "release", "beat")
    }
    claimed = kit.claimed_job(lease_s=30)
    slow = kit.interpose(lambda _: kit.advance(seconds=31))
    commands: list[Any] = [
        kit.completion(jobs["complete"]),
        kit.failure(jobs["fail"], ErrorClass.TRANSIENT),
        kit.release_of(jobs["release"]),
        kit.beat(jobs["beat"]),
        kit.starting(claimed),
    ]

    verdicts = slow.submit_many(commands).result()

    assert {getattr(verdict, "kind", None) for verdict in verdicts} == {VerdictKind.CANCELLED}
    for job in (*jobs.values(), claimed):
        assert kit.reload(job) == job


@spec("L16", "L8")
def test_an_early_heartbeat_with_nothing_new_is_answered_and_not_recorded(kit: Kit) -> None:
    job = kit.running_job()  # 60 s, so that the interval is 15 s
    kit.advance(seconds=4)
    first = kit.heartbeat(job, 1)
    before, log = kit.reload(job), kit.types(job)

    kit.advance(seconds=3)
    early = [kit.heartbeat(job, number) for number in range(2, 30)]

    assert (first.ttl_us, first.replayed) == (seconds(60), False)
    assert {(each.kind, each.ttl_us, each.replayed) for each in early} == {
        (VerdictKind.OK, seconds(57), True)
    }
    assert (kit.reload(job), kit.types(job)) == (before, log)
    assert kit.now() + seconds(57) == before.lease_expires_at, "as the answer said"


@spec("L16")
def test_a_heartbeat_is_recorded_if_it_is_the_first_carries_something_or_is_due(kit: Kit) -> None:
    job = kit.claimed_job()

    kit.heartbeat(job, 1)  # within the same instant as the claim
    kit.heartbeat(job, 2)
    kit.heartbeat(job, 3, progress=Progress(done=1))
    kit.heartbeat(job, 4, checkpoint=b"[1]")
    kit.advance(seconds=7.5)
    kit.heartbeat(job, 5)

    recorded = [event.payload.hb_seq for event in kit.events(job)][2:]
    assert recorded == [1, 3, 4, 5]
    assert kit.reload(job).lease_expires_at == kit.now() + seconds(60)
