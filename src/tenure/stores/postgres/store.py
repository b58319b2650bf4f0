"""PostgreSQL: any number of coordinators on one database, READ COMMITTED, row locks and CAS.

Works behind a pooler in transaction mode: no session state, advisory locks that end with their
transaction, prepared statements only if the pooler supports them. Never prints a password.
"""

import hashlib
import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import TypeVar

from msgspec import UNSET, UnsetType

from tenure.core.claims import ClaimPlan, ClaimScope, ClaimView, QueueState
from tenure.core.concurrency import Key
from tenure.core.failover import Server, newest
from tenure.core.flow_rows import Edge
from tenure.core.ids import Epoch, Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.outcomes import Change, Session, SessionKey
from tenure.core.rates import Meter, Rate
from tenure.core.views.job_search import ERROR_CHARS
from tenure.deadlines import CALL_TIMEOUT_S, Deadline, deadline
from tenure.errors import (
    OutcomeUnknown,
    ServerBehind,
    StoreError,
    StoreUnavailable,
)
from tenure.ports import (
    HealthFact,
    Hint,
    HintedChange,
    OnHint,
    fact,
)
from tenure.stores.hints import hints_of
from tenure.stores.host_clock import host_clock
from tenure.stores.postgres.arrays import integers, texts, truths
from tenure.stores.postgres.driver import errors, make_conninfo, psycopg
from tenure.stores.postgres.failover import FailoverMemory, check_server, log_check
from tenure.stores.postgres.health import QUESTIONS, postgres_facts
from tenure.stores.postgres.jobs import PostgresJobs
from tenure.stores.postgres.notifications import Notifications, channel_of
from tenure.stores.postgres.pool import Pool
from tenure.stores.postgres.schema import (
    CONNECT_TIMEOUT_S,
    DEFAULT_SCHEMA,
    PACKAGE,
    check_schema,
    complete_dsn,
    connect,
    hosts_of,
    schema_words,
    shown_host,
    translate,
)
from tenure.stores.postgres.schema import migrate as migrate_schema
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
from tenure.stores.sql.admission import MAX_DIRTY_KEYS, DirtyKey
from tenure.stores.sql.flows import SqlFlows
from tenure.stores.sql.jobs import SqlJobs
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query, Statements
from tenure.stores.sql.store import COLUMN_WORDS, LISTING_SHARE, SqlStore
from tenure.stores.sql.transactions import Transaction

_log = logging.getLogger("tenure.stores")

LISTING_CONNECTIONS = 5
"""For lists and measures alone, so that a slow list holds up no heartbeat: one for each thread of a
server that lists, and one for its metrics. They are opened when they are needed."""

MAX_HINTED_QUEUES = 200
"""After a change of a kind, the workers of this many queues get a hint; others find out by
polling."""

MAX_TRIES = 5
"""How often a transaction is tried that PostgreSQL aborts because of another one."""

LONGEST_PAUSE_S = 0.05

SERVER_FIRST_S = 0.5
"""By how much the server's time-out is shorter than this process's, if there is time: then the
server answers, and its answer says that nothing was written."""

COMPARE_WITHIN_S = 3
"""How long a process that starts waits for each host of its URL, if there are several."""

WORDS = COLUMN_WORDS | {
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


class PostgresStore(SqlStore):
    """`tenure.ports.Store` in a schema of a PostgreSQL database.

    A call without a deadline of its own waits for `timeout_s` at most.
    """

    _locked_by_others = 1000
    _admits_apart = True
    _may_undo = True  # whether a transaction of ours may be undone as a whole

    def __init__(
        self,
        dsn: str,
        *,
        schema: str = DEFAULT_SCHEMA,
        pool_size: int = 4,
        migrate: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
        accept_restored: bool = False,
    ) -> None:
        """`accept_restored`: also open a store that was restored, to raise its epoch. [A12]"""
        words = WORDS | schema_words(schema)
        self._statements = Statements(PACKAGE, words, placeholder="$")
        super().__init__(self._statements)
        self._schema = schema
        self._pool_size = pool_size
        complete = complete_dsn(dsn)
        self._hosts = hosts_of(complete)
        if migrate:
            migrate_schema(complete, schema=schema)
        check_schema(complete, schema=schema)
        self._timeout_s = timeout_s
        self._memory = FailoverMemory()
        self._accepts_restored = accept_restored
        self._pool = Pool(self._connect, size=pool_size)
        self._channel = channel_of(schema)
        self._notifications = Notifications(self._channel, self._connect, self._notify)
        self._listing_pool = Pool(self._connect, size=LISTING_CONNECTIONS)
        self._prepares = True
        self._random = random.Random()  # noqa: S311 - spreads retries, guards nothing
        self._compare_hosts()
        opened_by = Deadline(time.monotonic() + max(timeout_s, CONNECT_TIMEOUT_S))
        self._pool.give_back(self._pool.take(opened_by))  # raises if this server must not be used

    @property
    def parallelism(self) -> int:
        """The pool's size."""
        return self._pool_size

    def health(self) -> list[HealthFact]:
        """What is true of the server now, and what to do about it."""
        queries = [self._query(name, schema=self._schema) for name in QUESTIONS]
        sent_at = host_clock()
        answers = self._read(lambda tx: tx.fetch(*queries, last=True), listing=True)
        facts = postgres_facts(answers, sent_at=sent_at, received_at=host_clock())
        arrive = self._notifications.arrive()
        return [
            *facts,
            fact(
                "wake-ups",
                "notifications" if arrive else "polling",
                warning=not arrive,
                advice="notifications do not arrive, so idle workers find a new job up to 0.75 s"
                " later; a pooler in transaction mode does not pass them on: give workers a direct"
                " URL",
            ),
        ]

    def close(self) -> None:
        """Close every connection."""
        self._notifications.close()
        self._pool.close()
        self._listing_pool.close()

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
                    _log.warning("%s was passed over: %s", shown_host(dsn), problem)
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
                [row] = connection.execute(self._query("server_state").text).fetchall()
                found[shown_host(dsn)] = Server(row[0], row[1])
        if len({server.system_identifier for server in found.values()}) > 1:
            raise StoreError(
                f"{' and '.join(found)} are different PostgreSQL systems, not a primary and its"
                " standbys",
                hint="remove from the URL the hosts that do not belong to this store",
            )
        self._memory.expect(newest(list(found.values())))

    def _check_server(self, wire: Wire, until: Deadline) -> None:
        """Check that the server has everything that this process remembers."""
        asked = self._memory.remembered()
        tx = self._transaction(wire, BEGIN, until, None, prepares=False)
        result = tx.run(
            lambda tx: check_server(
                tx,
                self._query,
                asked,
                epoch_lock=self._epoch_lock(),
                accepts_restored=self._accepts_restored,
            )
        )
        self._memory.checked(result)
        log_check(result)
        if asked.server is not None and asked.server != result.found.server:
            self._drop_idle()  # these connections lead to the old server

    def _saw_epoch(self, epoch: Epoch) -> None:
        self._memory.saw(epoch)

    def _saw_tick(self, tick: Instant) -> None:
        self._memory.ticked(tick)

    def _make_jobs(self, flows: SqlFlows) -> SqlJobs:
        return PostgresJobs(self, flows)

    def claim(
        self,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
    ) -> ClaimPlan:
        """Lock, read, let `plan` decide, write what it says; remember it as acknowledged."""
        begun = self._memory.begin()
        planned = super().claim(scope, sessions, wanted, plan)
        self._memory.acknowledged(planned.changes, begun=begun)
        return planned

    def _remember(
        self, written: Sequence[Change], now: Instant, *, begun: int, told: Collection[Hint] = ()
    ) -> None:
        """After every commit of changes but a claim's, which makes no job ready. Other processes
        know of the hints that were `told`."""
        self._memory.acknowledged(written, begun=begun)
        self._hint(written, now, told=told)

    # --- hints ---------------------------------------------------------------------------------

    def watch(self, on_hint: OnHint) -> Callable[[], None]:
        """Call `on_hint` after commits of any process, if notifications arrive."""
        self._pool.check()
        return self._notifications.watch(on_hint)

    def put_queue(
        self,
        namespace: Namespace,
        name: QueueName,
        *,
        paused: bool | None,
        limit: int | None,
        rate: Rate | UnsetType | None = UNSET,
    ) -> QueueState:
        """Change a queue's settings: its jobs may be ready now."""
        state = super().put_queue(namespace, name, paused=paused, limit=limit, rate=rate)
        self._notifications.tell([Hint(HintedChange.READY, namespace, name)])
        return state

    def put_kind(
        self, namespace: Namespace, change: KindChange, *, only_new: bool = False
    ) -> KindSettings:
        """Change a kind's settings: jobs of any queue may be ready now."""
        kept = super().put_kind(namespace, change, only_new=only_new)
        if not change.sets_limits:
            return kept
        queues = self.queues(namespace, limit=MAX_HINTED_QUEUES)
        self._notifications.tell(
            [Hint(HintedChange.READY, namespace, state.name) for state in queues]
        )
        return kept

    def _hint(
        self, written: Sequence[Change], now: Instant, *, told: Collection[Hint] = ()
    ) -> None:
        self._notifications.tell(hints_of(written, now), sent=told)

    def _notify(self, channel: str, payloads: Sequence[str]) -> None:
        query = self._query("notify", channel=channel, payloads=texts(payloads))
        self._write(lambda tx: tx.fetch(query, last=True))

    # --- transactions --------------------------------------------------------------------------

    def _read(
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

    def _write(self, work: Callable[[Transaction], _T], *, all_or_nothing: bool = False) -> _T:
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
        """Run work in a transaction, and again before its deadline if nothing was written. [K6]"""
        pool = self._listing_pool if listing else self._pool
        until, tries = deadline(self._timeout_s * (LISTING_SHARE if listing else 1)), 0
        while True:
            tries += 1
            wire = pool.take(until)
            try:
                timeline = self._memory.timeline
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
                        if prepares and problem.sqlstate in NOT_CARRIED:
                            self._stop_preparing(problem)
                            continue
                        if problem.sqlstate == OTHER_TIMELINE and tries < MAX_TRIES:
                            # A pooler hid a failover, or idle connections lead to an old primary.
                            wire.close()
                            self._drop_idle()
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
                    if timeline != self._memory.timeline and tx.may_have_written:
                        raise _unknown("another PostgreSQL server took over while committing")
                    return result
            finally:
                pool.give_back(wire)
            time.sleep(self._random.uniform(0, LONGEST_PAUSE_S))

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
        settings = self._settings(until, timeline, writes=begin == BEGIN)
        return PostgresTransaction(wire, begin, settings, until=until, prepares=prepares)

    def _settings(self, until: Deadline, timeline: int | None, *, writes: bool = False) -> Query:
        """The first statement of a transaction. Sets the server's time-outs a little shorter than
        this process's."""
        left_s = until.remaining_s
        whole_ms = max(2, int((left_s - min(SERVER_FIRST_S, left_s / 10)) * 1000))
        lock_ms = whole_ms * 9 // 10  # the shortest, so that the error names the lock
        # A reader holds no lock that others wait for.
        idle_ms = min(whole_ms, LONGEST_IDLE_MS) if writes else whole_ms
        return self._query(
            "settings",
            timeline=timeline,
            statement_timeout=f"{whole_ms}ms",
            lock_timeout=f"{lock_ms}ms",
            idle_timeout=f"{idle_ms}ms",
        )

    def _drop_idle(self) -> None:
        """Close idle connections, after one was found dead or leads to the wrong server."""
        self._pool.drop_idle()
        self._listing_pool.drop_idle()

    def _stop_preparing(self, problem: psycopg.Error) -> None:
        self._prepares = False
        _log.info(
            "prepared statements get lost (a pooler?); no longer preparing them: %s",
            problem,
        )

    def _pack(self, values: Sequence[str]) -> str:
        return texts(values)

    # --- locks ---------------------------------------------------------------------------------

    def _claim_locks(self, namespace: Namespace, sessions: Sequence[SessionKey]) -> list[Query]:
        """Epoch, then sessions, sorted, then settings, so that no deadlock can occur.

        Advisory locks, not row locks: a claim that finds nothing must write nothing.
        """
        own = sorted({self._key("session", *_parts(key)) for key in sessions})
        keys = [self._key("epoch"), *own, self._key("settings", namespace)]
        are_shared = [True, *[False] * len(own), True]
        return [self._query("lock_in_order", keys=integers(keys), are_shared=truths(are_shared))]

    def _session_queries(self, sessions: Sequence[Session]) -> list[Query]:
        if not sessions:
            return []
        keys = [session.key for session in sessions]
        query = self._query(
            "remember_sessions",
            namespaces=texts([key.namespace for key in keys]),
            actors=texts([key.actor for key in keys]),
            workers=texts([key.worker for key in keys]),
            claim_seqs=integers([session.claim_seq for session in sessions]),
            request_ids=texts([session.request_id for session in sessions]),
            fingerprints=texts([session.fingerprint for session in sessions]),
            claimed_ats=integers([session.claimed_at for session in sessions]),
            are_repeated=truths([session.is_repeated for session in sessions]),
        )
        return [query]

    def _pack_places(self, places: Sequence[tuple[Kind, int]]) -> dict[str, object]:
        return {
            "kinds": texts([kind for kind, _ in places]),
            "lanes": integers([lane for _, lane in places]),
        }

    def _dirty_key_queries(self, keys: Sequence[DirtyKey]) -> list[Query]:
        query = self._query(
            "note_dirty_keys",
            namespaces=texts([each.namespace for each in keys]),
            kinds=texts([each.key.kind for each in keys]),
            are_rates=truths([each.key.is_rate for each in keys]),
            keys=texts([each.key.key for each in keys]),
            instants=integers([each.at for each in keys]),
            noted_ats=integers([each.noted_at for each in keys]),
        )
        return [query]

    def _take_dirty(
        self, tx: Transaction, namespace: Namespace, kinds: Sequence[Kind] | None
    ) -> tuple[Instant, list[Row]]:
        _, rows, [(now, epoch, rev)] = tx.fetch(
            *self._claim_locks(namespace, ()),
            self._query(
                "take_dirty_keys",
                namespace=namespace,
                kinds=None if kinds is None else texts(kinds),
                page=MAX_DIRTY_KEYS,
            ),
            self._query("moment_to_admit"),
        )
        self._refresh(tx, namespace, epoch, rev)
        return now, rows

    def _jobs_of_keys(
        self,
        tx: Transaction,
        namespace: Namespace,
        keys: Mapping[Key, int],
        *,
        is_rate: bool,
    ) -> tuple[Instant, list[Row]]:
        query = self._query(
            "jobs_of_keys",
            self._key_shapes[is_rate],
            namespace=namespace,
            kinds=texts([key.kind for key in keys]),
            keys=texts([key.key for key in keys]),
            most=integers(list(keys.values())),
        )
        rows, [(now, _)] = tx.fetch(query, self._query("moment"))
        return now, rows

    def _slot_changes(self, namespace: Namespace, states: Mapping[Meter, Instant]) -> list[Query]:
        if not states:
            return []
        query = self._query(
            "set_slots",
            namespace=namespace,
            scopes=texts([meter.scope.value for meter in states]),
            names=texts([meter.name for meter in states]),
            keys=texts([meter.key for meter in states]),
            tats=integers(list(states.values())),
        )
        return [query]

    def _settings_lock(self, namespace: Namespace) -> list[Query]:
        return [self._query("lock_exclusive", key=self._key("settings", namespace))]

    def _epoch_queries(self) -> list[Query]:
        # `adopt_server` records the server that the store is on now.
        return [*self._epoch_lock(), self._query("adopt_server"), self._query("raise_epoch")]

    def _epoch_lock(self) -> list[Query]:
        return [self._query("lock_exclusive", key=self._key("epoch"))]

    def _key(self, *parts: str) -> int:
        return _lock_key(self._schema, *parts)

    def _edge_insertion(self, edges: Sequence[Edge]) -> Query:
        return self._query(
            "insert_edges",
            children=texts([edge.child_id for edge in edges]),
            positions=integers([edge.position for edge in edges]),
            parents=texts([edge.parent_id for edge in edges]),
            steps=texts([edge.step for edge in edges]),
            needed=texts([edge.needs for edge in edges]),
            are_outside=truths([edge.is_outside for edge in edges]),
        )


def _unknown(what: str) -> OutcomeUnknown:
    hint = "send the same request again: it is carried out once, whatever happened"
    return OutcomeUnknown(what, hint=hint)


def _parts(key: SessionKey) -> tuple[str, str, str]:
    return key.namespace, key.actor, key.worker


@lru_cache(maxsize=4096)
def _lock_key(*parts: str) -> int:
    """The key of an advisory lock. If two names have the same key, they only wait needlessly."""
    digest = hashlib.blake2b("\x00".join(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
