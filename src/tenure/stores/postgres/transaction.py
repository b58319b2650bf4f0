"""One transaction on PostgreSQL: as many statements as possible in one round trip."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from tenure.clock import NEVER, boot_now
from tenure.deadlines import Deadline
from tenure.errors import OutcomeUnknown
from tenure.stores.postgres.driver import Connection, Diagnostic, TransactionStatus, psycopg
from tenure.stores.postgres.wire import PreparedStatements, RoundTrip
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query
from tenure.stores.sql.transactions import Transaction

LONGEST_IDLE_MS = 2000
"""How long a transaction that writes may wait for this process's next statement. A process that is
frozen between two (SIGSTOP, a paused machine) would hold its locks for the whole time-out."""

BEGIN = "BEGIN"
BEGIN_READING = "BEGIN READ ONLY"
BEGIN_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

_COMMIT = Query("COMMIT", ())
_ROLLBACK = Query("ROLLBACK", ())
_DEALLOCATE = Query("DEALLOCATE ALL", ())

_OPEN_TRANSACTION = frozenset({TransactionStatus.INTRANS, TransactionStatus.INERROR})

_INTERRUPTED = frozenset({"57014", "57P01"})  # query_canceled, admin_shutdown

_T = TypeVar("_T")


VETO = "TN001"
OTHER_TIMELINE = "TN002"
UNIQUE_VIOLATION = "23505"
NOT_CARRIED = frozenset({"26000", "42P05", "0A000"})
"""A prepared statement is missing, exists already, or no longer fits its tables."""


class Vetoed(Exception):
    """A change was not applied, so the whole transaction was rolled back: save in another way."""


class PostgresTransaction:
    """Statements in one transaction, as many as possible in one round trip.

    It starts with the first statements and may end with the last ones. Its timeouts are its own:
    a session's settings would leak to others behind a pooler.
    """

    def __init__(
        self,
        connection: Connection,
        begin: str,
        settings: Query,
        prepared: PreparedStatements | None,
        *,
        until: Deadline,
    ) -> None:
        self._connection = connection
        self._prepared = prepared
        self._until = until
        self._opening = [Query(begin, ()), settings]
        self._begin = begin
        self.afterwards: Sequence[Query] = ()
        self.was_done_afterwards = False
        self.is_committing = False
        self._is_local_only = False
        self._idle_since = NEVER  # when the last answer arrived; before the first, no limit

    def fetch(self, *queries: Query, last: bool = False) -> list[list[Row]]:
        """The rows of each statement."""
        if not queries:
            return []
        opening, self._opening = self._opening, []
        closing = [_COMMIT] if last else []
        if opening and last and self._begin == BEGIN:
            # Everything that is sent up to a sync is one transaction, without BEGIN and COMMIT.
            opening, closing = opening[1:], []
        trip = self._round_trip()
        self.is_committing = last
        trip.send([*opening, *queries, *closing])
        answers = trip.finish(self.afterwards if last else ())
        self._idle_since = boot_now()
        self.was_done_afterwards = trip.was_done_afterwards
        return answers[len(opening) : len(opening) + len(queries)]

    def stream(self, parts: Iterable[Sequence[Query]]) -> list[list[Row]]:
        """The rows of each statement, and the end of the transaction. Each part is sent as it
        comes, so that the server works on it while the next one is being made."""
        trip = self._round_trip()
        opening, self._opening = self._opening, []
        trip.send(opening)
        for part in parts:
            trip.send(part)
            trip.push()
        self.is_committing = True
        trip.send([_COMMIT])
        return trip.finish()[len(opening) : -1]

    def _round_trip(self) -> RoundTrip:
        self._check_idle_limit()
        return RoundTrip(self._connection, self._prepared, until=self._until)

    def _check_idle_limit(self) -> None:
        """Raise if the server has ended this transaction because this process was frozen. Checked
        before a commit is sent: after that, a lost connection leaves the outcome unknown."""
        if self._begin == BEGIN and boot_now() - self._idle_since > LONGEST_IDLE_MS * 1000:
            self._connection.close()
            raise psycopg.OperationalError(
                "this process was frozen in a transaction, and the server has ended it"
            )

    def run(self, work: Callable[[Transaction], _T]) -> _T:
        """Do the work and commit, unless the last statements did."""
        self._connection.add_notice_handler(self._on_notice)
        try:
            result = work(self)
            if self._connection.info.transaction_status != TransactionStatus.IDLE:
                self._check_idle_limit()
                self.is_committing = True
                self._run_alone(_COMMIT)
        finally:
            self._connection.remove_notice_handler(self._on_notice)
        if self._is_local_only:
            raise OutcomeUnknown(
                "the commit is on the primary's disk, but its standby has not confirmed it",
                hint="send the same request again once replication works",
            )
        return result

    def _on_notice(self, notice: Diagnostic) -> None:
        """When a wait for a synchronous standby is cut short, PostgreSQL commits with a warning:
        such a commit must not be reported as durable."""
        if self.is_committing and notice.sqlstate in _INTERRUPTED:
            self._is_local_only = True

    @property
    def may_have_written(self) -> bool:
        """Whether a lost connection leaves the outcome open."""
        return self.is_committing and self._begin == BEGIN

    def undo(self) -> None:
        """Roll back. If that fails, the pool does not use the connection again."""
        if self._connection.info.transaction_status in _OPEN_TRANSACTION:
            with suppress(psycopg.Error):
                self._run_alone(_ROLLBACK)

    def make_room(self) -> None:
        """Deallocate the statements that this connection has prepared, if there are too many."""
        if self._prepared is not None and self._prepared.is_full:
            self._run_alone(_DEALLOCATE)
            self._prepared.clear()

    def _run_alone(self, query: Query) -> None:
        """Run one statement by itself, under the same deadline."""
        trip = RoundTrip(self._connection, None, until=self._until)
        trip.send([query])
        trip.finish()
