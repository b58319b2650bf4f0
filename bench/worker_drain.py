"""A real `tenure worker` draining no-op jobs: CPU per job of supervisor, children and server.

The jobs wait in a paused queue until the worker is up and has all of its children, so its start is
not part of the figures. CPU per job is the figure to compare: wall time depends on who else wants
the cores.

`python -m bench.worker_drain --lane async -c 50 -c 1000` prints one line per run; `--source DIR`
runs the worker from another checkout too, in turns, to see what a change has brought.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bench.drain_postgres import ENQUEUE_BATCH
from bench.harness import BrokenHistory, Options, Row, interleave
from bench.peer.marks import VARIABLE
from bench.processes import process_table, require_accounting, tree_cpu_s
from bench.servers import coordinator_of, durable_postgres, scratch_directory, settle
from bench.workload import QUEUE, accepted, check_history, new_jobs
from tenure.core.ids import DEFAULT_NAMESPACE, Kind
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import JobStatus
from tenure.ports import Store
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore
from tests.support.postgres import PostgresCluster

NAME = "worker-drain"
ROOT = Path(__file__).resolve().parents[1]
KINDS = {"async": Kind("anoop"), "process": Kind("noop"), "thread": Kind("tnoop")}
LIVE = tuple(status for status in JobStatus if not status.is_terminal)
UNFINISHED = JobFilter(namespace=DEFAULT_NAMESPACE, statuses=LIVE, limit=1)
LOOK_EVERY_S = 0.2
PATIENCE_S = 600.0
END_WITHIN_S = 60.0
Worker = subprocess.Popen[bytes]
MOST_FOR_CONCURRENCY = 1.2


class Drained(msgspec.Struct, frozen=True, kw_only=True):
    """What one drain took; CPU in microseconds per job."""

    jobs_per_s: float
    supervisor_us: float
    children_us: float
    server_us: float

    @property
    def worker_us(self) -> float:
        """Supervisor and children."""
        return self.supervisor_us + self.children_us

    def __str__(self) -> str:
        return (
            f"{self.jobs_per_s:,.0f} jobs/s; CPU per job: supervisor {self.supervisor_us:.0f} µs, "
            f"children {self.children_us:.0f} µs, server {self.server_us:.0f} µs"
        )


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """One drain to measure."""

    lane: str
    concurrency: int
    jobs: int
    source: Path = ROOT / "src"
    app: str = ""
    """Of worker_app.py; empty: that of the lane alone."""


def run(options: Options) -> list[Row]:
    """The cost of the async lane with many slots beside that with few."""
    require_accounting()
    jobs = options.sized(20_000, 2_000)
    few, many = (Drain(lane="async", concurrency=each, jobs=jobs) for each in (50, 1000))
    with durable_postgres() as server:
        costs = interleave(
            {
                "many": lambda: on_postgres(server, many).worker_us,
                "few": lambda: on_postgres(server, few).worker_us,
            },
            rounds=options.rounds,
        )
    return [
        Row(
            scenario="PostgreSQL: CPU per job of one `tenure worker -c 1000`",
            ours=costs["many"],
            theirs=costs["few"],
            unit="µs",
            peer="the same with -c 50",
            at_most=MOST_FOR_CONCURRENCY,
        ),
    ]


def on_postgres(server: PostgresCluster, drain: Drain) -> Drained:
    """A drain of a database of its own."""
    dsn = server.create_database()
    store = PostgresStore(dsn, migrate=True)
    try:
        return _drained(store, dsn, drain, settle_dsn=dsn, postmaster=server.pid)
    finally:
        store.close()
        server.drop_database(dsn)


def on_sqlite(file: Path, drain: Drain) -> Drained:
    """A drain of a file of its own."""
    store = SqliteStore(file, migrate=True)
    try:
        return _drained(store, f"sqlite:///{file}", drain)
    finally:
        store.close()


def _drained(
    store: Store,
    url: str,
    drain: Drain,
    *,
    settle_dsn: str | None = None,
    postmaster: int | None = None,
) -> Drained:
    # A worker starts most children of its process lane when it has jobs for all at a time.
    first_jobs = drain.concurrency if drain.lane == "process" else 0
    fill(
        store,
        replace(drain, jobs=first_jobs),
        kind=Kind("together"),
        payload=msgspec.json.encode({"others": first_jobs}),
    )
    with scratch_directory() as marks, worker(url, drain, marks=marks / "marks") as process:
        wait_until_up(store, process)
        store.settings.put_queue(DEFAULT_NAMESPACE, QUEUE, paused=True, limit=None)
        fill(store, drain)
        if settle_dsn is not None:
            settle(settle_dsn)
        before = cpu_us(process.pid)
        server_before_s = 0.0 if postmaster is None else tree_cpu_s([postmaster])
        began_at = store.now()
        store.settings.put_queue(DEFAULT_NAMESPACE, QUEUE, paused=False, limit=None)
        wait_for_all(store, process)
        after = cpu_us(process.pid)
        server_s = 0.0 if postmaster is None else tree_cpu_s([postmaster]) - server_before_s
    check_history(store, jobs=first_jobs + drain.jobs, status=JobStatus.SUCCEEDED)
    ended_at = max(each.job.updated_at for each in store.audit.records(page_size=1000) if each.job)
    return Drained(
        jobs_per_s=drain.jobs / ((ended_at - began_at) / 1e6),
        supervisor_us=(after[0] - before[0]) / drain.jobs,
        children_us=(after[1] - before[1]) / drain.jobs,
        server_us=server_s * 1e6 / drain.jobs,
    )


def fill(store: Store, drain: Drain, *, kind: Kind | None = None, payload: bytes = b"{}") -> None:
    """Enqueue its jobs."""
    with coordinator_of(store) as coordinator:
        for start in range(0, drain.jobs, ENQUEUE_BATCH):
            made = new_jobs(min(ENQUEUE_BATCH, drain.jobs - start))
            chosen = kind or KINDS[drain.lane]
            commands = [replace(each, kind=chosen, payload=payload) for each in made]
            accepted(coordinator.submit_many(commands).result())


@contextmanager
def worker(
    url: str,
    drain: Drain,
    *,
    ends_well: bool = True,
    marks: Path | None = None,
    token: str | None = None,
) -> Iterator[Worker]:
    """A worker process; drained at the end, so that a fault of its own is not overlooked."""
    application = f"bench.worker_app:{drain.app or f'{drain.lane}_app'}"
    words = ["worker", application, "-q", QUEUE, "-c", str(drain.concurrency)]
    variables = {"TENURE_URL": url, "PYTHONPATH": str(drain.source)}
    if marks is not None:
        variables[VARIABLE] = str(marks)
    if token is not None:
        variables["TENURE_TOKEN"] = token
    process = subprocess.Popen(
        [sys.executable, "-m", "tenure", *words],
        cwd=ROOT,
        env=os.environ | variables,
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        if ends_well and process.wait(END_WITHIN_S) != 0:
            raise BrokenHistory(f"the worker ended with exit code {process.returncode}")
    finally:
        process.kill()
        process.wait()


def wait_until_up(store: Store, process: Worker) -> None:
    """Until it has children and none of its processes has used CPU to speak of for a while."""
    give_up_at = time.monotonic() + PATIENCE_S
    last = (0.0, 0.0)
    while True:
        time.sleep(1.0)
        now = cpu_us(process.pid)
        is_known = store.workers.page(DEFAULT_NAMESPACE) and not store.views.jobs(UNFINISHED).jobs
        if is_known and sum(now) - sum(last) < 100_000:
            return
        last = now
        if process.poll() is not None or time.monotonic() >= give_up_at:
            raise BrokenHistory("the worker did not come up")


def wait_for_all(store: Store, process: Worker) -> None:
    """Until every job has ended."""
    give_up_at = time.monotonic() + PATIENCE_S
    while store.views.jobs(UNFINISHED).jobs:
        if process.poll() is not None:
            raise BrokenHistory(f"the worker ended early, with exit code {process.returncode}")
        if time.monotonic() >= give_up_at:
            raise BrokenHistory("the worker did not finish its jobs in time")
        time.sleep(LOOK_EVERY_S)


def cpu_us(supervisor: int) -> tuple[float, float]:
    """What a supervisor has used so far, and what its children have, those that ended included."""
    own_s = process_table()[supervisor].own_s
    return own_s * 1e6, (tree_cpu_s([supervisor]) - own_s) * 1e6


# --- by hand -----------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> None:
    """Print a line per run."""
    parser = argparse.ArgumentParser(prog="python -m bench.worker_drain", description=__doc__)
    parser.add_argument("--store", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--lane", choices=tuple(KINDS), default="async")
    parser.add_argument("-c", "--concurrency", type=int, action="append")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--source", type=Path, action="append", default=[])
    asked = parser.parse_args(arguments)
    drains = [
        Drain(lane=asked.lane, concurrency=concurrency, jobs=asked.jobs, source=source)
        for concurrency in asked.concurrency or (100,)
        for source in (*asked.source, ROOT / "src")
    ]
    with durable_postgres() as server, scratch_directory() as directory:
        numbers = count()
        for _ in range(asked.rounds):
            for drain in drains:
                if asked.store == "postgres":
                    drained = on_postgres(server, drain)
                else:
                    drained = on_sqlite(directory / f"jobs-{next(numbers)}.db", drain)
                print(f"{drain.source.parent.name} -c {drain.concurrency}: {drained}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
