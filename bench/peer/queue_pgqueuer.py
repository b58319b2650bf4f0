"""PgQueuer: what `pgq run` starts, and its `Queries.enqueue` as a producer.

asyncpg and uvloop, as its documentation recommends; an entrypoint without limits of concurrency.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import uvloop
from marks import mark
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

ENTRYPOINT = "noop"
DSN = "BENCH_URL"


@asynccontextmanager
async def manager() -> AsyncIterator[PgQueuer]:
    """For `pgq run queue_pgqueuer:manager`."""
    connection = await asyncpg.connect(dsn=os.environ[DSN])
    queuer = PgQueuer(AsyncpgDriver(connection))

    @queuer.entrypoint(ENTRYPOINT)  # type: ignore[untyped-decorator]  # PgQueuer is not here
    async def noop(job: Job) -> None:
        mark(int(job.payload or b"0"))

    try:
        yield queuer
    finally:
        await connection.close()


class _Producer:
    """A connection and the event loop that it belongs to, made by the first call."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._queries: Any = None

    async def _enqueue(self, payloads: list[bytes]) -> None:
        if self._queries is None:
            connection = await asyncpg.connect(dsn=os.environ[DSN])
            self._queries = Queries(AsyncpgDriver(connection))
        size = len(payloads)
        await self._queries.enqueue([ENTRYPOINT] * size, payloads, [0] * size)

    def send(self, payloads: list[bytes]) -> None:
        """One statement, one transaction."""
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._enqueue(payloads))


_producer = _Producer()


def enqueue_one(sent_ns: int) -> None:
    """One durable job."""
    _producer.send([b"%d" % sent_ns])


def enqueue_many(number: int) -> None:
    """One call for all."""
    _producer.send([b"0"] * number)
