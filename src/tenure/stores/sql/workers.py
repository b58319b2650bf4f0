"""Worker processes."""

import msgspec

from tenure.core.ids import Namespace, WorkerId
from tenure.core.instants import Instant
from tenure.core.workers import (
    FIRST_WORKER,
    KnownStart,
    ListedWorker,
    WorkerKey,
    WorkerProcess,
    start_of,
)
from tenure.ports import NO_LIMIT
from tenure.stores.sql.database import Part, Transaction
from tenure.stores.sql.rows import Row

PROCESS_COLUMNS: tuple[str, ...] = ListedWorker.__struct_fields__
COLUMN_PLACEHOLDERS = {"process_columns": ", ".join(PROCESS_COLUMNS)}

_LISTS = ("queues", "kinds", "schedules")
_PROCESS_KEY = ("namespace", "worker", "actor", "host", "pid")
_PROCESS_FACTS = tuple(n for n in WorkerProcess.__struct_fields__ if n != "is_ending")

_encode = msgspec.json.Encoder().encode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode


class SqlWorkers(Part):
    """`tenure.ports.StoredWorkers`."""

    def see(self, process: WorkerProcess) -> bool:
        """Record that this worker is alive. Returns whether it was asked to drain. [B12]"""
        if process.is_ending:
            key = {name: getattr(process, name) for name in _PROCESS_KEY}
            left = self._query("dismiss_worker", **key)
            self._write(lambda tx: tx.fetch(left, last=True))
            return False
        return self._write(lambda tx: self._seen(tx, process)).has_drain_request

    def _seen(self, tx: Transaction, process: WorkerProcess) -> ListedWorker:
        facts = {name: getattr(process, name) for name in _PROCESS_FACTS}
        facts |= {name: _encode(facts[name]).decode() for name in _LISTS}
        found, [(now, _)] = tx.fetch(
            self._query("load_worker_start", **facts), self._query("moment")
        )
        known = KnownStart(*found[0]) if found else None
        started_at = start_of(process, known, now=Instant(now))
        [[row]] = tx.fetch(
            self._query("see_worker", started_at=started_at, seen_at=now, **facts), last=True
        )
        return _worker(row)

    def page(
        self, namespace: Namespace, *, after: WorkerKey = FIRST_WORKER, limit: int = NO_LIMIT
    ) -> list[ListedWorker]:
        """The workers after this key that reported lately, by name and principal. [B43]"""
        place = after._asdict()
        query = self._query("list_workers", namespace=namespace, limit=limit, **place)
        return [_worker(row) for row in self._rows(query, listing=True)]

    def drain(self, namespace: Namespace, worker: WorkerId) -> bool:
        """Ask the processes of this name to finish and stop. Returns whether there is one. [B12]"""
        query = self._query("request_drain", namespace=namespace, worker=worker)
        [found] = self._write(lambda tx: tx.fetch(query, last=True))
        return bool(found)


def _worker(row: Row) -> ListedWorker:
    facts = dict(zip(PROCESS_COLUMNS, row, strict=True))
    lists = {name: _decode_names(facts[name]) for name in _LISTS}
    return ListedWorker(**facts | lists | {"drain_reported": bool(facts["drain_reported"])})
