"""Exchanges: the requests that a situation is asked, one list per cell of the matrices.

A cell such as "same id, same body" can need two requests; the last answer is the cell's. Cells
that cannot occur are left out, as in docs/spec/responses.md.
"""

from collections.abc import Callable, Iterator

import msgspec
from msgspec.structs import replace

from tenure.core.commands import Complete, Fail, Release, Settle, WorkerCommand
from tenure.core.ids import LeaseId, RequestId
from tenure.core.job import JobError
from tenure.core.vocabulary import ReleaseKind
from tools.driver import FORBIDDEN, PERMANENT, TRANSIENT, Driver
from tools.vectors.situations import (
    SEEN_HB_SEQ,
    START_ID,
    UNREADABLE,
    Situation,
    settled_by,
)

NEW_ID = "new-request"
REPEATED_ID = "repeated-request"
NEWER_HB_SEQ = SEEN_HB_SEQ + 1
CURRENT_REV = "new, current expected_rev"
ANOTHER_REV = "new, another expected_rev"

Make = Callable[[str], Settle]


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """A cell: which operation, which column, and what is sent, in order."""

    operation: str
    column: str
    requests: tuple[WorkerCommand, ...]


def exchanges(situation: Situation, driver: Driver) -> Iterator[Exchange]:
    """Every cell that can occur in this situation."""
    lease_id = situation.lease_id(driver)
    yield from _settling(situation, driver, lease_id)
    yield from _living(situation, driver, lease_id)


def _makers(situation: Situation, driver: Driver, lease_id: LeaseId) -> dict[str, Make]:
    asker = situation.asker

    def complete(request_id: str) -> Settle:
        return driver.complete(request_id=request_id, lease_id=lease_id, actor=asker)

    def fail(error: JobError) -> Make:
        return lambda request_id: driver.fail(
            error, request_id=request_id, lease_id=lease_id, actor=asker
        )

    def release(kind: ReleaseKind) -> Make:
        return lambda request_id: driver.release(
            kind, request_id=request_id, lease_id=lease_id, actor=asker
        )

    makers: dict[str, Make] = {
        "complete": complete,
        "fail": fail(TRANSIENT),
        "release": release(ReleaseKind.DEPLOY),
    }
    if situation.settle_row in ("R7", "R8", "R25"):
        makers["fail, permanent"] = fail(PERMANENT)
        makers["fail, unreadable"] = fail(UNREADABLE)
        makers["fail, dead letter"] = fail(FORBIDDEN)
        makers["release, snooze"] = release(ReleaseKind.SNOOZE)
    return makers


def other_body(command: Settle) -> Settle:
    """The same operation under the same id, asking for something else."""
    match command:
        case Complete():
            return replace(command, result=b'"something else"')
        case Fail():
            return replace(command, error=replace(command.error, message="something else"))
        case Release():
            return replace(command, delay_us=command.delay_us + 1)


def _with_rev(operation: str, command: WorkerCommand, driver: Driver) -> Iterator[Exchange]:
    """The same request, made for the job's current `rev` and for another one. [K13]"""
    rev = driver.job_or_none.rev if driver.job_or_none else 1
    for column, expected in ((CURRENT_REV, rev), (ANOTHER_REV, rev + 1)):
        asked = replace(command, expected_rev=expected)
        yield Exchange(operation=operation, column=column, requests=(asked,))


def _settling(situation: Situation, driver: Driver, lease_id: LeaseId) -> Iterator[Exchange]:
    settled = settled_by(driver, lease_id) if situation.settle_row == "R15" else None
    if settled is not None:
        yield Exchange(operation=_name(settled), column="same body", requests=(settled,))
    for operation, make in _makers(situation, driver, lease_id).items():
        yield Exchange(operation=operation, column="new id", requests=(make(NEW_ID),))
        yield from _with_rev(operation, make(NEW_ID), driver)
        if settled is not None:
            other = replace(other_body(make(NEW_ID)), request_id=settled.request_id)
            yield Exchange(operation=operation, column="other body", requests=(other,))
        elif situation.settle_row not in ("R7", "R8", "R25"):
            first = make(REPEATED_ID)
            yield Exchange(operation=operation, column="same body", requests=(first, first))
            yield Exchange(
                operation=operation, column="other body", requests=(first, other_body(first))
            )


def _name(command: Settle) -> str:
    return type(command).__name__.lower()


def _living(situation: Situation, driver: Driver, lease_id: LeaseId) -> Iterator[Exchange]:
    asker = situation.asker
    for column, hb_seq in (("newer hb_seq", NEWER_HB_SEQ), ("hb_seq not newer", SEEN_HB_SEQ)):
        beat = driver.heartbeat(hb_seq=hb_seq, lease_id=lease_id, actor=asker)
        yield Exchange(operation="heartbeat", column=column, requests=(beat,))
        if hb_seq == NEWER_HB_SEQ:
            yield from _with_rev("heartbeat", beat, driver)
    start = driver.start(request_id=NEW_ID, lease_id=lease_id, actor=asker)
    yield Exchange(operation="start", column="new id", requests=(start,))
    yield from _with_rev("start", start, driver)
    if situation.live_row == "R17":
        return
    started_before = any(
        event.request_id == START_ID and event.lease_id == lease_id for event in driver.events
    )
    repeated = replace(start, request_id=RequestId(START_ID if started_before else REPEATED_ID))
    requests = (repeated,) if started_before else (repeated, repeated)
    yield Exchange(operation="start", column="same id", requests=requests)
