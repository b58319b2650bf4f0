"""What verifying needs of a store: reading, and nothing that could write. Every `Store` is one."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from tenure.core.ids import JobId
from tenure.core.instants import Instant
from tenure.ports import DedupeKey, Loaded, Record


class Source(Protocol):
    """The reading part of `tenure.ports.Store`."""

    def now(self) -> Instant:
        """The store's clock."""

    def load(self, ids: Sequence[JobId]) -> Loaded:
        """The rows of these jobs, read together."""

    def records(self, *, page_size: int) -> Iterator[Record]:
        """Every job with its log, by id."""

    def live_keys(self) -> Iterator[tuple[DedupeKey, JobId]]:
        """The dedupe keys of live jobs, equal ones beside each other."""

    def lease_holders(self) -> Iterator[tuple[str, JobId]]:
        """The ids of live leases, equal ones beside each other."""
