"""A PostgreSQL database: connections, transactions, and what a failover must not lose.

Works behind a pooler in transaction mode: no session state, advisory locks that end with their
transaction, prepared statements only if the pooler supports them. Never prints a password.
"""

import hashlib
import logging
import os
import random
import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TypeVar

from tenure.core.failover import Server, newest
from tenure.core.ids import Epoch
from tenure.core.instants import Instant
from tenure.core.outcomes import Change
from tenure.core.views.job_search import ERROR_CHARS
from tenure.deadlines import CALL_TIMEOUT_S, Deadline, deadline
from tenure.errors import OutcomeUnknown, ServerBehind, StoreError, StoreUnavailable
from tenure.ports import Hint
from tenure.stores.postgres.arrays import integers, texts, truths
from tenure.stores.postgres.driver import errors, make_conninfo, psycopg
from tenure.stores.postgres.failover import FailoverMemory, check_server, log_check
from tenure.stores.postgres.notifications import Listener, Notifier, channel_of
from tenure.stores.postgres.pool import Pool
from tenure.stores.postgres.schema import (
    CONNECT_TIMEOUT_S,
    DEFAULT_SCHEMA,
    PACKAGE,
    complete_dsn,
    connect,
    hosts_of,
    schema_placeholders,
    shown_host,
    translate,
)
from tenure.stores.postgres.transaction import (
    BEGIN,
    BEGIN_READING,
    BEGIN_SNAPSHOT,
    LONGEST_IDLE_MS,
    NOT_CARRIED,
    OTHER_TIMELINE,
    UNIQUE_VIOLATION,
    VETO,
    PostgresTransaction,
    Vetoed,
)
from tenure.stores.postgres.wire import NoAnswer, Wire
from tenure.stores.sql.database import LISTING_SHARE, Database, Transaction
from tenure.stores.sql.statements import Query, Statements
from tenure.stores.sql.store import COLUMN_PLACEHOLDERS

_log = logging.getLogger("tenure.stores")

LISTING_CONNECTIONS = 5
"""For lists and measures alone, so that a slow list delays no heartbeat: one for each thread of a
server that lists, and one for its metrics. They are opened when they are needed."""

MAX_TRIES = 5
"""How often a transaction is tried that PostgreSQL aborts because of another one."""

LONGEST_PAUSE_S = 0.05

SERVER_FIRST_S = 0.5
"""By how much the server's time-out is shorter than this process's, if there is time: then the
server answers, and its answer states that nothing was written."""

_WITH_COUNT = (
    ") AS found UNION ALL SELECT {count_as_candidate}"
    " FROM (SELECT count(*) AS n FROM (%s LIMIT :wanted) AS v) AS v LIMIT :wanted"
)
"""Ends a statement of candidates with their number, locked ones included. Counts only if there are
fewer than wanted: otherwise the limit stops before that. In the same statement, and so in the same
snapshot: jobs that are enqueued meanwhile do not count."""

COMPARE_WITHIN_S = 3
"""How long a process that starts waits for each host of its URL, if there are several."""

PLACEHOLDERS = COLUMN_PLACEHOLDERS | {
    "uuid": "uuid",
    "bytes": "bytea",
    # Does not read a body that is stored outside of its row.
    "body_bytes": "(octet_length(j.payload) + coalesce(octet_length(j.checkpoint), 0)"
    " + coalesce(octet_length(j.result), 0))",
    # The text in which a search looks for errors, in lower case of ASCII.
    "error_text": "lower(left(coalesce(CAST(coalesce(error, last_error) AS json) ->> 'type', '')"
    " || ': ' || coalesce(CAST(coalesce(error, last_error) AS json) ->> 'message', ''),"
    f' {ERROR_CHARS}) COLLATE "C")',
    "lock": "FOR UPDATE",
    "skip_locked": "FOR UPDATE SKIP LOCKED",
    "skip_locked_jobs": "FOR UPDATE OF j SKIP LOCKED",
    "begin_counted": "SELECT * FROM (",
    "with_count_of_arm": _WITH_COUNT
    % "SELECT 1 FROM {t}job AS j WHERE j.namespace = :namespace AND j.queue = :queue AND {arm}",
    "with_count_of_arms": _WITH_COUNT % "SELECT 1 FROM ({arms}) AS v",
    # The position of this transaction's events in the tail: see job_event in the schema. A
    # sub-select is evaluated once for all rows.
    "position": "(SELECT (CAST(:epoch AS bigint) << 44)"
    " | CAST(CAST(pg_current_xact_id() AS text) AS bigint))",
    # True for events of transactions before the oldest one that may still be running.
    "committed": "position < (SELECT (epoch << 44)"
    " | CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint) FROM {t}meta)",
    # The planner knows which of these are small.
    "by_leases": "",
    "by_due": "",
    "by_blocked": "",
    "by_claimed": "",
    "by_flow": "",
    "by_id": "",
    "by_flow_id": "",
    "by_enqueue": "",
    "listed_at": "listed_at",
    "listed_id": "listed_id",
    "by_cancelled": "",
    "by_ready": "",
    "by_delayed": "",
    "true": "TRUE",
    "false": "FALSE",
    "this_kind": "k.kind",
    "this_key": "k.key",
    "by_key": "",
    "by_place_of_key": "",
    "by_rate_key": "",
    "by_place_of_rate_key": "",
    "by_rate_waits": "",
    "one_by_one": "OFFSET 0",
    "each_name": "SELECT unnest(CAST(:names AS text[])) AS name",
    "each_kind": "SELECT unnest(CAST(:kinds AS text[])) AS kind",
    "smallint": "smallint",
    "is_outside": "e.is_outside",
    "among_ids": "= ANY(CAST(:ids AS uuid[]))",
    **{
        f"among_{name}": f"= ANY(CAST(:{name} AS text[]))"
        for name in ("workers", "queues", "kinds", "names", "statuses", "types")
    },
}

_T = TypeVar("_T")


@lru_cache(maxsize=64)
def statements(schema: str) -> Statements:
    """The statements of this dialect for a schema, read and compiled once for all its stores."""
    return Statements(PACKAGE, PLACEHOLDERS | schema_placeholders(schema), placeholder="$")


class PostgresDialect(Database):
    """What every transaction of Tenure on PostgreSQL has, also a caller's own."""

    may_undo = False
    """Whether a transaction may be undone as a whole."""

    def __init__(self, schema: str) -> None:
        super().__init__(statements(schema))
        self.schema = schema
        self.channel = channel_of(schema)

    def pack(self, values: Sequence[str]) -> str:
        return texts(values)

    @abstractmethod
    def write(self, work: Callable[[Transaction], _T], *, all_or_nothing: bool = False) -> _T:
        """Run writing work; with `all_or_nothing` a unique key that is taken is a veto."""

    def take_due(self, hints: Collection[Hint]) -> tuple[list[Hint], list[str]]:
        """The hints that may be sent now, and their payloads: the caller sends them."""
        return [], []

    def lock(self, *parts: str) -> list[Query]:
        """Waits for every transaction that has locked this name, exclusively or shared."""
        return [self.query("lock_exclusive", key=self.key(*parts))]

    def locks_in_order(self, locks: Sequence[tuple[int, bool]]) -> Query:
        """Takes these locks, by key and whether others may share them."""
        return self.query(
            "lock_in_order",
            keys=integers([key for key, _ in locks]),
            are_shared=truths([is_shared for _, is_shared in locks]),
        )

    def key(self, *parts: str) -> int:
        """The key of an advisory lock."""
        return _lock_key(self.schema, *parts)


class PostgresDatabase(PostgresDialect):
    """A schema of a database, on connections of our own. A call without a deadline of its own waits
    for `timeout_s` at most."""

    may_undo = True

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        pool_size: int = 4,
        timeout_s: float = CALL_TIMEOUT_S,
        accept_restored: bool = False,
    ) -> None:
        """`accept_restored`: also open a store that was restored, to raise its epoch. [A12]"""
        super().__init__(schema)
        self._hosts = hosts_of(complete_dsn(dsn))
        self._timeout_s = timeout_s
        self.memory = FailoverMemory()
        self._accepts_restored = accept_restored
        settings = self.statements.shaped("settings", ())
        assert settings.names == ("statement_timeout", "lock_timeout", "idle_timeout", "timeline")
        self._settings_text = settings.text
        self.pool = Pool(self._connect, size=pool_size)
        self.listing_pool = Pool(self._connect, size=LISTING_CONNECTIONS)
        sender = os.urandom(8).hex()
        self.notifier = Notifier(sender, self.channel, self._notify)
        self.listener = Listener(sender, self.channel, self._connect, self._notify)
        self._prepares = True
        self._random = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._compare_hosts()
        opened_by = Deadline(time.monotonic() + max(timeout_s, CONNECT_TIMEOUT_S))
        self.pool.give_back(self.pool.take(opened_by))  # raises if this server must not be used

    def close(self) -> None:
        """Close every connection."""
        self.notifier.close()
        self.listener.close()
        self.pool.close()
        self.listing_pool.close()

    # --- failover ------------------------------------------------------------------------------

    def _connect(self, until: Deadline) -> Wire:
        """A new connection to a server that has everything that was acknowledged to this process.
        [A8] Hosts are tried in the URL's order; one that is behind is skipped. [A11]"""
        problems: list[StoreUnavailable] = []
        for tried, dsn in enumerate(self._hosts):
            try:
                return self._connect_to(dsn, until.shared_by(len(self._hosts) - tried))
            except StoreUnavailable as problem:
                problems.append(problem)
                if isinstance(problem, ServerBehind):
                    _log.warning("%s was skipped: %s", shown_host(dsn), problem)
        raise next((each for each in problems if isinstance(each, ServerBehind)), problems[-1])

    def _connect_to(self, dsn: str, until: Deadline) -> Wire:
        wire = Wire(connect(dsn, until=until))
        try:
            self._check_server(wire, until)
        except psycopg.Error as problem:
            wire.close()
            raise translate(problem) from problem
        except BaseException:
            wire.close()
            raise
        return wire

    def _compare_hosts(self) -> None:
        """Find the newest primary among the hosts of the URL, so that this process does not start
        on an old primary that the URL names first. [A11]"""
        if len(self._hosts) == 1:
            return
        found: dict[str, Server] = {}
        for dsn in self._hosts:
            # It may be down, a standby, or without our schema.
            shortly = make_conninfo(dsn, connect_timeout=COMPARE_WITHIN_S)
            with suppress(StoreUnavailable, psycopg.Error), connect(shortly) as connection:
                [row] = connection.execute(self.query("server_state").text).fetchall()
                found[shown_host(dsn)] = Server(row[0], row[1])
        if len({server.system_identifier for server in found.values()}) > 1:
            raise StoreError(
                f"{' and '.join(found)} are different PostgreSQL systems, not a primary and its"
                " standbys",
                hint="remove from the URL the hosts that do not belong to this store",
            )
        self.memory.expect(newest(list(found.values())))

    def _check_server(self, wire: Wire, until: Deadline) -> None:
        """Check that the server has everything that this process remembers."""
        asked = self.memory.remembered()
        tx = self._transaction(wire, BEGIN, until, None, prepares=False)
        result = tx.run(
            lambda tx: check_server(
                tx,
                self.query,
                asked,
                epoch_lock=self.lock("epoch"),
                accepts_restored=self._accepts_restored,
            )
        )
        self.memory.checked(result)
        log_check(result)
        if asked.server is not None and asked.server != result.found.server:
            self._drop_idle()  # these connections lead to the old server

    def saw_epoch(self, epoch: Epoch) -> None:
        self.memory.saw(epoch)

    def saw_tick(self, tick: Instant) -> None:
        self.memory.ticked(tick)

    def begin(self) -> int:
        return self.memory.acknowledgements

    def acknowledged(self, changes: Iterable[Change], *, begun: int) -> None:
        self.memory.acknowledged(changes, begun=begun)

    # --- hints ---------------------------------------------------------------------------------

    def notify(self, hints: Collection[Hint], *, sent: Collection[Hint] = ()) -> None:
        watchers = self.listener.watchers
        if watchers.functions:
            for hint in hints:
                watchers.notify(hint)
        if len(sent) < len(hints):
            self.notifier.notify([hint for hint in hints if hint not in sent])

    def take_due(self, hints: Collection[Hint]) -> tuple[list[Hint], list[str]]:
        return self.notifier.take_due(hints)

    def _notify(self, channel: str, payloads: Sequence[str]) -> None:
        query = self.query("notify", channel=channel, payloads=texts(payloads))
        self.write(lambda tx: tx.fetch(query, last=True))

    # --- transactions --------------------------------------------------------------------------

    def read(
        self,
        work: Callable[[Transaction], _T],
        *,
        snapshot: bool = False,
        listing: bool = False,
        repeated: bool = False,
    ) -> _T:
        begin = BEGIN_SNAPSHOT if snapshot else BEGIN_READING
        # The plan of a prepared statement does not know its limits: for the newest 10,000 of a
        # million jobs it read all of them (docs/adr/0073).
        return self._transact(begin, work, listing=listing, prepares=repeated or not listing)

    def write(self, work: Callable[[Transaction], _T], *, all_or_nothing: bool = False) -> _T:
        return self._transact(BEGIN, work, all_or_nothing=all_or_nothing)

    def _transact(
        self,
        begin: str,
        work: Callable[[Transaction], _T],
        *,
        all_or_nothing: bool = False,
        listing: bool = False,
        prepares: bool = True,
    ) -> _T:
        """Run work in a transaction, and again before its deadline if nothing was written. [K16]"""
        pool = self.listing_pool if listing else self.pool
        until, tries = deadline(self._timeout_s * (LISTING_SHARE if listing else 1)), 0
        while True:
            tries += 1
            wire = pool.take(until)
            try:
                timeline = self.memory.timeline
                prepares = prepares and self._prepares
                tx = self._transaction(wire, begin, until, timeline, prepares=prepares)
                try:
                    result = tx.run(work)
                except (errors.SerializationFailure, errors.DeadlockDetected) as given_up:
                    tx.undo()
                    if tries >= MAX_TRIES or until.has_passed:
                        raise translate(given_up) from given_up
                except psycopg.Error as problem:
                    if not wire.is_closed:
                        tx.undo()
                        if self._fits_next_time(problem, wire, tries, prepares=prepares):
                            continue
                        is_in_the_way = all_or_nothing and problem.sqlstate == UNIQUE_VIOLATION
                        if is_in_the_way or problem.sqlstate == VETO:
                            raise Vetoed from problem
                        raise translate(problem) from problem
                    if tx.may_have_written:
                        raise _unknown(
                            "the connection to PostgreSQL was lost while committing"
                        ) from problem
                    self._drop_idle()
                    if tries > 1 or until.has_passed or isinstance(problem, NoAnswer):
                        raise translate(problem) from problem
                except BaseException:
                    tx.undo()
                    raise
                else:
                    if timeline != self.memory.timeline and tx.may_have_written:
                        raise _unknown("another PostgreSQL server took over while committing")
                    return result
            finally:
                pool.give_back(wire)
            time.sleep(self._random.uniform(0, LONGEST_PAUSE_S))

    def _fits_next_time(
        self, problem: psycopg.Error, wire: Wire, tries: int, *, prepares: bool
    ) -> bool:
        """Put aside what made a connection unfit for a transaction. Returns whether there was
        something, so that the transaction is worth another try."""
        if prepares and problem.sqlstate in NOT_CARRIED:
            self._stop_preparing(problem)
            return True
        if problem.sqlstate == OTHER_TIMELINE and tries < MAX_TRIES:
            # A pooler hid a failover, or idle connections lead to an old primary.
            wire.close()
            self._drop_idle()
            return True
        return False

    def _transaction(
        self,
        wire: Wire,
        begin: str,
        until: Deadline,
        timeline: int | None,
        *,
        prepares: bool,
    ) -> PostgresTransaction:
        """A transaction that a server on another timeline refuses; with None, none refuses it."""
        settings = self.settings(until, timeline, writes=begin == BEGIN)
        return PostgresTransaction(wire, begin, settings, until=until, prepares=prepares)

    def settings(self, until: Deadline, timeline: int | None, *, writes: bool = False) -> Query:
        """The first statement of a transaction. Sets the server's time-outs a little shorter than
        this process's."""
        left_s = max(0.0, until.until_s - time.monotonic())
        whole_ms = max(2, int((left_s - min(SERVER_FIRST_S, left_s / 10)) * 1000))
        lock_ms = whole_ms * 9 // 10  # the shortest, so that the error names the lock
        # A reader holds no lock that others wait for.
        idle_ms = min(whole_ms, LONGEST_IDLE_MS) if writes else whole_ms
        values = (f"{whole_ms}ms", f"{lock_ms}ms", f"{idle_ms}ms", timeline)
        return Query(self._settings_text, values)

    def _drop_idle(self) -> None:
        """Close idle connections, after one was found dead or leads to the wrong server."""
        self.pool.drop_idle()
        self.listing_pool.drop_idle()

    def _stop_preparing(self, problem: psycopg.Error) -> None:
        self._prepares = False
        _log.info(
            "prepared statements get lost (a pooler?); no longer preparing them: %s",
            problem,
        )


def _unknown(what: str) -> OutcomeUnknown:
    hint = "send the same request again: it is carried out once, whatever happened"
    return OutcomeUnknown(what, hint=hint)


@lru_cache(maxsize=4096)
def _lock_key(*parts: str) -> int:
    """The key of an advisory lock. If two names have the same key, they only wait needlessly."""
    digest = hashlib.blake2b("\x00".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
