"""Claiming past a backlog that a rate or a limit holds back: one job at a time, by four workers at
once.

The workers can run two kinds of two queues. Beside a store that has only jobs of one kind, there
are stores that also have many jobs that wait. Some wait for a rate of one a day: that of the other
kind, that of the other queue, or that of a rate key of the other kind. Others wait for a limit of
one: that of the other queue, or that of a concurrency key. What is measured is the median claim as
its caller feels it, on both databases.
"""

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import msgspec
from msgspec.structs import replace

from bench.claim_key import Place, in_postgres, in_sqlite
from bench.harness import BrokenHistory, Options, Row, Stopwatch, interleave, say
from bench.servers import coordinator_of, durable_postgres
from bench.workload import (
    KIND,
    QUEUE,
    Coordinated,
    Worker,
    accepted,
    check_history,
    enqueue,
    in_threads,
    new_jobs,
)
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, QueueName
from tenure.core.kind_settings import KindChange
from tenure.core.rates import Rate, parse_rate
from tenure.ports import Store

NAME = "claim-held"
HELD = Kind("held")
HELD_QUEUE = QueueName("held")
RATE = parse_rate("rate", "1/d", 1)
WORKERS = 4
CLAIMS_PER_ROUND = 100
BATCH = 1000


class Held(msgspec.Struct, frozen=True):
    """Which jobs wait, and for what."""

    name: str
    queue: QueueName = QUEUE
    kind_rate: Rate | None = None
    queue_rate: Rate | None = None
    queue_limit: int | None = None
    rate_key: str | None = None
    concurrency_key: str | None = None

    def set_up(self, store: Store) -> None:
        """Set what holds them back. A concurrency key has a limit of one if nothing is set."""
        if self.kind_rate is not None:
            store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=HELD, rate=self.kind_rate))
        if self.queue == HELD_QUEUE:
            store.settings.put_queue(
                DEFAULT_NAMESPACE,
                self.queue,
                paused=None,
                limit=self.queue_limit,
                rate=self.queue_rate,
            )


HOLDS = (
    Held("a rate of their kind", kind_rate=RATE),
    Held("a rate of their queue", queue=HELD_QUEUE, queue_rate=RATE),
    Held("the rate of their rate key", kind_rate=RATE, rate_key="hot"),
    Held("the limit of their queue", queue=HELD_QUEUE, queue_limit=1),
    Held("the limit of their concurrency key", concurrency_key="hot"),
)


class Claims:
    """Workers that claim one job at a time of either kind and queue."""

    def __init__(self, service: Coordinated, store: Store) -> None:
        self._service = service
        self._store = store
        self._workers = [
            Worker(service, f"claimer-{number}", kinds=(HELD, KIND), queues=(QUEUE, HELD_QUEUE))
            for number in range(WORKERS)
        ]
        self.jobs = 0

    def hold(self, held: Held, *, waiting: int) -> None:
        """Make so many jobs wait, after one that uses up the rate or the limit."""
        held.set_up(self._store)
        shape = {
            "kind": HELD,
            "queue": held.queue,
            "rate_key": held.rate_key,
            "concurrency_key": held.concurrency_key,
            "priority": 1,
        }
        for start in range(0, 1 + waiting, BATCH):
            jobs = new_jobs(min(BATCH, 1 + waiting - start))
            accepted(self._service.report([replace(job, **shape) for job in jobs]))
        self.jobs += 1 + waiting
        if len(self._workers[0].claim(2)) != 1:
            raise BrokenHistory(f"{held.name} does not hold them back")

    def claim_ms(self) -> float:
        """The median latency of a claim."""
        enqueue(self._service, jobs=WORKERS * CLAIMS_PER_ROUND, batch=500)
        self.jobs += WORKERS * CLAIMS_PER_ROUND
        latencies: list[float] = []

        def work(number: int) -> None:
            for _ in range(CLAIMS_PER_ROUND):
                with Stopwatch() as watch:
                    claimed = self._workers[number].claim(1)
                if len(claimed) != 1:
                    raise BrokenHistory(f"{len(claimed)} jobs were claimed instead of one")
                latencies.append(watch.elapsed_s * 1000)

        in_threads(WORKERS, work)
        return statistics.median(latencies)

    def check(self) -> None:
        """Every invariant over everything."""
        check_history(self._store, jobs=self.jobs)


@contextmanager
def claims(place: Place, held: Held | None, *, waiting: int) -> Iterator[Claims]:
    """A store in which so many jobs wait, or none."""
    with coordinator_of(place.store) as coordinator:
        made = Claims(Coordinated(coordinator), place.store)
        if held is not None:
            say(f"  enqueueing {waiting:,} jobs that {held.name} holds back")
            made.hold(held, waiting=waiting)
            place.settle()
        yield made


def run(options: Options) -> list[Row]:
    """With each backlog beside none: the ratio of latencies should stay below two. [RL8]
    [CK4]"""
    with durable_postgres() as server:
        rows = rows_of("PostgreSQL", partial(in_postgres, server), options)
    return rows + rows_of("SQLite", in_sqlite, options)


def rows_of(
    database: str, opening: Callable[[], AbstractContextManager[Place]], options: Options
) -> list[Row]:
    """A row for each backlog."""
    many = options.sized(100_000, 20_000)
    with ExitStack() as stack:
        made = {
            held: stack.enter_context(claims(stack.enter_context(opening()), held, waiting=many))
            for held in (None, *HOLDS)
        }
        figures = interleave(
            {"free" if held is None else held.name: each.claim_ms for held, each in made.items()},
            rounds=options.rounds,
        )
        for each in made.values():
            each.check()
    return [
        Row(
            scenario=f"{database}: claim past {many:,} jobs that {held.name} holds back",
            ours=figures[held.name],
            theirs=figures["free"],
            unit="ms",
            peer="the same without them",
            at_most=2.0,
        )
        for held in HOLDS
    ]
