"""The writes of this process to a SQLite file: one at a time, in order of arrival, grouped.

SQLite lets one connection write at a time and wakes waiting ones in any order; a queue is fair. A
caller that finds nothing queued and nothing running writes in its own thread: to hand its work to
another one and back took as long as the work. All others wait for the thread `tenure-sqlite`, and
work that arrives during a commit shares the next one. Work must be repeatable: when one piece of a
group fails, the group is rolled back and each piece runs alone.

No caller waits for the file's lock, for other work or for a statement longer than its deadline.
[K16] Work that has not started by then is withdrawn and never runs. Only the flush of a caller's
own commit has no limit: no thread can be called back from it. [K15]
"""

import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from time import sleep
from typing import Any, Generic, TypeVar, cast

from tenure.deadlines import Deadline, deadline
from tenure.errors import Closed, OutcomeUnknown, StoreUnavailable
from tenure.stores.sqlite.file import error_code, limit_statements, translated

MAX_GROUP = 64
"""How many pieces of work share one commit at most. Limits how many one failure repeats."""

CHECKPOINT_AT_BYTES = 8 << 20
"""The size of the write-ahead log at which the writer checkpoints it into the file."""

PATIENT_CHECKPOINT_AT = 4
"""From this many times that size on, a checkpoint waits for the readers that are in its way."""

READERS_WAIT_S = 0.05
"""How long such a checkpoint waits each time. Readers that start meanwhile are not in its way, so
that it is enough to wait for the longest read. No process writes during this time."""

LOCK_SLICE_S = 0.1
"""How long SQLite waits for the file's lock at a time; then the writer checks whether a caller
still waits."""

GRACE_S = 0.25
"""How much longer a caller waits for work that is being written at its deadline: this process may
have been suspended."""

_COPY = "PRAGMA wal_checkpoint(PASSIVE)"

_T = TypeVar("_T")


class _Task(Generic[_T]):
    """One piece of work, for which its caller waits. Not a future: a signal handler that raises in
    the caller could leave a future's lock locked, for which the thread that writes would wait."""

    __slots__ = ("_done", "_failure", "_is_running", "_result", "_taken", "deadline", "work")

    def __init__(self, work: Callable[[sqlite3.Connection], _T], until: Deadline) -> None:
        self.work = work
        self.deadline = until
        self._taken = threading.Lock()  # by the thread that runs it, or by its caller
        self._is_running = False
        self._done = threading.Lock()
        self._done.acquire()
        self._result: _T | None = None
        self._failure: Exception | None = None

    def may_run(self) -> bool:
        """Whether its caller still waits. If so, it cannot be withdrawn any more."""
        self._is_running = self._is_running or self._taken.acquire(blocking=False)
        return self._is_running

    def withdraw(self) -> bool:
        """Whether it had not started; then it never runs."""
        return self._taken.acquire(blocking=False)

    def finish(self, result: _T | None, failure: Exception | None = None) -> None:
        """Answer the caller."""
        self._result, self._failure = result, failure
        self._done.release()

    def is_done(self, *, within_s: float) -> bool:
        """Whether it finishes within this time."""
        return self._done.acquire(timeout=within_s)

    def result(self) -> _T:
        """The result of finished work, or what it raised."""
        if self._failure is not None:
            raise self._failure
        return cast(_T, self._result)


class Writer:
    """Runs work in transactions, in order of arrival."""

    def __init__(
        self, connect: Callable[[], sqlite3.Connection], *, path: Path, timeout_s: float
    ) -> None:
        self._connect = connect
        self._path = path
        self._timeout_s = timeout_s
        self._checkpoint_at = CHECKPOINT_AT_BYTES
        self._log = f"{path}-wal"
        self._connection: sqlite3.Connection | None = None
        self._tasks: deque[_Task[Any]] = deque()
        # Callers enter the lock itself: a signal handler that raises between entering a condition
        # and its lock would leave the lock locked.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._writing: int | None = None  # the thread that uses the connection
        self._wants_checkpoint = self._closed = False
        self._thread = threading.Thread(target=self._serve, name="tenure-sqlite", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Do the work in a transaction; it is on the disk when this returns."""
        until, me, is_mine = deadline(self._timeout_s), threading.get_ident(), False
        task: _Task[_T] | None = None
        try:
            with self._lock:
                if self._closed:
                    raise Closed
                is_mine = not (self._writing or self._has_work())
                if is_mine:
                    self._writing = me
                else:
                    task = _Task(work, until)
                    self._tasks.append(task)
                    self._condition.notify()
            if task is None:
                return self._transact(work, until)
        finally:  # around the lock too: a signal handler may raise anywhere
            if is_mine:
                self._writing = None  # before any call: a handler that raises there skips the rest
                self._wake_thread()
        return self._answer(task)

    def _answer(self, task: _Task[_T]) -> _T:
        if task.is_done(within_s=task.deadline.remaining_s):
            return task.result()
        if task.withdraw():
            raise StoreUnavailable(
                f"{self._path} could not be written in time: locked, or busy with other work",
                hint="send the same request again",
            )
        if task.is_done(within_s=GRACE_S):
            return task.result()
        raise OutcomeUnknown(
            f"{self._path} has not finished a write in time", hint="send the same request again"
        )

    def _wake_thread(self) -> None:
        """Wake the thread for what has arrived during a write, or for a checkpoint."""
        if self._is_checkpoint_due(self._log_size()):
            self._wants_checkpoint = True
        if self._has_work():
            with self._lock:
                self._condition.notify()

    def close(self) -> None:
        """Finish what is queued, then end. A signal handler that closes does not wait for the write
        that it interrupts."""
        with self._lock:
            self._closed = True
            self._condition.notify()
        if self._writing != threading.get_ident():
            self._thread.join()

    # --- the thread for work that waits, and for checkpoints -------------------------------------

    def _serve(self) -> None:
        while True:
            with self._condition:
                while self._writing or not self._has_work():
                    # Work that waits needs no notification: an interrupted caller sends none.
                    self._condition.wait(LOCK_SLICE_S if self._has_work() else None)
                group = [self._tasks.popleft() for _ in range(min(MAX_GROUP, len(self._tasks)))]
                is_last = self._closed and not group
                self._writing = threading.get_ident()
            if self._wants_checkpoint:
                self._checkpoint()  # now that those who wrote have their answers
            self._settle(group)
            if is_last:
                self._drop_connection()
                return
            self._writing = None
            self._wake_thread()

    def _has_work(self) -> bool:
        return bool(self._tasks) or self._wants_checkpoint or self._closed

    def _settle(self, tasks: Sequence[_Task[Any]]) -> None:
        """Run the tasks in one transaction, or each in its own when one of them fails."""
        if not tasks:
            return
        running: list[_Task[Any]] = []

        def run_all(connection: sqlite3.Connection) -> list[Any]:
            running.extend(task for task in tasks if task.may_run())
            return [task.work(connection) for task in running]

        try:
            last = Deadline(max(task.deadline.until_s for task in tasks))
            results = self._transact(run_all, last)
        except Exception as failure:  # handed to the caller; this thread keeps running
            failed = running or [task for task in tasks if task.may_run()]
            if len(failed) > 1 and running and not isinstance(failure, OutcomeUnknown):
                for task in failed:
                    self._settle([task])
                return
            for task in failed:
                task.finish(None, failure)
            return
        for task, result in zip(running, results, strict=True):
            task.finish(result)

    # --- the connection, for the thread that writes ----------------------------------------------

    def _transact(self, work: Callable[[sqlite3.Connection], _T], until: Deadline) -> _T:
        """Run the work in a transaction of its own, if the lock is free by then."""
        try:
            with translated(self._path):
                connection = self._connection or self._open()
                limit_statements(connection, until)
                self._begin(connection, until)
                result = work(connection)
            with translated(self._path, committing=True):
                connection.execute("COMMIT")
        except BaseException:
            # How much SQLite has rolled back depends on the error: roll everything back, and use a
            # new connection next time.
            self._drop_connection()
            raise
        return result

    def _open(self) -> sqlite3.Connection:
        self._connection = connection = self._connect()
        return connection

    def _begin(self, connection: sqlite3.Connection, until: Deadline) -> None:
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as problem:
                if error_code(problem) != sqlite3.SQLITE_BUSY or until.has_passed:
                    raise
            else:
                return

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            with suppress(sqlite3.Error):
                connection.close()

    # --- the write-ahead log ---------------------------------------------------------------------

    def checkpoint_soon(self) -> None:
        """Checkpoint after the current write of any process, if the log is large: for writes on a
        connection of the application, after which this writer would not check the log."""
        with self._lock:
            if not self._closed and self._is_checkpoint_due(self._log_size()):
                self._wants_checkpoint = True
                self._condition.notify()

    def _is_checkpoint_due(self, size: int) -> bool:
        if size < CHECKPOINT_AT_BYTES:  # a write has started the log anew
            self._checkpoint_at = CHECKPOINT_AT_BYTES
        return size >= self._checkpoint_at

    def _log_size(self) -> int:
        try:
            return os.stat(self._log).st_size  # noqa: PTH116 - half the time of Path.stat
        except OSError:  # there is none, or no checkpoint could be written either
            return 0

    def _checkpoint(self) -> None:
        """Copy the log into the file when it is large; the next write starts the log anew. If a
        reader is in the way, the log grows by `CHECKPOINT_AT_BYTES` before the next try. Among
        overlapping readers no try would ever succeed, so a large log is worth a wait.

        Holds the write lock meanwhile: before SQLite 3.51.3 the file can be damaged if another
        process starts the log anew during a copy. No mode of `wal_checkpoint` is safe by itself:
        each copies without the lock if another connection has it. So one connection takes the lock
        and a second one copies.
        """
        self._wants_checkpoint = False
        size = self._log_size()
        if not self._is_checkpoint_due(size):
            return
        waits = 2 if size >= PATIENT_CHECKPOINT_AT * CHECKPOINT_AT_BYTES else 0
        self._checkpoint_at = CHECKPOINT_AT_BYTES + size
        with suppress(sqlite3.Error), closing(self._connect()) as copying:
            connection = self._connection or self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                copying.execute(_COPY)
                for _ in range(waits):  # for readers of old snapshots, then of the log
                    sleep(READERS_WAIT_S)
                    copying.execute(_COPY)
            finally:
                connection.execute("ROLLBACK")
