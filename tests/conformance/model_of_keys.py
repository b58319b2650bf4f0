"""The model's keys: in which lane each job with a key is, and which keys are dirty."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec.structs import replace

from tenure.core.claims import ClaimScope, QueueState
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

Jobs = Mapping[JobId, Job]
_Mark = tuple[Namespace, Key, int, int]
"""When the key must be decided about, and when a claim said so, if one did."""


class Admission:
    """The lanes of one store's jobs, each with when the job was admitted."""

    def __init__(self) -> None:
        self._lanes: dict[JobId, tuple[Lane, Instant | None]] = {}
        self._dirty: set[_Mark] = set()
        self._taken: set[_Mark] = set()  # marks of delayed jobs, which count again if time does

    def written(self, change: Change) -> None:
        """A change was applied."""
        self._lanes[change.job.id] = (_first_lane(change.job), None)
        space = change.job.namespace
        self._dirty |= {(space, key, at, 0) for key, at in dirtied_by(change)}

    def set_again(self, namespace: Namespace, kind: Kind, jobs: Jobs) -> None:
        """Something else is set for a kind."""
        for job in jobs.values():
            if (job.namespace, job.kind) == (namespace, kind) and job.not_before is not None:
                self._dirty |= {(namespace, key, 0, 0) for key in _keys_of(job)}
                self._lanes[job.id] = (_first_lane(job), None)

    def in_claim_order(self, ready: Iterable[Job], now: Instant) -> list[Job]:
        """The jobs among these that claims find. A delayed job that was admitted later than now, by
        a clock that was set back, is not found yet. [Z1] [CK13]"""
        found = []
        for job in ready:
            lane, admitted_at = self._lanes[job.id]
            priority, run_at, job_id = -job.priority, job.run_at, job.id
            assert run_at is not None
            if lane < Lane.WAITS_FOR_KEY and (not job.not_before or (admitted_at or 0) <= now):
                found.append((priority, admitted_at or run_at, run_at, job_id, job))
        return [job for *_, job in sorted(found, key=lambda place: place[:4])]

    def run(
        self,
        scope: ClaimScope,
        jobs: Jobs,
        rules: KeyRules,
        states: dict[tuple[Namespace, Meter], Instant],
        queues: Mapping[QueueName, QueueState],
        now: Instant,
    ) -> None:
        """Decide about the dirty keys of the kinds that a claim asks for."""
        space = scope.namespace
        mine = [job for job in jobs.values() if job.namespace == space]
        asked = {name for name in scope.queues if not queues[name].paused}
        keys = self._take(scope, mine, now)
        for key in sorted(key for key in keys if not key.is_rate):
            leases = sum(job.lease_id is not None for job in mine if key in _keys_of(job))
            keys |= self._decide(key, mine, rules, asked, now, space, leases)
        for key in sorted(key for key in keys if key.is_rate):
            tat = states.get((space, key.meter))
            corrected = rules.corrected(key, tat)
            if corrected is not None and corrected > now:
                states[space, key.meter] = corrected
            self._decide(key, mine, rules, asked, now, space, tat)

    def _take(self, scope: ClaimScope, mine: Iterable[Job], now: Instant) -> set[Key]:
        """Take the marks that are due. After the clock was set back, those of delayed jobs that
        were taken count again, and the keys of delayed jobs that were admitted later than now."""

        def is_asked_for(space: Namespace, kind: Kind) -> bool:
            return space == scope.namespace and (scope.kinds is None or kind in scope.kinds)

        again = {mark for mark in self._taken if mark[2] > now}
        again = {mark for mark in again if is_asked_for(mark[0], mark[1].kind)}
        self._taken -= again
        self._dirty |= again
        due = {
            mark
            for mark in self._dirty
            if is_asked_for(mark[0], mark[1].kind) and (mark[2] <= now or mark[3] > now)
        }
        self._dirty -= due
        self._taken |= {mark for mark in due if mark[2] and not mark[3]}
        ahead = [
            job
            for job in mine
            if is_asked_for(job.namespace, job.kind)
            and job.not_before
            and (self._lanes[job.id][1] or 0) > now
        ]
        return {mark[1] for mark in due | again} | {key for job in ahead for key in _keys_of(job)}

    def _decide(
        self,
        key: Key,
        mine: Iterable[Job],
        rules: KeyRules,
        asked: set[QueueName],
        now: Instant,
        space: Namespace,
        uses: int | None,
    ) -> set[Key]:
        """Admit and park jobs of a key. Returns the rate keys about which this decides."""
        waiting = {
            job.id: job
            for job in mine
            if key in _keys_of(job)
            and job.not_before is not None
            and not (key.is_rate and self._lanes[job.id][0] is Lane.WAITS_FOR_KEY)
        }
        keyed = [self._keyed(job, key) for job in waiting.values()]
        room = rules.room(key, uses)
        first = _first(keyed, room, asked, now)
        decided = replace(
            admit(keyed, room, now=now, queues=asked),
            admitted=tuple(job.id for job in first if job.place_since(now) is None),
            parked=tuple(
                job.id
                for job in keyed
                if job.admitted_at is not None
                and not (job in first and job.place_since(now) is not None)
            ),
        )
        touched = set(decided.parked)
        for job_id in decided.parked:
            keeps = key.is_rate and waiting[job_id].concurrency_key is not None
            home = Lane.WAITS_FOR_RATE if key.is_rate else Lane.WAITS_FOR_KEY
            self._lanes[job_id] = (home, self._lanes[job_id][1] if keeps else None)
        for job_id in decided.admitted:
            lane = rules.lane_behind(key, waiting[job_id].rate_key)
            self._lanes[job_id] = (lane, now)
            if lane is Lane.WAITS_FOR_RATE:
                touched.add(job_id)
        self._dirty |= {(space, key, at, now) for at in rules.again_at(key, uses, decided)}
        if key.is_rate:
            return set()
        return {each for job_id in touched for each in _keys_of(waiting[job_id]) if each.is_rate}

    def _keyed(self, job: Job, key: Key) -> KeyedJob:
        lane, at = self._lanes[job.id]
        since = None if key.is_rate and lane >= Lane.WAITS_FOR_KEY else at
        assert job.run_at is not None
        assert job.not_before is not None
        return KeyedJob(
            job.id, job.queue, job.priority, job.run_at, job.not_before, job.start_by, since
        )

    def granted(
        self, job: Job, rules: KeyRules, states: Mapping[Meter, Instant], now: Instant
    ) -> None:
        """A claim has granted this job."""
        dirtied = rules.dirtied_by_grant(job, states)
        self._dirty |= {(job.namespace, key, at, now) for key, at in dirtied}


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


def _keys_of(job: Job) -> list[Key]:
    named = ((False, job.concurrency_key), (True, job.rate_key))
    return [Key(job.kind, is_rate, key) for is_rate, key in named if key is not None]
