"""Claims while a snapshot is held open, so that PostgreSQL can remove nothing of what was claimed.

One worker drains a queue, 200 jobs a call. A row compares the median claim at the end of the drain
with that at its beginning.
"""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from bench.harness import BrokenHistory, Figure, Options, Row, Stopwatch, say
from bench.servers import coordinator_of, durable_postgres, settle
from bench.workload import KIND, Coordinated, Worker, check_history, enqueue
from tenure.core.vocabulary import JobStatus
from tenure.stores.postgres.store import PostgresStore
from tests.support.postgres import PostgresServer

NAME = "claim-pinned"
LIMIT = 200
SHARE = 20
"""The first and the last twentieth of the claims are compared."""


def run(options: Options) -> list[Row]:
    """A drain per round."""
    jobs = options.sized(100_000, 20_000)
    measured: list[tuple[float, float]] = []
    with durable_postgres() as server:
        for number in range(options.rounds):
            first_ms, last_ms = _drained(server, jobs=jobs)
            measured.append((first_ms, last_ms))
            say(f"  round {number + 1}: {first_ms:.1f} ms, then {last_ms:.1f} ms")
    row = Row(
        scenario=f"PostgreSQL: claim {LIMIT} after {jobs:,} jobs under a held snapshot",
        ours=Figure(tuple(last for _, last in measured)),
        theirs=Figure(tuple(first for first, _ in measured)),
        unit="ms",
        peer="the first claims of the drain",
        at_most=3.0,
    )
    return [row]


def _drained(server: PostgresServer, *, jobs: int) -> tuple[float, float]:
    """The median milliseconds of the first claims of a drain, and of the last."""
    dsn = server.create_database()
    store = PostgresStore(dsn, migrate=True)
    try:
        with coordinator_of(store) as coordinator:
            service = Coordinated(coordinator)
            enqueue(service, jobs=jobs, batch=1000)
            settle(dsn)
            with _held_snapshot(dsn):
                latencies = _claims_ms(Worker(service, "pinned", kinds=(KIND,)), jobs)
        check_history(store, jobs=jobs, status=JobStatus.SUCCEEDED)
    finally:
        store.close()
        server.drop_database(dsn)
    some = len(latencies) // SHARE
    return statistics.median(latencies[:some]), statistics.median(latencies[-some:])


def _claims_ms(worker: Worker, jobs: int) -> list[float]:
    latencies = []
    for _ in range(jobs // LIMIT):
        with Stopwatch() as watch:
            grants = worker.claim(LIMIT)
        if len(grants) != LIMIT:
            raise BrokenHistory(f"{len(grants)} of {LIMIT} jobs were claimed")
        worker.finish(grants)
        latencies.append(watch.elapsed_s * 1000)
    return latencies


@contextmanager
def _held_snapshot(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM tenure.meta")
        yield
