"""What a row looks like in each status, and what is counted."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tenure.core.ids import Epoch, LeaseId, WorkerId, epoch_of, fence
from tenure.core.instants import Instant, seconds
from tenure.core.job import AT_ONCE, Job, JobError, row_violations
from tenure.core.policy import Policy
from tenure.core.vocabulary import (
    CancelMode,
    EventCause,
    JobStatus,
    OnLost,
    ReasonCode,
    ReleaseKind,
    Stage,
)
from tenure_conformance.spec import spec
from tests.support.cases import each_case
from tests.support.jobs import BEGINNING, OWNER, WORKER, Driver, applied, granted
from tools import lives

LEASE = (
    "lease_id", "owner", "principal", "claimed_at", "lease_expires_at", "due_at", "claimed_run_at",
)  # fmt: skip
SOON = Instant(BEGINNING + 5)
NO_ERROR = JobError()


def present(job: Job, *names: str) -> bool:
    return all(getattr(job, name) is not None for name in names)


def absent(job: Job, *names: str) -> bool:
    return all(getattr(job, name) is None for name in names)


# --- A row in each status ------------------------------------------------------------------------


@spec("S11")
def test_a_waiting_row_has_neither_run_at_nor_lease_and_names_its_flow() -> None:
    job = lives.waiting().job

    assert (job.status, job.attempt) == (JobStatus.WAITING, 0)
    assert present(job, "flow_id", "flow_step")
    assert absent(job, *LEASE, "run_at", "not_before", "result", "error", "finished_at")


@spec("S11")
@pytest.mark.parametrize("fields", [{"attempt": 1}, {"flow_id": None}, {"run_at": SOON}])
def test_a_waiting_row_with_anything_else_is_refused(fields: dict[str, object]) -> None:
    assert row_violations(replace(lives.waiting().job, **fields))


@spec("S1")
def test_a_queued_row_has_run_at_and_no_lease() -> None:
    job = lives.queued().job

    assert present(job, "run_at")
    assert absent(job, *LEASE, "result", "error", "finished_at", "stall_cause")


@spec("S2")
def test_a_claimed_row_has_owner_and_lease_and_has_not_started() -> None:
    job = lives.claimed().job

    assert present(job, *LEASE)
    assert absent(job, "started_at", "run_at", "result", "error")


@spec("S3")
def test_a_running_row_has_owner_lease_and_both_instants() -> None:
    job = lives.running().job

    assert present(job, *LEASE, "started_at")
    assert absent(job, "run_at", "result", "error")


@spec("S4")
def test_a_stalled_row_keeps_its_last_owner_and_lease_expiry() -> None:
    driver = lives.running(lives.HOLD)
    expiry = driver.job.lease_expires_at
    driver.advance(60)
    driver.do(driver.sweep())

    job = driver.job

    assert job.status is JobStatus.STALLED
    assert absent(job, *LEASE, "result", "error", "run_at", "started_at")
    assert (job.stall_cause, job.last_owner) == (EventCause.LEASE_EXPIRED, OWNER)
    assert job.last_lease_expires_at == expiry


@spec("S4")
def test_a_stalled_row_keeps_the_last_error_and_has_run_at_only_for_a_reclaim() -> None:
    driver = lives.running(lives.RECLAIM)
    driver.do(driver.fail())
    driver.advance(61)
    driver.do(driver.claim())
    driver.advance(60)

    driver.do(driver.sweep())

    assert driver.job.status is JobStatus.STALLED
    assert driver.job.last_error is not None
    assert driver.job.run_at is not None


@spec("S5")
def test_a_succeeded_row_has_a_result_which_may_be_null() -> None:
    driver = lives.running()

    driver.do(driver.complete(result=b"null"))

    assert driver.job.result == b"null"
    assert present(driver.job, "finished_at")
    assert absent(driver.job, *LEASE, "error", "run_at")


@spec("S6")
def test_a_failed_row_has_its_error() -> None:
    job = lives.failed().job

    assert present(job, "error", "finished_at")
    assert absent(job, *LEASE, "result", "run_at", "reason_code")


@spec("S7")
def test_a_cancelled_row_has_a_reason_even_an_empty_one() -> None:
    driver = lives.queued()

    driver.do(driver.cancel(reason=""))

    assert driver.job.cancel_reason == ""
    assert present(driver.job, "finished_at")
    assert absent(driver.job, *LEASE, "result", "error", "run_at")


@spec("S8")
def test_a_dead_letter_has_its_seven_keys_some_of_them_null() -> None:
    driver = lives.running()
    expiry = driver.job.lease_expires_at

    driver.do(driver.dead_letter(ReasonCode.INFRASTRUCTURE_FAILURE))

    job = driver.job
    assert present(job, "error", "finished_at")
    assert absent(job, *LEASE, "result", "run_at")
    assert (job.reason_code, job.stage, job.attempt) == ("infrastructure_failure", None, 1)
    assert (job.last_owner, job.last_lease_expires_at) == (OWNER, expiry)
    assert job.correlation_id == "order-7"
    assert job.last_error == job.error


@spec("S10")
@pytest.mark.parametrize("end", ["complete", "dead_letter", "cancel"])
def test_a_job_that_ended_while_it_ran_says_how_long(end: str) -> None:
    driver = lives.running()
    started_at = driver.job.started_at
    driver.advance(7)

    if end == "complete":
        driver.do(driver.complete())
    elif end == "cancel":
        driver.do(driver.cancel(mode=CancelMode.HARD))
    else:
        driver.do(driver.dead_letter(ReasonCode.INFRASTRUCTURE_FAILURE))

    assert driver.job.status.is_terminal
    assert driver.job.started_at == started_at
    assert driver.job.duration_us == seconds(7)


@spec("S10")
def test_a_job_whose_attempt_was_lost_does_not_say_how_long_it_ran() -> None:
    driver = lives.running(lives.HOLD)
    driver.advance(60)
    driver.do(driver.sweep())

    driver.do(driver.dead_letter(ReasonCode.INFRASTRUCTURE_FAILURE))

    assert driver.job.status is JobStatus.DEAD_LETTERED
    assert (driver.job.started_at, driver.job.duration_us) == (None, None)


@spec("S12")
def test_alternative_status_names_are_accepted_and_never_stored() -> None:
    assert JobStatus("assigned") is JobStatus.CLAIMED
    assert JobStatus("COMPLETED") is JobStatus.SUCCEEDED
    assert {JobStatus(status.value) for status in JobStatus} == set(JobStatus)
    assert {"assigned", "COMPLETED"}.isdisjoint(status.value for status in JobStatus)
    assert JobStatus("Running") is JobStatus("RUNNING") is JobStatus.RUNNING
    with pytest.raises(ValueError, match="done"):
        JobStatus.known("done")


# --- Every rule of the row table can say no ------------------------------------------------------

BROKEN: list[tuple[str, Callable[[], Job], dict[str, object], str]] = [
    ("queued with an owner", lambda: lives.queued().job, {"owner": OWNER}, "owner"),
    ("queued with a lease", lambda: lives.queued().job, {"lease_id": LeaseId("1-0")}, "lease_id"),
    ("queued with an expiry", lambda: lives.queued().job, {"lease_expires_at": SOON}, "expires"),
    ("queued with an end", lambda: lives.queued().job, {"due_at": SOON}, "due_at"),
    ("queued with a principal", lambda: lives.queued().job, {"principal": WORKER}, "principal"),
    ("queued with a claim", lambda: lives.queued().job, {"claimed_at": SOON}, "claimed_at"),
    ("queued and started", lambda: lives.queued().job, {"started_at": SOON}, "started_at"),
    ("queued without run_at", lambda: lives.queued().job, {"run_at": None}, "run_at"),
    ("queued without a bound", lambda: lives.queued().job, {"not_before": None}, "not_before"),
    ("ready, and held back", lambda: lives.queued().job, {"not_before": SOON}, "not_before"),
    ("delayed, and ready", lambda: lives.requeued().job, {"not_before": AT_ONCE}, "not_before"),
    ("queued with a result", lambda: lives.queued().job, {"result": b"1"}, "result"),
    ("queued with an error", lambda: lives.queued().job, {"error": NO_ERROR}, "error"),
    ("queued and finished", lambda: lives.queued().job, {"finished_at": SOON}, "finished_at"),
    ("queued and stalled", lambda: lives.queued().job, {"stall_cause": EventCause.OUTAGE}, "stall"),
    (
        "queued but cancelled",
        lambda: lives.queued().job,
        {"cancel_requested_at": SOON, "cancel_deadline": SOON},
        "cancellation",
    ),
    ("claimed without an owner", lambda: lives.claimed().job, {"owner": None}, "owner"),
    ("claimed without a lease", lambda: lives.claimed().job, {"lease_id": None}, "lease_id"),
    ("claimed without expiry", lambda: lives.claimed().job, {"lease_expires_at": None}, "expires"),
    ("claimed without a principal", lambda: lives.claimed().job, {"principal": None}, "principal"),
    ("claimed without a claim", lambda: lives.claimed().job, {"claimed_at": None}, "claimed_at"),
    ("claimed without an end", lambda: lives.claimed().job, {"due_at": None}, "due_at"),
    ("claimed and started", lambda: lives.claimed().job, {"started_at": SOON}, "started_at"),
    ("claimed and ready", lambda: lives.claimed().job, {"run_at": SOON}, "run_at"),
    ("claimed and held back", lambda: lives.claimed().job, {"not_before": SOON}, "not_before"),
    ("claimed, wrong end", lambda: lives.claimed().job, {"due_at": SOON}, "due_at"),
    ("running without a start", lambda: lives.running().job, {"started_at": None}, "started_at"),
    ("running and ready", lambda: lives.running().job, {"run_at": SOON}, "run_at"),
    ("running with a result", lambda: lives.running().job, {"result": b"1"}, "result"),
    ("running, wrong end", lambda: lives.running().job, {"due_at": SOON}, "due_at"),
    (
        "running, half a cancel",
        lambda: lives.running().job,
        {"cancel_requested_at": SOON},
        "cancel_deadline",
    ),
    ("stalled without a cause", lambda: lives.held().job, {"stall_cause": None}, "stall_cause"),
    ("stalled with an owner", lambda: lives.held().job, {"owner": OWNER}, "owner"),
    ("held but ready", lambda: lives.held().job, {"run_at": SOON}, "run_at"),
    ("reclaimable, not ready", lambda: lives.reclaimable().job, {"run_at": None}, "run_at"),
    ("succeeded without a result", lambda: lives.succeeded().job, {"result": None}, "result"),
    ("succeeded with an error", lambda: lives.succeeded().job, {"error": NO_ERROR}, "error"),
    ("succeeded, unfinished", lambda: lives.succeeded().job, {"finished_at": None}, "finished_at"),
    ("succeeded and ready", lambda: lives.succeeded().job, {"run_at": SOON}, "run_at"),
    ("succeeded with a lease", lambda: lives.succeeded().job, {"lease_id": "1-0"}, "lease_id"),
    ("failed without an error", lambda: lives.failed().job, {"error": None}, "error"),
    ("failed with a result", lambda: lives.failed().job, {"result": b"1"}, "result"),
    ("failed with a stage", lambda: lives.failed().job, {"stage": Stage.EXEC}, "stage"),
    (
        "failed with a reason",
        lambda: lives.failed().job,
        {"reason_code": ReasonCode.TIMEOUT},
        "reason_code",
    ),
    ("cancelled, no reason", lambda: lives.cancelled().job, {"cancel_reason": None}, "reason"),
    ("cancelled with an error", lambda: lives.cancelled().job, {"error": NO_ERROR}, "error"),
    ("cancelled, unfinished", lambda: lives.cancelled().job, {"finished_at": None}, "finished_at"),
    ("dead without a reason", lambda: lives.dead_lettered().job, {"reason_code": None}, "reason"),
    ("dead without an error", lambda: lives.dead_lettered().job, {"error": None}, "error"),
    ("more failures than attempts", lambda: lives.running().job, {"failures": 2}, "counters"),
    ("no revision", lambda: lives.running().job, {"rev": 0}, "counters"),
    ("negative attempt", lambda: lives.queued().job, {"attempt": -1}, "counters"),
]


@spec("S1", "S2", "S3", "S4", "I8")
@each_case(
    ("build", "fields", "word"),
    [case[1:] for case in BROKEN],
)
def test_a_row_that_breaks_the_table_is_reported(
    build: Callable[[], Job], fields: dict[str, object], word: str
) -> None:
    job = build()
    assert not row_violations(job)

    found = row_violations(replace(job, **fields))

    assert any(word in complaint for complaint in found), found


@spec("S5", "S6", "S7", "S8", "I8")
@pytest.mark.parametrize("status", list(JobStatus))
def test_a_valid_row_of_every_status_has_no_violation(status: JobStatus) -> None:
    job = lives.IN_STATUS[status]().job

    assert job.status is status
    assert row_violations(job) == []


# --- Counters ------------------------------------------------------------------------------------


@spec("A1")
def test_attempt_counts_claims_and_reclaims_and_nothing_else() -> None:
    driver = lives.queued(lives.RECLAIM)
    seen = [driver.job.attempt]

    driver.do(driver.claim())
    seen.append(driver.job.attempt)
    driver.do(driver.heartbeat())
    driver.do(driver.start())
    seen.append(driver.job.attempt)
    driver.advance(60)
    driver.do(driver.sweep())
    driver.advance(61)
    seen.append(driver.job.attempt)
    driver.do(driver.claim())
    seen.append(driver.job.attempt)
    driver.do(driver.complete())
    seen.append(driver.job.attempt)

    assert seen == [0, 1, 1, 1, 2, 2]
    assert driver.rules == ["T1", "T2", "T4", "T3", "T12", "T22", "T6"]


@spec("A2")
def test_rev_is_the_seq_of_the_last_event_and_seqs_have_no_gap() -> None:
    driver = lives.running()
    for _ in range(3):
        driver.advance(4)  # sooner ones would not be recorded [L16]
        driver.do(driver.heartbeat())
    driver.do(driver.fail())

    assert [event.seq for event in driver.events] == list(range(1, driver.job.rev + 1))
    assert lives.queued().job.rev == 1


@spec("A13")
def test_a_job_is_exhausted_when_the_increment_reaches_the_budget() -> None:
    driver = lives.running(Policy(max_attempts=2))

    driver.do(driver.fail())
    after_first = driver.job.failures, driver.job.is_exhausted
    driver.advance(61)
    driver.do(driver.claim())
    driver.do(driver.fail())

    assert after_first == (1, False)
    assert (driver.job.failures, driver.job.is_exhausted) == (2, True)
    assert driver.job.status is JobStatus.DEAD_LETTERED
    assert Policy().max_attempts == 15


@spec("A4")
def test_a_release_past_the_limit_costs_one_failure_each() -> None:
    driver = lives.claimed(Policy(max_releases=2))
    seen = []

    for _ in range(4):
        driver.do(driver.release())
        seen.append((driver.job.releases, driver.job.failures))
        driver.do(driver.claim())

    assert seen == [(1, 0), (2, 0), (3, 1), (4, 2)]
    assert Policy().max_releases == 20


@spec("A4")
def test_a_snooze_and_an_undelivered_grant_cost_neither_a_release_nor_a_failure() -> None:
    driver = lives.claimed(Policy(max_releases=0, max_attempts=1))

    driver.do(driver.release(ReleaseKind.SNOOZE))
    driver.do(driver.claim())
    driver.do(driver.undelivered())

    assert (driver.job.releases, driver.job.failures) == (0, 0)
    assert driver.job.status is JobStatus.QUEUED


@spec("A5")
def test_raising_the_epoch_loses_the_lease_and_its_expiry_moves_the_job_on() -> None:
    driver = lives.running()
    driver.raise_epoch()

    before_expiry = driver.do(driver.sweep())
    driver.advance(60)
    at_expiry = applied(driver.do(driver.sweep()))

    assert not hasattr(before_expiry, "change")
    assert at_expiry.rule == "T12"
    assert driver.job.status is JobStatus.QUEUED


@spec("A5", "J5")
def test_a_lease_id_begins_with_the_epoch_it_was_granted_in() -> None:
    driver = lives.queued()
    driver.raise_epoch()

    grant = granted(driver.do(driver.claim()))

    assert epoch_of(grant.lease_id) == 2
    assert grant.lease_id.startswith("2-")


@spec("A6")
def test_a_fence_is_greater_than_that_of_every_earlier_attempt() -> None:
    driver = lives.queued()
    fences = []

    for raises in (False, True, False):
        if raises:
            driver.raise_epoch()
        fences.append(granted(driver.do(driver.claim())).fence)
        driver.do(driver.release())

    assert fences == [2**32 + 1, 2 * 2**32 + 2, 2 * 2**32 + 3]
    assert fence(Epoch(7), 5) == 7 * 2**32 + 5


@spec("S1")
def test_a_job_can_be_enqueued_for_later_by_delay_or_by_instant() -> None:
    by_delay, by_instant = Driver(), Driver()

    by_delay.do(by_delay.enqueue(delay_s=10))
    by_instant.do(by_instant.enqueue(run_at=SOON))

    assert by_delay.job.run_at == BEGINNING + 10_000_000
    assert by_instant.job.run_at == SOON


@spec("S4")
@pytest.mark.parametrize(
    ("cause", "build"),
    [
        ("lease_expired", lambda: _lost(lives.running(lives.HOLD), 60)),
        ("timeout", lambda: _lost(lives.running(_hold_short()), 45)),
        ("start_timeout", lambda: _lost(lives.claimed(_hold_short()), 45)),
    ],
)
def test_a_held_row_says_how_it_was_lost(cause: str, build: Callable[[], Driver]) -> None:
    assert build().job.stall_cause == cause


def _hold_short() -> Policy:
    return replace(lives.SHORT, on_lost=OnLost.HOLD)


def _lost(driver: Driver, after_s: float) -> Driver:
    driver.advance(after_s)
    driver.do(driver.sweep())
    return driver


def test_two_workers_of_one_principal_are_two_owners() -> None:
    driver = lives.queued()

    driver.do(driver.claim(owner=WorkerId("ada-2")))

    assert (driver.job.owner, driver.job.principal) == ("ada-2", WORKER)
