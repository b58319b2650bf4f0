"""Saving on PostgreSQL: one statement per shape of changes, in as few round trips as possible."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress

from tenure.core.ids import Epoch, JobId
from tenure.core.instants import Instant
from tenure.core.outcomes import Change, SessionKey
from tenure.errors import StoreRefused
from tenure.ports import ANY_TIME, ClockWindow, Hint, HintedChange, Saved
from tenure.stores.hints import hints_of
from tenure.stores.postgres.arrays import texts
from tenure.stores.postgres.batches import batch_of
from tenure.stores.postgres.database import PostgresDialect
from tenure.stores.postgres.new_job import NewJobs, is_one_new_job
from tenure.stores.postgres.transaction import PostgresTransaction, Vetoed
from tenure.stores.sql.batches import ChangeStream, Group, groups_of
from tenure.stores.sql.database import Transaction
from tenure.stores.sql.flows import SqlFlows, ended_members, needed_jobs
from tenure.stores.sql.jobs import MarkDirty, SqlJobs, letters_of, resolved_by
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query, Shape, Statement, fill

_READY = HintedChange.READY


class PostgresJobs(SqlJobs):
    """`tenure.ports.StoredJobs` in PostgreSQL."""

    def __init__(
        self, database: PostgresDialect, flows: SqlFlows, *, mark_dirty: MarkDirty
    ) -> None:
        super().__init__(database, flows=flows, mark_dirty=mark_dirty)
        self._database = database
        self._notify_text = self._query("notify_at_once", channel="", payload="").text
        self._new_jobs = NewJobs(self._statement_of_new_job, database.key("epoch"))

    def begin(self) -> int:
        """Called before a transaction that writes."""
        return self._database.begin()

    def written(
        self,
        changes: Sequence[Change],
        now: Instant,
        *,
        begun: int,
        notified: Collection[Hint] = (),
    ) -> None:
        """Remember these as acknowledged, and notify waiting workers; other processes already got
        the hints in `notified`. Not for claims, which make no job ready."""
        self._database.acknowledged(changes, begun=begun)
        self._database.notify(hints_of(changes, now), sent=notified)

    def row_locks(self, ids: Sequence[JobId], sessions: Sequence[SessionKey]) -> list[Query]:
        """Epoch, then sessions as a claim locks them, then rows in id order."""
        key = self._database.key
        own = sorted({key("session", each.namespace, each.actor, each.worker) for each in sessions})
        locks = [(key("epoch"), True), *[(each, False) for each in own]]
        return [
            self._database.locks_in_order(locks),
            self._query("lock_jobs", ids=texts(ids)),
        ]

    def save(
        self, changes: Iterable[Change], *, epoch: Epoch, window: ClockWindow = ANY_TIME
    ) -> Saved:
        """Compare and write; remember what was written as acknowledged."""
        begun = self._database.begin()
        if self._database.may_undo and is_one_new_job(changes):
            assert isinstance(changes, list)
            saved = self._save_new_job(changes, epoch, window, begun)
            if saved is not None:
                return saved
        offered = ChangeStream(changes)
        ahead: set[Hint] = set()
        saved = self._save_offered(offered, epoch, window, ahead)
        written = [each for each in offered.whole() if each.job.id in saved.applied]
        self.written(written, saved.now, begun=begun, notified=ahead)
        return saved

    def _save_new_job(
        self, changes: list[Change], epoch: Epoch, window: ClockWindow, begun: int
    ) -> Saved | None:
        """Write one new job whose queue is registered. None if it was not applied."""
        job = changes[0].job
        if not self.registered.has(job, epoch):
            return None
        query = self._new_jobs.query(changes[0], epoch, window)
        hints = (Hint(_READY, job.namespace, job.queue),)
        due, payloads = self._database.take_due(hints)
        sent: Sequence[Hint] = ()

        def write(tx: Transaction) -> list[list[Row]]:
            nonlocal sent
            assert isinstance(tx, PostgresTransaction)
            if payloads:
                tx.afterwards = [Query(self._notify_text, (self._database.channel, payloads[0]))]
            answers = tx.fetch(query, last=True)
            sent = due if tx.was_done_afterwards else ()
            return answers

        try:
            [[(now, _)]] = self._database.write(write, all_or_nothing=True)
        except Vetoed:
            return None
        self._database.acknowledged(changes, begun=begun)
        self._database.notify(hints, sent=sent)
        return Saved(now, frozenset((job.id,)))

    def _save_offered(
        self, offered: ChangeStream, epoch: Epoch, window: ClockWindow, notified: set[Hint]
    ) -> Saved:
        """Write a long stream of new jobs while the rest is decided; anything else at once. The
        hints that were sent with it are added to `notified`."""
        if self._database.may_undo and offered.is_long and _are_new(groups_of(offered.first)):
            with suppress(Vetoed):
                return self._database.write(
                    lambda tx: self._save_as_offered(tx, offered, epoch, window),
                    all_or_nothing=True,
                )
        return self._save_at_once(offered.whole(), epoch, window, notified)

    def _save_as_offered(
        self, tx: Transaction, offered: ChangeStream, epoch: Epoch, window: ClockWindow
    ) -> Saved:
        """Write new jobs without keys, a statement for each piece; all of them are applied or none.
        Other changes could deadlock when they are written in pieces: `_save_at_once` writes
        those."""
        assert isinstance(tx, PostgresTransaction)
        new_queues: set[tuple[str, ...]] = set()

        def parts() -> Iterator[list[Query]]:
            for piece in offered.pieces():
                groups = groups_of(piece)
                if not _are_new(groups):
                    raise Vetoed  # this closes the connection, but such mixed batches are rare
                unknown = self.registered.missing(piece, epoch) - new_queues
                new_queues.update(unknown)
                yield [
                    *self._register(unknown),
                    *self._mark_dirty(piece),
                    self._group_query(groups[0], epoch, window, alone=True),
                ]

        answers = tx.stream(parts())
        self.registered.add(new_queues)
        applied = frozenset(change.job.id for change in offered.whole())
        return Saved(Instant(answers[-1][0][0]), applied)

    def _save_at_once(
        self, changes: Sequence[Change], epoch: Epoch, window: ClockWindow, notified: set[Hint]
    ) -> Saved:
        """One statement per shape, all in one round trip."""
        if not changes:
            return Saved(self._database.now(), frozenset())
        if letters_of(changes) or needed_jobs(changes):
            return self._write(lambda tx: self._save_holding_others(tx, changes, epoch))
        new_queues = self.registered.missing(changes, epoch)
        register = [*self._register(new_queues), *self._mark_dirty(changes)]
        register += self._given_keys(changes, epoch)
        groups = groups_of(changes)
        saved = None
        if self._database.may_undo and _is_likely_to_apply(groups):
            whole = [self._group_query(groups[0], epoch, window, alone=True)]
            with suppress(Vetoed):
                saved = self._database.write(
                    lambda tx: self._save_and_notify(tx, groups, register, whole, epoch, notified),
                    all_or_nothing=True,
                )
        if saved is None:
            locks, each = self._queries_by_group(groups, epoch, window)
            saved = self._write(lambda tx: self._save(tx, groups, [*register, *locks], each, epoch))
        self.registered.add(new_queues)
        return saved

    def _save_and_notify(
        self,
        tx: Transaction,
        groups: Sequence[Group],
        before: Sequence[Query],
        queries: Sequence[Query],
        epoch: Epoch,
        notified: set[Hint],
    ) -> Saved:
        """Save, and have the server notify idle workers of ready jobs right after the commit: that
        is a round trip and a change of threads sooner than by `Notifier.notify`."""
        assert isinstance(tx, PostgresTransaction)
        ready = {
            hint
            for hint in hints_of(groups[0].changes, Instant(0))
            if hint.change is HintedChange.READY
        }
        due, payloads = self._database.take_due(ready)
        tx.afterwards = [
            self._query("notify_at_once", channel=self._database.channel, payload=each)
            for each in payloads
        ]
        saved = self._save(tx, groups, before, queries, epoch)
        if tx.was_done_afterwards:
            notified.update(due)
        return saved

    def _queries_by_group(
        self, groups: Sequence[Group], epoch: Epoch, window: ClockWindow
    ) -> tuple[list[Query], list[Query]]:
        """Locks, and a statement for each group. Each locks its own rows: if several do, lock all
        rows first, in id order."""
        updates = [group for group in groups if not group.is_insert]
        if len(updates) < 2:
            return [], [self._group_query(group, epoch, window) for group in groups]
        ids = [change.job.id for group in updates for change in group.changes]
        lock = self._query("lock_jobs", ids=texts(ids))
        return [lock], [self._group_query(group, epoch, window, held=True) for group in groups]

    def save_held(self, tx: Transaction, changes: Sequence[Change], epoch: Epoch) -> Saved:
        groups = groups_of(changes)
        before = self._register(self.registered.missing(changes, epoch))
        before += self._mark_dirty(changes)
        before += self._given_keys(changes, epoch)
        queries = [self._group_query(group, epoch, held=True) for group in groups]
        return self._save(tx, groups, before, queries, epoch)

    def _given_keys(self, changes: Sequence[Change], epoch: Epoch) -> list[Query]:
        """Jobs that have ended release their keys to these new ones. [D14]"""
        takers = [change for change in changes if change.takes_key_from is not None]
        if not takers:
            return []
        query = self._query(
            "give_keys",
            namespaces=texts([change.job.namespace for change in takers]),
            kinds=texts([change.job.kind for change in takers]),
            keys=texts([change.job.dedupe_key for change in takers]),
            ids=texts([change.takes_key_from for change in takers]),
            epoch=epoch,
            epoch_lock=self._database.key("epoch"),
        )
        return [query]

    def _save_holding_others(
        self, tx: Transaction, changes: Sequence[Change], epoch: Epoch
    ) -> Saved:
        """Save changes some of which need other rows: lock these with the rows that change, then
        apply only changes whose dead letter is still unresolved [B17] and whose parents are still
        there. [FL3]"""
        held = [*letters_of(changes), *[each.job.id for each in changes if each.expected_rev > 0]]
        if held:
            tx.fetch(self._query("lock_jobs", ids=texts(held)))
        first = self.first_to_resolve(tx, self._flows.whose_parents_exist(tx, changes))
        if not first:
            [[(now, _)]] = tx.fetch(self._query("moment"), last=True)
            return Saved(Instant(now), frozenset())
        return self.save_held(tx, first, epoch)

    def _save(
        self,
        tx: Transaction,
        groups: Sequence[Group],
        before: Sequence[Query],
        queries: Sequence[Query],
        epoch: Epoch,
    ) -> Saved:
        """`before` prepares; then comes one of `queries` for each group."""
        changes = [change for group in groups for change in group.changes]
        with_more = [change for change in changes if _has_more(change)]
        # In the same round trip: the statement reads which of these jobs have ended. [FL4]
        edge_marks = self._flows.edge_marks(ended_members(changes))
        # Between updates and inserts: a new job may have the key of one that ends here. [D2]
        ended_keys = self.ended_keys(changes)
        updates = sum(not group.is_insert for group in groups)
        answers = tx.fetch(
            *before,
            *queries[:updates],
            *ended_keys,
            *queries[updates:],
            *edge_marks,
            last=not with_more,
        )[len(before) :]
        del answers[updates : updates + len(ended_keys)]
        answers = answers[: len(groups)]
        applied: set[JobId] = set()
        for group, [(_, ids)] in zip(groups, answers, strict=True):
            applied.update(_applied_ids(group, ids))
        for change in with_more:
            if change.job.id in applied:
                for spawned in groups_of(change.spawned):
                    [[(_, ids)]] = tx.fetch(self._group_query(spawned, epoch, held=True))
                    missing = {each.job.id for each in spawned.changes} - {
                        *_applied_ids(spawned, ids)
                    }
                    for job_id in missing:
                        raise StoreRefused(f"job {job_id} is already there")
                self.keep_observations(tx, change.observations)
                self.keep_resolutions(tx, resolved_by(change))
                self._flows.write(tx, [change])
        return Saved(Instant(answers[-1][0][0]), frozenset(applied))

    def write_claimed(
        self,
        tx: Transaction,
        changes: Sequence[Change],
        epoch: Epoch,
        also: Sequence[Query],
    ) -> None:
        groups = groups_of(changes)
        queries = [self._group_query(group, epoch, held=True) for group in groups]
        answers = tx.fetch(*queries, *also, last=True)
        for group, [(_, ids)] in zip(groups, answers, strict=False):
            assert len(_applied_ids(group, ids)) == len(group.changes), "the rows were locked by us"

    def _group_query(
        self,
        group: Group,
        epoch: Epoch,
        window: ClockWindow = ANY_TIME,
        *,
        held: bool = False,
        alone: bool = False,
    ) -> Query:
        batch = batch_of(group)
        name, shape = self._statement_of(group, batch.shape, held=held, alone=alone)
        return self._query(
            name,
            shape,
            epoch=epoch,
            epoch_lock=self._database.key("epoch"),
            earliest=window.earliest,
            latest=window.latest,
            **batch.parameters,
        )

    def _statement_of_new_job(self, group: Group) -> Statement:
        shape = batch_of(group).shape
        named = self._statement_of(group, shape, held=False, alone=True)
        return self._database.statements.shaped(*named)

    def _statement_of(
        self, group: Group, shape: Shape, *, held: bool, alone: bool
    ) -> tuple[str, Shape]:
        """The name of the statement that writes a group, and its shape."""
        statement = "insert_jobs" if group.is_insert else "update_jobs"
        text = self._text
        of_keys = ("", "")
        if group.is_insert and any(each.job.dedupe_key for each in group.changes):
            to_fill = dict(shape)
            of_keys = (fill(text("taken_keys"), to_fill), fill(text("has_taken_key"), to_fill))
        shape = (
            *shape,
            ("taken", of_keys[0]),
            ("has_key", of_keys[1]),
            ("held", text("rows_are_held" if held else "rows_to_lock")),
            ("applied", text("applied")),
            ("unless_all_applied", text("unless_all_applied")),
        )
        return f"{statement}_alone" if alone else statement, shape


def _are_new(groups: Sequence[Group]) -> bool:
    """Whether these are only new jobs without dedupe keys, and nothing else has to be written."""
    if not groups[0].is_insert or not _is_likely_to_apply(groups):
        return False
    return not any(_has_more(change) for change in groups[0].changes)


def _has_more(change: Change) -> bool:
    """Whether more than a row and its events has to be written."""
    more = change.spawned or change.observations or change.resolution
    return bool(more or change.flow or change.redrive)


def _is_likely_to_apply(groups: Sequence[Group]) -> bool:
    """Whether to try one statement that applies all changes or none. A dedupe key is often taken by
    another job; an id hardly ever exists already, and a revision hardly ever differs."""
    [group, *others] = groups
    if others:
        return False
    return not group.is_insert or all(each.job.dedupe_key is None for each in group.changes)


def _applied_ids(group: Group, ids: str | None) -> list[JobId]:
    """The ids of the changes that were applied; `ids` is None if all of the group were."""
    if ids is None:
        return [change.job.id for change in group.changes]
    return [JobId(each) for each in ids.split(",") if each]
