"""What is asked all the time, on a small store and on a large one with 200 queues.

Rows are copied in bulk by SQL from a few real jobs; they have no events, which nothing here reads.
Each question is measured by what it makes the database do, pages of PostgreSQL and steps of SQLite,
which other users of the machine do not distort, and by the fastest of several runs.
"""

import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import msgspec
import psycopg

from bench.harness import Figure, Options, Row, say, shown
from bench.servers import durable_postgres, scratch_directory
from tenure.core.claims import ClaimScope
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, QueueName
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import JobStatus
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.candidates import Reading
from tenure.stores.sql.statements import Query
from tenure.stores.sqlite.store import SqliteStore
from tests.stores.lives import claim, complete, enqueue, start
from tests.support.counted_work import pages_read, steps_taken
from tests.support.postgres import PostgresServer

NAME = "growth"
QUEUES = 200
RUNS = 7
HERE = DEFAULT_NAMESPACE
BUSY, QUIET = QueueName("busy"), QueueName("quiet")
COMMON, LATER, RARE, MISSING = "common", "later", "rare", "missing"

AnyStore: TypeAlias = PostgresStore | SqliteStore
Question: TypeAlias = Callable[[AnyStore], Sequence[Query]]


class Copies(msgspec.Struct, frozen=True):
    """Copies of the template in `status`, as a share of all jobs, and what differs in them."""

    status: JobStatus
    share: float
    queue: str
    kind: str = COMMON
    changes: str = ""


MANY_QUEUES = "'q' || (n % 200)"
DELAYED = ", priority = 5, run_at = run_at + 3600000000 + n, not_before = run_at + 3600000000 + n"
"""In an hour, at a higher priority."""

CONTENTS = (
    # Oldest first.
    Copies(JobStatus.QUEUED, 0.0001, f"'{QUIET}'", RARE),
    Copies(JobStatus.QUEUED, 0.16, f"'{BUSY}'"),
    Copies(JobStatus.QUEUED, 0.07, f"'{BUSY}'", LATER, DELAYED),
    Copies(JobStatus.QUEUED, 0.0001, f"'{BUSY}'", RARE, ", priority = -5"),
    Copies(JobStatus.RUNNING, 0.0143, MANY_QUEUES),
    Copies(JobStatus.SUCCEEDED, 0.75, MANY_QUEUES),
)


def _claim(kind: str, wanted: int) -> Question:
    scope = ClaimScope(namespace=HERE, queues=(BUSY,), kinds=(Kind(kind),))
    return lambda store: store.candidates.queries(
        Reading.of_all(scope, {BUSY: [Kind(kind)]}, wanted)
    )


def _list(
    *statuses: JobStatus, queue: QueueName | None = None, kind: Kind | None = None
) -> Question:
    asked = JobFilter(namespace=HERE, statuses=statuses, queue=queue, kind=kind)
    return lambda store: [store.views._jobs_query(asked, kinds=store.views._kinds_to_list(asked))]


QUESTIONS: dict[str, Question] = {
    "claim 50 of the common kind": _claim(COMMON, 50),
    "claim 1 of a kind that the queue does not have": _claim(MISSING, 1),
    "claim 1 below all others and below delayed jobs": _claim(RARE, 1),
    "list all": _list(),
    "list queued": _list(JobStatus.QUEUED),
    "list running": _list(JobStatus.RUNNING),
    "list succeeded": _list(JobStatus.SUCCEEDED),
    "list failed, of which there are none": _list(JobStatus.FAILED),
    "list a quiet queue": _list(queue=QUIET),
    "list queued of a quiet queue": _list(JobStatus.QUEUED, queue=QUIET),
    "list queued of a queue without any": _list(JobStatus.QUEUED, queue=QueueName("q7")),
    "list succeeded of a queue without any": _list(JobStatus.SUCCEEDED, queue=BUSY),
    "list failed of a queue without any": _list(JobStatus.FAILED, queue=QueueName("q7")),
    "list a rare kind": _list(kind=Kind(RARE)),
    "list queued of a rare kind": _list(JobStatus.QUEUED, kind=Kind(RARE)),
    "list succeeded of a kind without any": _list(JobStatus.SUCCEEDED, kind=Kind(RARE)),
    "queues to measure": lambda store: [
        store.database.query("measured_queues", namespace=HERE, queues=100)
    ],
    "idle sweep": lambda store: [store.database.query("due", limit=500)],
}


class Cost(msgspec.Struct, frozen=True):
    """Of one question: pages or steps, and milliseconds."""

    work: int
    fastest_ms: float


def run(options: Options) -> list[Row]:
    """Prints both tables with their times. A row for each question compares its work alone."""
    sizes = (options.sized(20_000, 2_000), options.sized(700_000, 20_000))
    rows: list[Row] = []
    for name, opened, work in (
        ("PostgreSQL", _postgres_stores, "pages"),
        ("SQLite", _sqlite_stores, "steps"),
    ):
        with opened(sizes) as costs_of:
            small, large = costs_of
        print(_table(name, sizes, work, small, large), file=sys.stdout, flush=True)
        rows += [
            Row(
                scenario=f"{name}: {question}, {sizes[1]:,} jobs",
                ours=Figure((float(large[question].work),)),
                theirs=Figure((float(small[question].work),)),
                unit=work,
                peer=f"the same with {sizes[0]:,}",
                at_most=2.0,
            )
            for question in QUESTIONS
        ]
    return rows


def _table(
    name: str, sizes: Sequence[int], work: str, small: dict[str, Cost], large: dict[str, Cost]
) -> str:
    lines = [
        f"| {name} | {work} at {sizes[0]:,} → {sizes[1]:,} jobs | ms |",
        "|---|---|---|",
    ]
    lines += [
        f"| {question} | {small[question].work:,} → {large[question].work:,}"
        f" | {shown(small[question].fastest_ms)} → {shown(large[question].fastest_ms)} |"
        for question in QUESTIONS
    ]
    return "\n".join(lines)


# --- Stores ------------------------------------------------------------------------------------


@contextmanager
def _postgres_stores(sizes: Sequence[int]) -> Iterator[list[dict[str, Cost]]]:
    with durable_postgres() as server:
        yield [_postgres_costs(server, jobs) for jobs in sizes]


def _postgres_costs(server: PostgresServer, jobs: int) -> dict[str, Cost]:
    url = server.create_database()
    with ExitStack() as stack:
        stack.callback(server.drop_database, url)
        store = stack.enter_context(closing(PostgresStore(url, migrate=True)))
        say(f"  filling PostgreSQL with {jobs:,} jobs")
        templates = _templates(store)
        with psycopg.connect(url) as raw:
            raw.execute("SET session_replication_role = replica")  # no triggers: rows as they are
            columns = _columns_of(raw.execute("SELECT * FROM tenure.job LIMIT 0").description)
            new_id = "(lpad(to_hex(n), 8, '0') || '-0000-7000-8000-000000000000')::uuid"
            series = "generate_series({first}, {last}) AS s(n)"
            for statement in _copies(templates, jobs, "tenure.job", columns, new_id, series):
                raw.execute(statement.encode())
            raw.execute(
                f"INSERT INTO tenure.queue (namespace, name) SELECT 'default', 'q' || n"
                f" FROM generate_series(0, {QUEUES - 1}) AS s(n)".encode()
            )
        with psycopg.connect(url, autocommit=True) as raw:
            raw.execute("VACUUM ANALYZE")
        return _costs(store, lambda queries: pages_read(store, url, queries))


@contextmanager
def _sqlite_stores(sizes: Sequence[int]) -> Iterator[list[dict[str, Cost]]]:
    with scratch_directory() as directory:
        yield [_sqlite_costs(directory / f"{jobs}.db", jobs) for jobs in sizes]


def _sqlite_costs(path: Path, jobs: int) -> dict[str, Cost]:
    with closing(SqliteStore(path)) as store:
        say(f"  filling SQLite with {jobs:,} jobs")
        templates = _templates(store)
        with closing(sqlite3.connect(path)) as raw:
            columns = _columns_of(raw.execute("SELECT * FROM tenure_job LIMIT 0").description)
            new_id = "printf('%08x-0000-7000-8000-000000000000', n)"
            series = (
                "(WITH RECURSIVE s(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s"
                " WHERE n < {last}) SELECT n FROM s) AS s"
            )
            for statement in _copies(templates, jobs, "tenure_job", columns, new_id, series):
                raw.execute(statement)
            raw.executemany(
                "INSERT INTO tenure_queue (namespace, name) VALUES ('default', ?)",
                [(f"q{number}",) for number in range(QUEUES)],
            )
            raw.commit()
        return _costs(store, lambda queries: steps_taken(store, path, queries))


def _templates(store: AnyStore) -> dict[JobStatus, str]:
    """The ids of a job in each status that is copied."""
    enqueue(store, 1)
    [done] = complete(store, start(store, claim(store, 1, seq=1)))
    enqueue(store, 1)
    [running] = start(store, claim(store, 1, seq=2))
    [queued] = enqueue(store, 1)
    return {
        JobStatus.SUCCEEDED: done.id,
        JobStatus.RUNNING: running.id,
        JobStatus.QUEUED: queued,
    }


def _columns_of(description: Sequence[Sequence[object]] | None) -> list[str]:
    assert description is not None
    return [str(column[0]) for column in description]


def _copies(
    templates: dict[JobStatus, str],
    jobs: int,
    table: str,
    columns: Sequence[str],
    new_id: str,
    series: str,
) -> Iterator[str]:
    """The statements that fill the table; ids rise from the first to the last."""
    first = 1
    for copies in CONTENTS:
        last = first + max(1, round(jobs * copies.share)) - 1
        given = {"id": new_id, "queue": copies.queue, "kind": f"'{copies.kind}'"}
        if copies.status is JobStatus.RUNNING:
            # Leases of an hour, each its own.
            given |= {"lease_id": "lease_id || n", "due_at": "due_at + 3600000000 + n"}
            given |= {"lease_expires_at": "lease_expires_at + 3600000000 + n"}
        for change in copies.changes.split(", ")[1:]:
            column, _, value = change.partition(" = ")
            given[column] = value
        values = ", ".join(given.get(column, column) for column in columns)
        yield (
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values}"
            f" FROM {table}, {series.format(first=first, last=last)}"
            f" WHERE id = '{templates[copies.status]}'"
        )
        first = last + 1


def _costs(store: AnyStore, counted: Callable[[Sequence[Query]], int]) -> dict[str, Cost]:
    return {name: _cost(store, ask, counted) for name, ask in QUESTIONS.items()}


def _cost(store: AnyStore, ask: Question, counted: Callable[[Sequence[Query]], int]) -> Cost:
    queries = ask(store)
    locks_rows = any("FOR UPDATE" in query.text for query in queries)
    transact = store.database.write if locks_rows else partial(store.database.read, listing=True)
    fastest_ms = float("inf")
    for _ in range(RUNS):
        began_s = time.perf_counter()
        transact(lambda tx: tx.fetch(*queries))
        fastest_ms = min(fastest_ms, (time.perf_counter() - began_s) * 1000)
    return Cost(counted(queries), fastest_ms)
