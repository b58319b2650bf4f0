"""Measuring a store reads indexes and nothing else, whatever is in it."""

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tenure.core.ids import Kind
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.depths import (
    DELAYED,
    DELAYED_BY_KIND,
    MAX_SEARCHED,
    READY,
    READY_BY_KIND,
    TROUBLES,
    SqlDepths,
)
from tenure.stores.sql.statements import Query, Shape
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.stores.lives import claim, enqueue

WHERE = {"namespace": "default", "queue": "default"}
AMONG: dict[str, object] = {"namespace": "default", "names": "", "kinds": ""}
"""Several queues, and perhaps some kinds."""
QUESTIONS: dict[str, dict[str, object]] = {
    "measured_queues": {"queues": 100, "namespace": "default"},
    "count_ready": {"jobs": 10_000, **WHERE},
    "oldest_waiting": {"levels": MAX_SEARCHED, **AMONG},
    "oldest_waiting of kinds": {"levels": MAX_SEARCHED, **AMONG},
    "waiting_kinds": {**WHERE},
    "waiting_by_kind ready": {"jobs": 10_000, "levels": 100, **AMONG},
    "waiting_by_kind ready of kinds": {"jobs": 10_000, "levels": 100, **AMONG},
    "waiting_by_kind delayed": {"jobs": 10_000, "levels": 100, "now": 0, **AMONG},
    "leased_by_kind": {"jobs": 10_000, **WHERE},
    "count_silent_of_kind": {"jobs": 10, "kind": "k", "policy": "[]", "until": 0, **WHERE},
    "letters_to_group": {"letters": 10_000, "head": 2000, "namespace": "default"},
    **{
        f"troubled_by_kind {trouble}": {"jobs": 10_000, "namespace": "default"}
        for trouble in TROUBLES
    },
}
SHAPES: dict[str, Shape] = {
    "oldest_waiting": DELAYED,
    "oldest_waiting of kinds": READY,
    "waiting_by_kind ready": READY_BY_KIND,
    "waiting_by_kind ready of kinds": READY_BY_KIND,
    "waiting_by_kind delayed": DELAYED_BY_KIND,
    **{f"troubled_by_kind {trouble}": shape for trouble, shape in TROUBLES.items()},
}
SORTED = ("measured_queues", "leased_by_kind", "letters_to_group")
"""They sort names, or the rows that the limit left; so do groups of a few."""


def _query(store: PostgresStore | SqliteStore, name: str) -> Query:
    query: Callable[..., Query] = store.database.query
    given, shape = dict(QUESTIONS[name]), SHAPES.get(name, ())
    if given.keys() >= AMONG.keys():
        kinds = [Kind("k")] if name.endswith("of kinds") else []
        pack = store.database.pack
        given |= {"names": pack(["default", "other"]), "kinds": pack(kinds)}
        shape = SqlDepths(store.database).about_waiting(shape, kinds)
    return query(name.partition(" ")[0], shape, **given)


@spec("B27")
@pytest.mark.parametrize("name", QUESTIONS)
def test_sqlite_measures_by_its_indexes(sqlite_path: Path, name: str) -> None:
    store = SqliteStore(sqlite_path)
    query = _query(store, name)
    with closing(sqlite3.connect(sqlite_path)) as raw:
        raw.create_function("tenure_clock", 0, lambda: 0)
        rows = raw.execute(f"EXPLAIN QUERY PLAN {query.text}", query.parameters).fetchall()
    store.close()

    reads = [row[3] for row in rows if row[3].startswith(("SEARCH j ", "SCAN j "))]
    assert reads
    assert all(
        "USING INDEX tenure_job_" in read or "USING COVERING INDEX" in read for read in reads
    )
    # From queue to queue, past all the jobs of each.
    steps = [read for read in reads if "queue>" in read]
    assert all("(namespace=? AND queue>?)" in step for step in steps)
    assert len(steps) == (3 if name == "measured_queues" else 0)


@spec("B27")
@pytest.mark.parametrize("name", QUESTIONS)
def test_postgres_measures_by_its_indexes(postgres_url: str, name: str) -> None:
    store = PostgresStore(postgres_url, migrate=True)
    enqueue(store, 2000)
    claim(store, 50)
    query = _query(store, name)
    with psycopg.connect(postgres_url, cursor_factory=psycopg.RawCursor) as raw:
        raw.execute("ANALYZE tenure.job")
        raw.execute("SET enable_seqscan = off")
        rows = raw.execute(f"EXPLAIN {query.text}".encode(), query.parameters).fetchall()
    store.close()

    plan = "\n".join(str(row[0]) for row in rows)
    assert re.search(r" (using|on) job_", plan), plan
    assert "Seq Scan on job" not in plan
    assert "Sort" not in plan or name.startswith((*SORTED, "troubled_by_kind"))
