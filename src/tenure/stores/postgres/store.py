"""PostgreSQL: any number of coordinators on one database, READ COMMITTED, row locks and CAS."""

from collections.abc import Callable, Sequence

from tenure.clock import host_clock
from tenure.core.flow_rows import Edge
from tenure.deadlines import CALL_TIMEOUT_S
from tenure.ports import HealthFact, OnHint, fact
from tenure.stores.postgres.arrays import integers, texts, truths
from tenure.stores.postgres.claims import PostgresClaimDialect
from tenure.stores.postgres.database import PostgresDatabase, PostgresDialect
from tenure.stores.postgres.health import QUESTIONS, postgres_facts
from tenure.stores.postgres.jobs import PostgresJobs
from tenure.stores.postgres.schema import (
    DEFAULT_SCHEMA,
    check_schema,
    complete_dsn,
    schema_placeholders,
)
from tenure.stores.postgres.schema import migrate as migrate_schema
from tenure.stores.sql.claim_dialect import ClaimDialect
from tenure.stores.sql.flows import SqlFlows
from tenure.stores.sql.jobs import MarkDirty, SqlJobs
from tenure.stores.sql.statements import Query
from tenure.stores.sql.store import SqlStore


class PostgresParts(SqlStore):
    """The parts of a store on PostgreSQL, on whichever transactions."""

    database: PostgresDialect

    def _make_jobs(self, flows: SqlFlows, mark_dirty: MarkDirty) -> SqlJobs:
        return PostgresJobs(self.database, flows, mark_dirty=mark_dirty)

    def _make_claim_dialect(self) -> ClaimDialect:
        return PostgresClaimDialect(self.database)

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
        schema_placeholders(schema)  # raises if it cannot be the name of one
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

    @property
    def hints_arrive(self) -> bool:
        """Whether notifications do, as the last probe showed on a connection that still works."""
        return self.database.listener.arrive is True

    def close(self) -> None:
        """Close every connection."""
        self.database.close()
