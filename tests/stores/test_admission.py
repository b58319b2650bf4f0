"""Admission in the SQL stores: who pays for it, and that no transaction of another process delays
jobs that it has nothing to do with."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest
from msgspec.structs import replace

from tenure import Tenure
from tenure.core.claims import RULE_BUSY_US
from tenure.core.commands import Enqueue
from tenure.core.concurrency import MAX_ADMITTED, Lane
from tenure.core.ids import DEFAULT_NAMESPACE, Actor, Kind, QueueName, new_job_id
from tenure.core.instants import Duration
from tenure.core.job import Job
from tenure.core.kind_settings import KindChange
from tenure.core.rates import parse_rate
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.claim_dialect import MAX_DIRTY_KEYS
from tenure.stores.sql.statements import Query, Statements
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.stores.lives import (
    QUEUE,
    change,
    claim,
    claim_request,
    complete,
    planner,
    save,
    start,
)
from tests.support.waiting import until

AnyStore: TypeAlias = SqliteStore | PostgresStore

OF_KEYS = {
    "take_dirty_keys",
    "jobs_of_keys",
    "jobs_of_key",
    "move_jobs",
    "note_dirty_key",
    "note_dirty_keys",
    "register_keyed_kind",
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the statements that stores send."""
    names: list[str] = []
    query = Statements.query

    def noting(self: Statements, statement: str, /, *shape: Any, **parameters: Any) -> Query:
        names.append(statement)
        return query(self, statement, *shape, **parameters)

    monkeypatch.setattr(Statements, "query", noting)
    return names


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path, asked: list[str]) -> Iterator[AnyStore]:
    if request.param == "sqlite":
        made: AnyStore = SqliteStore(tmp_path / "tenure.db")
    else:
        made = PostgresStore(request.getfixturevalue("postgres_url"), migrate=True)
    yield made
    made.close()


def _enqueue(store: AnyStore, keys: Sequence[str | None], *, priority: int = 0) -> None:
    now = store.now()
    save(
        store,
        [
            change(
                None,
                Enqueue(
                    job_id=new_job_id(now, bytes([number, 0] * 8)),
                    namespace=DEFAULT_NAMESPACE,
                    queue=QUEUE,
                    kind=Kind("bill"),
                    actor=Actor("client:c"),
                    priority=priority,
                    concurrency_key=key,
                ),
                now,
            )
            for number, key in enumerate(keys)
        ],
    )


def _live(store: AnyStore, keys: Sequence[str | None]) -> None:
    """Lead the whole life of such jobs."""
    _enqueue(store, keys)
    complete(store, start(store, claim(store, 10)))


@spec("CK4")
def test_jobs_without_a_key_need_no_statement_about_keys(store: AnyStore, asked: list[str]) -> None:
    _live(store, [None, None])

    assert "candidates" in asked
    assert not OF_KEYS.intersection(asked)


@spec("CK4")
def test_jobs_with_a_key_do(store: AnyStore, asked: list[str]) -> None:
    _live(store, ["1", "1", "2"])

    assert {"take_dirty_keys", "move_jobs"} <= set(asked)


@spec("CK3")
def test_a_key_admits_one_job_however_many_wait(store: AnyStore) -> None:
    _enqueue(store, ["1"] * 50 + ["2"])

    [first, second] = claim(store, 10)
    none = claim(store, 10, seq=2)
    complete(store, start(store, [first]))
    [third] = claim(store, 1, seq=3)

    assert (first.concurrency_key, second.concurrency_key) == ("1", "2")
    assert none == []
    assert third.concurrency_key == "1"
    assert _lanes(store) == {Lane.WAITS_FOR_KEY: 48}


def _lanes(store: AnyStore) -> dict[Lane, int]:
    """How many jobs wait in each lane."""
    table = "tenure_job" if isinstance(store, SqliteStore) else "tenure.job"
    text = f"SELECT lane, count(*) FROM {table} WHERE not_before IS NOT NULL GROUP BY lane"
    [rows] = store.database.read(lambda tx: tx.fetch(Query(text, ())))
    return {Lane(lane): count for lane, count in rows}


def _rows_of(store: AnyStore, table: str) -> int:
    """How many rows a table has."""
    name = f"tenure_{table}" if isinstance(store, SqliteStore) else f"tenure.{table}"
    [(rows,)] = store.database.rows(Query(f"SELECT count(*) FROM {name}", ()))
    assert isinstance(rows, int)
    return rows


@spec("CK3", "CK4")
def test_a_key_in_a_callers_open_transaction_delays_no_other_job(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, migrate=True)
    with closing(store), Tenure(postgres_url) as app:

        @app.job(concurrency_key="customer_id")
        def bill(customer_id: int) -> None: ...

        first = bill.enqueue(42)
        with psycopg.connect(postgres_url) as mine:
            second = bill.using(connection=mine).enqueue(42)
            third = bill.enqueue(42)
            granted = _claimed(store, 1)
            complete(store, start(store, granted))
            next_one = _claimed(store, 2)
        complete(store, start(store, next_one))

        assert [job.id for job in granted] == [first.id]
        assert [job.id for job in next_one] == [third.id]
        assert [job.id for job in _claimed(store, 3)] == [second.id]


# --- What other transactions hold ----------------------------------------------------------------

BILL, OTHER = Kind("bill"), Kind("other")


@contextmanager
def _held(url: str, text: str) -> Iterator[None]:
    """A transaction of another process that does this, and is frozen then."""
    with psycopg.connect(url) as other:
        other.execute(text.encode())
        yield
        other.rollback()


def _claim_both(store: PostgresStore, seq: int) -> list[Job]:
    request = replace(claim_request(10, seq=seq), kinds=(BILL, OTHER))
    plan = store.claims.claim(request.scope, [request.session], 10, planner(request))
    return [grant.job for answer in plan.answers for grant in answer.grants]


def _enqueue_both(store: PostgresStore, **fields: Any) -> None:
    now = store.now()
    jobs = [
        Enqueue(
            job_id=new_job_id(now, os.urandom(16)),
            namespace=DEFAULT_NAMESPACE,
            queue=QUEUE,
            kind=kind,
            actor=Actor("client:c"),
            **(fields if kind is BILL else {}),
        )
        for kind in (BILL, OTHER)
    ]
    save(store, [change(None, job, now) for job in jobs])


@spec("RL8", "RL15")
@pytest.mark.parametrize("rate_key", [None, "42"])
def test_a_claim_that_is_frozen_while_it_counts_delays_only_jobs_under_its_rule(
    postgres_store: PostgresStore, postgres_url: str, rate_key: str | None
) -> None:
    rate = KindChange(kind=BILL, rate=parse_rate("rate", "100/s", 10))
    postgres_store.settings.put_kind(DEFAULT_NAMESPACE, rate)
    _enqueue_both(postgres_store, rate_key=rate_key)

    with _held(postgres_url, "SELECT 1 FROM tenure.slot FOR UPDATE"):
        meanwhile = _claim_both(postgres_store, 1)
        request = replace(claim_request(10, seq=2), kinds=(BILL, OTHER))
        plan = postgres_store.claims.claim(request.scope, [request.session], 10, planner(request))
    afterwards = _claim_both(postgres_store, 3)

    assert [job.kind for job in meanwhile] == [OTHER]
    [answer] = plan.answers
    assert answer.rate_limited is not None  # it comes again soon, not only after its usual pause
    assert answer.rate_limited.wait_us == RULE_BUSY_US
    assert [job.kind for job in afterwards] == [BILL]


@spec("CK4", "CK10")
def test_a_claim_that_is_frozen_while_it_admits_delays_only_jobs_with_keys_of_its_kind(
    postgres_store: PostgresStore, postgres_url: str
) -> None:
    _enqueue_both(postgres_store, concurrency_key="42")

    taking = "SELECT * FROM tenure.take_dirty_keys('default', ARRAY['bill'], 10)"
    with _held(postgres_url, taking):
        meanwhile = _claim_both(postgres_store, 1)
    afterwards = _claim_both(postgres_store, 2)

    assert [job.kind for job in meanwhile] == [OTHER]
    assert [job.kind for job in afterwards] == [BILL]


@spec("CK4", "CK6", "CK10")
def test_a_job_that_another_transaction_has_locked_is_admitted_when_it_is_free(
    postgres_store: PostgresStore, postgres_url: str
) -> None:
    _enqueue(postgres_store, ["1", "1"])

    with _held(postgres_url, "SELECT 1 FROM tenure.job ORDER BY run_at, id LIMIT 1 FOR UPDATE"):
        meanwhile = claim(postgres_store, 10)
    seqs = count(2)
    found: list[Job] = []

    def is_granted() -> bool:
        found.extend(claim(postgres_store, 10, seq=next(seqs)))
        return bool(found)

    until(is_granted, "it is free")

    assert meanwhile == []
    assert len(found) == 1


# --- No job waits for ever -----------------------------------------------------------------------


def _enqueue_many(
    store: AnyStore, jobs: int, *, prefix: str, priority: int = 0, delay_us: int = 0
) -> None:
    """Jobs of a key each: each of them marks its key."""
    now = store.now()
    save(
        store,
        [
            change(
                None,
                Enqueue(
                    job_id=new_job_id(now, os.urandom(16)),
                    namespace=DEFAULT_NAMESPACE,
                    queue=QUEUE,
                    kind=Kind("bill"),
                    actor=Actor("client:c"),
                    priority=priority,
                    delay_us=Duration(delay_us),
                    concurrency_key=f"{prefix}-{number}",
                ),
                now,
            )
            for number in range(jobs)
        ],
    )


@spec("CK10")
def test_a_delayed_job_is_granted_though_more_keys_get_dirty_than_claims_take(
    store: AnyStore,
) -> None:
    _enqueue_many(store, 1, prefix="delayed", priority=5, delay_us=1)

    granted = []
    for seq in range(1, 4):
        _enqueue_many(store, MAX_DIRTY_KEYS + 100, prefix=f"other-{seq}")
        granted += claim(store, 1, seq=seq)

    assert granted[0].concurrency_key == "delayed-0"


@spec("CK10")
def test_a_key_waits_only_for_those_that_were_dirty_before(store: AnyStore) -> None:
    _enqueue_many(store, 2 * MAX_DIRTY_KEYS, prefix="earlier")
    _enqueue_many(store, 1, prefix="urgent", priority=5)

    granted = []
    for seq in range(1, 4):
        granted += claim(store, 1, seq=seq)
        _enqueue_many(store, MAX_DIRTY_KEYS, prefix=f"later-{seq}")

    assert "urgent-0" in {job.concurrency_key for job in granted}


@spec("CK11")
def test_a_key_with_a_high_limit_admits_few_jobs_at_a_time(store: AnyStore) -> None:
    store.settings.put_kind(
        DEFAULT_NAMESPACE, KindChange(kind=Kind("bill"), concurrency_limit=100_000)
    )
    _enqueue(store, ["1"] * 250)

    first = claim(store, 200)

    assert len(first) == MAX_ADMITTED
    assert [len(claim(store, 200, seq=seq)) for seq in (2, 3, 4)] == [100, 50, 0]


def _claimed(store: PostgresStore, seq: int) -> list[Job]:
    request = replace(claim_request(10, seq=seq), queues=(QueueName("default"),))
    plan = store.claims.claim(request.scope, [request.session], 10, planner(request))
    return [grant.job for answer in plan.answers for grant in answer.grants]


@spec("CK11", "RL8")
@pytest.mark.parametrize("burst", [1, 3])
def test_a_rate_key_that_waits_is_noted_once_however_many_jobs_come(
    store: AnyStore, burst: int
) -> None:
    rate = parse_rate("rate", "1/d", burst)
    store.settings.put_kind(DEFAULT_NAMESPACE, KindChange(kind=Kind("bill"), rate=rate))
    granted = []
    for seq in range(1, 21):
        now = store.now()
        job = Enqueue(
            job_id=new_job_id(now, os.urandom(16)),
            namespace=DEFAULT_NAMESPACE,
            queue=QUEUE,
            kind=Kind("bill"),
            actor=Actor("client:c"),
            rate_key="hot",
        )
        save(store, [change(None, job, now)])
        granted += claim(store, 5, seq=seq)

    assert len(granted) == burst
    assert _rows_of(store, "dirty_key") <= burst
