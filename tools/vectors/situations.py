"""The situations a worker's request can meet: every row of the matrices in docs/spec/responses.md.

Each is a short life of one job, told by a driver. The lease in question is that of the first
attempt, unless the situation says that it was never issued; `asker` is who uses it.
"""

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from tenure.core.commands import Complete, Fail, Outage, Release, Settle
from tenure.core.ids import Actor, LeaseId
from tenure.core.instants import Instant, seconds
from tenure.core.job import JobError, Progress
from tenure.core.policy import Policy
from tenure.core.vocabulary import (
    CancelMode,
    ErrorClass,
    EventType,
    OnLost,
    ReasonCode,
    ReleaseKind,
    Stage,
)
from tools.driver import (
    OPERATOR,
    OTHER_OWNER,
    OTHER_WORKER,
    PERMANENT,
    TRANSIENT,
    WORKER,
    Driver,
    Step,
)
from tools.lives import HOLD, PAST_THE_BACKOFF_S, RECLAIM, SHORT

LAST = Policy(max_attempts=1)
SEEN_HB_SEQ = 5
AFTER_A_RENEWAL_S = 8
"""Long enough that the next heartbeat is not early. [L16]"""
START_ID = "start-of-the-first"
NEVER_ISSUED = "0" * 32
UNREADABLE = JobError(
    error_class=ErrorClass.VALIDATION,
    type="SchemaError",
    message="no field 'id'",
    stage=Stage.INPUT,
    reason_code=ReasonCode.PARSE_ERROR,
)


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """A row of both matrices: its ids there, and a life that leads to it."""

    name: str
    settle_row: str
    live_row: str
    build: Callable[[], Driver]
    asker: Actor = WORKER
    is_issued: bool = True
    lease_epoch: int = 1

    def lease_id(self, driver: Driver) -> LeaseId:
        """The lease in question."""
        if not self.is_issued:
            return LeaseId(f"{self.lease_epoch}-{NEVER_ISSUED}")
        steps = [step for step in driver.script if isinstance(step, Step)]
        return first_lease_id(driver, steps)


def first_lease_id(driver: Driver, steps: list[Step]) -> LeaseId:
    """The lease of the first attempt; asked of the script where the log is gone."""
    for event in driver.events:
        if event.type is EventType.CLAIMED:
            assert event.lease_id is not None
            return event.lease_id
    for step in steps:
        if isinstance(step.command, Complete | Fail | Release):
            return step.command.lease_id
    raise AssertionError("no attempt in this life")


def settled_by(driver: Driver, lease_id: LeaseId) -> Settle | None:
    """The report that settled this lease, if one did."""
    recorded = {
        event.request_id
        for event in driver.events
        if event.lease_id == lease_id and event.actor == WORKER
    }
    for step in driver.script:
        if isinstance(step, Step) and isinstance(step.command, Complete | Fail | Release):
            command = step.command
            if command.lease_id == lease_id and command.request_id in recorded:
                return command
    return None


# --- How they come about -------------------------------------------------------------------------


def _granted(policy: Policy | None = None) -> Driver:
    driver = Driver(policy=policy)
    driver.do(driver.enqueue())
    driver.advance(1)
    driver.do(driver.claim())
    driver.advance(1)
    return driver


def _claimed(policy: Policy | None = None) -> Driver:
    driver = _granted(policy)
    driver.do(driver.heartbeat(hb_seq=SEEN_HB_SEQ))
    driver.advance(AFTER_A_RENEWAL_S)
    return driver


def _running(policy: Policy | None = None) -> Driver:
    driver = _claimed(policy)
    driver.advance(1)
    driver.do(driver.start(request_id=START_ID))
    driver.advance(AFTER_A_RENEWAL_S)
    return driver


def _then(driver: Driver, wait_s: float, *moves: Callable[[Driver], object]) -> Driver:
    driver.advance(wait_s)
    for move in moves:
        move(driver)
    return driver


def _sweep(driver: Driver) -> None:
    driver.do(driver.sweep())


def _sweep_after_outage(driver: Driver) -> None:
    outage = Outage(Instant(driver.now - seconds(20)), driver.now)
    driver.do(driver.sweep(outage))


def _take_back(driver: Driver) -> None:
    driver.do(driver.undelivered())


def _claim_again(driver: Driver) -> None:
    driver.advance(PAST_THE_BACKOFF_S)
    driver.do(driver.claim(actor=OTHER_WORKER, owner=OTHER_OWNER))


def _start_again(driver: Driver) -> None:
    _claim_again(driver)
    driver.do(driver.start(actor=OTHER_WORKER))


def _succeed_again(driver: Driver) -> None:
    _start_again(driver)
    driver.do(driver.complete(actor=OTHER_WORKER))


def _fail_again(driver: Driver) -> None:
    _start_again(driver)
    driver.do(driver.fail(PERMANENT, actor=OTHER_WORKER))


def _retry_again(driver: Driver) -> None:
    _start_again(driver)
    driver.do(driver.fail(TRANSIENT, actor=OTHER_WORKER))


def _cancel(driver: Driver) -> None:
    driver.do(driver.cancel())


def _cancel_hard(driver: Driver) -> None:
    driver.do(driver.cancel(CancelMode.HARD, actor=OPERATOR))


def _bury(driver: Driver) -> None:
    driver.do(driver.dead_letter())


def _cancel_requested(policy: Policy | None = None) -> Driver:
    return _then(_running(policy or Policy(grace_us=seconds(15))), 1, _cancel)


def _complete(driver: Driver) -> None:
    driver.do(driver.complete())


def _fail(driver: Driver) -> None:
    driver.do(driver.fail())


def _fail_for_good(driver: Driver) -> None:
    driver.do(driver.fail(PERMANENT))


def _fail_unreadable(driver: Driver) -> None:
    driver.do(driver.fail(UNREADABLE))


def _release(driver: Driver) -> None:
    driver.do(driver.release(delay_s=5))


def _snooze(driver: Driver) -> None:
    driver.do(driver.release(ReleaseKind.SNOOZE, delay_s=600))


def _beat(driver: Driver) -> None:
    for done in (1, 2):
        driver.advance(10)
        driver.do(driver.heartbeat(progress=Progress(done=done), checkpoint=b'{"done":%d}' % done))


def _prune(driver: Driver) -> None:
    driver.prune_renewals()


def _raise_epoch(driver: Driver) -> None:
    driver.raise_epoch()


def _purge(driver: Driver) -> None:
    driver.purge()


def _unknown() -> Driver:
    return Driver()


def _queued() -> Driver:
    driver = Driver()
    driver.do(driver.enqueue())
    return driver


# --- The rows ------------------------------------------------------------------------------------


def _valid() -> list[Situation]:
    return [
        Situation(name="valid, claimed", settle_row="R7", live_row="R17", build=_claimed),
        Situation(name="valid, running", settle_row="R8", live_row="R18", build=_running),
        Situation(
            name="valid, running, cancel requested",
            settle_row="R25",
            live_row="R19",
            build=_cancel_requested,
        ),
    ]


def _strange() -> list[Situation]:
    """Unknown jobs, leases that were never issued, and leases of other principals."""
    unknown = [
        Situation(
            name="unknown job", settle_row="R5", live_row="R16", build=_unknown, is_issued=False
        ),
        Situation(
            name="purged job",
            settle_row="R5",
            live_row="R16",
            build=lambda: _then(_running(), 1, _complete, _purge),
        ),
    ]
    jobs: dict[str, Callable[[], Driver]] = {
        "queued": _queued,
        "claimed": _claimed,
        "running": _running,
        "stalled": lambda: _then(_running(HOLD), 60, _sweep),
        "succeeded": lambda: _then(_running(), 1, _complete),
        "failed": lambda: _then(_running(), 1, _fail_for_good),
        "cancelled": lambda: _then(_running(), 1, _cancel_hard),
        "dead_lettered": lambda: _then(_running(), 1, _bury),
    }
    never = [
        Situation(
            name=f"never issued, {status}",
            settle_row="R6",
            live_row="R16",
            build=build,
            is_issued=False,
        )
        for status, build in jobs.items()
    ]
    foreign = [
        Situation(
            name=f"another principal's, {status}",
            settle_row="R6",
            live_row="R16",
            build=build,
            asker=OTHER_WORKER,
        )
        for status, build in jobs.items()
        if status != "queued"
    ]
    return unknown + never + foreign


def _overdue() -> list[Situation]:
    lives: dict[str, Callable[[], Driver]] = {
        "claimed, expired": lambda: _then(_claimed(), 60),
        "claimed, start_within over": lambda: _then(_claimed(SHORT), 44),
        "running, expired": lambda: _then(_running(), 60),
        "running, timed out": lambda: _then(_running(SHORT), 45),
        "running, cancel deadline over": lambda: _then(_cancel_requested(), 45),
        "running, all deadlines over": lambda: _then(_cancel_requested(SHORT), 3600),
        "running, timed out and expired": lambda: _then(_running(SHORT), 3600),
    }
    return [
        Situation(name=f"overdue, {name}", settle_row="R10", live_row="R20", build=build)
        for name, build in lives.items()
    ]


def _lost() -> list[Situation]:
    hold_short = replace(SHORT, on_lost=OnLost.HOLD)
    rows: list[tuple[str, str, Callable[[], Driver]]] = [
        ("R11", "by expiry, queued", lambda: _then(_running(), 60, _sweep)),
        (
            "R11",
            "by expiry in an outage, queued",
            lambda: _then(_running(), 60, _sweep_after_outage),
        ),
        ("R11", "by time-out, queued", lambda: _then(_running(SHORT), 45, _sweep)),
        ("R11", "by start_within, queued", lambda: _then(_claimed(SHORT), 45, _sweep)),
        ("R11", "taken back, queued", lambda: _then(_granted(), 1, _take_back)),
        ("R11", "by expiry, stalled", lambda: _then(_running(HOLD), 60, _sweep)),
        ("R11", "by time-out, stalled", lambda: _then(_running(hold_short), 45, _sweep)),
        ("R11", "by expiry, waiting for a reclaim", lambda: _then(_running(RECLAIM), 60, _sweep)),
        (
            "R11",
            "by expiry, queued after another attempt failed",
            lambda: _then(_running(), 60, _sweep, _retry_again),
        ),
        ("R12", "newer attempt claimed", lambda: _then(_running(), 60, _sweep, _claim_again)),
        ("R12", "reclaimed", lambda: _then(_running(RECLAIM), 60, _sweep, _claim_again)),
        ("R12", "newer attempt running", lambda: _then(_running(), 60, _sweep, _start_again)),
        ("R12", "newer attempt succeeded", lambda: _then(_running(), 60, _sweep, _succeed_again)),
        ("R12", "newer attempt failed", lambda: _then(_running(), 60, _sweep, _fail_again)),
        ("R13", "cancelled while claimed", lambda: _then(_claimed(), 1, _cancel)),
        ("R13", "cancelled hard while running", lambda: _then(_running(), 1, _cancel_hard)),
        ("R13", "cancel deadline recorded", lambda: _then(_cancel_requested(), 45, _sweep)),
        ("R13", "expired, then cancelled", lambda: _then(_running(), 60, _sweep, _cancel)),
        ("R14", "dead-lettered while running", lambda: _then(_running(), 1, _bury)),
        ("R14", "exhausted by expiry", lambda: _then(_running(LAST), 60, _sweep)),
    ]
    return [
        Situation(name=f"lost, {name}", settle_row=row, live_row="R20", build=build)
        for row, name, build in rows
    ]


def _settled() -> list[Situation]:
    lives: dict[str, Callable[[], Driver]] = {
        "by complete": lambda: _then(_running(), 1, _complete),
        "by complete without a start": lambda: _then(_claimed(), 1, _complete),
        "by a retryable fail": lambda: _then(_running(), 1, _fail),
        "by a retryable fail without a start": lambda: _then(_claimed(), 1, _fail),
        "by a retryable fail, newer attempt claimed": lambda: _then(
            _running(), 1, _fail, _claim_again
        ),
        "by a retryable fail, newer attempt succeeded": lambda: _then(
            _running(), 1, _fail, _succeed_again
        ),
        "by a retryable fail, then cancelled": lambda: _then(_running(), 1, _fail, _cancel),
        "by the last retryable fail": lambda: _then(_running(LAST), 1, _fail),
        "by a permanent fail": lambda: _then(_running(), 1, _fail_for_good),
        "by an unreadable input": lambda: _then(_running(), 1, _fail_unreadable),
        "by a release": lambda: _then(_running(), 1, _release),
        "by a snooze": lambda: _then(_claimed(), 1, _snooze),
        "by acknowledging a cancel": lambda: _then(_cancel_requested(), 1, _fail),
        "by complete after a cancel request": lambda: _then(_cancel_requested(), 1, _complete),
        "by complete, long ago": lambda: _then(_then(_running(), 1, _complete), 10**7),
        "by complete, renewals pruned": lambda: _then(_running(), 1, _beat, _complete, _prune),
        "by a retryable fail, newer attempt running, renewals pruned": lambda: _then(
            _running(), 1, _beat, _fail, _start_again, _prune
        ),
        "by complete, in an earlier epoch": lambda: _then(_running(), 1, _complete, _raise_epoch),
    }
    return [
        Situation(name=f"settled, {name}", settle_row="R15", live_row="R21", build=build)
        for name, build in lives.items()
    ]


def _of_an_earlier_epoch() -> list[Situation]:
    unissued = [
        Situation(
            name=f"earlier epoch, {name}",
            settle_row="R2",
            live_row="R2",
            build=build,
            is_issued=False,
        )
        for name, build in {
            "unknown job": lambda: _then(_unknown(), 1, _raise_epoch),
            "never recorded": lambda: _then(_queued(), 1, _raise_epoch),
        }.items()
    ]
    issued: list[tuple[str, Callable[[], Driver], Actor]] = [
        ("claimed", lambda: _then(_claimed(), 1, _raise_epoch), WORKER),
        ("running", lambda: _then(_running(), 1, _raise_epoch), WORKER),
        ("running, overdue", lambda: _then(_running(), 60, _raise_epoch), WORKER),
        ("lost before", lambda: _then(_running(), 60, _sweep, _raise_epoch), WORKER),
        ("lost after", lambda: _then(_running(), 60, _raise_epoch, _sweep), WORKER),
        ("superseded", lambda: _then(_running(), 60, _sweep, _raise_epoch, _start_again), WORKER),
        ("another principal's", lambda: _then(_running(), 1, _raise_epoch), OTHER_WORKER),
        (
            "another principal's, settled",
            lambda: _then(_running(), 1, _complete, _raise_epoch),
            OTHER_WORKER,
        ),
    ]
    return unissued + [
        Situation(
            name=f"earlier epoch, {name}",
            settle_row="R2",
            live_row="R2",
            build=build,
            asker=asker,
        )
        for name, build, asker in issued
    ]


SITUATIONS: tuple[Situation, ...] = (
    *_strange(),
    *_valid(),
    *_overdue(),
    *_lost(),
    *_settled(),
    *_of_an_earlier_epoch(),
)
