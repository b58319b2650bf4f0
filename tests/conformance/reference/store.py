"""The reference: what the SQL stores are compared with, and what stores are made wrong from.

The simplest correct implementation of `tenure.ports.Store`: dictionaries under one lock. It shares
no statement with the SQL stores. Like every store, it decides nothing.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from tenure.core.checks import check_integer
from tenure.core.claims import (
    ClaimPlan,
    ClaimScope,
    ClaimView,
    GrantRoom,
    QueueState,
    body_bytes,
    first_with_room,
    kind_meter,
    queue_meter,
    rates_of,
    standings,
    usable_candidates,
)
from tenure.core.commands import Outage
from tenure.core.concurrency import KeyRules
from tenure.core.events import MAX_DECISION_EVENTS, Event, has_unknown_word
from tenure.core.ids import Actor, Epoch, JobId, Kind, Namespace, QueueName
from tenure.core.instants import Duration, Instant
from tenure.core.job import Job, row_violations
from tenure.core.kind_settings import KindChange, KindSettings, changes_limits, put_over
from tenure.core.leases import HeldLease, lease_news
from tenure.core.outcomes import Change, Session, SessionKey
from tenure.core.rate_evidence import GrantMade, RateInForce, in_force
from tenure.core.rates import Meter, Rate, RateStanding
from tenure.core.verdicts import MAX_OBSERVATIONS_PER_LEASE, MAX_OBSERVATIONS_READ, Observation
from tenure.core.views.event_counts import EventCount, EventCounts, EventSpan, page_end
from tenure.core.views.events import (
    MAX_TAILED,
    EventFilter,
    EventPage,
    EventPosition,
    TailedEvent,
    TailFilter,
    TailPage,
    key_of,
    next_key,
)
from tenure.core.views.job_search import PREVIEW_CHARS, FoundJobs, JobFilter, Scope
from tenure.core.vocabulary import RENEWALS, EventClass, EventType, LeaseNews
from tenure.errors import Closed, InvalidInput, StoreRefused
from tenure.ports import (
    ANY_TIME,
    NO_LIMIT,
    NO_WAIT,
    Clock,
    ClockWindow,
    DeadLetter,
    DedupeKey,
    HealthFact,
    Hint,
    HintedChange,
    Loaded,
    Locked,
    NextReady,
    OnHint,
    PruneResult,
    Record,
    Saved,
    fact,
)
from tenure.stores.hints import Watchers, hints_of
from tenure.stores.host_clock import host_clock
from tests.conformance.reference.admission import Admission
from tests.conformance.reference.artifacts import MemoryArtifacts
from tests.conformance.reference.attempt_logs import MemoryAttemptLogs
from tests.conformance.reference.flows import MemoryFlows
from tests.conformance.reference.job_lists import find_among
from tests.conformance.reference.measures import MemoryMeasures
from tests.conformance.reference.overview import MemoryOverview
from tests.conformance.reference.tokens import MemoryTokens
from tests.support.by_subject import BySubject

_SessionOrder = tuple[str, str, str]


class ReferenceStore(
    BySubject,
    MemoryOverview,
    MemoryArtifacts,
    MemoryAttemptLogs,
    MemoryTokens,
    MemoryMeasures,
    MemoryFlows,
):
    """Jobs in dictionaries, one lock for all of them."""

    def __init__(self, *, clock: Clock = host_clock) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.RLock()
        self._closed = False
        self._jobs: dict[JobId, Job] = {}
        self._events: dict[JobId, list[Event]] = {}
        self._tail: dict[int, Event] = {}  # by position; a position is never used again
        self._positions = count(1)
        self._observations: list[Observation] = []
        self._keys: dict[DedupeKey, JobId] = {}
        self._sessions: dict[SessionKey, Session] = {}
        self._queues: dict[tuple[Namespace, QueueName], QueueState] = {}
        self._kinds: dict[tuple[Namespace, Kind], KindSettings] = {}
        self._rate_states: dict[tuple[Namespace, Meter], Instant] = {}
        self._rate_keyed: set[tuple[Namespace, QueueName, Kind]] = set()
        self._admission = Admission()
        self._epoch = Epoch(1)
        self._tick: Instant | None = None
        self._outages: list[Outage] = []
        # The next pruning and the next deletion of sessions continue after these.
        self._last_renewal: tuple[JobId, int] | None = None
        self._last_session: _SessionOrder | None = None
        self._watchers = Watchers()

    @property
    def parallelism(self) -> int:
        """One lock, one call at a time."""
        return 1

    def _open(self) -> None:
        if self._closed:
            raise Closed

    def now(self) -> Instant:
        """The injected clock."""
        self._open()
        return self._clock()

    def close(self) -> None:
        """Refuse every call from now on; nothing is deleted."""
        self._closed = True

    def health(self) -> list[HealthFact]:
        """What is true of every store in memory."""
        with self._lock:
            self._open()
            return [
                fact(
                    "store",
                    "memory",
                    warning=True,
                    advice="nothing survives this process; use sqlite:///file.db or PostgreSQL",
                ),
                fact("jobs", len(self._jobs)),
                fact("epoch", self._epoch),
            ]

    # --- loading -------------------------------------------------------------------------------

    def load(self, ids: Sequence[JobId]) -> Loaded:
        """The rows of these jobs."""
        with self._lock:
            self._open()
            found = {job_id: self._jobs[job_id] for job_id in ids if job_id in self._jobs}
            return Loaded(self._clock(), self._epoch, found)

    def load_previews(self, ids: Sequence[JobId]) -> dict[JobId, str]:
        """The beginnings of the payloads of these jobs. [H53]"""
        jobs = self.load(ids).jobs
        return {job_id: job.payload.decode()[:PREVIEW_CHARS] for job_id, job in jobs.items()}

    def load_holders(self, keys: Sequence[DedupeKey]) -> dict[DedupeKey, Job]:
        """The jobs that hold these dedupe keys: live ones, and those that keep theirs. [D13]"""
        with self._lock:
            self._open()
            return {key: self._jobs[self._keys[key]] for key in keys if key in self._keys}

    def load_leased(self, session: SessionKey) -> Loaded:
        """The claimed and running jobs of a worker session, without their bodies."""
        with self._lock:
            self._open()
            found = {
                job.id: job.without_bodies
                for job in self._jobs.values()
                if job.lease_id is not None
                and job.namespace == session.namespace
                and job.principal == session.actor
                and job.owner == session.worker
            }
            return Loaded(self._clock(), self._epoch, found)

    def load_jobs(self, ids: Sequence[JobId]) -> dict[JobId, Job]:
        """The rows of these jobs."""
        return self.load(ids).jobs

    def peek_leases(self, leases: Sequence[HeldLease], actor: Actor) -> list[LeaseNews]:
        """For which of these leases the worker should send a heartbeat now."""
        jobs = self.load_jobs([lease.job_id for lease in leases])
        return [lease_news(jobs.get(lease.job_id), lease.lease_id, actor) for lease in leases]

    def load_events(self, job_id: JobId) -> list[Event]:
        """A job's history in order of seq."""
        return self.load_histories([job_id])[job_id]

    def load_histories(self, ids: Sequence[JobId]) -> dict[JobId, list[Event]]:
        """The events of these jobs in order of seq."""
        with self._lock:
            self._open()
            return {job_id: list(self._events.get(job_id, ())) for job_id in ids}

    def load_decision_histories(
        self, ids: Sequence[JobId], *, events: int = MAX_DECISION_EVENTS
    ) -> dict[JobId, list[Event]]:
        """The part of their events that decisions need. [J8]"""
        histories = self.load_histories(ids)
        for job_id, log in histories.items():
            transitions = [event for event in log if event.type not in RENEWALS]
            histories[job_id] = [*transitions[:1], *transitions[1:][-events:]]
        return histories

    def load_observations(self, job_id: JobId) -> list[Observation]:
        """A job's observations, oldest first."""
        with self._lock:
            self._open()
            return self._observations_of(job_id)[:MAX_OBSERVATIONS_READ]

    def _observations_of(self, job_id: JobId) -> list[Observation]:
        seen = [each for each in self._observations if each.job_id == job_id]
        return sorted(seen, key=lambda each: each.ts)

    # --- saving --------------------------------------------------------------------------------

    def save(
        self, changes: Iterable[Change], *, epoch: Epoch, window: ClockWindow = ANY_TIME
    ) -> Saved:
        """Apply the changes whose revision, time and epoch still match."""
        return self._save(list(changes), epoch, window)

    def save_locked(
        self,
        ids: Sequence[JobId],
        sessions: Sequence[SessionKey],
        decide: Callable[[Locked], Sequence[Change]],
    ) -> Saved:
        """Read, let `decide` say what to write, write it; all under the lock."""
        with self._lock:
            self._open()
            locked = Locked(
                self._clock(),
                self._epoch,
                {job_id: self._jobs[job_id] for job_id in ids if job_id in self._jobs},
                sessions={key: self._sessions[key] for key in sessions if key in self._sessions},
                load_histories=self.load_decision_histories,
            )
            return self._save(decide(locked), locked.epoch)

    def _save(
        self, changes: Sequence[Change], epoch: Epoch, window: ClockWindow = ANY_TIME
    ) -> Saved:
        with self._lock:
            self._open()
            now = self._clock()
            if epoch != self._epoch or not window.has(now):
                return Saved(now, frozenset())
            for change in changes:
                if self._matches(change, now):
                    self._guard(change)  # before the first write: all changes or none
            written = []
            for change in changes:
                if self._matches(change, now):  # again: a key may have been taken in this batch
                    self._write(change)
                    written.append(change)
            for hint in hints_of(written, now):
                self._watchers.tell(hint)
            return Saved(now, frozenset(change.job.id for change in written))

    def _matches(self, change: Change, now: Instant) -> bool:
        if change.not_after is not None and now >= change.not_after:
            return False
        if change.resolution is not None and not self._is_unresolved(change.resolution.job_id):
            return False
        present = self._jobs.get(change.job.id)
        if change.expected_rev == 0:
            return (
                present is None
                and self._has_free_key(change)
                and all(job_id in self._jobs for job_id in change.needed)
            )
        return present is not None and present.rev == change.expected_rev

    def _has_free_key(self, change: Change) -> bool:
        """Whether nobody holds the new job's key, or only the job that it takes it from. [D14]"""
        key, giver = _key_of(change.job), change.takes_key_from
        holder = None if key is None else self._keys.get(key)
        return holder is None or holder == giver

    def _guard(self, change: Change) -> None:
        """Refuse what the schema of a database would refuse: changes that only a bug can make."""
        before, job = self._jobs.get(change.job.id), change.job
        if before is not None and before.finished_at is not None:
            raise StoreRefused(f"job {job.id} is finished; its row is immutable")
        broken = row_violations(job)
        if broken:
            raise StoreRefused(f"job {job.id}: {broken[0]}")
        seqs = {event.seq for event in self._events.get(job.id, ())}
        if any(event.seq in seqs for event in change.events):
            raise StoreRefused(f"job {job.id}: an event with this seq is already there")
        if change.flow is not None and change.flow.id in self._flows:
            raise StoreRefused(f"flow {change.flow.id} is already there")
        for spawned in change.spawned:
            if spawned.job.id in self._jobs:
                raise StoreRefused(f"job {spawned.job.id} is already there")

    def _write(self, change: Change) -> None:
        job = change.job
        self._jobs[job.id] = job
        self._admission.written(change)
        self._events.setdefault(job.id, []).extend(change.events)
        self._tail.update((next(self._positions), event) for event in change.events)
        if job.rate_key is not None:
            self._rate_keyed.add((job.namespace, job.queue, job.kind))
        key = _key_of(job)
        if key is not None:
            if job.finished_at is None:
                self._keys[key] = job.id
            elif self._keys.get(key) == job.id and job.unique_for_us is None:
                del self._keys[key]  # [D2]
        self._keep_observations(change.observations)
        if change.resolution is not None:
            self._keep_resolution(change.resolution)
        for spawned in change.spawned:
            self._write(spawned)
        for resolution in change.resolutions:
            if resolution.job_id not in self._resolutions:
                self._keep_resolution(resolution)
        if change.flow is not None or change.redrive is not None or change.ends_member:
            self._write_flow(change)

    def observe(self, observations: Sequence[Observation]) -> list[Observation]:
        """Keep refused results, at most ten per lease. Returns those that were kept."""
        with self._lock:
            self._open()
            return self._keep_observations(observations)

    def _keep_observations(self, observations: Sequence[Observation]) -> list[Observation]:
        kept: list[Observation] = []
        for new in observations:
            of_lease = [
                seen
                for seen in self._observations
                if seen.job_id == new.job_id and seen.lease_id == new.lease_id
            ]
            is_repeat = new.request_id is not None and any(
                (seen.type, seen.actor, seen.request_id) == (new.type, new.actor, new.request_id)
                for seen in of_lease
            )
            has_room = len(of_lease) < MAX_OBSERVATIONS_PER_LEASE
            if new.job_id in self._jobs and has_room and not is_repeat:
                self._observations.append(new)
                kept.append(new)
        return kept

    # --- claiming and sweeping -----------------------------------------------------------------

    def claim(
        self,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
    ) -> ClaimPlan:
        """Find ready jobs, let `plan` decide, write what it says; all under the lock."""
        with self._lock:
            self._open()
            now = self._clock()
            rules = self._key_rules(scope.namespace, now)
            queues = {name: self._queue(scope.namespace, name) for name in scope.queues}
            self._admission.run(scope, self._jobs, rules, self._rate_states, queues, now)
            view = ClaimView(
                now=now,
                epoch=self._epoch,
                sessions={key: self._sessions[key] for key in sessions if key in self._sessions},
                queues=queues,
                candidates=(),
                kinds=self._settings_of(scope),
                rate_states={
                    meter: tat
                    for (space, meter), tat in self._rate_states.items()
                    if space == scope.namespace
                },
            )
            candidates = self._candidates(scope, wanted, view.now, view.room)
            key_waits = self._key_waits(scope, view.now, view.room)
            usable = usable_candidates(map(body_bytes, candidates), claims=len(sessions))
            view = replace(view, candidates=candidates[:usable], key_waits=key_waits)
            planned = plan(view)
            for change in planned.changes:
                self._guard(change)
            for change in planned.changes:
                self._write(change)
            self._sessions.update({session.key: session for session in planned.sessions})
            for meter, tat in planned.rate_states.items():
                self._rate_states[scope.namespace, meter] = tat
            states = view.rate_states | planned.rate_states
            for change in planned.changes:
                self._admission.granted(scope.namespace, change.job, rules, states, now)
            return planned

    def _key_rules(self, namespace: Namespace, now: Instant) -> KeyRules:
        """What is set for the kinds of a namespace."""
        kinds = {kind: each for (space, kind), each in self._kinds.items() if space == namespace}
        return KeyRules(kinds, now)

    def _key_waits(self, scope: ClaimScope, now: Instant, room: GrantRoom) -> dict[Kind, Duration]:
        """The kinds with rate keys, and how long until the first job that waits for such a rate may
        be granted."""
        waits = {
            kind: Duration(0)
            for space, queue, kind in self._rate_keyed
            if space == scope.namespace and queue in scope.queues
        }
        for job in self._ready(scope, now):
            if job.rate_key is not None:
                wait = room.wait_of_key(job.kind, job.rate_key)
                waits[job.kind] = min(wait, waits[job.kind] or wait) if wait else waits[job.kind]
        return waits

    def _settings_of(self, scope: ClaimScope) -> dict[Kind, KindSettings]:
        """What is set for the kinds that the claim names, or that wait in its queues."""
        wanted = scope.kinds or {
            job.kind
            for job in self._jobs.values()
            if job.not_before is not None
            and job.namespace == scope.namespace
            and job.queue in scope.queues
        }
        found = {kind: self._kinds.get((scope.namespace, kind)) for kind in sorted(set(wanted))}
        return {
            kind: each for kind, each in found.items() if each is not None and each.rate is not None
        }

    def _candidates(
        self, scope: ClaimScope, wanted: int, now: Instant, room: GrantRoom
    ) -> list[Job]:
        found = [
            job
            for job in self._ready(scope, now)
            if self._admission.is_open(job) and self._admission.has_come(job, now)
        ]
        return first_with_room(sorted(found, key=self._admission.order), room, wanted=wanted)

    def _ready(self, scope: ClaimScope, now: Instant) -> list[Job]:
        return [
            job
            for job in self._jobs.values()
            if job.not_before is not None
            and job.not_before <= now
            and (job.start_by is None or job.start_by > now)
            and job.namespace == scope.namespace
            and job.queue in scope.queues
            and (scope.kinds is None or job.kind in scope.kinds)
            and not has_unknown_word(job)
        ]

    def _queue(self, namespace: Namespace, name: QueueName) -> QueueState:
        state = self._queues.get((namespace, name), QueueState(name=name))
        live = sum(
            job.lease_id is not None and job.namespace == namespace and job.queue == name
            for job in self._jobs.values()
        )
        return replace(state, live=live)

    def due(self, *, limit: int) -> Loaded:
        """Jobs whose lease, or whose time to be started, is over; longest overdue first."""
        with self._lock:
            self._open()
            now = self._clock()
            overdue = [
                (since, job.id)
                for job in self._jobs.values()
                if (since := job.start_by if job.due_at is None else job.due_at) is not None
                and since <= now
                and (job.due_at is not None or job.not_before is not None)
            ]
            found = {job_id: self._jobs[job_id] for _, job_id in sorted(overdue)[:limit]}
            return Loaded(now, self._epoch, found)

    # --- queues, ticks, outages, epoch ---------------------------------------------------------

    def put_queue(
        self,
        namespace: Namespace,
        name: QueueName,
        *,
        paused: bool | None,
        limit: int | None,
        rate: Rate | UnsetType | None = UNSET,
    ) -> QueueState:
        """Change a queue's settings."""
        with self._lock:
            self._open()
            state = self._queues.get((namespace, name), QueueState(name=name))
            if paused is not None:
                state = replace(state, paused=paused)
            if limit is not None:
                state = replace(state, limit=limit or None)
            if rate is not UNSET:
                state = state.with_rate(rate, self._clock())
            self._queues[(namespace, name)] = state
            self._watchers.tell(Hint(HintedChange.READY, namespace, name))
            return self._queue(namespace, name)

    def list_kinds(
        self, namespace: Namespace, only: Sequence[Kind] | None = None
    ) -> list[KindSettings]:
        """Every kind that has settings, or `only` these."""
        with self._lock:
            self._open()
            found = [
                each
                for (space, kind), each in self._kinds.items()
                if space == namespace and (only is None or kind in only)
            ]
            return sorted(found, key=lambda each: each.kind)

    def list_rates(
        self, namespace: Namespace, queue: QueueName, kind: Kind, rate_key: str | None = None
    ) -> list[RateStanding]:
        """The rates that such jobs are under."""
        with self._lock:
            self._open()
            rates = rates_of(
                self._queues.get((namespace, queue)), self._kinds.get((namespace, kind)), rate_key
            )
            states = {meter: self._rate_states.get((namespace, meter)) for meter in rates}
            return standings(rates, states, self._clock())

    def put_kind(
        self, namespace: Namespace, change: KindChange, *, only_new: bool = False
    ) -> KindSettings:
        """Change a kind's settings."""
        with self._lock:
            self._open()
            before = self._kinds.get((namespace, change.kind))
            after = put_over(before, change, self._clock(), only_new=only_new)
            if after != before:
                self._kinds[namespace, change.kind] = after
                if changes_limits(before, after):
                    self._admission.set_again(namespace, change.kind, self._jobs)
                self._watchers.tell(None)
            return after

    def watch(self, on_hint: OnHint) -> Callable[[], None]:
        """Hear what is committed in this process."""
        self._open()
        return self._watchers.add(on_hint)

    def next_ready(self, namespace: Namespace, queues: Sequence[QueueName]) -> NextReady:
        """Whether these queues have a ready job, and when the next one will be."""
        with self._lock:
            self._open()
            now = self._clock()
            waits = [
                Duration(job.not_before - now)
                for job in self._jobs.values()
                if job.namespace == namespace and job.queue in queues and job.not_before is not None
            ]
            later = min((wait for wait in waits if wait > 0), default=None)
            return NextReady(any(wait <= 0 for wait in waits), later)

    def list_queues(
        self, namespace: Namespace, *, after: str = "", limit: int = NO_LIMIT
    ) -> list[QueueState]:
        """Every queue that has jobs or settings."""
        with self._lock:
            self._open()
            named = {name for space, name in self._queues if space == namespace}
            named |= {job.queue for job in self._jobs.values() if job.namespace == namespace}
            page = [name for name in sorted(named) if name > after][:limit]
            return [self._queue(namespace, name) for name in page]

    def tick(self) -> tuple[Instant | None, Instant]:
        """The highest tick before this one, and now."""
        with self._lock:
            self._open()
            before, now = self._tick, self._clock()
            self._tick = now if before is None else max(before, now)
            return before, now

    def record_outage(self, outage: Outage) -> None:
        """Remember an outage."""
        with self._lock:
            self._open()
            if outage not in self._outages:
                self._outages.append(outage)

    def outages(self, *, since: Instant) -> list[Outage]:
        """Outages that ended after `since`."""
        with self._lock:
            self._open()
            return [outage for outage in self._outages if outage.ended_at > since]

    def raise_epoch(self) -> Epoch:
        """Begin a new epoch."""
        with self._lock:
            self._open()
            self._epoch = Epoch(self._epoch + 1)
            return self._epoch

    # --- retention -----------------------------------------------------------------------------

    def prune_renewals(self, *, older_than_us: Duration, limit: int) -> PruneResult:
        """Delete old renewals of ended attempts, among the next `limit` ones."""
        with self._lock:
            self._open()
            after = self._last_renewal
            keys = sorted(
                (job_id, event.seq)
                for job_id, events in self._events.items()
                for event in events
                if event.event_class is EventClass.RENEWAL
                and (after is None or (job_id, event.seq) > after)
            )[:limit]
            hit_limit = len(keys) == limit
            self._last_renewal = keys[-1] if hit_limit else None
            until = Instant(self._clock() - older_than_us)
            return PruneResult(sum(self._prune(*key, until) for key in keys), hit_limit)

    def _prune(self, job_id: JobId, seq: int, until: Instant) -> bool:
        """Delete this renewal if it is old and its attempt has ended. Returns whether it did."""
        events = self._events[job_id]
        (renewal,) = (event for event in events if event.seq == seq)
        is_due = renewal.lease_id != self._jobs[job_id].lease_id and renewal.ts <= until
        if is_due:
            events.remove(renewal)
            self._tail = {at: event for at, event in self._tail.items() if event is not renewal}
        return is_due

    def expire_observations(self, *, older_than_us: Duration, limit: int) -> int:
        """Drop the bodies of old observations."""
        with self._lock:
            self._open()
            before = self._clock() - older_than_us
            expired = 0
            for position, seen in enumerate(self._observations):
                if seen.body is not None and seen.ts < before and expired < limit:
                    self._observations[position] = replace(seen, body=None)
                    expired += 1
            return expired

    def delete_sessions(self, *, older_than_us: Duration, limit: int) -> int:
        """Delete sessions that hold no lease and received nothing for this long, among the next
        `limit` ones."""
        with self._lock:
            self._open()
            after, before = self._last_session, self._clock() - older_than_us
            keys = sorted(
                (key for key in self._sessions if after is None or _order_of(key) > after),
                key=_order_of,
            )[:limit]
            self._last_session = _order_of(keys[-1]) if len(keys) == limit else None
            old = [
                key
                for key in keys
                if self._sessions[key].claimed_at < before and not self.load_leased(key).jobs
            ]
            for key in old:
                del self._sessions[key]
            return len(old)

    def delete_outages(self, *, older_than_us: Duration, limit: int) -> int:
        """Delete outages that ended this long ago and before every claim that is still leased."""
        with self._lock:
            self._open()
            now = self._clock()
            claimed = [job.claimed_at for job in self._jobs.values() if job.claimed_at is not None]
            first_claim = min(claimed, default=now)
            old = [
                outage
                for outage in self._outages
                if outage.ended_at < now - older_than_us and outage.ended_at <= first_claim
            ][:limit]
            self._outages = [outage for outage in self._outages if outage not in old]
            return len(old)

    def delete_idle_keys(self, *, limit: int) -> int:
        """Delete what is remembered of rate keys that have a whole burst."""
        with self._lock:
            self._open()
            now = self._clock()
            idle = [each for each, tat in self._rate_states.items() if each[1].key and tat <= now]
            for meter in idle[:limit]:
                del self._rate_states[meter]
            return len(idle[:limit])

    def purge(self, *, older_than_us: Duration, limit: int) -> int:
        """Delete terminal jobs past their retention, with everything that belongs to them."""
        with self._lock:
            self._open()
            now = self._clock()

            def is_due(job: Job) -> bool:
                keep_us = older_than_us if job.policy.keep_us is None else job.policy.keep_us
                return job.finished_at is not None and job.finished_at + keep_us < now  # [G7]

            made_by = {job.made_by_end_of for job in self._jobs.values()}  # [M4] [HK11]
            kept = made_by | self._kept_for_flows(is_due)
            finished = [
                (job.policy.keep_us is not None, job.finished_at, job.id)
                for job in self._jobs.values()
                if is_due(job)
                and (job.key_held_until is None or job.key_held_until <= now)  # [D15]
                and job.id not in kept
            ]
            gone = {job_id for *_, job_id in sorted(finished)[:limit]}
            self._keys = {key: holder for key, holder in self._keys.items() if holder not in gone}
            for job_id in gone:
                del self._jobs[job_id]
                del self._events[job_id]
            self._tail = {at: each for at, each in self._tail.items() if each.job_id not in gone}
            self._observations = [seen for seen in self._observations if seen.job_id not in gone]
            self._purge_flows(gone)
            self._purge_resolutions(gone)
            self._purge_artifacts(gone)
            self._purge_attempt_logs(gone)
            return len(gone)

    # --- reading -------------------------------------------------------------------------------

    def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """A page of jobs, newest first."""
        return self.find_jobs(wanted).jobs

    def find_jobs(self, wanted: JobFilter) -> FoundJobs:
        """A page of jobs, newest first, and where the next one begins."""
        with self._lock:
            self._open()
            return find_among(self._jobs.values(), wanted, resolved=self._resolutions)

    def count_events(self, span: EventSpan) -> EventCounts:
        """The number of events in a span, by type, kind and queue."""
        with self._lock:
            self._open()
            within = sorted(
                (event.ts, event.job_id, event.type)
                for events in self._events.values()
                for event in events
                if span.since <= event.ts < span.until
            )
            beyond = within[span.limit][0] if len(within) > span.limit else None
            until = page_end(span, beyond)
            counted = Counter(
                (job.queue, job.kind, type_)
                for ts, job_id, type_ in within
                if ts < until and (job := self._jobs[job_id]).namespace == span.namespace
            )
            counts = (
                EventCount(queue=queue, kind=kind, type=type_, events=events)
                for (queue, kind, type_), events in sorted(counted.items())
            )
            return EventCounts(until=until, counts=tuple(counts))

    def list_dead_letters(self, wanted: JobFilter) -> list[DeadLetter]:
        """A page of dead letters, newest first."""
        with self._lock:
            jobs = self.list_jobs(wanted)
            return [DeadLetter(job, self._resolutions.get(job.id)) for job in jobs]

    def list_events(self, wanted: EventFilter) -> EventPage:
        """A page of events, oldest or newest first."""
        with self._lock:
            self._open()
            found = [
                event
                for events in self._events.values()
                for event in events
                if wanted.job_id in (None, event.job_id)
                and (not wanted.types or any(each.accepts(event) for each in wanted.types))
                and wanted.correlation_id in (None, event.correlated_by)
                and (wanted.since is None or event.ts >= wanted.since)
                and (wanted.until is None or event.ts < wanted.until)
                and _is_on_a_later_page(event, wanted)
            ]
            read = sorted(found, key=key_of, reverse=wanted.newest_first)[: wanted.reads]
            shown = [event for event in read if self._is_within(event.job_id, wanted)]
            page = shown[: wanted.limit]
            last_read = key_of(read[-1]) if len(read) == wanted.reads else None
            return EventPage(events=tuple(page), next=next_key(page, last_read, wanted))

    def _is_within(self, job_id: JobId, scope: Scope) -> bool:
        job = self._jobs[job_id]
        return job.namespace == scope.namespace and scope.has(job.queue, job.kind)

    def tail_events(self, *, after: EventPosition | None, limit: int) -> list[TailedEvent]:
        """The next events in the order in which they were written. [E32]"""
        check_integer("limit", limit, low=1, high=MAX_TAILED)
        begin = _position(after)
        with self._lock:
            self._open()
            found = [(at, event) for at, event in self._tail.items() if at > begin]
        return [TailedEvent(EventPosition(str(at)), event) for at, event in found[:limit]]

    def follow_events(self, wanted: TailFilter, *, wait_us: Duration = NO_WAIT) -> TailPage:
        """The next events of one namespace in the order of the tail. [E10]"""
        begin = _position(wanted.after)
        with self._lock:
            self._open()
            read = [(at, event) for at, event in self._tail.items() if at > begin]
            if wanted.newest is not None:
                most, read = wanted.newest, read[-wanted.reads :]
            else:
                most, read = wanted.limit, read[: wanted.reads]
            found = [
                TailedEvent(EventPosition(str(at)), event)
                for at, event in read
                if wanted.accepts(event) and self._is_within(event.job_id, wanted)
            ]
        reached = EventPosition(str(read[-1][0] if read else begin))
        if wanted.newest is not None:
            newest = found[max(0, len(found) - most) :]
            return TailPage(events=tuple(newest), next=reached, is_end=True)
        if len(found) >= most:
            return TailPage(events=tuple(found[:most]), next=found[most - 1].position, is_end=False)
        return TailPage(events=tuple(found), next=reached, is_end=len(read) < wanted.reads)

    def records(self, *, page_size: int) -> Iterator[Record]:
        """Every job with its log, by id. A page is one snapshot; here a page is one job."""
        with self._lock:
            self._open()
            ids = sorted(self._jobs)
        for job_id in ids:
            record = self.load_record(job_id)
            if record is not None:
                yield record

    def load_record(self, job_id: JobId) -> Record | None:
        """One job with its log."""
        with self._lock:
            self._open()
            job, events = self._jobs.get(job_id), tuple(self._events.get(job_id, ()))
            observations = tuple(self._observations_of(job_id))
        return None if job is None else Record(job_id, job, events, observations)

    def live_keys(self) -> Iterator[tuple[DedupeKey, JobId]]:
        """The dedupe keys of live jobs in order."""
        with self._lock:
            self._open()
            held = [
                (key, job.id)
                for job in self._jobs.values()
                if job.finished_at is None and (key := _key_of(job)) is not None
            ]
        held.sort(key=lambda pair: (pair[0].namespace, pair[0].kind, pair[0].key, pair[1]))
        yield from held

    def rates_in_force(self) -> list[RateInForce]:
        """Every rate that is set."""
        with self._lock:
            self._open()
            found = [
                in_force(space, queue_meter(name), state)
                for (space, name), state in self._queues.items()
            ]
            found += [
                in_force(space, kind_meter(kind), settings)
                for (space, kind), settings in self._kinds.items()
            ]
            return [each for each in found if each is not None]

    def grants(self, *, since: Instant) -> Iterator[GrantMade]:
        """The grants after an instant, in the order in which they were written."""
        with self._lock:
            self._open()
            found = [
                (event, self._jobs[event.job_id], self._before(event))
                for event in self._tail.values()
                if event.type is EventType.CLAIMED and event.ts > since
            ]
        for event, job, before in found:
            yield GrantMade(
                job_id=job.id,
                seq=event.seq,
                ts=event.ts,
                namespace=job.namespace,
                queue=job.queue,
                kind=job.kind,
                rate_key=job.rate_key,
                before_ts=before,
            )

    def _before(self, event: Event) -> Instant | None:
        """When the event before this one in the log of its job was."""
        log = self._events[event.job_id]
        return next((each.ts for each in log if each.seq == event.seq - 1), None)

    def lease_holders(self) -> Iterator[tuple[str, JobId]]:
        """The ids of live leases in order."""
        with self._lock:
            self._open()
            held = [(job.lease_id, job.id) for job in self._jobs.values() if job.lease_id]
        yield from sorted(held)


def _order_of(key: SessionKey) -> _SessionOrder:
    return (key.namespace, key.worker, key.actor)


def _position(after: EventPosition | None) -> int:
    if after is not None and not after.isdecimal():
        raise InvalidInput(
            "after", f"{after[:60]!a} is not a position", hint="give one that this store returned"
        )
    return int(after or 0)


def _is_on_a_later_page(event: Event, wanted: EventFilter) -> bool:
    after = wanted.after
    if after is None:
        return True
    here = key_of(event)
    if wanted.job_id is not None:
        here = replace(here, ts=after.ts)  # of one job's events only the seq counts
    return here < after if wanted.newest_first else here > after


def _key_of(job: Job) -> DedupeKey | None:
    if job.dedupe_key is None:
        return None
    return DedupeKey(job.namespace, job.kind, job.dedupe_key)
