"""Our own stores as the conformance kit wants them: factories with virtual clocks."""

import tempfile
import time
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from tenure.core.instants import Duration
from tenure.ports import Clock, Store
from tenure.stores.postgres.schema import (
    DEFAULT_SCHEMA,
    complete_dsn,
    connect,
    schema_placeholders,
)
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.clocks import PostgresTestClock, install_test_clock
from tenure_conformance.harness import BEGINNING, MemoryFactory, VirtualClock
from tests.conformance.model import Model
from tests.support.databases import empty_sqlite_file
from tests.support.postgres import PostgresServer

__all__ = ["MemoryFactory", "ModelFactory", "PostgresDatabases", "PostgresFactory", "SqliteFactory"]


class ModelFactory(MemoryFactory):
    """The model, on the clock of a store in memory."""

    def make(self, clock: Clock) -> Store:
        return cast(Store, Model(clock))


class SqliteFactory:
    """SQLite in a directory of its own, in memory where the system has such a place."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        fast = Path("/dev/shm")  # noqa: S108 - a private directory is made in it
        self._directory = tempfile.TemporaryDirectory(
            prefix="tenure-kit-", dir=fast if fast.is_dir() else None
        )
        self._path = Path(self._directory.name) / "tenure.db"
        self._path.write_bytes(empty_sqlite_file())
        self._opened: list[Store] = []

    def open(self) -> Store:
        """A handle on the file."""
        store = SqliteStore(self._path, clock=self.clock)
        self._opened.append(store)
        return store

    def reopen(self) -> Store:
        """Another connection, as another process has it."""
        return self.open()

    def advance(self, by: Duration) -> None:
        """Every handle reads the same clock."""
        self.clock.advance(by)

    def close(self) -> None:
        """Close all handles, remove the file."""
        for store in self._opened:
            store.close()
        self._directory.cleanup()


class PostgresDatabases:
    """Databases of one server for tests that come one after the other, on virtual time.

    The first is migrated, the others are copies of it. A database that a test gives back is emptied
    and given to the next one: that costs 5 ms, a copy and its removal 100. The rows of a new
    database (the epoch, for example) are kept in a schema beside it, from which they return.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        dsn = server.create_database()
        PostgresStore(dsn, migrate=True).close()
        install_test_clock(dsn, now=BEGINNING).close()
        with psycopg.connect(dsn) as connection:
            self._emptying = _emptying(connection).as_bytes(connection)
        self._template = urlsplit(dsn).path.removeprefix("/")
        self._free: list[Database] = []

    def take(self) -> "Database":
        """An empty database."""
        if self._free:
            return self._free.pop()
        return Database(self._server.create_database(template=self._template))

    def give_back(self, database: "Database") -> None:
        """Empty a database for the next test, or drop it: dead rows must not slow down tests, and
        a connection that a test left open must not see the next one's jobs."""
        database.uses += 1
        if database.uses < MOST_USES and database.is_left():
            database.connection.execute(self._emptying)
            self._free.append(database)
            return
        self._drop(database)

    def close(self) -> None:
        """Drop those that no test uses."""
        while self._free:
            self._drop(self._free.pop())

    def _drop(self, database: "Database") -> None:
        database.connection.close()
        self._server.drop_database(database.dsn)


class Database:
    """One of them, with the connection that moves its clock and empties it."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.connection = connect(complete_dsn(dsn))
        self.uses = 0

    def is_left(self) -> bool:
        """Whether all other connections are closed. The server ends a process for each some
        milliseconds after the client has gone; to make a new database instead costs 60."""
        give_up_at = time.monotonic() + LEAVES_WITHIN_S
        while self.connection.execute(_OTHERS).fetchall():
            if time.monotonic() > give_up_at:
                return False
            time.sleep(0.002)
        return True


MOST_USES = 50
LEAVES_WITHIN_S = 0.5

_OTHERS = """
SELECT 1 FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend'
   AND pid <> pg_backend_pid() LIMIT 1
"""


def _emptying(connection: psycopg.Connection) -> sql.Composed:
    """Keeps the rows that a new database has. Returns the statements that leave just these."""
    values = {"schema": sql.Identifier(DEFAULT_SCHEMA)}
    connection.execute("CREATE SCHEMA as_new")
    guarded, emptied, filled = [], [], []
    for name, has_guards in connection.execute(
        "SELECT relname, relhastriggers FROM pg_class WHERE relkind = 'r'"
        " AND relnamespace = %s::regnamespace ORDER BY relname",
        [DEFAULT_SCHEMA],
    ).fetchall():
        table = values | {"table": sql.Identifier(name)}
        guarded += [table] * has_guards
        emptied.append(sql.SQL("DELETE FROM {schema}.{table}").format(**table))
        copy = sql.SQL("CREATE TABLE as_new.{table} AS TABLE {schema}.{table}").format(**table)
        if connection.execute(copy).rowcount:
            back = sql.SQL("INSERT INTO {schema}.{table} TABLE as_new.{table}")
            filled.append(back.format(**table))
    switch = sql.SQL("ALTER TABLE {schema}.{table} {how} TRIGGER USER")
    off, on = (
        [switch.format(how=sql.SQL(how), **table) for table in guarded]
        for how in ("DISABLE", "ENABLE")
    )
    setval = sql.SQL("SELECT setval('{schema}.test_clock', {now})")
    clock = setval.format(now=sql.Literal(int(BEGINNING)), **values)
    steps = [sql.SQL("BEGIN"), *off, *emptied, *filled, *on, clock, sql.SQL("COMMIT")]
    return sql.SQL(";").join(steps)


class PostgresFactory:
    """PostgreSQL in a database that no other test uses meanwhile."""

    def __init__(self, databases: PostgresDatabases) -> None:
        self._databases = databases
        self._database = databases.take()
        values = schema_placeholders(DEFAULT_SCHEMA)
        self._clock = PostgresTestClock(self._database.connection, values)
        self._opened: list[Store] = []

    def open(self) -> Store:
        """A pool on the database."""
        store = PostgresStore(self._database.dsn)
        self._opened.append(store)
        return store

    def reopen(self) -> Store:
        """Another pool, as another process has it."""
        return self.open()

    def advance(self, by: Duration) -> None:
        """The clock is the database's."""
        self._clock.advance(by)

    def close(self) -> None:
        """Close all pools, give the database to the next test."""
        for store in self._opened:
            store.close()
        self._databases.give_back(self._database)
