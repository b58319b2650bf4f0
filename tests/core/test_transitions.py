"""Each transition in detail: what its events say, and what the caller hears."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tenure.core.instants import seconds
from tenure.core.job import JobError, Progress
from tenure.core.outcomes import Applied, Refused, Replayed
from tenure.core.policy import Policy
from tenure.core.vocabulary import (
    CancelMode,
    Cause,
    Disposition,
    ErrorClass,
    EventCause,
    JobStatus,
    OnExhausted,
    ReasonCode,
    ReleaseKind,
    Stage,
    VerdictKind,
)
from tenure_conformance.spec import spec
from tests.support.jobs import (
    BEGINNING,
    CLIENT,
    OPERATOR,
    OTHER_OWNER,
    OTHER_WORKER,
    OWNER,
    PERMANENT,
    TRANSIENT,
    WORKER,
    Driver,
    applied,
    changes_nothing,
    events_of,
    granted,
    reply,
    verdict,
)
from tools import lives


@spec("T1")
def test_an_enqueue_makes_a_queued_job_with_the_requested_fields() -> None:
    driver = Driver(policy=Policy(max_attempts=3))

    outcome = driver.do(driver.enqueue(priority=9, dedupe_key="k", trace_id="t-1", delay_s=2))

    job = driver.job
    assert applied(outcome).rule == "T1"
    assert (job.attempt, job.rev, job.failures, job.releases) == (0, 1, 0, 0)
    assert (job.priority, job.dedupe_key, job.trace_id) == (9, "k", "t-1")
    assert (job.payload, job.policy) == (b'{"order":7}', Policy(max_attempts=3))
    assert job.run_at == BEGINNING + seconds(2)
    assert reply(outcome).job == job
    assert not reply(outcome).deduplicated


@spec("T2")
def test_a_claim_grants_lease_attempt_ttl_payload_and_checkpoint() -> None:
    driver = lives.running()
    driver.do(driver.heartbeat(checkpoint=b'{"page":3}', progress=Progress(done=3)))
    driver.do(driver.release())

    grant = granted(driver.do(driver.claim(actor=OTHER_WORKER, owner=OTHER_OWNER)))

    assert grant.lease_id == driver.job.lease_id
    assert (grant.attempt, grant.ttl_us) == (2, seconds(60))
    assert grant.job.payload == b'{"order":7}'
    assert grant.job.checkpoint == b'{"page":3}'
    assert grant.job.progress is None, "progress is the attempt's, the checkpoint is the job's"
    assert (driver.job.owner, driver.job.principal) == (OTHER_OWNER, OTHER_WORKER)


@spec("T2")
def test_a_job_is_ready_at_its_run_at_and_not_before() -> None:
    driver = Driver()
    driver.do(driver.enqueue(delay_s=10))
    driver.advance(10 - 0.000001)

    early = changes_nothing(driver, driver.claim())
    driver.advance(0.000001)

    assert reply(early).cause is Cause.NOT_READY
    assert reply(early).job == driver.job
    assert granted(driver.do(driver.claim())).attempt == 1


@spec("T2", "N1")
def test_a_claim_of_an_unknown_job_is_not_ready() -> None:
    driver = Driver()

    outcome = driver.ask(driver.claim())

    assert isinstance(outcome, Refused)
    assert reply(outcome).cause is Cause.NOT_READY


@spec("T3")
def test_a_start_renews_the_lease_and_is_explicit() -> None:
    driver = lives.claimed()
    driver.advance(20)

    outcome = driver.do(driver.start())

    assert verdict(outcome).kind is VerdictKind.OK
    assert verdict(outcome).job_status is JobStatus.RUNNING
    assert driver.job.lease_expires_at == driver.now + seconds(60)
    assert driver.job.started_at == driver.now
    assert driver.job.was_started
    assert driver.events[-1].cause is None


@spec("T4")
def test_a_heartbeat_carries_progress_and_checkpoint_or_only_renews() -> None:
    driver = lives.running()

    quiet = events_of(driver.do(driver.heartbeat(hb_seq=1)))
    news = events_of(
        driver.do(driver.heartbeat(hb_seq=7, progress=Progress(done=1, total=9), checkpoint=b"[]"))
    )
    driver.do(driver.heartbeat(hb_seq=8, checkpoint=b"[1]"))

    assert (quiet, news) == (["lease_renewed"], ["heartbeat"])
    assert driver.job.progress == Progress(done=1, total=9)
    assert driver.job.checkpoint == b"[1]"
    assert (driver.job.hb_seq, driver.job.renewals) == (8, 3)
    assert driver.events[-1].payload.size == 3


@spec("T4")
def test_hb_seq_begins_anew_with_each_attempt() -> None:
    driver = lives.running()
    driver.do(driver.heartbeat(hb_seq=100))
    driver.do(driver.release())
    driver.do(driver.claim())

    assert driver.job.hb_seq == 0
    assert isinstance(driver.do(driver.heartbeat(hb_seq=1)), Applied)


@spec("T5", "T6")
def test_a_completion_keeps_its_result_and_starts_implicitly_where_needed() -> None:
    started, unstarted = lives.running(), lives.claimed()

    explicit = started.do(started.complete(result=b"[1, 2]"))
    implicit = unstarted.do(unstarted.complete(result=b"[1, 2]"))

    assert events_of(explicit) == ["succeeded"]
    assert events_of(implicit) == ["started", "succeeded"]
    assert started.job.result == unstarted.job.result == b"[1, 2]"
    assert unstarted.events[-2].cause is EventCause.IMPLICIT
    assert (started.job.was_started, unstarted.job.was_started) == (True, False)
    assert verdict(implicit) == verdict(explicit)
    assert verdict(explicit).disposition is Disposition.SUCCEEDED


@spec("T5", "T7", "R25")
def test_a_job_with_a_cancel_request_can_still_succeed_or_fail() -> None:
    completed, failed = lives.cancelling(), lives.cancelling()

    completed.do(completed.complete())
    failed.do(failed.fail(PERMANENT))

    assert completed.job.status is JobStatus.SUCCEEDED
    assert failed.job.status is JobStatus.FAILED
    assert failed.job.error == PERMANENT == failed.job.last_error


@spec("T8")
def test_a_retryable_failure_passes_through_stalled_with_its_error() -> None:
    driver = lives.running()

    outcome = driver.do(driver.fail())

    stalled, requeued = applied(outcome).change.events
    answer = verdict(outcome)
    assert (stalled.cause, stalled.payload.error) == (EventCause.ATTEMPT_FAILED, TRANSIENT)
    assert (stalled.payload.failures, driver.job.failures) == (1, 1)
    assert requeued.payload.run_at == driver.job.run_at == answer.run_at
    assert answer.disposition is Disposition.RETRY_SCHEDULED
    assert driver.job.last_error == TRANSIENT
    assert driver.job.error is None


@spec("T9")
@pytest.mark.parametrize("word", list(OnExhausted))
def test_the_last_retryable_failure_ends_the_job_as_its_policy_says(word: OnExhausted) -> None:
    driver = lives.running(Policy(max_attempts=1, on_exhausted=word))

    answer = verdict(driver.do(driver.fail()))

    is_dead = word is OnExhausted.DEAD_LETTER
    assert driver.job.status is (JobStatus.DEAD_LETTERED if is_dead else JobStatus.FAILED)
    assert answer.disposition is Disposition(driver.job.status.value)
    assert (driver.job.failures, driver.job.error) == (1, TRANSIENT)
    assert driver.job.reason_code is (ReasonCode.EXHAUSTED_RETRIES if is_dead else None)


@spec("T9b", "F12")
@pytest.mark.parametrize(
    ("reported", "reason"),
    [
        (None, ReasonCode.VALIDATION_FAILED),
        (ReasonCode.VALIDATION_FAILED, ReasonCode.VALIDATION_FAILED),
        (ReasonCode.PARSE_ERROR, ReasonCode.PARSE_ERROR),
        (ReasonCode.DEPENDENCY_UNAVAILABLE, ReasonCode.VALIDATION_FAILED),
    ],
)
@pytest.mark.parametrize("is_cancelling", [False, True])
def test_an_unreadable_input_makes_a_dead_letter_and_costs_no_failure(
    reported: ReasonCode | None, reason: ReasonCode, is_cancelling: bool
) -> None:
    driver = lives.cancelling() if is_cancelling else lives.running()
    error = JobError(
        error_class=ErrorClass.VALIDATION, stage=Stage.INPUT, reason_code=reported, message="bad"
    )

    driver.do(driver.fail(error))

    assert driver.job.status is JobStatus.DEAD_LETTERED
    assert (driver.job.reason_code, driver.job.stage) == (reason, Stage.INPUT)
    assert (driver.job.failures, driver.job.last_error) == (0, error)


@spec("T10")
@pytest.mark.parametrize("kind", ["fail", "release"])
def test_a_worker_acknowledges_a_cancel_by_failing_or_releasing(kind: str) -> None:
    driver = lives.cancelling()

    outcome = driver.do(driver.fail() if kind == "fail" else driver.release())

    assert verdict(outcome).disposition is Disposition.CANCELLED
    assert verdict(outcome).run_at is None
    assert driver.events[-1].cause is EventCause.ACKNOWLEDGED
    assert driver.job.cancel_reason == "changed my mind"
    assert driver.job.last_error == (TRANSIENT if kind == "fail" else None)
    assert driver.job.failures == 0


@spec("T11")
@pytest.mark.parametrize("kind", list(ReleaseKind))
def test_a_release_goes_back_to_the_queue_after_its_delay(kind: ReleaseKind) -> None:
    driver = lives.running()
    causes = {"deploy": "released", "snooze": "snoozed", "undelivered": "undelivered"}

    answer = verdict(driver.do(driver.release(kind, delay_s=90)))

    stalled, requeued = driver.events[-2:]
    assert stalled.cause == causes[kind]
    assert requeued.payload.run_at == driver.job.run_at == driver.now + seconds(90)
    assert answer.disposition is Disposition.RELEASED
    assert answer.run_at == driver.job.run_at
    assert driver.job.last_owner == OWNER


@spec("T11", "Z5")
@pytest.mark.parametrize("begin", [lives.claimed, lives.running])
def test_a_release_without_a_delay_keeps_the_job_s_place(begin: Callable[[], Driver]) -> None:
    driver = begin()
    enqueued_at = driver.job.enqueued_at
    driver.advance(30)

    answer = verdict(driver.do(driver.release()))

    assert driver.job.run_at == answer.run_at == enqueued_at
    assert applied(driver.do(driver.claim())).rule == "T2"


@spec("T11", "Z5")
def test_a_grant_that_did_not_arrive_keeps_the_job_s_place() -> None:
    driver = lives.claimed()
    enqueued_at = driver.job.enqueued_at

    driver.do(driver.undelivered())

    assert driver.job.run_at == enqueued_at


@spec("T11", "Z5")
@pytest.mark.parametrize("delay_s", [0, 90])
def test_a_snooze_goes_to_its_time(delay_s: int) -> None:
    driver = lives.running()
    driver.advance(30)

    driver.do(driver.release(ReleaseKind.SNOOZE, delay_s=delay_s))

    assert driver.job.run_at == driver.now + seconds(delay_s)


@spec("Z5", "T22")
def test_a_reclaimed_job_goes_back_to_the_place_it_was_reclaimed_from() -> None:
    driver = lives.reclaimable()
    ready_at = driver.job.run_at
    driver.do(driver.claim())
    driver.advance(5)

    driver.do(driver.release())

    assert driver.job.run_at == ready_at


@spec("T11")
def test_only_the_system_may_take_back_what_it_did_not_deliver() -> None:
    driver = lives.claimed()

    stranger = verdict(
        driver.ask(driver.release(ReleaseKind.UNDELIVERED, actor=OTHER_WORKER, request_id="x"))
    )
    taken_back = applied(driver.do(driver.undelivered()))

    assert stranger.cause is Cause.INVALID_LEASE
    assert taken_back.change.events[0].actor == "system"
    assert verdict(driver.ask(driver.complete())).cause is Cause.REVOKED
    assert verdict(changes_nothing(driver, driver.undelivered())).cause is Cause.REVOKED


@spec("T11")
def test_a_job_that_was_started_was_delivered_and_is_not_taken_back() -> None:
    driver = lives.running()

    answer = verdict(changes_nothing(driver, driver.undelivered()))

    assert (answer.kind, answer.cause) == (VerdictKind.REJECTED, Cause.ALREADY_STARTED)


@spec("T11")
def test_the_system_may_not_release_or_report_in_any_other_way() -> None:
    driver = lives.claimed()

    for command in (
        driver.release(ReleaseKind.DEPLOY, actor=driver.undelivered().actor),
        driver.complete(actor=driver.undelivered().actor),
    ):
        assert verdict(changes_nothing(driver, command)).cause is Cause.INVALID_LEASE


@spec("T11", "F12")
@pytest.mark.parametrize(
    ("last_reason", "reason"),
    [
        (None, ReasonCode.EXHAUSTED_RETRIES),
        (ReasonCode.DEPENDENCY_UNAVAILABLE, ReasonCode.DEPENDENCY_UNAVAILABLE),
    ],
)
def test_a_release_that_exhausts_the_job_is_its_dead_letter(
    last_reason: ReasonCode | None, reason: ReasonCode
) -> None:
    driver = lives.running(Policy(max_releases=0, max_attempts=2, on_exhausted=OnExhausted.FAIL))
    driver.do(driver.fail(replace(TRANSIENT, reason_code=last_reason)))
    driver.advance(61)
    driver.do(driver.claim())

    answer = verdict(driver.do(driver.release()))

    assert answer.disposition is Disposition.DEAD_LETTERED
    assert answer.job_status is JobStatus.DEAD_LETTERED
    assert driver.job.reason_code is reason
    assert driver.job.failures == 2
    assert driver.job.error is not None
    assert "1 times" in driver.job.error.message


@spec("T12", "T15", "F12")
def test_exhaustion_by_expiry_names_the_last_error_and_keeps_it() -> None:
    driver = lives.running(Policy(max_attempts=2, on_exhausted=OnExhausted.FAIL))
    unavailable = replace(TRANSIENT, reason_code=ReasonCode.DEPENDENCY_UNAVAILABLE)
    driver.do(driver.fail(unavailable))
    driver.advance(61)
    driver.do(driver.claim())
    driver.advance(60)

    outcome = driver.do(driver.sweep())

    assert events_of(outcome) == ["stalled", "dead_lettered"]
    assert driver.job.reason_code is ReasonCode.DEPENDENCY_UNAVAILABLE
    assert driver.job.last_error == unavailable
    assert driver.job.error is not None
    assert (driver.job.error.type, driver.job.stage) == ("LeaseExpired", Stage.FETCH)
    assert reply(outcome).job == driver.job


@spec("T7")
def test_the_last_report_of_a_worker_replaces_the_error_of_an_earlier_attempt() -> None:
    driver = lives.running()
    driver.do(driver.fail(TRANSIENT))
    driver.advance(61)
    driver.do(driver.claim())
    driver.do(driver.start())

    driver.do(driver.fail(PERMANENT))

    assert driver.job.status is JobStatus.FAILED
    assert driver.job.error == driver.job.last_error == PERMANENT


def _lose_all(driver: Driver) -> None:
    """Let each attempt's lease run out until the job has ended."""
    while not driver.job.status.is_terminal:
        if driver.job.status is JobStatus.QUEUED:
            driver.do(driver.claim())
        driver.advance(61)
        driver.do(driver.sweep())
        driver.advance(900)


@spec("T12", "T15", "F12")
@pytest.mark.parametrize("make", [lives.claimed, lives.running], ids=["claimed", "running"])
def test_a_job_that_lost_every_attempt_without_an_error_is_an_infrastructure_failure(
    make: Callable[[Policy], Driver],
) -> None:
    driver = make(Policy(max_attempts=3))

    _lose_all(driver)

    assert (driver.job.attempt, driver.job.failures) == (3, 3)
    assert driver.job.status is JobStatus.DEAD_LETTERED
    assert driver.job.reason_code is ReasonCode.INFRASTRUCTURE_FAILURE
    assert driver.job.error is not None
    assert driver.job.error.type == "LeaseExpired"


@spec("T12", "T15", "F12")
@pytest.mark.parametrize("before", ["an error", "a release that cost a failure"])
def test_a_job_with_another_failure_among_lost_leases_is_exhausted(before: str) -> None:
    driver = lives.running(Policy(max_attempts=3, max_releases=0))
    driver.do(driver.fail() if before == "an error" else driver.release())
    driver.advance(900)

    _lose_all(driver)

    assert driver.job.failures == 3
    assert driver.job.reason_code is ReasonCode.EXHAUSTED_RETRIES


@spec("T12", "T15", "F12")
def test_releases_that_cost_nothing_do_not_hide_lost_leases() -> None:
    driver = lives.running(Policy(max_attempts=2, max_releases=1))
    driver.do(driver.release())

    _lose_all(driver)

    assert driver.job.reason_code is ReasonCode.INFRASTRUCTURE_FAILURE


@spec("T11", "F12")
def test_releases_alone_exhaust_the_retries_and_lose_nothing() -> None:
    driver = lives.running(Policy(max_attempts=1, max_releases=0))

    driver.do(driver.release())

    assert driver.job.reason_code is ReasonCode.EXHAUSTED_RETRIES


@spec("T13", "T15", "F12")
@pytest.mark.parametrize(
    ("driver", "stage"),
    [
        (lives.running(replace(lives.SHORT, max_attempts=1)), Stage.EXEC),
        (lives.claimed(replace(lives.SHORT, max_attempts=1)), Stage.FETCH),
    ],
    ids=["running", "claimed"],
)
def test_exhaustion_by_time_out_is_a_timeout(driver: Driver, stage: Stage) -> None:
    driver.advance(45)

    driver.do(driver.sweep())

    assert driver.job.status is JobStatus.DEAD_LETTERED
    assert (driver.job.reason_code, driver.job.stage) == (ReasonCode.TIMEOUT, stage)
    assert driver.job.error is not None
    assert driver.job.error.type == "TimedOut"
    assert OWNER in driver.job.error.message


@spec("T14")
def test_a_held_job_that_an_operator_requeues_is_ready_at_once() -> None:
    driver = lives.held()
    driver.advance(1000)

    outcome = driver.do(driver.requeue())

    assert driver.job.status is JobStatus.QUEUED
    assert driver.job.run_at == driver.now
    assert driver.events[-1].cause is EventCause.OPERATOR
    assert driver.events[-1].actor == OPERATOR
    assert reply(outcome).is_ok
    assert not reply(outcome).pending


@spec("T14", "F6")
def test_the_system_requeues_a_lost_job_after_its_backoff() -> None:
    driver = lives.running()
    driver.advance(60)

    driver.do(driver.sweep())

    assert driver.job.run_at is not None
    assert seconds(1) <= driver.job.run_at - driver.now < seconds(2)


@spec("T16", "T17", "T18", "T20")
@pytest.mark.parametrize("mode", list(CancelMode))
@pytest.mark.parametrize("status", ["queued", "claimed", "stalled"])
def test_a_cancel_of_a_job_that_does_not_run_ends_it_at_once(mode: CancelMode, status: str) -> None:
    driver = lives.IN_STATUS[JobStatus(status)]()
    lease_id = driver.lease_id

    outcome = driver.do(driver.cancel(mode, reason="enough"))

    assert reply(outcome).is_ok
    assert not reply(outcome).pending
    assert driver.job.status is JobStatus.CANCELLED
    assert (driver.job.cancel_reason, driver.job.finished_at) == ("enough", driver.now)
    assert driver.events[-1].cause is EventCause(mode.value)
    assert driver.events[-1].lease_id == (lease_id if status == "claimed" else None)


@spec("T19", "T20")
def test_a_soft_cancel_of_a_running_job_is_pending_and_a_hard_one_ends_it() -> None:
    driver = lives.running()

    soft = driver.do(driver.cancel(reason="please"))
    still = driver.job.status
    hard = driver.do(driver.cancel(CancelMode.HARD, reason="now", actor=OPERATOR))

    assert (reply(soft).pending, still) == (True, JobStatus.RUNNING)
    assert (reply(hard).pending, driver.job.status) == (False, JobStatus.CANCELLED)
    assert driver.job.cancel_reason == "now"
    assert verdict(driver.ask(driver.heartbeat())).cause is Cause.JOB_CANCELLED


@spec("T20")
def test_at_the_cancel_deadline_the_system_ends_the_job_with_the_reason_it_was_given() -> None:
    driver = lives.cancelling()
    driver.advance(45 - 0.000001)
    changes_nothing(driver, driver.sweep())
    driver.advance(0.000001)

    driver.do(driver.sweep())

    assert driver.job.status is JobStatus.CANCELLED
    assert driver.job.cancel_reason == "changed my mind"
    assert driver.events[-1].actor == "system"


@spec("T16")
def test_a_cancel_request_that_outlived_its_attempt_ends_the_job() -> None:
    driver = lives.cancelling(Policy(grace_us=seconds(3600)))
    driver.advance(60)

    driver.do(driver.sweep())

    assert [event.type.value for event in driver.events[-2:]] == ["stalled", "cancelled"]
    assert driver.job.cancel_reason == "changed my mind"


@spec("T21", "F12")
@pytest.mark.parametrize("status", ["queued", "claimed", "running", "stalled"])
def test_any_live_job_can_be_dead_lettered(status: str) -> None:
    driver = lives.IN_STATUS[JobStatus(status)]()
    command = replace(
        driver.dead_letter(ReasonCode.INFRASTRUCTURE_FAILURE, message="disk"), stage=Stage.FETCH
    )

    outcome = driver.do(command)

    job = driver.job
    assert reply(outcome).is_ok
    assert not reply(outcome).pending
    assert (job.reason_code, job.stage) == (ReasonCode.INFRASTRUCTURE_FAILURE, Stage.FETCH)
    assert job.error is not None
    assert (job.error.message, job.failures) == ("disk", 1 if status == "stalled" else 0)
    assert job.lease_id is None


@spec("T22")
def test_a_reclaim_is_a_claim_of_a_stalled_job_and_says_so() -> None:
    driver = lives.held(lives.RECLAIM)
    run_at = driver.job.run_at
    assert run_at is not None
    changes_nothing(driver, driver.claim())
    driver.now = run_at

    grant = granted(driver.do(driver.claim(actor=OTHER_WORKER, owner=OTHER_OWNER)))

    assert grant.attempt == 2
    assert driver.events[-1].cause is EventCause.RECLAIM
    assert (driver.job.status, driver.job.stall_cause) == (JobStatus.CLAIMED, None)


@spec("T25", "N1")
@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled", "dead_lettered"])
def test_a_finished_job_never_changes_and_conflicts_carry_its_record(status: str) -> None:
    driver = lives.IN_STATUS[JobStatus(status)]()

    conflicts = [
        changes_nothing(driver, driver.requeue()),
        changes_nothing(driver, driver.dead_letter()),
        changes_nothing(driver, driver.claim()),
    ]
    swept = changes_nothing(driver, driver.sweep())

    assert [reply(each).job for each in conflicts] == [driver.job] * 3
    assert [reply(each).cause for each in conflicts] == [
        Cause.JOB_FINISHED,
        Cause.JOB_FINISHED,
        Cause.NOT_READY,
    ]
    assert isinstance(swept, Replayed)


@spec("T33", "N5", "R11")
@pytest.mark.parametrize("status", [JobStatus.CLAIMED, JobStatus.RUNNING])
def test_a_job_that_an_operator_stalls_waits_for_a_requeue_and_its_worker_is_revoked(
    status: JobStatus,
) -> None:
    driver = lives.IN_STATUS[status]()
    before = driver.job

    outcome = driver.do(driver.stall(request_id="s1"))
    again = reply(changes_nothing(driver, driver.stall(request_id="s1")))
    late = verdict(changes_nothing(driver, driver.complete()))

    job = driver.job
    assert reply(outcome).is_ok
    assert (job.status, job.stall_cause, job.run_at) == ("stalled", EventCause.OPERATOR, None)
    assert (job.attempt, job.rev, job.failures) == (before.attempt, before.rev + 1, before.failures)
    assert (driver.events[-1].actor, driver.events[-1].from_status) == (OPERATOR, status)
    assert again.replayed
    assert (late.kind, late.cause) == (VerdictKind.CANCELLED, Cause.REVOKED)
    driver.do(driver.requeue())
    assert driver.job.status is JobStatus.QUEUED


@spec("N5", "T22")
def test_a_stalled_job_that_is_reclaimed_is_ready_for_the_next_claim_at_once() -> None:
    driver = Driver(policy=lives.RECLAIM)
    driver.do(driver.enqueue())
    driver.do(driver.claim())

    driver.do(driver.stall())

    assert driver.job.run_at == driver.now
    driver.do(driver.claim())
    assert driver.events[-1].cause is EventCause.RECLAIM


@spec("T33", "T16")
def test_stalling_a_job_that_was_asked_to_stop_cancels_it() -> None:
    driver = lives.running()
    driver.do(driver.cancel())

    driver.do(driver.stall())

    assert driver.job.status is JobStatus.CANCELLED
    assert [event.type for event in driver.events[-2:]] == ["stalled", "cancelled"]


@spec("N5")
def test_only_a_job_that_a_worker_has_can_be_stalled() -> None:
    refused = {
        status: reply(changes_nothing(driver, driver.stall())).cause
        for status, make in lives.IN_STATUS.items()
        if not (driver := make()).job.status.is_leased
    }

    assert refused == {
        JobStatus.WAITING: Cause.NOT_LEASED,
        JobStatus.QUEUED: Cause.NOT_LEASED,
        JobStatus.STALLED: None,
        JobStatus.SUCCEEDED: Cause.JOB_FINISHED,
        JobStatus.FAILED: Cause.JOB_FINISHED,
        JobStatus.CANCELLED: Cause.JOB_FINISHED,
        JobStatus.DEAD_LETTERED: Cause.JOB_FINISHED,
    }


@spec("N1")
@pytest.mark.parametrize("status", ["queued", "claimed", "running"])
def test_only_a_held_job_can_be_requeued(status: str) -> None:
    driver = lives.IN_STATUS[JobStatus(status)]()

    refused = reply(changes_nothing(driver, driver.requeue()))

    assert (refused.cause, refused.job) == (Cause.NOT_HELD, driver.job)


@spec("N1")
def test_clients_and_operators_are_told_that_a_job_is_unknown() -> None:
    driver = Driver()

    for command in (driver.cancel(), driver.requeue(), driver.dead_letter(), driver.redrive()):
        answer = reply(driver.ask(command))
        assert (answer.cause, answer.job) == (Cause.UNKNOWN_JOB, None)


@spec("N3")
def test_a_sweep_repeated_records_nothing_twice() -> None:
    driver = lives.held()

    again = changes_nothing(driver, driver.sweep())

    assert isinstance(again, Replayed)
    assert isinstance(Driver().ask(driver.sweep()), Replayed)


@spec("T8", "T9", "F5")
def test_an_error_is_kept_as_it_was_reported() -> None:
    driver = lives.running()
    error = JobError(
        error_class=ErrorClass.TRANSIENT,
        type="ConnectionReset",
        message="peer went away",
        stage=Stage.OUTPUT,
        reason_code=ReasonCode.DEPENDENCY_UNAVAILABLE,
    )

    driver.do(driver.fail(error))

    assert driver.job.last_error == error
    assert driver.events[-2].payload.error == error
    assert driver.events[-2].actor == WORKER
    assert driver.events[0].actor == CLIENT
