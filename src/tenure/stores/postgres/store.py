"""PostgreSQL: any number of coordinators on one database, READ COMMITTED, row locks and CAS."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import UNSET, UnsetType

from tenure.core.claims import ClaimPlan, ClaimScope, ClaimView, QueueState
from tenure.core.concurrency import Key
from tenure.core.flow_rows import Edge
from tenure.core.ids import Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.kind_settings import KindChange, KindSettings
from tenure.core.outcomes import Session, SessionKey
from tenure.core.rates import Meter, Rate
from tenure.deadlines import CALL_TIMEOUT_S
from tenure.ports import HealthFact, Hint, HintedChange, OnHint, fact
from tenure.stores.host_clock import host_clock
from tenure.stores.postgres.arrays import integers, texts, truths
from tenure.stores.postgres.database import PostgresDatabase, PostgresDialect
from tenure.stores.postgres.health import QUESTIONS, postgres_facts
from tenure.stores.postgres.jobs import PostgresJobs
from tenure.stores.postgres.schema import (
    DEFAULT_SCHEMA,
    check_schema,
    complete_dsn,
    schema_words,
)
from tenure.stores.postgres.schema import migrate as migrate_schema
from tenure.stores.sql.admission import MAX_DIRTY_KEYS, DirtyKey
from tenure.stores.sql.database import Transaction
from tenure.stores.sql.flows import SqlFlows
from tenure.stores.sql.jobs import SqlJobs
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query
from tenure.stores.sql.store import SqlStore

MAX_HINTED_QUEUES = 200
"""After a change of a kind, the workers of this many queues get a hint; others find out by
polling."""


class PostgresParts(SqlStore):
    """The parts of a store on PostgreSQL, on whichever transactions."""

    database: PostgresDialect
    _locked_by_others = 1000
    _admits_apart = True

    def _make_jobs(self, flows: SqlFlows) -> SqlJobs:
        return PostgresJobs(self.database, flows, note_keys=self._note_keys)

    def claim(
        self,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
    ) -> ClaimPlan:
        """Lock, read, let `plan` decide, write what it says; remember it as acknowledged."""
        begun = self.database.begin()
        planned = super().claim(scope, sessions, wanted, plan)
        self.database.acknowledged(planned.changes, begun=begun)
        return planned

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
        self.database.tell([Hint(HintedChange.READY, namespace, name)])
        return state

    def put_kind(
        self, namespace: Namespace, change: KindChange, *, only_new: bool = False
    ) -> KindSettings:
        """Change a kind's settings: jobs of any queue may be ready now."""
        kept = super().put_kind(namespace, change, only_new=only_new)
        if not change.sets_limits:
            return kept
        queues = self.queues(namespace, limit=MAX_HINTED_QUEUES)
        self.database.tell([Hint(HintedChange.READY, namespace, state.name) for state in queues])
        return kept

    # --- locks ---------------------------------------------------------------------------------

    def _claim_locks(self, namespace: Namespace, sessions: Sequence[SessionKey]) -> list[Query]:
        """Epoch, then sessions, sorted, then settings, so that no deadlock can occur.

        Advisory locks, not row locks: a claim that finds nothing must write nothing.
        """
        key = self.database.key
        own = sorted({key("session", each.namespace, each.actor, each.worker) for each in sessions})
        locks = [(key("epoch"), True), *[(each, False) for each in own]]
        return [self.database.locks_in_order([*locks, (key("settings", namespace), True)])]

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
        now: Instant,
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
            now=now,
        )
        rows, [(read_at, _)] = tx.fetch(query, self._query("moment"))
        return read_at, rows

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
        return self.database.lock("settings", namespace)

    def _epoch_queries(self) -> list[Query]:
        # `adopt_server` records the server that the store is on now.
        names = ("adopt_server", "raise_epoch")
        return [*self.database.lock("epoch"), *map(self._query, names)]

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


class PostgresStore(PostgresParts):
    """`tenure.ports.Store` in a schema of a PostgreSQL database."""

    database: PostgresDatabase

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
        """See `PostgresDatabase`; with `migrate` its schema is brought up to date first."""
        schema_words(schema)  # raises if it cannot be the name of one
        if migrate:
            migrate_schema(complete_dsn(dsn), schema=schema)
        check_schema(complete_dsn(dsn), schema=schema)
        super().__init__(
            PostgresDatabase(
                dsn,
                schema=schema,
                pool_size=pool_size,
                timeout_s=timeout_s,
                accept_restored=accept_restored,
            )
        )
        self.parallelism = pool_size

    def health(self) -> list[HealthFact]:
        """What is true of the server now, and what to do about it."""
        queries = [self._query(name, schema=self.database.schema) for name in QUESTIONS]
        sent_at = host_clock()
        answers = self._read(lambda tx: tx.fetch(*queries, last=True), listing=True)
        facts = postgres_facts(answers, sent_at=sent_at, received_at=host_clock())
        arrive = self.database.listener.find_out()
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

    def watch(self, on_hint: OnHint) -> Callable[[], None]:
        """Call `on_hint` after commits of any process, if notifications arrive."""
        self.database.pool.check()
        return self.database.listener.add(on_hint)

    def close(self) -> None:
        """Close every connection."""
        self.database.close()
