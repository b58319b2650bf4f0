"""SQLite: one file, one write at a time per process, durable to the disk."""

import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

from tenure.clock import host_clock
from tenure.core.flow_rows import Edge
from tenure.core.ids import JobId
from tenure.core.views.job_search import PREVIEW_CHARS
from tenure.deadlines import CALL_TIMEOUT_S
from tenure.ports import Clock, HealthFact, OnHint
from tenure.stores.sql.claim_dialect import ClaimDialect
from tenure.stores.sql.database import Transaction
from tenure.stores.sql.flows import SqlFlows
from tenure.stores.sql.jobs import MarkDirty, SqlJobs
from tenure.stores.sql.statements import Query
from tenure.stores.sql.store import SqlStore
from tenure.stores.sql.views import SqlViews
from tenure.stores.sqlite.claims import SqliteClaimDialect
from tenure.stores.sqlite.database import PLACEHOLDERS, SqliteDatabase, SqliteDialect
from tenure.stores.sqlite.file import (
    SqliteTransaction,
    check_schema,
    is_empty_database,
    prepare_file,
    translated,
)
from tenure.stores.sqlite.file import migrate as migrate_file
from tenure.stores.sqlite.health import sqlite_facts
from tenure.stores.sqlite.jobs import SqliteJobs

MAX_BYTES_PER_CHARACTER = 4  # of UTF-8


def _payload_start(connection: sqlite3.Connection, row: int) -> str:
    table = f"{PLACEHOLDERS['t']}job"
    with connection.blobopen(table, "payload", row, readonly=True) as payload:
        start = payload.read(MAX_BYTES_PER_CHARACTER * PREVIEW_CHARS)
    return start.decode(errors="ignore")[:PREVIEW_CHARS]  # it may end within a character


class SqliteViews(SqlViews):
    """`tenure.ports.Views` in SQLite."""

    def _previews(self, ids: Sequence[JobId]) -> dict[JobId, str]:
        """The beginnings of the payloads of these jobs. A blob handle reads only the first pages of
        each: 1 ms for fifty payloads of a megabyte, against 50 by `substr`. [H53]"""

        def read(tx: Transaction) -> dict[JobId, str]:
            assert isinstance(tx, SqliteTransaction)
            [rows] = tx.fetch(self._query("load_previews", ids=self._pack(ids)))
            return {JobId(job_id): _payload_start(tx.connection, row) for job_id, row in rows}

        return self._read(read, listing=True)


class SqliteParts(SqlStore):
    """The parts of a store in SQLite, on whichever transactions."""

    database: SqliteDialect
    _views_type = SqliteViews
    parallelism = 1
    """One writer."""

    def _make_jobs(self, flows: SqlFlows, mark_dirty: MarkDirty) -> SqlJobs:
        return SqliteJobs(self.database, flows, mark_dirty=mark_dirty)

    def _make_claim_dialect(self) -> ClaimDialect:
        return SqliteClaimDialect(self.database)

    def _epoch_queries(self) -> list[Query]:
        names = ("delete_last_position", "begin_positions", "raise_epoch")
        return [self._query(name) for name in names]

    def _edge_insertion(self, edges: Sequence[Edge]) -> Query:
        rows = [
            [edge.child_id, edge.position, edge.parent_id, edge.step, edge.needs, edge.is_outside]
            for edge in edges
        ]
        return self._query("insert_edges", rows=json.dumps(rows))


class SqliteStore(SqliteParts):
    """`tenure.ports.Store` in one SQLite file. A new or empty file is migrated when opened."""

    database: SqliteDatabase

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock = host_clock,
        migrate: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
        allow_network_filesystem: bool = False,
    ) -> None:
        file = prepare_file(Path(path), allow_network_filesystem=allow_network_filesystem)
        with translated(file):
            if migrate or is_empty_database(file):
                migrate_file(file)
            check_schema(file)
        super().__init__(SqliteDatabase(file, clock=clock, timeout_s=timeout_s))

    def health(self) -> list[HealthFact]:
        """What is true of the file now, and what to do about it."""
        names = ("health_journal_mode", "health_synchronous", "health_meta")
        [(mode,)], [(synchronous,)], [meta] = self._read(
            lambda tx: tx.fetch(*[self._query(name) for name in names])
        )
        return sqlite_facts(self.database.path, mode, synchronous, meta)

    def watch(self, on_hint: OnHint) -> Callable[[], None]:
        """Call `on_hint` after a change of any process, without saying what changed."""
        return self.database.watch(on_hint)

    def close(self) -> None:
        """End the writer and close every connection."""
        self.database.close()
