"""A PostgreSQL store on a connection that is its caller's: what it writes is committed, or rolled
back, with everything else of the caller's transaction.

The same statements and the same row mapper as the store itself. Never begins or commits, changes
no setting, and does not mind how the connection's own cursors and types are set up.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.string import TextLoader

from tenure.errors import InvalidInput
from tenure.stores.postgres.failover import Memory
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Asked
from tenure.stores.sql.store import SqlStore
from tenure.stores.sql.transactions import Transaction

_T = TypeVar("_T")

AnyConnection: TypeAlias = Connection[Any]
AnyAsyncConnection: TypeAlias = AsyncConnection[Any]
Fetch = Callable[[Sequence[Asked]], list[list[Row]]]
"""Runs statements on the caller's connection, in order."""


class _Borrowed:
    """The caller's transaction: there is nothing to begin, and `last` ends nothing."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def fetch(self, *asked: Asked, last: bool = False) -> list[list[Row]]:
        return self._fetch(asked)


class BorrowedPostgresStore(PostgresStore):
    """Loads and saves by `fetch`, within the transaction that is open there."""

    _may_undo = False

    def __init__(self, lender: PostgresStore, fetch: Fetch) -> None:
        SqlStore.__init__(self, lender._statements)
        self._statements = lender._statements
        self._schema = lender._schema
        self._registered_queues = set(lender._registered_queues)
        self._registered_in = lender._registered_in
        self._memory = Memory()  # of a transaction whose end nobody tells us: never asked
        self._borrowed = _Borrowed(fetch)

    def _transact(
        self,
        begin: str,
        work: Callable[[Transaction], _T],
        *,
        all_or_nothing: bool = False,
        listing: bool = False,
    ) -> _T:
        return work(self._borrowed)


def fetch_on(connection: AnyConnection, asked: Sequence[Asked]) -> list[list[Row]]:
    """The rows of each statement, as plain tuples with ids as text."""
    answers: list[list[Row]] = []
    with RawCursor(connection, row_factory=tuple_row) as cursor:
        cursor.adapters.register_loader("uuid", TextLoader)
        for each in asked:
            # Not prepared: a pooler may hand the next transaction to another connection.
            cursor.execute(each.text, each.parameters, prepare=False)
            answers.append(cursor.fetchall() if cursor.description else [])
    return answers


async def afetch_on(connection: AnyAsyncConnection, asked: Sequence[Asked]) -> list[list[Row]]:
    """The rows of each statement, as plain tuples with ids as text."""
    answers: list[list[Row]] = []
    async with AsyncRawCursor(connection, row_factory=tuple_row) as cursor:
        cursor.adapters.register_loader("uuid", TextLoader)
        for each in asked:
            await cursor.execute(each.text, each.parameters, prepare=False)
            answers.append(await cursor.fetchall() if cursor.description else [])
    return answers


def check_transaction(connection: AnyConnection | AnyAsyncConnection) -> None:
    """Refuse a connection on which every statement would be committed by itself."""
    is_idle = connection.info.transaction_status == TransactionStatus.IDLE
    if is_idle and connection.autocommit:
        raise InvalidInput(
            "connection",
            "has no open transaction that the job could become part of",
            hint="use `with connection.transaction():`, or a connection without autocommit",
        )
