"""Retries, dead letters, compensation and redrives."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tenure.core.commands import redriven_id
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.job import JobError, compensation_id, needs_compensation
from tenure.core.policy import Backoff, Policy, backoff_us, spread, unit
from tenure.core.vocabulary import (
    CancelMode,
    Cause,
    ErrorClass,
    EventCause,
    JobStatus,
    ObservationType,
    OnExhausted,
    ReasonCode,
    Stage,
)
from tenure_conformance.spec import spec
from tests.support.cases import each_case
from tests.support.jobs import (
    OPERATOR,
    PERMANENT,
    TRANSIENT,
    Driver,
    applied,
    changes_nothing,
    reply,
)
from tools import lives
from tools.driver import FORBIDDEN

UNLUCKY, LUCKY = b"\x00" * 16, b"\xff" * 16
ENTROPIES = st.binary(min_size=16, max_size=16)

# --- Backoff -------------------------------------------------------------------------------------


@spec("F6")
@pytest.mark.parametrize(
    ("failures", "ceiling_s"),
    [(1, 2), (2, 4), (3, 8), (4, 16), (9, 512), (10, 900), (11, 900), (10**6, 900)],
)
def test_the_backoff_doubles_up_to_its_cap_and_waits_at_least_half_of_it(
    failures: int, ceiling_s: float
) -> None:
    least = backoff_us(Backoff(), failures=failures, entropy=UNLUCKY)
    most = backoff_us(Backoff(), failures=failures, entropy=LUCKY)

    assert least == seconds(ceiling_s * 0.5)
    assert seconds(ceiling_s) * 0.999 < most <= seconds(ceiling_s)


@spec("F6")
@given(
    initial=st.integers(0, 10**9),
    cap=st.integers(0, 10**10),
    factor=st.floats(1, 100),
    floor=st.floats(0, 1),
    failures=st.integers(0, 10**4),
    luck=ENTROPIES,
)
def test_a_backoff_stays_between_floor_and_ceiling(
    initial: int, cap: int, factor: float, floor: float, failures: int, luck: bytes
) -> None:
    backoff = Backoff(
        initial_us=Duration(initial), cap_us=Duration(cap), factor=factor, floor=floor
    )

    wait = backoff_us(backoff, failures=failures, entropy=luck)

    ceiling = min(cap, initial) if failures <= 1 else cap
    assert 0 <= wait <= ceiling
    assert wait >= int(min(initial, cap) * floor) - 1


@spec("F6")
def test_a_million_failures_neither_overflow_nor_take_long() -> None:
    steep = Backoff(initial_us=Duration(1), factor=100.0, cap_us=seconds(366 * 24 * 3600))
    flat = Backoff(factor=1.0)

    assert backoff_us(steep, failures=10**6, entropy=LUCKY) <= steep.cap_us
    assert backoff_us(flat, failures=10**6, entropy=UNLUCKY) == seconds(1)


@given(ENTROPIES)
def test_a_draw_is_at_least_zero_and_below_one(luck: bytes) -> None:
    assert 0 <= unit(luck) < 1


@spec("F6", "W4")
def test_the_extreme_draws_stay_in_range() -> None:
    assert unit(UNLUCKY) == 0
    assert unit(LUCKY) < 1
    backoff = Backoff(cap_us=Duration(1000))
    assert spread(Instant(5), backoff=backoff, entropy=UNLUCKY) == 5
    assert spread(Instant(5), backoff=backoff, entropy=LUCKY) == 1004


@spec("F6")
def test_the_wait_follows_the_number_of_failures() -> None:
    driver = lives.queued(Policy(backoff=Backoff(floor=1.0)))
    waits = []

    for _ in range(14):
        driver.do(driver.claim())
        driver.do(driver.fail())
        assert driver.job.run_at is not None
        waits.append((driver.job.run_at - driver.now) / 1_000_000)
        driver.advance(900)

    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900, 900, 900, 900]


@spec("F6")
@pytest.mark.parametrize(("luck", "minutes"), [(UNLUCKY, 46), (LUCKY, 92)])
def test_by_default_a_job_survives_an_outage_of_about_an_hour(luck: bytes, minutes: int) -> None:
    policy = Policy()

    waits = [
        backoff_us(policy.backoff, failures=failures, entropy=luck)
        for failures in range(1, policy.max_attempts)
    ]

    assert round(sum(waits) / seconds(60)) == minutes


@spec("F2")
@pytest.mark.parametrize(("retry_after_s", "wait_s"), [(0, 2), (1, 2), (3, 3)])
def test_retry_after_is_a_lower_bound(retry_after_s: float, wait_s: float) -> None:
    driver = lives.running(Policy(backoff=Backoff(floor=1.0)))

    driver.do(driver.fail(retry_after_s=retry_after_s))

    assert driver.job.run_at == driver.now + seconds(wait_s)


# --- Classes and reasons -------------------------------------------------------------------------


@spec("F13")
@each_case("stage", [None, *Stage])
@each_case("word", list(ErrorClass))
def test_the_error_class_decides_and_the_stage_only_for_validation(
    word: ErrorClass, stage: Stage | None
) -> None:
    driver = lives.running()

    driver.do(driver.fail(JobError(error_class=word, stage=stage)))

    expected = {
        ErrorClass.TRANSIENT: JobStatus.QUEUED,
        ErrorClass.UNCLASSIFIED: JobStatus.QUEUED,
        ErrorClass.PERMANENT: JobStatus.FAILED,
        ErrorClass.VALIDATION: JobStatus.DEAD_LETTERED
        if stage is Stage.INPUT
        else JobStatus.FAILED,
    }
    assert driver.job.status is expected[word]


@spec("F13")
def test_an_error_without_a_class_is_retryable() -> None:
    assert JobError().error_class is ErrorClass.UNCLASSIFIED


@spec("F12")
@pytest.mark.parametrize(
    ("reported", "reason"),
    [
        (None, ReasonCode.EXHAUSTED_RETRIES),
        (ReasonCode.PARSE_ERROR, ReasonCode.EXHAUSTED_RETRIES),
        (ReasonCode.DEPENDENCY_UNAVAILABLE, ReasonCode.DEPENDENCY_UNAVAILABLE),
    ],
)
def test_exhaustion_by_failure_names_the_dependency_only_if_the_last_error_did(
    reported: ReasonCode | None, reason: ReasonCode
) -> None:
    driver = lives.running(Policy(max_attempts=1))

    driver.do(driver.fail(replace(TRANSIENT, reason_code=reported, stage=Stage.COMMIT)))

    assert (driver.job.reason_code, driver.job.stage) == (reason, Stage.COMMIT)


@spec("T34", "F13", "F12")
@each_case("reason", [ReasonCode.POLICY_VIOLATION, ReasonCode.INFRASTRUCTURE_FAILURE])
@each_case("word", list(ErrorClass))
@each_case("is_cancelling", [False, True])
def test_a_worker_that_names_such_a_reason_makes_a_dead_letter_at_once(
    reason: ReasonCode, word: ErrorClass, is_cancelling: bool
) -> None:
    driver = (lives.cancelling if is_cancelling else lives.running)(
        Policy(on_exhausted=OnExhausted.FAIL)
    )
    error = JobError(error_class=word, stage=Stage.INPUT, reason_code=reason, message="no")

    outcome = driver.do(driver.fail(error))

    assert driver.rules[-1] == "T34"
    assert [event.type for event in applied(outcome).change.events] == ["dead_lettered"]
    assert driver.job.status is JobStatus.DEAD_LETTERED
    assert (driver.job.reason_code, driver.job.stage) == (reason, Stage.INPUT)
    assert driver.job.error == driver.job.last_error == error
    assert driver.job.failures == 0


@spec("F5")
def test_the_policy_of_the_first_event_is_the_policy_for_ever() -> None:
    driver = lives.running(Policy(max_attempts=2))
    driver.policy = Policy(max_attempts=99)

    driver.do(driver.fail())
    driver.advance(61)
    driver.do(driver.claim())
    driver.do(driver.fail())

    assert driver.job.policy == Policy(max_attempts=2)
    assert driver.job.status is JobStatus.DEAD_LETTERED


@spec("F5")
def test_the_documented_defaults() -> None:
    policy = Policy()

    assert (policy.max_attempts, policy.timeout_us) == (15, seconds(3600))
    assert (policy.start_within_us, policy.grace_us) == (seconds(600), seconds(30))
    assert (policy.on_exhausted, policy.on_lost) == ("dead_letter", "requeue")
    assert (policy.lease_us, policy.compensation) == (seconds(60), None)


# --- Compensation --------------------------------------------------------------------------------


def end_badly(driver: Driver, how: str) -> None:
    match how:
        case "failed":
            driver.do(driver.fail(PERMANENT))
        case "cancelled":
            driver.do(driver.cancel(CancelMode.HARD))
        case "dead_lettered":
            driver.do(driver.dead_letter())
        case "timed out":
            driver.advance(3600)
            driver.do(driver.sweep())
        case _:
            raise AssertionError(how)


@spec("M1")
@pytest.mark.parametrize("how", ["failed", "cancelled", "dead_lettered", "timed out"])
def test_a_bad_end_after_an_explicit_start_spawns_one_compensation(how: str) -> None:
    driver = lives.running(replace(lives.UNDOABLE, max_attempts=1))

    end_badly(driver, how)

    (born,) = driver.spawned
    assert born.expected_rev == 0
    assert born.job.id == compensation_id(driver.job.id)
    assert (born.job.kind, born.job.queue) == ("refund", "refunds")
    assert (born.job.compensates, born.job.origin_id) == (driver.job.id, driver.job.id)
    assert (born.job.status, born.job.run_at) == (JobStatus.QUEUED, driver.now)
    assert born.job.correlation_id == driver.job.correlation_id
    assert born.events[0].cause is EventCause.COMPENSATION
    assert born.events[0].actor == "system"
    assert json.loads(born.job.payload) == {
        "job_id": driver.job.id,
        "kind": "invoice",
        "status": driver.job.status.value,
        "payload": {"order": 7},
    }
    assert needs_compensation(driver.job)


@spec("M1")
def test_there_is_nothing_to_undo_without_an_explicit_start() -> None:
    never_claimed = lives.queued(lives.UNDOABLE)
    never_started = lives.claimed(lives.UNDOABLE)

    never_claimed.do(never_claimed.cancel())
    never_started.do(never_started.fail(PERMANENT))

    assert never_claimed.spawned == never_started.spawned == []


@spec("M1")
def test_a_start_in_an_earlier_attempt_is_enough() -> None:
    driver = lives.running(lives.UNDOABLE)
    driver.do(driver.fail())

    driver.do(driver.cancel())

    assert len(driver.spawned) == 1


@spec("M1")
def test_a_success_a_retry_and_a_kind_without_compensation_spawn_nothing() -> None:
    done, retried = lives.running(lives.UNDOABLE), lives.running(lives.UNDOABLE)
    plain = lives.failed()
    done.do(done.complete())
    retried.do(retried.fail())

    assert done.spawned == retried.spawned == plain.spawned == []
    assert not needs_compensation(done.job)
    assert not needs_compensation(retried.job)
    assert not needs_compensation(plain.job)


@spec("M2", "T24")
def test_a_compensation_that_succeeds_is_observed_on_the_original() -> None:
    driver = lives.running_compensation()

    outcome = applied(driver.do(driver.complete()))

    (observed,) = outcome.change.observations
    (event,) = outcome.change.events
    assert observed.type is ObservationType.COMPENSATED
    assert event.cause is EventCause.COMPENSATION
    assert lives.succeeded().events[-1].cause is None
    assert observed.job_id == driver.job.origin_id
    assert (observed.ts, observed.actor) == (driver.now, "system")
    assert lives.succeeded().observations == []


@spec("M2")
@pytest.mark.parametrize(
    "how", ["permanent", "unreadable", "forbidden", "exhausted", "expired", "operator", "released"]
)
def test_every_other_end_of_a_compensation_is_the_dead_letter_compensation_failed(
    how: str,
) -> None:
    driver = lives.running_compensation(
        Policy(max_attempts=1, max_releases=0, on_exhausted=OnExhausted.FAIL)
    )

    match how:
        case "permanent":
            driver.do(driver.fail(PERMANENT))
        case "unreadable":
            driver.do(driver.fail(JobError(error_class=ErrorClass.VALIDATION, stage=Stage.INPUT)))
            assert driver.rules[-1] == "T9b"
        case "forbidden":
            driver.do(driver.fail(FORBIDDEN))
            assert driver.rules[-1] == "T34"
        case "exhausted":
            driver.do(driver.fail())
        case "expired":
            driver.advance(60)
            driver.do(driver.sweep())
        case "operator":
            driver.do(driver.dead_letter(ReasonCode.INFRASTRUCTURE_FAILURE))
        case "released":
            driver.do(driver.release())
        case _:
            raise AssertionError(how)

    assert driver.job.status is JobStatus.DEAD_LETTERED
    assert driver.job.reason_code is ReasonCode.COMPENSATION_FAILED
    assert driver.observations == []


@spec("M3")
@pytest.mark.parametrize("mode", list(CancelMode))
def test_a_compensation_cannot_be_cancelled(mode: CancelMode) -> None:
    for driver in (lives.compensation(), lives.running_compensation()):
        refused = reply(changes_nothing(driver, driver.cancel(mode)))

        assert refused.cause is Cause.COMPENSATION_PROTECTED
        assert refused.job == driver.job


@spec("M3")
def test_a_compensation_is_never_compensated() -> None:
    driver = lives.running_compensation(lives.UNDOABLE)

    driver.do(driver.fail(PERMANENT))

    assert driver.job.policy.compensation is not None
    assert driver.spawned == []
    assert not needs_compensation(driver.job)


# --- Redrive -------------------------------------------------------------------------------------


@spec("T27")
@pytest.mark.parametrize("cause", [EventCause.REDRIVE, EventCause.RERUN])
@pytest.mark.parametrize("status", ["succeeded", "failed", "cancelled", "dead_lettered"])
def test_a_redrive_makes_a_new_job_and_leaves_the_old_one(cause: EventCause, status: str) -> None:
    driver = lives.IN_STATUS[JobStatus(status)]()
    before = driver.job

    outcome = applied(driver.do(driver.redrive(cause, request_id="again")))

    born = outcome.change.job
    assert driver.job is before
    assert outcome.rule == "T27"
    assert outcome.change.expected_rev == 0
    assert (born.status, born.rev, born.attempt, born.failures) == (JobStatus.QUEUED, 1, 0, 0)
    assert (born.origin_id, born.origin_cause) == (before.id, cause)
    assert (born.payload, born.policy, born.kind) == (before.payload, before.policy, before.kind)
    assert (born.run_at, born.correlation_id) == (driver.now, before.correlation_id)
    assert outcome.change.events[0].actor == OPERATOR
    assert reply(outcome).job == born
    assert born.compensates is None


@spec("T27")
def test_a_redriven_job_keeps_priority_key_queue_and_trace() -> None:
    driver = Driver()
    driver.do(driver.enqueue(priority=7, dedupe_key="k", trace_id="t"))
    driver.do(driver.cancel())

    born = applied(driver.do(driver.redrive())).change.job

    assert (born.priority, born.dedupe_key, born.trace_id) == (7, "k", "t")
    assert (born.queue, born.namespace) == (driver.job.queue, driver.job.namespace)


@spec("M1")
def test_a_compensation_keeps_priority_and_trace_but_no_key() -> None:
    driver = Driver(policy=lives.UNDOABLE)
    driver.do(driver.enqueue(priority=7, dedupe_key="k", trace_id="t"))
    driver.do(driver.claim())
    driver.do(driver.start())

    driver.do(driver.fail(PERMANENT))

    born = driver.spawned[0].job
    assert (born.priority, born.dedupe_key, born.trace_id) == (7, None, "t")
    assert born.namespace == driver.job.namespace


@spec("T27")
def test_a_redrive_can_carry_another_payload() -> None:
    driver = lives.failed()

    born = applied(driver.do(driver.redrive(payload=b'{"order":8}'))).change.job

    assert born.payload == b'{"order":8}'
    assert driver.job.payload == b'{"order":7}'


@spec("T27")
def test_the_new_id_follows_from_the_old_id_and_the_request_id_alone() -> None:
    driver, other = lives.failed(), lives.failed()

    one = redriven_id(driver.redrive(request_id="a"))

    assert one == redriven_id(other.redrive(request_id="a", payload=b"1"))
    assert one == redriven_id(driver.redrive(EventCause.RERUN, request_id="a"))
    assert one != redriven_id(driver.redrive(request_id="b"))
    assert one != compensation_id(driver.job.id)


@spec("T27", "Q4")
def test_a_repeated_redrive_finds_its_job_and_another_body_is_refused() -> None:
    driver = lives.failed()
    born = applied(driver.do(driver.redrive(request_id="a"))).change

    there = {"others": {born.job.id: born.job}, "histories": {born.job.id: born.events}}
    same = driver.ask(driver.redrive(request_id="a"), **there)
    other = driver.ask(driver.redrive(request_id="a", payload=b"1"), **there)
    rerun = driver.ask(driver.redrive(EventCause.RERUN, request_id="a"), **there)

    assert (reply(same).job, reply(same).replayed) == (born.job, True)
    assert reply(other).cause is Cause.IDEMPOTENCY_KEY_REUSE
    assert reply(rerun).cause is Cause.IDEMPOTENCY_KEY_REUSE


@spec("T27")
@pytest.mark.parametrize("status", ["queued", "claimed", "running", "stalled"])
def test_a_live_job_cannot_be_redriven(status: str) -> None:
    driver = lives.IN_STATUS[JobStatus(status)]()

    refused = reply(changes_nothing(driver, driver.redrive()))

    assert (refused.cause, refused.job) == (Cause.NOT_FINISHED, driver.job)


@spec("T27")
def test_a_redrive_waits_until_the_compensation_is_over() -> None:
    driver = lives.running(lives.UNDOABLE)
    driver.do(driver.fail(PERMANENT))
    undo = driver.follow(driver.spawned[0])

    while_queued = reply(driver.ask(driver.redrive(), others={undo.job.id: undo.job}))
    undo.do(undo.claim())
    while_claimed = reply(driver.ask(driver.redrive(), others={undo.job.id: undo.job}))
    undo.do(undo.complete())
    afterwards = driver.ask(driver.redrive(), others={undo.job.id: undo.job})

    assert while_queued.cause is while_claimed.cause is Cause.COMPENSATION_PENDING
    assert applied(afterwards).rule == "T27"
    assert applied(driver.ask(driver.redrive())).rule == "T27", "its compensation was purged"
