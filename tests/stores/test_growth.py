"""What is asked all the time costs the same on a large store as on a small one.

Work is counted, not timed: PostgreSQL says how many pages a statement read, SQLite how many steps
its virtual machine took.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias, cast

import psycopg
import pytest
from msgspec.structs import replace

from tenure.core.claims import ClaimPlan, ClaimRequest, ClaimScope, ClaimView
from tenure.core.commands import Enqueue
from tenure.core.concurrency import Key, Lane
from tenure.core.ids import DEFAULT_NAMESPACE, Actor, Epoch, Kind, QueueName, new_job_id
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.job import Job
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.rates import NOTHING_GRANTED, kind_meter, parse_rate
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import JobStatus
from tenure.ports import NO_WAIT
from tenure.stores.postgres.claims import PostgresClaimDialect
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql import depths
from tenure.stores.sql.candidates import Reading
from tenure.stores.sql.claim_dialect import MAX_DIRTY_KEYS, ClaimDialect
from tenure.stores.sql.database import Transaction
from tenure.stores.sql.depths import SqlDepths
from tenure.stores.sql.rows import WITH_BODIES, Row
from tenure.stores.sql.statements import Query
from tenure.stores.sqlite.claims import SqliteClaimDialect
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.stores.lives import QUEUE, change, claim_request, planner, save, start
from tests.support.counted_work import pages_read, queries_of, steps_taken
from tests.support.postgres import PostgresServer

SIZES = [(500, 2_500), pytest.param((1_000, 10_000), marks=pytest.mark.proof)]
"""How many jobs are ready, and how many are delayed, in the small store and in the large one."""

BATCH = 500

READY, RARE, DELAYED, MISSING = "ready", "rare", "delayed", "missing"
KEYED, RATED, WORKING = "keyed", "rated", "working"
KEYS = (Key(Kind(KEYED), False, "hot"), Key(Kind(KEYED), False, "other"))
RATE_KEYS = (Key(Kind(RATED), True, "hot"), Key(Kind(RATED), True, "other"))
QUIET, BUSY = QueueName("quiet"), QueueName("busy")
HERE = DEFAULT_NAMESPACE

COMMON_STATUSES = (JobStatus.QUEUED, JobStatus.RUNNING, JobStatus.SUCCEEDED)
RARE_STATUSES = tuple(status for status in JobStatus if status not in COMMON_STATUSES)

AnyStore: TypeAlias = PostgresStore | SqliteStore


def _fill(store: AnyStore, jobs: int) -> None:
    """As many ready jobs as delayed ones of a higher priority, which expire later, a ready one of a
    rare kind behind them all, an older job in a queue of its own, as many jobs of one
    concurrency key before one of another key, the same with rate keys, and as many running jobs in
    another queue."""
    _enqueue(store, 1, RARE, queue=QUIET)
    _enqueue(store, jobs, READY)
    _enqueue(store, jobs, DELAYED, priority=5, delay_us=seconds(3600), expires_us=seconds(60))
    _enqueue(store, 1, RARE, priority=-5)
    _enqueue(store, jobs, KEYED, key="hot")
    _enqueue(store, 1, KEYED, key="other")
    store.settings.put_kind(HERE, KindChange(kind=Kind(RATED), rate=parse_rate("rate", "1/d", 3)))
    _enqueue(store, jobs, RATED, rate_key="hot")
    _enqueue(store, 1, RATED, rate_key="other")
    scope = ClaimScope(namespace=HERE, queues=(QUEUE,), kinds=(Kind(KEYED), Kind(RATED)))
    store.claims.claim(scope, [], 1, lambda _: ClaimPlan(changes=(), sessions=(), answers=()))
    _enqueue(store, jobs, WORKING, queue=BUSY)
    for seq in range(1, jobs // BATCH + 1):
        asked = replace(claim_request(BATCH, seq=seq), queues=(BUSY,), kinds=(Kind(WORKING),))
        start(store, _granted(store, asked))


def _granted(store: AnyStore, asked: ClaimRequest) -> list[Job]:
    planned = store.claims.claim(asked.scope, [asked.session], asked.limit, planner(asked))
    assert len(planned.changes) == asked.limit
    return [each.job for each in planned.changes]


def _enqueue(
    store: AnyStore,
    jobs: int,
    kind: str,
    *,
    queue: QueueName = QUEUE,
    priority: int = 0,
    delay_us: Duration = NO_WAIT,
    expires_us: Duration | None = None,
    key: str | None = None,
    rate_key: str | None = None,
) -> None:
    for begin in range(0, jobs, 1000):
        now = store.now()
        save(
            store,
            [
                change(
                    None,
                    Enqueue(
                        job_id=new_job_id(now, os.urandom(16)),
                        namespace=HERE,
                        queue=queue,
                        kind=Kind(kind),
                        actor=Actor("client:c"),
                        payload=b"1",
                        priority=priority,
                        delay_us=delay_us,
                        expires_us=expires_us,
                        concurrency_key=key,
                        rate_key=rate_key,
                    ),
                    now,
                )
                for _ in range(min(1000, jobs - begin))
            ],
        )


def _claim(*kinds: str) -> Callable[[AnyStore], Sequence[Query]]:
    named = tuple(map(Kind, kinds))
    scope = ClaimScope(namespace=HERE, queues=(QUEUE,), kinds=named)
    return lambda store: store.candidates.queries(Reading.of_all(scope, {QUEUE: named}, 10))


def _claim_past(held: str, *kinds: str) -> Callable[[AnyStore], Sequence[Query]]:
    """A claim of several kinds, of which one waits for its rate. [RL8]"""
    named = tuple(map(Kind, (held, *kinds)))
    scope = ClaimScope(namespace=HERE, queues=(QUEUE,), kinds=named)
    rate = parse_rate("rate", "1/d")

    def queries(store: AnyStore) -> Sequence[Query]:
        now = store.now()
        view = ClaimView(
            now=now,
            epoch=Epoch(1),
            sessions={},
            queues={},
            candidates=(),
            kinds={Kind(held): KindSettings(kind=Kind(held), rate=rate)},
            rate_states={kind_meter(Kind(held)): rate.after(NOTHING_GRANTED, now)},
        )
        reading = Reading.within(scope, {QUEUE: named}, {Kind(held)}, view.room, 10)
        assert (Kind(held), Lane.OPEN.value) not in reading.places[QUEUE]
        return store.candidates.queries(reading)

    return queries


class Recorded:
    """A transaction that keeps what it is asked."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.queries: list[Query] = []

    def fetch(self, *queries: Query, last: bool = False) -> list[list[Row]]:
        self.queries += queries
        return self._tx.fetch(*queries, last=last)


def _dialect_of(store: AnyStore) -> ClaimDialect:
    if isinstance(store, PostgresStore):
        return PostgresClaimDialect(store.database)
    return SqliteClaimDialect(store.database)


def _jobs_of(keys: Sequence[Key]) -> Callable[[AnyStore], Sequence[Query]]:
    """What is read to decide about these keys."""

    def queries(store: AnyStore) -> Sequence[Query]:
        def read(tx: Transaction) -> list[Query]:
            recorded = Recorded(tx)
            of_keys = dict.fromkeys(keys, 1)
            is_rate = keys[0].is_rate
            shape = store.admission.key_shapes[is_rate]
            dialect = _dialect_of(store)
            dialect.jobs_of_keys(recorded, shape, HERE, of_keys, store.now(), is_rate=is_rate)
            return recorded.queries

        return store.database.read(read)

    return queries


def _listed(store: AnyStore, **wanted: Any) -> Sequence[Query]:
    return queries_of(store, lambda: store.views.jobs(JobFilter(namespace=HERE, **wanted)))


ASKED: dict[str, Callable[[AnyStore], Sequence[Query]]] = {
    "claim of a kind": _claim(READY),
    "claim of a kind that the queue does not have": _claim(MISSING),
    "claim of a kind behind all others": _claim(RARE),
    "claim of several kinds": _claim(RARE, MISSING, READY, DELAYED),
    "claim of delayed jobs": _claim(DELAYED),
    "claim past jobs that wait for a rate": _claim_past(READY, RARE, MISSING),
    "jobs of concurrency keys": _jobs_of(KEYS),
    "jobs of rate keys": _jobs_of(RATE_KEYS),
    "how long rate keys wait": lambda store: [
        store.database.query("rate_waits", namespace=HERE, kinds=store.database.pack([RATED]))
    ],
    "whether keys are dirty": lambda store: [
        store.claims.moment_query(ClaimScope(namespace=HERE, queues=(QUEUE,), kinds=named))
        for named in ((Kind(KEYED), Kind(RATED)), None)
    ],
    "leases that are over and jobs that have expired": lambda store: [
        store.database.query("due", WITH_BODIES, limit=500)
    ],
    "kinds that wait": lambda store: [
        store.database.query("waiting_kinds", namespace=HERE, queue=QUEUE),
    ],
    "queues to measure": lambda store: [
        store.database.query("measured_queues", namespace=HERE, queues=100)
    ],
    "oldest ready job": lambda store: [
        SqlDepths(store.database).oldest(depths.READY, HERE, [QUEUE])
    ],
    "next delayed job": lambda store: [
        SqlDepths(store.database).oldest(sort, HERE, [QUEUE])
        for sort in (depths.DELAYED, depths.NOT_DUE)
    ],
    "newest jobs": lambda store: _listed(store),
    "jobs before one": lambda store: _listed(store, before=new_job_id(store.now(), bytes(10))),
    "jobs that were enqueued in a span of time": lambda store: _listed(
        store, enqueued_since=Instant(1), enqueued_until=Instant(2)
    ),
    "jobs of a kind that none has": lambda store: _listed(store, kind=Kind(MISSING)),
    "jobs of a queue that none has": lambda store: _listed(store, queue=QueueName(MISSING)),
    "jobs of a rare kind": lambda store: _listed(store, kind=Kind(RARE)),
    "jobs of a quiet queue": lambda store: _listed(store, queue=QUIET),
    "jobs that succeeded, of which there are none": lambda store: _listed(
        store, statuses=(JobStatus.SUCCEEDED,)
    ),
    "jobs that wait, behind others": lambda store: [
        query
        for statuses in ((JobStatus.QUEUED,), (JobStatus.QUEUED, JobStatus.FAILED))
        for query in _listed(store, statuses=statuses)
    ],
    "jobs that did not succeed": lambda store: [
        query for status in RARE_STATUSES for query in _listed(store, statuses=(status,))
    ],
    "jobs that did not succeed, of several statuses": lambda store: _listed(
        store, statuses=RARE_STATUSES
    ),
    "running jobs": lambda store: _listed(store, statuses=(JobStatus.RUNNING,)),
    "running jobs, and jobs of other statuses": lambda store: _listed(
        store, statuses=tuple(JobStatus)
    ),
    "running jobs of a kind that has none": lambda store: _listed(
        store, kind=Kind(READY), statuses=(JobStatus.RUNNING,)
    ),
    "jobs of a status that a queue does not have": lambda store: [
        query
        for status in JobStatus
        if status is not JobStatus.QUEUED
        for query in _listed(store, queue=QUEUE, statuses=(status,))
    ],
    "jobs of a status that a kind does not have": lambda store: [
        query
        for status in JobStatus
        if status is not JobStatus.QUEUED
        for query in _listed(store, kind=Kind(READY), statuses=(status,))
    ],
}
"""What is asked of a small store and of a large one."""


Sizes = tuple[int, int]


@pytest.fixture(scope="module", params=SIZES, ids="{0[1]} jobs".format)
def sizes(request: pytest.FixtureRequest) -> Sizes:
    return cast(Sizes, request.param)


@pytest.fixture(scope="module")
def postgres_stores(
    postgres: PostgresServer, sizes: Sizes
) -> Iterator[list[tuple[PostgresStore, str]]]:
    stores: list[tuple[PostgresStore, str]] = []
    for jobs in sizes:
        url = postgres.create_database()
        store = PostgresStore(url, migrate=True)
        _fill(store, jobs)
        with psycopg.connect(url, autocommit=True) as raw:
            raw.execute("VACUUM ANALYZE tenure.job")
        stores.append((store, url))
    yield stores
    for store, url in stores:
        store.close()
        postgres.drop_database(url)


@pytest.fixture(scope="module")
def sqlite_stores(
    tmp_path_factory: pytest.TempPathFactory, sizes: Sizes
) -> Iterator[list[tuple[SqliteStore, Path]]]:
    stores = []
    for jobs in sizes:
        path = tmp_path_factory.mktemp("growth") / "tenure.db"
        store = SqliteStore(path)
        _fill(store, jobs)
        stores.append((store, path))
    yield stores
    for store, _ in stores:
        store.close()


@spec("Z1", "B25", "B27")
@pytest.mark.parametrize("name", ASKED)
def test_postgres_reads_as_few_pages_of_a_large_store_as_of_a_small_one(
    postgres_stores: list[tuple[PostgresStore, str]], name: str
) -> None:
    small, large = (pages_read(store, url, ASKED[name](store)) for store, url in postgres_stores)

    assert 0 < large <= 2 * small + 4, f"{small} pages, then {large}"


@spec("Z1", "B25", "B27")
@pytest.mark.parametrize("name", ASKED)
@pytest.mark.slow
def test_sqlite_takes_as_few_steps_in_a_large_store_as_in_a_small_one(
    sqlite_stores: list[tuple[SqliteStore, Path]], name: str
) -> None:
    small, large = (steps_taken(store, path, ASKED[name](store)) for store, path in sqlite_stores)

    assert 0 < large <= 2 * small, f"{small} steps, then {large}"


# --- Many keys -----------------------------------------------------------------------------------

KEY_COUNTS = [(200, 800), pytest.param((200, 2_000), marks=pytest.mark.proof)]
FEW = tuple(f"key-{number}" for number in range(10))
LIMITED = Kind("limited")

DEEPER = 2 * len(FEW)
"""How many more pages or steps ten keys may cost beside many: the indexes are a little deeper.
A plan that reads every row of a kind reads 1,200 rows more beside 800 keys than beside 200, and of
the smallest 50 fit into a page: at least 24 pages."""


def _fill_with_keys(store: AnyStore, keys: int) -> None:
    """N concurrency keys and N rate keys, each with a job that was granted and one that is
    admitted. There are no statistics yet: they are behind whenever keys come."""
    store.settings.put_kind(HERE, KindChange(kind=LIMITED, concurrency_limit=2))
    store.settings.put_kind(HERE, KindChange(kind=Kind(RATED), rate=parse_rate("rate", "1/d", 2)))
    scope = ClaimScope(namespace=HERE, queues=(QUEUE,), kinds=(LIMITED, Kind(RATED)))
    granted = 0
    for _ in range(2):
        now = store.now()
        for start_at in range(0, keys, 500):
            jobs = [
                Enqueue(
                    job_id=new_job_id(now, os.urandom(16)),
                    namespace=HERE,
                    queue=QUEUE,
                    kind=kind,
                    actor=Actor("client:c"),
                    concurrency_key=f"key-{number}" if kind == LIMITED else None,
                    rate_key=f"key-{number}" if kind == RATED else None,
                )
                for number in range(start_at, min(start_at + 500, keys))
                for kind in (LIMITED, Kind(RATED))
            ]
            save(store, [change(None, job, now) for job in jobs])
        seq = 0
        while granted < 2 * keys:
            seq += 1
            asked = replace(claim_request(200, seq=seq), kinds=scope.kinds)
            plan = store.claims.claim(scope, [asked.session], 200, planner(asked))
            granted += len(plan.changes)
    for _ in range(6 * keys // MAX_DIRTY_KEYS + 1):
        store.claims.claim(scope, [], 1, lambda _: ClaimPlan(changes=(), sessions=(), answers=()))


OF_FEW_KEYS: dict[str, Callable[[AnyStore], Sequence[Query]]] = {
    "jobs of concurrency keys": _jobs_of([Key(LIMITED, False, key) for key in FEW]),
    "jobs of rate keys": _jobs_of([Key(Kind(RATED), True, key) for key in FEW]),
    "first rate key that has room": lambda store: [
        store.database.query("rate_waits", namespace=HERE, kinds=store.database.pack([RATED]))
    ],
    "whether keys are dirty": lambda store: [
        store.claims.moment_query(ClaimScope(namespace=HERE, queues=(QUEUE,), kinds=named))
        for named in ((LIMITED, Kind(RATED)), None)
    ],
    "candidates": lambda store: store.candidates.queries(
        Reading.of_all(
            ClaimScope(namespace=HERE, queues=(QUEUE,), kinds=(LIMITED,)), {QUEUE: [LIMITED]}, 10
        )
    ),
}
"""What a claim asks about ten keys, beside few others and beside many."""


POSTGRES_STATISTICS = {
    "none": "SELECT 1",
    "of keys": "ANALYZE tenure.dirty_key",
    "of keys and jobs": "ANALYZE tenure.job",
    "of all tables": "ANALYZE",
}
SQLITE_STATISTICS = {
    "none": "SELECT 1",
    "of keys": "ANALYZE tenure_dirty_key",
    "of keys and jobs": "ANALYZE tenure_job",
    "of all tables": "ANALYZE",
}
"""What is analysed one after the other, as autovacuum may do it table by table."""


@spec("CK11")
@pytest.mark.parametrize("counts", KEY_COUNTS, ids="{0[1]} keys".format)
def test_postgres_reads_as_few_pages_for_ten_keys_beside_many_as_beside_few(
    postgres: PostgresServer, counts: Sizes
) -> None:
    pages: list[dict[tuple[str, str], int]] = []
    for keys in counts:
        url = postgres.create_database()
        with closing(PostgresStore(url, migrate=True)) as store:
            _fill_with_keys(store, keys)
            read: dict[tuple[str, str], int] = {}
            for statistics, analyse in POSTGRES_STATISTICS.items():
                with psycopg.connect(url, autocommit=True) as raw:
                    raw.execute(analyse.encode())
                    raw.execute("VACUUM tenure.dirty_key, tenure.job")  # what was deleted
                for name, queries in OF_FEW_KEYS.items():
                    read[name, statistics] = pages_read(store, url, queries(store))
            pages.append(read)
        postgres.drop_database(url)

    few, many = pages
    assert {name: (few[name], n) for name, n in many.items() if n > few[name] + DEEPER} == {}


@spec("CK11")
@pytest.mark.parametrize("counts", KEY_COUNTS, ids="{0[1]} keys".format)
@pytest.mark.slow
def test_sqlite_takes_as_few_steps_for_ten_keys_beside_many_as_beside_few(
    tmp_path: Path, counts: Sizes
) -> None:
    steps: list[dict[tuple[str, str], int]] = []
    for keys in counts:
        path = tmp_path / f"{keys}.db"
        with closing(SqliteStore(path)) as store:
            _fill_with_keys(store, keys)
            taken: dict[tuple[str, str], int] = {}
            for statistics, analyse in SQLITE_STATISTICS.items():
                with closing(sqlite3.connect(path, isolation_level=None)) as raw:
                    raw.execute(analyse)
                for name, queries in OF_FEW_KEYS.items():
                    taken[name, statistics] = steps_taken(store, path, queries(store))
            steps.append(taken)

    few, many = steps
    assert {name: (few[name], n) for name, n in many.items() if n > few[name] + DEEPER} == {}


# --- While a snapshot is held open ---------------------------------------------------------------

DRAINED = 5_000
PINNED = ClaimScope(namespace=HERE, queues=(QUEUE,), kinds=(Kind(READY),))


def _drain(store: AnyStore, *, claims: int, worker: str) -> None:
    """Claims of a hundred jobs each."""
    for seq in range(1, claims + 1):
        asked = replace(claim_request(100, seq=seq, worker=worker), kinds=PINNED.kinds)
        planned = store.claims.claim(PINNED, [asked.session], 100, planner(asked))
        assert len(planned.changes) == 100


def _next_claim(store: AnyStore) -> Query:
    return store.candidates.queries(Reading.of_all(PINNED, {QUEUE: [Kind(READY)]}, 100))[0]


@spec("Z1")
@pytest.mark.slow
def test_sqlite_keeps_no_entries_of_claimed_jobs_while_somebody_reads(sqlite_path: Path) -> None:
    with (
        closing(SqliteStore(sqlite_path)) as store,
        closing(sqlite3.connect(sqlite_path)) as reader,
    ):
        _enqueue(store, DRAINED + 300, READY)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM tenure_job").fetchall()
        steps = []
        for claims in (1, DRAINED // 100):
            _drain(store, claims=claims, worker=f"w{claims}")
            steps.append(steps_taken(store, sqlite_path, [_next_claim(store)]))

    assert 0 < steps[1] <= steps[0] + 2
