"""Claiming from a deep queue: 50 jobs at a time, with 1M queued and 1M finished beside 10k.

Rows are copied in bulk by SQL from two template jobs that went through the coordinator, events
included; what is measured is the median claim as its caller feels it.
"""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psycopg
from psycopg import sql

from bench.harness import BrokenHistory, Options, Row, Stopwatch, interleave, say
from bench.servers import coordinator_of, durable_postgres, settle
from bench.workload import Coordinated, Worker, check_history, enqueue
from tenure.coordinator.service import Coordinator
from tenure.core.vocabulary import JobStatus
from tenure.ports import Store
from tenure.stores.postgres.store import PostgresStore
from tenure.verify import check_record
from tests.support.postgres import PostgresServer

NAME = "claim-depth"
LIMIT = 50
CLAIMS_PER_ROUND = 40
SHALLOW = 10_000
SAMPLE = 2_000


class Depth:
    """A store with many jobs, and a worker that claims from it."""

    def __init__(self, coordinator: Coordinator, store: Store, dsn: str) -> None:
        self._service = Coordinated(coordinator)
        self._worker = Worker(self._service, "deep")
        self._store = store
        self._dsn = dsn

    def fill(self, *, queued: int, finished: int) -> None:
        """Make it this deep."""
        enqueue(self._service, jobs=1, batch=1)
        self._worker.run_batch(1)
        _copy(self._dsn, status=JobStatus.SUCCEEDED, first=1, copies=finished)
        enqueue(self._service, jobs=1, batch=1)
        _copy(self._dsn, status=JobStatus.QUEUED, first=finished + 1, copies=queued)
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("VACUUM (ANALYZE)")
        settle(self._dsn)

    def claim_ms(self) -> float:
        """The median latency of a claim; the queue is filled up again afterwards."""
        latencies = []
        for _ in range(CLAIMS_PER_ROUND):
            with Stopwatch() as watch:
                claimed = self._worker.claim(LIMIT)
            if len(claimed) != LIMIT:
                raise BrokenHistory(f"{len(claimed)} of {LIMIT} jobs were claimed")
            latencies.append(watch.elapsed_s * 1000)
        enqueue(self._service, jobs=LIMIT * CLAIMS_PER_ROUND, batch=1000)
        return statistics.median(latencies)

    def check_sample(self) -> None:
        """The invariants over the first records, the claimed ones among them."""
        for number, record in enumerate(self._store.audit.records(page_size=500)):
            violations = list(check_record(record, ()))
            if violations:
                raise BrokenHistory(f"after a run: {violations[0]}")
            if number >= SAMPLE:
                return

    def check_all(self, jobs: int) -> None:
        """Every invariant over everything."""
        check_history(self._store, jobs=jobs)


@contextmanager
def depth(server: PostgresServer, *, queued: int, finished: int) -> Iterator[Depth]:
    """A database of its own with so many jobs."""
    with ExitStack() as stack:
        dsn = server.create_database()
        stack.callback(server.drop_database, dsn)
        store = PostgresStore(dsn, migrate=True)
        stack.callback(store.close)
        coordinator = stack.enter_context(coordinator_of(store))
        made = Depth(coordinator, store, dsn)
        say(f"  loading {queued:,} queued and {finished:,} finished jobs")
        made.fill(queued=queued, finished=finished)
        yield made


def run(options: Options) -> list[Row]:
    """Deep beside shallow: the ratio of latencies should stay near one."""
    many = options.sized(1_000_000, 100_000)
    with (
        durable_postgres() as server,
        depth(server, queued=SHALLOW, finished=0) as shallow,
        depth(server, queued=many, finished=many) as deep,
    ):
        figures = interleave(
            {"deep": deep.claim_ms, "shallow": shallow.claim_ms}, rounds=options.rounds
        )
        deep.check_sample()
        shallow.check_all(SHALLOW + 2 + options.rounds * CLAIMS_PER_ROUND * LIMIT)
    return [
        Row(
            scenario=f"PostgreSQL: claim {LIMIT} of {many:,} queued beside {many:,} finished",
            ours=figures["deep"],
            theirs=figures["shallow"],
            unit="ms",
            peer=f"the same with {SHALLOW:,} queued",
            at_most=2.0,
        )
    ]


def _copy(dsn: str, *, status: JobStatus, first: int, copies: int) -> None:
    """Copies of the one job in `status` and of its events, under ids that follow from a number."""
    new_id = sql.SQL(
        "(lpad(to_hex(n), 8, '0') || '-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid"
    )
    if copies == 0:
        return
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT id FROM tenure.job WHERE status = %s", [status.value]
        ).fetchone()
        assert found is not None
        for table, key in (("job_event", "job_id"), ("job", "id")):
            columns = _columns(connection, table, key)
            names = sql.SQL(", ").join(map(sql.Identifier, columns))
            statement = sql.SQL(
                "INSERT INTO {table} ({key}, {names}) SELECT {new_id}, {names} FROM {table},"
                " generate_series({first}::int, {last}::int) AS n WHERE {key} = {template}"
            ).format(
                table=sql.Identifier("tenure", table),
                key=sql.Identifier(key),
                names=names,
                new_id=new_id,
                first=sql.Literal(first),
                last=sql.Literal(first + copies - 1),
                template=sql.Literal(found[0]),
            )
            connection.execute(statement)


def _columns(connection: psycopg.Connection, table: str, key: str) -> list[str]:
    rows = connection.execute(
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema = 'tenure' AND table_name = %s"
        " AND is_generated = 'NEVER' AND column_name <> %s",
        [table, key],
    ).fetchall()
    return [name for (name,) in rows]
