"""How much of large bodies is in memory at once, coming and going. [H45]

Connections are limited and so is each body, but all at their limit together would be more than a
machine has. Small messages always have room: a heartbeat must not wait for somebody's files.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from tenure.server.problems import busy

LARGE_BYTES = 64 << 10


class Memory:
    """Counts what is held. Lives on the event loop's thread."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self.held_bytes = 0

    @contextmanager
    def request(self) -> Iterator["Held"]:
        """One request: what it holds is free again at the end of the block."""
        held = Held(self)
        try:
            yield held
        finally:
            self.held_bytes -= held.in_bytes + held.read_bytes + held.out_bytes

    def free(self, amount_bytes: int) -> None:
        """So many are no longer held."""
        self.held_bytes -= amount_bytes

    def take(self, amount_bytes: int, *, is_large: bool) -> None:
        """Count so many more. Raises a 503 problem if they are part of something large and there
        is no room for them."""
        if is_large and self.held_bytes + amount_bytes > self._most_bytes:
            raise busy()
        self.held_bytes += amount_bytes


class Held:
    """What one request holds."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.in_bytes = 0
        self.read_bytes = 0
        self.out_bytes = 0

    def receive(self, amount_bytes: int) -> None:
        """A piece of the body has come."""
        is_large = self.in_bytes + amount_bytes > LARGE_BYTES
        self._memory.take(amount_bytes, is_large=is_large)
        self.in_bytes += amount_bytes

    def read(self, amount_bytes: int) -> None:
        """So much of what is to be shown was read from the store. Raises a 503 problem if there is
        no room for it."""
        is_large = self.read_bytes + amount_bytes > LARGE_BYTES
        self._memory.take(amount_bytes, is_large=is_large)
        self.read_bytes += amount_bytes

    def answer(self, amount_bytes: int, *, can_refuse: bool) -> None:
        """The answer is so large, in place of what it was made of; if it only shows something, it
        can be asked for again."""
        self._memory.free(self.read_bytes)
        self.read_bytes = 0
        is_large = can_refuse and amount_bytes > LARGE_BYTES
        self._memory.take(amount_bytes, is_large=is_large)
        self.out_bytes += amount_bytes
