"""A SQLite file: its readers, and the one connection that writes.

Safe with several processes on one file. Refuses network filesystems, and use across a fork. Every
write starts IMMEDIATE; readers cannot write at all.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from tenure.core.instants import Instant
from tenure.core.views.job_search import ERROR_CHARS
from tenure.deadlines import Deadline, deadline
from tenure.errors import Closed, StoreError
from tenure.ports import Clock, OnHint
from tenure.stores.sql.database import LISTING_SHARE, Database, Transaction
from tenure.stores.sql.statements import Statements, fill
from tenure.stores.sql.store import COLUMN_PLACEHOLDERS
from tenure.stores.sqlite.change_watch import ChangeWatch
from tenure.stores.sqlite.file import (
    PACKAGE,
    SqliteTransaction,
    connect,
    limit_statements,
    translated,
)
from tenure.stores.sqlite.writer import LOCK_SLICE_S, Writer

MAX_IDLE_READERS = 4

# From 3.43 on SQLite knows the size of a text without reading it.
_SIZE = "octet_length({})" if sqlite3.sqlite_version_info >= (3, 43) else "length(CAST({} AS blob))"

PLACEHOLDERS = COLUMN_PLACEHOLDERS | {
    "t": "tenure_",
    "uuid": "text",
    "committed": "TRUE",  # one writer: positions are in the order of commits
    "bytes": "blob",
    "body_bytes": f"({_SIZE.format('j.payload')} + coalesce({_SIZE.format('j.checkpoint')}, 0)"
    f" + coalesce({_SIZE.format('j.result')}, 0))",
    # The text in which a search looks for errors, in lower case of ASCII.
    "error_text": "lower(substr(coalesce(coalesce(error, last_error) ->> '$.type', '') || ': '"
    f" || coalesce(coalesce(error, last_error) ->> '$.message', ''), 1, {ERROR_CHARS}))",
    # One writer at a time needs no row locks.
    "lock": "",
    "skip_locked": "",
    "skip_locked_jobs": "",
    "begin_counted": "",
    "with_count_of_arm": "",
    "with_count_of_arms": "",
    # Without statistics SQLite takes another index that starts with the same columns.
    "by_leases": "INDEXED BY tenure_job_leased",
    "by_due": "INDEXED BY tenure_job_due",
    "by_blocked": "INDEXED BY tenure_job_blocked",
    "by_claimed": "INDEXED BY tenure_job_claimed",
    "by_flow": "INDEXED BY tenure_job_flow",
    "by_id": "INDEXED BY sqlite_autoindex_tenure_job_1",
    "by_flow_id": "INDEXED BY sqlite_autoindex_tenure_flow_1",
    "by_enqueue": "INDEXED BY tenure_job_listed",
    "listed_at": "enqueued_at",
    "listed_id": "id",
    "by_cancelled": "INDEXED BY tenure_job_cancelled",
    "by_ready": "INDEXED BY tenure_job_ready",
    "by_delayed": "INDEXED BY tenure_job_delayed",
    "true": "1",
    "false": "0",
    "this_kind": ":kind",
    "this_key": ":key",
    "by_key": "INDEXED BY tenure_job_of_key",
    "by_place_of_key": "INDEXED BY tenure_job_place_of_key",
    "by_rate_key": "INDEXED BY tenure_job_of_rate_key",
    "by_place_of_rate_key": "INDEXED BY tenure_job_place_of_rate_key",
    "by_rate_waits": "INDEXED BY tenure_dirty_key_once",
    "one_by_one": "",
    "each_name": "SELECT value AS name FROM json_each(:names)",
    "each_kind": "SELECT value AS kind FROM json_each(:kinds)",
    "smallint": "integer",
    "is_outside": "e.is_outside = 1",
    # SQLite has no arrays: a list travels as one JSON document.
    **{
        f"among_{name}": fill("IN (SELECT value FROM json_each(:{name}))", {"name": name})
        for name in ("ids", "workers", "queues", "kinds", "names", "statuses", "types")
    },
}

_T = TypeVar("_T")


@cache
def statements() -> Statements:
    """The statements of this dialect, read and compiled once for all stores of this process."""
    return Statements(PACKAGE, PLACEHOLDERS, placeholder="?")


class SqliteDialect(Database):
    """What every transaction of Tenure on SQLite has, also a caller's own."""

    def __init__(self) -> None:
        super().__init__(statements())

    def pack(self, values: Sequence[str]) -> str:
        return json.dumps(list(values))


class OpenSqlite(SqliteDialect):
    """A database that this process has opened."""

    def __init__(self, path: Path, clock: Clock) -> None:
        super().__init__()
        self.path = path
        self.clock = clock
        self.closed = False
        self._pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this process opened it: a connection must not cross a fork."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise if it must not be used."""
        if not self.is_ours:
            raise StoreError(
                "this store was opened before a fork, and a SQLite connection must not cross one",
                hint="open the store again in the child process",
            )
        if self.closed:
            raise Closed

    def now(self) -> Instant:
        """The injected clock."""
        self.check()
        return self.clock()


class SqliteDatabase(OpenSqlite):
    """One file. A call without a deadline of its own waits for `timeout_s` at most."""

    def __init__(self, path: Path, *, clock: Clock, timeout_s: float) -> None:
        super().__init__(path, clock)
        self._timeout_s = timeout_s
        self._file = _file_at(path)
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = threading.Lock()
        self.changes = ChangeWatch(lambda: connect(path, clock, LOCK_SLICE_S, reader=True), path)
        self.writer = Writer(
            lambda: connect(path, clock, LOCK_SLICE_S), path=path, timeout_s=timeout_s
        )

    def check(self) -> None:
        """Raise also if the file was deleted or another one has its name: SQLite would keep writing
        to the deleted one, and what is acknowledged would be gone with this process. [K14]"""
        super().check()
        if _file_at(self.path) != self._file:
            raise StoreError(
                f"{self.path} was deleted or replaced while this process had it open",
                hint="put the file back, or start this process again for a new store",
            )

    def watch(self, on_hint: OnHint) -> Callable[[], None]:
        """Call `on_hint` after a change of any process, without saying what changed."""
        self.check()
        return self.changes.add(on_hint)

    def checkpoint_soon(self) -> None:
        """Checkpoint after the current write of any process, if the log is large."""
        self.check()
        self.writer.checkpoint_soon()

    def close(self) -> None:
        """Finish what is being written and close every connection."""
        if self.closed or not self.is_ours:
            return
        self.closed = True
        self.changes.close()
        self.writer.close()
        with self._readers_lock:
            while self._readers:
                self._readers.pop().close()

    def read(
        self,
        work: Callable[[Transaction], _T],
        *,
        snapshot: bool = False,
        listing: bool = False,
        repeated: bool = False,
    ) -> _T:
        self.check()
        until = deadline(self._timeout_s * (LISTING_SHARE if listing else 1))
        with translated(self.path), self._reader(until) as connection:
            # One transaction, so that the rows and the clock of a call belong together. In WAL mode
            # a deferred transaction that only reads neither waits nor fails.
            connection.execute("BEGIN")
            result = work(SqliteTransaction(connection))
            connection.execute("COMMIT")
            return result

    @contextmanager
    def _reader(self, until: Deadline) -> Iterator[sqlite3.Connection]:
        with self._readers_lock:
            connection = self._readers.pop() if self._readers else None
        if connection is None:
            connection = connect(self.path, self.clock, self._timeout_s, reader=True)
        limit_statements(connection, until)
        try:
            yield connection
        except BaseException:
            # Whatever went wrong, the next reader starts from a fresh connection.
            with suppress(sqlite3.Error):
                connection.close()
            raise
        with self._readers_lock:
            if len(self._readers) < MAX_IDLE_READERS and not self.closed:
                self._readers.append(connection)
                return
        connection.close()

    def write(self, work: Callable[[Transaction], _T]) -> _T:
        self.check()
        return self.writer.run(lambda connection: work(SqliteTransaction(connection)))


def _file_at(path: Path) -> tuple[int, int] | None:
    """Which file has this name now; None for none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - half the time of Path.stat, and every call asks
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
