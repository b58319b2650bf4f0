"""The one writer of a SQLite file in this process: a thread with a queue, and group commit.

SQLite lets one connection write at a time and wakes waiting ones in any order; a queue is fair.
Work that arrives during a commit shares the next one. Work must be repeatable: when one piece of a
group fails, the group is rolled back and each piece runs alone.

No caller waits longer than its deadline. [K6] Work that has not started by then is withdrawn and
never runs; the outcome of work that has started is unknown.
"""

import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path
from time import sleep
from typing import Any, Generic, TypeVar

from tenure.deadlines import Deadline, deadline
from tenure.errors import Closed, OutcomeUnknown, StoreUnavailable
from tenure.stores.sqlite.file import error_code, translated

MAX_GROUP = 64
"""How many pieces of work share one commit at most. Limits how many one failure repeats."""

CHECKPOINT_AT_BYTES = 8 << 20
"""The size of the write-ahead log at which the writer checkpoints it into the file."""

PATIENT_CHECKPOINT_AT = 4
"""From this many times that size on, a checkpoint waits for the readers that are in its way."""

READERS_WAIT_S = 0.05
"""How long such a checkpoint waits each time. Readers that start meanwhile are not in its way, so
that it is enough to wait for the longest read. No process writes during this time."""

LOCK_SLICE_S = 0.5
"""How long SQLite waits for the file's lock at a time; then the writer checks whether a caller
still waits."""

GRACE_S = 0.25
"""How much longer a caller waits for work that is being written at its deadline: this process may
have been suspended."""

_COPY = "PRAGMA wal_checkpoint(PASSIVE)"

_T = TypeVar("_T")


class _Task(Generic[_T]):
    """One piece of work, and the future of its caller."""

    __slots__ = ("answer", "deadline", "work")

    def __init__(self, work: Callable[[sqlite3.Connection], _T], until: Deadline) -> None:
        self.work = work
        self.deadline = until
        self.answer: Future[_T] = Future()

    def may_run(self) -> bool:
        """Whether its caller still waits. If so, it cannot be withdrawn any more."""
        if self.answer.running():
            return True
        return not self.answer.cancelled() and self.answer.set_running_or_notify_cancel()


class Writer:
    """Runs work in transactions, in order of arrival."""

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], *, path: Path, timeout_s: float
    ) -> None:
        self._connect = connect
        self._path = path
        self._timeout_s = timeout_s
        self._checkpoint_at = CHECKPOINT_AT_BYTES
        self._wal = path.with_name(path.name + "-wal")
        self._connection: sqlite3.Connection | None = None
        self._tasks: queue.SimpleQueue[_Task[Any] | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="tenure-sqlite", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Do the work in a transaction; it is on the disk when this returns."""
        task = _Task[_T](work, deadline(self._timeout_s))
        with self._closing:
            if self._closed:
                raise Closed
            self._tasks.put(task)
        return self._answer(task)

    def _answer(self, task: _Task[_T]) -> _T:
        with suppress(TimeoutError):
            return task.answer.result(task.deadline.remaining_s)
        if task.answer.cancel():
            raise StoreUnavailable(
                f"{self._path} could not be written in time: locked, or busy with other work",
                hint="send the same request again",
            )
        with suppress(TimeoutError):
            return task.answer.result(GRACE_S)
        raise OutcomeUnknown(
            f"{self._path} has not finished a write in time", hint="send the same request again"
        )

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
            if self._connection is not None:
                self._checkpoint(self._connection)  # now that the callers have their answers
            if None in group:
                self._drop_connection()
                return

    def _next_group(self) -> list[_Task[Any] | None]:
        group = [self._tasks.get()]
        while group[-1] is not None and len(group) < MAX_GROUP:
            try:
                group.append(self._tasks.get_nowait())
            except queue.Empty:
                break
        return group

    def _settle(self, tasks: Sequence[_Task[Any]]) -> None:
        """Run the tasks in one transaction, or each in its own when one of them fails."""
        running: list[_Task[Any]] = []
        try:
            results = self._transact(tasks, running)
        except Exception as failure:  # handed to the caller; this thread keeps running
            failed = running or [task for task in tasks if task.may_run()]
            if len(failed) > 1 and running and not isinstance(failure, OutcomeUnknown):
                for task in failed:
                    self._settle([task])
                return
            for task in failed:
                task.answer.set_exception(failure)
            return
        for task, result in zip(running, results, strict=True):
            task.answer.set_result(result)

    def _transact(self, tasks: Sequence[_Task[Any]], running: list[_Task[Any]]) -> list[Any]:
        """Run the tasks whose callers still wait once the lock is held. Adds them to `running`, and
        returns their results."""
        if not tasks:
            return []
        try:
            with translated(self._path):
                if self._connection is None:
                    self._connection = self._connect()
                if not self._begin(self._connection, tasks):
                    return []
                running += [task for task in tasks if task.may_run()]
                results = [task.work(self._connection) for task in running]
            with translated(self._path, committing=True):
                self._connection.execute("COMMIT")
        except BaseException:
            # How much SQLite has rolled back depends on the error: roll everything back, and use a
            # new connection next time.
            self._drop_connection()
            raise
        return results

    def _begin(self, connection: sqlite3.Connection, tasks: Sequence[_Task[Any]]) -> bool:
        """Take the lock. Returns False if no caller waits any more."""
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as problem:
                is_locked = error_code(problem) == sqlite3.SQLITE_BUSY
                if not is_locked or all(task.deadline.has_passed for task in tasks):
                    raise
                if all(task.answer.cancelled() for task in tasks):
                    return False
            else:
                return True

    def _drop_connection(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def checkpoint_soon(self) -> None:
        """Checkpoint after the current write of any process, if the log is large: for writes on a
        connection of the application, after which this writer would not check the log."""
        with self._closing:
            is_idle = not self._closed and self._tasks.empty()
            if is_idle and self._is_checkpoint_due(self._log_size()):
                self._tasks.put(_Task(lambda connection: None, deadline(self._timeout_s)))

    def _is_checkpoint_due(self, size: int) -> bool:
        if size < CHECKPOINT_AT_BYTES:  # a write has started the log anew
            self._checkpoint_at = CHECKPOINT_AT_BYTES
        return size >= self._checkpoint_at

    def _log_size(self) -> int:
        try:
            return self._wal.stat().st_size
        except FileNotFoundError:
            return 0

    def _checkpoint(self, connection: sqlite3.Connection) -> None:
        """Copy the log into the file when it is large; the next write starts the log anew. If a
        reader is in the way, the log grows by `CHECKPOINT_AT_BYTES` before the next try. Among
        overlapping readers no try would ever succeed, so a large log is worth a wait.

        Holds the write lock meanwhile: before SQLite 3.51.3 the file can be damaged if another
        process starts the log anew during a copy. No mode of `wal_checkpoint` is safe by itself:
        each copies without the lock if another connection has it. So one connection takes the lock
        and a second one copies.
        """
        size = self._log_size()
        if not self._is_checkpoint_due(size):
            return
        waits = 2 if size >= PATIENT_CHECKPOINT_AT * CHECKPOINT_AT_BYTES else 0
        self._checkpoint_at = CHECKPOINT_AT_BYTES + size
        with suppress(sqlite3.Error), closing(self._connect()) as copying:
            connection.execute("BEGIN IMMEDIATE")
            try:
                copying.execute(_COPY)
                for _ in range(waits):  # for readers of old snapshots, then of the log
                    sleep(READERS_WAIT_S)
                    copying.execute(_COPY)
            finally:
                connection.execute("ROLLBACK")
