"""Connections to PostgreSQL: a limited number, opened when needed, closed when in doubt.

Not taken from a library, because a store needs a pool without threads of its own that refuses to
work after a fork and checks each connection before use, so that a restart of the server causes no
unknown outcomes.
"""

import os
import threading
from collections.abc import Callable, Sequence

from tenure.deadlines import Deadline
from tenure.errors import Closed, StoreError, StoreUnavailable
from tenure.stores.postgres.wire import Wire


class Pool:
    """At most `size` connections, each used by one thread at a time."""

    def __init__(self, connect: Callable[[Deadline], Wire], *, size: int) -> None:
        self._connect = connect
        self._size = size
        self._open = 0  # in use or idle
        self._idle: list[Wire] = []
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._closed = False
        self._pid = os.getpid()

    def take(self, until: Deadline) -> Wire:
        """A connection that was alive a moment ago. Give it back, broken or not."""
        if self._closed or os.getpid() != self._pid:
            self.check()
        while True:
            with self._lock:
                is_full = not self._idle and self._open >= self._size
                if is_full and not self._freed.wait_for(self._has_room, until.remaining_s):
                    raise StoreUnavailable(
                        f"all {self._size} connections to PostgreSQL were busy for too long",
                        hint="send the same request again, or raise the pool's size",
                    )
                wire = self._idle.pop() if self._idle else None
                if wire is None:
                    self._open += 1
            if wire is None:
                return self._opened(until)
            if wire.is_quiet:
                return wire
            self._discard([wire])

    def give_back(self, wire: Wire) -> None:
        """It returns to the pool unless it is broken."""
        if wire.is_idle:
            with self._lock:  # close() sets `_closed` before it takes the idle ones under this lock
                if not self._closed:
                    self._idle.append(wire)
                    self._freed.notify()
                    return
        self._discard([wire])

    def drop_idle(self) -> None:
        """Close all idle connections: one was found dead, so the others may be dead too."""
        with self._lock:
            idle, self._idle = self._idle, []
        self._discard(idle)

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

    def _has_room(self) -> bool:
        return bool(self._idle) or self._open < self._size

    def _opened(self, until: Deadline) -> Wire:
        try:
            return self._connect(until)
        except BaseException:
            self._discard([None])
            raise

    def _discard(self, wires: Sequence[Wire | None]) -> None:
        """None: it could not be opened."""
        for wire in wires:
            if wire is not None:
                wire.close()
        with self._lock:
            self._open -= len(wires)
            self._freed.notify(len(wires))
