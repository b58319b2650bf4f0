"""A model of the store: what the databases must agree with in the differential test.

Written a second time and as simply as possible: dictionaries, whole scans, no statements. It has
what a coordinator asks for while it decides about jobs: rows, logs, claims in their order, keys,
rates, limits, the unblocking of flows, schedules and retention. It keeps no lists, counts, tokens,
workers, artifacts or rollups: of those the databases are compared with each other. It guards
nothing either, since the guards of the databases would refuse what it lets through.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from tenure import ports
from tenure.core import claims, flow_rows
from tenure.core.claims import ClaimPlan, ClaimScope, ClaimView, QueueState
from tenure.core.commands import Outage
from tenure.core.concurrency import KeyRules
from tenure.core.events import Event
from tenure.core.flow_rows import Edge, EdgeCheck
from tenure.core.ids import Epoch, FlowId, JobId, Kind, Namespace, QueueName, ScheduleName
from tenure.core.instants import Duration, Instant
from tenure.core.job import MADE_BY_AN_END, Job
from tenure.core.kind_settings import KindChange, KindSettings, changes_limits, put_over
from tenure.core.outcomes import Change, Session, SessionKey, session_of
from tenure.core.rates import NOTHING_GRANTED, Meter, kind_meter, queue_meter
from tenure.core.schedules import Schedule, ScheduleChange, fair_order, is_due
from tenure.core.verdicts import Resolution
from tenure.core.vocabulary import RENEWALS, JobStatus
from tenure.ports import DedupeKey, JobHistory, Loaded, Saved, Tick
from tests.conformance.model_of_keys import Admission

_K = TypeVar("_K")
_V = TypeVar("_V")


class Model:
    """Jobs in dictionaries. One thread at a time."""

    parallelism = 1

    def __init__(self, clock: ports.Clock) -> None:
        self.now = clock
        self._epoch = Epoch(1)
        self._jobs: dict[JobId, Job] = {}
        self._logs: dict[JobId, list[Event]] = {}
        self._resolutions: dict[JobId, Resolution] = {}
        self._holders: dict[DedupeKey, JobId] = {}
        self._sessions: dict[SessionKey, Session] = {}
        self._queues: dict[tuple[Namespace, QueueName], QueueState] = {}
        self._kinds: dict[tuple[Namespace, Kind], KindSettings] = {}
        self._rate_states: dict[tuple[Namespace, Meter], Instant] = {}
        self._rate_keyed: set[tuple[Namespace, QueueName, Kind]] = set()
        self._admission = Admission(self._jobs, self._rate_states)
        self._flows: dict[FlowId, flow_rows.FlowRow] = {}
        self._redrives: list[flow_rows.FlowRedrive] = []
        self._edges: dict[tuple[JobId, int], Edge] = {}  # by child and position
        self._checks: set[EdgeCheck] = set()
        self._schedules: dict[tuple[Namespace, ScheduleName], Schedule] = {}
        self._tick: Instant | None = None
        self._outages: list[Outage] = []
        # The objects of the port. Where two of them have a method of one name, they are apart.
        self.jobs = self.claims = self.settings = self.upkeep = self.audit = self
        self.events = SimpleNamespace(load=self.histories)
        self.flows = SimpleNamespace(
            load=self.flow,
            existing=lambda ids: frozenset(_of(self._flows, ids)),
            edges=self.edges,
            unblocked=self.unblocked,
            checks=self.edge_checks,
            delete_checks=self._checks.difference_update,
        )
        self.schedules = SimpleNamespace(
            load=self.schedule, due=self.due_schedules, save=self.save_schedule
        )

    def close(self) -> None:
        """Nothing to let go of."""

    def raise_epoch(self) -> Epoch:
        self._epoch = Epoch(self._epoch + 1)
        return self._epoch

    # --- loading -------------------------------------------------------------------------------

    def load(self, wanted: ports.JobsWanted, *, bodies: bool = True) -> Loaded:
        match wanted:
            case ports.DueJobs(limit):
                ids = self._due()[:limit]
            case ports.LeasedJobs(session):
                leased = [job for job in self._jobs.values() if job.lease_id is not None]
                ids = [job.id for job in leased if session_of(job) == session]
            case ports.KeyHolders(keys):
                ids = list(_of(self._holders, keys).values())
            case _:
                ids = list(wanted)
        found = _of(self._jobs, ids)
        if not bodies:
            found = {job.id: job.without_bodies for job in found.values()}
        return Loaded(self.now(), self._epoch, found)

    def read(self, ids: Sequence[JobId], *, bodies: bool = True) -> dict[JobId, Job]:
        return self.load(ids, bodies=bodies).jobs

    def _due(self) -> list[JobId]:
        """Jobs whose lease, or whose time to be started, is over; longest overdue first."""
        overdue = []
        for job in self._jobs.values():
            waits_until = None if job.not_before is None else job.start_by
            since = waits_until if job.due_at is None else job.due_at
            if since is not None and since <= self.now():
                overdue.append((since, job.id))
        return [job_id for _, job_id in sorted(overdue)]

    def histories(
        self, ids: Sequence[JobId], *, latest: int | None = None
    ) -> dict[JobId, list[Event]]:
        found = {job_id: list(self._logs.get(job_id, ())) for job_id in ids}
        if latest is None:
            return found
        for job_id, log in found.items():
            decisive = [event for event in log if event.type not in RENEWALS]
            found[job_id] = [*decisive[:1], *decisive[1:][-latest:]]
        return found

    def records(self, *, page_size: int) -> Iterator[JobHistory]:
        return (JobHistory(each, job, self._logs[each]) for each, job in sorted(self._jobs.items()))

    def resolutions(self, ids: Sequence[JobId]) -> dict[JobId, Resolution]:
        return _of(self._resolutions, ids)

    # --- saving --------------------------------------------------------------------------------

    def save(
        self, changes: Iterable[Change], *, epoch: Epoch, window: ports.ClockWindow = ports.ANY_TIME
    ) -> Saved:
        now, applied = self.now(), set()
        for change in changes if epoch == self._epoch and window.has(now) else ():
            if self._matches(change, now):
                self._write(change)
                applied.add(change.job.id)
        return Saved(now, frozenset(applied))

    def save_locked(
        self,
        ids: Sequence[JobId],
        sessions: Sequence[SessionKey],
        decide: Callable[[ports.Locked], Sequence[Change]],
    ) -> Saved:
        found, known = _of(self._jobs, ids), _of(self._sessions, sessions)
        locked = ports.Locked(
            self.now(), self._epoch, found, sessions=known, load_histories=self.histories
        )
        return self.save(decide(locked), epoch=self._epoch)

    def _matches(self, change: Change, now: Instant) -> bool:
        present, letter = self._jobs.get(change.job.id), change.resolution
        if change.not_after is not None and now >= change.not_after:
            return False
        if letter is not None and not self._is_unresolved(letter.job_id):
            return False
        if change.expected_rev:
            return present is not None and present.rev == change.expected_rev
        key = _key_of(change.job)
        holder = None if key is None else self._holders.get(key)
        is_free = holder in (None, change.takes_key_from)
        return present is None and is_free and all(each in self._jobs for each in change.needed)

    def _write(self, change: Change) -> None:
        job, key = change.job, _key_of(change.job)
        self._jobs[job.id] = job
        self._admission.written(change)
        self._logs.setdefault(job.id, []).extend(change.events)
        if job.rate_key is not None:
            self._rate_keyed.add((job.namespace, job.queue, job.kind))
        if key is not None and job.finished_at is None:
            self._holders[key] = job.id
        elif key is not None and job.unique_for_us is None and self._holders.get(key) == job.id:
            del self._holders[key]
        for spawned in change.spawned:
            self._write(spawned)
        self.resolve(change.resolutions if change.resolution is None else [change.resolution])
        self._write_flow(change)

    def observe(self, observations: Sequence[object]) -> list[object]:
        """Decisions do not read them: those of the databases are compared with each other."""
        return []

    def _is_unresolved(self, job_id: JobId) -> bool:
        return job_id in self._jobs and job_id not in self._resolutions

    def resolve(self, resolutions: Iterable[Resolution]) -> frozenset[JobId]:
        new = {each.job_id: each for each in resolutions if self._is_unresolved(each.job_id)}
        self._resolutions |= new
        return frozenset(new)

    # --- claiming ------------------------------------------------------------------------------

    def claim(
        self,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
    ) -> ClaimPlan:
        now, space = self.now(), scope.namespace
        kinds = {kind: each for (of, kind), each in self._kinds.items() if of == space}
        rules = KeyRules(kinds, now)
        queues = {name: self._queue(space, name) for name in scope.queues}
        open_queues = {name for name, state in queues.items() if not state.paused}
        paused = set(map(queue_meter, queues.keys() - open_queues))  # their rates do not matter
        self._admission.run(scope, rules, open_queues, now)
        here = [
            job
            for job in self._jobs.values()
            if job.not_before is not None
            and (job.namespace, job.queue in scope.queues) == (space, True)
        ]
        ready = [job for job in here if _is_ready(job, scope, now)]
        asked = scope.kinds or {job.kind for job in here}
        view = ClaimView(
            now=now,
            epoch=self._epoch,
            sessions=_of(self._sessions, sessions),
            queues=queues,
            candidates=(),
            kinds={k: each for k, each in kinds.items() if each.rate is not None and k in asked},
            rate_states={
                meter: tat
                for (of, meter), tat in self._rate_states.items()
                if of == space and meter not in paused
            },
        )
        found = self._admission.in_claim_order(ready, now)
        found = claims.first_with_room(found, view.room, wanted=wanted)
        usable = claims.usable_candidates(map(claims.body_bytes, found), claims=len(sessions))
        waits = self._key_waits(scope, ready, view)
        planned = plan(replace(view, candidates=found[:usable], key_waits=waits))
        self._sessions |= {session.key: session for session in planned.sessions}
        self._rate_states |= {(space, meter): tat for meter, tat in planned.rate_states.items()}
        states = view.rate_states | planned.rate_states
        for change in planned.changes:
            self._write(change)
            self._admission.granted(change.job, rules, states)
        return planned

    def _key_waits(
        self, scope: ClaimScope, ready: Sequence[Job], view: ClaimView
    ) -> dict[Kind, Duration]:
        """The kinds with rate keys, and how long until the first job that waits for such a rate may
        be granted."""
        known = (each for each in self._rate_keyed if each[0] == scope.namespace)
        waits = {kind: Duration(0) for _, queue, kind in known if queue in scope.queues}
        for job in ready:
            rate = view.kinds[job.kind].rate if job.kind in view.kinds else None
            if job.rate_key is not None and rate is not None:
                meter = kind_meter(job.kind, job.rate_key)
                wait = rate.wait_us(view.rate_states.get(meter, NOTHING_GRANTED), view.now)
                waits[job.kind] = min(wait, waits[job.kind] or wait) if wait else waits[job.kind]
        return waits

    def _queue(self, namespace: Namespace, name: QueueName) -> QueueState:
        state = self._queues.get((namespace, name), QueueState(name=name))
        here = [
            job for job in self._jobs.values() if (job.namespace, job.queue) == (namespace, name)
        ]
        return replace(state, live=sum(job.lease_id is not None for job in here))

    # --- settings, ticks, outages --------------------------------------------------------------

    def put_queue(
        self, namespace: Namespace, name: QueueName, *, rate: Any = UNSET, **given: Any
    ) -> QueueState:
        state = self._queues.get((namespace, name), QueueState(name=name))
        if given["paused"] is not None:
            state = replace(state, paused=given["paused"])
        if given["limit"] is not None:
            state = replace(state, limit=given["limit"] or None)
        self._queues[namespace, name] = (
            state if rate is UNSET else state.with_rate(rate, self.now())
        )
        return self._queue(namespace, name)

    def put_kind(
        self, namespace: Namespace, change: KindChange, *, only_new: bool = False
    ) -> KindSettings:
        before = self._kinds.get((namespace, change.kind))
        after = put_over(before, change, self.now(), only_new=only_new)
        if after != before:
            self._kinds[namespace, change.kind] = after
            if changes_limits(before, after):
                self._admission.set_again(namespace, change.kind)
        return after

    def kinds(self, namespace: Namespace, only: Sequence[Kind]) -> list[KindSettings]:
        return list(_of(self._kinds, [(namespace, kind) for kind in sorted(only)]).values())

    def tick(self, *, after: Instant | None = None) -> Tick:
        before, now = self._tick, self.now()
        if after not in (None, before):
            return Tick(before=before, now=now)
        self._tick = max(before or now, now)
        return Tick(before=before, now=now, written=self._tick)

    def record_outage(self, outage: Outage) -> None:
        if outage not in self._outages:
            self._outages.append(outage)

    def outages(self, *, since: Instant) -> list[Outage]:
        return [each for each in self._outages if each.ended_at > since]

    # --- flows ---------------------------------------------------------------------------------

    def flow(self, namespace: Namespace, flow_id: FlowId) -> flow_rows.FlowView | None:
        flow = self._flows.get(flow_id)
        if flow is None or flow.namespace != namespace:
            return None
        members = [job for _, job in sorted(self._jobs.items()) if job.flow_id == flow_id]
        redrives = tuple(each for each in self._redrives if each.flow_id == flow_id)
        steps = tuple(map(self._flow_step, members))
        return flow_rows.FlowView(flow=flow, steps=steps, redrives=redrives)

    def _flow_step(self, job: Job) -> flow_rows.FlowStep:
        return flow_rows.FlowStep(
            job_id=job.id,
            step=job.flow_step or "",
            kind=job.kind,
            queue=job.queue,
            status=job.status,
            after=tuple(edge.step for edge in self.edges([job.id])),
            replaces=flow_rows.replaced_job_id(job.origin_id, job.origin_cause),
        )

    def edges(self, children: Sequence[JobId] | None = None) -> list[Edge]:
        """By child and position."""
        found = sorted(self._edges.items())
        return [edge for (child, _), edge in found if children is None or child in children]

    def _write_flow(self, change: Change) -> None:
        if change.flow is not None:
            self._flows[change.flow.id] = change.flow
        if change.redrive is not None:
            self._redrives.append(change.redrive)
        self._edges |= {(edge.child_id, edge.position): edge for edge in change.edges}
        outside = {edge.child_id for edge in change.edges if edge.is_outside}
        self._mark_edges(lambda edge: edge.is_outside and edge.child_id in outside)
        self._note_checks(outside)
        if change.ends_member:
            self._note_checks(self._mark_edges(lambda edge: edge.parent_id == change.job.id))

    def _mark_edges(self, wanted: Callable[[Edge], bool]) -> set[JobId]:
        """Copy the status of parents that have ended to these edges. Returns the parents of the
        edges that were marked."""
        marked = set()
        for place, edge in self._edges.items():
            parent = self._jobs.get(edge.parent_id)
            if edge.outcome is None and wanted(edge) and parent and parent.finished_at is not None:
                self._edges[place] = replace(edge, outcome=parent.status)
                marked.add(parent.id)
        return marked

    def _note_checks(self, ids: Iterable[JobId]) -> None:
        now = self.now()
        self._checks |= {EdgeCheck(job_id, now) for job_id in ids}

    def edge_checks(self, *, limit: int, of: Sequence[JobId] | None = None) -> list[EdgeCheck]:
        if of is None:
            self._note_checks(self._mark_edges(lambda edge: edge.is_outside))
        found = [each for each in self._checks if of is None or each.job_id in of]
        return sorted(found, key=lambda each: (each.noted_at, each.job_id))[:limit]

    def unblocked(self, ids: Sequence[JobId], *, limit: int) -> flow_rows.UnblockedJobs:
        near = {edge.child_id for edge in self._edges.values() if edge.parent_id in ids} | set(ids)
        found = []
        for job in _of(self._jobs, sorted(near)).values():
            edges = self.edges([job.id] if job.status is JobStatus.WAITING else [])
            broken = next((edge for edge in edges if edge.is_broken), None)
            if broken is not None:
                found.append(flow_rows.Unblocked(job.id, broken.parent_id, broken.outcome))
            elif edges and all(edge.is_met for edge in edges):
                found.append(flow_rows.Unblocked(job.id))
        return flow_rows.UnblockedJobs(tuple(found[:limit]), len(found) >= limit)

    # --- schedules -----------------------------------------------------------------------------

    def schedule(self, namespace: Namespace, name: ScheduleName) -> ports.LoadedSchedule:
        return ports.LoadedSchedule(self.now(), self._epoch, self._schedules.get((namespace, name)))

    def due_schedules(self, *, limit: int) -> ports.DueSchedules:
        now, schedules = self.now(), self._schedules
        times = sorted((each.next_at, key) for key, each in schedules.items() if each.next_at)
        due = [schedules[key] for _, key in times if is_due(schedules[key], now)]
        first = tuple(each.without_payload for each in fair_order(due)[:limit])
        next_in_us = Duration(max(0, times[0][0] - now)) if times else None
        return ports.DueSchedules(now, self._epoch, first, next_in_us)

    def save_schedule(self, change: ScheduleChange, *, epoch: Epoch) -> bool:
        key = (change.schedule.namespace, change.schedule.name)
        before = self._schedules.get(key)
        if epoch != self._epoch or change.expected_rev != (before.rev if before else 0):
            return False
        if change.job is not None:
            self.save([change.job], epoch=epoch)  # a job of this id stays unchanged
        self._schedules[key] = change.schedule
        return True

    # --- retention -----------------------------------------------------------------------------

    def delete(
        self, what: ports.Deletable, *, older_than_us: Duration, limit: int
    ) -> ports.PruneResult:
        """The differential test never has as many rows as the limit."""
        delete = {"renewals": self._prune_renewals, "jobs": self._purge}[what]
        return ports.PruneResult(delete(older_than_us), hit_limit=False)

    def _prune_renewals(self, older_than_us: Duration) -> int:
        until, before = self.now() - older_than_us, sum(map(len, self._logs.values()))
        for job_id, log in self._logs.items():
            lease_id = self._jobs[job_id].lease_id
            self._logs[job_id] = [
                event
                for event in log
                if event.type not in RENEWALS or event.lease_id == lease_id or event.ts > until
            ]
        return before - sum(map(len, self._logs.values()))

    def _purge(self, older_than_us: Duration) -> int:
        """Terminal jobs past their retention, unless something still needs them. [T26]"""
        now, jobs = self.now(), self._jobs
        due = set()
        for job in jobs.values():
            keep_us = older_than_us if job.policy.keep_us is None else job.policy.keep_us
            if job.finished_at is not None and job.finished_at + keep_us < now:  # [G7]
                due.add(job.id)
        flows = {job.flow_id for job in jobs.values() if job.flow_id and job.id not in due}
        members = {job.id for job in jobs.values() if job.flow_id in flows}  # [FL6]
        parents = {edge.parent_id for edge in self._edges.values() if edge.child_id in members}
        made_by_ends = (job for job in jobs.values() if job.origin_cause in MADE_BY_AN_END)
        origins = {job.origin_id for job in made_by_ends}  # [M4] [HK11]
        keyed = {job.id for job in jobs.values() if (job.key_free_at or 0) > now}  # [D15]
        gone = due - members - parents - origins - keyed
        for job_id in gone:
            del self._jobs[job_id], self._logs[job_id]
            self._resolutions.pop(job_id, None)
        self._holders = {key: job for key, job in self._holders.items() if job not in gone}
        self._edges = {key: edge for key, edge in self._edges.items() if key[0] not in gone}
        self._checks -= {each for each in self._checks if each.job_id in gone}
        named = {job.flow_id for job in self._jobs.values()}
        self._flows = {key: flow for key, flow in self._flows.items() if key in named}
        return len(gone)


def _of(found: dict[_K, _V], keys: Iterable[_K]) -> dict[_K, _V]:
    return {key: found[key] for key in keys if key in found}


def _key_of(job: Job) -> DedupeKey | None:
    return None if job.dedupe_key is None else ports.dedupe_key_of(job)


def _is_ready(job: Job, scope: ClaimScope, now: Instant) -> bool:
    return (
        job.not_before is not None
        and job.not_before <= now
        and (job.start_by is None or job.start_by > now)
        and (scope.kinds is None or job.kind in scope.kinds)
    )
