"""Retention on a SQL store finds a page by its indexes, however much is kept."""

from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tenure.clock import host_clock
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.statements import Query
from tenure.stores.sqlite.file import connect
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.stores.lives import claim, enqueue, heartbeat
from tests.support.counted_work import queries_of

READS = tuple(f"{way} {name} " for way in ("SCAN", "SEARCH") for name in "ejn")
PAGES = pytest.mark.parametrize("page", [0, 1], ids=["first", "next"])


def _page_of_renewals(store: SqliteStore | PostgresStore, page: int) -> Query:
    """How a page is read of the log of fifty jobs with forty live renewals each."""
    enqueue(store, 50)
    jobs = claim(store, 50)
    for _ in range(40):
        jobs = heartbeat(store, jobs)
    for _ in range(page):
        store.upkeep.delete("renewals", limit=1)
    return queries_of(store, lambda: store.upkeep.delete("renewals", limit=1000))[0]


@spec("G4")
@PAGES
def test_sqlite_finds_renewals_by_an_index(sqlite_path: Path, page: int) -> None:
    store = SqliteStore(sqlite_path)
    query = _page_of_renewals(store, page)
    with closing(connect(sqlite_path, host_clock, 1.0)) as raw:
        plan = raw.execute(f"EXPLAIN QUERY PLAN {query.text}", query.parameters).fetchall()
        looked = raw.execute(query.text, query.parameters).fetchall()
    store.close()

    reads = [row[3] for row in plan if row[3].startswith(READS)]
    assert reads
    assert all(" USING " in read for read in reads)
    assert len(looked) == 50


@spec("G4")
@PAGES
def test_postgres_finds_renewals_by_an_index_without_a_sort(postgres_url: str, page: int) -> None:
    store = PostgresStore(postgres_url, migrate=True)
    query = _page_of_renewals(store, page)
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
    ("part", "index"),
    [(0, "tenure_job_finished (finished_at<?)"), (1, "tenure_job_delete_at (delete_at<?)")],
    ids=["the store's time", "their own time"],
)
def test_sqlite_finds_jobs_that_an_end_enqueued_by_their_index(
    sqlite_path: Path, part: int, index: str
) -> None:
    store = SqliteStore(sqlite_path)
    query = queries_of(store, lambda: store.upkeep.delete("jobs", limit=10))[part]
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
