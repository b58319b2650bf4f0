"""A store for one session of one contestant: empty, durable, and gone afterwards.

Tenure's is verified before it goes: a fast run with a broken history is an error.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import psycopg
from msgspec.structs import replace

from bench import pgqueuer
from bench.contestants import PEER_DIRECTORY, Contestant
from bench.harness import BrokenHistory, Unavailable
from bench.processes import Started
from bench.redis_server import redis
from bench.servers import settle
from bench.workload import check_history
from tenure.core.ids import DEFAULT_NAMESPACE
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import JobStatus
from tenure.ports import Store
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore
from tests.support.postgres import PostgresCluster

START_WITHIN_S = 30.0
LOOK_EVERY_S = 0.02
UNFINISHED = JobFilter(
    namespace=DEFAULT_NAMESPACE,
    statuses=tuple(status for status in JobStatus if not status.is_terminal),
    limit=1,
)
UNFINISHED_ROWS = {
    "pgqueuer": "SELECT 1 FROM pgqueuer LIMIT 1",
    "procrastinate": "SELECT 1 FROM procrastinate_jobs WHERE status IN ('todo', 'doing') LIMIT 1",
}
TENURE = (sys.executable, "-m", "tenure")


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A store that is up: how producer and workers find it, and which processes serve it."""

    producer: dict[str, str]
    worker: dict[str, str]
    servers: list[int]
    settle: Callable[[], None]
    has_unfinished: Callable[[], bool]
    """Whether a job is waiting, running, or not reported yet; always False where the worker reports
    a job before it starts the next one."""
    verify: Callable[[int], None]
    """Refuse a history that does not hold, or that has not so many jobs that all succeeded."""


@contextmanager
def site(contestant: Contestant, server: PostgresCluster | None, directory: Path) -> Iterator[Site]:
    """What this contestant needs; `directory` is empty and on a disk."""
    if contestant.needs_postgres:
        assert server is not None, f"{contestant.name} needs a server"
        with _on_postgres(contestant, server, directory) as found:
            yield found
        return
    match contestant.store:
        case "sqlite" if contestant.is_ours:
            file = directory / "jobs.db"
            sqlite_store = SqliteStore(file, migrate=True)
            try:
                yield _ours(contestant, f"sqlite:///{file}", sqlite_store, [], None)
            finally:
                sqlite_store.close()
        case "sqlite":
            yield _theirs(str(directory / "jobs.db"), [])
        case "redis":
            with redis(directory, contestant.appendfsync) as (url, pid):
                yield _theirs(url, [pid])
        case _:
            raise AssertionError(contestant.store)


@contextmanager
def _on_postgres(
    contestant: Contestant, server: PostgresCluster, directory: Path
) -> Iterator[Site]:
    if not contestant.is_ours:
        with _peer_on_postgres(contestant, server) as dsn:
            yield _theirs(dsn, [server.pid], dsn, unfinished=UNFINISHED_ROWS[contestant.queue])
        return
    with _tenure_on_postgres(server) as (dsn, store):
        if contestant.store == "postgres":
            yield _ours(contestant, dsn, store, [server.pid], dsn)
            return
        with serve(dsn, directory) as (address, tokens, pid):
            over_http = _ours(contestant, address, store, [server.pid, pid], dsn)
            yield replace(
                over_http,
                producer=over_http.producer | {"TENURE_TOKEN": tokens["client"]},
                worker=over_http.worker | {"TENURE_TOKEN": tokens["worker"]},
            )


def _ours(
    contestant: Contestant, url: str, store: Store, servers: list[int], dsn: str | None
) -> Site:
    variables = {"TENURE_URL": url, "BENCH_LANE": contestant.lane}
    return Site(
        producer=variables,
        worker=variables,
        servers=servers,
        settle=_settling(dsn),
        has_unfinished=lambda: bool(store.views.jobs(UNFINISHED).jobs),
        verify=lambda jobs: check_history(store, jobs=jobs, status=JobStatus.SUCCEEDED),
    )


def _theirs(
    url: str, servers: list[int], dsn: str | None = None, *, unfinished: str | None = None
) -> Site:
    variables = {"BENCH_URL": url, "RQ_REDIS_URL": url}
    return Site(
        producer=variables,
        worker=variables,
        servers=servers,
        settle=_settling(dsn),
        has_unfinished=lambda: unfinished is not None and _finds(url, unfinished),
        verify=lambda _: None,
    )


def _finds(dsn: str, query: str) -> bool:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchone() is not None


def _settling(dsn: str | None) -> Callable[[], None]:
    return (lambda: None) if dsn is None else (lambda: settle(dsn))


@contextmanager
def _tenure_on_postgres(server: PostgresCluster) -> Iterator[tuple[str, Store]]:
    dsn = server.create_database()
    store = PostgresStore(dsn, migrate=True)
    try:
        yield dsn, store
    finally:
        store.close()
        server.drop_database(dsn)


@contextmanager
def serve(dsn: str, directory: Path) -> Iterator[tuple[str, dict[str, str], int]]:
    """A `tenure serve` with a token for each side: its address, the tokens, its process id."""
    tokens = {role: _token(dsn, role) for role in ("client", "worker")}
    home = directory / "serve"
    home.mkdir()
    with Started(home) as started:
        command = [*TENURE, "serve", "--url", dsn, "--port", "0"]
        process = started.start(command, {}, cwd=directory)
        give_up_at_s = time.monotonic() + START_WITHIN_S
        while (address := started.line_that_begins_with("http://")) is None:
            started.check()
            if time.monotonic() > give_up_at_s:
                raise Unavailable(f"tenure serve does not start: {started.output()}")
            time.sleep(LOOK_EVERY_S)
        yield address, tokens, process.pid
        if started.stop() != [0]:
            raise BrokenHistory(f"tenure serve ended badly: {started.output()}")


def _token(dsn: str, role: str) -> str:
    command = [*TENURE, "tokens", "create", f"bench-{role}", "--role", role, "--url", dsn]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BrokenHistory(f"tenure tokens create failed: {done.stderr.strip()}")
    return done.stdout.strip()


@contextmanager
def _peer_on_postgres(contestant: Contestant, server: PostgresCluster) -> Iterator[str]:
    if contestant.queue == "pgqueuer":
        dsn = pgqueuer.prepare(server)
    else:
        dsn = server.create_database()
        command = [str(contestant.python.parent / "procrastinate")]
        command += ["--app=queue_procrastinate.app", "schema", "--apply"]
        variables = {"BENCH_URL": dsn, "PYTHONPATH": str(PEER_DIRECTORY)}
        done = subprocess.run(command, env=variables, capture_output=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"Procrastinate could not install its tables: {done.stderr[-200:]!r}")
    try:
        yield dsn
    finally:
        server.drop_database(dsn)
