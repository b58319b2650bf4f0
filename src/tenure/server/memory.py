"""A limit for the memory that large requests and responses use together. [H45]

The number of connections and the size of each body are limited, but all of them at their limits
need more memory than a machine has. Namespaces and tokens have shares of it. [H60] Small messages
are never refused: large files must not keep a heartbeat out.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tenure.server.problems import busy
from tenure.server.shares import Caller, Shares

LARGE_BYTES = 64 << 10


class MemoryLimit:
    """Counts the bytes in use. Only the event loop's thread uses it."""

    def __init__(self, most_bytes: int) -> None:
        self._shares = Shares(most_bytes)

    @property
    def held_bytes(self) -> int:
        """The bytes in use."""
        return self._shares.used

    @contextmanager
    def request(self) -> Iterator["RequestMemory"]:
        """Count for one request; its bytes are free again at the end of the block."""
        held = RequestMemory(self)
        try:
            yield held
        finally:
            self.free(held.caller, held.in_bytes + held.read_bytes + held.out_bytes)

    def free(self, caller: Caller | None, amount_bytes: int) -> None:
        """Stop counting these bytes."""
        self._shares.give_back(caller, amount_bytes)

    def take(self, caller: Caller | None, amount_bytes: int, *, is_large: bool) -> None:
        """Count these bytes. Raises a 503 problem if they are part of something large and there is
        no room for them, or not in the caller's share."""
        if is_large and not self._shares.has_room(caller, amount_bytes):
            raise busy()
        self._shares.take(caller, amount_bytes)


class RequestMemory:
    """Counts the memory of one request."""

    def __init__(self, memory: MemoryLimit) -> None:
        self._memory = memory
        self.caller: Caller | None = None
        self.in_bytes = 0
        self.read_bytes = 0
        self.out_bytes = 0

    def belongs_to(self, caller: Caller | None) -> None:
        """Count the request as this caller's, also what it has used before its sender was known."""
        used_bytes = self.in_bytes + self.read_bytes + self.out_bytes
        self._memory.free(self.caller, used_bytes)
        self._memory.take(caller, used_bytes, is_large=False)
        self.caller = caller

    def receive(self, amount_bytes: int) -> None:
        """Count a piece of the request's body."""
        is_large = self.in_bytes + amount_bytes > LARGE_BYTES
        self._memory.take(self.caller, amount_bytes, is_large=is_large)
        self.in_bytes += amount_bytes

    @contextmanager
    def parsing(self, amount_bytes: int) -> Iterator[None]:
        """Count what a parser makes of the body until the end of the block, in nobody's share: one
        request at a time is parsed, in turn for all. Raises a 503 problem if there is no room for
        it. [H85]"""
        self._memory.take(None, amount_bytes, is_large=amount_bytes > LARGE_BYTES)
        try:
            yield
        finally:
            self._memory.free(None, amount_bytes)

    def read(self, amount_bytes: int) -> None:
        """Count bytes that were read from the store for the response. Raises a 503 problem if there
        is no room for them."""
        is_large = self.read_bytes + amount_bytes > LARGE_BYTES
        self._memory.take(self.caller, amount_bytes, is_large=is_large)
        self.read_bytes += amount_bytes

    def answer(self, amount_bytes: int, *, can_refuse: bool) -> None:
        """Count the response instead of what was read for it. Raises a 503 problem for lack of room
        only if the request can be sent again (`can_refuse`)."""
        self._memory.free(self.caller, self.read_bytes)
        self.read_bytes = 0
        is_large = can_refuse and amount_bytes > LARGE_BYTES
        self._memory.take(self.caller, amount_bytes, is_large=is_large)
        self.out_bytes += amount_bytes
