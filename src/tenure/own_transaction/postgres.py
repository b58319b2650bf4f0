"""A PostgreSQL store on a caller's connection: the caller commits, or rolls back, what it writes.

The same statements and the same row mapper as the store itself. Never begins or commits, changes
no setting, and works however the connection's own cursors and types are set up.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias, TypeVar, cast

from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.string import TextLoader

from tenure.core.ids import Epoch
from tenure.errors import Closed, InvalidInput
from tenure.own_transaction.connections import another_database
from tenure.ports import Hint, Saved, Store
from tenure.stores.postgres.arrays import texts
from tenure.stores.postgres.database import PostgresDialect
from tenure.stores.postgres.jobs import PostgresJobs
from tenure.stores.postgres.notifications import payload_of
from tenure.stores.postgres.schema import DEFAULT_SCHEMA
from tenure.stores.postgres.store import PostgresParts
from tenure.stores.sql.batches import Group
from tenure.stores.sql.database import Transaction
from tenure.stores.sql.flows import SqlFlows
from tenure.stores.sql.jobs import MarkDirty, SqlJobs
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query

_T = TypeVar("_T")

AnyConnection: TypeAlias = Connection[Any]
AnyAsyncConnection: TypeAlias = AsyncConnection[Any]
Fetch = Callable[[Sequence[Query]], list[list[Row]]]
"""Runs statements on the caller's connection, in order."""


class _CallersTransaction:
    """There is nothing to begin, and `last` ends nothing."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def fetch(self, *queries: Query, last: bool = False) -> list[list[Row]]:
        return self._fetch(queries)


class _BorrowedPostgresJobs(PostgresJobs):
    """Saves within the transaction of a caller."""

    def _save(
        self,
        tx: Transaction,
        groups: Sequence[Group],
        before: Sequence[Query],
        queries: Sequence[Query],
        epoch: Epoch,
    ) -> Saved:
        if not any(change.spawned for group in groups for change in group.changes):
            return super()._save(tx, groups, before, queries, epoch)
        # A flow that the store refuses is an answer, not an error: no half of it may stay. [FL3]
        tx.fetch(Query("SAVEPOINT tenure_enqueue", ()))
        try:
            saved = super()._save(tx, groups, before, queries, epoch)
        except BaseException:
            tx.fetch(Query("ROLLBACK TO SAVEPOINT tenure_enqueue", ()))
            raise
        tx.fetch(Query("RELEASE SAVEPOINT tenure_enqueue", ()))
        return saved


class CallersPostgres(PostgresDialect):
    """Runs statements by `fetch`, within the transaction that is open there. What is written there
    is never remembered as acknowledged: how that transaction ends is unknown here."""

    def __init__(self, schema: str, fetch: Fetch, *, notify: bool) -> None:
        super().__init__(schema)
        self._tx = _CallersTransaction(fetch)
        self._notifies = notify

    def read(
        self,
        work: Callable[[Transaction], _T],
        *,
        snapshot: bool = False,
        listing: bool = False,
        repeated: bool = False,
    ) -> _T:
        return work(self._tx)

    def write(self, work: Callable[[Transaction], _T], *, all_or_nothing: bool = False) -> _T:
        return work(self._tx)

    def notify(self, hints: Collection[Hint], *, sent: Collection[Hint] = ()) -> None:
        assert not sent, "no hint is sent before the caller commits"
        if self._notifies and hints:
            payloads = texts([payload_of(hint) for hint in hints])
            self._tx.fetch(self.query("notify_within", channel=self.channel, payloads=payloads))


class BorrowedPostgresStore(PostgresParts):
    """Loads and saves by `fetch`, within the transaction that is open there."""

    def __init__(self, lender: PostgresParts, fetch: Fetch, *, notify: bool = False) -> None:
        """With `notify` the caller's commit wakes waiting workers."""
        super().__init__(CallersPostgres(lender.database.schema, fetch, notify=notify))
        self.jobs.registered = lender.jobs.registered.copy()

    def _make_jobs(self, flows: SqlFlows, mark_dirty: MarkDirty) -> SqlJobs:
        return _BorrowedPostgresJobs(self.database, flows, mark_dirty=mark_dirty)


def unopened_store() -> Store:
    """Statements and a schema without a connection: usable only on a caller's.

    For handlers whose worker keeps the password of its URL to itself: they bring their own
    connection, and the statements are all that is needed.
    """

    def refuse(_: Sequence[Query]) -> list[list[Row]]:
        raise Closed

    return cast(Store, PostgresParts(CallersPostgres(DEFAULT_SCHEMA, refuse, notify=False)))


def store_on(store: Store, connection: AnyConnection, *, notify: bool = False) -> Store:
    """`store`, reading and writing within the transaction of `connection`."""
    lender = _checked(store, connection)
    lent = BorrowedPostgresStore(
        lender, lambda queries: _fetch_on(connection, queries), notify=notify
    )
    return cast(Store, lent)


async def work_on(
    store: Store,
    connection: AnyAsyncConnection,
    work: Callable[[Store], _T],
    *,
    notify: bool = False,
) -> _T:
    """Run `work` on `store` within the transaction of an asynchronous connection.

    The work is synchronous, like everything inside: it runs in a thread, and its statements on the
    loop that the connection belongs to.
    """
    lender = _checked(store, connection)
    loop = asyncio.get_running_loop()
    is_given_up = threading.Event()

    def fetch(queries: Sequence[Query]) -> list[list[Row]]:
        if is_given_up.is_set():
            raise Closed
        return asyncio.run_coroutine_threadsafe(_afetch_on(connection, queries), loop).result()

    lent = cast(Store, BorrowedPostgresStore(lender, fetch, notify=notify))
    running = asyncio.ensure_future(asyncio.to_thread(work, lent))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        # The caller is about to roll back: nothing of ours may reach the connection after that.
        is_given_up.set()
        running.add_done_callback(_take_failure)
        await asyncio.wait([running])
        raise


def _take_failure(ended: "asyncio.Future[Any]") -> None:
    """Read the failure of work that was given up: asyncio would log it as never retrieved."""
    if not ended.cancelled():
        ended.exception()


def _fetch_on(connection: AnyConnection, queries: Sequence[Query]) -> list[list[Row]]:
    """The rows of each statement, as plain tuples with ids as text."""
    answers: list[list[Row]] = []
    with RawCursor(connection, row_factory=tuple_row) as cursor:
        cursor.adapters.register_loader("uuid", TextLoader)
        for each in queries:
            # Not prepared: a pooler may hand the next transaction to another connection.
            cursor.execute(each.text, each.parameters, prepare=False)
            answers.append(cursor.fetchall() if cursor.description else [])
    return answers


async def _afetch_on(connection: AnyAsyncConnection, queries: Sequence[Query]) -> list[list[Row]]:
    """The rows of each statement, as plain tuples with ids as text."""
    answers: list[list[Row]] = []
    async with AsyncRawCursor(connection, row_factory=tuple_row) as cursor:
        cursor.adapters.register_loader("uuid", TextLoader)
        for each in queries:
            await cursor.execute(each.text, each.parameters, prepare=False)
            answers.append(await cursor.fetchall() if cursor.description else [])
    return answers


def _checked(store: Store, connection: AnyConnection | AnyAsyncConnection) -> PostgresParts:
    """Refuse another database, and a connection that would commit each statement by itself."""
    if not isinstance(store, PostgresParts):
        raise another_database("PostgreSQL")
    is_idle = connection.info.transaction_status == TransactionStatus.IDLE
    if is_idle and connection.autocommit:
        raise InvalidInput(
            "connection",
            "has no open transaction that the job could become part of",
            hint="use `with connection.transaction():`, or a connection without autocommit",
        )
    return store
