"""Connections to PostgreSQL: a fixed number, made when needed, thrown away when in doubt.

Written here rather than taken from a library because of what a store needs of it: no threads of
its own, a refusal after a fork, and a check of each connection before it is handed out, so that a
restarted server costs nobody an unknown outcome.
"""

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tenure.deadlines import Deadline
from tenure.errors import Closed, StoreError, StoreUnavailable
from tenure.stores.postgres.driver import Connection, TransactionStatus, psycopg


class Pool:
    """At most `size` connections, each used by one thread at a time."""

    def __init__(self, connect: Callable[[Deadline], Connection], *, size: int) -> None:
        self._connect = connect
        self._size = size
        self._free = threading.Semaphore(size)
        self._idle: list[Connection] = []
        self._lock = threading.Lock()
        self._closed = False
        self._pid = os.getpid()

    @contextmanager
    def connection(self, until: Deadline) -> Iterator[Connection]:
        """A connection that was alive a moment ago; it comes back unless it is broken."""
        self._check()
        if not self._free.acquire(timeout=until.remaining_s):
            raise StoreUnavailable(
                f"all {self._size} connections to PostgreSQL were busy for too long",
                hint="send the same request again, or raise the pool's size",
            )
        try:
            connection = self._take() or self._connect(until)
            try:
                yield connection
            finally:
                self._give_back(connection)
        finally:
            self._free.release()

    def drop_idle(self) -> None:
        """Close every connection that nobody uses: one was found dead, the others may be."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            _close(connection)

    def close(self) -> None:
        """Close what is idle now and the rest when it comes back."""
        if os.getpid() == self._pid:
            self._closed = True
            self.drop_idle()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(
                "this store was opened before a fork, and its connections belong to the parent",
                hint="open the store again in the child process",
            )
        if self._closed:
            raise Closed

    def _take(self) -> Connection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if _is_quiet(connection):
                return connection
            _close(connection)

    def _give_back(self, connection: Connection) -> None:
        is_usable = connection.info.transaction_status == TransactionStatus.IDLE
        with self._lock:  # close() sets `_closed` before it takes the idle ones under this lock
            is_kept = is_usable and not self._closed
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            _close(connection)


def _is_quiet(connection: Connection) -> bool:
    """Whether nothing waits to be read: an idle server sends nothing unless it closes."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def _close(connection: Connection) -> None:
    with suppress(psycopg.Error):
        connection.close()
