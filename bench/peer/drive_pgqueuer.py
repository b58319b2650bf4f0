"""PgQueuer's side of the comparison. Runs in PgQueuer's environment, imports nothing of ours.

As its own benchmark tool does it: several queue managers in one event loop (uvloop), each with an
asyncpg connection, no-op coroutines as jobs, drain mode. The clock stops when the last completion
is committed, not when the managers have shut down, which takes them a while.
"""

import argparse
import asyncio
import json
import logging
import os
import sys
import time
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

ENTRYPOINT = "noop"


_cpu_before_s = 0.0


async def _ready() -> float:
    global _cpu_before_s
    print(json.dumps("ready"), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    _cpu_before_s = time.process_time()
    return time.monotonic()


async def _connect() -> Any:
    return await asyncpg.connect(dsn=os.environ["BENCH_DSN"])


async def install() -> None:
    """Create its tables, all of them logged, with its own autovacuum settings."""
    queries = Queries(AsyncpgDriver(await _connect()))
    await queries.install()
    await queries.optimize_autovacuum()


async def enqueue(jobs: int, batch: int) -> tuple[float, int]:
    """Bulk enqueue: one statement and one transaction per batch."""
    queries = Queries(AsyncpgDriver(await _connect()))
    began_s = await _ready()
    for start in range(0, jobs, batch):
        size = min(batch, jobs - start)
        await queries.enqueue([ENTRYPOINT] * size, [b"null"] * size, [0] * size)
    return began_s, jobs


class Drain:
    """One process that drains the queue with several queue managers."""

    def __init__(self) -> None:
        self.done = 0
        self.ended_s = 0.0
        self.cpu_ended_s = 0.0

    def _watch(self, queries: Any) -> None:
        log_jobs = queries.log_jobs

        async def watched(job_status: list[Any]) -> None:
            await log_jobs(job_status)
            self.done += len(job_status)
            self.ended_s = time.monotonic()
            self.cpu_ended_s = time.process_time()

        queries.log_jobs = watched

    async def _manager(self) -> Any:
        manager = PgQueuer(AsyncpgDriver(await _connect()))

        @manager.entrypoint(ENTRYPOINT)  # type: ignore[untyped-decorator]  # theirs is not here
        async def noop(job: Job) -> None:
            pass

        self._watch(manager.qm.queries)
        return manager

    async def run(self, consumers: int, batch: int) -> tuple[float, int]:
        """Until the queue is empty."""
        managers = [await self._manager() for _ in range(consumers)]
        began_s = await _ready()
        self.ended_s = began_s
        runs = [
            manager.run(batch_size=batch, mode=QueueExecutionMode.drain) for manager in managers
        ]
        await asyncio.gather(*runs)
        return began_s, self.done


async def main() -> None:
    """Parse, do, report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["install", "enqueue", "drain"])
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--consumers", type=int, default=1)
    asked = parser.parse_args()
    if asked.what == "install":
        await install()
        return
    drain = Drain()
    if asked.what == "enqueue":
        began_s, jobs = await enqueue(asked.jobs, asked.batch)
        ended_s, cpu_ended_s = time.monotonic(), time.process_time()
    else:
        began_s, jobs = await drain.run(asked.consumers, asked.batch)
        ended_s, cpu_ended_s = drain.ended_s, drain.cpu_ended_s
    cpu_s = cpu_ended_s - _cpu_before_s
    report = {"began_s": began_s, "ended_s": ended_s, "jobs": jobs, "cpu_s": cpu_s}
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    uvloop.run(main())
