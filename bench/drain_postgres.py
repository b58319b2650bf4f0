"""Draining a PostgreSQL queue: Tenure's three transitions per job beside PgQueuer's two.

Tenure claims, starts and completes every job with an event for each, in durable transactions: two,
if the claim starts what it grants, as that of `tenure worker` does, else three. PgQueuer picks and
deletes, with a log row for each.
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
LARGE_BATCH = 500
TARGET = 1.1
ENQUEUE_BATCH = 1000
APART = f"Tenure, {BATCH} a call, start by itself"


def run(options: Options) -> list[Row]:
    """Tenure with two batch sizes and with a start of its own, PgQueuer with one process and with
    two."""
    jobs = options.sized(20_000, 4_000)
    with durable_postgres() as server:
        figures = interleave(
            {
                f"Tenure, {BATCH} a call": lambda: ours(server, jobs=jobs, batch=BATCH),
                "PgQueuer, 1 process": lambda: theirs(server, jobs=jobs, processes=1),
                f"Tenure, {LARGE_BATCH} a call": lambda: ours(server, jobs=jobs, batch=LARGE_BATCH),
                APART: lambda: ours(server, jobs=jobs, batch=BATCH, claims_start=False),
                "PgQueuer, 2 processes": lambda: theirs(server, jobs=jobs, processes=2),
            },
            rounds=options.rounds,
        )
    with_claim = "started by the claim"
    compared: list[tuple[str, str, str, float | None]] = [
        (f"Tenure, {BATCH} a call", f"{BATCH} a call, {with_claim}", "1 process", TARGET),
        (f"Tenure, {LARGE_BATCH} a call", f"{LARGE_BATCH} a call, {with_claim}", "1 process", None),
        (
            f"Tenure, {LARGE_BATCH} a call",
            f"{LARGE_BATCH} a call, {with_claim}",
            "2 processes",
            None,
        ),
        (APART, f"{BATCH} a call, start by itself", "1 process", None),
    ]
    return [
        Row(
            scenario=f"PostgreSQL: drain {jobs:,} jobs, {how}",
            ours=figures[contestant],
            theirs=figures[f"PgQueuer, {processes}"],
            unit="jobs/s",
            peer=f"PgQueuer, {processes}",
            at_least=target,
        )
        for contestant, how, processes, target in compared
    ]


def ours(server: PostgresServer, *, jobs: int, batch: int, claims_start: bool = True) -> float:
    """Jobs per second from queued to succeeded."""
    with fresh_store(server) as (store, settle):
        with coordinator_of(store) as coordinator:
            service = Coordinated(coordinator)
            enqueue(service, jobs=jobs, batch=ENQUEUE_BATCH)
            settle()
            elapsed_s = drain(
                service, jobs=jobs, threads=THREADS, batch=batch, claims_start=claims_start
            )
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
