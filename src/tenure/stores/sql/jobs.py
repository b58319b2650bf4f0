"""Jobs: what deciding loads, and what the dialects share of saving."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence

from tenure.core.ids import Actor, Epoch, JobId
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.leases import LeaseRef, LeaseRow, lease_news
from tenure.core.outcomes import Change, SessionKey
from tenure.core.verdicts import (
    MAX_OBSERVATIONS_PER_LEASE,
    MAX_OBSERVATIONS_READ,
    Observation,
    Resolution,
)
from tenure.core.vocabulary import LeaseNews, ResolutionKind
from tenure.ports import (
    ANY_TIME,
    ClockWindow,
    DueJobs,
    JobsWanted,
    KeyHolders,
    LeasedJobs,
    Loaded,
    Locked,
    Saved,
    StoredJobs,
)
from tenure.stores.sql.database import Database, Part, Transaction
from tenure.stores.sql.events import decision_histories
from tenure.stores.sql.flows import SqlFlows
from tenure.stores.sql.rows import (
    OBSERVATION_COLUMNS,
    WITH_BODIES,
    WITHOUT_BODIES,
    Row,
    job_from,
    observation_from,
    session_from,
    value_from,
)
from tenure.stores.sql.statements import Query, Shape

RESOLUTION_COLUMNS: tuple[str, ...] = Resolution.__struct_fields__
COLUMN_PLACEHOLDERS = {"resolution_columns": ", ".join(RESOLUTION_COLUMNS)}

MAX_OBSERVATION_TRIES = 2 * MAX_OBSERVATIONS_PER_LEASE
"""Each lost race for an ordinal means that another observation was kept, and ten fill a lease."""

MarkDirty = Callable[[Iterable[Change]], list[Query]]
"""The statements that mark the keys of these changes dirty."""


class RegisteredQueues:
    """Which queues, and kinds with keys, are known to be registered: saves statements."""

    def __init__(self) -> None:
        self._known: set[tuple[str, ...]] = set()
        self._epoch: Epoch | None = None

    def copy(self) -> "RegisteredQueues":
        """As a transaction needs it that may be rolled back."""
        made = RegisteredQueues()
        made._known, made._epoch = set(self._known), self._epoch
        return made

    def add(self, names: set[tuple[str, ...]]) -> None:
        """These were committed."""
        self._known |= names

    def has(self, job: Job, epoch: Epoch) -> bool:
        """Whether the queue of a new job without keys is known to be registered."""
        return epoch == self._epoch and (job.namespace, job.queue) in self._known

    def missing(self, changes: Sequence[Change], epoch: Epoch) -> set[tuple[str, ...]]:
        """Queues of new jobs that are not known to be registered, and the kinds of new jobs with a
        key. After a new epoch all are registered again: the last writes, and with them names of
        queues, may be lost. [A5]"""
        if epoch != self._epoch:
            self._epoch, self._known = epoch, set()
        found: set[tuple[str, ...]] = set()
        for change in changes:
            for each in (change, *change.spawned):
                if each.expected_rev == 0:
                    job = each.job
                    found.add((job.namespace, job.queue))
                    if job.concurrency_key is not None:
                        found.add((job.namespace, job.queue, job.kind, "key"))
                    if job.rate_key is not None:
                        found.add((job.namespace, job.queue, job.kind, "rate key"))
        return found - self._known


class SqlJobs(Part, StoredJobs, ABC):
    """`tenure.ports.StoredJobs`. Dialects write the changes."""

    def __init__(self, database: Database, *, flows: SqlFlows, mark_dirty: MarkDirty) -> None:
        super().__init__(database)
        self._flows = flows
        self._mark_dirty = mark_dirty
        self.registered = RegisteredQueues()

    # --- what a dialect provides ------------------------------------------------------------------

    @abstractmethod
    def save(
        self, changes: Iterable[Change], *, epoch: Epoch, window: ClockWindow = ANY_TIME
    ) -> Saved:
        """See the port."""

    @abstractmethod
    def row_locks(self, ids: Sequence[JobId], sessions: Sequence[SessionKey]) -> list[Query]:
        """Locks on these sessions and jobs, in the same order in every transaction."""

    @abstractmethod
    def save_held(self, tx: Transaction, changes: Sequence[Change], epoch: Epoch) -> Saved:
        """Write changes of rows that this transaction has locked, if they are in time."""

    @abstractmethod
    def write_claimed(
        self, tx: Transaction, changes: Sequence[Change], epoch: Epoch, also: Sequence[Query]
    ) -> None:
        """Write changes of rows that this transaction has locked, then `also`, and commit."""

    def begin(self) -> int:
        """Called before a transaction that writes; `written` gets what it returns."""
        return 0

    def written(self, changes: Sequence[Change], now: Instant, *, begun: int) -> None:
        """Called when these were committed."""

    # --- loading ----------------------------------------------------------------------------------

    def load(self, wanted: JobsWanted, *, bodies: bool = True) -> Loaded:
        """The rows of these jobs; the clock is read after them."""
        queries = self._queries_for(wanted, WITH_BODIES if bodies else WITHOUT_BODIES)
        *answers, [(now, epoch, settling_since)] = self._read(
            lambda tx: tx.fetch(*queries, self._query("moment_to_decide"), last=True)
        )
        self._saw_epoch(Epoch(epoch))
        jobs = [job_from(row) for rows in answers for row in rows]
        return Loaded(Instant(now), Epoch(epoch), {job.id: job for job in jobs}, settling_since)

    def _queries_for(self, wanted: JobsWanted, columns: Shape) -> list[Query]:
        if isinstance(wanted, DueJobs):
            return [self._query("due", columns, limit=wanted.limit)]
        if isinstance(wanted, LeasedJobs):
            session = wanted.session
            key = {"actor": session.actor, "worker": session.worker}
            return [self._query("load_leased", columns, namespace=session.namespace, **key)]
        if isinstance(wanted, KeyHolders):
            return [
                self._query(
                    "load_holder",
                    columns,
                    namespace=key.namespace,
                    kind=key.kind,
                    dedupe_key=key.key,
                )
                for key in wanted.keys
            ]
        return [self._query("load_jobs", columns, ids=self._pack(wanted))]

    def body_sizes(self, ids: Sequence[JobId]) -> dict[JobId, int]:
        """The sizes of the bodies of these jobs, which are not read."""
        rows = self._rows(self._query("load_body_sizes", ids=self._pack(ids)))
        return {JobId(str(job_id)): size for job_id, size in rows}

    def peek_leases(self, leases: Sequence[LeaseRef], actor: Actor) -> list[LeaseNews]:
        """For which of these leases the worker should send a heartbeat now."""
        ids = self._pack([lease.job_id for lease in leases])
        rows = self._rows(self._query("load_leases", ids=ids))
        found = {str(job_id): LeaseRow(*said) for job_id, *said in rows}
        return [lease_news(found.get(lease.job_id), lease.lease_id, actor) for lease in leases]

    def resolutions(self, ids: Sequence[JobId]) -> dict[JobId, Resolution]:
        """What became of these dead letters."""
        return resolutions_of(self._rows(self._query("load_resolutions", ids=self._pack(ids))))

    def observations(self, job_id: JobId) -> list[Observation]:
        """A job's observations, oldest first."""
        shape = (("limit", "LIMIT :limit"),)
        query = self._query(
            "load_observations", shape, ids=self._pack([job_id]), limit=MAX_OBSERVATIONS_READ
        )
        rows = self._rows(query)
        return [observation_from(row) for row in rows]

    # --- deciding on locked rows ------------------------------------------------------------------

    def save_locked(
        self,
        ids: Sequence[JobId],
        sessions: Sequence[SessionKey],
        decide: Callable[[Locked], Sequence[Change]],
    ) -> Saved:
        """Lock, read, let `decide` choose what to write, write it. [K9]"""
        changes: Sequence[Change] = ()

        def decided(locked: Locked) -> Sequence[Change]:
            nonlocal changes
            changes = decide(locked)
            return changes

        begun = self.begin()
        saved = self._write(lambda tx: self._save_locked(tx, ids, sessions, decided))
        self.written(
            [each for each in changes if each.job.id in saved.applied], saved.now, begun=begun
        )
        return saved

    def _save_locked(
        self,
        tx: Transaction,
        ids: Sequence[JobId],
        sessions: Sequence[SessionKey],
        decide: Callable[[Locked], Sequence[Change]],
    ) -> Saved:
        locks = self.row_locks(ids, sessions)
        looked_up = [
            self._query("load_sessions", namespace=key.namespace, workers=self._pack([key.worker]))
            for key in sessions
        ]
        jobs, *remembered, [(now, epoch, settling_since)] = tx.fetch(
            *locks,
            self._query("load_jobs", WITH_BODIES, ids=self._pack(ids)),
            *looked_up,
            self._query("moment_to_decide"),
        )[len(locks) :]
        self._saw_epoch(Epoch(epoch))
        found = [session_from(row) for rows in remembered for row in rows]
        locked = Locked(
            Instant(now),
            Epoch(epoch),
            {job.id: job for job in map(job_from, jobs)},
            settling_since,
            sessions={session.key: session for session in found if session.key in sessions},
            load_histories=lambda wanted: decision_histories(tx, self._query, wanted),
        )
        changes = decide(locked)
        if not changes:
            return Saved(locked.now, frozenset())
        return self.save_held(tx, changes, locked.epoch)

    # --- observing --------------------------------------------------------------------------------

    def observe(self, observations: Sequence[Observation]) -> list[Observation]:
        """Keep refused results, at most ten per lease and one per request. [U1] [U5]"""
        if not observations:
            return []
        return self._write(lambda tx: self.keep_observations(tx, observations))

    def keep_observations(
        self, tx: Transaction, observations: Sequence[Observation]
    ) -> list[Observation]:
        written: list[Observation] = []
        for seen in sorted(observations, key=lambda each: each.job_id):
            # Locked, so that a purge cannot leave an observation without its job.
            tx.fetch(self._query("hold_job", job_id=seen.job_id))
            where = {
                "job_id": seen.job_id,
                "lease": seen.lease_id or "",
                "most": MAX_OBSERVATIONS_PER_LEASE,
                "type": seen.type.value,
                "actor": seen.actor,
                "request_id": seen.request_id,
            }
            facts = {name: getattr(seen, name) for name in OBSERVATION_COLUMNS}
            for _ in range(MAX_OBSERVATION_TRIES):
                [kept] = tx.fetch(self._query("keep_observation", **(facts | where)))
                if kept:
                    written.append(seen)
                if kept or not tx.fetch(self._query("observation_room", **where))[0]:
                    break
        return written

    # --- dedupe keys ---------------------------------------------------------------------------

    def ended_keys(self, changes: Sequence[Change]) -> list[Query]:
        """The statements by which jobs that have ended free or keep their keys. [D2] [D13]"""
        ended = [
            change.job
            for change in changes
            if change.job.dedupe_key is not None and change.job.finished_at is not None
        ]
        if not ended:
            return []
        kept = [job.id for job in ended if job.unique_for_us is not None]
        freed = [job.id for job in ended if job.unique_for_us is None]
        by_name = {"keep_keys": kept, "free_keys": freed}
        return [self._query(name, ids=self._pack(ids)) for name, ids in by_name.items() if ids]

    # --- resolving --------------------------------------------------------------------------------

    def resolve(self, resolutions: Sequence[Resolution]) -> frozenset[JobId]:
        """Record each unless its job has one or is gone. Returns the jobs that got one. [B1]"""
        return self._write(lambda tx: self.keep_resolutions(tx, resolutions))

    def keep_resolutions(
        self, tx: Transaction, resolutions: Iterable[Resolution]
    ) -> frozenset[JobId]:
        kept = set()
        for each in sorted(resolutions, key=lambda resolution: resolution.job_id):
            facts = {name: getattr(each, name) for name in RESOLUTION_COLUMNS}
            facts["kind"] = each.kind.value
            # Locked, so that a purge cannot leave a resolution without its job.
            _, written = tx.fetch(
                self._query("hold_job", job_id=each.job_id), self._query("keep_resolution", **facts)
            )
            if written:
                kept.add(each.job_id)
        return frozenset(kept)

    def first_to_resolve(self, tx: Transaction, changes: Sequence[Change]) -> list[Change]:
        """The changes, except changes whose dead letter is gone or has a resolution. [B17] The
        caller locks the dead letters first; otherwise another transaction could resolve them
        meanwhile."""
        letters = letters_of(changes)
        if not letters:
            return list(changes)
        [rows] = tx.fetch(self._query("unresolved_among", ids=self._pack(letters)))
        unresolved = {JobId(str(row[0])) for row in rows}
        first: list[Change] = []
        for change in changes:
            if change.resolution is not None:
                if change.resolution.job_id not in unresolved:
                    continue
                unresolved.remove(change.resolution.job_id)  # one change for each dead letter
            first.append(change)
        return first

    # --- queues that have jobs --------------------------------------------------------------------

    def _register(self, names: set[tuple[str, ...]]) -> list[Query]:
        # In order, so that two stores that register the same queues do not wait for each other.
        return [self._registration(*each) for each in sorted(names)]

    def _registration(self, namespace: str, queue: str, *keyed: str) -> Query:
        if not keyed:
            return self._query("register_queue", namespace=namespace, name=queue)
        kind, sort = keyed
        return self._query(
            "register_keyed_kind",
            namespace=namespace,
            kind=kind,
            queue=queue,
            is_rate=sort == "rate key",
        )


def resolved_by(change: Change) -> tuple[Resolution, ...]:
    """The resolutions of dead letters in a change that was applied."""
    return change.resolutions if change.resolution is None else (change.resolution,)


def letters_of(changes: Iterable[Change]) -> list[JobId]:
    """The dead letters that these changes resolve."""
    return [each.resolution.job_id for each in changes if each.resolution is not None]


def resolutions_of(rows: Iterable[Row]) -> dict[JobId, Resolution]:
    """Rows whose columns are `RESOLUTION_COLUMNS`, by their dead letters."""
    found = {}
    for row in rows:
        facts = dict(zip(RESOLUTION_COLUMNS, row, strict=True))
        where = f"the resolution of job {row[0]}"
        kind = value_from(ResolutionKind, facts["kind"], where=where)
        found[JobId(row[0])] = Resolution(**facts | {"kind": kind})
    return found
