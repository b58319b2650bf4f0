"""Borrowing a caller's connection: the store of an application, on a connection of its caller's.

The one place that pairs stores with foreign connections. Refuses a connection that leads to
another kind of database than the one the jobs are in.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from tenure.errors import Closed, InvalidInput
from tenure.ports import Store
from tenure.stores.sql.foreign import async_driver_connection, driver_connection
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Asked
from tenure.stores.sqlite.store import SqliteStore

_T = TypeVar("_T")


@contextmanager
def on_connection(store: Store, connection: Any) -> Iterator[Store]:
    """`store`, reading and writing within the transaction of `connection`."""
    driver = driver_connection(connection)
    if isinstance(driver, sqlite3.Connection):
        if not isinstance(store, SqliteStore):
            raise _elsewhere("SQLite")
        from tenure.stores.sql.sqlite_borrowed import borrowed

        with borrowed(store, driver) as lent:
            yield lent
        return
    from tenure.stores.postgres.store import PostgresStore
    from tenure.stores.sql.postgres_borrowed import (
        BorrowedPostgresStore,
        check_transaction,
        fetch_on,
    )

    if not isinstance(store, PostgresStore):
        raise _elsewhere("PostgreSQL")
    check_transaction(driver)
    yield BorrowedPostgresStore(store, lambda asked: fetch_on(driver, asked))


async def on_async_connection(store: Store, connection: Any, work: Callable[[Store], _T]) -> _T:
    """Run `work` on `store` within the transaction of an asynchronous connection.

    The work is synchronous, like everything inside: it runs in a thread, and its statements on the
    loop that the connection belongs to.
    """
    driver = async_driver_connection(connection)
    from tenure.stores.postgres.store import PostgresStore
    from tenure.stores.sql.postgres_borrowed import (
        BorrowedPostgresStore,
        afetch_on,
        check_transaction,
    )

    if not isinstance(store, PostgresStore):
        raise _elsewhere("PostgreSQL")
    check_transaction(driver)
    loop = asyncio.get_running_loop()
    is_given_up = threading.Event()

    def fetch(asked: Sequence[Asked]) -> list[list[Row]]:
        if is_given_up.is_set():
            raise Closed
        return asyncio.run_coroutine_threadsafe(afetch_on(driver, asked), loop).result()

    lent = BorrowedPostgresStore(store, fetch)
    running = asyncio.ensure_future(asyncio.to_thread(work, lent))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        # The caller is about to roll back: nothing of ours may reach the connection after that.
        is_given_up.set()
        await asyncio.wait([running])
        raise


def _elsewhere(kind: str) -> InvalidInput:
    return InvalidInput(
        "connection",
        f"is a {kind} connection, and this application's jobs are in another database",
        hint="enqueue on a connection to the database that the application's URL names",
    )
