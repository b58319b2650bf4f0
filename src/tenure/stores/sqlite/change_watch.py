"""Notices that another connection has committed to the SQLite file, in whichever process.

SQLite has no notifications across processes, but `PRAGMA data_version` returns on one connection
whether any other has committed since. Asking is only worth it after something was written: the
kernel reports that (inotify), or else the size and time of change of the write-ahead log, for a
tenth of the cost of asking. Does nothing while there is no watcher.

Never opens the database, its log or its shared memory by hand: closing such a descriptor would drop
every lock that this process has on the file (POSIX).
"""

import logging
import os
import select
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from tenure.ports import OnHint
from tenure.stores.hints import Watchers

LOOK_EVERY_S = 0.004
LONGEST_REST_S = 0.1
"""How long the thread waits for the kernel to report a write; then it asks without one."""

QUICK_LOOK_S = 0.001
QUICK_LOOKS = 8
"""How many checks after such a rest follow each other more quickly: most writes are flushed within
that time, and the commit is visible then. A busy file has no rests."""

AFTER_A_FAILURE_S = 1.0

ASKED_AFTER_A_WRITE = 500
"""How many checks after a write ask for the version until it changes, 2 s long: the commit that the
write belongs to is visible only after its flush, which takes more than 0.1 s on a busy disk."""

ASKED_AFTER_A_COMMIT = 5
"""How many checks after a commit ask for the version again, 20 ms long: a second write within the
same tick of the file system's clock, 10 ms at most, may leave size and time unchanged."""

ASKED_ANYWAY = 25
"""One in this many checks asks for the version, whatever the state of the log: a file system may
keep its times coarsely."""

NOBODY_WATCHES_S = 1.0
"""How often the thread checks whether it has to stop while there is no watcher. `close` wakes it,
but a watcher that leaves at that moment may undo that."""

_log = logging.getLogger("tenure.stores")


class WriteAheadLog:
    """Says when it is worth asking SQLite whether something was committed."""

    def __init__(self, path: Path) -> None:
        self.file = f"{path}-wal"
        self._seen: tuple[int, int, int] | None = None
        self._asks_left = 0  # because of the last write or commit
        self._looks = 0

    def may_have_commits(self) -> bool:
        """Whether something may have been committed since the last check."""
        self._looks += 1
        try:
            found = os.stat(self.file)  # noqa: PTH116 - Path.stat takes twice as long
        except OSError:
            return True  # it comes and goes with its connections
        now = (found.st_mtime_ns, found.st_size, found.st_ino)
        if now != self._seen:
            self._seen = now
            self._asks_left = ASKED_AFTER_A_WRITE
        if self._asks_left:
            self._asks_left -= 1
            return True
        return self._looks % ASKED_ANYWAY == 0

    @property
    def is_in_use(self) -> bool:
        """Whether the next checks ask because of a write or a commit."""
        return self._asks_left > 0

    def committed(self) -> None:
        """A commit was noticed."""
        self._asks_left = ASKED_AFTER_A_COMMIT


class ChangeWatch:
    """One thread and one connection, made for the first watcher."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], path: Path) -> None:
        self._connect = connect
        self._path = path
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._pause = time.sleep  # not `Event.wait`, which takes twice the CPU
        self._thread: threading.Thread | None = None
        self._events: FileEvents | None = None
        self._quick_looks = 0  # that are left after a rest
        self._watchers = Watchers()

    def add(self, on_hint: OnHint) -> Callable[[], None]:
        """Call this function after every change, until the returned one is called."""
        stop = self._watchers.add(on_hint)
        with self._lock:
            if self._thread is None and not self._stopping.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="tenure-changes", daemon=True
                )
                self._thread.start()
        return stop

    def close(self) -> None:
        """Stop checking."""
        self._stopping.set()
        self._watchers.has_some.set()  # or the thread may wait for a watcher
        with self._lock:
            thread = self._thread
            if self._events is not None:
                self._events.wake()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with closing(self._connect()) as connection:
                    self._look(connection)
            except sqlite3.Error as problem:
                _log.debug("cannot watch for changes, waiting workers poll: %s", problem)
                self._stopping.wait(AFTER_A_FAILURE_S)

    def _look(self, connection: sqlite3.Connection) -> None:
        seen, must_ask = None, True
        log = WriteAheadLog(self._path)
        connection.execute("PRAGMA data_version").fetchall()  # the first read creates the log
        with self._events_of(log.file):
            while not self._stopping.is_set():
                if not self._watchers.has_some.is_set():
                    self._watchers.has_some.wait(NOBODY_WATCHES_S)
                    must_ask = True
                    continue
                if log.may_have_commits() or must_ask:
                    [version] = connection.execute("PRAGMA data_version").fetchone()
                    if version != seen:
                        seen = version
                        log.committed()
                        self._watchers.notify(None)
                must_ask = self._rest(log)

    def _rest(self, log: WriteAheadLog) -> bool:
        """Pause until the next check; whether that asks whatever the state of the log."""
        if self._events is None or log.is_in_use:
            self._pause(QUICK_LOOK_S if self._quick_looks else LOOK_EVERY_S)
            self._quick_looks = max(0, self._quick_looks - 1)
            return False
        self._events.wait(LONGEST_REST_S)
        self._quick_looks = QUICK_LOOKS
        return True

    @contextmanager
    def _events_of(self, file: str) -> Iterator[None]:
        """Have the kernel report writes while the block runs, if it can."""
        events = None
        try:
            events = FileEvents(file)
        except OSError as problem:
            _log.debug("the kernel does not report writes, checking times: %s", problem)
        with self._lock:
            self._events = events
        try:
            yield
        finally:
            with self._lock:
                self._events = None
            if events is not None:
                events.close()


_IN_MODIFY = 0x2
_READ_AT_ONCE = 64 * 1024


class FileEvents:
    """Waits for writes to one file. Raises `OSError` if the kernel cannot watch it."""

    def __init__(self, file: str) -> None:
        import ctypes  # here: commands only open a store, and need none of it

        libc = ctypes.CDLL(None, use_errno=True)
        try:
            begin, watch = libc.inotify_init1, libc.inotify_add_watch
        except AttributeError as missing:
            raise OSError("this system has no inotify") from missing
        self._events = begin(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._events < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")
        if watch(self._events, os.fsencode(file), _IN_MODIFY) < 0:
            os.close(self._events)
            raise OSError(ctypes.get_errno(), "inotify_add_watch failed", file)
        self._woken, self._wakes = os.pipe()
        self._poll = select.poll()
        self._poll.register(self._events, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)

    def wait(self, timeout_s: float) -> None:
        """Return when the file has been written to since the last wait, after `wake`, or after so
        long."""
        if self._poll.poll(timeout_s * 1000):
            with suppress(BlockingIOError):
                os.read(self._events, _READ_AT_ONCE)

    def wake(self) -> None:
        """End the wait of another thread, and all later ones."""
        os.write(self._wakes, b".")

    def close(self) -> None:
        """Stop watching. No thread may wait then."""
        for descriptor in (self._events, self._woken, self._wakes):
            os.close(descriptor)
