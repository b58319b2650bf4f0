"""A SQL store finds who holds a dedupe key by the index that also decides races for it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg

from tenure.core.instants import seconds
from tenure.ports import Store
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.rows import WITH_BODIES
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.stores.lives import claim, complete, enqueue_changes, save, start

WHERE = {"namespace": "default", "kind": "send", "dedupe_key": "7"}


def _used_keys(store: Store) -> None:
    """Jobs that hold keys: live ones, ended ones that keep theirs, and ended ones that do not."""
    for number in range(60):
        unique_for_us = seconds(3600) if number % 2 else None
        save(
            store,
            enqueue_changes(store, 1, dedupe_key=str(number), unique_for_us=unique_for_us),
        )
    complete(store, start(store, claim(store, 40)))


@spec("D13")
def test_sqlite_finds_a_holder_by_its_index(sqlite_store: SqliteStore, sqlite_path: Path) -> None:
    _used_keys(sqlite_store)
    query = sqlite_store.database.query("load_holder", WITH_BODIES, **WHERE)

    with closing(sqlite3.connect(sqlite_path)) as raw:
        plan = raw.execute(f"EXPLAIN QUERY PLAN {query.text}", query.parameters).fetchall()
        found = raw.execute(query.text, query.parameters).fetchall()

    steps = [row[3] for row in plan]
    assert "SEARCH d USING PRIMARY KEY (namespace=? AND kind=? AND key=?)" in steps
    assert not [step for step in steps if step.startswith("SCAN tenure")]
    assert len(found) == 1


@spec("D13")
def test_postgres_finds_a_holder_by_its_index(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, migrate=True)
    _used_keys(store)
    query = store.database.query("load_holder", WITH_BODIES, **WHERE)
    with psycopg.connect(postgres_url, cursor_factory=psycopg.RawCursor) as raw:
        raw.execute("SET enable_seqscan = off")
        rows = raw.execute(f"EXPLAIN {query.text}".encode(), query.parameters).fetchall()
        found = raw.execute(query.text.encode(), query.parameters).fetchall()
    store.close()

    plan = "\n".join(str(row[0]) for row in rows)
    assert "Index Scan using dedupe_pkey on dedupe" in plan
    assert "Index Scan using job_pkey on job" in plan
    assert "Filter" not in plan
    assert len(found) == 1
