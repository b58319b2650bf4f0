"""Connections of other libraries: which driver's connection is behind them.

Recognises sqlite3, psycopg 3, SQLAlchemy and Django without importing any of them: a library that
was not imported cannot have made the connection.
"""

import sqlite3
import sys
from typing import Any

from tenure.errors import InvalidInput

_KNOWN = "sqlite3, psycopg 3, a SQLAlchemy Connection or Session, or a Django connection"


def driver_connection(connection: Any) -> Any:
    """The sqlite3 or psycopg connection behind `connection`, in the transaction it is part of."""
    if _is(connection, "sqlalchemy.orm", "Session", "scoped_session"):
        connection = connection.connection()  # enlists it: the session's commit is the job's
    if _is(connection, "sqlalchemy.engine", "Connection"):
        if not connection.in_transaction():
            connection.begin()  # as any statement would; else its commit would commit nothing
        connection = connection.connection.driver_connection
    elif _is_django(connection):
        connection = _behind_django(connection)
    if isinstance(connection, sqlite3.Connection) or is_psycopg(connection):
        return connection
    if is_async_psycopg(connection):
        raise InvalidInput(
            "connection", "is asynchronous", hint="use `await ….aenqueue(…, connection=…)`"
        )
    raise _unknown(connection)


def async_driver_connection(connection: Any) -> Any:
    """The same for asynchronous code."""
    if is_async_psycopg(connection):
        return connection
    if _is(connection, "sqlalchemy.ext.asyncio", "AsyncConnection", "AsyncSession"):
        raise _unknown(connection)
    driver_connection(connection)
    raise InvalidInput(
        "connection",
        "is synchronous and would block the event loop",
        hint="use enqueue in a thread of its own, or an asynchronous psycopg connection",
    )


def is_psycopg(connection: Any) -> bool:
    """Whether it is a synchronous connection of psycopg 3."""
    return _is(connection, "psycopg", "Connection")


def is_async_psycopg(connection: Any) -> bool:
    """Whether it is an asynchronous connection of psycopg 3."""
    return _is(connection, "psycopg", "AsyncConnection")


def _is(value: Any, module: str, *names: str) -> bool:
    loaded = sys.modules.get(module)
    return loaded is not None and any(isinstance(value, getattr(loaded, name)) for name in names)


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
