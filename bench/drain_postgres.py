"""Draining a PostgreSQL queue: Tenure's three transitions per job beside PgQueuer's two.

Tenure claims, starts and completes every job in durable transactions of their own with an event
for each; PgQueuer picks and deletes, with a log row for each.
"""

from bench import pgqueuer
from bench.harness import Options, Row, interleave
from bench.servers import coordinator_of, durable_postgres, fresh_store
from bench.workload import Coordinated, check_history, drain, enqueue
from tenure.core.vocabulary import JobStatus
from tests.support.postgres import PostgresServer

NAME = "drain-postgres"
THREADS = 4
BATCH = 200
ENQUEUE_BATCH = 1000


def run(options: Options) -> list[Row]:
    """Tenure, PgQueuer with one process, PgQueuer with two."""
    jobs = options.sized(20_000, 4_000)
    with durable_postgres() as server:
        figures = interleave(
            {
                "Tenure": lambda: ours(server, jobs=jobs),
                "PgQueuer, 1 process": lambda: theirs(server, jobs=jobs, processes=1),
                "PgQueuer, 2 processes": lambda: theirs(server, jobs=jobs, processes=2),
            },
            rounds=options.rounds,
        )
    return [
        Row(
            scenario=f"PostgreSQL: drain {jobs:,} jobs, one process",
            ours=figures["Tenure"],
            theirs=figures[f"PgQueuer, {processes}"],
            unit="jobs/s",
            peer=f"PgQueuer, {processes}",
            at_least=target,
        )
        for processes, target in (("1 process", 1.2), ("2 processes", None))
    ]


def ours(server: PostgresServer, *, jobs: int) -> float:
    """Jobs per second from queued to succeeded."""
    with fresh_store(server) as (store, settle):
        with coordinator_of(store) as coordinator:
            service = Coordinated(coordinator)
            enqueue(service, jobs=jobs, batch=ENQUEUE_BATCH)
            settle()
            elapsed_s = drain(service, jobs=jobs, threads=THREADS, batch=BATCH)
        check_history(store, jobs=jobs, status=JobStatus.SUCCEEDED)
    return jobs / elapsed_s


def theirs(server: PostgresServer, *, jobs: int, processes: int) -> float:
    """Jobs per second from queued to deleted."""
    dsn = pgqueuer.prepare(server)
    try:
        pgqueuer.enqueue(dsn, jobs=jobs, batch=ENQUEUE_BATCH)
        return jobs / pgqueuer.drain(dsn, jobs=jobs, processes=processes)
    finally:
        server.drop_database(dsn)
