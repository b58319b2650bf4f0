"""What the leases of many running jobs cost: heartbeats and polls of 10,000 sleeping coroutines.

One `tenure worker` on PostgreSQL renews every lease each 15 seconds and polls 1,000 of them each
second. Measured for a minute is the CPU of the worker's processes and of the database server.
"""

import time

import msgspec

from bench.harness import BrokenHistory, Figure, Options, Row, say
from bench.processes import require_accounting, tree_cpu_s
from bench.servers import durable_postgres, settle
from bench.worker_drain import PATIENCE_S, Drain, cpu_us, fill, worker
from tenure.core.ids import DEFAULT_NAMESPACE, Kind
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import JobStatus
from tenure.ports import Store
from tenure.stores.postgres.store import PostgresStore
from tests.support.postgres import PostgresCluster

NAME = "heartbeats"
HEARTBEAT_S = 15.0
INTERVALS = 4
TARGET_PERCENT = 10.0


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Parts of a core."""

    supervisor: float
    children: float
    server: float


def run(options: Options) -> list[Row]:
    """Worker and server together beside the target."""
    require_accounting()
    running = options.sized(10_000, 1_000)
    with durable_postgres() as server:
        shares = _shares(server, running=running)
    parts = f"supervisor {shares.supervisor:.2%}, children {shares.children:.2%}"
    say(f"  {parts}, server {shares.server:.2%} of a core")
    names = {
        "its processes": shares.supervisor + shares.children,
        "its processes and the server": shares.supervisor + shares.children + shares.server,
    }
    return [
        Row(
            scenario=f"PostgreSQL: leases of {running:,} running jobs of one worker, {name}",
            ours=Figure((100 * share,)),
            theirs=Figure((TARGET_PERCENT,)),
            unit="% of a core",
            peer="the target",
            at_most=1.0,
        )
        for name, share in names.items()
    ]


def _shares(server: PostgresCluster, *, running: int) -> Shares:
    dsn = server.create_database()
    store = PostgresStore(dsn, migrate=True)
    drain = Drain(lane="async", concurrency=running, jobs=running)
    try:
        fill(store, drain, kind=Kind("asleep"))
        settle(dsn)
        with worker(dsn, drain, ends_well=False) as process:
            _wait_until_running(store, running)
            time.sleep(HEARTBEAT_S)
            before, server_before_s = cpu_us(process.pid), tree_cpu_s([server.pid])
            began_s = time.monotonic()
            time.sleep(INTERVALS * HEARTBEAT_S)
            after, server_after_s = cpu_us(process.pid), tree_cpu_s([server.pid])
            took_s = time.monotonic() - began_s
            _check_leases(store, running)
        return Shares(
            supervisor=(after[0] - before[0]) / 1e6 / took_s,
            children=(after[1] - before[1]) / 1e6 / took_s,
            server=(server_after_s - server_before_s) / took_s,
        )
    finally:
        store.close()
        server.drop_database(dsn)


def _started(running: int) -> JobFilter:
    return JobFilter(namespace=DEFAULT_NAMESPACE, statuses=(JobStatus.RUNNING,), limit=running)


def _wait_until_running(store: Store, running: int) -> None:
    give_up_at_s = time.monotonic() + PATIENCE_S
    while len(store.views.jobs(_started(running)).jobs) < running:
        if time.monotonic() > give_up_at_s:
            raise BrokenHistory(f"{running} jobs did not start in time")
        time.sleep(1.0)


def _check_leases(store: Store, running: int) -> None:
    jobs = store.views.jobs(_started(running)).jobs
    kept = sum(job.attempt == 1 and job.hb_seq > 1 for job in jobs)
    if kept != running:
        raise BrokenHistory(f"{running - kept} leases were lost or not renewed")
