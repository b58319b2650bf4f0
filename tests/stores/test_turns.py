"""Turns of concurrency keys in the SQL stores: who pays for them, and that they stay few."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import psycopg
import pytest
from msgspec.structs import replace

from tenure import Tenure
from tenure.core.commands import Enqueue
from tenure.core.concurrency import MAX_GRANTS_OF_KEY
from tenure.core.ids import DEFAULT_NAMESPACE, Actor, Kind, Namespace, QueueName, new_job_id
from tenure.core.instants import Duration
from tenure.core.job import Job
from tenure.core.kind_settings import KindChange
from tenure.core.rates import parse_rate
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.statements import Query
from tenure.stores.sql.turns import MAX_KEY_CHANGES
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

AnyStore: TypeAlias = SqliteStore | PostgresStore

OF_KEYS = {
    "keyed_kinds",
    "take_key_changes",
    "live_of_keys",
    "turns",
    "give_turns",
    "delete_turns",
    "delete_turns_of_keys",
    "note_key_change",
    "note_key_changes",
    "register_keyed_kind",
}


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyStore]:
    if request.param == "sqlite":
        made: AnyStore = SqliteStore(tmp_path / "tenure.db")
    else:
        made = PostgresStore(request.getfixturevalue("postgres_url"), migrate=True)
    yield made
    made.close()


def _enqueue(
    store: AnyStore, keys: Sequence[str | None], *, group: str | None = None, priority: int = 0
) -> None:
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
                    concurrency_group=group,
                ),
                now,
            )
            for number, key in enumerate(keys)
        ],
    )


def _statements(store: AnyStore, keys: Sequence[str | None]) -> set[str]:
    """The statements that a life of such jobs needs, by name."""
    asked: set[str] = set()
    query = store._query

    def noting(statement: str, *shape: Any, **parameters: Any) -> Query:
        asked.add(statement)
        return query(statement, *shape, **parameters)

    setattr(store, "_query", noting)  # noqa: B010 - type checkers know that it is a method
    _enqueue(store, keys)
    complete(store, start(store, claim(store, 10)))
    return asked


@spec("CK4")
def test_jobs_without_a_key_need_no_statement_about_keys(store: AnyStore) -> None:
    assert not _statements(store, [None, None]) & OF_KEYS


@spec("CK4")
def test_jobs_with_a_key_do(store: AnyStore) -> None:
    assert {"turns", "take_key_changes", "delete_turns"} <= _statements(store, ["1", "1", "2"])


@spec("CK3")
def test_a_key_has_one_turn_however_many_jobs_wait(store: AnyStore) -> None:
    _enqueue(store, ["1"] * 50 + ["2"])

    [first, second] = claim(store, 10)
    none = claim(store, 10, seq=2)
    complete(store, start(store, [first]))
    [third] = claim(store, 1, seq=3)

    turns = _rows_of(store, "key_turn")
    assert (first.concurrency_key, second.concurrency_key) == ("1", "2")
    assert none == []
    assert third.concurrency_key == "1"
    assert turns == 0


def _rows_of(store: AnyStore, table: str) -> int:
    """How many rows a table has."""
    name = f"tenure_{table}" if isinstance(store, SqliteStore) else f"tenure.{table}"
    [[(rows,)]] = store._read(lambda tx: tx.fetch(Query(f"SELECT count(*) FROM {name}", ())))
    assert isinstance(rows, int)
    return rows


@spec("CK3", "CK4")
def test_a_key_in_a_callers_open_transaction_holds_up_nobody(postgres_url: str) -> None:
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


@spec("CK3")
def test_a_claim_grants_nothing_of_a_group_that_it_has_not_locked(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kind gets a new group while it waits for the locks of those that it knows of: meanwhile
    another claim may grant a job of the same key in another queue. So it begins again, and locks
    the new group too."""
    store, other = PostgresStore(postgres_url, migrate=True), PostgresStore(postgres_url)
    with closing(store), closing(other):
        _enqueue(store, ["1"])
        locks = store._group_locks
        locked: list[list[str]] = []

        def locks_later(namespace: Namespace, groups: Sequence[str]) -> list[Query]:
            if not locked:
                _enqueue(other, ["2", "3"], group="accounts", priority=5)
                assert [job.concurrency_key for job in claim(other, 1, worker="other")] == ["2"]
            locked.append(list(groups))
            return locks(namespace, groups)

        monkeypatch.setattr(store, "_group_locks", locks_later)
        granted = claim(store, 10)

        assert locked == [["bill"], ["accounts", "bill"]]
        assert [job.concurrency_key for job in granted] == ["3", "1"]


@spec("RL14", "CK10")
def test_a_claim_that_does_not_know_a_rate_key_leaves_it_to_those_that_do(store: AnyStore) -> None:
    """It chooses turns of a group that a job with a rate key in another queue shares."""
    other, now = QueueName("other"), store.now()
    shared = Enqueue(
        job_id=new_job_id(now, os.urandom(16)),
        namespace=DEFAULT_NAMESPACE,
        queue=QUEUE,
        kind=Kind("bill"),
        actor=Actor("client:c"),
        concurrency_key="1",
        concurrency_group="accounts",
    )
    rated = replace(
        shared,
        job_id=new_job_id(now, os.urandom(16)),
        queue=other,
        kind=Kind("mail"),
        concurrency_key="2",
        rate_key="customer",
    )
    save(store, [change(None, each, now) for each in (shared, rated)])

    [first] = claim(store, 10)
    asked = replace(claim_request(10, worker="v"), queues=(other,))
    plan = store.claims.claim(asked.scope, [asked.session], 10, planner(asked))

    assert first.id == shared.job_id
    assert [each.job.id for each in plan.changes] == [rated.job_id]


# --- Nobody waits for ever -----------------------------------------------------------------------


def _enqueue_many(
    store: AnyStore, jobs: int, *, prefix: str, priority: int = 0, delay_us: int = 0
) -> None:
    """Jobs of a key each: each of them notes a change."""
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
def test_a_delayed_job_is_granted_though_more_changes_come_than_claims_take(
    store: AnyStore,
) -> None:
    _enqueue_many(store, 1, prefix="delayed", priority=5, delay_us=1)

    granted = []
    for seq in range(1, 4):
        _enqueue_many(store, MAX_KEY_CHANGES + 100, prefix=f"other-{seq}")
        granted += claim(store, 1, seq=seq)

    assert granted[0].concurrency_key == "delayed-0"


@spec("CK10")
def test_a_key_waits_only_for_the_changes_that_were_noted_before(store: AnyStore) -> None:
    _enqueue_many(store, 2 * MAX_KEY_CHANGES, prefix="earlier")
    _enqueue_many(store, 1, prefix="urgent", priority=5)

    granted = []
    for seq in range(1, 4):
        granted += claim(store, 1, seq=seq)
        _enqueue_many(store, MAX_KEY_CHANGES, prefix=f"later-{seq}")

    assert "urgent-0" in {job.concurrency_key for job in granted}


@spec("CK11")
def test_a_key_with_a_high_limit_has_few_turns(store: AnyStore) -> None:
    store.settings.put_kind(
        DEFAULT_NAMESPACE, KindChange(kind=Kind("bill"), concurrency_limit=100_000)
    )
    _enqueue(store, ["1"] * 250)

    first = claim(store, 200)
    turns = _rows_of(store, "key_turn")

    assert (len(first), turns) == (MAX_GRANTS_OF_KEY, 0)
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
    assert _rows_of(store, "key_change") <= burst
