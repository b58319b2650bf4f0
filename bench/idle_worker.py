"""What an idle worker costs: CPU of all its processes, on PostgreSQL and on SQLite.

One `tenure worker` on each, with wake-ups as users have them, both lanes and 32 slots. Each runs a
few jobs, comes to rest, and is watched for a minute or more, because the kernel counts CPU in
hundredths of a second. Afterwards each must still run a job.
"""

import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.harness import Figure, Options, Row, say
from bench.processes import require_accounting
from bench.servers import durable_postgres, scratch_directory
from bench.worker_drain import Drain, Worker, cpu_us, fill, wait_for_all, wait_until_up, worker
from bench.workload import check_history
from tenure.core.vocabulary import JobStatus
from tenure.ports import Store
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore

NAME = "idle-worker"
WATCHED_S = 90
TARGET_PERCENT = 1.0
JOBS = 8
DRAIN = Drain(lane="async", concurrency=32, jobs=JOBS, app="app")


class Idle(msgspec.Struct, frozen=True):
    """A worker that is watched."""

    store: Store
    process: Worker


def run(options: Options) -> list[Row]:
    """A row for each database."""
    require_accounting()
    watched_s = options.sized(WATCHED_S, 60)
    with ExitStack() as stack:
        server = stack.enter_context(durable_postgres())
        directory = stack.enter_context(scratch_directory())
        dsn = server.create_database()
        idle = {
            "PostgreSQL": _start(stack, PostgresStore(dsn, migrate=True), dsn),
            "SQLite": _on_sqlite(stack, directory / "jobs.db"),
        }
        cores = _watch(idle, watched_s)
        for each in idle.values():
            fill(each.store, DRAIN)
            wait_for_all(each.store, each.process)
            check_history(each.store, jobs=2 * JOBS, status=JobStatus.SUCCEEDED)
    return [
        Row(
            scenario=f"{name}: CPU of an idle `tenure worker`, {watched_s} s",
            ours=Figure((100 * cores[name],)),
            theirs=Figure((TARGET_PERCENT,)),
            unit="% of a core",
            peer="the target",
            at_most=1.0,
        )
        for name in idle
    ]


def _on_sqlite(stack: ExitStack, file: Path) -> Idle:
    return _start(stack, SqliteStore(file, migrate=True), f"sqlite:///{file}")


def _start(stack: ExitStack, store: Store, url: str) -> Idle:
    stack.callback(store.close)
    fill(store, DRAIN)
    process = stack.enter_context(worker(url, DRAIN))
    wait_until_up(store, process)
    return Idle(store, process)


def _watch(idle: dict[str, Idle], watched_s: float) -> dict[str, float]:
    before = {name: cpu_us(each.process.pid) for name, each in idle.items()}
    began_s = time.monotonic()
    time.sleep(watched_s)
    after = {name: cpu_us(each.process.pid) for name, each in idle.items()}
    took_us = (time.monotonic() - began_s) * 1e6
    for name in idle:
        supervisor, children = (b - a for a, b in zip(before[name], after[name], strict=True))
        parts = f"supervisor {supervisor / took_us:.3%}, its children {children / took_us:.3%}"
        say(f"  {name}: {parts} of a core")
    return {name: (sum(after[name]) - sum(before[name])) / took_us for name in idle}
