"""A limit for the memory that large requests and responses use together. [H45]

Connections are limited and so is each body, but all at their limit together would be more than a
machine has. Small messages always have room: a heartbeat must not wait for somebody's files.
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
        """These bytes are no longer in use."""
        self.held_bytes -= amount_bytes

    def take(self, amount_bytes: int, *, is_large: bool) -> None:
        """Count these bytes. Raises a 503 problem if they are part of something large and there is
        no room for them."""
        if is_large and self.held_bytes + amount_bytes > self._most_bytes:
            raise busy()
        self.held_bytes += amount_bytes


class RequestMemory:
    """What one request has in memory."""

    def __init__(self, memory: MemoryLimit) -> None:
        self._memory = memory
        self.in_bytes = 0
        self.read_bytes = 0
        self.out_bytes = 0

    def receive(self, amount_bytes: int) -> None:
        """A piece of the request's body came."""
        is_large = self.in_bytes + amount_bytes > LARGE_BYTES
        self._memory.take(amount_bytes, is_large=is_large)
        self.in_bytes += amount_bytes

    def read(self, amount_bytes: int) -> None:
        """These bytes of what is to be shown were read from the store. Raises a 503 problem if
        there is no room for them."""
        is_large = self.read_bytes + amount_bytes > LARGE_BYTES
        self._memory.take(amount_bytes, is_large=is_large)
        self.read_bytes += amount_bytes

    def answer(self, amount_bytes: int, *, can_refuse: bool) -> None:
        """The response takes the place of what was read for it. Only a request that can be sent
        again (`can_refuse`) is refused for lack of room."""
        self._memory.free(self.read_bytes)
        self.read_bytes = 0
        is_large = can_refuse and amount_bytes > LARGE_BYTES
        self._memory.take(amount_bytes, is_large=is_large)
        self.out_bytes += amount_bytes
