"""SQLite: one file, one writer thread per process, durable to the disk.

Safe with several processes on one file. Refuses network filesystems, and use across a fork. Every
write begins IMMEDIATE; readers cannot write at all.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from tenure.core.concurrency import Key
from tenure.core.flow_rows import Edge
from tenure.core.ids import JobId, Kind, Namespace
from tenure.core.instants import Instant
from tenure.core.outcomes import Session, SessionKey
from tenure.core.rates import Meter
from tenure.core.views.job_search import ERROR_CHARS, PREVIEW_CHARS
from tenure.deadlines import CALL_TIMEOUT_S, Deadline, deadline
from tenure.errors import Closed, StoreError
from tenure.ports import Clock, HealthFact, OnHint
from tenure.stores.host_clock import host_clock
from tenure.stores.sql.admission import MAX_DIRTY_KEYS, DirtyKey
from tenure.stores.sql.depths import SqlDepths
from tenure.stores.sql.flows import SqlFlows
from tenure.stores.sql.jobs import SqlJobs
from tenure.stores.sql.overview import SqlOverview
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query, Statements, fill
from tenure.stores.sql.store import COLUMN_WORDS, LISTING_SHARE, SqlStore
from tenure.stores.sql.transactions import Transaction
from tenure.stores.sql.views import SqlViews
from tenure.stores.sqlite.change_watch import ChangeWatch
from tenure.stores.sqlite.file import (
    PACKAGE,
    SqliteTransaction,
    check_schema,
    connect,
    is_empty_database,
    migrate,
    prepare_file,
    translated,
)
from tenure.stores.sqlite.health import sqlite_facts
from tenure.stores.sqlite.jobs import SqliteJobs
from tenure.stores.sqlite.writer import LOCK_SLICE_S, Writer

MAX_IDLE_READERS = 4

STEPS_BETWEEN_CLOCK_CHECKS = 20_000
"""Steps of SQLite's virtual machine; they take about a millisecond."""

MAX_BYTES_PER_CHARACTER = 4  # of UTF-8

# From 3.43 on SQLite knows the size of a text without reading it.
_SIZE = "octet_length({})" if sqlite3.sqlite_version_info >= (3, 43) else "length(CAST({} AS blob))"

WORDS = COLUMN_WORDS | {
    "t": "tenure_",
    "uuid": "text",
    "committed": "TRUE",  # one writer: positions are in the order of commits
    "bytes": "blob",
    "body_bytes": f"({_SIZE.format('j.payload')} + coalesce({_SIZE.format('j.checkpoint')}, 0)"
    f" + coalesce({_SIZE.format('j.result')}, 0))",
    # The text in which a search looks for errors, in lower case of ASCII.
    "error_text": "lower(substr(coalesce(coalesce(error, last_error) ->> '$.type', '') || ': '"
    f" || coalesce(coalesce(error, last_error) ->> '$.message', ''), 1, {ERROR_CHARS}))",
    # One writer at a time needs no row locks.
    "lock": "",
    "skip_locked": "",
    "skip_locked_jobs": "",
    # Without statistics SQLite takes another index that begins with the same columns.
    "by_leases": "INDEXED BY tenure_job_leased",
    "by_due": "INDEXED BY tenure_job_due",
    "by_blocked": "INDEXED BY tenure_job_blocked",
    "by_claimed": "INDEXED BY tenure_job_claimed",
    "by_flow": "INDEXED BY tenure_job_flow",
    "by_id": "INDEXED BY sqlite_autoindex_tenure_job_1",
    "by_flow_id": "INDEXED BY sqlite_autoindex_tenure_flow_1",
    "by_enqueue": "INDEXED BY tenure_job_listed",
    "listed_at": "enqueued_at",
    "listed_id": "id",
    "by_cancelled": "INDEXED BY tenure_job_cancelled",
    "by_ready": "INDEXED BY tenure_job_ready",
    "by_delayed": "INDEXED BY tenure_job_delayed",
    "true": "1",
    "false": "0",
    "this_kind": ":kind",
    "this_key": ":key",
    "by_key": "INDEXED BY tenure_job_of_key",
    "by_place_of_key": "INDEXED BY tenure_job_place_of_key",
    "by_rate_key": "INDEXED BY tenure_job_of_rate_key",
    "by_place_of_rate_key": "INDEXED BY tenure_job_place_of_rate_key",
    "by_rate_waits": "INDEXED BY tenure_dirty_key_once",
    "one_by_one": "",
    "each_name": "SELECT value AS name FROM json_each(:names)",
    "each_kind": "SELECT value AS kind FROM json_each(:kinds)",
    "smallint": "integer",
    "is_outside": "e.is_outside = 1",
    # SQLite has no arrays: a list travels as one JSON document.
    **{
        f"among_{name}": fill("IN (SELECT value FROM json_each(:{name}))", {"name": name})
        for name in ("ids", "workers", "queues", "kinds", "names", "statuses", "types")
    },
}

_T = TypeVar("_T")


@cache
def statements() -> Statements:
    """The statements of this dialect, read and compiled once for all stores of this process."""
    return Statements(PACKAGE, WORDS, placeholder="?")


def _payload_start(connection: sqlite3.Connection, row: int) -> str:
    table = f"{WORDS['t']}job"
    with connection.blobopen(table, "payload", row, readonly=True) as payload:
        start = payload.read(MAX_BYTES_PER_CHARACTER * PREVIEW_CHARS)
    return start.decode(errors="ignore")[:PREVIEW_CHARS]  # it may end within a character


class SqliteStore(SqlStore):
    """`tenure.ports.Store` in one SQLite file. A new or empty file is migrated when opened.

    A call without a deadline of its own waits for `timeout_s` at most.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock = host_clock,
        migrate: bool = False,
        timeout_s: float = CALL_TIMEOUT_S,
        allow_network_filesystem: bool = False,
    ) -> None:
        self._statements = statements()
        super().__init__(self._statements)
        self._path = prepare_file(Path(path), allow_network_filesystem=allow_network_filesystem)
        self._clock = clock
        self._timeout_s = timeout_s
        self._pid = os.getpid()
        self._closed = False
        self._readers: list[sqlite3.Connection] = []
        self._readers_lock = threading.Lock()
        with translated(self._path):
            self._prepare_schema(migrate_it=migrate)
        self._changes = ChangeWatch(
            lambda: connect(self._path, clock, LOCK_SLICE_S, reader=True), self._path
        )
        self._writer = Writer(
            lambda: connect(self._path, clock, LOCK_SLICE_S), path=self._path, timeout_s=timeout_s
        )

    def _prepare_schema(self, *, migrate_it: bool) -> None:
        if migrate_it or is_empty_database(self._path):
            migrate(self._path)
        check_schema(self._path)

    @property
    def parallelism(self) -> int:
        """One writer."""
        return 1

    def now(self) -> Instant:
        """The injected clock."""
        self._check()
        return self._clock()

    def health(self) -> list[HealthFact]:
        """What is true of the file now, and what to do about it."""
        names = ("health_journal_mode", "health_synchronous", "health_meta")
        [(mode,)], [(synchronous,)], [meta] = self._read(
            lambda tx: tx.fetch(*[self._query(name) for name in names])
        )
        return sqlite_facts(self._path, mode, synchronous, meta)

    def watch(self, on_hint: OnHint) -> Callable[[], None]:
        """Call `on_hint` after a change of any process, without saying what changed."""
        self._check()
        return self._changes.add(on_hint)

    def checkpoint_soon(self) -> None:
        """Checkpoint after the current write of any process, if the log is large."""
        self._check()
        self._writer.checkpoint_soon()

    def close(self) -> None:
        """End the writer and close every connection."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        self._changes.close()
        self._writer.close()
        with self._readers_lock:
            while self._readers:
                self._readers.pop().close()

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(
                "this store was opened before a fork, and a SQLite connection must not cross one",
                hint="open the store again in the child process",
            )
        if self._closed:
            raise Closed

    # --- transactions --------------------------------------------------------------------------

    def _read(
        self,
        work: Callable[[Transaction], _T],
        *,
        snapshot: bool = False,
        listing: bool = False,
        repeated: bool = False,
    ) -> _T:
        self._check()
        until = deadline(self._timeout_s * (LISTING_SHARE if listing else 1))
        with translated(self._path), self._reader(until) as connection:
            # One transaction, so that the rows and the clock of a call belong together. In WAL mode
            # a deferred transaction that only reads neither waits nor fails.
            connection.execute("BEGIN")
            result = work(SqliteTransaction(connection))
            connection.execute("COMMIT")
            return result

    @contextmanager
    def _reader(self, until: Deadline) -> Iterator[sqlite3.Connection]:
        with self._readers_lock:
            connection = self._readers.pop() if self._readers else None
        if connection is None:
            connection = connect(self._path, self._clock, self._timeout_s, reader=True)
        # Ends a read at its deadline: SQLite itself has no time-out for statements. [K6]
        connection.set_progress_handler(lambda: until.has_passed, STEPS_BETWEEN_CLOCK_CHECKS)
        try:
            yield connection
        except BaseException:
            # Whatever went wrong, the next reader starts from a fresh connection.
            with suppress(sqlite3.Error):
                connection.close()
            raise
        with self._readers_lock:
            if len(self._readers) < MAX_IDLE_READERS and not self._closed:
                self._readers.append(connection)
                return
        connection.close()

    def _write(self, work: Callable[[Transaction], _T]) -> _T:
        self._check()
        return self._writer.run(lambda connection: work(SqliteTransaction(connection)))

    def _pack(self, values: Sequence[str]) -> str:
        return json.dumps(list(values))

    def _claim_locks(self, namespace: Namespace, sessions: Sequence[SessionKey]) -> list[Query]:
        return []  # one writer

    def _make_jobs(self, flows: SqlFlows) -> SqlJobs:
        return SqliteJobs(self, flows)

    def _make_views(self, overview: SqlOverview, depths: SqlDepths) -> SqlViews:
        return SqliteViews(self, overview=overview, depths=depths)

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
                        "jobs_of_key", shape, queue=queue, delayed=delayed, most=most, **of_key
                    )
                    for (queue,) in queues[key.kind]
                    for delayed in (0, 1)
                ],
            )
            found = {row[0]: row for rows in (admitted, *waiting) for row in rows}
            rows += [(key.kind, key.key, uses, *row) for row in found.values() or [(None,) * 8]]
        [[(now, _)]] = tx.fetch(self._query("moment"))
        return now, rows

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
