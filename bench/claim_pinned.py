"""Claims while a snapshot is held open, so that PostgreSQL can remove nothing of what was claimed.

One worker drains a queue, 200 jobs a call. A row compares the median claim at the end of the drain
with that at its beginning: once as it is, once with a store that always reads from the front. As it
is, claims read from the front once a second. On a machine on which few claims fit into a second,
many of them do: each round says how many, so that slowness is not taken for a fault.
"""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from bench.harness import BrokenHistory, Figure, Options, Row, Stopwatch, say
from bench.servers import coordinator_of, durable_postgres, settle
from bench.workload import KIND, Coordinated, Worker, check_history, enqueue
from tenure.core.claims import ClaimScope
from tenure.core.vocabulary import JobStatus
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.claim_marks import ClaimMarks, MarkedClaim
from tests.support.postgres import PostgresServer

NAME = "claim-pinned"
LIMIT = 200
SHARE = 20
"""The first and the last twentieth of the claims are compared."""


class CountedMarks(ClaimMarks):
    """Marks that note for each claim whether it began at one."""

    def __init__(self) -> None:
        super().__init__()
        self.began_at_mark: list[bool] = []

    @contextmanager
    def claim(self, scope: ClaimScope) -> Iterator[MarkedClaim]:
        """See `ClaimMarks`."""
        with super().claim(scope) as claim:
            self.began_at_mark.append(bool(claim.begins_at))
            yield claim


def run(options: Options) -> list[Row]:
    """With marks and without them, in turns."""
    jobs = options.sized(100_000, 20_000)
    figures: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with durable_postgres() as server:
        for number in range(options.rounds):
            for has_marks in (True, False):
                first_ms, last_ms = _drained(server, jobs=jobs, has_marks=has_marks)
                figures[has_marks].append((first_ms, last_ms))
                name = "from the mark" if has_marks else "from the front"
                say(f"  round {number + 1}  {name}: {first_ms:.1f} ms, then {last_ms:.1f} ms")
    return [_row(jobs, has_marks, figures[has_marks]) for has_marks in (True, False)]


def _row(jobs: int, has_marks: bool, measured: list[tuple[float, float]]) -> Row:
    where = "" if has_marks else ", always from the front"
    return Row(
        scenario=f"PostgreSQL: claim {LIMIT} after {jobs:,} jobs under a held snapshot{where}",
        ours=Figure(tuple(last for _, last in measured)),
        theirs=Figure(tuple(first for first, _ in measured)),
        unit="ms",
        peer="the first claims of the drain",
        at_most=1.5 if has_marks else None,
    )


def _drained(server: PostgresServer, *, jobs: int, has_marks: bool) -> tuple[float, float]:
    """The median milliseconds of the first claims of a drain, and of the last."""
    dsn = server.create_database()
    store = PostgresStore(dsn, migrate=True)
    marks = store._claim_marks = CountedMarks() if has_marks else None
    try:
        with coordinator_of(store) as coordinator:
            service = Coordinated(coordinator)
            enqueue(service, jobs=jobs, batch=1000)
            settle(dsn)
            with _held_snapshot(dsn):
                latencies = _claims_ms(Worker(service, "pinned", kinds=(KIND,)), jobs)
        check_history(store, jobs=jobs, status=JobStatus.SUCCEEDED)
    finally:
        store.close()
        server.drop_database(dsn)
    some = len(latencies) // SHARE
    if marks is not None:
        from_front = marks.began_at_mark[-some:].count(False)
        say(f"  {from_front} of the last {some} claims began at the front")
    return statistics.median(latencies[:some]), statistics.median(latencies[-some:])


def _claims_ms(worker: Worker, jobs: int) -> list[float]:
    latencies = []
    for _ in range(jobs // LIMIT):
        with Stopwatch() as watch:
            grants = worker.claim(LIMIT)
        if len(grants) != LIMIT:
            raise BrokenHistory(f"{len(grants)} of {LIMIT} jobs were claimed")
        worker.finish(grants)
        latencies.append(watch.elapsed_s * 1000)
    return latencies


@contextmanager
def _held_snapshot(dsn: str) -> Iterator[None]:
    with psycopg.connect(dsn) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM tenure.meta")
        yield
