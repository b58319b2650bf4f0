"""Retention on a SQL store finds a page by its indexes, however much is kept."""

from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tenure.clock import host_clock
from tenure.ports import Store
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.statements import Shape
from tenure.stores.sql.upkeep import (
    _FROM_THE_FIRST,
    _FROM_THE_LAST,
    DUE_BY_THE_STORE,
    DUE_BY_THEMSELVES,
)
from tenure.stores.sqlite.file import connect
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.stores.lives import claim, enqueue, heartbeat

READS = tuple(f"{way} {name} " for way in ("SCAN", "SEARCH") for name in "ejn")
SHAPES = pytest.mark.parametrize("shape", [_FROM_THE_FIRST, _FROM_THE_LAST], ids=["first", "next"])


def _renewed(store: Store) -> dict[str, object]:
    """Fifty jobs with forty live renewals each; where a page may begin."""
    enqueue(store, 50)
    jobs = claim(store, 50)
    for _ in range(40):
        jobs = heartbeat(store, jobs)
    return {"job_id": min(job.id for job in jobs), "seq": 3, "limit": 1000, "older_than_us": 0}


@spec("G4")
@SHAPES
def test_sqlite_finds_renewals_by_an_index(sqlite_path: Path, shape: Shape) -> None:
    store = SqliteStore(sqlite_path)
    query = store.database.query("page_of_renewals", shape, **_renewed(store))
    with closing(connect(sqlite_path, host_clock, 1.0)) as raw:
        plan = raw.execute(f"EXPLAIN QUERY PLAN {query.text}", query.parameters).fetchall()
        looked = raw.execute(query.text, query.parameters).fetchall()
    store.close()

    reads = [row[3] for row in plan if row[3].startswith(READS)]
    assert reads
    assert all(" USING " in read for read in reads)
    assert len(looked) == 50


@spec("G4")
@SHAPES
def test_postgres_finds_renewals_by_an_index_without_a_sort(
    postgres_url: str, shape: Shape
) -> None:
    store = PostgresStore(postgres_url, migrate=True)
    query = store.database.query("page_of_renewals", shape, **_renewed(store))
    with psycopg.connect(postgres_url, cursor_factory=psycopg.RawCursor) as raw:
        raw.execute("SET enable_seqscan = off")
        rows = raw.execute(f"EXPLAIN {query.text}".encode(), query.parameters).fetchall()
        looked = raw.execute(query.text.encode(), query.parameters).fetchall()
    store.close()

    plan = "\n".join(str(row[0]) for row in rows)
    assert " using job_event_renewal on job_event n" in plan
    assert "Seq Scan on" not in plan
    assert plan.count("Sort Key") == 1
    assert "Sort Key: l.nth" in plan
    assert len(looked) == 50


@spec("G4", "M4", "HK11")
@pytest.mark.parametrize(
    ("due", "index"),
    [
        (DUE_BY_THE_STORE, "tenure_job_finished (finished_at<?)"),
        (DUE_BY_THEMSELVES, "tenure_job_delete_at (delete_at<?)"),
    ],
    ids=["the store's time", "their own time"],
)
def test_sqlite_finds_jobs_that_an_end_enqueued_by_their_index(
    sqlite_path: Path, due: Shape, index: str
) -> None:
    store = SqliteStore(sqlite_path)
    query = store.database.query(
        "purgeable", (*store.upkeep._kept_by_flow, *due), older_than_us=0, limit=10
    )
    with closing(connect(sqlite_path, host_clock, 1.0)) as raw:
        plan = raw.execute(f"EXPLAIN QUERY PLAN {query.text}", query.parameters).fetchall()
    store.close()

    [made] = [row[3] for row in plan if " USING " in row[3] and "origin_id" in row[3]]
    assert "USING INDEX tenure_job_made_by_an_end (origin_id=?)" in made
    assert f"SEARCH j USING INDEX {index}" in [row[3] for row in plan]
    probes = [
        row[3].partition("tenure_job_flow_end ")[2] for row in plan if row[3][:8] == "SEARCH m"
    ]
    assert probes == [
        "(flow_id=? AND delete_at=? AND finished_at=?)",
        "(flow_id=? AND delete_at=? AND finished_at>?)",
        "(flow_id=? AND delete_at>?)",
    ]
