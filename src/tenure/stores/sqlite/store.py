"""SQLite: one file, one writer thread per process, durable to the disk."""

import json
import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tenure.core.concurrency import Key
from tenure.core.flow_rows import Edge
from tenure.core.ids import JobId, Kind, Namespace
from tenure.core.instants import Instant
from tenure.core.outcomes import Session, SessionKey
from tenure.core.rates import Meter
from tenure.core.views.job_search import PREVIEW_CHARS
from tenure.deadlines import CALL_TIMEOUT_S
from tenure.ports import Clock, HealthFact, OnHint
from tenure.stores.host_clock import host_clock
from tenure.stores.sql.admission import MAX_DIRTY_KEYS, DirtyKey
from tenure.stores.sql.database import Transaction
from tenure.stores.sql.flows import SqlFlows
from tenure.stores.sql.jobs import SqlJobs
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query
from tenure.stores.sql.store import SqlStore
from tenure.stores.sql.views import SqlViews
from tenure.stores.sqlite.database import WORDS, SqliteDatabase, SqliteDialect
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
    table = f"{WORDS['t']}job"
    with connection.blobopen(table, "payload", row, readonly=True) as payload:
        start = payload.read(MAX_BYTES_PER_CHARACTER * PREVIEW_CHARS)
    return start.decode(errors="ignore")[:PREVIEW_CHARS]  # it may end within a character


class SqliteViews(SqlViews):
    """`tenure.ports.Views` in SQLite."""

    def previews(self, ids: Sequence[JobId]) -> dict[JobId, str]:
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

    def _claim_locks(self, namespace: Namespace, sessions: Sequence[SessionKey]) -> list[Query]:
        return []  # one writer

    def _make_jobs(self, flows: SqlFlows) -> SqlJobs:
        return SqliteJobs(self.database, flows, note_keys=self._note_keys)

    def _settings_lock(self, namespace: Namespace) -> list[Query]:
        return []

    def _pack_places(self, places: Sequence[tuple[Kind, int]]) -> dict[str, object]:
        return {"places": json.dumps(places)}

    def _dirty_key_queries(self, keys: Sequence[DirtyKey]) -> list[Query]:
        return [
            self._query(
                "note_dirty_key",
                namespace=each.namespace,
                kind=each.key.kind,
                is_rate=each.key.is_rate,
                key=each.key.key,
                at=each.at,
                noted_at=each.noted_at,
            )
            for each in keys
        ]

    def _take_dirty(
        self, tx: Transaction, namespace: Namespace, kinds: Sequence[Kind] | None
    ) -> tuple[Instant, list[Row]]:
        if kinds is None:
            [found] = tx.fetch(self._query("dirty_kinds", namespace=namespace))
            kinds = [Kind(kind) for (kind,) in found]
        *taken, [(now, _)] = tx.fetch(
            *[
                self._query("take_dirty_keys", namespace=namespace, kind=kind, page=MAX_DIRTY_KEYS)
                for kind in dict.fromkeys(kinds)
            ],
            self._query("moment"),
        )
        return now, [row for rows in taken for row in rows]

    def _jobs_of_keys(
        self,
        tx: Transaction,
        namespace: Namespace,
        keys: Mapping[Key, int],
        now: Instant,
        *,
        is_rate: bool,
    ) -> tuple[Instant, list[Row]]:
        rows: list[Row] = []
        shape, queues = self._key_shapes[is_rate], dict[Kind, list[Row]]()
        for key, most in keys.items():
            of_kind = {"namespace": namespace, "kind": key.kind}
            if key.kind not in queues:
                [queues[key.kind]] = tx.fetch(
                    self._query("queues_of_kind", is_rate=is_rate, **of_kind)
                )
            of_key = of_kind | {"key": key.key}
            [(uses,)], admitted, *waiting = tx.fetch(
                self._query("used_of_key", shape, **of_key),
                self._query("admitted_of_key", shape, **of_key),
                *[
                    self._query(
                        "jobs_of_key",
                        shape,
                        queue=queue,
                        delayed=delayed,
                        most=most,
                        now=now,
                        **of_key,
                    )
                    for (queue,) in queues[key.kind]
                    for delayed in (0, 1)
                ],
            )
            found = {row[0]: row for rows in (admitted, *waiting) for row in rows}
            rows += [(key.kind, key.key, uses, *row) for row in found.values() or [(None,) * 8]]
        [[(read_at, _)]] = tx.fetch(self._query("moment"))
        return read_at, rows

    def _slot_changes(self, namespace: Namespace, states: Mapping[Meter, Instant]) -> list[Query]:
        return [
            self._query(
                "set_slot",
                namespace=namespace,
                scope=meter.scope.value,
                name=meter.name,
                key=meter.key,
                tat=tat,
            )
            for meter, tat in states.items()
        ]

    def _epoch_queries(self) -> list[Query]:
        names = ("delete_last_position", "begin_positions", "raise_epoch")
        return [self._query(name) for name in names]

    def _session_queries(self, sessions: Sequence[Session]) -> list[Query]:
        return [
            self._query(
                "remember_session",
                namespace=session.key.namespace,
                actor=session.key.actor,
                worker=session.key.worker,
                claim_seq=session.claim_seq,
                request_id=session.request_id,
                fingerprint=session.fingerprint,
                claimed_at=session.claimed_at,
                is_repeated=session.is_repeated,
            )
            for session in sessions
        ]

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
