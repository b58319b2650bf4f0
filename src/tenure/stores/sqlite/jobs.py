"""Saving in SQLite: compare revisions and write, under the one write lock."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tenure.core.ids import Epoch, JobId
from tenure.core.outcomes import Change, SessionKey
from tenure.errors import StoreRefused
from tenure.ports import ANY_TIME, ClockWindow, Saved
from tenure.stores.sql.batches import groups_of
from tenure.stores.sql.flows import SqlFlows, ended_members
from tenure.stores.sql.jobs import SqlJobs, resolved_by
from tenure.stores.sql.statements import Query
from tenure.stores.sql.transactions import Transaction
from tenure.stores.sqlite.batches import group_queries
from tenure.stores.sqlite.file import SqliteTransaction

if TYPE_CHECKING:
    from tenure.stores.sqlite.store import SqliteStore


class SqliteJobs(SqlJobs):
    """`tenure.ports.StoredJobs` in SQLite."""

    def __init__(self, store: "SqliteStore", flows: SqlFlows) -> None:
        super().__init__(store, flows=flows, note_keys=store._note_key_changes)
        self._store = store

    def row_locks(self, ids: Sequence[JobId], sessions: Sequence[SessionKey]) -> list[Query]:
        """None: one writer holds every row."""
        return []

    def save(
        self, changes: Iterable[Change], *, epoch: Epoch, window: ClockWindow = ANY_TIME
    ) -> Saved:
        """Compare revisions and write, under the one write lock."""
        whole = list(changes)
        new_queues = self.registered.missing(whole, epoch)
        saved = self._write(lambda tx: self.save_on(tx, whole, epoch, window))
        if saved.applied:  # otherwise perhaps nothing was written, not even the queue's name
            self.registered.add(new_queues)
        return saved

    def save_held(self, tx: Transaction, changes: Sequence[Change], epoch: Epoch) -> Saved:
        return self.save_on(tx, changes, epoch)

    def save_on(
        self,
        tx: Transaction,
        changes: Sequence[Change],
        epoch: Epoch,
        window: ClockWindow = ANY_TIME,
    ) -> Saved:
        assert isinstance(tx, SqliteTransaction)
        ids = self._pack([change.job.id for change in changes])
        rows, [(now, current)] = tx.fetch(self._query("load_revs", ids=ids), self._query("moment"))
        if current != epoch or not window.has(now):
            return Saved(now, frozenset())
        revs: dict[JobId, int] = {row[0]: row[1] for row in rows}
        in_time = [
            change
            for change in self.first_to_resolve(tx, self._flows.whose_parents_exist(tx, changes))
            if revs.get(change.job.id, 0) == change.expected_rev
            and (change.not_after is None or now < change.not_after)
        ]
        updates = [change for change in in_time if change.expected_rev > 0]
        self._write_changes(tx, updates)
        tx.fetch(*self.ended_keys(updates))
        # After the updates: a job that ends frees its key in the same transaction. [D2]
        inserts = self._with_free_keys(
            tx, [change for change in in_time if change.expected_rev == 0]
        )
        tx.fetch(*self._register(self.registered.missing(changes, epoch)))
        self._write_changes(tx, inserts)
        applied = updates + inserts
        self._spawn(tx, [each for change in applied for each in change.spawned])
        tx.fetch(*self._note_keys(applied))
        self._flows.write(tx, applied)
        tx.fetch(*self._flows.edge_marks(ended_members(applied)))
        self.keep_observations(tx, [seen for change in applied for seen in change.observations])
        self.keep_resolutions(tx, [each for change in applied for each in resolved_by(change)])
        return Saved(now, frozenset(change.job.id for change in applied))

    def _with_free_keys(self, tx: SqliteTransaction, inserts: Sequence[Change]) -> list[Change]:
        """Inserts that have no key, or that take it here. [I17] [D13]"""
        free = []
        for change in inserts:
            job, giver = change.job, change.takes_key_from
            if job.dedupe_key is not None:
                key = {"namespace": job.namespace, "kind": job.kind, "dedupe_key": job.dedupe_key}
                if giver is not None:
                    tx.fetch(self._query("give_key", giver=giver, **key))
                if not tx.fetch(self._query("take_key", job_id=job.id, **key))[0]:
                    continue
            free.append(change)
        return free

    def _spawn(self, tx: SqliteTransaction, spawned: Sequence[Change]) -> None:
        if spawned:
            ids = self._pack([change.job.id for change in spawned])
            for job_id, *_ in tx.fetch(self._query("load_revs", ids=ids))[0]:
                raise StoreRefused(f"job {job_id} is already there")
            self._write_changes(tx, spawned)

    def write_claimed(
        self,
        tx: Transaction,
        changes: Sequence[Change],
        epoch: Epoch,
        also: Sequence[Query],
    ) -> None:
        assert isinstance(tx, SqliteTransaction)
        self._write_changes(tx, changes)
        tx.fetch(*also)

    def _write_changes(self, tx: SqliteTransaction, changes: Sequence[Change]) -> None:
        for group in groups_of(changes):
            for query in group_queries(group, self._store._statements):
                tx.connection.execute(query.text, query.parameters)
