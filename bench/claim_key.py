"""Claiming beside a backlog that keys hold back: 10 jobs of other keys at a time, with 100,000 jobs
that wait before them, and without. The backlog is of one key, or of 10,000 keys with 10 jobs each.

Once for concurrency keys, and once for rate keys; on both databases. What is measured is the median
claim as its caller feels it. Every key of the backlog is at its limit, or has used up its rate, all
the time; its jobs come before those that are claimed, because their priority is higher.
"""

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from itertools import count

import msgspec
import psycopg

from bench.harness import BrokenHistory, Options, Row, Stopwatch, interleave, say
from bench.servers import coordinator_of, durable_postgres, scratch_directory, settle
from bench.workload import KIND, PRODUCER, QUEUE, Coordinated, Worker, check_history
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Enqueue
from tenure.core.ids import DEFAULT_NAMESPACE, ENTROPY_BYTES, ordered_job_id
from tenure.core.instants import Instant
from tenure.core.kind_settings import KindChange
from tenure.core.rates import parse_rate
from tenure.ports import Store
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore
from tests.support.postgres import PostgresServer

NAME = "claim-key"
LIMIT = 10
CLAIMS_PER_ROUND = 40
BATCH = 1000
WARM_UP = 20
JOBS_PER_KEY = 10
"""Of the backlog of many keys."""


class Keys(msgspec.Struct, frozen=True):
    """Which keys the jobs have, and what is set for their kind."""

    name: str
    field: str
    setting: KindChange | None = None


KEYS = (
    Keys("concurrency keys", "concurrency_key"),
    Keys("rate keys", "rate_key", KindChange(kind=KIND, rate=parse_rate("rate", "1/d", 1))),
)


class Shape(msgspec.Struct, frozen=True):
    """So many jobs that wait, of so many keys."""

    keys: int
    waiting: int


class Place(msgspec.Struct, frozen=True):
    """A new, empty store, and what brings its statistics up to date."""

    store: Store
    settle: Callable[[], None]


class Backlog:
    """A store with a backlog, and a worker that claims jobs of other keys."""

    def __init__(self, coordinator: Coordinator, place: Place, keys: Keys) -> None:
        self._service = Coordinated(coordinator)
        self._worker = Worker(self._service, "keys", kinds=(KIND,))
        self._store = place.store
        self._settle = place.settle
        self._keys = keys
        self._numbers = count(1)
        self.jobs = 0

    def fill(self, shape: Shape) -> None:
        """Make the backlog, and let one job of each of its keys run."""
        if self._keys.setting is not None:
            self._store.settings.put_kind(DEFAULT_NAMESPACE, self._keys.setting)
        names = [f"held-{number}" for number in range(shape.keys)]
        more = shape.waiting // max(1, shape.keys)
        self._enqueue([name for name in names for _ in range(1 + more)], priority=5)
        running = 0
        while running < shape.keys:
            granted = len(self._worker.claim(BATCH))
            if not granted:
                raise BrokenHistory(f"{running} jobs of {shape.keys} keys were claimed")
            running += granted
        self._enqueue(self._others(LIMIT * WARM_UP))
        for _ in range(WARM_UP):
            self._worker.claim(LIMIT)
        self._settle()

    def _others(self, jobs: int) -> list[str]:
        return [f"customer-{next(self._numbers)}" for _ in range(jobs)]

    def _enqueue(self, keys: list[str], *, priority: int = 0) -> None:
        for begin in range(0, len(keys), BATCH):
            now = self._store.now()
            self._service.report(
                [self._job(now, key, priority) for key in keys[begin : begin + BATCH]]
            )
        self.jobs += len(keys)

    def _job(self, now: Instant, key: str, priority: int) -> Enqueue:
        job = Enqueue(
            job_id=ordered_job_id(now, os.urandom(ENTROPY_BYTES)),
            namespace=DEFAULT_NAMESPACE,
            queue=QUEUE,
            kind=KIND,
            actor=PRODUCER,
            priority=priority,
        )
        return msgspec.structs.replace(job, **{self._keys.field: key})

    def claim_ms(self) -> float:
        """The median latency of a claim."""
        self._enqueue(self._others(LIMIT * CLAIMS_PER_ROUND))
        latencies = []
        for _ in range(CLAIMS_PER_ROUND):
            with Stopwatch() as watch:
                claimed = self._worker.claim(LIMIT)
            if len(claimed) != LIMIT:
                raise BrokenHistory(f"{len(claimed)} of {LIMIT} jobs were claimed")
            latencies.append(watch.elapsed_s * 1000)
        return statistics.median(latencies)

    def check(self) -> None:
        """Every invariant over everything."""
        check_history(self._store, jobs=self.jobs)


@contextmanager
def in_postgres(server: PostgresServer) -> Iterator[Place]:
    """A database of its own."""
    with ExitStack() as stack:
        dsn = server.create_database()
        stack.callback(server.drop_database, dsn)
        store = PostgresStore(dsn, migrate=True)
        stack.callback(store.close)

        def vacuumed() -> None:
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("VACUUM")
            settle(dsn)

        yield Place(store, vacuumed)


@contextmanager
def in_sqlite() -> Iterator[Place]:
    """A file of its own."""
    with scratch_directory() as directory:
        store = SqliteStore(directory / "tenure.db")
        try:
            yield Place(store, lambda: None)
        finally:
            store.close()


@contextmanager
def backlog(place: Place, keys: Keys, shape: Shape) -> Iterator[Backlog]:
    """A store with a backlog of this shape."""
    with coordinator_of(place.store) as coordinator:
        made = Backlog(coordinator, place, keys)
        say(f"  enqueueing {shape.waiting:,} jobs of {shape.keys:,} {keys.name}")
        made.fill(shape)
        yield made


def run(options: Options) -> list[Row]:
    """With each backlog beside without: the ratio of latencies should stay near one. [CK11]"""
    with durable_postgres() as server:
        rows = [
            row
            for keys in KEYS
            for row in rows_of("PostgreSQL", partial(in_postgres, server), keys, options)
        ]
    return rows + [row for keys in KEYS for row in rows_of("SQLite", in_sqlite, keys, options)]


def rows_of(
    database: str,
    opening: Callable[[], AbstractContextManager[Place]],
    keys: Keys,
    options: Options,
) -> list[Row]:
    """A row for each backlog."""
    many = options.sized(100_000, 20_000)
    shapes = {
        "without": Shape(0, 0),
        f"{many:,} of one": Shape(1, many),
        f"{JOBS_PER_KEY} of each of {many // JOBS_PER_KEY:,}": Shape(many // JOBS_PER_KEY, many),
    }
    with ExitStack() as stack:
        places = {name: stack.enter_context(opening()) for name in shapes}
        backlogs = {
            name: stack.enter_context(backlog(places[name], keys, shape))
            for name, shape in shapes.items()
        }
        figures = interleave(
            {name: each.claim_ms for name, each in backlogs.items()}, rounds=options.rounds
        )
        for each in backlogs.values():
            each.check()
    without = figures.pop("without")
    return [
        Row(
            scenario=f"{database}: claim {LIMIT} jobs of other {keys.name} beside {name}",
            ours=figure,
            theirs=without,
            unit="ms",
            peer="the same without them",
            at_most=2.0,
        )
        for name, figure in figures.items()
    ]
