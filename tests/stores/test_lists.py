"""Lists go by an index whatever they are filtered by, and a slow one holds up nobody."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest

from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    JobId,
    Kind,
    Namespace,
    QueueName,
    ScheduleName,
    WorkerId,
    new_job_id,
)
from tenure.core.instants import Instant
from tenure.core.views.event_counts import EventSpan
from tenure.core.views.events import EventFilter, EventKey, TypeFilter, parse_type_filter
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import EventCause, EventType, JobStatus, ReasonCode
from tenure.deadlines import deadline
from tenure.errors import StoreUnavailable
from tenure.stores.postgres.database import LISTING_CONNECTIONS
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.postgres.wire import PREPARED_AFTER
from tenure.stores.sql.rows import WITHOUT_BODIES
from tenure.stores.sql.statements import Query
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.stores.lives import QUEUE, claim, enqueue, taken
from tests.stores.test_prepared_statements import PREPARED
from tests.support.counted_work import queries_of
from tests.support.postgres import PostgresServer

AnyStore: TypeAlias = SqliteStore | PostgresStore

HERE = DEFAULT_NAMESPACE
DEAD = (JobStatus.DEAD_LETTERED,)

UNKNOWN: dict[str, tuple[JobFilter, tuple[str, ...]]] = {
    "another namespace": (JobFilter(namespace=Namespace("nobody")), ("listed",)),
    "no such queue": (JobFilter(namespace=HERE, queue=QueueName("nosuch")), ("ended_by_queue",)),
}
"""Filters by a name that no job ever had, and the indexes of which SQLite uses one."""

FILTERS: dict[str, tuple[JobFilter, tuple[str, ...]]] = {
    "no such kind": (
        JobFilter(namespace=HERE, kind=Kind("nosuch")),
        ("ended_by_kind",),
    ),
    "queue and kind": (
        JobFilter(namespace=HERE, queue=QUEUE, kind=Kind("nosuch")),
        ("ended_by_kind", "ended_by_queue"),
    ),
    "correlation": (JobFilter(namespace=HERE, correlation_id="order-1"), ("correlation",)),
    "a schedule": (JobFilter(namespace=HERE, schedule=ScheduleName("nightly")), ("scheduled",)),
    "failed": (JobFilter(namespace=HERE, statuses=(JobStatus.FAILED,)), ("failed",)),
    "cancelled": (JobFilter(namespace=HERE, statuses=(JobStatus.CANCELLED,)), ("cancelled",)),
    "stalled": (JobFilter(namespace=HERE, statuses=(JobStatus.STALLED,)), ("stalled",)),
    "a queue": (JobFilter(namespace=HERE, queue=QUEUE), ("ended_by_queue",)),
    "claimed": (JobFilter(namespace=HERE, statuses=(JobStatus.CLAIMED,)), ("claimed",)),
    "running": (JobFilter(namespace=HERE, statuses=(JobStatus.RUNNING,)), ("leased_by_kind",)),
    "running of a queue": (
        JobFilter(namespace=HERE, queue=QUEUE, statuses=(JobStatus.RUNNING,)),
        ("leased",),
    ),
    "succeeded of a queue": (
        JobFilter(namespace=HERE, queue=QUEUE, statuses=(JobStatus.SUCCEEDED,)),
        ("ended_by_queue",),
    ),
    "failed of a kind": (
        JobFilter(namespace=HERE, kind=Kind("nosuch"), statuses=(JobStatus.FAILED,)),
        ("failed",),
    ),
    "queued": (
        JobFilter(namespace=HERE, statuses=(JobStatus.QUEUED,)),
        ("waiting_by_kind",),
    ),
    "queued of a queue": (
        JobFilter(namespace=HERE, queue=QUEUE, statuses=(JobStatus.QUEUED,)),
        ("waiting_by_queue",),
    ),
    "dead for a reason": (
        JobFilter(namespace=HERE, statuses=DEAD, reason_code=ReasonCode.TIMEOUT),
        ("dead_letter",),
    ),
    "beginning of an id": (JobFilter(namespace=HERE, id_prefix="01890000-00"), ("1", "pkey")),
}
"""Filters, and the indexes of which one has to be used."""


@pytest.fixture(scope="module")
def full_store(postgres: PostgresServer) -> Iterator[tuple[PostgresStore, str]]:
    url = postgres.create_database()
    with closing(PostgresStore(url, migrate=True)) as store:
        for _ in range(3):
            enqueue(store, 1000)
        claim(store, 20)
        with psycopg.connect(url, autocommit=True) as raw:
            raw.execute("ANALYZE tenure.job")
        yield store, url
    postgres.drop_database(url)


@spec("B25")
@pytest.mark.parametrize("name", FILTERS)
def test_postgres_lists_by_an_index(full_store: tuple[PostgresStore, str], name: str) -> None:
    wanted, indexes = FILTERS[name]
    plan = "\n".join(_postgres_plan(full_store, wanted))

    assert any(f" job_{index} " in plan for index in indexes), plan
    assert "Seq Scan on job" not in plan


@spec("B25")
@pytest.mark.parametrize("name", UNKNOWN)
def test_postgres_reads_no_jobs_for_a_name_that_none_ever_had(
    full_store: tuple[PostgresStore, str], name: str
) -> None:
    wanted, _ = UNKNOWN[name]
    plan = _postgres_plan(full_store, wanted)

    of_jobs = [line for line in plan if " on job " in line]
    assert of_jobs
    assert all("never executed" in line for line in of_jobs), "\n".join(plan)


def _postgres_plan(full_store: tuple[PostgresStore, str], wanted: JobFilter) -> list[str]:
    store, url = full_store
    query = queries_of(store, lambda: store.views.jobs(wanted))[-1]
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as raw:
        settings = store.database.settings(deadline(10), None)
        raw.execute(settings.text, settings.parameters)
        explain = f"EXPLAIN (ANALYZE, TIMING OFF) {query.text}".encode()
        return [row[0] for row in raw.execute(explain, query.parameters).fetchall()]


@spec("B25")
@pytest.mark.parametrize("name", FILTERS | UNKNOWN)
def test_sqlite_lists_by_an_index(tmp_path: Path, name: str) -> None:
    path = tmp_path / "tenure.db"
    wanted, indexes = (FILTERS | UNKNOWN)[name]
    with closing(SqliteStore(path)) as store, closing(sqlite3.connect(path)) as raw:
        enqueue(store, 2)
        claim(store, 1)
        query = queries_of(store, lambda: store.views.jobs(wanted))[-1]
        rows = raw.execute(f"EXPLAIN QUERY PLAN {query.text}", query.parameters).fetchall()
    plan = "\n".join(row[3] for row in rows)

    assert any(f"tenure_job_{index} " in plan for index in indexes), plan
    assert "SCAN tenure_job" not in plan


@spec("J12")
def test_postgres_plans_each_search_for_its_limit(full_store: tuple[PostgresStore, str]) -> None:
    """A prepared statement is planned without its limits in the end: that plan read every job."""
    store, url = full_store
    wanted = JobFilter(namespace=HERE, worker=WorkerId("nobody"), reads=100)
    for _ in range(4 * PREPARED_AFTER):
        assert store.views.jobs(wanted).jobs == []
    with taken(store, listing=True) as wire:
        [(prepared,)] = wire.connection.execute(PREPARED).fetchall()
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as raw:
        settings = store.database.settings(deadline(10), None)
        raw.execute(settings.text, settings.parameters)
        query, _ = queries_of(store, lambda: store.views.jobs(wanted))
        explain = f"EXPLAIN (ANALYZE, TIMING OFF) {query.text}".encode()
        plan = [row[0] for row in raw.execute(explain, query.parameters).fetchall()]

    by_time, *by_id = [line for line in plan if " on job" in line]
    assert prepared == 0
    assert " job_event_type " in by_time
    assert "(actual rows=1000 loops=1)" in by_time or "(actual rows=1001 loops=1)" in by_time, plan
    assert len(by_id) == 2
    assert all("using job_pkey" in line for line in by_id), plan


@spec("B24")
def test_slow_lists_end_soon_and_delay_nothing_on_postgres(postgres_url: str) -> None:
    sleep = Query("SELECT pg_sleep(20)", ())
    crowd = 3 * LISTING_CONNECTIONS
    with (
        closing(PostgresStore(postgres_url, migrate=True, pool_size=1, timeout_s=4.0)) as store,
        ThreadPoolExecutor(crowd) as callers,
    ):
        began = time.monotonic()
        slow = [callers.submit(store.database.rows, sleep, listing=True) for _ in range(crowd)]
        loaded_s = []
        while not any(each.done() for each in slow):
            asked = time.monotonic()
            store.jobs.load([])
            store.upkeep.tick()
            loaded_s.append(time.monotonic() - asked)
        problems = [each.exception() for each in slow]
        took_s = time.monotonic() - began

    assert all(isinstance(problem, StoreUnavailable) for problem in problems)
    assert len(loaded_s) > 1  # many were answered while all lists slept
    assert took_s < 15.0  # none slept for long


@spec("B24", "K16")
def test_a_slow_list_ends_in_time_on_sqlite(tmp_path: Path) -> None:
    endless = Query(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n", ()
    )
    with closing(SqliteStore(tmp_path / "tenure.db", timeout_s=0.4)) as store:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="in time"):
            store.database.rows(endless, listing=True)
        took_s = time.monotonic() - began

        assert store.jobs.load([]).epoch == 1  # on a connection that waits for nothing
    assert took_s < 5.0


LEASED: dict[str, dict[str, Any]] = {
    "load_leased": {"namespace": "default", "actor": "a", "worker": "w"},
    "count_live": {"namespace": "default", "queue": "q"},
    "count_live_by_queue": {"namespace": "default", "after": "", "limit": 50},
    "count_leases": {"namespace": "default", "actor": "a"},
}
"""Statements about live leases, and what they are asked with."""


@pytest.mark.parametrize("name", LEASED)
def test_leases_are_found_among_leases_whatever_is_there_for_lists(
    full_store: tuple[PostgresStore, str], tmp_path: Path, name: str
) -> None:
    store, url = full_store
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as raw:
        query = store.database.query(name, WITHOUT_BODIES, **LEASED[name])
        settings = store.database.settings(deadline(10), None)
        raw.execute(settings.text, settings.parameters)
        rows = raw.execute(f"EXPLAIN {query.text}".encode(), query.parameters).fetchall()
    on_postgres = "\n".join(row[0] for row in rows)
    path = tmp_path / "tenure.db"
    with closing(SqliteStore(path)) as file, closing(sqlite3.connect(path)) as lines:
        query = file.database.query(name, WITHOUT_BODIES, **LEASED[name])
        rows = lines.execute(f"EXPLAIN QUERY PLAN {query.text}", query.parameters).fetchall()
    on_sqlite = "\n".join(row[3] for row in rows)

    assert " job_leased" in on_postgres
    assert "INDEX tenure_job_leased" in on_sqlite


SPAN = EventSpan(namespace=HERE, since=Instant(0), until=Instant(1), limit=1000)


@spec("B31")
@pytest.mark.parametrize("part", [0, 1, 2], ids=["types", "end of a page", "counts"])
def test_events_are_counted_by_the_index_of_type_and_time(
    full_store: tuple[PostgresStore, str], tmp_path: Path, part: int
) -> None:
    on_postgres, on_sqlite = _plans(
        full_store,
        tmp_path,
        lambda store: queries_of(store, lambda: store.events.count(SPAN))[part],
    )

    assert " job_event_type " in on_postgres
    assert "Seq Scan" not in on_postgres
    assert "INDEX tenure_job_event_type " in on_sqlite
    assert "SCAN tenure_job" not in on_sqlite


JOB = JobId("01890000-0000-7000-8000-000000000001")
LATER = EventKey(Instant(1), JOB, 1)
STARTED = TypeFilter(EventType.STARTED)
ENDED = (TypeFilter(EventType.FAILED), parse_type_filter("job_compensated"))
LOOK_UPS: dict[str, tuple[EventFilter, tuple[str, ...], tuple[str, ...]]] = {
    "by job and time": (
        EventFilter(namespace=HERE, job_id=JOB, since=Instant(0), until=Instant(9)),
        ("job_event_pkey",),
        ("sqlite_autoindex_tenure_job_event_1 (job_id=?",),
    ),
    "by type and time": (
        EventFilter(namespace=HERE, types=(STARTED,), since=Instant(0), until=Instant(9)),
        ("job_event_type",),
        ("tenure_job_event_type (type=? AND ts>? AND ts<?",),
    ),
    "by types, newest first, a later page": (
        EventFilter(namespace=HERE, types=ENDED, newest_first=True, after=LATER),
        ("job_event_type",),
        ("tenure_job_event_type (type=? AND ts<?",),
    ),
    "by correlation id": (
        EventFilter(namespace=HERE, correlation_id="order-1"),
        ("job_correlation", "job_event_pkey"),
        (
            "tenure_job_correlation (namespace=? AND correlation_id=?",
            "sqlite_autoindex_tenure_job_event_1 (job_id=?",
        ),
    ),
    "by a job's id as correlation id": (
        EventFilter(namespace=HERE, correlation_id=JOB),
        ("job_correlation", "job_event_pkey"),
        ("tenure_job_correlation (", "sqlite_autoindex_tenure_job_event_1 ("),
    ),
    "by time": (
        EventFilter(namespace=HERE, since=Instant(0)),
        ("job_event_type",),
        ("tenure_job_event_type (type=? AND ts>?",),
    ),
    "newest of all": (
        EventFilter(namespace=HERE, newest_first=True, limit=50),
        ("job_event_type",),
        ("tenure_job_event_type (type=?",),
    ),
}
"""Look-ups in the log, and the indexes that serve each on PostgreSQL and on SQLite."""


@spec("E4", "E8")
@pytest.mark.parametrize("part", [0, 1], ids=["events", "last read"])
@pytest.mark.parametrize("name", LOOK_UPS)
def test_each_look_up_in_the_log_is_served_by_its_index(
    full_store: tuple[PostgresStore, str], tmp_path: Path, name: str, part: int
) -> None:
    wanted, of_postgres, of_sqlite = LOOK_UPS[name]

    on_postgres, on_sqlite = _plans(
        full_store,
        tmp_path,
        lambda store: queries_of(store, lambda: store.events.page(wanted))[-2:][part],
    )

    for index in of_postgres:
        assert f" {index} " in on_postgres, on_postgres
    assert "Seq Scan" not in on_postgres, on_postgres
    for index in of_sqlite:
        assert f"INDEX {index}" in on_sqlite, on_sqlite
    assert "SCAN tenure_job" not in on_sqlite, on_sqlite


@spec("FL15", "B25")
@pytest.mark.parametrize("name", ["count_flow_jobs", "count_replaced_jobs"])
def test_a_list_of_flows_counts_the_jobs_of_its_flows_alone(
    full_store: tuple[PostgresStore, str], tmp_path: Path, name: str
) -> None:
    ids = [new_job_id(Instant(number), bytes(16)) for number in range(50)]

    def count(store: AnyStore) -> Query:
        parameters = {"redrive": EventCause.REDRIVE} if name == "count_replaced_jobs" else {}
        return store.database.query(name, ids=store.database.pack(ids), **parameters)

    on_postgres, on_sqlite = _plans(full_store, tmp_path, count)

    assert "job_flow" in on_postgres
    assert "Seq Scan on job j" not in on_postgres
    assert "SEARCH j USING INDEX tenure_job_flow" in on_sqlite


def _plans(
    full_store: tuple[PostgresStore, str], tmp_path: Path, query: Callable[[AnyStore], Query]
) -> tuple[str, str]:
    """How PostgreSQL and SQLite carry a statement out."""
    store, url = full_store
    asked = query(store)
    with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as raw:
        raw.execute("ANALYZE tenure.job_event")
        settings = store.database.settings(deadline(10), None)
        raw.execute(settings.text, settings.parameters)
        rows = raw.execute(f"EXPLAIN {asked.text}".encode(), asked.parameters).fetchall()
    on_postgres = "\n".join(row[0] for row in rows)
    path = tmp_path / "tenure.db"
    with closing(SqliteStore(path)) as file, closing(sqlite3.connect(path)) as lines:
        enqueue(file, 2)
        claim(file, 1)
        asked = query(file)
        rows = lines.execute(f"EXPLAIN QUERY PLAN {asked.text}", asked.parameters).fetchall()
    return on_postgres, "\n".join(row[3] for row in rows)
