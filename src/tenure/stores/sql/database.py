"""The database under a SQL store: runs statements in transactions. Each dialect has its own."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeVar

from tenure.core.ids import Epoch
from tenure.core.instants import Instant
from tenure.core.outcomes import Change
from tenure.ports import Hint
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query, Statements

_T = TypeVar("_T")

LISTING_SHARE = 0.5
"""The share of a call's time that a list may take. [B24]"""


class Transaction(Protocol):
    """An open transaction, as work in it sees it."""

    def fetch(self, *queries: Query, last: bool = False) -> list[list[Row]]:
        """The rows of each statement, in one round trip where the dialect can. `last`: nothing
        follows, so that the commit may be sent in the same round trip."""


class Database(ABC):
    """Runs named statements. Dialects fill in the abstract methods."""

    def __init__(self, statements: Statements) -> None:
        self.statements = statements
        self.query = statements.query

    @abstractmethod
    def read(
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
    def write(self, work: Callable[[Transaction], _T]) -> _T:
        """Run writing work in a transaction of its own and make it durable."""

    def now(self) -> Instant:
        """The store's clock."""
        [(now, _)] = self.rows(self.query("moment"))
        return Instant(now)

    def rows(self, query: Query, *, listing: bool = False) -> list[Row]:
        """The rows of one statement that only reads."""
        [rows] = self.read(lambda tx: tx.fetch(query, last=True), listing=listing)
        return rows

    @abstractmethod
    def pack(self, values: Sequence[str]) -> str:
        """A list as one parameter for `{among_...}`."""

    def begin(self) -> int:
        """Called before a transaction that writes; `acknowledged` gets what it returns."""
        return 0

    def acknowledged(self, changes: Iterable[Change], *, begun: int) -> None:
        """Called when these were committed."""
        return

    def notify(self, hints: Collection[Hint], *, sent: Collection[Hint] = ()) -> None:
        """Notify waiting processes of what was committed; other processes already know of `sent`.
        Does nothing where every process notices each commit."""
        return

    def saw_epoch(self, epoch: Epoch) -> None:
        """Called with the epoch of the store; one that can fail over remembers the highest. [A9]"""
        return

    def saw_tick(self, tick: Instant) -> None:
        """Called with a tick that was written."""
        return


class Part:
    """What a store does about one subject, on the store's database."""

    def __init__(self, database: Database) -> None:
        self._query = database.query
        self._text = database.statements.text
        self._read = database.read
        self._write = database.write
        self._rows = database.rows
        self._pack = database.pack
        self._saw_epoch = database.saw_epoch
