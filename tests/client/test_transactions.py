"""Enqueueing within the caller's own transaction: committed and rolled back with it."""

import asyncio
import gc
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from tenure import Conflict, InvalidInput, Tenure, UnknownJob
from tenure.client.functions import JobFunction
from tenure.ports import Hint
from tenure.stores.sqlite import writer as sqlite_writer
from tenure.verify import assert_holds
from tenure.wiring import open_store
from tenure_conformance.spec import spec
from tests.support.waiting import until

JOB_ID = "0190a5d4-7c3e-7000-8000-000000000001"
ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY)"

Work = JobFunction[[int], None, None]


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/shop.db"
    open_store(url).close()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute(ORDERS)
    return url


@pytest.fixture
def migrated_postgres_url(postgres_url: str) -> str:
    open_store(postgres_url, migrate=True).close()
    with psycopg.connect(postgres_url) as connection:
        connection.execute(ORDERS)
    return postgres_url


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


# --- every kind of connection ------------------------------------------------------------------

Door = Callable[[str], AbstractContextManager[tuple[Any, Callable[[], None], Callable[[], None]]]]
"""Opens a connection with an order in it: what to give to enqueue, how to commit, how to undo."""


@contextmanager
def plain_sqlite(url: str) -> Iterator[Any]:
    with closing(sqlite3.connect(path_of(url))) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        yield connection, connection.commit, connection.rollback


@contextmanager
def fresh_sqlite(url: str) -> Iterator[Any]:
    """Nothing was written before, and rows and text come out in the caller's own way."""
    with closing(sqlite3.connect(path_of(url))) as connection:
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
        yield connection, connection.commit, connection.rollback
        assert connection.text_factory is bytes


@contextmanager
def attached_sqlite(url: str) -> Iterator[Any]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("ATTACH ? AS tenure", [path_of(url)])
        connection.execute("BEGIN IMMEDIATE")
        yield connection, connection.commit, connection.rollback


@contextmanager
def plain_psycopg(url: str) -> Iterator[Any]:
    with closing(psycopg.connect(url)) as connection:
        connection.execute("INSERT INTO orders VALUES (1)")
        yield connection, connection.commit, connection.rollback


@contextmanager
def decorated_psycopg(url: str) -> Iterator[Any]:
    """Rows as dictionaries, a client-side cursor, statements prepared at once, serializable."""
    from psycopg.rows import dict_row

    with closing(
        psycopg.connect(
            url,
            row_factory=dict_row,
            cursor_factory=psycopg.ClientCursor,
            prepare_threshold=0,
        )
    ) as connection:
        connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        yield connection, connection.commit, connection.rollback


def engine_of(url: str) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))


@contextmanager
def core_connection(url: str) -> Iterator[Any]:
    """Nothing was executed before: the enqueue itself has to begin."""
    engine = engine_of(url)
    with engine.connect() as connection:
        yield connection, connection.commit, connection.rollback
    engine.dispose()


@contextmanager
def orm_session(url: str) -> Iterator[Any]:
    engine = engine_of(url)
    with Session(engine) as session:
        session.execute(sqlalchemy.text("INSERT INTO orders VALUES (1)"))
        yield session, session.commit, session.rollback
    engine.dispose()


@contextmanager
def orm_scoped_session(url: str) -> Iterator[Any]:
    engine = engine_of(url)
    session = scoped_session(sessionmaker(engine))
    yield session, session.commit, session.rollback
    session.remove()
    engine.dispose()


DOORS: list[tuple[str, Door]] = [
    ("sqlite", plain_sqlite),
    ("sqlite", fresh_sqlite),
    ("sqlite", attached_sqlite),
    ("sqlite", core_connection),
    ("sqlite", orm_session),
    ("sqlite", orm_scoped_session),
    ("postgres", plain_psycopg),
    ("postgres", decorated_psycopg),
    ("postgres", core_connection),
    ("postgres", orm_session),
]


@pytest.fixture(params=DOORS, ids=lambda door: f"{door[0]}-{door[1].__name__}")
def door(request: pytest.FixtureRequest) -> tuple[str, Door]:
    kind, opened = request.param
    fixture = {"sqlite": "sqlite_url", "postgres": "migrated_postgres_url"}[kind]
    return request.getfixturevalue(fixture), opened


@contextmanager
def working(url: str) -> Iterator[tuple[Tenure, Work]]:
    """An application with one function; its store holds what it must at the end."""
    with Tenure(url) as app:

        @app.job(queue="shop")
        def work(n: int) -> None: ...

        yield app, work
    with closing(open_store(url)) as store:
        assert_holds(store)


def test_a_job_is_committed_with_the_transaction(door: tuple[str, Door]) -> None:
    url, opened = door
    with working(url) as (app, work), opened(url) as (connection, commit, _):
        job = work.using(key="seven", connection=connection).enqueue(7)
        with pytest.raises(UnknownJob):
            app.get(job.id).refresh()
        commit()

        assert app.get(job.id).status == "queued"
        assert job.refresh().payload == {"n": 7}
        assert [event.type.value for event in job.events()] == ["enqueued"]


def test_a_job_is_rolled_back_with_the_transaction(door: tuple[str, Door]) -> None:
    url, opened = door
    with working(url) as (app, work), opened(url) as (connection, _, rollback):
        job = work.using(key="seven", connection=connection).enqueue(7)
        rollback()

        with pytest.raises(UnknownJob):
            app.get(job.id).refresh()
        assert not work.using(key="seven").enqueue(8).deduplicated


@spec("D5")
def test_a_held_key_gives_the_holder_within_the_transaction(door: tuple[str, Door]) -> None:
    url, opened = door
    with working(url) as (_, work):
        holder = work.using(key="held").enqueue(1)
        with opened(url) as (connection, commit, _):
            same = work.using(key="held", connection=connection).enqueue(2)
            mine = work.using(key="mine", connection=connection).enqueue(3)
            again = work.using(key="mine", connection=connection).enqueue(4)
            commit()

        assert same == holder
        assert same.deduplicated
        assert not mine.deduplicated
        assert again == mine
        assert again.deduplicated


@spec("D3")
def test_a_job_id_is_idempotent_within_the_transaction(door: tuple[str, Door]) -> None:
    url, opened = door
    with working(url) as (_, work), opened(url) as (connection, commit, _):
        mine = work.using(job_id=JOB_ID, connection=connection)
        first = mine.enqueue(1)
        again = mine.enqueue(1)
        with pytest.raises(Conflict, match="idempotency_key_reuse"):
            mine.enqueue(2)
        commit()

        assert first == again
        assert first.refresh().payload == {"n": 1}
        assert len(first.events()) == 1


def test_many_jobs_are_one_transaction(door: tuple[str, Door]) -> None:
    url, opened = door
    with working(url) as (app, work), opened(url) as (connection, commit, _):
        jobs = app.enqueue_many((work.call(n) for n in range(700)), connection=connection)
        jobs += app.enqueue_many([work.call(1), work.call(2)], connection=connection)
        commit()

        assert {app.get(job.id).status for job in jobs[::100]} == {"queued"}


@spec("I17")
@pytest.mark.parametrize("commits", [True, False])
def test_of_two_open_transactions_with_one_key_the_second_waits_for_the_first(
    migrated_postgres_url: str, commits: bool
) -> None:
    url = migrated_postgres_url
    with (
        working(url) as (app, work),
        closing(psycopg.connect(url)) as first,
        closing(psycopg.connect(url)) as second,
        closing(psycopg.connect(url, autocommit=True)) as watcher,
        ThreadPoolExecutor(1) as pool,
    ):
        one = work.using(key="same", connection=first).enqueue(1)
        waiting = pool.submit(work.using(key="same", connection=second).enqueue, 2)
        for _ in range(1000):
            row = watcher.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'",
                [second.info.backend_pid],
            ).fetchone()
            if row == (1,):
                break
            time.sleep(0.01)
        first.commit() if commits else first.rollback()
        two = waiting.result(timeout=30)
        second.commit()

        assert two.deduplicated is commits
        assert (two == one) is commits
        assert app.get(two.id).status == "queued"


# --- what is refused ---------------------------------------------------------------------------


def test_a_connection_without_a_transaction_is_refused(
    sqlite_url: str, migrated_postgres_url: str
) -> None:
    with (
        working(sqlite_url) as (_, work),
        closing(sqlite3.connect(path_of(sqlite_url), isolation_level=None)) as connection,
        pytest.raises(InvalidInput, match="BEGIN IMMEDIATE"),
    ):
        work.using(connection=connection).enqueue(1)
    with (
        working(migrated_postgres_url) as (app, work),
        psycopg.connect(migrated_postgres_url, autocommit=True) as connection,
    ):
        with pytest.raises(InvalidInput, match=r"connection\.transaction\(\)"):
            work.using(connection=connection).enqueue(1)
        with connection.transaction():
            job = work.using(connection=connection).enqueue(1)
        assert app.get(job.id).status == "queued"


def test_a_connection_to_another_database_is_refused(
    sqlite_url: str, migrated_postgres_url: str, tmp_path: Path
) -> None:
    with (
        working(sqlite_url) as (_, work),
        closing(sqlite3.connect(tmp_path / "other.db")) as other,
        closing(psycopg.connect(migrated_postgres_url)) as postgres,
    ):
        with pytest.raises(InvalidInput, match=r"not a connection to .*shop\.db"):
            work.using(connection=other).enqueue(1)
        with pytest.raises(InvalidInput, match="PostgreSQL connection"):
            work.using(connection=postgres).enqueue(1)
    with (
        working(migrated_postgres_url) as (_, work),
        closing(sqlite3.connect(path_of(sqlite_url))) as sqlite,
        pytest.raises(InvalidInput, match="SQLite connection"),
    ):
        work.using(connection=sqlite).enqueue(1)


def test_what_is_no_connection_is_refused_with_what_is_one(sqlite_url: str) -> None:
    with (
        working(sqlite_url) as (_, work),
        pytest.raises(InvalidInput, match=r"builtins\.object is not .*Session"),
    ):
        work.using(connection=object()).enqueue(1)
    with (
        Tenure("memory://") as app,
        closing(sqlite3.connect(path_of(sqlite_url))) as connection,
        pytest.raises(InvalidInput, match="use a sqlite: or postgresql: URL"),
    ):
        app.enqueue("work", {}, connection=connection)


def test_an_error_leaves_the_callers_transaction_as_it_was(sqlite_url: str) -> None:
    with (
        working(sqlite_url) as (_, work),
        closing(sqlite3.connect(path_of(sqlite_url))) as connection,
    ):
        connection.execute("INSERT INTO orders VALUES (1)")
        connection.execute(
            "CREATE TEMP TRIGGER t BEFORE INSERT ON tenure_job_event "
            "BEGIN SELECT RAISE(ABORT, 'no events today'); END"
        )

        with pytest.raises(sqlite3.IntegrityError, match="no events today"):
            work.using(connection=connection).enqueue(1)
        connection.commit()

        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM tenure_job").fetchone() == (0,)


def test_a_connection_with_jobs_leaves_checkpoints_to_tenure(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "CHECKPOINT_AT_BYTES", 1 << 18)
    path = Path(path_of(sqlite_url))
    with Tenure(sqlite_url) as app, closing(sqlite3.connect(path)) as connection:
        for order in range(20):
            with connection:
                connection.execute("INSERT INTO orders VALUES (?)", [order])
                app.enqueue("work", "x" * 50_000, connection=connection)

        def is_small() -> bool:
            with connection:
                app.enqueue("work", connection=connection)
            return path.with_name("shop.db-wal").stat().st_size < 1 << 18

        [setting] = connection.execute("PRAGMA wal_autocheckpoint").fetchone()

        assert setting == 0
        until(is_small, "Tenure has checkpointed the log")


def test_a_connection_that_has_attached_the_jobs_keeps_its_checkpoints(sqlite_url: str) -> None:
    with Tenure(sqlite_url) as app, attached_sqlite(sqlite_url) as (connection, commit, _):
        app.enqueue("work", connection=connection)
        commit()

        assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (1000,)


def test_jobs_may_be_enqueued_while_a_cursor_is_read(sqlite_url: str) -> None:
    with (
        working(sqlite_url) as (app, work),
        closing(sqlite3.connect(path_of(sqlite_url))) as connection,
    ):
        connection.executemany("INSERT INTO orders VALUES (?)", [(1,), (2,), (3,)])
        rows = connection.execute("SELECT id FROM orders")
        jobs = [work.using(connection=connection).enqueue(n) for (n,) in rows]
        connection.commit()

        assert [app.get(job.id).refresh().payload for job in jobs] == [
            {"n": 1},
            {"n": 2},
            {"n": 3},
        ]


# --- asynchronous ------------------------------------------------------------------------------


def test_an_async_connection_takes_jobs_with_it(migrated_postgres_url: str) -> None:
    url = migrated_postgres_url

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            kept = await work.using(key="k", connection=connection).aenqueue(1)
            same = await work.using(key="k", connection=connection).aenqueue(2)
            assert same == kept
            await connection.commit()
            lost = await work.using(connection=connection).aenqueue(3)
            await connection.rollback()
            assert await kept.astatus() == "queued"
            with pytest.raises(UnknownJob):
                await app.get(lost.id).astatus()
            with pytest.raises(InvalidInput, match="aenqueue"):
                work.using(connection=connection).enqueue(4)
            with psycopg.connect(url) as sync, pytest.raises(InvalidInput, match="block"):
                await work.using(connection=sync).aenqueue(4)

    with working(url) as (app, work):
        asyncio.run(main())


def test_a_cancelled_enqueue_writes_nothing_after_the_rollback(
    migrated_postgres_url: str,
) -> None:
    url = migrated_postgres_url

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await work.aenqueue(0)  # the link is open: what follows waits for the connection only
            async with connection.lock:  # nothing can be executed on it for now
                task = asyncio.create_task(work.using(connection=connection).aenqueue(1))
                await asyncio.sleep(0.05)
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            await connection.rollback()
            await connection.commit()
        async with await psycopg.AsyncConnection.connect(url) as connection:
            cursor = await connection.execute("SELECT count(*) FROM tenure.job")
            assert await cursor.fetchone() == (1,)

    with working(url) as (_, work):
        asyncio.run(main())


def test_a_cancelled_enqueue_leaves_no_complaint_of_asyncio(migrated_postgres_url: str) -> None:
    complaints: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
        async with await psycopg.AsyncConnection.connect(migrated_postgres_url) as connection:
            await work.aenqueue(0)
            async with connection.lock:
                task = asyncio.create_task(work.using(connection=connection).aenqueue(1))
                await asyncio.sleep(0.05)
                task.cancel()
                await asyncio.sleep(0)
            with pytest.raises(asyncio.CancelledError):
                await task
            await connection.rollback()

    with working(migrated_postgres_url) as (_, work):
        asyncio.run(main())
    gc.collect()  # asyncio complains when a task is collected

    assert complaints == []


# --- telling workers ----------------------------------------------------------------------------


@spec("Z7")
@pytest.mark.parametrize("notify", [True, False])
def test_a_commit_tells_waiting_workers_only_if_the_caller_asks_for_it(
    migrated_postgres_url: str, notify: bool
) -> None:
    heard: list[Hint | None] = []
    with (
        closing(open_store(migrated_postgres_url)) as other,
        Tenure(migrated_postgres_url) as app,
        psycopg.connect(migrated_postgres_url) as connection,
    ):
        work = _work(app)
        other.watch(heard.append)
        until(lambda: heard == [None], "the other process listens")

        app.enqueue_many([work.call(1)], connection=connection, notify=notify)
        connection.commit()
        work.using(queue="last").enqueue(2)  # told of in any case, and after the commit

        until(lambda: len(heard) == (3 if notify else 2), "the hints have arrived")
    told = [hint.queue for hint in heard if hint is not None]
    assert told == (["default", "last"] if notify else ["last"])


def test_notify_without_a_transaction_is_refused(sqlite_url: str) -> None:
    with Tenure(sqlite_url) as app, pytest.raises(InvalidInput, match="transaction of your own"):
        _work(app).using(notify=True).enqueue(1)


def _work(app: Tenure) -> Work:
    @app.job
    def work(number: int) -> None:
        """Nothing is run here."""

    return work
