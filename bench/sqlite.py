"""One SQLite file with synchronous=FULL: enqueue and drain, beside Huey with fsync.

Huey has no bulk enqueue and no batches; Tenure's workers and producers batch, as its worker does.
Tenure writes a row and four events per job, Huey writes a row and deletes it.
"""

from pathlib import Path

from bench import huey
from bench.harness import Options, Row, interleave
from bench.servers import coordinator_of, scratch_directory
from bench.workload import Coordinated, check_history, drain, enqueue
from tenure.core.vocabulary import JobStatus
from tenure.stores.sqlite.store import SqliteStore

NAME = "sqlite"
THREADS = 4
BATCH = 200
ENQUEUE_BATCH = 1000
"""The same as on PostgreSQL."""


def run(options: Options) -> list[Row]:
    """Tenure beside Huey."""
    jobs = options.sized(10_000, 2_000)
    with scratch_directory() as directory:
        numbers = iter(range(1_000_000))
        figures = interleave(
            {
                "Tenure": lambda: ours(directory / f"tenure-{next(numbers)}.db", jobs=jobs),
                "Huey": lambda: theirs(directory / f"huey-{next(numbers)}.db", jobs=jobs),
            },
            rounds=options.rounds,
        )
    return [
        Row(
            scenario=f"SQLite, synchronous=FULL: enqueue and drain {jobs:,} jobs",
            ours=figures["Tenure"],
            theirs=figures["Huey"],
            unit="jobs/s",
            peer="Huey, fsync=True",
            at_least=3.0,
        )
    ]


def ours(file: Path, *, jobs: int) -> float:
    """Jobs per second from nothing to succeeded."""
    store = SqliteStore(file, migrate=True)
    try:
        with coordinator_of(store) as coordinator:
            service = Coordinated(coordinator)
            elapsed_s = enqueue(service, jobs=jobs, batch=ENQUEUE_BATCH)
            elapsed_s += drain(service, jobs=jobs, threads=THREADS, batch=BATCH, claims_start=True)
        check_history(store, jobs=jobs, status=JobStatus.SUCCEEDED)
    finally:
        store.close()
    return jobs / elapsed_s


def theirs(file: Path, *, jobs: int) -> float:
    """Jobs per second from nothing to done."""
    return jobs / sum(huey.enqueue_and_drain(file, jobs=jobs))
