"""Every cell of both response matrices, against tables written from docs/spec/responses.md."""

from collections.abc import Callable

from msgspec.structs import replace

from tenure.core.outcomes import Applied, Refused, Replayed
from tenure.core.verdicts import Verdict
from tenure_conformance.spec import spec
from tests.support.cases import Test, each_case
from tests.support.jobs import verdict
from tools.driver import Driver
from tools.lives import claimed
from tools.vectors.exchanges import ANOTHER_REV, CURRENT_REV, Exchange, exchanges
from tools.vectors.situations import SITUATIONS, Situation

Cell = tuple[Situation, Exchange]
CELLS: list[Cell] = [
    (situation, exchange)
    for situation in SITUATIONS
    for exchange in exchanges(situation, situation.build())
]
LIVING = ("heartbeat", "start")
REVS = (CURRENT_REV, ANOTHER_REV)


def cells(*rows: str, living: bool = False) -> Callable[[Test], Test]:
    """The cells of these rows, as a test's cases."""
    chosen = [
        (situation, exchange)
        for situation, exchange in CELLS
        if (exchange.operation in LIVING) == living
        and exchange.column not in REVS
        and (situation.live_row if living else situation.settle_row) in rows
    ]
    return each_case(("situation", "exchange"), chosen)


# --- Why a lease without authority was lost, by how it was lost: R2, R10 to R14 ------------------

CAUSES = {
    "unknown job": "unknown_job",
    "purged job": "unknown_job",
    "overdue, claimed, expired": "lease_expired",
    "overdue, claimed, start_within over": "timed_out",
    "overdue, running, expired": "lease_expired",
    "overdue, running, timed out": "timed_out",
    "overdue, running, cancel deadline over": "job_cancelled",
    "overdue, running, all deadlines over": "job_cancelled",
    "overdue, running, timed out and expired": "timed_out",
    "lost, by expiry, queued": "lease_expired",
    "lost, by expiry in an outage, queued": "lease_expired",
    "lost, by time-out, queued": "timed_out",
    "lost, by start_within, queued": "timed_out",
    "lost, taken back, queued": "revoked",
    "lost, by expiry, stalled": "lease_expired",
    "lost, by time-out, stalled": "timed_out",
    "lost, by expiry, waiting for a reclaim": "lease_expired",
    "lost, by expiry, queued after another attempt failed": "lease_expired",
}
CAUSES_BY_ROW = {
    "R2": "epoch_changed",
    "R6": "invalid_lease",
    "R12": "superseded",
    "R13": "job_cancelled",
    "R14": "job_dead_lettered",
}


def cause_of(situation: Situation) -> str:
    return CAUSES.get(situation.name) or CAUSES_BY_ROW[situation.settle_row]


KIND_BY_ROW = {
    "R2": "CANCELLED",
    "R5": "REJECTED",
    "R6": "REJECTED",
    "R10": "CANCELLED",
    "R11": "CANCELLED",
    "R12": "CANCELLED",
    "R13": "CANCELLED",
    "R14": "CANCELLED",
}

# --- What an accepted report does: R7, R8 and R25 -------------------------------------------------

DISPOSITIONS = {
    "R8": {
        "complete": ("succeeded", "succeeded"),
        "fail": ("retry_scheduled", "queued"),
        "fail, permanent": ("failed", "failed"),
        "fail, unreadable": ("dead_lettered", "dead_lettered"),
        "fail, dead letter": ("dead_lettered", "dead_lettered"),
        "release": ("released", "queued"),
        "release, snooze": ("released", "queued"),
    },
    "R25": {
        "complete": ("succeeded", "succeeded"),
        "fail": ("cancelled", "cancelled"),
        "fail, permanent": ("failed", "failed"),
        "fail, unreadable": ("dead_lettered", "dead_lettered"),
        "fail, dead letter": ("dead_lettered", "dead_lettered"),
        "release": ("cancelled", "cancelled"),
        "release, snooze": ("cancelled", "cancelled"),
    },
}
DISPOSITIONS["R7"] = DISPOSITIONS["R8"]

# --- What a settled lease hears again: R15 -------------------------------------------------------

RECORDED = {
    "settled, by complete": ("succeeded", "succeeded"),
    "settled, by complete without a start": ("succeeded", "succeeded"),
    "settled, by a retryable fail": ("retry_scheduled", "queued"),
    "settled, by a retryable fail without a start": ("retry_scheduled", "queued"),
    "settled, by a retryable fail, newer attempt claimed": ("retry_scheduled", "queued"),
    "settled, by a retryable fail, newer attempt succeeded": ("retry_scheduled", "queued"),
    "settled, by a retryable fail, then cancelled": ("retry_scheduled", "queued"),
    "settled, by the last retryable fail": ("dead_lettered", "dead_lettered"),
    "settled, by a permanent fail": ("failed", "failed"),
    "settled, by an unreadable input": ("dead_lettered", "dead_lettered"),
    "settled, by a release": ("released", "queued"),
    "settled, by a snooze": ("released", "queued"),
    "settled, by acknowledging a cancel": ("cancelled", "cancelled"),
    "settled, by complete after a cancel request": ("succeeded", "succeeded"),
    "settled, by complete, long ago": ("succeeded", "succeeded"),
    "settled, by complete, renewals pruned": ("succeeded", "succeeded"),
    "settled, by a retryable fail, newer attempt running, renewals pruned": (
        "retry_scheduled",
        "queued",
    ),
    "settled, by complete, in an earlier epoch": ("succeeded", "succeeded"),
}

WITH_RUN_AT = ("retry_scheduled", "released")


def send(driver: Driver, exchange: Exchange) -> Applied | Replayed | Refused:
    """Send every request of a cell; the last outcome is the cell's."""
    for request in exchange.requests[:-1]:
        assert isinstance(driver.do(request), Refused)
    outcome = driver.do(exchange.requests[-1])
    assert isinstance(outcome, Applied | Replayed | Refused)
    return outcome


def words(answer: Verdict) -> tuple[str, str | None]:
    return answer.kind.value, answer.cause.value if answer.cause else None


def outcome_of_report(answer: Verdict) -> tuple[str, str]:
    assert answer.disposition is not None
    assert answer.job_status is not None
    return answer.disposition.value, answer.job_status.value


def expected_refusal(situation: Situation, exchange: Exchange) -> tuple[str, str]:
    if situation.settle_row == "R15":
        reuses = exchange.column == "other body"
        return "REJECTED", "idempotency_key_reuse" if reuses else "duplicate_completion"
    return KIND_BY_ROW[situation.settle_row], cause_of(situation)


def check_settling(situation: Situation, exchange: Exchange) -> None:
    driver = situation.build()
    before = driver.job_or_none, list(driver.events)

    outcome = send(driver, exchange)

    answer = verdict(outcome)
    if situation.settle_row in DISPOSITIONS:
        assert isinstance(outcome, Applied)
        assert words(answer) == ("COMMITTED", None)
        assert not answer.replayed
        wanted = DISPOSITIONS[situation.settle_row][exchange.operation]
        assert outcome_of_report(answer) == wanted
        assert (answer.run_at is not None) == (wanted[0] in WITH_RUN_AT)
        return
    assert (driver.job_or_none, driver.events) == before
    if situation.settle_row == "R15" and exchange.column == "same body":
        assert isinstance(outcome, Replayed)
        assert words(answer) == ("COMMITTED", None)
        assert answer.replayed
        wanted = RECORDED[situation.name]
        assert outcome_of_report(answer) == wanted
        assert (answer.run_at is not None) == (wanted[0] in WITH_RUN_AT)
        return
    assert words(answer) == expected_refusal(situation, exchange)
    assert answer.disposition is None


@spec("R5", "R6")
@cells("R5", "R6")
def test_a_report_under_a_lease_that_was_never_issued_is_rejected(
    situation: Situation, exchange: Exchange
) -> None:
    check_settling(situation, exchange)


@spec("R7", "R8", "R25", "R3")
@cells("R7", "R8", "R25")
def test_a_report_under_a_valid_lease_is_committed(
    situation: Situation, exchange: Exchange
) -> None:
    check_settling(situation, exchange)


@spec("R10", "N2")
@cells("R10")
def test_a_report_after_the_end_of_its_lease_is_cancelled_before_any_sweep(
    situation: Situation, exchange: Exchange
) -> None:
    check_settling(situation, exchange)


@spec("R11", "R12", "R13", "R14")
@cells("R11", "R12", "R13", "R14")
def test_a_report_under_a_lost_lease_is_cancelled(situation: Situation, exchange: Exchange) -> None:
    check_settling(situation, exchange)


@spec("R15", "R22")
@cells("R15")
def test_a_settled_report_is_replayed_or_refused_for_as_long_as_the_job_exists(
    situation: Situation, exchange: Exchange
) -> None:
    check_settling(situation, exchange)


@spec("R2", "A5")
@cells("R2")
def test_a_report_from_an_earlier_epoch_is_cancelled(
    situation: Situation, exchange: Exchange
) -> None:
    check_settling(situation, exchange)


# --- Heartbeat and start -------------------------------------------------------------------------

OK = ("OK", None)
ALREADY = ("REJECTED", "already_started")
SETTLED = ("REJECTED", "lease_settled")
# row: heartbeat newer, heartbeat not newer, start new id, start same id; None cannot occur.
LIVING_ROWS: dict[str, tuple[tuple[str, str | None] | None, ...]] = {
    "R17": (OK, OK, OK, None),
    "R18": (OK, OK, ALREADY, OK),
    "R19": (OK, OK, ALREADY, OK),
    "R21": (OK, OK, SETTLED, SETTLED),
}
COLUMNS = [
    ("heartbeat", "newer hb_seq"),
    ("heartbeat", "hb_seq not newer"),
    ("start", "new id"),
    ("start", "same id"),
]


def expected_words(situation: Situation, exchange: Exchange) -> tuple[str, str | None] | None:
    if situation.live_row in LIVING_ROWS:
        column = COLUMNS.index((exchange.operation, exchange.column))
        return LIVING_ROWS[situation.live_row][column]
    kind = "REJECTED" if situation.live_row == "R16" else "CANCELLED"
    return kind, cause_of(situation)


def check_living(situation: Situation, exchange: Exchange) -> None:
    driver = situation.build()
    before, log = driver.job_or_none, list(driver.events)

    outcome = send(driver, exchange)

    answer = verdict(outcome)
    assert words(answer) == expected_words(situation, exchange)
    assert answer.disposition is None
    is_newer_beat = exchange.column == "newer hb_seq"
    is_first_start = situation.live_row == "R17" and exchange.operation == "start"
    extends = situation.live_row in ("R17", "R18", "R19") and is_newer_beat
    assert isinstance(outcome, Applied) == (extends or is_first_start)
    if isinstance(outcome, Applied):
        assert before is not None
        assert before.lease_expires_at is not None
        assert driver.job.lease_expires_at == driver.now + driver.policy.lease_us
    else:
        assert (driver.job_or_none, driver.events) == (before, log)
    is_ok = answer.kind.value == "OK"
    assert answer.settled == (is_ok and situation.live_row == "R21")
    assert (answer.cancel is not None) == (is_ok and situation.live_row == "R19")
    assert (answer.ttl_us is not None) == (is_ok and situation.live_row != "R21")


@spec("R16")
@cells("R16", living=True)
def test_another_principal_cannot_start_or_renew(situation: Situation, exchange: Exchange) -> None:
    check_living(situation, exchange)


@spec("R17", "R18", "R19", "R3", "N3")
@cells("R17", "R18", "R19", living=True)
def test_the_owner_of_a_valid_lease_is_answered_ok_and_extends_it_once(
    situation: Situation, exchange: Exchange
) -> None:
    check_living(situation, exchange)


@spec("R20", "R4")
@cells("R20", living=True)
def test_a_lease_that_is_over_is_neither_started_nor_extended(
    situation: Situation, exchange: Exchange
) -> None:
    check_living(situation, exchange)


@spec("R21")
@cells("R21", living=True)
def test_start_and_heartbeat_under_a_settled_lease_are_answered_that_it_is_settled(
    situation: Situation, exchange: Exchange
) -> None:
    check_living(situation, exchange)


@spec("R2", "A5")
@cells("R2", living=True)
def test_a_lease_of_an_earlier_epoch_is_neither_started_nor_extended(
    situation: Situation, exchange: Exchange
) -> None:
    check_living(situation, exchange)


# --- A request that states a rev -----------------------------------------------------------------

WITHOUT_REV = {"heartbeat": "newer hb_seq"}


def without_rev(situation: Situation, exchange: Exchange) -> Exchange:
    column = WITHOUT_REV.get(exchange.operation, "new id")
    return next(
        each
        for one, each in CELLS
        if one is situation and (each.operation, each.column) == (exchange.operation, column)
    )


def is_live(situation: Situation, exchange: Exchange) -> bool:
    """Whether the request would be carried out."""
    if exchange.operation == "start":
        return situation.live_row == "R17"
    return situation.live_row in ("R17", "R18", "R19")


@each_case(
    ("situation", "exchange"),
    [(one, two) for one, two in CELLS if two.column in REVS],
)
@spec("K13")
def test_a_request_for_another_rev_is_rejected_where_it_would_be_carried_out(
    situation: Situation, exchange: Exchange
) -> None:
    driver, other = situation.build(), situation.build()
    before = driver.job_or_none, list(driver.events)

    outcome = send(driver, exchange)
    plain = send(other, without_rev(situation, exchange))

    if exchange.column == ANOTHER_REV and is_live(situation, exchange):
        assert isinstance(outcome, Refused)
        assert words(verdict(outcome)) == ("REJECTED", "revision_mismatch")
        assert verdict(outcome).rev == driver.job.rev
        assert outcome.observation is None
        assert (driver.job_or_none, driver.events) == before
    else:
        assert verdict(outcome) == verdict(plain)
        assert driver.job_or_none == other.job_or_none


@spec("K13")
def test_a_repeat_of_a_request_that_was_carried_out_states_the_rev_from_before_it() -> None:
    driver = claimed()
    start = replace(driver.start(), expected_rev=driver.job.rev)
    driver.do(start)
    beat = replace(driver.heartbeat(), expected_rev=driver.job.rev)
    driver.do(beat)
    complete = replace(driver.complete(), expected_rev=driver.job.rev)

    answers = [verdict(driver.do(each)) for each in (start, beat, complete, complete)]

    assert [words(each) for each in answers] == [OK, OK, *[("COMMITTED", None)] * 2]
    assert answers[-1].replayed


@spec("K13", "R15")
def test_a_repeat_that_states_another_rev_than_the_first_is_another_request() -> None:
    driver = claimed()
    complete = replace(driver.complete(), expected_rev=driver.job.rev)
    driver.do(complete)

    answer = verdict(driver.do(replace(complete, expected_rev=None)))

    assert words(answer) == ("REJECTED", "idempotency_key_reuse")


@spec("K13")
def test_grants_and_oks_carry_the_rev_that_the_next_request_may_state() -> None:
    driver = claimed()
    rev = driver.job.rev

    started, renewed = (verdict(driver.do(each())) for each in (driver.start, driver.heartbeat))

    assert (started.rev, renewed.rev) == (rev + 1, rev + 2)


def test_every_row_and_every_column_of_the_matrices_is_tested() -> None:
    settle_rows = {situation.settle_row for situation, _ in CELLS}
    live_rows = {situation.live_row for situation, _ in CELLS}
    columns = {(each.operation.split(",")[0], each.column) for _, each in CELLS}

    assert settle_rows == {"R2", "R25"} | {f"R{number}" for number in range(5, 16) if number != 9}
    assert live_rows == {"R2"} | {f"R{number}" for number in range(16, 22)}
    assert columns == {
        *COLUMNS,
        *(
            (operation, column)
            for operation in ("complete", "fail", "release")
            for column in ("new id", "same body", "other body")
        ),
        *(
            (operation, column)
            for operation in ("complete", "fail", "release", *LIVING)
            for column in REVS
        ),
    }
