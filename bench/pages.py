"""What people look at, asked of a real `tenure serve` over a large store, and ten who keep looking.

Rows and events are copied in bulk by SQL from real jobs: a million that succeeded in the last day,
a hundred thousand that wait, and ten thousand dead letters. Each address is asked a few times; the
slowest answer counts. Answers that viewers share are asked for when they are too old to be shared.
"""

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from bench.harness import Figure, Options, Row, Unavailable, say, shown
from bench.processes import tree_cpu_s
from bench.servers import durable_postgres, scratch_directory
from tenure.core.commands import DeadLetter
from tenure.core.ids import JobId, RequestId, new_job_id, operator_actor
from tenure.core.instants import Instant
from tenure.core.vocabulary import ReasonCode
from tenure.server.overviews import FRESH_FOR, FRESH_PER_COST
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore
from tests.server.processes import House, Process
from tests.stores.lives import change, claim, complete, enqueue, save, start

NAME = "pages"
RUNS = 3
TARGET_MS = 200.0
VIEWERS = 10
VIEWED_EVERY_S = 2.0
VIEWED_FOR_S = 20.0
TARGET_CPU = 0.1
DAY_US = 24 * 3600 * 1_000_000

ADDRESSES = (
    *(f"/v1/overview?range={each}" for each in ("15m", "1h", "6h", "24h", "7d")),
    "/v1/overview?range=1h&queue=q7",
    "/v1/jobs",
    "/v1/jobs?status=queued",
    "/v1/jobs?status=succeeded&kind=k3",
    "/v1/jobs?worker=nobody",
    "/v1/jobs?error=refused",
    "/v1/jobs?status=dead_lettered&error=nothing",
    "/v1/dead-letters",
    "/v1/dead-letter-groups",
    "/v1/queues",
    "/v1/workers",
    "/v1/schedules",
    "/v1/flows",
    "/v1/jobs/{job}",
    "/v1/jobs/{job}/events",
    "/v1/jobs/{job}/verification",
    "/v1/jobs/{waiting}/wait-reasons",
    "/",
    "/?range=24h",
    "/queues",
    "/queues/q7",
    "/kinds",
    "/kinds/k3",
    "/workers",
    "/schedules",
    "/jobs",
    "/jobs?status=queued",
    "/jobs?status=succeeded&kind=k3",
    "/jobs?status=succeeded&queue=q7",
    "/jobs?queue=q7&kind=k7",
    "/jobs?worker=nobody",
    "/jobs?correlation_id=nothing",
    "/jobs?error=refused",
    "/jobs?status=dead_lettered&error=nothing",
    "/jobs/{job}",
    "/jobs/{waiting}",
    "/jobs/{dead}",
    "/flows",
    "/flows/{flow}",
    "/dead-letters",
    "/dead-letters/list",
    "/dead-letters/{group}",
)
"""Paths that begin with /v1 are the reads, the others pages of the dashboard. An answer other than
200 ends the benchmark."""

VIEWED = "/?range=1h"
"""What an open dashboard asks for every two seconds."""


OF_OVERVIEWS = ("/", "/queues", "/queues/q7", "/kinds", "/kinds/k3")
"""Pages that show an overview, which viewers share."""


class Sizes(msgspec.Struct, frozen=True):
    """How many jobs of each sort."""

    succeeded: int
    queued: int
    dead: int


class Templates(msgspec.Struct, frozen=True):
    """The jobs that are copied."""

    succeeded: JobId
    queued: JobId
    dead: JobId


def run(options: Options) -> list[Row]:
    """A row for each address and each database, and one for ten viewers."""
    sizes = Sizes(
        options.sized(1_000_000, 20_000), options.sized(100_000, 2_000), options.sized(10_000, 500)
    )
    rows: list[Row] = []
    for name, opened in (("SQLite", _sqlite), ("PostgreSQL", _postgres)):
        with opened(sizes) as (house, templates, databases):
            rows += _measured(name, house, templates, databases, sizes)
    return rows


def _measured(
    name: str, house: House, templates: Templates, databases: Sequence[int], sizes: Sizes
) -> Iterator[Row]:
    server = house.serve("--no-auth")
    ids = _ids(server, templates)
    held = f"{sizes.succeeded:,} ended, {sizes.queued:,} waiting"
    for address in ADDRESSES:
        path = address.format(**ids)
        slowest_ms = _slowest_ms(server, path)
        print(f"{name} {address}: {shown(slowest_ms)} ms", file=sys.stdout, flush=True)
        yield Row(
            scenario=f"{name}: {address}, {held}",
            ours=Figure((slowest_ms,)),
            theirs=Figure((TARGET_MS,)),
            unit="ms",
            peer="the target",
            at_most=1.0,
        )
    cores = _viewed(server, [server.popen.pid, *databases])
    print(f"{name} {VIEWERS} viewers: {shown(100 * cores)} % of a core", flush=True)
    yield Row(
        scenario=f"{name}: {VIEWERS} open dashboards, {held}",
        ours=Figure((cores,)),
        theirs=Figure((TARGET_CPU,)),
        unit="cores",
        peer="the target",
        at_most=1.0,
    )


def _ids(server: Process, templates: Templates) -> dict[str, str]:
    """Of a job of each sort, of a flow made now, and the key of a group of dead letters."""
    now = Instant(time.time_ns() // 1000)
    flow_id, first, second = (new_job_id(now, os.urandom(16)) for _ in range(3))
    flow = {
        "flow_id": flow_id,
        "name": "bench",
        "jobs": [
            {"job": {"job_id": first, "queue": "q1", "kind": "k1"}, "name": "first"},
            {
                "job": {"job_id": second, "queue": "q1", "kind": "k1"},
                "name": "second",
                "after": [{"job_id": first, "name": "first"}],
            },
        ],
    }
    made = server.ask("POST", "/v1/flows", flow)
    groups = server.ask("GET", "/v1/dead-letter-groups")
    if made.status not in (200, 201) or groups.status != 200:
        raise Unavailable(f"no flow ({made.status}) or no groups of dead letters ({groups.status})")
    return {
        "job": templates.succeeded,
        "waiting": templates.queued,
        "dead": templates.dead,
        "flow": flow_id,
        "group": groups.json["groups"][0]["key"],
    }


def _slowest_ms(server: Process, path: str) -> float:
    """The slowest of a few answers, each made anew: when the one before is too old to be shared."""
    slowest_ms = 0.0
    for _ in range(RUNS):
        if "overview" in path or path.partition("?")[0] in OF_OVERVIEWS:
            time.sleep(max(FRESH_FOR / 1_000_000, FRESH_PER_COST * slowest_ms / 1000) + 0.1)
        slowest_ms = max(slowest_ms, _ask_ms(server, path))
    return slowest_ms


def _ask_ms(server: Process, path: str) -> float:
    began_s = time.perf_counter()
    answer = server.ask("GET", path)
    if answer.status != 200:
        raise Unavailable(f"{path} answered {answer.status}, not 200")
    return (time.perf_counter() - began_s) * 1000


def _viewed(server: Process, processes: Sequence[int]) -> float:
    """The share of a core that server and database take while ten people look."""

    def look() -> None:
        until_s = time.monotonic() + VIEWED_FOR_S
        while time.monotonic() < until_s:
            _ask_ms(server, VIEWED)
            time.sleep(VIEWED_EVERY_S)

    viewers = [threading.Thread(target=look) for _ in range(VIEWERS)]
    before_s, began_s = tree_cpu_s(processes), time.monotonic()
    for viewer in viewers:
        viewer.start()
    for viewer in viewers:
        viewer.join()
    return (tree_cpu_s(processes) - before_s) / (time.monotonic() - began_s)


# --- Stores ------------------------------------------------------------------------------------


@contextmanager
def _sqlite(sizes: Sizes) -> Iterator[tuple[House, Templates, list[int]]]:
    with scratch_directory() as directory:
        path = directory / "pages.db"
        say(f"  filling SQLite with {sizes.succeeded + sizes.queued:,} jobs")
        with closing(SqliteStore(path)) as store:
            templates = _templates(store)
        with closing(sqlite3.connect(path)) as raw:
            for pragma in ("synchronous = OFF", "journal_mode = OFF", "cache_size = -262144"):
                raw.execute(f"PRAGMA {pragma}")
            with _without_indexes(raw, SQLITE):
                _fill(raw, templates, sizes, SQLITE)
            raw.commit()
            raw.execute("PRAGMA journal_mode = WAL")
        with _house(f"sqlite:///{path}", directory) as house:
            yield house, templates, []


@contextmanager
def _postgres(sizes: Sizes) -> Iterator[tuple[House, Templates, list[int]]]:
    with durable_postgres() as server, scratch_directory() as directory:
        url = server.create_database()
        say(f"  filling PostgreSQL with {sizes.succeeded + sizes.queued:,} jobs")
        with closing(PostgresStore(url, migrate=True)) as store:
            templates = _templates(store)
        with psycopg.connect(url) as raw:
            raw.execute("SET session_replication_role = replica")  # no triggers: rows as they are
            raw.execute("SET maintenance_work_mem = '256MB'")
            with _without_indexes(raw, POSTGRES):
                _fill(raw, templates, sizes, POSTGRES)
        with psycopg.connect(url, autocommit=True) as raw:
            raw.execute("VACUUM ANALYZE")
        with _house(url, directory) as house:
            yield house, templates, [server.pid]


@contextmanager
def _house(url: str, directory: Path) -> Iterator[House]:
    house = House(url, directory)
    try:
        yield house
    finally:
        house.close()


def _templates(store: PostgresStore | SqliteStore) -> Templates:
    enqueue(store, 1)
    [done] = complete(store, start(store, claim(store, 1, seq=1)))
    [dead, queued] = enqueue(store, 2)
    loaded = store.load([dead])
    command = DeadLetter(
        job_id=dead,
        actor=operator_actor("bench"),
        request_id=RequestId("dead"),
        reason_code=ReasonCode.POLICY_VIOLATION,
        message="connection refused",
    )
    save(store, [change(loaded.jobs[dead], command, loaded.now)])
    return Templates(done.id, queued, dead)


class Dialect(msgspec.Struct, frozen=True):
    """How rows are copied in a database."""

    jobs: str
    events: str
    queues: str
    new_id: str
    series: str
    indexes: str
    """Names of the indexes that no constraint needs, and how each is made."""
    schema: str = ""
    left_out: tuple[str, ...] = ()


SQLITE = Dialect(
    "tenure_job",
    "tenure_job_event",
    "tenure_queue",
    "printf('%08x-0000-7000-8000-000000000000', n)",
    "(WITH RECURSIVE s(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM s WHERE n < {last})"
    " SELECT n FROM s) AS s",
    "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND sql IS NOT NULL"
    " AND tbl_name IN ('tenure_job', 'tenure_job_event')",
    left_out=("position",),
)
POSTGRES = Dialect(
    "tenure.job",
    "tenure.job_event",
    "tenure.queue",
    "(lpad(to_hex(n), 8, '0') || '-0000-7000-8000-000000000000')::uuid",
    "generate_series(CAST({first} AS bigint), {last}) AS s(n)",
    "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'tenure'"
    " AND tablename IN ('job', 'job_event') AND NOT EXISTS"
    " (SELECT 1 FROM pg_constraint WHERE conname = indexname)",
    schema="tenure.",
)
JOB_TIMES = ("enqueued_at", "updated_at", "started_at", "finished_at")


@contextmanager
def _without_indexes(raw: Any, dialect: Dialect) -> Iterator[None]:
    """Make the indexes anew when the rows are there: sorted once, a fifth of the time."""
    indexes = raw.execute(dialect.indexes).fetchall()
    for name, _ in indexes:
        raw.execute(f"DROP INDEX {dialect.schema}{name}")
    yield
    for _, made_by in indexes:
        raw.execute(made_by)


def _fill(raw: Any, templates: Templates, sizes: Sizes, dialect: Dialect) -> None:
    """Copy jobs with their events; those that ended did so evenly over the last day."""
    columns = {
        table: [each[0] for each in raw.execute(f"SELECT * FROM {table} LIMIT 0").description]
        for table in (dialect.jobs, dialect.events)
    }
    first = 1
    for template, number, spread_us in (
        (templates.succeeded, sizes.succeeded, DAY_US),
        (templates.queued, sizes.queued, 0),
        (templates.dead, sizes.dead, DAY_US),
    ):
        last = first + number - 1
        earlier = f"({last} - n) * {spread_us // number}"
        names = {"queue": "'q' || (n % 20)", "kind": "'k' || (n % 10)"}
        of_job = names | {each: f"{each} - {earlier}" for each in JOB_TIMES} | {"id": "new_id"}
        of_event = {"ts": f"ts - {earlier}", "job_id": "new_id"}
        series = dialect.series.format(first=first, last=last)
        numbered = f"(SELECT n, {dialect.new_id} AS new_id FROM {series}) AS made"
        for table, key, given in (
            (dialect.jobs, "id", of_job),
            (dialect.events, "job_id", of_event),
        ):
            kept = [each for each in columns[table] if each not in dialect.left_out]
            values = ", ".join(given.get(each, each) for each in kept)
            raw.execute(
                f"INSERT INTO {table} ({', '.join(kept)}) SELECT {values}"
                f" FROM {table}, {numbered} WHERE {key} = '{template}'"
            )
        first = last + 1
    for number in range(20):
        raw.execute(
            f"INSERT INTO {dialect.queues} (namespace, name) VALUES ('default', 'q{number}')"
        )
