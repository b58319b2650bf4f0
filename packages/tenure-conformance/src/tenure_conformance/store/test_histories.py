"""Histories: the log in order, and as the memory that repeated requests are answered from."""

from typing import Any

import pytest

from tenure.core.commands import Redrive, redriven_id
from tenure.core.events import MAX_DECISION_EVENTS
from tenure.core.ids import RequestId
from tenure.core.instants import seconds
from tenure.core.job import JobError, Progress
from tenure.core.vocabulary import (
    RENEWALS,
    CancelMode,
    Cause,
    ErrorClass,
    EventCause,
    EventType,
    JobStatus,
    OnLost,
    ReasonCode,
    VerdictKind,
)
from tenure.errors import InvalidInput
from tenure_conformance.harness import OPERATOR, Kit, policy
from tenure_conformance.spec import spec


@spec("A2", "E1")
def test_seqs_are_one_to_rev_in_order(kit: Kit) -> None:
    job = kit.running_job(correlation_id="c-1", trace_id="t-1")
    for beat in range(1, 4):
        kit.advance(seconds=4)  # sooner ones would not be recorded [L16]
        kit.heartbeat(job, hb_seq=beat)
    kit.fail(job)
    kit.advance(seconds=60)
    (job,) = kit.claimed()
    kit.complete(job)

    events = kit.events(job)

    assert [event.seq for event in events] == list(range(1, kit.reload(job).rev + 1))
    assert {event.correlation_id for event in events} == {"c-1"}
    assert {event.trace_id for event in events} == {"t-1"}
    assert {event.version for event in events} == {1}
    assert [event.to_status for event in events[:-1]] == [event.from_status for event in events[1:]]


def test_histories_of_many_jobs_are_kept_apart(kit: Kit) -> None:
    jobs = [kit.running_job() for _ in range(4)]
    unknown = kit.new_id()

    histories = kit.store.events.load([*(job.id for job in jobs), unknown])

    assert set(histories) == {*(job.id for job in jobs), unknown}
    assert histories[unknown] == []
    for job in jobs:
        assert {event.job_id for event in histories[job.id]} == {job.id}
        assert [event.seq for event in histories[job.id]] == [1, 2, 3]
    assert kit.store.events.load([]) == {}


def test_jobs_are_loaded_by_id_and_missing_ones_are_left_out(kit: Kit) -> None:
    jobs = [kit.enqueue() for _ in range(3)]
    unknown = kit.new_id()
    kit.advance(seconds=1)

    loaded = kit.store.jobs.load([jobs[2].id, unknown, jobs[0].id])

    assert loaded.jobs == {jobs[2].id: jobs[2], jobs[0].id: jobs[0]}
    assert loaded.now == kit.now()
    assert loaded.epoch == 1


@spec("E1")
def test_events_name_the_system_or_the_worker_as_actor(kit: Kit) -> None:
    job = kit.running_job(lease_s=30)
    kit.advance_to(job.due_at)
    kit.sweep(job)

    claimed, stalled = kit.events(job)[1], kit.events(job)[3]

    assert (claimed.actor, claimed.owner) == ("worker:kit", "kit-1")
    assert claimed.lease_id == stalled.lease_id == job.lease_id
    assert (stalled.actor, stalled.cause) == ("system", EventCause.LEASE_EXPIRED)
    assert stalled.request_id == f"{job.id}:{stalled.seq}"
    assert stalled.fingerprint is None
    assert claimed.fingerprint is not None


# --- workers' reports ----------------------------------------------------------------------------


@spec("R15", "R22")
@pytest.mark.parametrize("report", ["complete", "fail", "release"])
def test_a_repeated_report_gets_the_recorded_answer(kit: Kit, report: str) -> None:
    job = kit.running_job()
    send: Any = getattr(kit, report)
    first = send(job, request_id="r")
    before = kit.reload(job)
    kit.advance(seconds=10_000)

    again = send(job, request_id="r")

    assert again.replayed
    assert (again.kind, again.disposition, again.run_at) == (
        VerdictKind.COMMITTED,
        first.disposition,
        first.run_at,
    )
    assert kit.reload(job) == before


@spec("R22")
def test_a_report_is_replayed_after_later_attempts_and_the_end(kit: Kit) -> None:
    first = kit.running_job()
    recorded = kit.fail(first, request_id="r")
    kit.advance(seconds=60)
    (second,) = kit.claimed()
    kit.start(second)
    kit.complete(second)

    again = kit.fail(first, request_id="r")

    assert again.replayed
    assert again.run_at == recorded.run_at
    assert kit.reload(first).status is JobStatus.SUCCEEDED


@spec("R22")
def test_a_report_is_replayed_by_another_process(kit: Kit) -> None:
    job = kit.running_job()
    command = kit.completion(job, result=b"1")
    kit.verdict(command)

    again = kit.rival().execute(command)

    assert getattr(again, "replayed", False)


@spec("R15")
def test_a_second_report_under_a_settled_lease_is_a_duplicate(kit: Kit) -> None:
    job = kit.running_job()
    kit.complete(job, request_id="r")

    other_id = kit.complete(job)
    other_body = kit.complete(job, request_id="r", result=b'"else"')

    assert (other_id.kind, other_id.cause) == (
        VerdictKind.REJECTED,
        Cause.DUPLICATE_COMPLETION,
    )
    assert (other_body.kind, other_body.cause) == (
        VerdictKind.REJECTED,
        Cause.IDEMPOTENCY_KEY_REUSE,
    )


@spec("R23")
def test_a_request_id_is_compared_within_its_lease(kit: Kit) -> None:
    first = kit.running_job()
    kit.fail(first, request_id="r")
    kit.advance(seconds=60)
    (second,) = kit.claimed()

    verdict = kit.fail(second, request_id="r")

    assert verdict.kind is VerdictKind.COMMITTED
    assert not verdict.replayed
    assert kit.reload(first).failures == 2


@spec("R18", "R21")
def test_a_repeated_start_is_checked_again(kit: Kit) -> None:
    job = kit.claimed_job()
    kit.start(job, request_id="s")

    assert kit.start(job, request_id="s").kind is VerdictKind.OK
    assert kit.start(job).cause is Cause.ALREADY_STARTED
    kit.complete(job)
    assert kit.start(job, request_id="s").cause is Cause.LEASE_SETTLED


# --- clients and operators -----------------------------------------------------------------------


@spec("Q4")
def test_a_repeated_cancel_is_replayed_whatever_happened_to_the_job(kit: Kit) -> None:
    job = kit.running_job()
    assert kit.cancel(job, request_id="c", reason="r").pending
    kit.complete(job)
    before = kit.reload(job)

    again = kit.cancel(job, request_id="c", reason="r")

    assert again.is_ok
    assert again.replayed
    assert kit.reload(job) == before
    assert before.status is JobStatus.SUCCEEDED


@spec("Q4")
@pytest.mark.parametrize("is_claimed", [False, True])
def test_a_cancel_may_bear_the_id_that_the_job_was_enqueued_under(
    kit: Kit, is_claimed: bool
) -> None:
    job = kit.running_job() if is_claimed else kit.enqueue()

    first = kit.cancel(job, request_id=job.id, reason="r")
    again = kit.cancel(job, request_id=job.id, reason="r")

    assert (first.is_ok, first.replayed) == (True, False)
    assert (again.is_ok, again.replayed) == (True, True)


@spec("Q4")
def test_a_repeated_cancel_with_another_body_is_refused(kit: Kit) -> None:
    job = kit.running_job()
    kit.cancel(job, request_id="c", reason="one")
    before = kit.reload(job)

    again = kit.cancel(job, request_id="c", reason="two")

    assert again.cause is Cause.IDEMPOTENCY_KEY_REUSE
    assert kit.reload(job) == before


@spec("T33", "N5", "R11")
def test_a_job_that_an_operator_stalls_stays_stalled_and_its_worker_has_lost_it(kit: Kit) -> None:
    job = kit.running_job()

    stalled = kit.stall(job, request_id="s")

    assert kit.stall(job, request_id="s").replayed
    assert stalled.is_ok
    assert (stalled.job, kit.types(job)[-1]) == (kit.reload(job), EventType.STALLED)
    assert (kit.reload(job).status, kit.reload(job).failures) == (JobStatus.STALLED, 0)
    assert kit.complete(job).cause is Cause.REVOKED
    assert kit.claimed() == []
    assert kit.requeue(job).is_ok
    assert [each.id for each in kit.claimed()] == [job.id]


@spec("Q4", "L7")
def test_a_repeated_requeue_does_not_undo_a_later_hold(kit: Kit) -> None:
    held = kit.stalled_job(policy=policy(lease_s=30, on_lost=OnLost.HOLD))
    assert kit.requeue(held, request_id="q").is_ok
    (job,) = kit.claimed()
    kit.advance_to(job.due_at)
    kit.sweep(job)
    before = kit.reload(job)
    assert before.status is JobStatus.STALLED

    again = kit.requeue(held, request_id="q")

    assert again.replayed
    assert kit.reload(job) == before


@spec("Q4", "T21")
def test_a_repeated_dead_letter_is_replayed(kit: Kit) -> None:
    job = kit.running_job()
    kit.dead_letter(job, request_id="d", message="bad")
    before = kit.reload(job)

    again = kit.dead_letter(job, request_id="d", message="bad")
    reused = kit.dead_letter(job, request_id="d", message="worse")

    assert again.replayed
    assert reused.cause is Cause.IDEMPOTENCY_KEY_REUSE
    assert kit.reload(job) == before
    assert before.reason_code is ReasonCode.POLICY_VIOLATION


@spec("Q4", "T27")
def test_a_repeated_redrive_makes_one_job(kit: Kit) -> None:
    job = kit.running_job(payload=b'["p"]', dedupe_key="k", priority=4, correlation_id="c")
    kit.dead_letter(job)

    first = kit.redrive(job, request_id="d").job
    again = kit.redrive(job, request_id="d")
    reused = kit.redrive(job, request_id="d", payload=b"2")

    assert first is not None
    assert again.replayed
    assert again.job == first
    assert reused.cause is Cause.IDEMPOTENCY_KEY_REUSE
    assert (first.origin_id, first.origin_cause) == (job.id, EventCause.REDRIVE)
    assert (first.payload, first.priority, first.correlation_id) == (b'["p"]', 4, "c")
    assert kit.reload(first) == first


@spec("T27", "D5")
def test_a_redrive_whose_key_is_held_gets_the_holder(kit: Kit) -> None:
    job = kit.running_job(dedupe_key="k")
    kit.cancel_hard(job)
    holder = kit.enqueue(dedupe_key="k")

    reply = kit.redrive(job)

    assert reply.deduplicated
    assert reply.job == holder


@spec("T27", "J3")
def test_the_id_of_a_redrive_cannot_be_taken_before_it(kit: Kit) -> None:
    job = kit.running_job()
    kit.cancel_hard(job)
    redrive = Redrive(job_id=job.id, actor=OPERATOR, request_id=RequestId("d"))

    with pytest.raises(InvalidInput, match=r"^job_id: .* version 8"):
        kit.coordinator.submit_many([kit.new(job_id=redriven_id(redrive)), redrive])

    assert not kit.exists(redriven_id(redrive))
    made = kit.reply(redrive)
    assert made.job is not None
    assert made.job.id == redriven_id(redrive)


@spec("Q5", "K12")
def test_a_conflict_carries_the_current_record(kit: Kit) -> None:
    done = kit.succeeded_job()
    live = kit.running_job()

    finished = kit.cancel(done)
    moved = kit.cancel(live, mode=CancelMode.HARD, expected_rev=1)

    assert (finished.cause, finished.job) == (Cause.JOB_FINISHED, done)
    assert (moved.cause, moved.job) == (Cause.REVISION_MISMATCH, live)
    assert kit.reload(live) == live


@spec("Q6")
def test_a_heartbeats_request_id_follows_from_lease_and_number(kit: Kit) -> None:
    job = kit.running_job()

    kit.heartbeat(job, hb_seq=12)

    assert kit.events(job)[-1].request_id == f"{job.lease_id}:12"


@spec("T10", "R25")
def test_an_acknowledged_cancel_is_recorded_with_its_error(kit: Kit) -> None:
    job = kit.running_job()
    kit.cancel(job, reason="stop")
    error = JobError(error_class=ErrorClass.TRANSIENT, type="Stopped", message="as asked")

    kit.fail(job, error=error)

    stored = kit.reload(job)
    assert (stored.status, stored.cancel_reason) == (JobStatus.CANCELLED, "stop")
    assert stored.last_error == error
    assert stored.error is None
    assert kit.types(job)[-2:] == [EventType.CANCEL_REQUESTED, EventType.CANCELLED]


@spec("F5")
def test_a_policy_is_stored_with_the_job(kit: Kit) -> None:
    chosen = policy(lease_s=33, max_attempts=2, timeout_us=None, grace_us=seconds(1))
    job = kit.enqueue(policy=chosen)

    assert kit.reload(job).policy == chosen
    assert kit.events(job)[0].payload.policy == chosen


@spec("J8")
def test_a_decision_reads_the_first_event_and_the_latest_transitions(kit: Kit) -> None:
    job = kit.running_job()
    for number in range(1, 6):
        kit.heartbeat(job, number, progress=Progress(done=number))
    kit.fail(job)
    log = kit.events(job)
    transitions = [event for event in log if event.type not in RENEWALS]
    other = kit.new_id()

    found = kit.store.events.load([job.id, other], latest=MAX_DECISION_EVENTS)
    latest = kit.store.events.load([job.id], latest=2)[job.id]

    assert len(log) == len(transitions) + 5
    assert found == {job.id: transitions, other: []}
    assert latest == [transitions[0], *transitions[-2:]]
