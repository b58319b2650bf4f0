"""One transaction on PostgreSQL, in as few round trips as possible."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from tenure.clock import NEVER, boot_now
from tenure.deadlines import Deadline
from tenure.errors import OutcomeUnknown
from tenure.stores.postgres.driver import TransactionStatus, psycopg
from tenure.stores.postgres.wire import RoundTrip, Wire
from tenure.stores.sql.database import Transaction
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query

LONGEST_IDLE_MS = 2000
"""How long a transaction that writes may wait for this process's next statement. A process that is
frozen between two, such as in a claim (SIGSTOP, a paused machine), would hold its locks for the
whole time-out."""

BEGIN = "BEGIN"
BEGIN_READING = "BEGIN READ ONLY"
BEGIN_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

_COMMIT = Query("COMMIT", ())
_ROLLBACK = Query("ROLLBACK", ())
_DEALLOCATE = Query("DEALLOCATE ALL", ())

_OPEN_TRANSACTION = frozenset({TransactionStatus.INTRANS, TransactionStatus.INERROR})

_T = TypeVar("_T")


VETO = "TN001"
OTHER_TIMELINE = "TN002"
UNIQUE_VIOLATION = "23505"
NOT_CARRIED = frozenset({"26000", "42P05", "0A000"})
"""A prepared statement is missing, exists already, or no longer fits its tables."""


class Vetoed(Exception):
    """A change was not applied, so the whole transaction was rolled back: save in another way."""


class PostgresTransaction:
    """Statements in one transaction, in as few round trips as possible.

    It starts with the first statements and may end with the last ones. Its timeouts are its own:
    a session's settings would leak to others behind a pooler.
    """

    def __init__(
        self, wire: Wire, begin: str, settings: Query, *, until: Deadline, prepares: bool
    ) -> None:
        self._wire = wire
        self._until = until
        self._prepares = prepares
        self._writes = begin == BEGIN
        self._opening = [Query(begin, ()), settings]
        self.afterwards: Sequence[Query] = ()
        self.was_done_afterwards = False
        self.is_committing = False
        self._idle_since = NEVER  # when the last answer arrived; before the first, no limit

    def fetch(self, *queries: Query, last: bool = False) -> list[list[Row]]:
        """The rows of each statement."""
        if not queries:
            return []
        opening, self._opening = self._opening, []
        closing = [_COMMIT] if last else []
        if not opening:
            self._check_idle_limit()
        elif last and self._writes:
            # Everything that is sent up to a sync is one transaction, without BEGIN and COMMIT.
            opening, closing = opening[1:], []
        trip = RoundTrip(self._wire, until=self._until, prepares=self._prepares)
        self.is_committing = last
        trip.send([*opening, *queries, *closing])
        answers = trip.finish(self.afterwards if last else ())
        if not last:
            self._idle_since = boot_now()
        self.was_done_afterwards = trip.was_done_afterwards
        return answers[len(opening) : len(opening) + len(queries)]

    def stream(self, parts: Iterable[Sequence[Query]]) -> list[list[Row]]:
        """The rows of each statement, and the end of the transaction. Each part is sent as it
        comes, so that the server works on it while the next one is being made."""
        trip = RoundTrip(self._wire, until=self._until, prepares=self._prepares)
        opening, self._opening = self._opening, []
        trip.send(opening)
        for part in parts:
            trip.send(part)
            trip.push()
        self.is_committing = True
        trip.send([_COMMIT])
        return trip.finish()[len(opening) : -1]

    def _check_idle_limit(self) -> None:
        """Raise if the server has ended this transaction because this process was frozen. Checked
        before a commit is sent: after that, a lost connection leaves the outcome unknown."""
        if self._writes and boot_now() - self._idle_since > LONGEST_IDLE_MS * 1000:
            self._wire.close()
            raise psycopg.OperationalError(
                "this process was frozen in a transaction, and the server has ended it"
            )

    def run(self, work: Callable[[Transaction], _T]) -> _T:
        """Do the work and commit, unless the last statements did."""
        wire = self._wire
        wire.was_interrupted = False
        if wire.prepared.is_full:
            self._run_alone(_DEALLOCATE)
            wire.prepared.clear()
        result = work(self)
        if wire.pgconn.transaction_status != TransactionStatus.IDLE:
            self._check_idle_limit()
            self.is_committing = True
            self._run_alone(_COMMIT)
        if wire.was_interrupted:
            raise OutcomeUnknown(
                "the commit is on the primary's disk, but its standby has not confirmed it",
                hint="send the same request again once replication works",
            )
        return result

    @property
    def may_have_written(self) -> bool:
        """Whether a lost connection leaves the outcome open."""
        return self.is_committing and self._writes

    def undo(self) -> None:
        """Roll back. If that fails, the pool does not use the connection again."""
        if self._wire.pgconn.transaction_status in _OPEN_TRANSACTION:
            with suppress(psycopg.Error):
                self._run_alone(_ROLLBACK)

    def _run_alone(self, query: Query) -> None:
        """Run one statement by itself, under the same deadline."""
        trip = RoundTrip(self._wire, until=self._until, prepares=False)
        trip.send([query])
        trip.finish()
