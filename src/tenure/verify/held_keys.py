"""Which jobs had a dedupe key when, and whether one had it while another one kept it after its end.

The jobs are kept in a temporary SQLite database, so that there may be any number of them. Jobs
without a dedupe key cost nothing.
"""

import sqlite3
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from tenure.core.ids import JobId
from tenure.core.instants import NEVER
from tenure.core.vocabulary import EventCause
from tenure.ports import Record, RecordSource
from tenure.verify.clock_steps import times_shown_twice
from tenure.verify.violations import Violation

_REDRIVES = frozenset({EventCause.REDRIVE, EventCause.RERUN})


class HeldKeys:
    """The jobs that have a dedupe key, by key."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(
            "CREATE TABLE keyed (namespace TEXT, kind TEXT, dedupe_key TEXT,"
            " enqueued_at INTEGER, held_until INTEGER, job_id TEXT, taken_from TEXT)"
        )
        self._database.execute("BEGIN")

    def add(self, record: Record) -> None:
        """Keep from when to when this job had its key."""
        job = record.job
        if job is None or job.dedupe_key is None:
            return
        held_until = None if job.unique_for_us is None else job.key_held_until or NEVER
        taken_from = job.origin_id if job.origin_cause in _REDRIVES else None
        key = (job.namespace, job.kind, job.dedupe_key)
        self._database.execute(
            "INSERT INTO keyed VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*key, job.enqueued_at, held_until, job.id, taken_from),
        )

    def violations(self, store: RecordSource) -> Iterator[Violation]:
        """The jobs that were made while another one kept their key. Times that the store's clock
        showed twice, because it was set back, prove nothing. [I35]"""
        shown_twice: list[tuple[int, int]] | None = None
        for enqueued_at, violation in self._suspected():
            if shown_twice is None:  # only now: reading the whole log takes a while
                shown_twice = times_shown_twice(store)
            if not any(first <= enqueued_at <= last for first, last in shown_twice):
                yield violation

    def _suspected(self) -> Iterator[tuple[int, Violation]]:
        """The jobs that seem to have been made too early, and when."""
        rows = self._database.execute(
            "SELECT namespace, kind, dedupe_key, enqueued_at, held_until, job_id, taken_from"
            " FROM keyed ORDER BY namespace, kind, dedupe_key, enqueued_at, job_id"
        )
        for (namespace, kind, key), jobs in groupby(rows, key=itemgetter(0, 1, 2)):
            holders: list[tuple[int, str]] = []
            for *_, enqueued_at, held_until, job_id, taken_from in jobs:
                holders = [
                    (until, holder)
                    for until, holder in holders
                    if until > enqueued_at and holder != taken_from
                ]
                if holders:
                    others = ", ".join(holder for _, holder in holders)
                    what = (
                        f"enqueued with the dedupe key {key} of {namespace}/{kind}, which {others}"
                        " still held"
                    )
                    yield (
                        enqueued_at,
                        Violation(invariant="I35", job_id=JobId(job_id), seq=1, message=what),
                    )
                if held_until is not None:
                    holders.append((held_until, job_id))

    def __enter__(self) -> "HeldKeys":
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
