"""Rollups on databases: transactions that overlap, restored stores, and the indexes that are used.
The kit has what is true of every store."""

import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import psycopg
import pytest

from tenure.coordinator.retention import Folder
from tenure.core.ids import DEFAULT_NAMESPACE
from tenure.core.instants import Duration, Instant
from tenure.core.views.overview import OverviewFilter
from tenure.own_transaction.postgres import store_on
from tenure.ports import Store
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.rollups import SqlRollups
from tenure.stores.sql.statements import Query
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.stores.hands import PostgresHand
from tests.stores.lives import claim, complete, enqueue, enqueue_changes, start
from tests.support.counted_work import queries_of

FOLDERS = 4
JOBS = 300
MAX_FOLDS = 10

AnyStore: TypeAlias = PostgresStore | SqliteStore

QUESTIONS: dict[str, Callable[[AnyStore], Query]] = {
    "events_to_count": lambda store: next(
        query
        for query in queries_of(store, lambda: store.views.unfolded(limit=100))
        if "j.started_at" in query.text
    ),
    "events_to_count newest": lambda store: _of_newest(store)[0],
    "newest_uncounted_event": lambda store: _of_newest(store)[1],
    "load_rollups": lambda store: SqlRollups(store.database).rollups_query(
        [DEFAULT_NAMESPACE], Duration(1), Instant(0), Instant(1)
    ),
    "delete_rollups": lambda store: queries_of(
        store, lambda: store.upkeep.delete("rollups", limit=1000)
    )[0],
}


def _of_newest(store: AnyStore) -> tuple[Query, Query]:
    rollups = SqlRollups(store.database)
    return rollups.unfolded_queries(None, DEFAULT_NAMESPACE, Instant(0), 100)


def enqueued(store: Store) -> int:
    """How many events of enqueueing an overview counts."""
    found = store.views.overview(OverviewFilter(namespace=DEFAULT_NAMESPACE))
    return sum(bucket.enqueued for bucket in found.buckets)


def fold_all(store: Store, page: int = 1000) -> int:
    """Fold until there is nothing left; how many pages that took."""
    folder = Folder(store, page=page)
    for pages in range(MAX_FOLDS):
        if not folder.fold_once().was_saved:
            return pages
    raise AssertionError(f"after {MAX_FOLDS} pages there is still something to fold")


@spec("OB33", "E32")
def test_an_event_that_is_committed_late_is_counted_too(
    postgres_store: PostgresStore, postgres_url: str
) -> None:
    enqueue(postgres_store)  # the queue is registered, so that nobody waits for the other one
    fold_all(postgres_store)
    with psycopg.connect(postgres_url) as raw:
        raw.execute("SELECT pg_current_xact_id()")  # older than that of the other job
        [late] = enqueue_changes(postgres_store, 1)
        store_on(postgres_store, raw).jobs.save([late], epoch=postgres_store.jobs.load([]).epoch)
        enqueue(postgres_store)
        while_open = fold_all(postgres_store)
        seen = enqueued(postgres_store)

    assert (while_open, seen) == (0, 2)
    assert enqueued(postgres_store) == 3
    assert fold_all(postgres_store) == 1
    assert enqueued(postgres_store) == 3


@spec("OB33")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_processes_that_race_count_every_event_once(
    kind: str, request: pytest.FixtureRequest
) -> None:
    store: SqliteStore | PostgresStore = request.getfixturevalue(f"{kind}_store")
    enqueue(store, JOBS)
    complete(store, start(store, claim(store, JOBS)))

    with ThreadPoolExecutor(FOLDERS) as pool:
        racing = [pool.submit(_fold_whatever_is_left, store) for _ in range(FOLDERS)]
        saved = [each.result() for each in racing]

    assert sum(saved) >= 4 * JOBS // 100
    assert store.views.unfolded(limit=1).end is None
    found = store.views.overview(OverviewFilter(namespace=DEFAULT_NAMESPACE))
    counts = [(each.enqueued, each.claimed, each.succeeded) for each in found.buckets]
    assert tuple(map(sum, zip(*counts, strict=True))) == (JOBS, JOBS, JOBS)
    assert found.run.samples == found.wait.samples == JOBS


def _fold_whatever_is_left(store: Store) -> int:
    """Also after a race was lost, unlike a folder, so that more races are run."""
    folder, saved = Folder(store, page=100), 0
    while store.views.unfolded(limit=1).end is not None:
        saved += folder.fold_once().was_saved
    return saved


@spec("OB33")
def test_a_restored_file_counts_on_where_its_copy_was_made(
    sqlite_store: SqliteStore, sqlite_path: Path, tmp_path: Path
) -> None:
    enqueue(sqlite_store, 3)
    fold_all(sqlite_store)
    enqueue(sqlite_store, 2)
    backup = tmp_path / "backup.db"
    with closing(sqlite3.connect(sqlite_path)) as here, closing(sqlite3.connect(backup)) as there:
        here.backup(there)
    enqueue(sqlite_store, 5)
    fold_all(sqlite_store)

    with closing(SqliteStore(backup)) as restored:
        epoch = restored.raise_epoch()
        restored.jobs.save(enqueue_changes(restored, 1), epoch=epoch)
        before, pages = enqueued(restored), fold_all(restored)

        assert (before, pages, enqueued(restored)) == (6, 1, 6)


@spec("OB33")
def test_a_dump_that_another_server_restored_is_counted_on(postgres_hand: PostgresHand) -> None:
    store = postgres_hand.store
    enqueue(store, 3)
    fold_all(store)
    # As after a dump was restored on another server, which counts its transactions from the start.
    postgres_hand.run("ALTER TABLE {t}job_event DISABLE TRIGGER ALL")
    postgres_hand.run("UPDATE {t}job_event SET position = position + 1000000")
    postgres_hand.run(
        "UPDATE {t}rollup_progress SET position = (split_part(position, ':', 1)::bigint + 1000000)"
        " || ':' || split_part(position, ':', 2) || ':' || split_part(position, ':', 3)"
    )

    epoch = store.raise_epoch()
    store.jobs.save(enqueue_changes(store, 1), epoch=epoch)

    assert (fold_all(store), enqueued(store)) == (1, 4)


@spec("OB33")
def test_a_rollup_of_another_shape_is_left_out_and_written_anew(
    sqlite_store: SqliteStore, sqlite_path: Path
) -> None:
    enqueue(sqlite_store, 3)
    fold_all(sqlite_store)
    with closing(sqlite3.connect(sqlite_path)) as raw, raw:
        raw.execute("UPDATE tenure_rollup SET series = '{\"shape\": 2}'")

    left_out = enqueued(sqlite_store)
    enqueue(sqlite_store, 2)
    fold_all(sqlite_store)

    assert (left_out, enqueued(sqlite_store)) == (0, 2)


@spec("OB36")
@pytest.mark.parametrize("name", QUESTIONS)
def test_sqlite_folds_by_its_indexes(sqlite_path: Path, name: str) -> None:
    store = SqliteStore(sqlite_path)
    query = QUESTIONS[name](store)
    with closing(sqlite3.connect(sqlite_path)) as raw:
        raw.create_function("tenure_clock", 0, lambda: 0)
        rows = raw.execute(f"EXPLAIN QUERY PLAN {query.text}", query.parameters).fetchall()
    store.close()

    plan = [row[3] for row in rows]
    assert not [step for step in plan if step.startswith("SCAN") and "tenure_" in step]
    assert not [step for step in plan if "USE TEMP B-TREE" in step]
    if name.startswith("events_to_count"):
        first, second = [step for step in plan if step.startswith("SEARCH")][:2]
        assert "INTEGER PRIMARY KEY (rowid>?)" in first
        assert second.startswith("SEARCH j ")
        assert "id=?)" in second


@spec("OB36")
@pytest.mark.parametrize("name", QUESTIONS)
def test_postgres_folds_by_its_indexes(postgres_url: str, name: str) -> None:
    store = PostgresStore(postgres_url, migrate=True)
    enqueue(store, 2000)
    claim(store, 50)
    query = QUESTIONS[name](store)
    with psycopg.connect(postgres_url, cursor_factory=psycopg.RawCursor) as raw:
        raw.execute("ANALYZE tenure.job")
        raw.execute("ANALYZE tenure.job_event")
        raw.execute("SET enable_seqscan = off")
        raw.execute("SET random_page_cost = 1.1")
        rows = raw.execute(f"EXPLAIN {query.text}".encode(), query.parameters).fetchall()
    store.close()

    plan = "\n".join(str(row[0]) for row in rows)
    assert "Seq Scan" not in plan.replace("Seq Scan on meta", "one row"), plan
    if "event" in name:
        assert "using job_event_position" in plan, plan
    if name.startswith("events_to_count"):
        assert "Index Cond: (id = " in plan, plan
