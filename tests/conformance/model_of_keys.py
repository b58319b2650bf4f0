"""The model's keys: in which lane each job with a key is, and which keys are dirty."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from tenure.core.claims import ClaimScope
from tenure.core.concurrency import (
    ADMISSION_LAPSES_US,
    Key,
    KeyedJob,
    KeyRules,
    Lane,
    admit,
    dirtied_by,
)
from tenure.core.ids import JobId, Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.outcomes import Change
from tenure.core.rates import Meter


class Mark(NamedTuple):
    """When a key must be decided about, and when a claim said so, if one did."""

    space: Namespace
    key: Key
    at: int
    noted_at: int = 0


class Admission:
    """The lanes of one store's jobs, each with when the job was admitted."""

    def __init__(
        self, jobs: Mapping[JobId, Job], states: dict[tuple[Namespace, Meter], Instant]
    ) -> None:
        self._jobs, self._states = jobs, states
        self._lanes: dict[JobId, tuple[Lane, Instant | None]] = {}
        self._dirty: set[Mark] = set()
        self._taken: set[Mark] = set()  # they count again if the clock is set back

    def written(self, change: Change) -> None:
        """A change was applied."""
        job = change.job
        self._lanes[job.id] = (_first_lane(job), None)
        self._dirty |= {Mark(job.namespace, *each) for each in dirtied_by(change)}

    def set_again(self, namespace: Namespace, kind: Kind) -> None:
        """Something else is set for a kind."""
        for job in self._jobs.values():
            if (job.namespace, job.kind) == (namespace, kind) and job.not_before is not None:
                self._dirty |= {Mark(namespace, key, 0) for key in keys_of(job)}
                self._lanes[job.id] = (_first_lane(job), None)

    def granted(self, job: Job, rules: KeyRules, states: Mapping[Meter, Instant]) -> None:
        """A claim has granted this job."""
        dirtied = rules.dirtied_by_grant(job, states)
        self._dirty |= {Mark(job.namespace, *each) for each in dirtied}

    def in_claim_order(self, ready: Iterable[Job], now: Instant) -> list[Job]:
        """The jobs among these that claims find. A delayed job that was admitted later than now, by
        a clock that was set back, is not found yet. [Z1] [CK13]"""
        found = []
        for job in ready:
            lane, admitted_at = self._lanes[job.id]
            if lane < Lane.WAITS_FOR_KEY and (not job.not_before or (admitted_at or 0) <= now):
                found.append((-job.priority, admitted_at or job.run_at, job.run_at, job.id, job))
        return [job for *_, job in sorted(found, key=lambda place: place[:4])]

    def run(
        self, scope: ClaimScope, rules: KeyRules, asked: AbstractSet[QueueName], now: Instant
    ) -> None:
        """Decide about the dirty keys of the kinds that a claim asks for. `asked` are its queues
        that are not paused."""
        space = scope.namespace
        keys = self._take(scope, now)
        for key in sorted(key for key in keys if not key.is_rate):
            leases = sum(job.lease_id is not None for job in self._jobs_of(space, key))
            keys |= self._decide(space, key, leases, rules, asked, now)
        for key in sorted(key for key in keys if key.is_rate):
            tat = self._states.get((space, key.meter))
            corrected = rules.corrected(key, tat)
            if corrected is not None and corrected > now:
                self._states[space, key.meter] = corrected
            self._decide(space, key, tat, rules, asked, now)

    def _take(self, scope: ClaimScope, now: Instant) -> set[Key]:
        """Take the marks that are due. After the clock was set back, those of delayed jobs that
        were taken count again, and the keys of delayed jobs that were admitted later than now."""

        def is_asked_for(space: Namespace, kind: Kind) -> bool:
            return space == scope.namespace and (scope.kinds is None or kind in scope.kinds)

        again = {each for each in self._taken if each.at > now and not each.noted_at}
        again = {each for each in again if is_asked_for(each.space, each.key.kind)}
        due = {each for each in self._dirty if each.at <= now or each.noted_at > now}
        due = {each for each in due if is_asked_for(each.space, each.key.kind)}
        self._dirty = (self._dirty | again) - due
        self._taken = (self._taken - again) | due
        ahead = (
            job
            for job in self._jobs.values()
            if is_asked_for(job.namespace, job.kind)
            and job.not_before
            and (self._lanes[job.id][1] or 0) > now
        )
        return {each.key for each in due | again} | {key for job in ahead for key in keys_of(job)}

    def _decide(
        self,
        space: Namespace,
        key: Key,
        uses: int | None,
        rules: KeyRules,
        asked: AbstractSet[QueueName],
        now: Instant,
    ) -> set[Key]:
        """Admit and park jobs of a key. Returns the rate keys about which this decides."""
        waiting = {job.id: job for job in self._jobs_of(space, key) if self._waits_for(key, job)}
        keyed = [self._keyed(key, job) for job in waiting.values()]
        room = rules.room(key, uses)
        first = _first(keyed, room, asked, now)
        kept = {job.id for job in first if job.place_since(now) is not None}
        admitted = {job.id for job in first} - kept
        parked = {job.id for job in keyed if job.admitted_at is not None} - kept
        for job_id in parked:
            keeps = key.is_rate and waiting[job_id].concurrency_key is not None
            home = Lane.WAITS_FOR_RATE if key.is_rate else Lane.WAITS_FOR_KEY
            self._lanes[job_id] = (home, self._lanes[job_id][1] if keeps else None)
        for job_id in admitted:
            self._lanes[job_id] = (rules.lane_behind(key, waiting[job_id].rate_key), now)
        decided = admit(keyed, room, now=now, queues=asked)
        self._dirty |= {Mark(space, key, at, now) for at in rules.again_at(key, uses, decided)}
        touched = {each for job_id in parked | admitted for each in keys_of(waiting[job_id])}
        return {each for each in touched if each.is_rate and not key.is_rate}

    def _jobs_of(self, space: Namespace, key: Key) -> list[Job]:
        return [
            job for job in self._jobs.values() if job.namespace == space and key in keys_of(job)
        ]

    def _waits_for(self, key: Key, job: Job) -> bool:
        is_not_there_yet = key.is_rate and self._lanes[job.id][0] is Lane.WAITS_FOR_KEY
        return job.not_before is not None and not is_not_there_yet

    def _keyed(self, key: Key, job: Job) -> KeyedJob:
        lane, at = self._lanes[job.id]
        since = None if key.is_rate and lane >= Lane.WAITS_FOR_KEY else at
        assert job.run_at is not None
        assert job.not_before is not None
        return KeyedJob(
            job.id, job.queue, job.priority, job.run_at, job.not_before, job.start_by, since
        )


def _first(
    jobs: Sequence[KeyedJob], room: int, asked: AbstractSet[QueueName], now: Instant
) -> list[KeyedJob]:
    """The jobs that get the places of their key. The model sorts by itself: with the order of
    `admit` it could not notice that this one is wrong. [CK6] [CK12] [Z1]"""

    def place(job: KeyedJob) -> tuple[bool, int, Instant, JobId]:
        since = job.place_since(now)
        has_place = since is not None and now < since + ADMISSION_LAPSES_US
        return (job.queue not in asked and not has_place, -job.priority, job.run_at, job.id)

    return sorted((job for job in jobs if job.is_ready(now)), key=place)[:room]


def _first_lane(job: Job) -> Lane:
    if job.concurrency_key is not None:
        return Lane.WAITS_FOR_KEY
    return Lane.OPEN if job.rate_key is None else Lane.WAITS_FOR_RATE


def keys_of(job: Job) -> list[Key]:
    """The keys that a job has."""
    named = ((False, job.concurrency_key), (True, job.rate_key))
    return [Key(job.kind, is_rate, key) for is_rate, key in named if key is not None]
