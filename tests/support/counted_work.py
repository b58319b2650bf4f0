"""What statements cost a database, counted and not timed: pages of PostgreSQL, steps of SQLite."""

import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import psycopg

from tenure.deadlines import deadline
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.postgres.transaction import PostgresTransaction
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query
from tenure.stores.sqlite.file import SqliteTransaction
from tenure.stores.sqlite.store import SqliteStore

INSTRUCTIONS_PER_STEP = 10


def queries_of(store: PostgresStore | SqliteStore, ask: Callable[[], object]) -> list[Query]:
    """The statements that a store runs to answer this."""
    kind = PostgresTransaction if isinstance(store, PostgresStore) else SqliteTransaction
    fetch, queries = kind.fetch, list[Query]()

    def fetch_noted(tx: object, *found: Query, last: bool = False) -> list[list[Row]]:
        queries.extend(found)
        return fetch(tx, *found, last=last)  # type: ignore[arg-type]  # of this kind

    with patch.object(kind, "fetch", fetch_noted):
        ask()
    return queries


def pages_read(store: PostgresStore, url: str, queries: Sequence[Query]) -> int:
    """Pages that PostgreSQL reads for these statements."""
    pages = 0
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as raw:
        settings = store.database.settings(deadline(10), None)
        raw.execute(settings.text, settings.parameters)
        for query in queries:
            explain = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {query.text}".encode()
            plan = "\n".join(row[0] for row in raw.execute(explain, query.parameters).fetchall())
            whole = plan.partition("Planning:")[0].partition("Buffers: ")[2].partition("\n")[0]
            pages += sum(int(n) for n in re.findall(r"(?:hit|read)=(\d+)", whole))
        raw.rollback()
    return pages


def steps_taken(store: SqliteStore, path: Path, queries: Sequence[Query]) -> int:
    """Steps, of ten instructions each, that SQLite's virtual machine takes for these statements."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    with closing(sqlite3.connect(path)) as raw:
        raw.create_function("tenure_clock", 0, store.now)
        raw.set_progress_handler(count, INSTRUCTIONS_PER_STEP)
        for query in queries:
            raw.execute(query.text, query.parameters).fetchall()
    return steps
