"""Bulk enqueue into PostgreSQL: batches of 1,000, each one durable transaction."""

from bench import pgqueuer
from bench.harness import Options, Row, interleave
from bench.servers import coordinator_of, durable_postgres, fresh_store
from bench.workload import Coordinated, check_history, enqueue
from tenure.core.vocabulary import JobStatus
from tests.support.postgres import PostgresServer

NAME = "enqueue-postgres"
BATCH = 1000


def run(options: Options) -> list[Row]:
    """Tenure's submit_many beside PgQueuer's enqueue of lists."""
    jobs = options.sized(40_000, 10_000)
    with durable_postgres() as server:
        figures = interleave(
            {
                "Tenure": lambda: ours(server, jobs=jobs),
                "PgQueuer": lambda: theirs(server, jobs=jobs),
            },
            rounds=options.rounds,
        )
    return [
        Row(
            scenario=f"PostgreSQL: enqueue {jobs:,} jobs, {BATCH:,} a call",
            ours=figures["Tenure"],
            theirs=figures["PgQueuer"],
            unit="jobs/s",
            peer="PgQueuer",
            at_least=1.0,
        )
    ]


def ours(server: PostgresServer, *, jobs: int) -> float:
    """Jobs per second."""
    with fresh_store(server) as (store, settle):
        with coordinator_of(store) as coordinator:
            service = Coordinated(coordinator)
            enqueue(service, jobs=BATCH, batch=BATCH)
            settle()
            elapsed_s = enqueue(service, jobs=jobs, batch=BATCH)
        check_history(store, jobs=jobs + BATCH, status=JobStatus.QUEUED)
    return jobs / elapsed_s


def theirs(server: PostgresServer, *, jobs: int) -> float:
    """Jobs per second."""
    dsn = pgqueuer.prepare(server)
    try:
        pgqueuer.enqueue(dsn, jobs=BATCH, batch=BATCH)
        return jobs / pgqueuer.enqueue(dsn, jobs=jobs, batch=BATCH)
    finally:
        server.drop_database(dsn)
