"""What people look at, asked of a real `tenure serve` over a large store, and ten who keep looking.

Rows and events are copied in bulk by SQL from real jobs: a million that succeeded in the last day,
a hundred thousand that wait, and ten thousand dead letters. Each address is asked a few times; the
slowest answer counts. Answers that viewers share are asked for when they are too old to be shared.

Building takes minutes: `--store URL` measures a store of your own, which is filled first if it has
no jobs. Stores that are not named are temporary.
"""

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import msgspec
import psycopg

from bench.harness import Figure, Options, Row, Unavailable, say, shown, spread
from bench.processes import process_table, tree_cpu_s
from bench.servers import durable_postgres, scratch_directory
from tenure.coordinator.retention import Folder
from tenure.core.commands import DeadLetter
from tenure.core.ids import JobId, Namespace, RequestId, new_job_id, operator_actor
from tenure.core.instants import Instant
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import ReasonCode
from tenure.server.services import OVERVIEW_FRESH_FOR, OVERVIEW_FRESH_PER_COST
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.path import sqlite_path
from tenure.stores.sqlite.store import SqliteStore
from tests.server.processes import House, Process
from tests.stores.lives import change, claim, complete, enqueue, save, start

NAME = "pages"
RUNS = 3
TARGET_MS = 200.0
VIEWED_FOR_S, QUICKLY_VIEWED_FOR_S = 60, 5
TARGET_CPU = 0.1
DAY_US = 24 * 3600 * 1_000_000
REUSED_WITHIN_US = 3 * 3600 * 1_000_000

ADDRESSES = (
    *(f"/v1/overview?range={each}" for each in ("15m", "1h", "6h", "24h", "7d")),
    "/v1/overview?range=1h&queue=q7",
    "/v1/jobs",
    "/v1/jobs?previews=true",
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

VIEWERS = {
    "ten open dashboards, all on the overview": (("/?range=1h", 2.0),) * 10,
    "ten open dashboards, each on another page": (
        ("/?range=1h", 2.0),
        ("/?range=24h", 2.0),
        ("/queues", 5.0),
        ("/queues/q7", 5.0),
        ("/kinds", 5.0),
        ("/kinds/k3", 5.0),
        ("/workers", 5.0),
        ("/jobs", 5.0),
        ("/jobs?status=queued", 5.0),
        ("/dead-letters", 10.0),
    ),
}
"""What ten browsers ask for again, and after how many seconds: as the pages say in `data-live`."""


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


class Site(msgspec.Struct, frozen=True):
    """A filled store, and the processes of its database."""

    name: str
    url: str
    directory: Path
    databases: tuple[int, ...] = ()


def run(options: Options) -> list[Row]:
    """A row for each address and each database, and one for each way of viewing."""
    sizes = Sizes(
        options.sized(1_000_000, 20_000), options.sized(100_000, 2_000), options.sized(10_000, 500)
    )
    viewed_for_s = options.sized(VIEWED_FOR_S, QUICKLY_VIEWED_FOR_S)
    held = f"{sizes.succeeded:,} ended, {sizes.queued:,} waiting"
    rows: list[Row] = []
    answers: dict[str, dict[str, Figure]] = {}
    for site_of in (_sqlite, _postgres):
        with site_of(sizes, options.stores) as site, _server(site) as server:
            answers[site.name] = _answers(site, server)
            rows += [_row(site, address, f, held) for address, f in answers[site.name].items()]
            rows += [_viewers_row(site, server, name, viewed_for_s, held) for name in VIEWERS]
    print(_table(answers), flush=True)
    return rows


def _answers(site: Site, server: Process) -> dict[str, Figure]:
    """How long each address took, each time that it was asked."""
    ids = _ids(server)
    found = {}
    for address in ADDRESSES:
        found[address] = _times_ms(server, address.format(**ids))
        say(f"  {site.name} {address}: {spread(found[address], 'ms')}")
    return found


def _row(site: Site, address: str, figure: Figure, held: str) -> Row:
    return Row(
        scenario=f"{site.name}: {address}, {held}",
        ours=Figure((figure.highest,)),
        theirs=Figure((TARGET_MS,)),
        unit="ms",
        peer="the target",
        at_most=1.0,
    )


def _viewers_row(site: Site, server: Process, name: str, for_s: int, held: str) -> Row:
    processes = {"server": [server.popen.pid], "database": site.databases}
    cores = _viewed(server, VIEWERS[name], for_s, processes)
    say(f"  {site.name} {name}: {cores}")
    return Row(
        scenario=f"{site.name}: {name}, {held}",
        ours=Figure((sum(cores.values()),)),
        theirs=Figure((TARGET_CPU,)),
        unit="cores",
        peer="the target",
        at_most=1.0,
    )


def _table(answers: Mapping[str, Mapping[str, Figure]]) -> str:
    """Every address with the median and the slowest answer of each store."""
    lines = [
        f"| address | {' | '.join(f'{name}, ms' for name in answers)} |",
        "|---|" + "---|" * len(answers),
    ]
    for address in ADDRESSES:
        figures = [found[address] for found in answers.values()]
        cells = [f"{shown(each.median)}, at worst {shown(each.highest)}" for each in figures]
        lines.append(f"| `{address}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _ids(server: Process) -> dict[str, str]:
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
        "job": _newest(server, "succeeded"),
        "waiting": _newest(server, "queued"),
        "dead": _newest(server, "dead_lettered"),
        "flow": flow_id,
        "group": groups.json["groups"][0]["key"],
    }


def _newest(server: Process, status: str) -> str:
    job_id: str = server.ask("GET", f"/v1/jobs?status={status}&limit=1").json["jobs"][0]["id"]
    return job_id


def _times_ms(server: Process, path: str) -> Figure:
    """A few answers, each made anew: when the one before is too old to be shared."""
    times_ms: list[float] = []
    for _ in range(RUNS):
        if "overview" in path or path.partition("?")[0] in OF_OVERVIEWS:
            slowest_s = max(times_ms, default=0.0) / 1000
            time.sleep(
                max(OVERVIEW_FRESH_FOR / 1_000_000, OVERVIEW_FRESH_PER_COST * slowest_s) + 0.1
            )
        with closing(server.connect()) as connection:
            times_ms.append(_ask_ms(connection, path, {}))
    return Figure(tuple(times_ms))


def _ask_ms(connection: HTTPConnection, path: str, headers: dict[str, str]) -> float:
    """How long an answer took; what the server says of the session goes into `headers`."""
    began_s = time.perf_counter()
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    if answer.status != 200:
        raise Unavailable(f"{path} answered {answer.status}, not 200")
    cookie = answer.getheader("Set-Cookie")
    if cookie is not None:
        headers["Cookie"] = cookie.partition(";")[0]
    return (time.perf_counter() - began_s) * 1000


def _viewed(
    server: Process,
    viewers: Sequence[tuple[str, float]],
    for_s: int,
    processes: Mapping[str, Sequence[int]],
) -> dict[str, float]:
    """The share of a core that each of these processes takes while people look."""
    before_s = {name: tree_cpu_s(pids) for name, pids in processes.items()}
    began_s = time.monotonic()
    with ThreadPoolExecutor(len(viewers)) as pool:
        looking = [
            pool.submit(
                _look,
                server,
                path,
                every_s=every_s,
                first_s=every_s * place / len(viewers),
                until_s=began_s + for_s,
            )
            for place, (path, every_s) in enumerate(viewers)
        ]
    for each in looking:
        each.result()
    took_s = time.monotonic() - began_s
    return {name: (tree_cpu_s(pids) - before_s[name]) / took_s for name, pids in processes.items()}


def _look(server: Process, path: str, *, every_s: float, first_s: float, until_s: float) -> None:
    """Open a page after `first_s`, then ask for its changing part again and again on the same
    connection and with its cookie, as a browser does."""
    time.sleep(first_s)
    headers: dict[str, str] = {}
    with closing(server.connect()) as connection:
        _ask_ms(connection, path, headers)
        headers["HX-Request"] = "true"
        while time.monotonic() + every_s < until_s:
            time.sleep(every_s)
            _ask_ms(connection, path, headers)


# --- Stores ------------------------------------------------------------------------------------


@contextmanager
def _sqlite(sizes: Sizes, stores: Sequence[str]) -> Iterator[Site]:
    with scratch_directory() as directory:
        named = next((each for each in stores if each.startswith("sqlite:")), None)
        url = named or f"sqlite:///{directory / 'pages.db'}"
        path = sqlite_path(url)
        with closing(SqliteStore(path)) as store:
            templates = _templates(store)
        if templates is not None:
            say(f"  filling SQLite with {sizes.succeeded + sizes.queued:,} jobs")
            with closing(sqlite3.connect(path)) as raw:
                for pragma in ("synchronous = OFF", "journal_mode = OFF", "cache_size = -262144"):
                    raw.execute(f"PRAGMA {pragma}")
                with _without_indexes(raw, SQLITE):
                    _fill(raw, templates, sizes, SQLITE, is_kept=named is not None)
                raw.commit()
                raw.execute("PRAGMA journal_mode = WAL")
            with closing(SqliteStore(path)) as store:
                _fold(store)
        yield Site("SQLite", url, directory)


@contextmanager
def _postgres(sizes: Sizes, stores: Sequence[str]) -> Iterator[Site]:
    named = next((each for each in stores if each.startswith("postgres")), None)
    with ExitStack() as stack:
        directory = stack.enter_context(scratch_directory())
        url = named or stack.enter_context(durable_postgres()).create_database()
        with closing(PostgresStore(url, migrate=True)) as store:
            templates = _templates(store)
        if templates is not None:
            say(f"  filling PostgreSQL with {sizes.succeeded + sizes.queued:,} jobs")
            with psycopg.connect(url) as raw:
                raw.execute("SET session_replication_role = replica")  # no triggers: rows as are
                raw.execute("SET maintenance_work_mem = '256MB'")
                with _without_indexes(raw, POSTGRES):
                    _fill(raw, templates, sizes, POSTGRES, is_kept=named is not None)
            with psycopg.connect(url, autocommit=True) as raw:
                raw.execute("VACUUM ANALYZE")
            with closing(PostgresStore(url)) as store:
                _fold(store)
        yield Site("PostgreSQL", url, directory, (_postmaster(url),))


def _postmaster(url: str) -> int:
    """The process that all others of a server on this machine descend from."""
    with psycopg.connect(url) as raw:
        return process_table()[raw.info.backend_pid].parent


@contextmanager
def _server(site: Site) -> Iterator[Process]:
    house = House(site.url, site.directory)
    try:
        yield house.serve("--no-auth")
    finally:
        house.close()


def _templates(store: PostgresStore | SqliteStore) -> Templates | None:
    """Real jobs to copy; None if the store is filled already."""
    if store.views.jobs(JobFilter(namespace=Namespace("default"), limit=1)).jobs:
        return None
    enqueue(store, 1)
    [done] = complete(store, start(store, claim(store, 1, seq=1)))
    [dead, queued] = enqueue(store, 2)
    loaded = store.jobs.load([dead])
    command = DeadLetter(
        job_id=dead,
        actor=operator_actor("bench"),
        request_id=RequestId("dead"),
        reason_code=ReasonCode.POLICY_VIOLATION,
        message="connection refused",
    )
    save(store, [change(loaded.jobs[dead], command, loaded.now)])
    return Templates(done.id, queued, dead)


def _fold(store: PostgresStore | SqliteStore) -> None:
    """Fold the log as servers do little by little, so that none is busy with it when pages are
    asked for."""
    folder = Folder(store)
    while folder.fold_once().is_behind:
        pass


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


def _fill(raw: Any, templates: Templates, sizes: Sizes, dialect: Dialect, *, is_kept: bool) -> None:
    """Copy jobs with their events; those that ended did so evenly over a day. In a store that is
    kept the day ends hours from now, so that the last hour has as many when it is used again."""
    ahead_us = REUSED_WITHIN_US if is_kept else 0
    first_position_at = time.time_ns() // 1000 - 2 * DAY_US
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
        earlier = f"(({last} - n) * {spread_us // number} - {ahead_us if spread_us else 0})"
        names = {"queue": "'q' || (n % 20)", "kind": "'k' || (n % 10)"}
        of_job = names | {each: f"{each} - {earlier}" for each in JOB_TIMES} | {"id": "new_id"}
        of_event = {"ts": f"ts - {earlier}", "job_id": "new_id"}
        # In the order of time, and before all that a real transaction writes.
        of_event |= {"position": f"ts - {earlier} - {first_position_at}"}
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
