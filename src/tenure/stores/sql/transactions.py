"""Transactions: how the code that the SQL stores share runs statements on a dialect."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from tenure.core.ids import Epoch
from tenure.core.instants import Instant
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query, Statements

_T = TypeVar("_T")


class Transaction(Protocol):
    """An open transaction, as work in it sees it."""

    def fetch(self, *queries: Query, last: bool = False) -> list[list[Row]]:
        """The rows of each statement, in one round trip where the dialect can. `last` says that
        nothing follows, so that the commit may be sent in the same round trip."""


class Transactional(ABC):
    """Runs named statements. Dialects fill in the abstract methods."""

    def __init__(self, statements: Statements) -> None:
        self._query = statements.query
        self._text = statements.text

    @abstractmethod
    def _read(
        self,
        work: Callable[[Transaction], _T],
        *,
        snapshot: bool = False,
        listing: bool = False,
        repeated: bool = False,
    ) -> _T:
        """Run reading work; with `snapshot` all its statements see one state of the store. A
        `listing` may take long on a large store: it has connections of its own, and less time.
        [B24] Its statements are planned each time, for their limits and names, unless they are
        `repeated`: many small ones whose plan is always the same."""

    @abstractmethod
    def _write(self, work: Callable[[Transaction], _T]) -> _T:
        """Run writing work in a transaction of its own and make it durable."""

    def _saw_epoch(self, epoch: Epoch) -> None:
        """Called with the epoch of the store; one that can fail over remembers the highest. [A9]"""
        return

    def _saw_tick(self, tick: Instant) -> None:
        """Called with a tick that was written."""
        return

    @abstractmethod
    def _pack(self, values: Sequence[str]) -> str:
        """A list as one parameter for `{among_...}`."""

    def _rows(self, query: Query, *, listing: bool = False) -> list[Row]:
        [rows] = self._read(lambda tx: tx.fetch(query, last=True), listing=listing)
        return rows


class Part:
    """What a store does about one subject, on the store's database."""

    def __init__(self, database: Transactional) -> None:
        self._query = database._query
        self._text = database._text
        self._read = database._read
        self._write = database._write
        self._rows = database._rows
        self._pack = database._pack
