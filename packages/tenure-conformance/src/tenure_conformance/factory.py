"""Store factories: how the store kit opens the store under test, and the smallest example of one.

The author of a store writes a `StoreFactory` for it, and nothing else.
"""

from typing import Protocol

from tenure.core.instants import Duration, Instant
from tenure.ports import Clock, Store
from tenure.stores.sqlite.memory import MemoryStore

BEGINNING = Instant(1_750_000_000_000_000)
"""Where virtual time starts: a realistic instant, in the summer of 2025."""


class StoreFactory(Protocol):
    """Opens the store under test. Each test gets its own factory and closes it at the end.

    `--tenure-store module:name` names a callable without arguments that returns one of these; a
    class will do. The fixture `tenure_store_factory` can be overridden instead.
    """

    def open(self) -> Store:
        """Open a new, empty store whose clock moves only by `advance`."""

    def reopen(self) -> Store:
        """Open another handle on the same data and clock, as a second process would. A store that
        allows only one handle returns that one."""

    def advance(self, by: Duration) -> None:
        """Move the store's clock for all handles; a negative duration moves it back."""

    def close(self) -> None:
        """Close all handles and remove their data."""


class VirtualClock:
    """A clock that moves only by `advance`, for stores that take their clock as an argument."""

    def __init__(self) -> None:
        self._now = BEGINNING

    def __call__(self) -> Instant:
        return self._now

    def advance(self, by: Duration) -> None:
        """Move the clock, in either direction."""
        self._now = Instant(self._now + by)


class MemoryFactory:
    """The factory of SQLite in memory, and the smallest example of one."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store: Store | None = None

    def make(self, clock: Clock) -> Store:
        """Make the store. Subclasses override this to test another one."""
        return MemoryStore(clock=clock)

    def open(self) -> Store:
        """Open a new store."""
        self.store = self.make(self.clock)
        return self.store

    def reopen(self) -> Store:
        """Return the same store: no other process can open it."""
        assert self.store is not None, "open() comes first"
        return self.store

    def advance(self, by: Duration) -> None:
        """Move the injected clock."""
        self.clock.advance(by)

    def close(self) -> None:
        """Nothing to remove."""
        if self.store is not None:
            self.store.close()
