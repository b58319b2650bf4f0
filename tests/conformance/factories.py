"""Our own stores as the conformance kit wants them: factories with virtual clocks."""

import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from tenure.core.instants import Duration
from tenure.ports import Store
from tenure.stores.postgres.schema import (
    DEFAULT_SCHEMA,
    complete_dsn,
    connect,
    schema_words,
)
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.clocks import PostgresTestClock, install_test_clock
from tenure_conformance.harness import BEGINNING, MemoryFactory, VirtualClock
from tests.support.postgres import PostgresServer

__all__ = ["MemoryFactory", "PostgresFactory", "SqliteFactory", "make_template"]


class SqliteFactory:
    """SQLite in a directory of its own, in memory where the system has such a place."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        fast = Path("/dev/shm")  # noqa: S108 - a private directory is made in it
        self._directory = tempfile.TemporaryDirectory(
            prefix="tenure-kit-", dir=fast if fast.is_dir() else None
        )
        self._path = Path(self._directory.name) / "tenure.db"
        self._opened: list[Store] = []

    def open(self) -> Store:
        """The file, created and migrated by the first handle."""
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


def make_template(server: PostgresServer) -> str:
    """The name of a migrated, empty database on virtual time. Copying it is cheap, migrating
    one for every test is not."""
    dsn = server.create_database()
    PostgresStore(dsn, migrate=True).close()
    install_test_clock(dsn, now=BEGINNING).close()
    return urlsplit(dsn).path.removeprefix("/")


class PostgresFactory:
    """PostgreSQL in a database of its own, copied from a template."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self._server = server
        self._dsn = server.create_database(template=template)
        self._clock = PostgresTestClock(
            connect(complete_dsn(self._dsn)), schema_words(DEFAULT_SCHEMA)
        )
        self._opened: list[Store] = []

    def open(self) -> Store:
        """A pool on the database."""
        store = PostgresStore(self._dsn)
        self._opened.append(store)
        return store

    def reopen(self) -> Store:
        """Another pool, as another process has it."""
        return self.open()

    def advance(self, by: Duration) -> None:
        """The clock is the database's."""
        self._clock.advance(by)

    def close(self) -> None:
        """Close all pools, drop the database."""
        for store in self._opened:
            store.close()
        self._clock.close()
        self._server.drop_database(self._dsn)
