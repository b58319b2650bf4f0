"""Every status with every command, against a table written from docs/spec/transitions.md.

`EXPECTED` says for each situation which commands change the job and by which row; whatever it
leaves out must change nothing [N1]. `EFFECTS` says what each row does: the events, where they
lead, and what they add to `attempt` and `failures`; `rev` rises by the number of events [A2].
"""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tenure.core.commands import Command, Outage
from tenure.core.instants import Instant, seconds
from tenure.core.job import JobError, Progress
from tenure.core.outcomes import Applied
from tenure.core.policy import Policy
from tenure.core.transitions import ENDED, LIVE, TABLE, Path, allows
from tenure.core.vocabulary import (
    CancelMode,
    ErrorClass,
    EventCause,
    EventType,
    JobStatus,
    OnExhausted,
    OnLost,
    ReasonCode,
    ReleaseKind,
    Stage,
)
from tenure_conformance.spec import spec
from tests.support.cases import each_case
from tools import lives
from tools.driver import FORBIDDEN, OPERATOR, PERMANENT, Driver

# --- Situations: where a job can stand ----------------------------------------------------------

LAST = Policy(max_attempts=1)


def later(driver: Driver, amount_s: float) -> Driver:
    driver.advance(amount_s)
    return driver


def with_outage(driver: Driver) -> Outage:
    """An outage that ended just now and covers the last minute."""
    return Outage(Instant(driver.now - seconds(60)), driver.now)


def not_yet_ready() -> Driver:
    driver = Driver()
    driver.do(driver.enqueue(delay_s=10))
    return driver


def released_often(times: int, policy: Policy) -> Driver:
    driver = lives.claimed(policy)
    for _ in range(times):
        driver.do(driver.release())
        driver.do(driver.claim())
    return driver


def unstarted_too_long(on_lost: OnLost = OnLost.REQUEUE) -> Driver:
    """Due to be started within 10 s, and nobody has. Held for a reclaim, if that is asked for."""
    driver = Driver(policy=Policy(on_lost=on_lost))
    driver.do(replace(driver.enqueue(), expires_us=seconds(10)))
    if on_lost is OnLost.RECLAIM:
        driver.do(driver.claim())
        driver.advance(60)
        driver.do(driver.sweep())
        return later(driver, 10)
    return later(driver, 10)


SITUATIONS: dict[str, Callable[[], Driver]] = {
    "no job": Driver,
    "waiting": lives.waiting,
    "queued": lives.queued,
    "queued, not ready": not_yet_ready,
    "queued, expired": unstarted_too_long,
    "claimed": lives.claimed,
    "claimed, last attempt": lambda: lives.claimed(LAST),
    "claimed, last attempt, fails": lambda: lives.claimed(
        replace(LAST, on_exhausted=OnExhausted.FAIL)
    ),
    "claimed, no releases left": lambda: released_often(1, Policy(max_releases=1)),
    "claimed, no releases left, last attempt": lambda: released_often(
        1, Policy(max_releases=1, max_attempts=1)
    ),
    "claimed, expired": lambda: later(lives.claimed(), 60),
    "claimed, expired, last attempt": lambda: later(lives.claimed(LAST), 60),
    "claimed, expired, hold": lambda: later(lives.claimed(lives.HOLD), 60),
    "claimed, start overdue": lambda: later(lives.claimed(lives.SHORT), 45),
    "claimed, start overdue, hold": lambda: later(
        lives.claimed(replace(lives.SHORT, on_lost=OnLost.HOLD)), 45
    ),
    "claimed, start overdue, last attempt": lambda: later(
        lives.claimed(replace(lives.SHORT, max_attempts=1)), 45
    ),
    "running": lives.running,
    "running, last attempt": lambda: lives.running(LAST),
    "running, last attempt, fails": lambda: lives.running(
        replace(LAST, on_exhausted=OnExhausted.FAIL)
    ),
    "running, expired": lambda: later(lives.running(), 60),
    "running, expired, last attempt": lambda: later(lives.running(LAST), 60),
    "running, expired, hold": lambda: later(lives.running(lives.HOLD), 60),
    "running, expired, reclaim": lambda: later(lives.running(lives.RECLAIM), 60),
    "running, timed out": lambda: later(lives.running(lives.SHORT), 45),
    "running, timed out, hold": lambda: later(
        lives.running(replace(lives.SHORT, on_lost=OnLost.HOLD)), 45
    ),
    "running, timed out, last attempt": lambda: later(
        lives.running(replace(lives.SHORT, max_attempts=1)), 45
    ),
    "running, cancel requested": lives.cancelling,
    "running, cancel requested, last attempt": lambda: lives.cancelling(LAST),
    "running, cancel requested, expired": lambda: later(
        lives.cancelling(Policy(grace_us=seconds(3600))), 60
    ),
    "running, cancel requested, timed out": lambda: later(
        lives.cancelling(replace(lives.SHORT, grace_us=seconds(3600))), 45
    ),
    "running, cancel deadline passed": lambda: later(lives.cancelling(), 45),
    "running compensation": lives.running_compensation,
    "running compensation, last attempt": lambda: lives.running_compensation(
        replace(LAST, on_exhausted=OnExhausted.FAIL)
    ),
    "stalled, held": lives.held,
    "stalled, reclaim ready": lives.reclaimable,
    "stalled, reclaim waiting": lambda: lives.held(lives.RECLAIM),
    "stalled, reclaim expired": lambda: unstarted_too_long(OnLost.RECLAIM),
    "succeeded": lives.succeeded,
    "failed": lives.failed,
    "cancelled": lives.cancelled,
    "dead_lettered": lives.dead_lettered,
}

# --- Commands, in every variant that the table tells apart -------------------------------------

VALIDATION = JobError(error_class=ErrorClass.VALIDATION, message="no field 'id'")

COMMANDS: dict[str, Callable[[Driver], Command]] = {
    "enqueue": lambda d: d.enqueue(),
    "enqueue, other body": lambda d: d.enqueue(payload=b"[]"),
    "flow": lambda d: d.flow(),
    "unblock": lambda d: d.unblock(),
    "unblock, parent failed": lambda d: d.unblock(JobStatus.FAILED),
    "claim": lambda d: d.claim(),
    "claim and start": lambda d: d.claim(start=True),
    "start": lambda d: d.start(),
    "heartbeat": lambda d: d.heartbeat(),
    "heartbeat, progress": lambda d: d.heartbeat(progress=Progress(done=1)),
    "heartbeat, checkpoint": lambda d: d.heartbeat(checkpoint=b"[1]"),
    "heartbeat, old": lambda d: d.heartbeat(hb_seq=0),
    "complete": lambda d: d.complete(),
    "fail, transient": lambda d: d.fail(),
    "fail, unclassified": lambda d: d.fail(JobError(type="KeyError")),
    "fail, permanent": lambda d: d.fail(PERMANENT),
    "fail, validation at exec": lambda d: d.fail(replace(VALIDATION, stage=Stage.EXEC)),
    "fail, validation at input": lambda d: d.fail(replace(VALIDATION, stage=Stage.INPUT)),
    "fail, parse error at input": lambda d: d.fail(
        replace(VALIDATION, stage=Stage.INPUT, reason_code=ReasonCode.PARSE_ERROR)
    ),
    "fail, policy violation": lambda d: d.fail(FORBIDDEN),
    "fail, infrastructure failure": lambda d: d.fail(
        JobError(reason_code=ReasonCode.INFRASTRUCTURE_FAILURE)
    ),
    "release": lambda d: d.release(),
    "snooze": lambda d: d.release(ReleaseKind.SNOOZE, delay_s=5),
    "undelivered": lambda d: d.undelivered(),
    "sweep": lambda d: d.sweep(),
    "sweep, outage": lambda d: d.sweep(with_outage(d)),
    "cancel soft": lambda d: d.cancel(),
    "cancel hard": lambda d: d.cancel(CancelMode.HARD),
    "cancel soft, operator": lambda d: d.cancel(actor=OPERATOR),
    "stall": lambda d: d.stall(),
    "requeue": lambda d: d.requeue(),
    "dead-letter": lambda d: d.dead_letter(),
    "redrive": lambda d: d.redrive(),
    "rerun": lambda d: d.redrive(EventCause.RERUN),
}

# --- What each row does -------------------------------------------------------------------------

EFFECTS: dict[str, tuple[str, str, int, int]] = {
    # code: (row, events and where they lead, attempt, failures)
    "T1": ("T1", "enqueued>queued", 0, 0),
    "T1 waits": ("T1", "enqueued>waiting", 0, 0),
    "T2": ("T2", "claimed>claimed", 1, 0),
    "T2+T3": ("T2", "claimed>claimed started>running", 1, 0),
    "T3": ("T3", "started>running", 0, 0),
    "T4c": ("T4", "lease_renewed>claimed", 0, 0),
    "T4c news": ("T4", "heartbeat>claimed", 0, 0),
    "T4r": ("T4", "lease_renewed>running", 0, 0),
    "T4r news": ("T4", "heartbeat>running", 0, 0),
    "T5": ("T5", "succeeded>succeeded", 0, 0),
    "T6+T5": ("T6", "started>running succeeded>succeeded", 0, 0),
    "T6+T7": ("T6", "started>running failed>failed", 0, 0),
    "T6+T8": ("T6", "started>running stalled>stalled requeued>queued", 0, 1),
    "T6+T9": ("T6", "started>running dead_lettered>dead_lettered", 0, 1),
    "T6+T9 fails": ("T6", "started>running failed>failed", 0, 1),
    "T6+T9b": ("T6", "started>running dead_lettered>dead_lettered", 0, 0),
    "T6+T34": ("T6", "started>running dead_lettered>dead_lettered", 0, 0),
    "T7": ("T7", "failed>failed", 0, 0),
    "T7 undo": ("T7", "dead_lettered>dead_lettered", 0, 0),
    "T8": ("T8", "stalled>stalled requeued>queued", 0, 1),
    "T9": ("T9", "dead_lettered>dead_lettered", 0, 1),
    "T9 fails": ("T9", "failed>failed", 0, 1),
    "T9b": ("T9b", "dead_lettered>dead_lettered", 0, 0),
    "T34": ("T34", "dead_lettered>dead_lettered", 0, 0),
    "T10": ("T10", "cancelled>cancelled", 0, 0),
    "T11": ("T11", "stalled>stalled requeued>queued", 0, 0),
    "T11 costs": ("T11", "stalled>stalled requeued>queued", 0, 1),
    "T11 dead": ("T11", "stalled>stalled dead_lettered>dead_lettered", 0, 1),
    "T12": ("T12", "stalled>stalled", 0, 1),
    "T12 free": ("T12", "stalled>stalled", 0, 0),
    "T12+T14": ("T12", "stalled>stalled requeued>queued", 0, 1),
    "T12+T14 free": ("T12", "stalled>stalled requeued>queued", 0, 0),
    "T12+T15": ("T12", "stalled>stalled dead_lettered>dead_lettered", 0, 1),
    "T12+T16": ("T12", "stalled>stalled cancelled>cancelled", 0, 1),
    "T12+T16 free": ("T12", "stalled>stalled cancelled>cancelled", 0, 0),
    "T13": ("T13", "stalled>stalled", 0, 1),
    "T13+T14": ("T13", "stalled>stalled requeued>queued", 0, 1),
    "T13+T15": ("T13", "stalled>stalled dead_lettered>dead_lettered", 0, 1),
    "T13+T16": ("T13", "stalled>stalled cancelled>cancelled", 0, 1),
    "T14": ("T14", "requeued>queued", 0, 0),
    "T16": ("T16", "cancelled>cancelled", 0, 0),
    "T17": ("T17", "cancelled>cancelled", 0, 0),
    "T18": ("T18", "cancelled>cancelled", 0, 0),
    "T19": ("T19", "cancel_requested>running", 0, 0),
    "T20": ("T20", "cancelled>cancelled", 0, 0),
    "T21": ("T21", "dead_lettered>dead_lettered", 0, 0),
    "T22": ("T22", "claimed>claimed", 1, 0),
    "T22+T3": ("T22", "claimed>claimed started>running", 1, 0),
    "T33": ("T33", "stalled>stalled", 0, 0),
    "T33+T16": ("T33", "stalled>stalled cancelled>cancelled", 0, 0),
    "T28": ("T28", "ready>queued", 0, 0),
    "T29": ("T29", "cancelled>cancelled", 0, 0),
    "T31": ("T31", "cancelled>cancelled", 0, 0),
    "T27": ("T27", "enqueued>queued", 0, 0),  # of the new job; the old one stays
}

# --- THE expectation, from docs/spec -------------------------------------------------------------


def cancels(row: str) -> dict[str, str]:
    return {"cancel soft": row, "cancel soft, operator": row, "cancel hard": row}


def retryable(row: str) -> dict[str, str]:
    return {"fail, transient": row, "fail, unclassified": row}


def permanent(row: str) -> dict[str, str]:
    return {"fail, permanent": row, "fail, validation at exec": row}


def unreadable(row: str) -> dict[str, str]:
    return {"fail, validation at input": row, "fail, parse error at input": row}


def buried(row: str) -> dict[str, str]:
    return {"fail, policy violation": row, "fail, infrastructure failure": row}


def releases(row: str) -> dict[str, str]:
    return {"release": row, "snooze": row}


def sweeps(row: str, with_credit: str | None = None) -> dict[str, str]:
    return {"sweep": row, "sweep, outage": with_credit or row}


OF_CLAIMED = {
    "start": "T3",
    "heartbeat": "T4c",
    "heartbeat, progress": "T4c news",
    "heartbeat, checkpoint": "T4c news",
    "complete": "T6+T5",
    **retryable("T6+T8"),
    **permanent("T6+T7"),
    **unreadable("T6+T9b"),
    **buried("T6+T34"),
    **releases("T11"),
    "undelivered": "T11",
    **cancels("T18"),
    "stall": "T33",
    "dead-letter": "T21",
}
OF_RUNNING = {
    "heartbeat": "T4r",
    "heartbeat, progress": "T4r news",
    "heartbeat, checkpoint": "T4r news",
    "complete": "T5",
    **retryable("T8"),
    **permanent("T7"),
    **unreadable("T9b"),
    **buried("T34"),
    **releases("T11"),
    "cancel soft": "T19",
    "cancel soft, operator": "T19",
    "cancel hard": "T20",
    "stall": "T33",
    "dead-letter": "T21",
}
OF_CANCELLING = {
    "heartbeat": "T4r",
    "heartbeat, progress": "T4r news",
    "heartbeat, checkpoint": "T4r news",
    "complete": "T5",
    **retryable("T10"),
    **permanent("T7"),
    **unreadable("T9b"),
    **buried("T34"),
    **releases("T10"),
    "cancel hard": "T20",
    "stall": "T33+T16",
    "dead-letter": "T21",
}
OF_COMPENSATION = {
    name: row for name, row in OF_RUNNING.items() if not name.startswith("cancel")
} | permanent("T7 undo")
# Once time has revoked the lease, its owner can do nothing; clients and operators still can.
CLAIMED_IN_VAIN = {**cancels("T18"), "stall": "T33", "dead-letter": "T21"}
RUNNING_IN_VAIN = {
    "cancel soft": "T19",
    "cancel soft, operator": "T19",
    "cancel hard": "T20",
    "stall": "T33",
    "dead-letter": "T21",
}
CANCELLING_IN_VAIN = {"cancel hard": "T20", "stall": "T33+T16", "dead-letter": "T21"}
OF_STALLED = {**cancels("T16"), "requeue": "T14", "dead-letter": "T21"}
OF_TERMINAL = {"redrive": "T27", "rerun": "T27"}

EXPECTED: dict[str, dict[str, str]] = {
    "no job": {"enqueue": "T1", "enqueue, other body": "T1", "flow": "T1 waits"},
    "waiting": {
        "unblock": "T28",
        "unblock, parent failed": "T29",
        **cancels("T17"),
        "dead-letter": "T21",
    },
    "queued": {"claim": "T2", "claim and start": "T2+T3", **cancels("T17"), "dead-letter": "T21"},
    "queued, not ready": {**cancels("T17"), "dead-letter": "T21"},
    "queued, expired": {**cancels("T17"), "dead-letter": "T21", **sweeps("T31")},
    "claimed": OF_CLAIMED,
    "claimed, last attempt": OF_CLAIMED | retryable("T6+T9"),
    "claimed, last attempt, fails": OF_CLAIMED | retryable("T6+T9 fails"),
    "claimed, no releases left": OF_CLAIMED | {"release": "T11 costs"},
    "claimed, no releases left, last attempt": OF_CLAIMED
    | retryable("T6+T9")
    | {"release": "T11 dead"},
    "claimed, expired": CLAIMED_IN_VAIN | sweeps("T12+T14", "T12+T14 free"),
    "claimed, expired, last attempt": CLAIMED_IN_VAIN | sweeps("T12+T15", "T12+T14 free"),
    "claimed, expired, hold": CLAIMED_IN_VAIN | sweeps("T12", "T12 free"),
    "claimed, start overdue": CLAIMED_IN_VAIN | sweeps("T13+T14"),
    "claimed, start overdue, hold": CLAIMED_IN_VAIN | sweeps("T13"),
    "claimed, start overdue, last attempt": CLAIMED_IN_VAIN | sweeps("T13+T15"),
    "running": OF_RUNNING,
    "running, last attempt": OF_RUNNING | retryable("T9"),
    "running, last attempt, fails": OF_RUNNING | retryable("T9 fails"),
    "running, expired": RUNNING_IN_VAIN | sweeps("T12+T14", "T12+T14 free"),
    "running, expired, last attempt": RUNNING_IN_VAIN | sweeps("T12+T15", "T12+T14 free"),
    "running, expired, hold": RUNNING_IN_VAIN | sweeps("T12", "T12 free"),
    "running, expired, reclaim": RUNNING_IN_VAIN | sweeps("T12", "T12 free"),
    "running, timed out": RUNNING_IN_VAIN | sweeps("T13+T14"),
    "running, timed out, hold": RUNNING_IN_VAIN | sweeps("T13"),
    "running, timed out, last attempt": RUNNING_IN_VAIN | sweeps("T13+T15"),
    "running, cancel requested": OF_CANCELLING,
    "running, cancel requested, last attempt": OF_CANCELLING,
    "running, cancel requested, expired": CANCELLING_IN_VAIN | sweeps("T12+T16", "T12+T16 free"),
    "running, cancel requested, timed out": CANCELLING_IN_VAIN | sweeps("T13+T16"),
    "running, cancel deadline passed": CANCELLING_IN_VAIN | sweeps("T20"),
    "running compensation": OF_COMPENSATION,
    "running compensation, last attempt": OF_COMPENSATION | retryable("T9"),
    "stalled, held": OF_STALLED,
    "stalled, reclaim ready": OF_STALLED | {"claim": "T22", "claim and start": "T22+T3"},
    "stalled, reclaim waiting": OF_STALLED,
    "stalled, reclaim expired": OF_STALLED | sweeps("T31"),
    "succeeded": OF_TERMINAL,
    "failed": OF_TERMINAL,
    "cancelled": OF_TERMINAL,
    "dead_lettered": OF_TERMINAL,
}

PAIRS = [(situation, command) for situation in SITUATIONS for command in COMMANDS]


def steps(path: str) -> list[tuple[str, str]]:
    return [(step.split(">")[0], step.split(">")[1]) for step in path.split()]


def counters(driver: Driver) -> tuple[int, int, int]:
    job = driver.job_or_none
    return (job.attempt, job.rev, job.failures) if job else (0, 0, 0)


@spec("N1", "A1", "A2", "T25")
@each_case(("situation", "command"), PAIRS)
def test_each_command_in_each_situation_does_what_the_table_says(
    situation: str, command: str
) -> None:
    driver = SITUATIONS[situation]()
    code = EXPECTED[situation].get(command)
    before, row_before, log_before = counters(driver), driver.job_or_none, list(driver.events)

    outcome = driver.do(COMMANDS[command](driver))

    if code is None:
        assert not isinstance(outcome, Applied), outcome
        assert (driver.job_or_none, driver.events) == (row_before, log_before)
        return
    rule, path, attempt, failures = EFFECTS[code]
    assert isinstance(outcome, Applied), outcome
    events = outcome.change.events
    assert outcome.rule == rule
    assert [(event.type, event.to_status) for event in events] == steps(path)
    if rule == "T27":
        assert driver.job_or_none is row_before
        assert outcome.change.job.id != driver.job.id
        return
    assert events[0].from_status == (row_before.status if row_before else None)
    assert driver.job.status == events[-1].to_status
    assert counters(driver) == (before[0] + attempt, before[1] + len(events), before[2] + failures)


def test_the_expectation_covers_every_situation_and_names_only_known_commands() -> None:
    statuses = {driver().job_or_none and driver().job.status for driver in SITUATIONS.values()}

    assert EXPECTED.keys() == SITUATIONS.keys()
    assert {name for cells in EXPECTED.values() for name in cells} <= COMMANDS.keys()
    assert {code for cells in EXPECTED.values() for code in cells.values()} == EFFECTS.keys()
    assert statuses == {None, *JobStatus}


def _reached() -> set[tuple[str, JobStatus | None, Path]]:
    """Every (row, source, path) that the pairs go along, also as the tail of a longer one.

    T14, T15 and T16 happen in the same transaction as T12 and T13 more often than alone; what
    follows the `stalled` of those is one of them.
    """
    found: set[tuple[str, JobStatus | None, Path]] = set()
    tails = {
        EventType.REQUEUED: "T14",
        EventType.DEAD_LETTERED: "T15",
        EventType.CANCELLED: "T16",
    }
    for situation, cells in EXPECTED.items():
        for command in cells:
            driver = SITUATIONS[situation]()
            source = driver.job.status if driver.job_or_none else None
            outcome = driver.do(COMMANDS[command](driver))
            assert isinstance(outcome, Applied)
            path = tuple((event.type, event.to_status) for event in outcome.change.events)
            found.add((outcome.rule, source, () if outcome.rule == "T27" else path))
            if outcome.rule in ("T12", "T13") and len(path) == 2:
                found.add((tails[path[1][0]], JobStatus.STALLED, path[1:]))
    return found


# Rows that leave no event: an observation, a refusal, and a purge, which is the store's.
WITHOUT_AN_EVENT = {"T24", "T25", "T26"}


@spec("N1")
def test_every_path_and_every_source_of_the_table_is_walked_and_no_other() -> None:
    walked = [row for row in TABLE if row.id not in WITHOUT_AN_EVENT]

    reached = _reached()

    assert {(rule, path) for rule, _, path in reached} == {
        (row.id, path) for row in walked for path in row.paths
    }
    assert {(rule, source) for rule, source, _ in reached} == {
        (row.id, source) for row in walked for source in row.sources
    }


def test_no_row_of_the_table_allows_another_path_or_another_source() -> None:
    for row in TABLE:
        for source in (None, *LIVE, *ENDED):
            assert allows(row.id, source, ((EventType.CLAIMED, JobStatus.QUEUED),)) is False
            if source not in row.sources:
                assert not any(allows(row.id, source, path) for path in row.paths)


@spec("T4")
@pytest.mark.parametrize("status", [JobStatus.CLAIMED, JobStatus.RUNNING])
def test_a_renewal_stays_where_it_is(status: JobStatus) -> None:
    other = JobStatus.RUNNING if status is JobStatus.CLAIMED else JobStatus.CLAIMED

    for renewal in (EventType.LEASE_RENEWED, EventType.HEARTBEAT):
        assert allows("T4", status, ((renewal, status),))
        assert not allows("T4", status, ((renewal, other),))
