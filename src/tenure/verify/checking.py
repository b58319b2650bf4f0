"""What checks share: the shape of their answers, what several of them read of a record, and the
temporary databases in which a walk over the records keeps what memory must not.

Works on broken logs too: a log is split into attempts at each claim and at each end of an attempt.
Reports nothing itself.
"""

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec

from tenure.core.events import Event
from tenure.core.ids import JobId, LeaseId
from tenure.core.instants import Instant
from tenure.core.job import due_at
from tenure.core.policy import Policy
from tenure.core.vocabulary import ATTEMPT_ENDS, RENEWALS, EventType
from tenure.ports import JobHistory, RecordSource

Problems = Iterator[tuple[int, str]]
"""What a check of one record yields: the first seq that breaks the rule, and what is wrong there.
If only the row breaks it, the seq is the row's rev; if the job is missing, it is 1. [X2]"""

JobProblems = Iterator[tuple[JobId, int, str]]
"""What a check of the whole store yields: the same, with the job."""

EXTENDING = frozenset(
    {EventType.CLAIMED, EventType.STARTED, EventType.LEASE_RENEWED, EventType.HEARTBEAT}
)
"""The events that set a lease's expiry; nothing else moves it. [L16]"""


class Collector(Protocol):
    """Remembers something of every record of the walk, and checks it afterwards."""

    def add(self, record: JobHistory) -> None:
        """Remember what matters of this record."""

    def problems(self, store: RecordSource) -> JobProblems:
        """What is wrong between the records."""

    def close(self) -> None:
        """Forget everything."""


def temporary_database(*tables: str) -> sqlite3.Connection:
    """A temporary SQLite database; it is deleted when it is closed. `tables` create its tables."""
    database = sqlite3.connect("", isolation_level=None)
    database.execute("PRAGMA journal_mode = OFF")
    database.execute("PRAGMA synchronous = OFF")
    for table in tables:
        database.execute(table)
    database.execute("BEGIN")
    return database


def rev_of(record: JobHistory) -> int:
    """The seq for a problem of the row: its rev, or the last seq if there is no row."""
    if record.job is not None:
        return record.job.rev
    return record.events[-1].seq if record.events else 1


def policy_of(record: JobHistory) -> Policy | None:
    """The policy fixed at enqueue: the log's, because the row may have been changed; the row's if
    the log has none."""
    if record.events and record.events[0].payload.policy is not None:
        return record.events[0].payload.policy
    return record.job.policy if record.job is not None else None


class LoggedAttempt(msgspec.Struct):
    """One attempt's events, from its claim to its end, if it has ended."""

    events: list[Event]
    end: Event | None = None

    @property
    def claimed(self) -> Event:
        """The event that began it."""
        return self.events[0]

    @property
    def lease_id(self) -> LeaseId | None:
        """The lease it was granted under."""
        return self.events[0].lease_id


def attempts_of(events: Sequence[Event]) -> list[LoggedAttempt]:
    """The attempts of a log, in order. Events between attempts belong to none."""
    found: list[LoggedAttempt] = []
    current: LoggedAttempt | None = None
    for event in events:
        if event.type is EventType.CLAIMED:
            current = LoggedAttempt([event])
            found.append(current)
        elif current is not None:
            current.events.append(event)
            if event.type in ATTEMPT_ENDS:
                current.end = event
                current = None
    return found


def lease_ends(attempt: LoggedAttempt, policy: Policy) -> Iterator[tuple[Event, Instant]]:
    """Each event after the claim, with the end of the lease just before it. [L9]

    Pruned renewals leave a gap in the seqs. The next event then states the expiry that they set; if
    that event set a new expiry itself, the latest possible one is assumed.
    """
    claimed = attempt.claimed
    expires_at = claimed.lease_expires_at or claimed.ts
    started_at: Instant | None = None
    cancel_deadline: Instant | None = None
    renewals = 0
    before = claimed
    for event in attempt.events[1:]:
        if event.seq > before.seq + 1:
            renewals += event.seq - before.seq - 1
            known = None if event.type in EXTENDING else event.lease_expires_at
            expires_at = max(expires_at, known or Instant(event.ts + policy.lease_us))
        yield (
            event,
            due_at(
                policy=policy,
                claimed_at=claimed.ts,
                started_at=started_at,
                lease_expires_at=expires_at,
                cancel_deadline=cancel_deadline,
                renewals=renewals,
            ),
        )
        if event.type is EventType.STARTED:
            started_at = event.ts
        if event.type in RENEWALS:
            renewals += 1
        if event.type is EventType.CANCEL_REQUESTED:
            cancel_deadline = event.payload.cancel_deadline
        if event.type in EXTENDING and event.lease_expires_at is not None:
            expires_at = event.lease_expires_at
        before = event
