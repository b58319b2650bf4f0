"""What `tenure serve` keeps of the jobs it has seen: its memory after 100,000 beside 10,000.

One server over a SQLite file and one `tenure worker` over HTTP, which runs the jobs as coroutines.
Measured are the largest resident sets of the server and of the supervisor, as the kernel kept them.
"""

import time
from pathlib import Path

import msgspec

from bench.harness import Figure, Options, Row, Unavailable, say
from bench.servers import scratch_directory
from bench.sites import serve
from bench.worker_drain import Drain, fill, wait_for_all, worker
from bench.worker_memory import resident_peak_mib
from bench.workload import check_history
from tenure.core.vocabulary import JobStatus
from tenure.stores.sqlite.store import SqliteStore

NAME = "server-memory"
CONCURRENCY = 200
AT_MOST = 1.2


class Peaks(msgspec.Struct, frozen=True, kw_only=True):
    """In MiB."""

    server: float
    supervisor: float


def run(options: Options) -> list[Row]:
    """Many jobs beside a tenth of them, one round: memory hardly varies."""
    if not Path("/proc/self/status").exists():
        raise Unavailable("the memory of another process is read from /proc, which is Linux's")
    jobs = options.sized(10_000, 500)
    with scratch_directory() as directory:
        few = _peaks(directory / "few", jobs)
        many = _peaks(directory / "many", 10 * jobs)
    pairs = {
        "`tenure serve`": (many.server, few.server),
        "supervisor of a worker over HTTP": (many.supervisor, few.supervisor),
    }
    return [
        Row(
            scenario=f"Memory of {name}, {10 * jobs:,} jobs",
            ours=Figure((ours,)),
            theirs=Figure((theirs,)),
            unit="MiB",
            peer=f"the same after {jobs:,}",
            at_most=AT_MOST,
        )
        for name, (ours, theirs) in pairs.items()
    ]


def _peaks(directory: Path, jobs: int) -> Peaks:
    directory.mkdir()
    file = directory / "jobs.db"
    drain = Drain(lane="async", concurrency=CONCURRENCY, jobs=jobs)
    store = SqliteStore(file, migrate=True)
    try:
        fill(store, drain)
        began_s = time.monotonic()
        with (
            serve(f"sqlite:///{file}", directory) as (address, tokens, server),
            worker(address, drain, token=tokens["worker"]) as process,
        ):
            wait_for_all(store, process)
            peaks = Peaks(
                server=resident_peak_mib(server), supervisor=resident_peak_mib(process.pid)
            )
        say(f"  {jobs:,} jobs in {time.monotonic() - began_s:.0f} s: {peaks}")
        check_history(store, jobs=jobs, status=JobStatus.SUCCEEDED)
        return peaks
    finally:
        store.close()
