"""Acknowledgements: the callers' own log of their requests and the answers they received.

JSON lines, one per request and one per answer; docs/reference/acks.md describes the format.
Only callers can know what was acknowledged to them: a store that lost a job also lost every record
of it.
"""

import os
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec

from tenure.core.ids import JOB_ID_PATTERN, LEASE_ID_PATTERN, JobId, LeaseId, RequestId
from tenure.core.instants import Instant
from tenure.core.vocabulary import VerdictKind
from tenure.errors import InvalidInput
from tenure.ports import Clock

MAX_LINE_BYTES = 64 * 1024


class Op(StrEnum):
    """What was asked."""

    ENQUEUE = "enqueue"
    CLAIM = "claim"
    START = "start"
    HEARTBEAT = "heartbeat"
    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"
    CANCEL = "cancel"
    STALL = "stall"
    REQUEUE = "requeue"
    DEAD_LETTER = "dead_letter"
    REDRIVE = "redrive"


SETTLING = frozenset({Op.COMPLETE, Op.FAIL, Op.RELEASE})
_NEEDS_LEASE = SETTLING | {Op.CLAIM, Op.START, Op.HEARTBEAT}
_NEEDS_REQUEST_ID = SETTLING | {
    Op.START,
    Op.CANCEL,
    Op.STALL,
    Op.REQUEUE,
    Op.DEAD_LETTER,
    Op.REDRIVE,
}

_OF_LEASES = frozenset({VerdictKind.OK, VerdictKind.CANCELLED, VerdictKind.REJECTED})
_OF_REPORTS = frozenset({VerdictKind.COMMITTED, VerdictKind.CANCELLED, VerdictKind.REJECTED})
_OF_CLIENTS = frozenset({VerdictKind.OK, VerdictKind.REJECTED})
_ANSWERS: dict[Op, frozenset[VerdictKind]] = {
    **dict.fromkeys(Op, _OF_CLIENTS),
    **dict.fromkeys(SETTLING, _OF_REPORTS),
    **dict.fromkeys((Op.START, Op.HEARTBEAT), _OF_LEASES),
}
"""The answers that each request can get."""

EARLIEST = Instant(10**14)  # the year 1973: a time in seconds or milliseconds is far below
LATEST = Instant(10**16)  # the year 2286: a time in nanoseconds is far above


class Ack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: a request that was sent (`answer` is None), or the answer that came."""

    op: Op
    job_id: JobId
    at: Instant  # by the caller's clock
    answer: VerdictKind | None = None
    request_id: RequestId | None = None
    lease_id: LeaseId | None = None
    hb_seq: int | None = None
    answered_id: JobId | None = None  # the job the answer named, where it is not `job_id`
    rev: int | None = None  # of the job the answer showed
    pending: bool = False
    settled: bool = False
    replayed: bool = False  # of a heartbeat: it came early and was not recorded [L16]
    cause: str | None = None

    def __post_init__(self) -> None:
        """Refuse a line that verify cannot compare with a log, and an answer that such a request
        never gets: no rule would look at it, and the rules would seem to hold."""
        for problem in self._problems():
            raise ValueError(problem)

    def _problems(self) -> Iterator[str]:
        if self.answer is not VerdictKind.REJECTED:  # malformed ids are answered REJECTED
            yield from self._wrong_ids()
        if self.op in _NEEDS_LEASE and self.lease_id is None:
            yield f"{self.op} without a lease_id"
        if self.op in _NEEDS_REQUEST_ID and self.request_id is None:
            yield f"{self.op} without a request_id"
        if self.answer is not None and self.answer not in _ANSWERS[self.op]:
            yield f"{self.op} is never answered {self.answer}"
        if self.op is Op.REDRIVE and self.is_accepted and self.answered_id is None:
            yield f"{self.op} was accepted, without the answered_id of the new job"
        if not EARLIEST <= self.at <= LATEST:
            yield "at is not in microseconds since 1970"
        for name in ("hb_seq", "rev"):
            number = getattr(self, name)
            if number is not None and not 0 <= number < 2**63:
                yield f"{name} is out of range"

    def _wrong_ids(self) -> Iterator[str]:
        for name in ("job_id", "answered_id"):
            job_id = getattr(self, name)
            if job_id is not None and not JOB_ID_PATTERN.fullmatch(job_id):
                yield f"{name} is not a job id"
        if self.lease_id is not None and not LEASE_ID_PATTERN.fullmatch(self.lease_id):
            yield "lease_id is not a lease id"

    @property
    def is_accepted(self) -> bool:
        """Whether the caller was told that its request was carried out."""
        return self.answer in (VerdictKind.OK, VerdictKind.COMMITTED)

    @property
    def target(self) -> JobId:
        """The job an accepted answer is about."""
        return self.answered_id or self.job_id


def wall_clock() -> Instant:
    """The caller's clock, in microseconds."""
    return Instant(time.time_ns() // 1000)


class AckWriter:
    """Appends to one caller's file. A line is written before `write` returns, so it survives the
    death of the process; give every process a file of its own."""

    def __init__(self, path: Path, *, clock: Clock = wall_clock) -> None:
        self.clock = clock
        self._file = path.open("ab", buffering=0)
        self._encode = msgspec.json.Encoder().encode
        _cut_torn_tail(path)

    def write(self, *acks: Ack) -> None:
        """Append these lines with one write."""
        self._file.write(b"".join(self._encode(ack) + b"\n" for ack in acks))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> "AckWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cut_torn_tail(path: Path) -> None:
    """Remove a last line that an earlier process did not finish before it died."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - MAX_LINE_BYTES)
        file.seek(start)
        tail = file.read()
        if tail and not tail.endswith(b"\n"):
            file.truncate(start + tail.rfind(b"\n") + 1)


def read_acks(path: Path) -> Iterator[Ack]:
    """The lines of a file, one at a time. A last line without a line feed is skipped: it was never
    finished."""
    decode = msgspec.json.Decoder(Ack).decode
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            if not line.endswith(b"\n"):
                if len(line) < MAX_LINE_BYTES:
                    return
                raise _unreadable(path, number, f"is longer than {MAX_LINE_BYTES} bytes")
            if not line.strip():
                continue
            try:
                yield decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise _unreadable(path, number, str(error)) from error


def is_torn(path: Path) -> bool:
    """Whether the last line was never finished: its writer died, or is still writing."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        return file.read(1) not in (b"", b"\n")


def _unreadable(path: Path, number: int, problem: str) -> InvalidInput:
    return InvalidInput(
        f"{path.name}, line {number}", problem, hint="docs/reference/acks.md says what a line is"
    )
