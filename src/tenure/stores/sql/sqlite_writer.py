"""The one writer of a SQLite file in this process: a thread with a queue, and group commit.

SQLite lets one connection write at a time and wakes the waiting ones unfairly; a queue is fair.
Work that waits while a commit reaches the disk shares the next commit. Work must be repeatable:
when one piece of a group fails, the group is rolled back and each piece runs alone.
"""

import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from tenure.errors import Closed, OutcomeUnknown
from tenure.stores.sql.sqlite_file import translated

MAX_GROUP = 64
"""How many pieces of work share one commit at most: a bound on what one failure repeats."""

CHECKPOINT_AT_BYTES = 8 << 20
"""The size of the write-ahead log at which the writer folds it back into the file."""

_T = TypeVar("_T")
_Work = Callable[[sqlite3.Connection], Any]
_Task = tuple[_Work, "Future[Any]"]


class Writer:
    """Runs work in transactions, in order of arrival."""

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], *, path: Path, busy_timeout_s: float
    ) -> None:
        self._connect = connect
        self._path = path
        self._checkpoint_at = CHECKPOINT_AT_BYTES
        self._wait_for_lock = f"PRAGMA busy_timeout = {int(busy_timeout_s * 1000)}"
        self._wal = path.with_name(path.name + "-wal")
        self._connection: sqlite3.Connection | None = None
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="tenure-sqlite", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Do the work in a transaction; it is on the disk when this returns."""
        answer: Future[_T] = Future()
        with self._closing:
            if self._closed:
                raise Closed
            self._tasks.put((work, answer))
        return answer.result()

    def close(self) -> None:
        """Finish what is queued, then end."""
        with self._closing:
            if not self._closed:
                self._closed = True
                self._tasks.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while True:
            group = self._next_group()
            self._settle([task for task in group if task is not None])
            if None in group:
                self._drop_connection()
                return

    def _next_group(self) -> list[_Task | None]:
        group = [self._tasks.get()]
        while group[-1] is not None and len(group) < MAX_GROUP:
            try:
                group.append(self._tasks.get_nowait())
            except queue.Empty:
                break
        return group

    def _settle(self, tasks: Sequence[_Task]) -> None:
        """Run the tasks in one transaction, or each in its own when one of them fails."""
        try:
            results = self._transact([work for work, _ in tasks])
        except Exception as failure:  # the caller's to see, not this thread's to die of
            if len(tasks) > 1 and not isinstance(failure, OutcomeUnknown):
                for task in tasks:
                    self._settle([task])
                return
            for _, answer in tasks:
                answer.set_exception(failure)
            return
        for (_, answer), result in zip(tasks, results, strict=True):
            answer.set_result(result)

    def _transact(self, works: Sequence[_Work]) -> list[Any]:
        if not works:
            return []
        try:
            with translated(self._path):
                if self._connection is None:
                    self._connection = self._connect()
                self._connection.execute("BEGIN IMMEDIATE")
                results = [work(self._connection) for work in works]
            with translated(self._path, committing=True):
                self._connection.execute("COMMIT")
        except BaseException:
            # What SQLite has undone by itself depends on the error: undo all of it, and take a
            # fresh connection that has no memory of what happened.
            self._drop_connection()
            raise
        self._checkpoint(self._connection)
        return results

    def _drop_connection(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        """Fold the log back when it is large. TRUNCATE takes the write lock, so that nobody
        writes at the same instant. It does not wait for readers: while one is in the way, the
        log is left to grow by as much again before the next try."""
        try:
            size = self._wal.stat().st_size
        except FileNotFoundError:
            return
        if size < self._checkpoint_at:
            return
        with suppress(sqlite3.Error):
            connection.execute("PRAGMA busy_timeout = 0")
            try:
                [(is_busy, _, _)] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                connection.execute(self._wait_for_lock)
            self._checkpoint_at = CHECKPOINT_AT_BYTES + (size if is_busy else 0)
