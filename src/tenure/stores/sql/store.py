"""The logic that all SQL stores share: what is read, what is locked, what is written when.

A dialect runs the transactions and writes the changes; this module turns each method of the port
into statements. Like every store it decides nothing: callers pass plans and decisions in.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from tenure.core.claims import (
    ClaimPlan,
    ClaimScope,
    ClaimView,
    QueueState,
    Session,
    SessionKey,
    claim_order,
)
from tenure.core.commands import Outage
from tenure.core.events import MAX_DECISION_EVENTS, Event
from tenure.core.ids import Actor, Epoch, JobId, Namespace, QueueName
from tenure.core.instants import Duration, Instant
from tenure.core.job import Job
from tenure.core.leases import HeldLease, LeaseRow, lease_news
from tenure.core.observations import (
    MAX_OBSERVATIONS_PER_LEASE,
    MAX_OBSERVATIONS_READ,
    Observation,
)
from tenure.core.outcomes import Change
from tenure.core.unknown_words import has_unknown_word
from tenure.core.vocabulary import LeaseNews
from tenure.errors import StoreUnavailable, UnreadableRow
from tenure.ports import DedupeKey, Loaded, Locked, Saved
from tenure.stores.sql import artifacts, attempt_logs, resolutions, tokens, workers
from tenure.stores.sql.artifacts import Artifacts
from tenure.stores.sql.attempt_logs import AttemptLogs
from tenure.stores.sql.candidates import SqlCandidates
from tenure.stores.sql.events import SqlEvents
from tenure.stores.sql.measures import SqlMeasures
from tenure.stores.sql.resolutions import Resolutions
from tenure.stores.sql.retention import SqlRetention
from tenure.stores.sql.rows import (
    EVENT_FIELDS,
    JOB_COLUMNS,
    OBSERVATION_COLUMNS,
    SESSION_COLUMNS,
    Row,
    event_from,
    job_from,
    observation_from,
    session_from,
)
from tenure.stores.sql.statements import Query, Statements
from tenure.stores.sql.tokens import Tokens
from tenure.stores.sql.transactions import Transaction
from tenure.stores.sql.workers import Workers

LISTING_SHARE = 0.5
"""The share of a call's time that a list may take. [B24]"""

MAX_CLAIM_RESTARTS = 10
"""How often a claim starts again because the settings of its queues changed meanwhile."""

MAX_PASSED_OVER = 1000
"""So many jobs of a newer version may stand before those that a claim can have. [Y5]"""

MAX_OBSERVATION_TRIES = 2 * MAX_OBSERVATIONS_PER_LEASE
"""Each lost race for an ordinal means that another observation was kept, and ten fill a lease."""

_BODY_PLACEHOLDERS = {"payload": "'null'", "checkpoint": "NULL", "result": "NULL"}
"""What is selected instead of a job's bodies if these are not wanted."""

COLUMN_WORDS = {
    **resolutions.COLUMN_WORDS,
    **artifacts.COLUMN_WORDS,
    **attempt_logs.COLUMN_WORDS,
    **workers.COLUMN_WORDS,
    **tokens.COLUMN_WORDS,
    "job_columns": ", ".join(JOB_COLUMNS),
    "job_columns_without_bodies": ", ".join(
        _BODY_PLACEHOLDERS.get(name, name) for name in JOB_COLUMNS
    ),
    "event_columns": ", ".join(EVENT_FIELDS),
    "observation_columns": ", ".join(OBSERVATION_COLUMNS),
    "session_columns": ", ".join(SESSION_COLUMNS),
}


class _Restart(Exception):
    """The claim chose its locks for other settings of a queue than those it then read."""


class SqlStore(
    Resolutions,
    SqlCandidates,
    SqlEvents,
    Artifacts,
    AttemptLogs,
    Workers,
    Tokens,
    SqlMeasures,
    SqlRetention,
):
    """`tenure.ports.Store` over SQL. Dialects fill in the abstract methods."""

    def __init__(self, statements: Statements) -> None:
        super().__init__(statements)
        # Hints: they choose locks and round trips. A claim checks them again under its locks.
        self._unusual_queues: dict[tuple[Namespace, QueueName], QueueState] = {}
        self._registered_queues: set[tuple[Namespace, QueueName]] = set()
        self._registered_in: Epoch | None = None

    # --- what a dialect provides ---------------------------------------------------------------

    @abstractmethod
    def _claim_locks(
        self, scope: ClaimScope, sessions: Sequence[SessionKey], limited: set[QueueName]
    ) -> list[Query]:
        """Locks that keep claims apart from each other and from `put_queue`."""

    @abstractmethod
    def _queue_lock(self, namespace: Namespace, name: QueueName) -> list[Query]:
        """The lock that every claim of this queue waits for."""

    @abstractmethod
    def _epoch_queries(self) -> list[Query]:
        """Statements that wait for all writes of the old epoch, then raise it; the last one returns
        the new epoch."""

    @abstractmethod
    def _session_queries(self, sessions: Sequence[Session]) -> list[Query]:
        """The statements that record what each session was granted last."""

    @abstractmethod
    def _write_claimed(
        self,
        tx: Transaction,
        changes: Sequence[Change],
        epoch: Epoch,
        also: Sequence[Query],
    ) -> None:
        """Write changes of rows that this transaction has locked, then `also`, and commit."""

    @abstractmethod
    def _row_locks(self, ids: Sequence[JobId], sessions: Sequence[SessionKey]) -> list[Query]:
        """Locks on these sessions and jobs, in the same order in every transaction."""

    @abstractmethod
    def _save_held(self, tx: Transaction, changes: Sequence[Change], epoch: Epoch) -> Saved:
        """Write changes of rows that this transaction has locked, if they are in time."""

    @abstractmethod
    def save(self, changes: Iterable[Change], *, epoch: Epoch) -> Saved:
        """See the port."""

    # --- loading -------------------------------------------------------------------------------

    def now(self) -> Instant:
        """The store's clock."""
        [(now, _)] = self._rows(self._query("moment"))
        return Instant(now)

    def load(self, ids: Sequence[JobId]) -> Loaded:
        """The rows of these jobs; the clock is read after them."""
        return self._loaded(self._query("load_jobs", ids=self._pack(ids)))

    def _loaded(self, query: Query) -> Loaded:
        rows, [(now, epoch, settling_since)] = self._read(
            lambda tx: tx.fetch(query, self._query("moment_to_decide"), last=True)
        )
        self._saw_epoch(Epoch(epoch))
        jobs = [job_from(row) for row in rows]
        return Loaded(Instant(now), Epoch(epoch), {job.id: job for job in jobs}, settling_since)

    def _saw_epoch(self, epoch: Epoch) -> None:
        """Called with the epoch of the store; one that can fail over remembers the highest. [A9]"""

    def load_without_bodies(self, ids: Sequence[JobId]) -> dict[JobId, Job]:
        """The rows of these jobs without their bodies."""
        rows = self._rows(self._query("load_jobs_without_bodies", ids=self._pack(ids)))
        return {job.id: job for job in map(job_from, rows)}

    def load_holders(self, keys: Sequence[DedupeKey]) -> dict[DedupeKey, Job]:
        """The live jobs that hold these dedupe keys."""
        queries = [
            self._query("load_holder", namespace=key.namespace, kind=key.kind, dedupe_key=key.key)
            for key in keys
        ]
        answers = self._read(lambda tx: tx.fetch(*queries, last=True))
        return {key: job_from(rows[0]) for key, rows in zip(keys, answers, strict=True) if rows}

    def load_leased(self, session: SessionKey) -> Loaded:
        """The claimed and running jobs of a worker session."""
        return self._loaded(
            self._query(
                "load_leased",
                namespace=session.namespace,
                actor=session.actor,
                worker=session.worker,
            )
        )

    def load_jobs(self, ids: Sequence[JobId]) -> dict[JobId, Job]:
        """The rows of these jobs."""
        return self.load(ids).jobs

    def peek_leases(self, leases: Sequence[HeldLease], actor: Actor) -> list[LeaseNews]:
        """For which of these leases the worker should send a heartbeat now."""
        ids = self._pack([lease.job_id for lease in leases])
        rows = self._rows(self._query("load_leases", ids=ids))
        found = {str(job_id): LeaseRow(*said) for job_id, *said in rows}
        return [lease_news(found.get(lease.job_id), lease.lease_id, actor) for lease in leases]

    def load_events(self, job_id: JobId) -> list[Event]:
        """A job's history in order of seq."""
        return self.load_histories([job_id])[job_id]

    def load_histories(self, ids: Sequence[JobId]) -> dict[JobId, list[Event]]:
        """The events of these jobs in order of seq."""
        return self._read(lambda tx: self._histories(tx, ids))

    def load_decision_histories(
        self, ids: Sequence[JobId], *, events: int = MAX_DECISION_EVENTS
    ) -> dict[JobId, list[Event]]:
        """The part of their events that decisions need. [J8]"""
        return self._read(lambda tx: self._decision_histories(tx, ids, events))

    def _decision_histories(
        self, tx: Transaction, ids: Sequence[JobId], events: int
    ) -> dict[JobId, list[Event]]:
        name = "load_decision_history"
        found = tx.fetch(*[self._query(name, job_id=job_id, events=events) for job_id in ids])
        return {
            job_id: [event_from(row) for row in rows]
            for job_id, rows in zip(ids, found, strict=True)
        }

    def _histories(self, tx: Transaction, ids: Sequence[JobId]) -> dict[JobId, list[Event]]:
        [rows] = tx.fetch(self._query("load_histories", ids=self._pack(ids)))
        histories: dict[JobId, list[Event]] = {job_id: [] for job_id in ids}
        for row in rows:
            event = event_from(row)
            histories[event.job_id].append(event)
        return histories

    def load_observations(self, job_id: JobId) -> list[Observation]:
        """A job's observations, oldest first."""
        shape = (("limit", "LIMIT :limit"),)
        query = self._query(
            "load_observations", shape, ids=self._pack([job_id]), limit=MAX_OBSERVATIONS_READ
        )
        rows = self._rows(query)
        return [observation_from(row) for row in rows]

    # --- deciding on locked rows ---------------------------------------------------------------

    def save_locked(
        self,
        ids: Sequence[JobId],
        sessions: Sequence[SessionKey],
        decide: Callable[[Locked], Sequence[Change]],
    ) -> Saved:
        """Lock, read, let `decide` say what to write, write it. [K9]"""
        return self._write(lambda tx: self._save_locked(tx, ids, sessions, decide))

    def _save_locked(
        self,
        tx: Transaction,
        ids: Sequence[JobId],
        sessions: Sequence[SessionKey],
        decide: Callable[[Locked], Sequence[Change]],
    ) -> Saved:
        locks = self._row_locks(ids, sessions)
        looked_up = [
            self._query("load_sessions", namespace=key.namespace, workers=self._pack([key.worker]))
            for key in sessions
        ]
        jobs, *remembered, [(now, epoch, settling_since)] = tx.fetch(
            *locks,
            self._query("load_jobs", ids=self._pack(ids)),
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
            load_histories=lambda wanted: self._decision_histories(tx, wanted, MAX_DECISION_EVENTS),
        )
        changes = decide(locked)
        if not changes:
            return Saved(locked.now, frozenset())
        return self._save_held(tx, changes, locked.epoch)

    # --- observing -----------------------------------------------------------------------------

    def observe(self, observations: Sequence[Observation]) -> list[Observation]:
        """Keep refused results, at most ten per lease. [U1]"""
        if not observations:
            return []
        return self._write(lambda tx: self._keep_observations(tx, observations))

    def _keep_observations(
        self, tx: Transaction, observations: Sequence[Observation]
    ) -> list[Observation]:
        noted: list[Observation] = []
        for seen in sorted(observations, key=lambda each: each.job_id):
            # Locked, so that a purge cannot leave an observation without its job.
            tx.fetch(self._query("hold_job", job_id=seen.job_id))
            where = {
                "job_id": seen.job_id,
                "lease": seen.lease_id or "",
                "most": MAX_OBSERVATIONS_PER_LEASE,
            }
            facts = {name: getattr(seen, name) for name in OBSERVATION_COLUMNS}
            facts["type"] = seen.type.value
            for _ in range(MAX_OBSERVATION_TRIES):
                [kept] = tx.fetch(self._query("keep_observation", **(facts | where)))
                if kept:
                    noted.append(seen)
                if kept or not tx.fetch(self._query("observation_room", **where))[0]:
                    break
        return noted

    # --- claiming and sweeping -----------------------------------------------------------------

    def claim(
        self,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
    ) -> ClaimPlan:
        """Lock, read, let `plan` decide, write what it says."""
        for restarts in range(MAX_CLAIM_RESTARTS):
            try:
                planned = self._write(lambda tx: self._claim(tx, scope, sessions, wanted, plan))
            except _Restart:
                continue
            return replace(planned, restarts=restarts) if restarts else planned
        raise StoreUnavailable(
            f"the settings of {', '.join(scope.queues)} keep changing", hint="claim again"
        )

    def _claim(
        self,
        tx: Transaction,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
    ) -> ClaimPlan:
        names = list(dict.fromkeys(scope.queues))
        expected = self._expected_settings(scope, names)
        limited = {name for name, state in expected.items() if state.limit is not None}
        kinds = self._kinds_to_claim(tx, scope, names)
        # One round trip, unless a queue is paused or limited or delayed jobs are due.
        most = dict.fromkeys(names, wanted)
        at_once = [] if expected else self._candidate_queries(scope, kinds, most)
        locks = self._claim_locks(scope, sessions, limited)
        answers = tx.fetch(
            *locks,
            self._query(
                "load_sessions",
                namespace=scope.namespace,
                workers=self._pack([key.worker for key in sessions]),
            ),
            self._query("load_queue_settings", namespace=scope.namespace, queues=self._pack(names)),
            *at_once,
        )[len(locks) :]
        settings = self._checked_settings(scope, names, answers[1], limited, at_once=bool(at_once))
        queues = self._with_live_leases(tx, scope, settings)
        most = {name: queues[name].most(wanted) for name in names}
        if not at_once:
            answers[2:] = tx.fetch(*self._candidate_queries(scope, kinds, most))
        candidates, moment = self._passing_over(tx, scope, kinds, most, answers[2:])
        [(now, epoch, settling_since)] = moment
        self._saw_epoch(Epoch(epoch))
        remembered = [session_from(row) for row in answers[0]]
        view = ClaimView(
            now=Instant(now),
            epoch=Epoch(epoch),
            sessions={session.key: session for session in remembered if session.key in sessions},
            queues=queues,
            candidates=candidates,
            settling_since=settling_since,
        )
        planned = plan(view)
        if planned.changes or planned.sessions:
            also = self._session_queries(planned.sessions)
            self._write_claimed(tx, planned.changes, view.epoch, also)
        return planned

    def _expected_settings(
        self, scope: ClaimScope, names: Sequence[QueueName]
    ) -> dict[QueueName, QueueState]:
        """The queues that were paused or limited when this store last read their settings."""
        found = {name: self._unusual_queues.get((scope.namespace, name)) for name in names}
        return {name: state for name, state in found.items() if state is not None}

    def _passing_over(
        self,
        tx: Transaction,
        scope: ClaimScope,
        kinds: Mapping[QueueName, Sequence[str]],
        most: Mapping[QueueName, int],
        answers: Sequence[Sequence[Row]],
    ) -> tuple[list[Job], Sequence[Row]]:
        """The candidates and the clock. Jobs that this version cannot read, or not in full, are
        left to the version that wrote them; others are asked for in their place. [Y5]"""
        asked_more, asked = 0, most
        while True:
            found, moment = self._with_delayed(tx, scope, asked, answers)
            readable = [job for rows in found for job in _readable(rows)]
            passed_over = sum(map(len, found)) - len(readable)
            if passed_over <= asked_more or asked_more >= MAX_PASSED_OVER:
                return _first(readable, most), moment
            asked_more = min(passed_over, MAX_PASSED_OVER)
            asked = {name: number + asked_more for name, number in most.items() if number}
            answers = tx.fetch(*self._candidate_queries(scope, kinds, asked))

    def _with_delayed(
        self,
        tx: Transaction,
        scope: ClaimScope,
        wanted: Mapping[QueueName, int],
        answers: Sequence[Sequence[Row]],
    ) -> tuple[list[Sequence[Row]], Sequence[Row]]:
        """The rows of ready jobs and of delayed ones that are due, and the clock after them."""
        *found, moment = answers
        ready, levels = found[: -len(wanted)], found[-len(wanted) :]
        [(now, *_)] = moment
        delayed = self._delayed_queries(scope, wanted, levels, Instant(now))
        if delayed:
            *due, moment = tx.fetch(*delayed, self._query("moment_to_decide"))
            ready += due
        return ready, moment

    def _candidate_queries(
        self,
        scope: ClaimScope,
        kinds: Mapping[QueueName, Sequence[str]],
        wanted: Mapping[QueueName, int],
    ) -> list[Query]:
        """The ready jobs of each queue, where its delayed jobs are, and then the clock: it is read
        after the rows are locked."""
        return [
            *self._ready_queries(scope, kinds, wanted),
            *self._level_queries(scope, kinds, wanted),
            self._query("moment_to_decide"),
        ]

    def _checked_settings(
        self,
        scope: ClaimScope,
        names: Sequence[QueueName],
        rows: Sequence[Row],
        limited: set[QueueName],
        *,
        at_once: bool,
    ) -> dict[QueueName, QueueState]:
        """The settings as they were read under the locks. Raises `_Restart` if they need other
        locks.

        Corrects the hints for the next claim. This claim uses what it read, not the hints: a
        `put_queue` of another thread updates them only after it has released its lock. [Z2] [Z3]
        """
        found = {name: _queue_state(name, paused, most) for name, paused, most in rows}
        for name in names:
            state = found.get(name)
            if state is None or (not state.paused and state.limit is None):
                self._unusual_queues.pop((scope.namespace, name), None)
                continue
            self._unusual_queues[scope.namespace, name] = state
            if at_once or (state.limit is not None and name not in limited):
                raise _Restart
        return {name: found.get(name, QueueState(name=name)) for name in names}

    def _with_live_leases(
        self, tx: Transaction, scope: ClaimScope, queues: dict[QueueName, QueueState]
    ) -> dict[QueueName, QueueState]:
        """The queues with the number of their live leases, counted only where there is a limit."""
        limited = [name for name, state in queues.items() if state.limit is not None]
        counts = tx.fetch(
            *[self._query("count_live", namespace=scope.namespace, queue=name) for name in limited]
        )
        live = {name: number for name, [(number,)] in zip(limited, counts, strict=True)}
        return {name: _with_live(state, live.get(name, 0)) for name, state in queues.items()}

    def due(self, *, limit: int) -> Loaded:
        """Leased jobs whose lease has ended, longest overdue first."""
        return self._loaded(self._query("due", limit=limit))

    # --- queues, ticks, outages, epoch ---------------------------------------------------------

    def put_queue(
        self, namespace: Namespace, name: QueueName, *, paused: bool | None, limit: int | None
    ) -> QueueState:
        """Change a queue's settings, after all claims that use the old ones have ended."""
        key = {"namespace": namespace, "name": name}
        changes = [self._query("register_queue", **key)]
        if paused is not None:
            changes.append(self._query("set_queue_paused", paused=paused, **key))
        if limit is not None:
            changes.append(self._query("set_queue_limit", concurrency_limit=limit or None, **key))

        def change(tx: Transaction) -> QueueState:
            tx.fetch(*self._queue_lock(namespace, name), *changes)
            settings, [(live,)] = tx.fetch(
                self._query("load_queue_settings", namespace=namespace, queues=self._pack([name])),
                self._query("count_live", namespace=namespace, queue=name),
            )
            return _with_live(_queue_state(*settings[0]), live)

        state = self._write(change)
        self._unusual_queues[namespace, name] = state
        return state

    def next_ready_in(self, namespace: Namespace, queues: Sequence[QueueName]) -> Duration | None:
        """How long until these queues have a ready job, as far as one can see."""
        asked = [
            self._query("count_ready", jobs=1, namespace=namespace, queue=name) for name in queues
        ]
        asked += [self._oldest(is_ready=False, namespace=namespace, queue=name) for name in queues]
        *found, [(now, _)] = self._read(
            lambda tx: tx.fetch(*asked, self._query("moment"), last=True)
        )
        if any(count for [(count,)] in found[: len(queues)]):
            return Duration(0)
        instants = [instant for [(instant,)] in found[len(queues) :] if instant is not None]
        return Duration(max(0, min(instants) - now)) if instants else None

    def list_queues(self, namespace: Namespace) -> list[QueueState]:
        """Every queue that ever had jobs or settings, with its live leases."""
        settings, counts = self._read(
            lambda tx: tx.fetch(
                self._query("load_queues", namespace=namespace),
                self._query("count_live_by_queue", namespace=namespace),
                last=True,
            ),
            listing=True,
        )
        live: dict[str, int] = {row[0]: row[1] for row in counts}
        return [_with_live(_queue_state(*row), live.get(row[0], 0)) for row in settings]

    def _unregistered(
        self, changes: Sequence[Change], epoch: Epoch
    ) -> set[tuple[Namespace, QueueName]]:
        """Queues of new jobs that this store has not registered yet. After a new epoch all are
        registered again: the last writes, and with them names of queues, may be lost. [A5]"""
        if epoch != self._registered_in:
            self._registered_in, self._registered_queues = epoch, set()
        return {
            (each.job.namespace, each.job.queue)
            for change in changes
            for each in (change, *change.spawned)
            if each.expected_rev == 0
        } - self._registered_queues

    def _register(self, queues: set[tuple[Namespace, QueueName]]) -> list[Query]:
        # In order, so that two stores that register the same queues do not wait for each other.
        return [
            self._query("register_queue", namespace=namespace, name=name)
            for namespace, name in sorted(queues)
        ]

    def tick(self) -> tuple[Instant | None, Instant]:
        """The highest tick before this one, and now."""

        def advance(tx: Transaction) -> tuple[Instant | None, Instant]:
            [[(before,)], [(now, _)]] = tx.fetch(self._query("load_tick"), self._query("moment"))
            tx.fetch(self._query("set_tick", tick=max(before or now, now)), last=True)
            return before, now

        return self._write(advance)

    def record_outage(self, outage: Outage) -> None:
        """Remember an outage."""
        query = self._query(
            "record_outage",
            began_at=outage.began_at,
            ended_at=outage.ended_at,
            is_jump=outage.is_jump,
        )
        self._write(lambda tx: tx.fetch(query, last=True))

    def outages(self, *, since: Instant) -> list[Outage]:
        """Outages that ended after `since`."""
        rows = self._rows(self._query("load_outages", since=since))
        return [Outage(began_at, ended_at, bool(is_jump)) for began_at, ended_at, is_jump in rows]

    def raise_epoch(self) -> Epoch:
        """Begin a new epoch, after every write under the old one has ended. [A5] [A12]"""
        queries = self._epoch_queries()
        [(epoch,)] = self._write(lambda tx: tx.fetch(*queries, last=True))[-1]
        self._saw_epoch(Epoch(epoch))
        return Epoch(epoch)


def _queue_state(name: str, paused: bool | int, limit: int | None) -> QueueState:
    return QueueState(name=QueueName(name), paused=bool(paused), limit=limit)


def _with_live(state: QueueState, live: int) -> QueueState:
    return QueueState(name=state.name, paused=state.paused, limit=state.limit, live=live)


def _first(jobs: Sequence[Job], most: Mapping[QueueName, int]) -> list[Job]:
    """The jobs in claim order, of each queue so many at most."""
    room = dict(most)
    chosen: list[Job] = []
    for job in sorted(jobs, key=claim_order):
        if room[job.queue]:
            room[job.queue] -= 1
            chosen.append(job)
    return chosen


def _readable(rows: Sequence[Row]) -> Iterator[Job]:
    """The jobs that this version can read in full. [Y5]"""
    for row in rows:
        try:
            job = job_from(row)
        except UnreadableRow:
            continue
        if not has_unknown_word(job):
            yield job
