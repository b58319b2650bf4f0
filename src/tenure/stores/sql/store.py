"""The logic that all SQL stores share: what is read, what is locked, what is written when.

A dialect runs the transactions and writes the changes; this module turns each method of the port
into statements. Like every store it decides nothing: callers pass plans and decisions in.
"""

from abc import abstractmethod
from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from tenure.core.artifacts import ArtifactQuotas
from tenure.core.claims import (
    QueueState,
    queue_meter,
)
from tenure.core.flow_rows import Edge
from tenure.core.ids import Epoch, Namespace, QueueName
from tenure.core.instants import Duration, Instant
from tenure.core.job import MADE_BY_AN_END
from tenure.core.rates import Rate
from tenure.core.vocabulary import RENEWALS, EventCause, EventType
from tenure.ports import (
    NO_LIMIT,
    NextReady,
)
from tenure.stores.sql import (
    artifacts,
    flows,
    jobs,
    limits,
    schedules,
    tokens,
    workers,
)
from tenure.stores.sql.artifacts import SqlArtifacts
from tenure.stores.sql.audit import SqlAudit
from tenure.stores.sql.claims import SqlClaims
from tenure.stores.sql.database import Database, Transaction
from tenure.stores.sql.depths import DELAYED, NOT_DUE, SqlDepths
from tenure.stores.sql.events import SqlEvents
from tenure.stores.sql.flows import SqlFlows
from tenure.stores.sql.jobs import SqlJobs
from tenure.stores.sql.limits import queue_state_from, rate_parameters
from tenure.stores.sql.overview import SqlOverview
from tenure.stores.sql.rollups import SqlRollups
from tenure.stores.sql.rows import (
    BODIES_LEFT_OUT,
    EVENT_FIELDS,
    INLINE_BODY_BYTES,
    JOB_COLUMNS,
    OBSERVATION_COLUMNS,
    SESSION_COLUMNS,
)
from tenure.stores.sql.schedules import SqlSchedules
from tenure.stores.sql.statements import Query
from tenure.stores.sql.tokens import SqlTokens
from tenure.stores.sql.upkeep import SqlUpkeep
from tenure.stores.sql.views import SqlViews
from tenure.stores.sql.workers import SqlWorkers

_BODY_PLACEHOLDERS = {"payload": "'null'", "checkpoint": "NULL", "result": "NULL"}
"""What is selected instead of a job's bodies if these are not wanted."""

_SMALL_BODIES = {
    "payload": f"CASE WHEN {{body_bytes}} <= {INLINE_BODY_BYTES} THEN j.payload"
    f" ELSE '{BODIES_LEFT_OUT}' || CAST({{body_bytes}} AS text) END",
    "checkpoint": f"CASE WHEN {{body_bytes}} <= {INLINE_BODY_BYTES} THEN j.checkpoint END",
}
"""What is selected of a candidate's bodies. [Z10]"""

COLUMN_WORDS = {
    **jobs.COLUMN_WORDS,
    **artifacts.COLUMN_WORDS,
    **limits.COLUMN_WORDS,
    **workers.COLUMN_WORDS,
    **tokens.COLUMN_WORDS,
    **flows.COLUMN_WORDS,
    **schedules.COLUMN_WORDS,
    "job_columns": ", ".join(JOB_COLUMNS),
    "job_columns_to_claim": ", ".join(_SMALL_BODIES.get(name, f"j.{name}") for name in JOB_COLUMNS),
    "claim_place": "coalesce(j.admitted_at, j.run_at)",
    "job_columns_without_bodies": ", ".join(
        _BODY_PLACEHOLDERS.get(name, name) for name in JOB_COLUMNS
    ),
    "event_columns": ", ".join(EVENT_FIELDS),
    "observation_columns": ", ".join(OBSERVATION_COLUMNS),
    "session_columns": ", ".join(SESSION_COLUMNS),
    "claimed": f"'{EventType.CLAIMED.value}'",
    # In this order: SQLite uses a partial index only for a list that is written like its own.
    "renewals": ", ".join(f"'{each.value}'" for each in EventType if each in RENEWALS),
    "made_by_an_end": ", ".join(f"'{each.value}'" for each in EventCause if each in MADE_BY_AN_END),
}


class SqlStore(SqlClaims):
    """`tenure.ports.Store` over SQL. Dialects fill in the abstract methods."""

    _views_type = SqlViews

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.database = database
        self.artifact_quotas = ArtifactQuotas()
        flows = SqlFlows(database, self._edge_insertion)
        depths, rollups = SqlDepths(database), SqlRollups(database)
        workers = SqlWorkers(database)
        artifacts = SqlArtifacts(database, lambda: self.artifact_quotas)
        made = self._make_jobs(flows)
        schedules = SqlSchedules(database, made)
        self.jobs, self.flows, self.events = made, flows, SqlEvents(database)
        self.claims = self.settings = self
        self.schedules, self.workers, self.artifacts = schedules, workers, artifacts
        self.tokens = SqlTokens(database, schedules)
        overview = SqlOverview(
            database, depths=depths, rollups=rollups, workers=workers, schedules=schedules
        )
        self.views = self._views_type(database, overview=overview, depths=depths, rollups=rollups)
        self.upkeep = SqlUpkeep(database, artifacts=artifacts, rollups=rollups)
        self.audit = SqlAudit(database)
        self._oldest = depths.oldest

    # --- what a dialect provides ---------------------------------------------------------------

    @abstractmethod
    def _make_jobs(self, flows: SqlFlows) -> SqlJobs:
        """The jobs of this dialect."""

    @abstractmethod
    def _edge_insertion(self, edges: Sequence[Edge]) -> Query:
        """The statement that writes new edges."""

    @abstractmethod
    def _epoch_queries(self) -> list[Query]:
        """Statements that wait for all writes of the old epoch, then raise it; the last one returns
        the new epoch."""

    def now(self) -> Instant:
        """The store's clock."""
        return self.database.now()

    def put_queue(
        self,
        namespace: Namespace,
        name: QueueName,
        *,
        paused: bool | None,
        limit: int | None,
        rate: Rate | UnsetType | None = UNSET,
    ) -> QueueState:
        """Change a queue's settings, after all claims that use the old ones have ended."""
        key = {"namespace": namespace, "name": name}
        changes = [self._query("register_queue", **key)]
        if paused is not None:
            changes.append(self._query("set_queue_paused", paused=paused, **key))
        if limit is not None:
            changes.append(self._query("set_queue_limit", concurrency_limit=limit or None, **key))
        look = [
            self._query("load_queue_settings", namespace=namespace, queues=self._pack([name])),
            self._query("count_live", namespace=namespace, queue=name),
            self._query("moment"),
        ]

        def change(tx: Transaction) -> QueueState:
            tx.fetch(*self._settings_lock(namespace), *changes)
            [settings], [(live,)], [(now, _)] = tx.fetch(*look)
            state = queue_state_from(settings, live)
            if rate is not UNSET:
                state = state.with_rate(rate, Instant(now))
                to_set = rate_parameters(state.rate, state.rate_since)
                tx.fetch(self._query("set_queue_rate", **key, **to_set))
            is_ruled = state.limit is not None or state.rate is not None
            tx.fetch(
                self._query("raise_settings_rev"),
                *self._slot_queries(namespace, queue_meter(name), is_ruled),
            )
            return state

        return self._write(change)

    def next_ready(self, namespace: Namespace, queues: Sequence[QueueName]) -> NextReady:
        """Whether these queues have a ready job, and when the next one will be."""
        asked = [
            self._query("count_ready", jobs=1, namespace=namespace, queue=name) for name in queues
        ]
        asked += [self._oldest(sort, namespace, queues) for sort in (DELAYED, NOT_DUE)]
        *ready, delayed, not_due, [(now, _)] = self._read(
            lambda tx: tx.fetch(*asked, self._query("moment"), last=True)
        )
        is_ready = any(count for [(count,)] in ready) or any(at <= now for _, at in delayed)
        later = [Duration(max(0, at - now)) for _, at in not_due if at is not None]
        return NextReady(is_ready, min(later, default=None))

    def queues(
        self, namespace: Namespace, *, after: str = "", limit: int = NO_LIMIT
    ) -> list[QueueState]:
        """The queues after this name that had jobs or settings, with their live leases. [B43]"""
        page = {"namespace": namespace, "after": after, "limit": limit}
        settings, counts = self._read(
            lambda tx: tx.fetch(
                self._query("load_queues", **page),
                self._query("count_live_by_queue", **page),
                last=True,
            ),
            listing=True,
        )
        live: dict[str, int] = {row[0]: row[1] for row in counts}
        return [queue_state_from(row, live.get(row[0], 0)) for row in settings]

    def raise_epoch(self) -> Epoch:
        """Start a new epoch, after every write under the old one has ended. [A5] [A12]"""
        queries = self._epoch_queries()
        [(epoch,)] = self._write(lambda tx: tx.fetch(*queries, last=True))[-1]
        self._saw_epoch(Epoch(epoch))
        return Epoch(epoch)
