"""Where Python's time goes in a drain: one flight's calls, and the process' CPU per job.

The profile counts the flight thread's own CPU time, so that waiting for the database or for the
interpreter's lock is not mistaken for work. Profiling slows what it measures: read shares, not
seconds.
"""

import cProfile
import pstats
import sys
import threading
import time

from bench.drain_postgres import BATCH, ENQUEUE_BATCH, THREADS
from bench.harness import Options, say
from bench.servers import durable_postgres, fresh_store
from bench.workload import Coordinated, drain, enqueue
from tenure.coordinator.service import Coordinator
from tenure.ports import Store

LINES = 45


class ProfiledCoordinator(Coordinator):
    """A coordinator whose first flight is profiled."""

    def __init__(self, store: Store) -> None:
        self.profile = cProfile.Profile(time.thread_time)
        self._first = threading.Lock()
        super().__init__(store)

    def _run(self) -> None:
        if self._first.acquire(blocking=False):
            self.profile.runcall(super()._run)
        else:
            super()._run()


def run(options: Options, *, phase: str) -> None:
    """Print the profile of one drain, or of one bulk enqueue, to standard output."""
    jobs = options.sized(20_000, 4_000)
    with durable_postgres() as server, fresh_store(server) as (store, settle):
        plain = Coordinator(store)
        service = Coordinated(plain)
        if phase == "drain":
            _enqueue_all(service, jobs)
            settle()
            began_s = time.process_time()
            elapsed_s = _drain_all(service, jobs)
            _report("drain", jobs, elapsed_s, time.process_time() - began_s)
            _enqueue_all(service, jobs)
        else:
            began_s = time.process_time()
            elapsed_s = _enqueue_all(service, jobs)
            _report("enqueue", jobs, elapsed_s, time.process_time() - began_s)
        plain.close()
        profiled = ProfiledCoordinator(store)
        if phase == "drain":
            _drain_all(Coordinated(profiled), jobs)
        else:
            _enqueue_all(Coordinated(profiled), jobs)
        profiled.close()
    stats = pstats.Stats(profiled.profile, stream=sys.stdout)
    stats.strip_dirs().sort_stats("tottime").print_stats(LINES)
    stats.sort_stats("cumulative").print_stats(LINES)


def _enqueue_all(service: Coordinated, jobs: int) -> float:
    return enqueue(service, jobs=jobs, batch=ENQUEUE_BATCH)


def _drain_all(service: Coordinated, jobs: int) -> float:
    return drain(service, jobs=jobs, threads=THREADS, batch=BATCH, claims_start=True)


def _report(what: str, jobs: int, elapsed_s: float, cpu_s: float) -> None:
    say(
        f"{what}, unprofiled: {jobs / elapsed_s:,.0f} jobs/s, "
        f"{cpu_s / jobs * 1e6:.1f} µs of this process' CPU per job"
    )
