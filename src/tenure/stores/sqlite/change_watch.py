"""Notices that another connection has committed to the SQLite file, in whichever process.

SQLite has no notifications across processes, but `PRAGMA data_version` says on one connection
whether any other has committed since. It reads one page that is in memory: 250 times a second take
about half a percent of a core. Does nothing while nobody watches.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing

from tenure.ports import OnHint
from tenure.stores.hints import Watchers

LOOK_EVERY_S = 0.004
AFTER_A_FAILURE_S = 1.0

NOBODY_WATCHES_S = 1.0
"""After so long without a watcher the thread asks whether to stop: one that leaves while the watch
is closed may have hidden from it that it was woken."""

_log = logging.getLogger("tenure.stores")


class ChangeWatch:
    """One thread and one connection, made when somebody watches for the first time."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
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
        """Stop looking."""
        self._stopping.set()
        self._watchers.has_some.set()  # or the thread may wait for a watcher
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with closing(self._connect()) as connection:
                    self._look(connection)
            except sqlite3.Error as problem:
                _log.debug("cannot look for changes, those who wait poll: %s", problem)
                self._stopping.wait(AFTER_A_FAILURE_S)

    def _look(self, connection: sqlite3.Connection) -> None:
        seen = None
        while not self._stopping.wait(LOOK_EVERY_S):
            if not self._watchers.has_some.wait(NOBODY_WATCHES_S):
                continue
            [version] = connection.execute("PRAGMA data_version").fetchone()
            if version != seen:
                seen = version
                self._watchers.tell(None)
