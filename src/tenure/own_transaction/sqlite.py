"""A SQLite store on a caller's connection: the caller commits, or rolls back, what it writes.

The same statements and the same row mapper as the store itself. Begins a transaction where Python
would begin one itself, never commits, and leaves the connection's settings unchanged, except that
the connection no longer checkpoints by itself: before SQLite 3.51.3 an automatic checkpoint during
another process's write can damage the file. Tenure's writer checkpoints instead, and the connection
truncates the log with its first write after that.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from tenure.core.ids import Epoch
from tenure.core.outcomes import Change
from tenure.errors import InvalidInput
from tenure.own_transaction.connections import another_database
from tenure.ports import ANY_TIME, ClockWindow, Saved, Store
from tenure.stores.sql.database import Transaction
from tenure.stores.sql.flows import SqlFlows
from tenure.stores.sql.jobs import MarkDirty, SqlJobs
from tenure.stores.sqlite.database import SqliteDialect
from tenure.stores.sqlite.file import SqliteTransaction
from tenure.stores.sqlite.jobs import SqliteJobs
from tenure.stores.sqlite.store import SqliteParts, SqliteStore

_T = TypeVar("_T")


class _PlainRows:
    """The caller's connection, giving plain tuples whatever its row factory is."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self._connection.cursor(sqlite3.Cursor)
        cursor.row_factory = None
        return cursor

    def execute(self, text: str, parameters: Any = ()) -> sqlite3.Cursor:
        return self._cursor().execute(text, parameters)


class _BorrowedSqliteJobs(SqliteJobs):
    """Saves within the transaction of a caller."""

    def __init__(
        self, database: "CallersSqlite", flows: SqlFlows, *, mark_dirty: MarkDirty
    ) -> None:
        super().__init__(database, flows, mark_dirty=mark_dirty)
        self._tx = database.tx

    def save(
        self, changes: Iterable[Change], *, epoch: Epoch, window: ClockWindow = ANY_TIME
    ) -> Saved:
        """See the port; the caller commits."""
        whole = list(changes)
        if not any(change.spawned for change in whole):
            return self.save_on(self._tx, whole, epoch, window)
        # A flow that the store refuses is an answer, not an error: no half of it may stay. [FL3]
        connection = self._tx.connection
        connection.execute("SAVEPOINT tenure_save")
        try:
            saved = self.save_on(self._tx, whole, epoch, window)
        except BaseException:
            with suppress(sqlite3.Error):  # a full disk has rolled back the whole transaction
                connection.execute("ROLLBACK TO tenure_save")
                connection.execute("RELEASE tenure_save")
            raise
        connection.execute("RELEASE tenure_save")
        return saved


class CallersSqlite(SqliteDialect):
    """One connection, within its transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__()
        self.tx = SqliteTransaction(cast(sqlite3.Connection, _PlainRows(connection)))

    def read(
        self,
        work: Callable[[Transaction], _T],
        *,
        snapshot: bool = False,
        listing: bool = False,
        repeated: bool = False,
    ) -> _T:
        return work(self.tx)

    def write(self, work: Callable[[Transaction], _T]) -> _T:
        return work(self.tx)


class BorrowedSqliteStore(SqliteParts):
    """Loads and saves on one connection, within its transaction."""

    database: CallersSqlite

    def __init__(self, lender: SqliteStore, connection: sqlite3.Connection) -> None:
        super().__init__(CallersSqlite(connection))
        self.jobs.registered = lender.jobs.registered.copy()

    def _make_jobs(self, flows: SqlFlows, mark_dirty: MarkDirty) -> SqlJobs:
        return _BorrowedSqliteJobs(self.database, flows, mark_dirty=mark_dirty)


@contextmanager
def store_on(lender: Store, connection: sqlite3.Connection) -> Iterator[Store]:
    """`lender`, reading and writing within the transaction of `connection`. What the block wrote is
    undone if it raises."""
    if not isinstance(lender, SqliteStore):
        raise another_database("SQLite")
    if _name_of_file(connection, lender.database.path) == "main":
        # Not if it is attached: the first setting applies to all files of the connection.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA main.journal_size_limit = 0")  # as Tenure's own connections
    _ensure_transaction(connection)
    _ensure_clock(connection, lender)
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        # A job without its event must not survive an error that the caller then ignores.
        connection.execute("SAVEPOINT tenure_enqueue")
        try:
            yield cast(Store, BorrowedSqliteStore(lender, connection))
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK TO tenure_enqueue")
                connection.execute("RELEASE tenure_enqueue")
            raise
        connection.execute("RELEASE tenure_enqueue")
    finally:
        connection.text_factory = text_factory
    lender.database.checkpoint_soon()


def _name_of_file(connection: sqlite3.Connection, path: Path) -> str:
    """The schema name of the file on this connection: `main`, or the name it is attached by."""
    for _, *row in _PlainRows(connection).execute("PRAGMA database_list"):
        name, file = [text.decode() if isinstance(text, bytes) else text for text in row]
        if file and Path(file).exists() and Path(file).samefile(path):
            return str(name)
    raise InvalidInput(
        "connection",
        f"is not a connection to {path}, where this application's jobs are",
        hint="connect to that file, or ATTACH it",
    )


def _ensure_transaction(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        return
    if connection.isolation_level is None or getattr(connection, "autocommit", False) is True:
        raise InvalidInput(
            "connection",
            "has no open transaction that the job could become part of",
            hint="execute BEGIN IMMEDIATE first, and COMMIT after",
        )
    # Python would begin a transaction at the first write, but after our reads, and a transaction
    # that begins with a read may be refused the write for good.
    connection.execute("BEGIN IMMEDIATE")


def _ensure_clock(connection: sqlite3.Connection, lender: SqliteStore) -> None:
    """`tenure_clock()` on this connection; not twice, which fails while a cursor is being read."""
    try:
        connection.execute("SELECT tenure_clock()")
    except sqlite3.OperationalError:
        connection.create_function("tenure_clock", 0, lender.database.clock)
