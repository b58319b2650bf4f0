"""Leases, outage credits and what a sweep records, in virtual time."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tenure.core.commands import Command, Outage
from tenure.core.ids import WorkerId
from tenure.core.instants import Instant, seconds
from tenure.core.leases import is_overdue, is_suspect, revocation
from tenure.core.outcomes import Applied
from tenure.core.policy import Backoff, LeaseBounds, Policy
from tenure.core.validation import check_policy
from tenure.core.vocabulary import Cause, EventCause, JobStatus, OnLost, ReleaseKind, VerdictKind
from tenure.errors import InvalidInput
from tenure.ports import JobHistory
from tenure.verify.leases import budget_is_kept
from tenure_conformance.spec import spec
from tests.support.jobs import (
    BEGINNING,
    OTHER_WORKER,
    WORKER,
    Driver,
    applied,
    changes_nothing,
    granted,
    verdict,
)
from tools import lives

MICROSECOND = 0.000001


def outage(driver: Driver, *, from_s: float, to_s: float) -> Outage:
    """An outage, in seconds relative to now."""
    return Outage(
        Instant(driver.now + seconds(from_s)),
        Instant(driver.now + seconds(to_s)),
    )


@spec("L1")
def test_a_lease_belongs_to_the_principal_and_the_worker_id_is_a_label() -> None:
    driver = lives.queued()
    driver.do(driver.claim(owner=WorkerId("ada-1")))

    from_another_label = verdict(driver.ask(driver.complete(actor=WORKER)))
    from_another_principal = verdict(driver.ask(driver.complete(actor=OTHER_WORKER)))

    assert from_another_label.kind is VerdictKind.COMMITTED
    assert from_another_principal.kind is VerdictKind.REJECTED
    assert from_another_principal.cause is Cause.INVALID_LEASE


@spec("L1")
def test_each_attempt_has_a_lease_of_its_own() -> None:
    driver = lives.queued()
    leases = set()

    for _ in range(5):
        leases.add(granted(driver.do(driver.claim())).lease_id)
        driver.do(driver.release())

    assert len(leases) == 5


@spec("L16")
def test_claim_start_and_heartbeat_set_the_expiry_to_now_plus_ttl() -> None:
    driver = lives.queued()
    expiries = []

    for command in (driver.claim, driver.start, driver.heartbeat, driver.heartbeat):
        driver.advance(8)
        driver.do(command())
        assert driver.job.lease_expires_at is not None
        expiries.append(driver.job.lease_expires_at - driver.now)

    assert expiries == [seconds(60)] * 4


@spec("L16", "N3")
def test_nothing_else_moves_the_expiry() -> None:
    driver = lives.running()
    driver.do(driver.heartbeat(hb_seq=3))
    expiry = driver.job.lease_expires_at
    driver.advance(5)

    changes_nothing(driver, driver.heartbeat(hb_seq=3))
    changes_nothing(driver, driver.heartbeat(hb_seq=2))
    changes_nothing(driver, driver.start(request_id="start-2"))
    driver.do(driver.cancel())
    changes_nothing(driver, driver.cancel(request_id="again"))

    assert driver.job.lease_expires_at == expiry


@spec("L9")
@pytest.mark.parametrize(
    ("build", "after_s"),
    [
        (lives.claimed, 60),
        (lambda: lives.claimed(lives.SHORT), 45),
        (lambda: _renewed(replace(lives.SHORT, start_within_us=seconds(10))), 45 - 9),
        (lambda: _renewed(Policy(start_within_us=seconds(10), timeout_us=None)), 60),
        (lives.running, 60),
        (lambda: lives.running(lives.SHORT), 45),
        (lives.cancelling, 30 + 15),
    ],
)
def test_a_lease_is_valid_until_its_end_and_gone_at_that_instant(
    build: object, after_s: float
) -> None:
    assert callable(build)
    early, late = build(), build()
    early.advance(after_s - MICROSECOND)
    late.advance(after_s)

    in_time = verdict(early.ask(early.complete()))
    too_late = verdict(late.ask(late.complete()))

    assert in_time.kind is VerdictKind.COMMITTED
    assert too_late.kind is VerdictKind.CANCELLED
    assert late.job.due_at == late.now
    assert late.job.lease is not None
    assert not late.job.lease.is_live(late.now)
    assert late.job.lease.is_live(Instant(late.now - 1))


@spec("L9")
def test_a_change_under_a_lease_must_be_written_before_the_lease_ends() -> None:
    driver = lives.running(lives.SHORT)

    for command in (driver.heartbeat(), driver.complete(), driver.fail(), driver.release()):
        assert applied(driver.ask(command)).change.not_after == driver.job.due_at
    claimed = lives.claimed()
    assert applied(claimed.ask(claimed.start())).change.not_after == claimed.job.due_at


def _renewed(policy: Policy) -> Driver:
    """Claimed, and renewed nine seconds later without a start."""
    driver = lives.claimed(policy)
    driver.advance(9)
    driver.do(driver.heartbeat())
    return driver


@spec("L9", "F12")
def test_a_time_out_without_a_start_counts_as_one_of_execution() -> None:
    driver = _renewed(replace(lives.SHORT, max_attempts=1))
    driver.advance(36)

    driver.do(driver.sweep())

    assert driver.events[-2].cause is EventCause.TIMEOUT
    assert (driver.job.reason_code, driver.job.stage) == ("timeout", "exec")


@spec("L9")
def test_without_a_timeout_only_a_missing_renewal_ends_the_lease() -> None:
    driver = lives.running(Policy(timeout_us=None))

    for _ in range(100):
        driver.advance(59)
        driver.do(driver.heartbeat())

    assert driver.job.due_at == driver.job.lease_expires_at
    assert revocation(driver.job, driver.now) is None


@spec("L17")
@pytest.mark.parametrize(
    ("ttl_s", "interval_s"),
    [(30, 15), (60, 30), (40, 20), (100, 30), (120, 30), (600, 30), (12, 6), (3, 1.5)],
)
def test_the_heartbeat_interval_is_half_of_the_ttl_and_at_most_30_s(
    ttl_s: float, interval_s: float
) -> None:
    assert Policy(lease_us=seconds(ttl_s)).heartbeat_interval_us == seconds(interval_s)


@spec("L17")
def test_a_policy_may_set_its_heartbeat_between_a_quarter_and_half_of_the_ttl() -> None:
    def check(heartbeat_s: float) -> Policy:
        policy = Policy(lease_us=seconds(60), heartbeat_us=seconds(heartbeat_s))
        check_policy("policy", policy, LeaseBounds())
        return policy

    assert [check(each).heartbeat_interval_us for each in (15, 20.5, 30)] == [
        seconds(each) for each in (15, 20.5, 30)
    ]
    for outside_s in (0, 14.9, 30.1, 60):
        with pytest.raises(InvalidInput, match=r"outside 15 s to 30 s, a quarter to half") as found:
            check(outside_s)
        assert found.value.field == "policy.heartbeat_us"


@spec("L17", "F9")
def test_a_heartbeat_follows_a_lease_that_changes_as_far_as_it_must() -> None:
    policy = Policy(lease_us=seconds(60), heartbeat_us=seconds(15))

    assert policy.with_lease(seconds(40)).heartbeat_us == seconds(15)
    assert policy.with_lease(seconds(120)).heartbeat_us == seconds(30)
    assert policy.with_lease(seconds(20)).heartbeat_us == seconds(10)
    assert Policy().with_lease(seconds(120)).heartbeat_us is None
    bounds = LeaseBounds(shortest_us=seconds(1), longest_us=seconds(20))
    assert bounds.applied_to(policy) == policy.with_lease(seconds(20))


@spec("L18")
def test_two_missed_heartbeats_are_the_end_of_a_lease_of_a_minute() -> None:
    driver = lives.running()
    driver.do(driver.heartbeat())
    driver.advance(60 - MICROSECOND)
    assert not is_suspect(driver.job, driver.now)
    changes_nothing(driver, driver.sweep())
    driver.advance(MICROSECOND)

    assert is_suspect(driver.job, driver.now)
    assert is_overdue(driver.job, driver.now)
    driver.do(driver.sweep())
    assert driver.job.status is JobStatus.QUEUED


@spec("L18")
def test_with_a_longer_lease_nothing_follows_from_two_missed_heartbeats() -> None:
    driver = lives.running(Policy(lease_us=seconds(120)))
    driver.do(driver.heartbeat())
    driver.advance(60 - MICROSECOND)
    before = is_suspect(driver.job, driver.now)
    driver.advance(MICROSECOND)

    assert not before
    assert is_suspect(driver.job, driver.now)
    changes_nothing(driver, driver.claim(actor=OTHER_WORKER))
    changes_nothing(driver, driver.sweep())
    assert verdict(driver.ask(driver.complete())).kind is VerdictKind.COMMITTED
    assert not is_suspect(lives.queued().job, driver.now)


@spec("L7")
def test_a_held_job_waits_for_an_operator_however_long() -> None:
    driver = lives.held()
    driver.advance(366 * 24 * 3600)

    changes_nothing(driver, driver.claim())
    changes_nothing(driver, driver.sweep())

    for command in (driver.requeue(), driver.cancel(), driver.dead_letter()):
        assert isinstance(driver.ask(command), Applied)


@spec("L7")
def test_only_lost_attempts_are_held() -> None:
    failed, released = lives.running(lives.HOLD), lives.running(lives.HOLD)

    failed.do(failed.fail())
    released.do(released.release())

    assert failed.job.status is JobStatus.QUEUED
    assert released.job.status is JobStatus.QUEUED


@spec("L8")
def test_every_ttl_is_what_remains_at_the_decision() -> None:
    driver = lives.queued()

    first = granted(driver.do(driver.claim())).ttl_us
    driver.advance(10)
    started = verdict(driver.do(driver.start(request_id="start"))).ttl_us
    driver.advance(20)
    repeated = verdict(driver.do(driver.start(request_id="start"))).ttl_us
    stale = verdict(driver.do(driver.heartbeat(hb_seq=0))).ttl_us

    assert (first, started, repeated, stale) == (
        seconds(60),
        seconds(60),
        seconds(40),
        seconds(40),
    )


@spec("L8", "L9")
def test_a_ttl_is_bounded_by_timeout_and_cancel_deadline() -> None:
    driver = lives.running(Policy(timeout_us=seconds(70), grace_us=seconds(5)))
    driver.advance(30)

    renewed = verdict(driver.do(driver.heartbeat()))
    driver.do(driver.cancel(reason="stop"))
    told = verdict(driver.do(driver.heartbeat()))

    assert renewed.ttl_us == seconds(40)
    assert told.ttl_us == seconds(30 + 5)
    assert told.cancel is not None
    assert (told.cancel.reason, told.cancel.remaining_us) == ("stop", seconds(35))


# --- What several deadlines decide ---------------------------------------------------------------


@spec("N2")
def test_the_cancel_deadline_counts_before_the_timeout_and_the_timeout_before_the_expiry() -> None:
    cancelled = lives.cancelling(lives.SHORT)
    timed_out = lives.running(lives.SHORT)
    for driver in (cancelled, timed_out):
        driver.advance(10_000)

    assert applied(cancelled.do(cancelled.sweep())).rule == "T20"
    assert applied(timed_out.do(timed_out.sweep())).rule == "T13"
    assert cancelled.events[-1].cause is EventCause.GRACE_OVER
    assert timed_out.events[-2].cause is EventCause.TIMEOUT


@spec("N2")
def test_out_of_stalled_a_cancel_goes_before_exhaustion_and_exhaustion_before_a_requeue() -> None:
    long_grace = Policy(max_attempts=1, grace_us=seconds(3600))
    cancelled = lives.cancelling(long_grace)
    exhausted = lives.running(Policy(max_attempts=1, on_lost=OnLost.REQUEUE))
    for driver in (cancelled, exhausted):
        driver.advance(60)
        driver.do(driver.sweep())

    assert cancelled.job.status is JobStatus.CANCELLED
    assert cancelled.job.is_exhausted
    assert exhausted.job.status is JobStatus.DEAD_LETTERED


# --- Outage credit -------------------------------------------------------------------------------


@spec("O10")
@pytest.mark.parametrize(
    ("from_s", "to_s", "is_free"),
    [
        (-60, 0, True),  # the whole time since the renewal
        (-30, -20, True),  # within it
        (-100, -60 + MICROSECOND, True),  # it ended just after the renewal
        (-100, -60, False),  # it ended with the renewal
        (-MICROSECOND, 50, True),  # it began just before the expiry
        (0, 50, False),  # it began with the expiry
    ],
)
def test_an_expiry_is_free_when_an_outage_overlapped_its_last_ttl(
    from_s: float, to_s: float, is_free: bool
) -> None:
    driver = lives.running()
    driver.advance(60)

    driver.do(driver.sweep(outage(driver, from_s=from_s, to_s=to_s)))

    stalled = driver.events[-2]
    assert stalled.cause is (EventCause.OUTAGE if is_free else EventCause.LEASE_EXPIRED)
    assert driver.job.failures == (0 if is_free else 1)
    assert driver.job.outage_credits == (1 if is_free else 0)


@spec("O10")
def test_an_outage_before_the_last_renewal_gives_no_credit() -> None:
    driver = lives.running()
    driver.advance(30)
    early = outage(driver, from_s=-20, to_s=-10)
    driver.do(driver.heartbeat())
    driver.advance(60)

    driver.do(driver.sweep(early))

    assert driver.job.failures == 1


@spec("O12")
def test_a_timeout_costs_a_failure_even_if_the_store_was_unavailable() -> None:
    driver = lives.running(lives.SHORT)
    driver.advance(45)

    driver.do(driver.sweep(outage(driver, from_s=-45, to_s=0)))

    assert (driver.job.failures, driver.job.outage_credits) == (1, 0)


def jump(driver: Driver, *, from_s: float, to_s: float) -> Outage:
    return replace(outage(driver, from_s=from_s, to_s=to_s), is_jump=True)


@spec("O10")
def test_an_expiry_is_free_when_the_clock_jumped_in_its_last_ttl() -> None:
    driver = lives.running(Policy(max_attempts=1))
    driver.advance(90)

    driver.do(driver.sweep(jump(driver, from_s=-80, to_s=0)))

    assert driver.events[-2].cause is EventCause.OUTAGE
    assert (driver.job.status, driver.job.failures) == (JobStatus.QUEUED, 0)


@spec("O12")
@pytest.mark.parametrize(
    ("from_s", "to_s", "is_free"),
    [
        (-44, 0, True),  # the clock jumped over the time-out
        (-40, -30, True),  # before it, so that the attempt had less time than it was promised
        (-90, -45 + MICROSECOND, True),  # it ended just after the start
        (-90, -45, False),  # it ended with the start
        (0, 50, False),  # it began with the time-out
    ],
)
def test_a_timeout_is_free_when_the_clock_jumped_in_the_time_that_it_counts(
    from_s: float, to_s: float, is_free: bool
) -> None:
    driver = lives.running(lives.SHORT)
    driver.advance(45)

    driver.do(driver.sweep(jump(driver, from_s=from_s, to_s=to_s)))

    assert driver.events[-2].cause is EventCause.TIMEOUT
    assert driver.job.failures == (0 if is_free else 1)
    assert driver.job.outage_credits == (1 if is_free else 0)
    assert list(budget_is_kept(JobHistory(driver.job.id, driver.job, driver.events))) == []


@spec("O12")
def test_a_start_that_came_too_late_because_of_a_jump_is_free() -> None:
    driver = lives.claimed(replace(lives.SHORT, max_attempts=1))
    driver.advance(90)

    driver.do(driver.sweep(jump(driver, from_s=-80, to_s=0)))

    assert driver.events[-2].cause is EventCause.START_TIMEOUT
    assert (driver.job.status, driver.job.failures) == (JobStatus.QUEUED, 0)


@spec("O12", "R11")
def test_the_worker_of_a_free_timeout_is_answered_that_it_timed_out() -> None:
    driver = lives.running(lives.SHORT)
    lease = driver.complete()
    driver.advance(45)
    before = verdict(driver.ask(lease))
    driver.do(driver.sweep(jump(driver, from_s=-40, to_s=0)))

    after = verdict(driver.ask(lease))

    assert before.cause is after.cause is Cause.TIMED_OUT


@spec("O3", "O12")
def test_a_fourth_timeout_costs_a_failure_even_after_a_jump() -> None:
    driver = lives.queued(lives.SHORT)
    costs = []

    for _ in range(4):
        driver.do(driver.claim())
        driver.advance(45)
        driver.do(driver.sweep(jump(driver, from_s=-40, to_s=0)))
        costs.append((driver.job.outage_credits, driver.job.failures))
        driver.advance(61)

    assert costs == [(1, 0), (2, 0), (3, 0), (3, 1)]


@spec("O3")
def test_a_job_gets_three_outage_credits_and_then_an_expiry_costs_a_failure() -> None:
    driver = lives.queued()
    costs = []

    for _ in range(5):
        driver.do(driver.claim())
        driver.advance(60)
        driver.do(driver.sweep(outage(driver, from_s=-60, to_s=0)))
        costs.append((driver.job.outage_credits, driver.job.failures))
        driver.advance(61)

    assert costs == [(1, 0), (2, 0), (3, 0), (3, 1), (3, 2)]


@spec("A7")
def test_the_expiry_of_a_lease_of_an_earlier_epoch_costs_nothing() -> None:
    driver = lives.running()
    driver.raise_epoch()
    driver.advance(60)

    driver.do(driver.sweep())

    assert driver.events[-2].cause is EventCause.OUTAGE
    assert (driver.job.failures, driver.job.outage_credits) == (0, 1)


@spec("A7")
def test_the_time_out_of_a_lease_of_an_earlier_epoch_costs_nothing() -> None:
    driver = lives.running(lives.SHORT)
    driver.raise_epoch()
    driver.advance(45)

    driver.do(driver.sweep())

    assert (driver.job.failures, driver.job.outage_credits) == (0, 1)


@spec("A7", "O3", "I39")
def test_the_end_of_an_old_epochs_lease_is_free_even_without_credits() -> None:
    driver = lives.queued()
    costs = []

    for _ in range(4):
        driver.do(driver.claim())
        driver.raise_epoch()
        driver.advance(60)
        driver.do(driver.sweep())
        costs.append((driver.job.outage_credits, driver.job.failures))
        driver.advance(61)

    assert costs == [(1, 0), (2, 0), (3, 0), (3, 0)]
    driver.do(driver.claim())
    *before, claimed = driver.events
    in_the_same_epoch = replace(claimed, lease_id=before[-2].lease_id)
    assert list(budget_is_kept(JobHistory(driver.job.id, None, driver.events))) == []
    assert list(budget_is_kept(JobHistory(driver.job.id, None, [*before, in_the_same_epoch])))


@spec("W4")
@pytest.mark.parametrize(("cap_s", "spread_s"), [(40, 40), (60, 60), (900, 60)])
def test_jobs_of_an_outage_come_back_spread_over_the_backoff_cap_and_at_most_a_minute(
    cap_s: int, spread_s: int
) -> None:
    policy = Policy(backoff=Backoff(cap_us=seconds(cap_s)))
    delays = []
    for draw in range(400):
        driver = lives.running(policy)
        driver.advance(60)
        driver.draws = draw
        driver.do(driver.sweep(outage(driver, from_s=-60, to_s=0)))
        assert driver.job.run_at is not None
        delays.append(driver.job.run_at - driver.now)

    assert all(0 <= delay < seconds(spread_s) for delay in delays)
    quarters = [delay * 4 // seconds(spread_s) for delay in delays]
    assert all(60 <= quarters.count(quarter) <= 140 for quarter in range(4))


@spec("W4", "T22")
def test_a_reclaim_after_an_outage_is_spread_as_well() -> None:
    driver = lives.running(lives.RECLAIM)
    driver.advance(60)

    driver.do(driver.sweep(outage(driver, from_s=-60, to_s=0)))

    assert driver.job.status is JobStatus.STALLED
    assert driver.job.run_at is not None
    assert driver.now <= driver.job.run_at < driver.now + seconds(60)


@spec("T22", "T15")
def test_no_reclaim_is_promised_where_the_job_ends() -> None:
    exhausted = lives.running(replace(lives.RECLAIM, max_attempts=1))
    cancelled = lives.cancelling(replace(lives.RECLAIM, grace_us=seconds(3600)))

    for driver in (exhausted, cancelled):
        driver.advance(60)
        driver.do(driver.sweep())
        assert driver.job.status.is_terminal
        assert driver.events[-2].payload.run_at is None


# --- A clock that steps back ---------------------------------------------------------------------


@spec("E13")
def test_event_times_never_decrease_and_expiries_are_computed_from_them() -> None:
    driver = lives.running()
    latest = driver.job.updated_at
    driver.advance(-30)

    driver.do(driver.heartbeat())
    driver.do(driver.fail(retry_after_s=100))

    assert [event.ts for event in driver.events[-3:]] == [latest] * 3
    assert driver.events[-3].lease_expires_at == latest + seconds(60)
    assert driver.job.run_at == latest + seconds(100)


AT_ONCE_LIVES: dict[str, Callable[[], Driver]] = {
    "enqueued": lives.queued,
    "released": lambda: _then(lives.running(), lambda driver: driver.release()),
    "undelivered": lambda: _then(lives.claimed(), lambda driver: driver.undelivered()),
    "let go by an operator": lambda: _then(lives.held(), lambda driver: driver.requeue()),
    "a compensation": lives.compensation,
}
HELD_BACK_LIVES: dict[str, Callable[[], Driver]] = {
    "delayed": lambda: _delayed(),
    "failed": lambda: _then(lives.running(), lambda driver: driver.fail()),
    "expired": lives.requeued,
    "snoozed": lambda: _then(
        lives.running(), lambda driver: driver.release(ReleaseKind.SNOOZE, delay_s=20)
    ),
    "waiting for a reclaim": lambda: lives.held(lives.RECLAIM),
}


def _then(driver: Driver, command: Callable[[Driver], Command]) -> Driver:
    driver.do(command(driver))
    return driver


def _delayed() -> Driver:
    driver = Driver(policy=Policy())
    driver.do(driver.enqueue(delay_s=20))
    return driver


@spec("Z6")
@pytest.mark.parametrize("build", AT_ONCE_LIVES.values(), ids=AT_ONCE_LIVES.keys())
def test_a_job_that_was_ready_is_not_held_back_by_a_clock_that_steps_back(
    build: Callable[[], Driver],
) -> None:
    driver = build()
    assert driver.job.run_at is not None
    driver.advance(-3600)

    outcome = applied(driver.do(driver.claim()))

    assert outcome.rule == "T2"


@spec("Z6")
@pytest.mark.parametrize("build", HELD_BACK_LIVES.values(), ids=HELD_BACK_LIVES.keys())
def test_a_job_with_a_delay_waits_for_the_clock_also_after_a_step_back(
    build: Callable[[], Driver],
) -> None:
    driver = build()
    ready_at = driver.job.run_at
    assert ready_at is not None
    driver.now = ready_at
    assert isinstance(driver.ask(driver.claim()), Applied)

    driver.advance(-3600)
    too_early = driver.ask(driver.claim())

    assert not isinstance(too_early, Applied)
    driver.now = ready_at
    assert isinstance(driver.ask(driver.claim()), Applied)


@spec("E13", "L16")
def test_a_claim_after_a_step_back_is_dated_by_the_last_event_and_its_lease_counts_from_now() -> (
    None
):
    driver = lives.queued()
    driver.advance(5)
    driver.do(driver.claim())
    driver.do(driver.release())
    driver.advance(-2)

    driver.do(driver.claim())

    assert driver.job.updated_at == BEGINNING + seconds(5)
    assert driver.job.lease_expires_at == BEGINNING + seconds(63)


@spec("E13", "R10")
def test_a_late_report_is_refused_even_if_the_clock_stepped_back() -> None:
    driver = lives.running()
    driver.advance(61)
    driver.do(driver.cancel())  # nobody has swept: the log now says that the end has passed
    driver.advance(-10)

    late = verdict(changes_nothing(driver, driver.complete()))

    assert late.kind is VerdictKind.CANCELLED
    assert applied(driver.do(driver.sweep())).rule == "T12"


@spec("C1")
def test_the_cancel_deadline_is_the_first_request_plus_heartbeat_and_grace() -> None:
    driver = lives.running(Policy(grace_us=seconds(7)))
    driver.advance(3)
    asked_at = driver.now
    driver.do(driver.cancel())
    driver.advance(5)
    changes_nothing(driver, driver.cancel(request_id="again"))
    changes_nothing(driver, driver.cancel(request_id="and again"))

    deadline = driver.job.cancel_deadline

    assert deadline == asked_at + seconds(30 + 7)
    assert Policy().grace_us == seconds(30)
    driver.now = Instant(deadline - 1)
    assert isinstance(driver.ask(driver.complete()), Applied)
    driver.now = deadline
    assert verdict(driver.ask(driver.complete())).cause is Cause.JOB_CANCELLED
    assert verdict(driver.ask(driver.heartbeat())).cause is Cause.JOB_CANCELLED


@spec("C1", "N3")
def test_no_heartbeat_extends_a_lease_past_the_cancel_deadline() -> None:
    driver = lives.cancelling()
    deadline = driver.job.cancel_deadline

    for _ in range(4):
        driver.advance(11)
        driver.do(driver.heartbeat())

    assert driver.job.due_at == deadline
    assert replace(driver.job).cancel_deadline == deadline
