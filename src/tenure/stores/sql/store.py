"""The logic that all SQL stores share: what is read, what is locked, what is written when.

A dialect runs the transactions and writes the changes; this module turns each method of the port
into statements. Like every store it decides nothing: callers pass plans and decisions in.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from tenure.core.artifacts import ArtifactQuotas
from tenure.core.flow_rows import Edge
from tenure.core.ids import Epoch
from tenure.core.instants import Instant
from tenure.core.job import MADE_BY_AN_END
from tenure.core.vocabulary import RENEWALS, EventCause, EventType
from tenure.stores.sql import (
    artifacts,
    flows,
    jobs,
    limits,
    schedules,
    tokens,
    workers,
)
from tenure.stores.sql.admission import SqlAdmission
from tenure.stores.sql.artifacts import SqlArtifacts
from tenure.stores.sql.audit import SqlAudit
from tenure.stores.sql.candidates import SqlCandidates
from tenure.stores.sql.claim_dialect import ClaimDialect
from tenure.stores.sql.claims import SqlClaims
from tenure.stores.sql.database import Database, Part
from tenure.stores.sql.depths import SqlDepths
from tenure.stores.sql.events import SqlEvents
from tenure.stores.sql.flows import SqlFlows
from tenure.stores.sql.jobs import MarkDirty, SqlJobs
from tenure.stores.sql.limits import SqlSettings
from tenure.stores.sql.overview import SqlOverview
from tenure.stores.sql.rollups import SqlRollups
from tenure.stores.sql.rows import (
    BODIES_LEFT_OUT,
    EVENT_COLUMNS,
    INLINE_BODY_BYTES,
    JOB_COLUMNS,
    OBSERVATION_COLUMNS,
    OF_FIRST_EVENT,
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

_OF_ITS_JOB = (
    "CASE WHEN seq = 1 THEN {name}"
    " ELSE (SELECT j.{name} FROM {{t}}job AS j WHERE j.id = job_id) END AS {name}"
)
"""What is selected of `OF_FIRST_EVENT`."""

COLUMN_PLACEHOLDERS = {
    **jobs.COLUMN_PLACEHOLDERS,
    **artifacts.COLUMN_PLACEHOLDERS,
    **limits.COLUMN_PLACEHOLDERS,
    **workers.COLUMN_PLACEHOLDERS,
    **tokens.COLUMN_PLACEHOLDERS,
    **flows.COLUMN_PLACEHOLDERS,
    **schedules.COLUMN_PLACEHOLDERS,
    "job_columns": ", ".join(JOB_COLUMNS),
    "job_columns_to_claim": ", ".join(_SMALL_BODIES.get(name, f"j.{name}") for name in JOB_COLUMNS),
    "count_as_candidate": ", ".join(["NULL"] * len(JOB_COLUMNS) + ["n", "NULL"]),
    "claim_place": "coalesce(j.admitted_at, j.run_at)",
    "job_columns_without_bodies": ", ".join(
        _BODY_PLACEHOLDERS.get(name, name) for name in JOB_COLUMNS
    ),
    "event_columns": ", ".join(
        _OF_ITS_JOB.format(name=name) if name in OF_FIRST_EVENT else name for name in EVENT_COLUMNS
    ),
    "observation_columns": ", ".join(OBSERVATION_COLUMNS),
    "session_columns": ", ".join(SESSION_COLUMNS),
    "claimed": f"'{EventType.CLAIMED.value}'",
    # In this order: SQLite uses a partial index only for a list that is written like its own.
    "renewals": ", ".join(f"'{each.value}'" for each in EventType if each in RENEWALS),
    "made_by_an_end": ", ".join(f"'{each.value}'" for each in EventCause if each in MADE_BY_AN_END),
}


class SqlStore(Part, ABC):
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
        dialect = self._make_claim_dialect()
        self.settings = SqlSettings(database, dialect)
        self.admission = SqlAdmission(database, dialect, self.settings)
        self.settings.admit_again = self.admission.admit_again
        self.jobs = self._make_jobs(flows, self.admission.mark_dirty)
        self.flows, self.events = flows, SqlEvents(database)
        schedules = SqlSchedules(database, self.jobs)
        self.candidates = SqlCandidates(database, dialect)
        self.claims = SqlClaims(
            database,
            dialect,
            settings=self.settings,
            admission=self.admission,
            candidates=self.candidates,
            depths=depths,
            jobs=self.jobs,
        )
        self.schedules, self.workers, self.artifacts = schedules, workers, artifacts
        self.tokens = SqlTokens(database, schedules)
        overview = SqlOverview(
            database, depths=depths, rollups=rollups, workers=workers, schedules=schedules
        )
        self.views = self._views_type(database, overview=overview, depths=depths, rollups=rollups)
        self.upkeep = SqlUpkeep(database, artifacts=artifacts, rollups=rollups)
        self.audit = SqlAudit(database)

    @property
    def hints_arrive(self) -> bool:
        """Whether polling may be rare: not known without more."""
        return False

    # --- what a dialect provides ---------------------------------------------------------------

    @abstractmethod
    def _make_jobs(self, flows: SqlFlows, mark_dirty: MarkDirty) -> SqlJobs:
        """The jobs of this dialect."""

    @abstractmethod
    def _make_claim_dialect(self) -> ClaimDialect:
        """What claims are written with in this dialect."""

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

    def raise_epoch(self) -> Epoch:
        """Start a new epoch, after every write under the old one has ended. [A5] [A12]"""
        queries = self._epoch_queries()
        [(epoch,)] = self._write(lambda tx: tx.fetch(*queries, last=True))[-1]
        self._saw_epoch(Epoch(epoch))
        return Epoch(epoch)
