"""Which attempts of jobs with a concurrency key ran when, and whether too many did at a time.

A store with one writer has its events in the order of their commits: that order says exactly which
attempts ran at the same time. Elsewhere the log is in the order in which transactions began to
write, and only the times of its events are left.

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
from tenure.verify.clock_steps import EVENTS_READ, times_shown_twice
from tenure.verify.violations import Violation

LATEST_END_US = seconds(0.02)
"""The end of an attempt may be dated so much too late: it is decided by an estimate of the store's
clock, which counts on from a reading of the last 30 s by the clock of another machine. If that is
faster by 500 ppm, as much as clocks are corrected by, this is 15 ms. A claim is dated by the
store's clock itself."""

OLDEST_ESTIMATE_US = seconds(30)
"""So long after the clock was set back, ends may be dated by an estimate from before
(`coordinator.store_clock`): too late by as much as it was set back."""


class ConcurrencyLimit(msgspec.Struct, frozen=True):
    """How many jobs of a key may run at a time, and for which claims this is true."""

    limit: int = DEFAULT_CONCURRENCY_LIMIT
    since: Instant = Instant(0)


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
            " claimed_at INTEGER, began INTEGER, ended INTEGER, job_id TEXT, seq INTEGER,"
            " end_seq INTEGER)"
        )
        self._database.execute("BEGIN")
        self._is_empty = True

    def add(self, record: Record) -> None:
        """Keep when the attempts of this job ran."""
        job = record.job
        if job is None or job.concurrency_key is None:
            return
        self._is_empty = False
        key = (job.namespace, job.concurrency_group, job.concurrency_key)
        self._database.executemany(
            "INSERT INTO attempt VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    *key,
                    attempt.claimed.ts,
                    attempt.claimed.ts,
                    NEVER if attempt.end is None else attempt.end.ts,
                    job.id,
                    attempt.claimed.seq,
                    None if attempt.end is None else attempt.end.seq,
                )
                for attempt in attempts_of(record.events)
            ],
        )

    def violations(self, store: RecordSource, limit_of: LimitOf) -> Iterator[Violation]:
        """The claims of jobs whose key was at its limit. [I31]"""
        if self._is_empty:
            return
        if store.parallelism == 1:
            self._use_order_of(store)
            yield from (violation for _, violation in self._suspected(limit_of, tolerance=0))
            return
        shown_twice: list[tuple[int, int]] | None = None
        for claimed_at, violation in self._suspected(limit_of, tolerance=LATEST_END_US):
            if shown_twice is None:  # only now: reading the whole log takes a while
                shown_twice = times_shown_twice(store)
            # Times that the store's clock showed twice, because it was set back, prove nothing.
            if not any(
                first <= claimed_at <= last + OLDEST_ESTIMATE_US for first, last in shown_twice
            ):
                yield violation

    def _use_order_of(self, store: RecordSource) -> None:
        """Say when attempts began and ended by the places of these events in the log."""
        self._database.execute("CREATE INDEX attempt_claim ON attempt (job_id, seq)")
        self._database.execute("CREATE INDEX attempt_end ON attempt (job_id, end_seq)")
        place, after = 0, None
        while events := store.tail_events(after=after, limit=EVENTS_READ):
            places = [
                (place + number, each.event.job_id, each.event.seq)
                for number, each in enumerate(events, 1)
            ]
            for change in (
                "UPDATE attempt SET began = ? WHERE job_id = ? AND seq = ?",
                "UPDATE attempt SET ended = ? WHERE job_id = ? AND end_seq = ?",
            ):
                self._database.executemany(change, places)
            place += len(events)
            after = events[-1].position

    def _suspected(self, limit_of: LimitOf, *, tolerance: int) -> Iterator[tuple[int, Violation]]:
        """The claims that seem to have been granted past the limit, and when."""
        rows = self._database.execute(
            "SELECT namespace, concurrency_group, concurrency_key, claimed_at, began, ended,"
            " job_id, seq FROM attempt"
            " ORDER BY namespace, concurrency_group, concurrency_key, began, ended, job_id"
        )
        for (namespace, group, key), attempts in groupby(rows, key=itemgetter(0, 1, 2)):
            limit = limit_of(namespace, group)
            running: list[tuple[int, str]] = []  # a heap, those that end first come first
            for *_, claimed_at, began, ended, job_id, seq in attempts:
                while running and running[0][0] <= began + tolerance:
                    heapq.heappop(running)
                # A claim of the same microsecond may have been granted before the limit changed.
                if len(running) >= limit.limit and claimed_at > limit.since:
                    others = ", ".join(sorted(other for _, other in running))
                    what = (
                        f"claimed with the key {key} of {namespace}/{group}, whose limit is"
                        f" {limit.limit}, while {others} ran"
                    )
                    yield (
                        claimed_at,
                        Violation(invariant="I31", job_id=JobId(job_id), seq=seq, message=what),
                    )
                heapq.heappush(running, (ended, job_id))

    def __enter__(self) -> "KeyedAttempts":
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
