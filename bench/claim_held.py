"""Claiming past a backlog that a rate holds back: one job at a time, by four workers at once.

The workers can run two kinds. Beside a store that has only jobs of the one kind, there is one that
also has many jobs of the other, which wait for a rate of one a day; what is measured is the median
claim as its caller feels it.
"""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from msgspec.structs import replace

from bench.harness import BrokenHistory, Options, Row, Stopwatch, interleave, say
from bench.servers import coordinator_of, durable_postgres, settle
from bench.workload import KIND, Coordinated, Worker, accepted, enqueue, in_threads, new_jobs
from tenure.core.ids import DEFAULT_NAMESPACE, Kind
from tenure.core.kind_settings import KindChange
from tenure.core.rates import parse_rate
from tenure.stores.postgres.store import PostgresStore
from tests.support.postgres import PostgresServer

NAME = "claim-held"
HELD = Kind("held-by-a-rate")
WORKERS = 4
CLAIMS_PER_ROUND = 100


class Claims:
    """Workers that claim one job at a time of either kind."""

    def __init__(self, service: Coordinated) -> None:
        self._service = service
        self._workers = [
            Worker(service, f"claimer-{number}", kinds=(HELD, KIND)) for number in range(WORKERS)
        ]

    def claim_ms(self) -> float:
        """The median latency of a claim."""
        enqueue(self._service, jobs=WORKERS * CLAIMS_PER_ROUND, batch=500)
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


@contextmanager
def claims(server: PostgresServer, *, held: int) -> Iterator[Claims]:
    """A database of its own in which so many jobs wait for a rate."""
    with ExitStack() as stack:
        dsn = server.create_database()
        stack.callback(server.drop_database, dsn)
        store = PostgresStore(dsn, migrate=True)
        stack.callback(store.close)
        service = Coordinated(stack.enter_context(coordinator_of(store)))
        if held:
            say(f"  enqueueing {held:,} jobs that a rate holds back")
            rate = parse_rate("rate", "1/d", 1)
            store.put_kind(DEFAULT_NAMESPACE, KindChange(kind=HELD, rate=rate))
            for start in range(0, held, 1000):
                jobs = new_jobs(min(1000, held - start))
                accepted(service.report([replace(job, kind=HELD, priority=1) for job in jobs]))
            Worker(service, "first", kinds=(HELD,)).claim(1)
            settle(dsn)
        yield Claims(service)


def run(options: Options) -> list[Row]:
    """With a backlog beside none: the ratio of latencies should stay below two. [RL8]"""
    many = options.sized(100_000, 20_000)
    with (
        durable_postgres() as server,
        claims(server, held=0) as free,
        claims(server, held=many) as behind,
    ):
        figures = interleave(
            {"behind": behind.claim_ms, "free": free.claim_ms}, rounds=options.rounds
        )
    return [
        Row(
            scenario=f"PostgreSQL: claim past {many:,} jobs that a rate holds back",
            ours=figures["behind"],
            theirs=figures["free"],
            unit="ms",
            peer="the same without them",
            at_most=2.0,
        )
    ]
