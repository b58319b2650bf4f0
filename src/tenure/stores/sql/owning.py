"""A transaction on a caller's connection from its beginning to its commit, by the means of the
library that made the connection.

Refuses a connection on which a transaction is open already: what was written there before could
be neither fenced nor undone with the block.
"""

import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

from tenure.errors import InvalidInput
from tenure.stores.sql.foreign import (
    _is,
    _is_django,
    async_driver_connection,
    driver_connection,
)

Check = Callable[[], None]
"""Raises if the transaction was ended inside its block."""


@contextmanager
def own_transaction(connection: Any) -> Iterator[Check]:
    """Commit at the end of the block, roll back if it raises."""
    if isinstance(connection, sqlite3.Connection):
        with _on_sqlite(connection) as check:
            yield check
        return
    with _scope(connection):
        yield _nothing  # these libraries refuse a commit inside the block themselves


@asynccontextmanager
async def own_async_transaction(connection: Any) -> AsyncIterator[Check]:
    """The same on an asynchronous connection."""
    driver = async_driver_connection(connection)
    _refuse_open(_is_open(driver))
    async with driver.transaction():
        yield _nothing


def _scope(connection: Any) -> AbstractContextManager[Any]:
    scope: AbstractContextManager[Any]
    if _is(connection, "sqlalchemy.orm", "Session", "scoped_session") or _is(
        connection, "sqlalchemy.engine", "Connection"
    ):
        _refuse_open(connection.in_transaction())
        scope = connection.begin()
    elif _is_django(connection):
        _refuse_open(connection.in_atomic_block)
        scope = sys.modules["django.db.transaction"].atomic(using=connection.alias)
    else:
        driver = driver_connection(connection)
        _refuse_open(_is_open(driver))
        scope = driver.transaction()
    return scope


@contextmanager
def _on_sqlite(connection: sqlite3.Connection) -> Iterator[Check]:
    # Since Python 3.12 a connection can be told to keep a transaction open at all times.
    if getattr(connection, "autocommit", None) is not False:
        _refuse_open(connection.in_transaction)
        # A transaction that begins with a read may be refused the write for good.
        connection.execute("BEGIN IMMEDIATE")

    def check() -> None:
        if not connection.in_transaction:
            raise InvalidInput(
                "connection",
                "its transaction was ended inside the block",
                hint="leave commit, rollback and executescript to ctx.transaction()",
            )

    try:
        yield check
        _end(connection, "COMMIT")
    except BaseException:
        if connection.in_transaction:
            _end(connection, "ROLLBACK")
        raise


def _end(connection: sqlite3.Connection, word: str) -> None:
    if getattr(connection, "autocommit", None) is True:
        connection.execute(word)  # its own methods do nothing then
    elif word == "COMMIT":
        connection.commit()
    else:
        connection.rollback()


def _is_open(driver: Any) -> bool:
    from psycopg.pq import TransactionStatus

    return bool(driver.info.transaction_status != TransactionStatus.IDLE)


def _refuse_open(is_open: bool) -> None:
    if is_open:
        raise InvalidInput(
            "connection",
            "has an open transaction already",
            hint="commit first: the block of ctx.transaction() is a transaction of its own",
        )


def _nothing() -> None:
    pass
