"""A limit for the memory that large requests and responses use together. [H45]

The number of connections and the size of each body are limited, but all of them at their limits
need more memory than a machine has. Small messages are never refused: large files must not keep a
heartbeat out.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tenure.server.problems import busy

LARGE_BYTES = 64 << 10


class MemoryLimit:
    """Counts the bytes in use. Only the event loop's thread uses it."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.held_bytes = 0

    @contextmanager
    def request(self) -> Iterator["RequestMemory"]:
        """Count for one request; its bytes are free again at the end of the block."""
        held = RequestMemory(self)
        try:
            yield held
        finally:
            self.held_bytes -= held.in_bytes + held.read_bytes + held.out_bytes

    def free(self, amount_bytes: int) -> None:
        """Stop counting these bytes."""
        self.held_bytes -= amount_bytes

    def take(self, amount_bytes: int, *, is_large: bool) -> None:
        """Count these bytes. Raises a 503 problem if they are part of something large and there is
        no room for them."""
        if is_large and self.held_bytes + amount_bytes > self._most_bytes:
            raise busy()
        self.held_bytes += amount_bytes


class RequestMemory:
    """Counts the memory of one request."""

    def __init__(self, memory: MemoryLimit) -> None:
        self._memory = memory
        self.in_bytes = 0
        self.read_bytes = 0
        self.out_bytes = 0

    def receive(self, amount_bytes: int) -> None:
        """Count a piece of the request's body."""
        is_large = self.in_bytes + amount_bytes > LARGE_BYTES
        self._memory.take(amount_bytes, is_large=is_large)
        self.in_bytes += amount_bytes

    def read(self, amount_bytes: int) -> None:
        """Count bytes that were read from the store for the response. Raises a 503 problem if there
        is no room for them."""
        is_large = self.read_bytes + amount_bytes > LARGE_BYTES
        self._memory.take(amount_bytes, is_large=is_large)
        self.read_bytes += amount_bytes

    def answer(self, amount_bytes: int, *, can_refuse: bool) -> None:
        """Count the response instead of what was read for it. Raises a 503 problem for lack of room
        only if the request can be sent again (`can_refuse`)."""
        self._memory.free(self.read_bytes)
        self.read_bytes = 0
        is_large = can_refuse and amount_bytes > LARGE_BYTES
        self._memory.take(amount_bytes, is_large=is_large)
        self.out_bytes += amount_bytes
