"""Completing a job in a transaction of the handler's own, with every kind of connection."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from tenure import Context, InvalidInput, LeaseConflictError, Tenure
from tenure.core.claims import ClaimRequest
from tenure.core.commands import Complete
from tenure.core.ids import DEFAULT_NAMESPACE, QueueName, RequestId, WorkerId, worker_actor
from tenure.core.verdicts import Grant, Verdict
from tenure.core.vocabulary import VerdictKind
from tenure.testing import FakeContext
from tenure.verify import assert_holds
from tenure.wiring import open_store
from tenure.worker.frames import completion
from tenure.worker.supervisor.options import WITHHELD_URL

WORKER = WorkerId("w1")
ACTOR = worker_actor(WORKER)
TABLE = "CREATE TABLE orders (id INTEGER PRIMARY KEY)"
INSERT = "INSERT INTO orders VALUES (1)"


@pytest.fixture
def sqlite_url(tmp_path: Path) -> Iterator[str]:
    url = f"sqlite:///{tmp_path}/shop.db"
    open_store(url).close()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute(TABLE)
    yield url
    _verify(url)


@pytest.fixture
def server_url(postgres_url: str) -> Iterator[str]:
    open_store(postgres_url, migrate=True).close()
    with psycopg.connect(postgres_url) as connection:
        connection.execute(TABLE)
    yield postgres_url
    _verify(postgres_url)


def _verify(url: str) -> None:
    store = open_store(url)
    assert_holds(store)
    store.close()


def claimed(app: Tenure) -> Grant:
    """A job of `app`, granted to a worker."""
    app.enqueue("work", {})
    request = ClaimRequest(
        namespace=DEFAULT_NAMESPACE,
        worker=WORKER,
        actor=ACTOR,
        queues=(QueueName("default"),),
        kinds=None,
        limit=1,
        claim_seq=1,
        request_id=RequestId("claim-1"),
    )
    [grant] = app.coordination.submit_claim(request).result().grants
    return grant


def success(grant: Grant) -> Complete:
    return completion(job_id=grant.job_id, lease_id=grant.lease_id, actor=ACTOR, result=b'"posted"')


def orders(url: str) -> int:
    """How many orders are committed."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            return int(connection.execute("SELECT count(*) FROM orders").fetchone()[0])
    with psycopg.connect(url) as server:
        found = server.execute("SELECT count(*) FROM orders").fetchone()
        assert found is not None
        return int(found[0])


# --- every kind of connection ------------------------------------------------------------------

Door = Callable[[str], AbstractContextManager[tuple[Any, Callable[[], object]]]]
"""Opens a connection: what to give to the transaction, and how to write an order on it."""


@contextmanager
def plain_sqlite(url: str, **options: Any) -> Iterator[Any]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), **options)) as connection:
        yield connection, lambda: connection.execute(INSERT)


@contextmanager
def plain_psycopg(url: str, **options: Any) -> Iterator[Any]:
    with closing(psycopg.connect(url, **options)) as connection:
        yield connection, lambda: connection.execute(INSERT)


@contextmanager
def engine_of(url: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def core_connection(url: str) -> Iterator[Any]:
    with engine_of(url) as engine, engine.connect() as connection:
        yield connection, lambda: connection.execute(sqlalchemy.text(INSERT))


@contextmanager
def orm_session(url: str) -> Iterator[Any]:
    with engine_of(url) as engine, Session(engine) as session:
        yield session, lambda: session.execute(sqlalchemy.text(INSERT))


SQLITE_DOORS: list[Any] = [
    plain_sqlite,
    partial(plain_sqlite, isolation_level=None),
    core_connection,
    orm_session,
]
SERVER_DOORS: list[Any] = [
    plain_psycopg,
    partial(plain_psycopg, autocommit=True),
    core_connection,
    orm_session,
]


@pytest.mark.parametrize("door", SQLITE_DOORS)
def test_both_or_neither_on_sqlite(sqlite_url: str, door: Door) -> None:
    both_or_neither(sqlite_url, door)


@pytest.mark.parametrize("door", SERVER_DOORS)
def test_both_or_neither_on_postgres(server_url: str, door: Door) -> None:
    both_or_neither(server_url, door)


def post(
    app: Tenure, url: str, door: Door, grant: Grant, *, then: Callable[[], object] = lambda: None
) -> None:
    """Write an order and complete the job in one block."""
    with door(url) as (connection, write), app.transaction_on(connection) as settle:
        write()
        assert settle(success(grant)).kind is VerdictKind.COMMITTED
        then()


def both_or_neither(url: str, door: Door) -> None:
    with Tenure(url) as app:
        grant = claimed(app)

        with pytest.raises(ZeroDivisionError):
            post(app, url, door, grant, then=lambda: 1 / 0)
        after_failure = (orders(url), app.get(grant.job_id).status)
        post(app, url, door, grant)
        after_success = (orders(url), app.get(grant.job_id).status)
        [replay] = app.coordination.submit_many([success(grant)]).result()

    assert after_failure == (0, "claimed")
    assert after_success == (1, "succeeded")
    assert isinstance(replay, Verdict)
    assert (replay.kind, replay.replayed) == (VerdictKind.COMMITTED, True)


@pytest.mark.parametrize("door", [plain_psycopg, core_connection, orm_session])
def test_an_open_transaction_is_refused_on_postgres(server_url: str, door: Door) -> None:
    refuses_an_open_transaction(server_url, door)


@pytest.mark.parametrize("door", SQLITE_DOORS[:1] + SQLITE_DOORS[2:])
def test_an_open_transaction_is_refused_on_sqlite(sqlite_url: str, door: Door) -> None:
    refuses_an_open_transaction(sqlite_url, door)


def refuses_an_open_transaction(url: str, door: Door) -> None:
    with Tenure(url) as app, door(url) as (connection, write):
        write()

        with (
            pytest.raises(InvalidInput, match="has an open transaction already"),
            app.transaction_on(connection),
        ):
            pass


def test_a_commit_inside_the_block_is_found_out(sqlite_url: str) -> None:
    @contextmanager
    def impatient(url: str) -> Iterator[Any]:
        with plain_sqlite(url) as (connection, _):
            yield connection, lambda: connection.executescript(INSERT)  # which commits

    with Tenure(sqlite_url) as app:
        grant = claimed(app)

        with pytest.raises(InvalidInput, match="ended inside the block"):
            post(app, sqlite_url, impatient, grant)

        assert app.get(grant.job_id).status == "claimed"


def test_a_cancelled_job_is_refused_within_the_block(server_url: str) -> None:
    with Tenure(server_url) as app, plain_psycopg(server_url) as (connection, write):
        grant = claimed(app)

        with app.transaction_on(connection) as settle:
            write()
            app.get(grant.job_id).cancel(hard=True)
            verdict = settle(success(grant))

    assert verdict.kind is VerdictKind.CANCELLED


def test_an_asynchronous_connection_commits_both(server_url: str) -> None:
    async def main(app: Tenure, grant: Grant) -> None:
        async with (
            await psycopg.AsyncConnection.connect(server_url) as connection,
            app.atransaction_on(connection) as settle,
        ):
            await connection.execute(INSERT)
            await settle(success(grant))

    with Tenure(server_url) as app:
        grant = claimed(app)
        asyncio.run(main(app, grant))
        status = app.get(grant.job_id).status

    assert (orders(server_url), status) == (1, "succeeded")


def test_a_handler_without_the_password_completes_on_its_own_connection(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tenure(server_url) as app:
        grant = claimed(app)
        monkeypatch.setenv("TENURE_URL", WITHHELD_URL)

        with Tenure() as child:
            post(child, server_url, plain_psycopg, grant)

        assert (orders(server_url), app.get(grant.job_id).status) == (1, "succeeded")


def test_without_a_database_there_is_nothing_to_share() -> None:
    with (
        Tenure("memory://") as app,
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(InvalidInput, match="no database here that your transaction could share"),
    ):
        app.transaction_on(connection)


# --- in a unit test ----------------------------------------------------------------------------


def test_a_fake_context_commits_for_real_and_remembers_the_result() -> None:
    def handler(ctx: Context, order: int) -> str:
        with ctx.transaction(connection) as tx:
            connection.execute("INSERT INTO orders VALUES (?)", [order])
            return tx.complete("posted")

    ctx = FakeContext()
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(TABLE)
        handler(ctx, 1)
        ctx.lose()
        with pytest.raises(LeaseConflictError):
            handler(ctx, 2)

        assert ctx.completed == ["posted"]
        assert connection.execute("SELECT id FROM orders").fetchall() == [(1,)]
