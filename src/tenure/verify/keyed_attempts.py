"""Which attempts of jobs with a concurrency key ran when, and whether too many did at a time.

The attempts are kept in a temporary SQLite database, so that there may be any number of them; the
memory is bounded by those of one key. Jobs without a key cost nothing.
"""

import heapq
import sqlite3
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter

import msgspec

from tenure.core.concurrency import DEFAULT_CONCURRENCY_LIMIT
from tenure.core.ids import JobId, Namespace
from tenure.core.instants import NEVER, Instant, seconds
from tenure.ports import Record, RecordSource
from tenure.verify.attempts import attempts_of
from tenure.verify.violations import Violation

LATEST_END_US = seconds(0.02)
"""The end of an attempt may be dated so much too late: it is decided by an estimate of the store's
clock, which counts on from a reading of the last 30 s. A claim is dated by the clock itself."""


class ConcurrencyLimit(msgspec.Struct, frozen=True):
    """How many jobs of a key may run at a time, and for which claims this is true."""

    limit: int = DEFAULT_CONCURRENCY_LIMIT
    since: Instant = Instant(0)


STEP_BACK_US = seconds(1)
"""An event that is dated so much before one that was written earlier shows that the clock was set
back. Where several write at a time, less can have other reasons: their events are in the order in
which their transactions began."""

EVENTS_READ = 1000

LimitOf = Callable[[Namespace, str], ConcurrencyLimit]
"""The limit of a namespace's group."""


class KeyedAttempts:
    """The attempts of jobs that have a concurrency key, by key."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(
            "CREATE TABLE attempt (namespace TEXT, concurrency_group TEXT, concurrency_key TEXT,"
            " began_at INTEGER, ended_at INTEGER, job_id TEXT, seq INTEGER)"
        )
        self._database.execute("BEGIN")

    def add(self, record: Record) -> None:
        """Keep when the attempts of this job ran."""
        job = record.job
        if job is None or job.concurrency_key is None:
            return
        key = (job.namespace, job.concurrency_group, job.concurrency_key)
        self._database.executemany(
            "INSERT INTO attempt VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    *key,
                    attempt.claimed.ts,
                    NEVER if attempt.end is None else attempt.end.ts,
                    job.id,
                    attempt.claimed.seq,
                )
                for attempt in attempts_of(record.events)
            ],
        )

    def violations(self, store: RecordSource, limit_of: LimitOf) -> Iterator[Violation]:
        """The claims of jobs whose key was at its limit. Times that the store's clock showed twice,
        because it was set back, prove nothing. [I31]"""
        shown_twice: list[tuple[int, int]] | None = None
        for began_at, violation in self._suspected(limit_of):
            if shown_twice is None:  # only now: reading the whole log takes a while
                shown_twice = times_shown_twice(store)
            if not any(first <= began_at <= last for first, last in shown_twice):
                yield violation

    def _suspected(self, limit_of: LimitOf) -> Iterator[tuple[int, Violation]]:
        """The claims that seem to have been granted past the limit, and when."""
        rows = self._database.execute(
            "SELECT namespace, concurrency_group, concurrency_key, began_at, ended_at, job_id, seq"
            " FROM attempt"
            " ORDER BY namespace, concurrency_group, concurrency_key, began_at, ended_at, job_id"
        )
        for (namespace, group, key), attempts in groupby(rows, key=itemgetter(0, 1, 2)):
            limit = limit_of(namespace, group)
            running: list[tuple[int, str]] = []  # a heap, those that end first come first
            for *_, began_at, ended_at, job_id, seq in attempts:
                while running and running[0][0] <= began_at + LATEST_END_US:
                    heapq.heappop(running)
                if len(running) >= limit.limit and began_at >= limit.since:
                    others = ", ".join(sorted(other for _, other in running))
                    what = (
                        f"claimed with the key {key} of {namespace}/{group}, whose limit is"
                        f" {limit.limit}, while {others} ran"
                    )
                    yield (
                        began_at,
                        Violation(invariant="I31", job_id=JobId(job_id), seq=seq, message=what),
                    )
                heapq.heappush(running, (ended_at, job_id))

    def __enter__(self) -> "KeyedAttempts":
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()


def times_shown_twice(store: RecordSource) -> list[tuple[int, int]]:
    """From when to when the clock was set back, by the order in which events were written."""
    found: list[tuple[int, int]] = []
    step_us = LATEST_END_US if store.parallelism == 1 else STEP_BACK_US
    latest, lowest, after = 0, 0, None
    while events := store.tail_events(after=after, limit=EVENTS_READ):
        for event in [each.event for each in events]:
            if event.ts > latest - step_us:
                latest = max(latest, event.ts)
                continue
            lowest = min(lowest, event.ts) if found and found[-1][1] == latest else event.ts
            if found and found[-1][1] == latest:
                found[-1] = (lowest, latest)
            else:
                found.append((lowest, latest))
        after = events[-1].position
    return found
