"""Connections to PostgreSQL: a limited number, opened when needed, closed when in doubt.

Not taken from a library, because a store needs a pool without threads of its own that refuses to
work after a fork and checks each connection before use, so that a restart of the server causes no
unknown outcomes.
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
        """A connection that was alive a moment ago. It returns to the pool unless it is broken."""
        self.check()
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
        """Close all idle connections: one was found dead, so the others may be dead too."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            _close(connection)

    def close(self) -> None:
        """Close the idle connections now, and the others when they return."""
        if os.getpid() == self._pid:
            self._closed = True
            self.drop_idle()

    def check(self) -> None:
        """Raise if the pool is closed, or was made before a fork."""
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
    """Whether there is nothing to read: a server sends something on an idle connection only when it
    closes it."""
    if connection.closed:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return not poll.poll(0)


def _close(connection: Connection) -> None:
    with suppress(psycopg.Error):
        connection.close()
