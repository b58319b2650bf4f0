"""Factories: how the store kit gets at a store, and the smallest example of one.

A third party writes a `StoreFactory` for its store, and nothing else.
"""

from typing import Protocol

from tenure.core.instants import Duration, Instant
from tenure.ports import Clock, Store
from tenure.stores.memory.store import MemoryStore

BEGINNING = Instant(1_750_000_000_000_000)
"""Where virtual time starts: a summer's day in 2025, so that instants look like instants."""


class StoreFactory(Protocol):
    """How the kit gets at a store. One factory serves one test, then it is closed.

    `--tenure-store module:name` names a callable without arguments that returns one of these; a
    class will do. The fixture `tenure_store_factory` can be overridden instead.
    """

    def open(self) -> Store:
        """A fresh, empty store whose clock stands still until `advance`."""

    def reopen(self) -> Store:
        """Another handle on the same data and clock, as a second process would have it. A store
        that can have only one handle returns that one."""

    def advance(self, by: Duration) -> None:
        """Move the store's clock, for all handles; a negative duration steps it back."""

    def close(self) -> None:
        """Close what was opened and remove what it left behind."""


class VirtualClock:
    """A clock that moves when told to; for stores that take their clock as an argument."""

    def __init__(self) -> None:
        self._now = BEGINNING

    def __call__(self) -> Instant:
        return self._now

    def advance(self, by: Duration) -> None:
        """Move, in either direction."""
        self._now = Instant(self._now + by)


class MemoryFactory:
    """The factory of the reference store, and the smallest example of one."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store: Store | None = None

    def make(self, clock: Clock) -> Store:
        """The store itself; a subclass of the factory can try another."""
        return MemoryStore(clock=clock)

    def open(self) -> Store:
        """A new store."""
        self.store = self.make(self.clock)
        return self.store

    def reopen(self) -> Store:
        """The same object: nothing but this process can see it."""
        assert self.store is not None, "open() comes first"
        return self.store

    def advance(self, by: Duration) -> None:
        """Move the injected clock."""
        self.clock.advance(by)

    def close(self) -> None:
        """Nothing to remove."""
        if self.store is not None:
            self.store.close()
