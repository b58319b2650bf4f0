"""Acknowledgements: the callers' own log of their requests and the answers they received.

JSON lines, one per request and one per answer; docs/reference/acks.md describes the format.
Only callers can know what was acknowledged to them: a store that lost a job also lost every record
of it. This module writes the lines, reads them, and finds them by job.
"""

import os
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import islice
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tenure.core.claims import ClaimRequest
from tenure.core.commands import (
    Cancel,
    Complete,
    DeadLetter,
    Enqueue,
    EnqueueFlow,
    Fail,
    FollowUp,
    Heartbeat,
    OperatorCommand,
    Redrive,
    Release,
    Requeue,
    Stall,
    Start,
    WorkerCommand,
)
from tenure.core.ids import JOB_ID_PATTERN, LEASE_ID_PATTERN, JobId, LeaseId, RequestId
from tenure.core.instants import Instant
from tenure.core.verdicts import Grant, Reply, Verdict
from tenure.core.vocabulary import VerdictKind
from tenure.errors import InvalidInput
from tenure.ports import Clock
from tenure.verify.checking import temporary_database

MAX_LINE_BYTES = 64 * 1024


class AckOp(StrEnum):
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


SETTLING = frozenset({AckOp.COMPLETE, AckOp.FAIL, AckOp.RELEASE})
_NEEDS_LEASE = SETTLING | {AckOp.CLAIM, AckOp.START, AckOp.HEARTBEAT}
_NEEDS_REQUEST_ID = SETTLING | {
    AckOp.START,
    AckOp.CANCEL,
    AckOp.STALL,
    AckOp.REQUEUE,
    AckOp.DEAD_LETTER,
    AckOp.REDRIVE,
}

_OF_LEASES = frozenset({VerdictKind.OK, VerdictKind.CANCELLED, VerdictKind.REJECTED})
_OF_REPORTS = frozenset({VerdictKind.COMMITTED, VerdictKind.CANCELLED, VerdictKind.REJECTED})
_OF_CLIENTS = frozenset({VerdictKind.OK, VerdictKind.REJECTED})
_ANSWERS: dict[AckOp, frozenset[VerdictKind]] = {
    **dict.fromkeys(AckOp, _OF_CLIENTS),
    **dict.fromkeys(SETTLING, _OF_REPORTS),
    **dict.fromkeys((AckOp.START, AckOp.HEARTBEAT), _OF_LEASES),
}
"""The answers that each request can get."""

EARLIEST = Instant(10**14)  # the year 1973: a time in seconds or milliseconds is far below
LATEST = Instant(10**16)  # the year 2286: a time in nanoseconds is far above


class Ack(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line: a request that was sent (`answer` is None), or the answer that came."""

    op: AckOp
    job_id: JobId
    at: Instant  # by the caller's clock
    answer: VerdictKind | None = None
    request_id: RequestId | None = None
    lease_id: LeaseId | None = None
    hb_seq: int | None = None
    answered_id: JobId | None = None  # the job the answer named, where it is not `job_id`
    rev: int | None = None  # of the job in the answer
    pending: bool = False
    settled: bool = False
    replayed: bool = False  # of a heartbeat: it came early and was not recorded [L16]
    cause: str | None = None

    def __post_init__(self) -> None:
        """Refuse a line that verify cannot compare with a log, and an answer that such a request
        never gets: no rule would check it, and the rules would seem to hold."""
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
        if self.op is AckOp.REDRIVE and self.is_accepted and self.answered_id is None:
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
        """Whether the request was carried out."""
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
        f"{path.name}, line {number}", problem, hint="docs/reference/acks.md describes a line"
    )


# --- from commands and answers of the core

_OP: dict[type[object], AckOp] = {
    Enqueue: AckOp.ENQUEUE,
    FollowUp: AckOp.ENQUEUE,
    Start: AckOp.START,
    Heartbeat: AckOp.HEARTBEAT,
    Complete: AckOp.COMPLETE,
    Fail: AckOp.FAIL,
    Release: AckOp.RELEASE,
    Cancel: AckOp.CANCEL,
    Stall: AckOp.STALL,
    Requeue: AckOp.REQUEUE,
    DeadLetter: AckOp.DEAD_LETTER,
    Redrive: AckOp.REDRIVE,
}

AckedCommand = Enqueue | WorkerCommand | OperatorCommand


def request_line(command: AckedCommand, *, at: Instant) -> Ack:
    """The line to write before a command is sent."""
    lease_id = None
    if isinstance(command, Start | Heartbeat | Complete | Fail | Release):
        lease_id = command.lease_id
    return Ack(
        op=_OP[type(command)],
        job_id=command.job_id,
        at=at,
        request_id=None if isinstance(command, Enqueue) else command.request_id,
        lease_id=lease_id,
        hb_seq=command.hb_seq if isinstance(command, Heartbeat) else None,
    )


def answer_line(command: AckedCommand, answer: Verdict | Reply, *, at: Instant) -> Ack:
    """The line to write when its answer has arrived."""
    line = request_line(command, at=at)
    if isinstance(answer, Verdict):
        return replace(
            line,
            answer=answer.kind,
            settled=answer.settled,
            replayed=answer.replayed and isinstance(command, Heartbeat),
            cause=answer.cause,
        )
    job = answer.job if answer.is_ok else None
    return replace(
        line,
        answer=VerdictKind.OK if answer.is_ok else VerdictKind.REJECTED,
        answered_id=job.id if job is not None and job.id != line.job_id else None,
        rev=job.rev if job is not None else None,
        pending=answer.pending,
        cause=answer.cause,
    )


def flow_lines(command: EnqueueFlow, answer: Reply, *, at: Instant) -> list[Ack]:
    """The lines to write when a flow was answered: one for each of its jobs, or for the first if it
    was refused. None for a handler's flow that exists: it may have other jobs. [FL13]"""
    if answer.replayed and command.handler is not None:
        return []
    if not answer.is_ok:
        return [answer_line(command.members[0].job, answer, at=at)]
    return [
        Ack(op=AckOp.ENQUEUE, job_id=member.job.job_id, at=at, answer=VerdictKind.OK, rev=1)
        for member in command.members
    ]


def flow_redrive_lines(answer: Reply, *, at: Instant) -> list[Ack]:
    """The lines to write when the redrive of a flow was answered: one for its first new job. The
    others were made in the same transaction."""
    if answer.job is None or not answer.is_ok:
        return []
    return [Ack(op=AckOp.ENQUEUE, job_id=answer.job.id, at=at, answer=VerdictKind.OK, rev=1)]


def grant_lines(request: ClaimRequest, grants: Iterable[Grant], *, at: Instant) -> list[Ack]:
    """The lines to write when a claim has received grants."""
    return [
        Ack(
            op=AckOp.CLAIM,
            job_id=grant.job_id,
            at=at,
            request_id=request.request_id,
            lease_id=grant.lease_id,
            answer=VerdictKind.OK,
            rev=grant.job.rev,
        )
        for grant in grants
    ]


# --- by job

_LINES_READ = 1000


class AckIndex:
    """Acknowledgements by the job they are about, and which of those jobs have a record; any number
    of them, in a temporary database."""

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Ack).decode
        self._database = temporary_database(
            "CREATE TABLE ack (job_id TEXT NOT NULL, body BLOB NOT NULL)",
            "CREATE TABLE found (job_id TEXT PRIMARY KEY) WITHOUT ROWID",
        )
        self.close = self._database.close

    def load(self, paths: Iterable[Path]) -> list[int]:
        """Read these files. Returns how many lines each of them has."""
        lines = [self._load(path) for path in paths]
        self._database.execute("CREATE INDEX ack_by_job ON ack (job_id)")
        return lines

    def _load(self, path: Path) -> int:
        lines = 0
        acks = read_acks(path)
        while batch := list(islice(acks, _LINES_READ)):
            lines += len(batch)
            rows = [row for ack in batch for row in self._rows(ack)]
            self._database.executemany("INSERT INTO ack VALUES (?, ?)", rows)
        return lines

    def _rows(self, ack: Ack) -> Iterator[tuple[str, bytes]]:
        body = self._encode(ack)
        yield ack.job_id, body
        if ack.target != ack.job_id:
            yield ack.target, body

    def of(self, job_id: JobId) -> list[Ack]:
        """What callers wrote about a job that has a record, in the order of their files."""
        found = self._of(job_id)
        if found:
            self._database.execute("INSERT OR IGNORE INTO found VALUES (?)", (job_id,))
        return found

    def _of(self, job_id: JobId) -> list[Ack]:
        rows = self._database.execute(
            "SELECT body FROM ack WHERE job_id = ? ORDER BY rowid", (job_id,)
        )
        return [self._decode(body) for (body,) in rows]

    def without_record(self) -> Iterator[tuple[JobId, list[Ack]]]:
        """The jobs that callers wrote about and that have no record."""
        ids = self._database.execute(
            "SELECT DISTINCT job_id FROM ack"
            " WHERE NOT EXISTS (SELECT 1 FROM found WHERE found.job_id = ack.job_id)"
        )
        for (job_id,) in ids:
            yield job_id, self._of(job_id)
