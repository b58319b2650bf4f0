"""Claiming beside a backlog of one key: 10 jobs of other keys at a time, with 100,000 waiting jobs
of one key before them, and without. Once for concurrency keys, once for such keys that take turns,
and once for rate keys.

What is measured is the median claim as its caller feels it. One job of the long key runs all the
time, or has used up its rate; the others come before the jobs that are claimed, because their
priority is higher.
"""

import os
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count

import msgspec
import psycopg

from bench.harness import BrokenHistory, Options, Row, Stopwatch, interleave, say
from bench.servers import coordinator_of, durable_postgres, settle
from bench.workload import KIND, PRODUCER, QUEUE, Coordinated, Worker, check_history
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Enqueue
from tenure.core.ids import DEFAULT_NAMESPACE, ENTROPY_BYTES, ordered_job_id
from tenure.core.instants import Instant
from tenure.core.kind_settings import KindChange
from tenure.core.rates import parse_rate
from tenure.ports import Store
from tenure.stores.postgres.store import PostgresStore
from tests.support.postgres import PostgresServer

NAME = "claim-key"
LIMIT = 10
CLAIMS_PER_ROUND = 40
BATCH = 1000
WARM_UP = 20


class Keys(msgspec.Struct, frozen=True):
    """Which keys the jobs have, and what is set for their kind."""

    name: str
    field: str
    setting: KindChange | None = None


KEYS = (
    Keys("keys", "concurrency_key"),
    Keys("fair keys", "concurrency_key", KindChange(kind=KIND, fair=True)),
    Keys("rate keys", "rate_key", KindChange(kind=KIND, rate=parse_rate("rate", "1/d", 1))),
)


class Backlog:
    """A store with a backlog of one key, and a worker that claims jobs of other keys."""

    def __init__(self, coordinator: Coordinator, store: Store, dsn: str, keys: Keys) -> None:
        self._service = Coordinated(coordinator)
        self._worker = Worker(self._service, "keys")
        self._store = store
        self._dsn = dsn
        self._keys = keys
        self._numbers = count(1)
        self.jobs = 0

    def fill(self, *, waiting: int) -> None:
        """Make the backlog, and let one job of it run."""
        if self._keys.setting is not None:
            self._store.put_kind(DEFAULT_NAMESPACE, self._keys.setting)
        self._enqueue(1 + waiting, key="long", priority=5)
        if len(self._worker.claim(1)) != 1:
            raise BrokenHistory("no job of the key was claimed")
        self._enqueue(LIMIT * WARM_UP)
        for _ in range(WARM_UP):
            self._worker.claim(LIMIT)
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
        settle(self._dsn)

    def _enqueue(self, jobs: int, *, key: str | None = None, priority: int = 0) -> None:
        for begin in range(0, jobs, BATCH):
            now = self._store.now()
            self._service.report(
                [self._job(now, key, priority) for _ in range(min(BATCH, jobs - begin))]
            )
        self.jobs += jobs

    def _job(self, now: Instant, key: str | None, priority: int) -> Enqueue:
        number = next(self._numbers)
        job = Enqueue(
            job_id=ordered_job_id(now, os.urandom(ENTROPY_BYTES)),
            namespace=DEFAULT_NAMESPACE,
            queue=QUEUE,
            kind=KIND,
            actor=PRODUCER,
            priority=priority,
        )
        return msgspec.structs.replace(job, **{self._keys.field: key or f"customer-{number}"})

    def claim_ms(self) -> float:
        """The median latency of a claim."""
        self._enqueue(LIMIT * CLAIMS_PER_ROUND)
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
def backlog(server: PostgresServer, keys: Keys, *, waiting: int) -> Iterator[Backlog]:
    """A database of its own with so many waiting jobs of one key."""
    with ExitStack() as stack:
        dsn = server.create_database()
        stack.callback(server.drop_database, dsn)
        store = PostgresStore(dsn, migrate=True)
        stack.callback(store.close)
        made = Backlog(stack.enter_context(coordinator_of(store)), store, dsn, keys)
        say(f"  enqueueing {waiting:,} jobs of one key")
        made.fill(waiting=waiting)
        yield made


def run(options: Options) -> list[Row]:
    """With the backlog beside without: the ratio of latencies should stay near one."""
    with durable_postgres() as server:
        return [_beside(options, server, keys) for keys in KEYS]


def _beside(options: Options, server: PostgresServer, keys: Keys) -> Row:
    many = options.sized(100_000, 20_000)
    with (
        backlog(server, keys, waiting=0) as without,
        backlog(server, keys, waiting=many) as beside,
    ):
        figures = interleave(
            {"beside": beside.claim_ms, "without": without.claim_ms}, rounds=options.rounds
        )
        beside.check()
        without.check()
    return Row(
        scenario=f"PostgreSQL: claim {LIMIT} jobs of other {keys.name} beside {many:,} of one",
        ours=figures["beside"],
        theirs=figures["without"],
        unit="ms",
        peer="the same without them",
        at_most=2.0,
    )
