"""Our own stores as the conformance kit wants them: factories with virtual clocks."""

import tempfile
from pathlib import Path

from tenure.conformance.harness import MemoryFactory, VirtualClock
from tenure.core.instants import Duration
from tenure.ports import Store
from tenure.stores.sql.sqlite import SqliteStore

__all__ = ["MemoryFactory", "SqliteFactory"]


class SqliteFactory:
    """SQLite in a directory of its own, in memory where the system has such a place."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        fast = Path("/dev/shm")  # noqa: S108 - a private directory is made in it
        self._directory = tempfile.TemporaryDirectory(
            prefix="tenure-kit-", dir=fast if fast.is_dir() else None
        )
        self._path = Path(self._directory.name) / "tenure.db"
        self._opened: list[Store] = []

    def open(self) -> Store:
        """The file, created and migrated by the first handle."""
        store = SqliteStore(self._path, clock=self.clock)
        self._opened.append(store)
        return store

    def reopen(self) -> Store:
        """Another connection, as another process has it."""
        return self.open()

    def advance(self, by: Duration) -> None:
        """Every handle reads the same clock."""
        self.clock.advance(by)

    def close(self) -> None:
        """Close all handles, remove the file."""
        for store in self._opened:
            store.close()
        self._directory.cleanup()
