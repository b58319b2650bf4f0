"""CPU per job, in the process that drains and in the server: what a busy machine distorts least.

Wall time depends on who else wants the cores; the work that has to be done does not, or less.
"""

import time

from bench import pgqueuer
from bench.drain_postgres import BATCH, ENQUEUE_BATCH, THREADS
from bench.harness import Options, Row, interleave, say
from bench.processes import require_accounting, tree_cpu_s
from bench.servers import coordinator_of, durable_postgres, fresh_store
from bench.workload import Coordinated, check_history, drain, enqueue
from tenure.core.vocabulary import JobStatus
from tests.support.postgres import PostgresCluster

NAME = "drain-cost"


def run(options: Options) -> list[Row]:
    """Microseconds per job, process and server together."""
    jobs = options.sized(20_000, 4_000)
    require_accounting()
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
            scenario=f"PostgreSQL: CPU per drained job, {BATCH} a call, started by the claim",
            ours=figures["Tenure"],
            theirs=figures["PgQueuer"],
            unit="µs",
            peer="PgQueuer, 1 process",
        )
    ]


def ours(server: PostgresCluster, *, jobs: int) -> float:
    """CPU of a drain, per job, in microseconds."""
    with fresh_store(server) as (store, settle):
        with coordinator_of(store) as coordinator:
            service = Coordinated(coordinator)
            enqueue(service, jobs=jobs, batch=ENQUEUE_BATCH)
            settle()
            before_s, server_before_s = time.process_time(), tree_cpu_s([server.pid])
            drain(service, jobs=jobs, threads=THREADS, batch=BATCH, claims_start=True)
            process_s = time.process_time() - before_s
            server_s = tree_cpu_s([server.pid]) - server_before_s
        check_history(store, jobs=jobs, status=JobStatus.SUCCEEDED)
    return _per_job("Tenure", process_s, server_s, jobs)


def theirs(server: PostgresCluster, *, jobs: int) -> float:
    """CPU of PgQueuer's drain, per job, in microseconds."""
    dsn = pgqueuer.prepare(server)
    try:
        pgqueuer.enqueue(dsn, jobs=jobs, batch=ENQUEUE_BATCH)
        before_s = tree_cpu_s([server.pid])
        [timing] = pgqueuer.drain_timings(dsn, jobs=jobs, processes=1)
        server_s = tree_cpu_s([server.pid]) - before_s
    finally:
        server.drop_database(dsn)
    return _per_job("PgQueuer", timing.cpu_s, server_s, jobs)


def _per_job(name: str, process_s: float, server_s: float, jobs: int) -> float:
    process_us, server_us = process_s / jobs * 1e6, server_s / jobs * 1e6
    say(f"    {name}: {process_us:.0f} µs in the process, {server_us:.0f} µs in the server")
    return process_us + server_us
