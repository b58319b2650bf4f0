"""Stores that are wrong on purpose, one rule each. The kit must catch every one of them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from tenure.core.artifacts import Artifact, ArtifactUpload, ArtifactUsage, AttemptOutput, Staging
from tenure.core.claims import (
    ClaimPlan,
    ClaimScope,
    ClaimView,
    GrantRoom,
    QueueState,
    claim_order,
)
from tenure.core.commands import Outage
from tenure.core.concurrency import Key, KeyRules
from tenure.core.events import MAX_DECISION_EVENTS, Event
from tenure.core.ids import Epoch, JobId, Namespace, QueueName, ScheduleName
from tenure.core.instants import Duration, Instant
from tenure.core.job import Job
from tenure.core.outcomes import Change, SessionKey
from tenure.core.tokens import TokenId
from tenure.core.verdicts import Observation, Resolution
from tenure.core.views.event_counts import EventCounts, EventSpan
from tenure.core.views.events import EventFilter, EventPage, TailFilter, TailPage
from tenure.core.views.job_search import Scope
from tenure.core.views.rollups import Fold
from tenure.core.vocabulary import Cause, EventClass, EventType
from tenure.core.workers import WorkerProcess
from tenure.ports import (
    ANY_TIME,
    NO_WAIT,
    Clock,
    ClockWindow,
    HealthFact,
    Loaded,
    Locked,
    Measures,
    PruneResult,
    Saved,
    Store,
)
from tenure.stores.host_clock import host_clock
from tenure_conformance.harness import MemoryFactory
from tests.conformance.reference.admission import Admission
from tests.conformance.reference.store import ReferenceStore


class IgnoresNotAfter(ReferenceStore):
    """Writes a report after its lease has ended. [K2]"""

    def _matches(self, change: Change, now: Instant) -> bool:
        return super()._matches(replace(change, not_after=None), now)


class OneMicrosecondLate(ReferenceStore):
    """Takes the instant of the end as still in time. [L9]"""

    def _matches(self, change: Change, now: Instant) -> bool:
        return super()._matches(change, Instant(now - 1))


class IgnoresRev(ReferenceStore):
    """The last writer wins. [K1]"""

    def _matches(self, change: Change, now: Instant) -> bool:
        present = self._jobs.get(change.job.id)
        if present is not None and change.expected_rev:
            change = replace(change, expected_rev=present.rev)
        return super()._matches(change, now)


class OneMoreRoom(KeyRules):
    def room(self, key: Key, uses: int | None) -> int:
        return super().room(key, uses) + 1


class RunsTwoOfAKey(ReferenceStore):
    """Counts the live leases of a concurrency key too low by one. [CK3]"""

    def _key_rules(self, namespace: Namespace, now: Instant) -> KeyRules:
        return OneMoreRoom(super()._key_rules(namespace, now)._kinds, now)


class LeasesOfAllKinds(Admission):
    def leases(self, key: Key, mine: Iterable[Job], jobs: Iterable[Job]) -> int:
        return sum(job.lease_id is not None and job.concurrency_key == key.key for job in jobs)


class SharesConcurrencyKeys(ReferenceStore):
    """Counts the leases of equal keys of all kinds. [CK1]"""

    def __init__(self, *, clock: Clock = host_clock) -> None:
        super().__init__(clock=clock)
        self._admission = LeasesOfAllKinds()


class CountsRateKeysTogether(ReferenceStore):
    """Has one state for all rate keys of a kind. [RL11]"""

    def claim(self, *args: Any) -> ClaimPlan:
        planned = super().claim(*args)
        latest = {
            (space, meter.scope, meter.name): tat
            for (space, meter), tat in self._rate_states.items()
        }
        for space, meter in self._rate_states:
            self._rate_states[space, meter] = latest[space, meter.scope, meter.name]
        return planned


class ForgetsRateKeysTooEarly(ReferenceStore):
    """Removes the state of a rate key that has not got its burst back. [RL13]"""

    def delete_idle_keys(self, *, limit: int) -> int:
        idle = [each for each in self._rate_states if each[1].key][:limit]
        for each in idle:
            del self._rate_states[each]
        return len(idle)


class WithoutTurns(Admission):
    def order(self, job: Job) -> tuple[int, int, int, str]:
        priority, run_at, job_id = claim_order(job)
        return (priority, run_at, run_at, job_id)


class GivesOldJobsThePlaceOfTheirEnqueue(ReferenceStore):
    """Grants the jobs of a key that was at its limit before those that came meanwhile. [CK13]"""

    def __init__(self, *, clock: Clock = host_clock) -> None:
        super().__init__(clock=clock)
        self._admission = WithoutTurns()


class ExceedsTheLimit(ReferenceStore):
    """Counts live leases too low by one. [Z3]"""

    def _queue(self, namespace: Namespace, name: QueueName) -> QueueState:
        state = super()._queue(namespace, name)
        return replace(state, live=max(0, state.live - 1))


class ForgetsRates(ReferenceStore):
    """Forgets what was granted under a rate. [RL1]"""

    def claim(
        self,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
    ) -> ClaimPlan:
        self._rate_states.clear()
        return super().claim(scope, sessions, wanted, plan)


class ForgetsEvents(ReferenceStore):
    """Writes the row and not its start. [K3]"""

    def _write(self, change: Change) -> None:
        kept = tuple(event for event in change.events if event.type is not EventType.STARTED)
        super()._write(replace(change, events=kept))


class ForgetsSpawnedJobs(ReferenceStore):
    """Writes the row and not the job that came with it. [K3]"""

    def _write(self, change: Change) -> None:
        super()._write(replace(change, spawned=()))


class IgnoresTheEpoch(ReferenceStore):
    """Takes changes that were decided before a fail-over. [A5]"""

    def save(
        self, changes: Iterable[Change], *, epoch: Epoch, window: ClockWindow = ANY_TIME
    ) -> Saved:
        return super().save(changes, epoch=self._epoch, window=window)


class TrustsAnyEstimate(ReferenceStore):
    """Takes changes that were decided by a wrong estimate of its clock. [K11]"""

    def save(
        self, changes: Iterable[Change], *, epoch: Epoch, window: ClockWindow = ANY_TIME
    ) -> Saved:
        return super().save(changes, epoch=epoch)


class GrantsFromPausedQueues(ReferenceStore):
    """Forgets that a queue is paused. [Z2]"""

    def _queue(self, namespace: Namespace, name: QueueName) -> QueueState:
        return replace(super()._queue(namespace, name), paused=False)


class IgnoresKinds(ReferenceStore):
    """Grants kinds that a worker cannot run. [Z1]"""

    def _candidates(
        self, scope: ClaimScope, wanted: int, now: Instant, room: GrantRoom
    ) -> list[Job]:
        return super()._candidates(replace(scope, kinds=None), wanted, now, room)


class FirstComeFirstServed(ReferenceStore):
    """Has no use for priorities. [Z1]"""

    def _candidates(
        self, scope: ClaimScope, wanted: int, now: Instant, room: GrantRoom
    ) -> list[Job]:
        found = super()._candidates(scope, wanted, now, room)
        return sorted(found, key=lambda job: job.id)


class HoldsReadyJobsBack(ReferenceStore):
    """Compares the place of a job with the clock, as if every job had a delay. [Z6]"""

    def _candidates(
        self, scope: ClaimScope, wanted: int, now: Instant, room: GrantRoom
    ) -> list[Job]:
        found = super()._candidates(scope, wanted, now, room)
        return [job for job in found if job.run_at is not None and job.run_at <= now]


class TakesJumpsForOutages(ReferenceStore):
    """Forgets what an outage was. [O12]"""

    def record_outage(self, outage: Outage) -> None:
        super().record_outage(replace(outage, is_jump=False))


class KeepsEveryObservation(ReferenceStore):
    """Lets a stray worker fill the disk. [U1]"""

    def _keep_observations(self, observations: Sequence[Observation]) -> list[Observation]:
        self._observations.extend(observations)
        return list(observations)


class PrunesTransitions(ReferenceStore):
    """Takes a start for a renewal. [E3]"""

    def prune_renewals(self, *, older_than_us: Duration, limit: int) -> PruneResult:
        for events in self._events.values():
            events[:] = [event for event in events if event.type is not EventType.STARTED]
        return super().prune_renewals(older_than_us=older_than_us, limit=limit)


class PrunesTheLiving(ReferenceStore):
    """Prunes renewals while their attempt is live. [G1]"""

    def prune_renewals(self, *, older_than_us: Duration, limit: int) -> PruneResult:
        pruned = 0
        for events in self._events.values():
            kept = [event for event in events if event.event_class is EventClass.TRANSITION]
            pruned += len(events) - len(kept)
            events[:] = kept
        return PruneResult(pruned, hit_limit=False)


class PrunesOnlyTheFirstPage(ReferenceStore):
    """Begins from the first renewal every time; behind a page of live ones nothing goes. [G4]"""

    def prune_renewals(self, *, older_than_us: Duration, limit: int) -> PruneResult:
        self._last_renewal = None
        return super().prune_renewals(older_than_us=older_than_us, limit=limit)


class ForgetsWhoHoldsALease(ReferenceStore):
    """Has no look at leases before it forgets a session. [Q7]"""

    def delete_sessions(self, *, older_than_us: Duration, limit: int) -> int:
        before = self._clock() - older_than_us
        old = [key for key, seen in self._sessions.items() if seen.claimed_at < before][:limit]
        for key in old:
            del self._sessions[key]
        return len(old)


class ForgetsOutagesThatExcuse(ReferenceStore):
    """Has no look at leases before it forgets an outage. [O4]"""

    def delete_outages(self, *, older_than_us: Duration, limit: int) -> int:
        before = self._clock() - older_than_us
        old = [outage for outage in self._outages if outage.ended_at < before][:limit]
        self._outages = [outage for outage in self._outages if outage not in old]
        return len(old)


class PurgesTooEarly(ReferenceStore):
    """Counts retention from the enqueue. [T26]"""

    def purge(self, *, older_than_us: Duration, limit: int) -> int:
        before = self._clock() - older_than_us
        gone = [job_id for job_id, job in self._jobs.items() if job.enqueued_at < before]
        for job_id in gone[:limit]:
            del self._jobs[job_id]
            del self._events[job_id]
        return len(gone[:limit])


class SweepsInAnyOrder(ReferenceStore):
    """Shows overdue jobs by id. [W1]"""

    def due(self, *, limit: int) -> Loaded:
        due = super().due(limit=1_000_000)
        return Loaded(due.now, due.epoch, dict(sorted(due.jobs.items())[:limit]))


class SharesKeysAcrossKinds(ReferenceStore):
    """Compares dedupe keys and forgets the kind. [D5]"""

    def _matches(self, change: Change, now: Instant) -> bool:
        taken = {job.dedupe_key for job in self._jobs.values() if job.finished_at is None}
        is_taken = change.expected_rev == 0 and change.job.dedupe_key in taken - {None}
        return not is_taken and super()._matches(change, now)


class FreesEveryKey(ReferenceStore):
    """Frees a job's key when the job ends, whatever the job says. [D13]"""

    def _write(self, change: Change) -> None:
        super()._write(change)
        if change.job.finished_at is not None:
            self._keys = {key: job for key, job in self._keys.items() if job != change.job.id}


class PurgesHolders(ReferenceStore):
    """Purges a job whose key stays taken. [D15]"""

    def purge(self, *, older_than_us: Duration, limit: int) -> int:
        for job in self._jobs.values():
            if job.finished_at is not None:
                self._jobs[job.id] = replace(job, unique_for_us=None)
        return super().purge(older_than_us=older_than_us, limit=limit)


class DecidesWithoutLocking(ReferenceStore):
    """Reads, decides and saves one after the other, and lets others in between. [K9]"""

    def save_locked(
        self,
        ids: Sequence[JobId],
        sessions: Sequence[SessionKey],
        decide: Callable[[Locked], Sequence[Change]],
    ) -> Saved:
        loaded = self.load(ids)
        locked = Locked(
            loaded.now,
            loaded.epoch,
            loaded.jobs,
            sessions={key: self._sessions[key] for key in sessions if key in self._sessions},
            load_histories=self.load_histories,
        )
        return self.save(decide(locked), epoch=loaded.epoch)


class FoldsTwice(ReferenceStore):
    """Saves a fold though another process has folded the same events. [OB33]"""

    def save_fold(self, fold: Fold) -> bool:
        return super().save_fold(replace(fold, expected=self._fold_progress.position))


class ForgetsHowFarItFolded(ReferenceStore):
    """Counts events beside the rollups that are in them. [OB34]"""

    def save_fold(self, fold: Fold) -> bool:
        before = self._fold_progress.position
        was_saved = super().save_fold(fold)
        self._fold_progress = replace(self._fold_progress, position=before)
        return was_saved


class ForgetsRepeats(ReferenceStore):
    """Does not remember that a claim came again. [Q8]"""

    def claim(
        self,
        scope: ClaimScope,
        sessions: Sequence[SessionKey],
        wanted: int,
        plan: Callable[[ClaimView], ClaimPlan],
    ) -> ClaimPlan:
        planned = super().claim(scope, sessions, wanted, plan)
        for session in planned.sessions:
            self._sessions[session.key] = replace(session, is_repeated=False)
        return planned


class RedrivesTwice(ReferenceStore):
    """Makes the new job though the dead letter has been resolved meanwhile. [B17]"""

    def _matches(self, change: Change, now: Instant) -> bool:
        return super()._matches(replace(change, resolution=None), now)


class LastResolutionWins(ReferenceStore):
    """Lets a later redrive overwrite what became of a dead letter. [B1]"""

    def _keep_resolution(self, resolution: Resolution) -> bool:
        self._resolutions.pop(resolution.job_id, None)
        return super()._keep_resolution(resolution)


class ForgetsTheRedriven(ReferenceStore):
    """Writes the new job and not what it resolves. [B17]"""

    def _write(self, change: Change) -> None:
        super()._write(replace(change, resolution=None))


class ShowsWhatIsOnlyStaged(ReferenceStore):
    """Shows artifacts before their attempt has succeeded."""

    def list_artifacts(self, job_id: JobId) -> list[Artifact]:
        staged = sorted(self._artifacts.items())
        return [stored.artifact for key, stored in staged if key[0] == job_id]


class StagesAfterTheEnd(ReferenceStore):
    """Takes an artifact of a lease that has just ended. [B7]"""

    def stage_artifact(self, upload: ArtifactUpload) -> Staging:
        clock = self._clock
        self._clock = lambda: Instant(clock() - 1)
        try:
            return super().stage_artifact(upload)
        finally:
            self._clock = clock


class CollectsTheSeen(ReferenceStore):
    """Takes every artifact of a job that does not run for a leftover. [B10]"""

    def _is_leftover(self, key: tuple[JobId, int, str]) -> bool:
        return self._jobs[key[0]].lease_id is None


class ForgetsNamespaceQuotas(ReferenceStore):
    """Says of every namespace that it has no artifacts. [B28]"""

    def _artifact_usage(self, job: Job | None, name: str) -> ArtifactUsage:
        return replace(super()._artifact_usage(job, name), namespace_bytes=0)


class TakesTheLatestOutput(ReferenceStore):
    """Overwrites what an attempt said before. [B20]"""

    def put_attempt_log(self, output: AttemptOutput) -> Cause | None:
        self._log_parts.clear()
        return super().put_attempt_log(output)


class DrainsForEver(ReferenceStore):
    """Takes a new process for the one that was asked to stop. [B12]"""

    def see_worker(self, process: WorkerProcess) -> bool:
        return super().see_worker(replace(process, uptime_us=Duration(10**9)))


class CountsWithoutEnd(ReferenceStore):
    """Counts every job there is, however long that takes. [B27]"""

    def measure(self, *, queues: int, jobs: int, namespace: Namespace | None = None) -> Measures:
        return super().measure(queues=queues, jobs=len(self._jobs), namespace=namespace)


class DecidesOnTheWholeLog(ReferenceStore):
    """Loads every event there is to decide about a job. [J8]"""

    def load_decision_histories(
        self, ids: Sequence[JobId], *, events: int = MAX_DECISION_EVENTS
    ) -> dict[JobId, list[Event]]:
        return self.load_histories(ids)


class MeasuresByNameOnly(ReferenceStore):
    """Lets the namespace that comes first in the alphabet have all places. [B27]"""

    def measure(self, *, queues: int, jobs: int, namespace: Namespace | None = None) -> Measures:
        whole = super().measure(queues=10**6, jobs=jobs, namespace=namespace)
        return replace(
            whole,
            queues=whole.queues[:queues],
            left_out=max(0, len(whole.queues) - queues),
        )


class CountsTheEndOfASpan(ReferenceStore):
    """Counts what happened at the end of a span, which is where the next one begins. [B31]"""

    def count_events(self, span: EventSpan) -> EventCounts:
        counted = super().count_events(replace(span, until=Instant(span.until + 1)))
        return replace(counted, until=min(counted.until, span.until))


class ListsEverybodysEvents(ReferenceStore):
    """Shows the events of every namespace. [E9]"""

    def _is_within(self, job_id: JobId, scope: Scope) -> bool:
        return True


class FollowsEverybody(ListsEverybodysEvents):
    """Shows a follower the events of every namespace. [E10]"""


class GoesOnAfterTheLastEvent(ReferenceStore):
    """Lets a follower go on after the newest event, whatever it has shown. [E10]"""

    def follow_events(self, wanted: TailFilter, *, wait_us: Duration = NO_WAIT) -> TailPage:
        end = super().follow_events(replace(wanted, after=None, newest=0))
        return replace(super().follow_events(wanted), next=end.next)


class EndsWithAShortPage(ReferenceStore):
    """Takes a page that is not full for the last one. [E8]"""

    def list_events(self, wanted: EventFilter) -> EventPage:
        page = super().list_events(wanted)
        return page if len(page.events) == wanted.limit else replace(page, next=None)


class RevokesAgain(ReferenceStore):
    """Moves the end of a token to the latest time that somebody asked for it. [H20]"""

    def revoke_token(self, token_id: TokenId) -> tuple[ScheduleName, ...] | None:
        token = self._tokens.get(token_id)
        if token is not None:
            self._tokens[token_id] = replace(token, revoked_at=None)
        return super().revoke_token(token_id)


class PausesNothing(ReferenceStore):
    """Lets schedules of a revoked token go on firing. [SC24]"""

    def revoke_token(self, token_id: TokenId) -> tuple[ScheduleName, ...] | None:
        kept = dict(self._schedules)
        names = super().revoke_token(token_id)
        self._schedules = kept
        return names


class AnswersOneCallForEver(ReferenceStore):
    """Says how it is although it was closed."""

    def health(self) -> list[HealthFact]:
        closed, self._closed = self._closed, False
        try:
            return super().health()
        finally:
            self._closed = closed


WRONG: dict[type[ReferenceStore], str] = {
    IgnoresNotAfter: "saving",
    OneMicrosecondLate: "saving",
    IgnoresRev: "saving",
    ExceedsTheLimit: "queues",
    ForgetsRates: "rates",
    CountsRateKeysTogether: "rate_keys",
    ForgetsRateKeysTooEarly: "rate_keys",
    RunsTwoOfAKey: "concurrency_keys",
    GivesOldJobsThePlaceOfTheirEnqueue: "turns_of_keys",
    SharesConcurrencyKeys: "concurrency_keys",
    ForgetsEvents: "saving",
    ForgetsSpawnedJobs: "saving",
    IgnoresTheEpoch: "clock_and_epoch",
    TrustsAnyEstimate: "clock_and_epoch",
    GrantsFromPausedQueues: "queues",
    IgnoresKinds: "claiming",
    FirstComeFirstServed: "claiming",
    HoldsReadyJobsBack: "claiming",
    TakesJumpsForOutages: "clock_and_epoch",
    KeepsEveryObservation: "observations",
    PrunesTransitions: "retention",
    PrunesTheLiving: "retention",
    PrunesOnlyTheFirstPage: "retention",
    ForgetsWhoHoldsALease: "claiming",
    ForgetsOutagesThatExcuse: "clock_and_epoch",
    PurgesTooEarly: "retention",
    SweepsInAnyOrder: "sweeping",
    SharesKeysAcrossKinds: "dedupe",
    FreesEveryKey: "held_keys",
    PurgesHolders: "held_keys",
    DecidesWithoutLocking: "saving",
    FoldsTwice: "rollups",
    ForgetsHowFarItFolded: "rollups",
    ForgetsRepeats: "undelivered",
    RedrivesTwice: "dead_letters",
    LastResolutionWins: "dead_letters",
    ForgetsTheRedriven: "dead_letters",
    ShowsWhatIsOnlyStaged: "artifacts",
    StagesAfterTheEnd: "artifacts",
    CollectsTheSeen: "artifacts",
    ForgetsNamespaceQuotas: "artifacts",
    TakesTheLatestOutput: "attempt_logs",
    DrainsForEver: "workers",
    CountsWithoutEnd: "measures",
    MeasuresByNameOnly: "measures",
    DecidesOnTheWholeLog: "histories",
    CountsTheEndOfASpan: "event_counts",
    ListsEverybodysEvents: "event_pages",
    EndsWithAShortPage: "event_pages",
    FollowsEverybody: "following",
    GoesOnAfterTheLastEvent: "following",
    RevokesAgain: "tokens",
    PausesNothing: "schedules",
    AnswersOneCallForEver: "closing",
}
"""Each wrong store and the subject of the kit that must catch it."""


class Reference(MemoryFactory):
    """The factory of the reference store."""

    def make(self, clock: Clock) -> Store:
        return ReferenceStore(clock=clock)


class Wrong(MemoryFactory):
    """The factory of a wrong store."""

    def __init__(self, kind: type[ReferenceStore] = ForgetsEvents) -> None:
        super().__init__()
        self._kind = kind

    def make(self, clock: Clock) -> Store:
        return self._kind(clock=clock)
