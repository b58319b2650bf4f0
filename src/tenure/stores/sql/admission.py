"""Admits jobs with a concurrency or rate key, so that claims find them.

A job with a key is parked, in a lane that claims do not read. Every change of such a job marks its
key dirty: a row is added, and no lock is taken, because the change may be part of a caller's own
transaction. Before a claim, `core.concurrency` chooses which jobs of dirty keys are admitted. One
transaction at a time decides about the keys of a kind; another claim does not wait for it
(docs/adr/0095).

At every commit this is true of each key: it is dirty, or it has no room, or none of its parked jobs
is ready. So no job is missed: each transaction that frees a place or adds a job marks the key dirty
itself, and a transaction that deletes a dirty key reads the jobs of the key after that.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from functools import partial

import msgspec

from tenure.core.claims import ClaimScope
from tenure.core.concurrency import (
    Admission,
    Key,
    KeyedJob,
    KeyRules,
    Lane,
    admit,
    dirtied_by,
    most_admitted,
)
from tenure.core.ids import JobId, Kind, Namespace, QueueName
from tenure.core.instants import NEVER, Instant, after, seconds
from tenure.core.job import AT_ONCE, Job
from tenure.core.outcomes import Change
from tenure.core.rates import Meter
from tenure.stores.sql.claim_dialect import MAX_DIRTY_KEYS, ClaimDialect, DirtyKey
from tenure.stores.sql.database import Database, Part, Transaction
from tenure.stores.sql.limits import SqlSettings
from tenure.stores.sql.rows import Row
from tenure.stores.sql.statements import Query, Shape, Statements

MAX_PAGES = 50
"""The most pages of dirty keys that one claim reads until it can admit a job."""

LOCKED_AGAIN_US = seconds(0.1)
"""How soon a key is retried if another transaction has locked one of its jobs."""

_WATERMARK = ""
"""The key of the row that is the watermark of its kind. No key is empty."""


class KeyInUse(msgspec.Struct, frozen=True):
    """A key, how many leases its jobs have or the state of its rate, and its first jobs."""

    key: Key
    uses: int | None
    jobs: list[KeyedJob]
    rate_keys: dict[JobId, str | None]


class SqlAdmission(Part):
    """Marks keys dirty, and admits the jobs of dirty keys before a claim."""

    def __init__(self, database: Database, dialect: ClaimDialect, settings: SqlSettings) -> None:
        super().__init__(database)
        self._dialect = dialect
        self._settings = settings
        # SQL fragments: False for concurrency keys, True for rate keys.
        shapes = partial(_shape_of, database.statements)
        self.key_shapes = {is_rate: shapes(is_rate) for is_rate in (False, True)}

    # --- marking -------------------------------------------------------------------------------

    def mark_dirty(self, changes: Iterable[Change]) -> list[Query]:
        """The statements that mark the keys of these changes dirty; none for jobs without one. If a
        change is not applied after all, its dirty key is harmless."""
        dirty = {
            DirtyKey(each.job.namespace, key, at)
            for change in changes
            for each in (change, *change.spawned)
            for key, at in dirtied_by(each)
        }
        return self._dialect.dirty_key_queries(sorted(dirty)) if dirty else []

    def note_granted(
        self,
        namespace: Namespace,
        granted: Sequence[Job],
        rates: Mapping[Meter, Instant],
        now: Instant,
    ) -> list[Query]:
        """Mark the keys under which more jobs could be admitted once these are granted."""
        rules = KeyRules(self._settings.known(namespace).kinds, now)
        dirty = {
            DirtyKey(namespace, key, at, now)
            for job in granted
            if job.rate_key is not None or job.concurrency_key is not None
            for key, at in rules.dirtied_by_grant(job, rates)
        }
        return self._dialect.dirty_key_queries(sorted(dirty)) if dirty else []

    def admit_again(self, namespace: Namespace, kind: Kind) -> list[Query]:
        """Park the jobs of the kind's keys, and mark these keys dirty."""
        of_kind = {"namespace": namespace, "kind": kind}
        return [
            self._query("park_keys_of_kind", **of_kind),
            self._query("park_rate_keys_of_kind", **of_kind),
            *[
                self._query("mark_keys_of_kind", shape, **of_kind)
                for shape in self.key_shapes.values()
            ],
        ]

    # --- admitting -----------------------------------------------------------------------------

    def admit(self, tx: Transaction, scope: ClaimScope) -> None:
        """Admit jobs of the dirty keys of the kinds that a claim asks for. Reads pages of dirty
        keys until a job is admitted: the first may all be of one key with a long backlog. [CK4]"""
        namespace = scope.namespace
        for _ in range(MAX_PAGES):
            now, rows = self._dialect.take_dirty(tx, namespace, scope.kinds, self._settings.refresh)
            if not rows:
                return
            dirty = [
                DirtyKey(namespace, Key(Kind(kind), bool(is_rate), key), at, noted_at)
                for kind, is_rate, key, at, noted_at in rows
            ]
            looked_back = self._look_back(tx, namespace, dirty, now)
            keys = {each.key for each in dirty if each.key.key != _WATERMARK}
            settings = self._settings.known(namespace)
            paused = {name for name, each in settings.queues.items() if each.paused}
            admitted = self._admit_keys(tx, namespace, keys, now, set(scope.queues) - paused)
            if not looked_back and (admitted or len(rows) < MAX_DIRTY_KEYS):
                return

    def _look_back(
        self, tx: Transaction, namespace: Namespace, taken: Sequence[DirtyKey], now: Instant
    ) -> bool:
        """A delayed job's dirty key is deleted when the job is due. If the clock is set back after
        that, the job is delayed again but its key is not dirty. So each kind has a watermark: the
        latest time up to which such keys were deleted and delayed jobs admitted. If the clock is
        before it, the keys of the jobs in between are marked dirty again. Returns whether it is.
        [CK10] [Z6]"""
        passed = [each for each in taken if each.key.key == _WATERMARK]
        for each in passed:
            span = {"kind": each.key.kind, "since": now, "until": each.noted_at}
            tx.fetch(
                *[
                    self._query("mark_keys_again", shape, namespace=namespace, **span)
                    for shape in self.key_shapes.values()
                ]
            )
        # These were due when they were deleted, but the clock was set back since.
        early = [each for each in taken if each.at > now and not each.noted_at]
        tx.fetch(*(self._dialect.dirty_key_queries(early) if early else []))
        kinds = {each.key.kind for each in taken if each.at and not each.noted_at}
        self._raise_watermarks(tx, namespace, kinds | {each.key.kind for each in passed}, now)
        return bool(passed)

    def _raise_watermarks(
        self, tx: Transaction, namespace: Namespace, kinds: Iterable[Kind], until: Instant
    ) -> None:
        tx.fetch(
            *[
                self._query(
                    "raise_watermark", namespace=namespace, kind=kind, never=NEVER, until=until
                )
                for kind in sorted(kinds)
            ]
        )

    def _admit_keys(
        self,
        tx: Transaction,
        namespace: Namespace,
        keys: Collection[Key],
        now: Instant,
        queues: Set[QueueName],
    ) -> int:
        """Admit jobs of these keys. Concurrency keys come first: a job that they admit may have a
        rate key, too, which is decided next. Returns how many jobs claims can find now. [RL14]"""
        of_keys = {key for key in keys if not key.is_rate}
        admitted, rate_keys = self._admit_under(tx, namespace, of_keys, now, queues, is_rate=False)
        of_rates = (set(keys) - of_keys) | rate_keys
        more, _ = self._admit_under(tx, namespace, of_rates, now, queues, is_rate=True)
        return admitted + more

    def _admit_under(
        self,
        tx: Transaction,
        namespace: Namespace,
        keys: Set[Key],
        now: Instant,
        queues: Set[QueueName],
        *,
        is_rate: bool,
    ) -> tuple[int, set[Key]]:
        """How many jobs claims can find now, and the rate keys to decide about next. `now` is when
        the dirty keys were deleted: at an earlier time, a job whose key is not dirty any more could
        still count as not ready, and nothing would admit it."""
        if not keys:
            return 0, set()
        kinds = self._settings.known(namespace).kinds
        most = {key: most_admitted(kinds, key) for key in sorted(keys)}
        shape = self.key_shapes[is_rate]
        read_at, rows = self._dialect.jobs_of_keys(tx, shape, namespace, most, now, is_rate=is_rate)
        rules, in_use = KeyRules(kinds, read_at), _by_key(rows, is_rate=is_rate)
        decided = [
            (each, admit(each.jobs, rules.room(each.key, each.uses), now=now, queues=queues))
            for each in in_use
        ]
        self._correct(tx, namespace, rules, in_use)
        parked = self._park(tx, [each for _, to in decided for each in to.parked], is_rate=is_rate)
        # A job that a claim has just locked keeps its place; its key is retried.
        decided = [(found, to) for found, to in decided if parked.issuperset(to.parked)]
        targets = {
            job_id: rules.lane_behind(found.key, found.rate_keys[job_id])
            for found, to in decided
            for job_id in to.admitted
        }
        moved = self._let_through(tx, targets, now, is_rate=is_rate)
        settled = {found.key for found, to in decided if moved.issuperset(to.admitted)}
        dirty = _dirty_again(namespace, rules, decided, keys - settled, read_at)
        if dirty:
            tx.fetch(*self._dialect.dirty_key_queries(dirty))
        delayed = {
            found.key.kind
            for found in in_use
            for job in found.jobs
            if job.id in moved and job.not_before > AT_ONCE
        }
        self._raise_watermarks(tx, namespace, delayed, now)
        touched = parked | {job_id for job_id in moved if targets[job_id] is Lane.WAITS_FOR_RATE}
        rate_keys = {
            Key(found.key.kind, True, rate_key)
            for found in in_use
            for job_id, rate_key in found.rate_keys.items()
            if not is_rate and rate_key is not None and job_id in touched
        }
        return sum(targets[each] < Lane.WAITS_FOR_KEY for each in moved), rate_keys

    def _correct(
        self, tx: Transaction, namespace: Namespace, rules: KeyRules, found: Sequence[KeyInUse]
    ) -> None:
        """Lower rate states more than a burst ahead of now: they would stay a burst ahead. [RL3]"""
        tx.fetch(
            *[
                self._query(
                    "correct_slot",
                    namespace=namespace,
                    scope=each.key.meter.scope.value,
                    name=each.key.kind,
                    key=each.key.key,
                    least=least,
                    tat=each.uses,
                )
                for each in found
                if (least := rules.corrected(each.key, each.uses)) is not None
            ]
        )

    def _park(self, tx: Transaction, ids: Sequence[JobId], *, is_rate: bool) -> set[JobId]:
        """Take the places of these jobs away. Returns the ids of the ones that are parked now."""
        kept = "CASE WHEN j.concurrency_key IS NULL THEN NULL ELSE j.admitted_at END"
        lane, admitted_at, lanes = (
            (Lane.WAITS_FOR_RATE, kept, "j.lane < 2")
            if is_rate
            else (Lane.WAITS_FOR_KEY, "NULL", "j.admitted_at IS NOT NULL")
        )
        return self._move(tx, ids, lane, admitted_at, lanes, None) if ids else set()

    def _let_through(
        self, tx: Transaction, targets: Mapping[JobId, Lane], now: Instant, *, is_rate: bool
    ) -> set[JobId]:
        """Move jobs to these lanes. Returns the ids of the moved ones."""
        source = Lane.WAITS_FOR_RATE if is_rate else Lane.WAITS_FOR_KEY
        moved: set[JobId] = set()
        for lane in sorted(set(targets.values())):
            ids = [job_id for job_id, target in targets.items() if target is lane]
            moved |= self._move(tx, ids, lane, ":at", f"j.lane = {source.value}", now)
        return moved

    def _move(
        self,
        tx: Transaction,
        ids: Sequence[JobId],
        lane: Lane,
        admitted_at: str,
        lanes: str,
        at: Instant | None,
    ) -> set[JobId]:
        shape = (("admitted_at", admitted_at), ("lanes", lanes))
        [rows] = tx.fetch(
            self._query("move_jobs", shape, ids=self._pack(sorted(ids)), lane=lane.value, at=at)
        )
        return {JobId(str(job_id)) for (job_id,) in rows}


def _shape_of(statements: Statements, is_rate: bool) -> Shape:
    """What the statements about concurrency keys and about rate keys differ in."""
    name = "rate_key" if is_rate else "key"
    return (
        ("key_columns", statements.text(f"columns_of_{name}")),
        ("key", "j.rate_key" if is_rate else "j.concurrency_key"),
        ("waits", statements.text(f"waits_for_{name}")),
        ("places", statements.text(f"places_of_{name}")),
        ("uses", statements.text(f"uses_of_{name}")),
        ("by_waiting", f"{{by_{name}}}"),
        ("by_place", f"{{by_place_of_{name}}}"),
        ("is_rate", "{true}" if is_rate else "{false}"),
    )


def _dirty_again(
    namespace: Namespace,
    rules: KeyRules,
    decided: Iterable[tuple[KeyInUse, Admission]],
    unsettled: Iterable[Key],
    read_at: Instant,
) -> list[DirtyKey]:
    """When to decide again: soon about keys whose jobs could not all be moved, and about the others
    at the times of their rules."""
    soon = after(read_at, LOCKED_AGAIN_US)
    dirty = [DirtyKey(namespace, key, soon, read_at) for key in unsettled]
    dirty += [
        DirtyKey(namespace, found.key, at, read_at)
        for found, to in decided
        for at in rules.again_at(found.key, found.uses, to)
    ]
    return sorted(dirty)


def _by_key(rows: Iterable[Row], *, is_rate: bool) -> list[KeyInUse]:
    """The rows of `ClaimDialect.jobs_of_keys`, by key."""
    found: dict[Key, KeyInUse] = {}
    for kind, name, uses, *columns in rows:
        key = Key(Kind(kind), is_rate, name)
        each = found.setdefault(key, KeyInUse(key, uses, [], {}))
        job_id, queue, priority, run_at, not_before, start_by, admitted_at, rate_key = columns
        if job_id is not None:
            job = KeyedJob(
                id=JobId(str(job_id)),
                queue=queue,
                priority=priority,
                run_at=run_at,
                not_before=not_before,
                start_by=start_by,
                admitted_at=admitted_at,
            )
            each.jobs.append(job)
            each.rate_keys[job.id] = rate_key
    return list(found.values())
