"""The connections that callers bring: which driver is behind one, and a transaction on it.

Recognises sqlite3, psycopg 3, SQLAlchemy and Django without importing any of them: a library that
was not imported cannot have made the connection. A transaction begins and ends by the means of the
library that made the connection.
"""

import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

from tenure.errors import InvalidInput

_KNOWN = "sqlite3, psycopg 3, a SQLAlchemy Connection or Session, or a Django connection"

CheckOpen = Callable[[], None]
"""Raises if the transaction was ended inside its block."""


# --- The driver's connection ---------------------------------------------------------------------


def driver_connection(connection: Any) -> Any:
    """The sqlite3 or psycopg connection behind `connection`, in the transaction it is part of."""
    if _is_sqlalchemy_session(connection):
        connection = connection.connection()  # enlists it: the session's commit is the job's
    if _is_sqlalchemy_connection(connection):
        if not connection.in_transaction():
            connection.begin()  # as any statement would; else its commit would commit nothing
        connection = connection.connection.driver_connection
    elif _is_django(connection):
        connection = _behind_django(connection)
    if isinstance(connection, sqlite3.Connection) or _is(connection, "psycopg", "Connection"):
        return connection
    if _is_async_psycopg(connection):
        raise InvalidInput(
            "connection", "is asynchronous", hint="use `await ….using(connection=…).aenqueue(…)`"
        )
    raise _unknown(connection)


def async_driver_connection(connection: Any) -> Any:
    """The asynchronous psycopg connection that `connection` is."""
    if _is_async_psycopg(connection):
        return connection
    if _is(connection, "sqlalchemy.ext.asyncio", "AsyncConnection", "AsyncSession"):
        raise _unknown(connection)
    driver_connection(connection)
    raise InvalidInput(
        "connection",
        "is synchronous and would block the event loop",
        hint="use enqueue in a thread of its own, or an asynchronous psycopg connection",
    )


def another_database(kind: str) -> InvalidInput:
    """The error for a connection that leads to another kind of database than the store's."""
    return InvalidInput(
        "connection",
        f"is a {kind} connection, and this application's jobs are in another database",
        hint="enqueue on a connection to the database that the application's URL names",
    )


def _is(value: Any, module: str, *names: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and any(isinstance(value, getattr(loaded, name)) for name in names)


def _is_async_psycopg(connection: Any) -> bool:
    return _is(connection, "psycopg", "AsyncConnection")


def _is_sqlalchemy_session(connection: Any) -> bool:
    return _is(connection, "sqlalchemy.orm", "Session", "scoped_session")


def _is_sqlalchemy_connection(connection: Any) -> bool:
    return _is(connection, "sqlalchemy.engine", "Connection")


def _is_django(connection: Any) -> bool:
    # By its attributes: `django.db.connection` is a proxy that is no instance of the wrapper.
    return "django.db" in sys.modules and hasattr(connection, "in_atomic_block")


def _behind_django(connection: Any) -> Any:
    if not connection.in_atomic_block:
        raise InvalidInput(
            "connection",
            "has no open transaction that the job could become part of",
            hint="enqueue within transaction.atomic()",
        )
    connection.ensure_connection()
    return connection.connection


def _unknown(connection: Any) -> InvalidInput:
    kind = type(connection)
    name = f"{kind.__module__}.{kind.__qualname__}"
    hint = f"give {_KNOWN}"
    if kind.__module__.startswith("sqlalchemy"):
        hint = "begin, and give (await connection.get_raw_connection()).driver_connection"
    elif kind.__module__.startswith("psycopg2"):
        hint = "psycopg2 is not supported: use psycopg 3 (postgresql+psycopg:// in SQLAlchemy)"
    return InvalidInput("connection", f"{name[:80]} is not a connection Tenure knows", hint=hint)


# --- A transaction on it -------------------------------------------------------------------------


@contextmanager
def transaction_block(connection: Any) -> Iterator[CheckOpen]:
    """A transaction of its own: commits at the end of the block, rolls back if the block raises.

    Refuses a connection on which a transaction is already open: what was written there before
    could be neither fenced nor undone with the block.
    """
    if isinstance(connection, sqlite3.Connection):
        with _sqlite_block(connection) as check:
            yield check
        return
    with _library_block(connection):
        yield _always_open  # these libraries refuse a commit inside the block themselves


@asynccontextmanager
async def async_transaction_block(connection: Any) -> AsyncIterator[CheckOpen]:
    """`transaction_block` on an asynchronous connection."""
    driver = async_driver_connection(connection)
    _refuse_open(_is_open(driver))
    async with driver.transaction():
        yield _always_open


def _library_block(connection: Any) -> AbstractContextManager[Any]:
    block: AbstractContextManager[Any]
    if _is_sqlalchemy_session(connection) or _is_sqlalchemy_connection(connection):
        _refuse_open(connection.in_transaction())
        block = connection.begin()
    elif _is_django(connection):
        _refuse_open(connection.in_atomic_block)
        block = sys.modules["django.db.transaction"].atomic(using=connection.alias)
    else:
        driver = driver_connection(connection)
        _refuse_open(_is_open(driver))
        block = driver.transaction()
    return block


@contextmanager
def _sqlite_block(connection: sqlite3.Connection) -> Iterator[CheckOpen]:
    # Since Python 3.12 a connection can be set up to keep a transaction open at all times.
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
        connection.execute(word)  # commit() and rollback() do nothing on such a connection
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


def _always_open() -> None:
    pass
