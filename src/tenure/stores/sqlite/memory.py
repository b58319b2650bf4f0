"""`memory://`: SQLite in this process's memory, for tests and first steps.

One connection under one lock: no file, no thread, no other process. It forgets everything when it
is closed. Statements, schema and guards are the same as for a file, so that what passes here passes
there.
"""

import threading
import weakref
from collections.abc import Callable
from contextlib import closing
from functools import cache
from typing import TypeVar

from tenure.clock import host_clock
from tenure.ports import Clock, HealthFact, OnHint, fact
from tenure.stores.hints import Watchers
from tenure.stores.sql.database import Transaction
from tenure.stores.sqlite.database import OpenSqlite
from tenure.stores.sqlite.file import (
    IN_MEMORY,
    SqliteTransaction,
    apply_migrations,
    connect,
    translated,
)
from tenure.stores.sqlite.store import SqliteParts
from tenure.stores.urls import StoreOptions

_T = TypeVar("_T")


def open_store(_url: str, _options: StoreOptions) -> "MemoryStore":
    """A new and empty store, whatever the URL and the options are."""
    return MemoryStore()


class MemoryDatabase(OpenSqlite):
    """A database without a file. A call waits for calls of other threads of this process and for
    nothing else, so that it has no time limit."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(IN_MEMORY, clock)
        self.watchers = Watchers()
        self._lock = threading.RLock()
        self._connection = connect(IN_MEMORY, clock, 0.0)
        # Whether or not the store is closed: there is nothing to lose.
        weakref.finalize(self, self._connection.close)
        self._connection.deserialize(_empty_store())

    def close(self) -> None:
        """Forget everything."""
        if self.is_ours:
            with self._lock:
                self.closed = True
                self._connection.close()

    def read(
        self,
        work: Callable[[Transaction], _T],
        *,
        snapshot: bool = False,
        listing: bool = False,
        repeated: bool = False,
    ) -> _T:
        return self._transact(work)

    def write(self, work: Callable[[Transaction], _T]) -> _T:
        with self._lock:
            self.check()
            before = self._connection.total_changes
            result = self._transact(work)
            is_changed = self._connection.total_changes != before
        if is_changed:
            self.watchers.notify(None)
        return result

    def _transact(self, work: Callable[[Transaction], _T]) -> _T:
        """Run the work in a transaction, or in the one of the work that asks for it."""
        with self._lock:
            self.check()
            connection = self._connection
            with translated(IN_MEMORY):
                if connection.in_transaction:
                    return work(SqliteTransaction(connection))
                connection.execute("BEGIN")
                try:
                    result = work(SqliteTransaction(connection))
                except BaseException:
                    connection.execute("ROLLBACK")
                    raise
                connection.execute("COMMIT")
                return result


class MemoryStore(SqliteParts):
    """`tenure.ports.Store` in a SQLite database without a file."""

    database: MemoryDatabase

    def __init__(self, *, clock: Clock = host_clock) -> None:
        super().__init__(MemoryDatabase(clock))

    def health(self) -> list[HealthFact]:
        """What is true of every store in memory."""
        [(version, epoch)] = self._rows(self._query("health_meta"))
        return [
            fact(
                "store",
                "memory",
                warning=True,
                advice="nothing survives this process; use sqlite:///file.db or PostgreSQL",
            ),
            fact("schema_version", version),
            fact("epoch", epoch),
        ]

    def watch(self, on_hint: OnHint) -> Callable[[], None]:
        """Call `on_hint` after any change, without saying what changed."""
        self.database.check()
        return self.database.watchers.add(on_hint)

    def close(self) -> None:
        """Forget everything."""
        self.database.close()


@cache
def _empty_store() -> bytes:
    """A database with the schema and nothing in it. Copying it takes a tenth of the time of
    creating one, and tests open thousands."""
    with closing(connect(IN_MEMORY, host_clock, 0.0)) as connection:
        apply_migrations(connection)
        return connection.serialize()
