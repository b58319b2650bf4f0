"""What a supervisor keeps of the jobs it has seen: its memory after 100,000 beside 10,000.

One real `tenure worker` per run, over a SQLite file in which the jobs already wait: half of them
run in processes, half as coroutines. Measured is the supervisor's largest resident set, as the
kernel kept it; its children, which are replaced by count, are not part of it.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace

from bench.harness import BrokenHistory, Options, Row, Unavailable, interleave, say
from bench.servers import coordinator_of, scratch_directory
from bench.workload import QUEUE, accepted, check_history, new_jobs
from tenure.core.ids import DEFAULT_NAMESPACE, Kind
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import JobStatus
from tenure.ports import Store
from tenure.stores.sqlite.store import SqliteStore

NAME = "worker-memory"
MAX_ROUNDS = 1  # memory hardly varies, and a round takes minutes
CONCURRENCY = 8
BATCH = 1000
KINDS = (Kind("noop"), Kind("anoop"))
LOOK_EVERY_S = 0.5
PATIENCE_S = 3600.0
END_WITHIN_S = 60.0
LIVE = tuple(status for status in JobStatus if not status.is_terminal)


def run(options: Options) -> list[Row]:
    """Many jobs beside a tenth of them."""
    if not Path("/proc/self/status").exists():
        raise Unavailable("the memory of another process is read from /proc, which is Linux's")
    few = options.sized(10_000, 500)
    many = 10 * few
    with scratch_directory() as directory:
        numbers = iter(range(1_000_000))
        figures = interleave(
            {
                "many": lambda: peak_mib(directory / f"jobs-{next(numbers)}.db", jobs=many),
                "few": lambda: peak_mib(directory / f"jobs-{next(numbers)}.db", jobs=few),
            },
            rounds=min(options.rounds, MAX_ROUNDS),
        )
    return [
        Row(
            scenario=f"One `tenure worker`: memory of its supervisor, {many:,} jobs",
            ours=figures["many"],
            theirs=figures["few"],
            unit="MiB",
            peer=f"the same after {few:,}",
            at_most=1.2,
        )
    ]


def peak_mib(file: Path, *, jobs: int) -> float:
    """The largest resident set of a supervisor that has run so many jobs."""
    store = SqliteStore(file, migrate=True)
    try:
        _fill(store, jobs)
        with _worker(file) as process:
            began_s = time.perf_counter()
            _wait_for_all(store, process)
            peak = resident_peak_mib(process.pid)
            say(f"  {jobs:,} jobs in {time.perf_counter() - began_s:.0f} s")
        check_history(store, jobs=jobs, status=JobStatus.SUCCEEDED)
    finally:
        store.close()
    return peak


def _fill(store: Store, jobs: int) -> None:
    with coordinator_of(store) as coordinator:
        for start in range(0, jobs, BATCH):
            made = new_jobs(min(BATCH, jobs - start))
            commands = [
                replace(command, kind=KINDS[number % len(KINDS)], payload=b"{}")
                for number, command in enumerate(made)
            ]
            accepted(coordinator.submit_many(commands).result())


@contextmanager
def _worker(file: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker process; drained at the end, so that a fault of its own is not overlooked."""
    words = ["worker", "bench.worker_app:app", "-q", QUEUE, "-c", str(CONCURRENCY)]
    process = subprocess.Popen(
        [sys.executable, "-m", "tenure", *words],
        cwd=Path(__file__).resolve().parents[1],
        env=os.environ | {"TENURE_URL": f"sqlite:///{file}"},
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        if process.wait(END_WITHIN_S) != 0:
            raise BrokenHistory(f"the worker ended with exit code {process.returncode}")
    finally:
        process.kill()
        process.wait()


def _wait_for_all(store: Store, process: "subprocess.Popen[bytes]") -> None:
    unfinished = JobFilter(namespace=DEFAULT_NAMESPACE, statuses=LIVE, limit=1)
    give_up_at = time.monotonic() + PATIENCE_S
    while store.views.jobs(unfinished).jobs:
        if process.poll() is not None:
            raise BrokenHistory(f"the worker ended early, with exit code {process.returncode}")
        if time.monotonic() >= give_up_at:
            raise BrokenHistory("the worker did not finish its jobs within an hour")
        time.sleep(LOOK_EVERY_S)


def resident_peak_mib(pid: int) -> float:
    """The largest resident set of a process so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise Unavailable("the kernel does not say how much memory a process has used")
