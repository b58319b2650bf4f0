"""Which jobs with keys are admitted, written without a database: the lanes of jobs, and the marks
of dirty keys, in dictionaries."""

from collections.abc import Iterable, Mapping, Sequence

from tenure.core.claims import ClaimScope, QueueState, claim_order
from tenure.core.concurrency import Key, KeyedJob, KeyRules, Lane, admit, dirtied_by
from tenure.core.ids import JobId, Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.outcomes import Change
from tenure.core.rates import Meter

Jobs = Mapping[JobId, Job]
_Mark = tuple[Namespace, Key, int, int]


class Admission:
    """The lanes of one store's jobs."""

    def __init__(self) -> None:
        self._lanes: dict[JobId, tuple[Lane, Instant | None]] = {}
        self._dirty: set[_Mark] = set()
        self._taken: list[tuple[Namespace, Key, int]] = []  # marks of delayed jobs, since taken

    def written(self, change: Change) -> None:
        """A change was applied."""
        job = change.job
        first = Lane.OPEN
        if job.concurrency_key is not None:
            first = Lane.WAITS_FOR_KEY
        elif job.rate_key is not None:
            first = Lane.WAITS_FOR_RATE
        self._lanes[job.id] = (first, None)
        self._dirty |= {(job.namespace, key, at, 0) for key, at in dirtied_by(change)}

    def set_again(self, namespace: Namespace, kind: Kind, jobs: Jobs) -> None:
        """Something else is set for a kind."""
        for job in jobs.values():
            if (job.namespace, job.kind) == (namespace, kind) and job.not_before is not None:
                self._dirty |= {(namespace, key, 0, 0) for key in _keys_of(job)}
                if job.concurrency_key is not None:
                    self._lanes[job.id] = (Lane.WAITS_FOR_KEY, None)
                elif job.rate_key is not None:
                    self._lanes[job.id] = (Lane.WAITS_FOR_RATE, None)

    def is_open(self, job: Job) -> bool:
        """Whether claims may find it."""
        return self._lanes[job.id][0] < Lane.WAITS_FOR_KEY

    def order(self, job: Job) -> tuple[int, int, int, str]:
        """Its place among those that claims may find. [Z1] [CK13]"""
        priority, run_at, job_id = claim_order(job)
        admitted_at = self._lanes[job.id][1]
        return (priority, run_at if admitted_at is None else admitted_at, run_at, job_id)

    def has_come(self, job: Job, now: Instant) -> bool:
        """Whether a delayed job that was admitted is not later than that, by a clock that was set
        back."""
        return job.not_before == 0 or (self._lanes[job.id][1] or 0) <= now

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
        set_back = self._look_back(scope, jobs, now)
        due = {
            mark
            for mark in self._dirty
            if _is_asked_for(scope, mark[0], mark[1].kind) and (mark[2] <= now or mark[3] > now)
        }
        self._dirty -= due
        self._taken += [(space, key, at) for space, key, at, noted_at in due if at and not noted_at]
        asked = {name for name in scope.queues if not queues[name].paused}
        keys = {key for _, key, *_ in due} | set_back
        under = [job for job in jobs.values() if job.namespace == scope.namespace]
        for key in sorted(key for key in keys if not key.is_rate):
            keys |= self._decide(key, under, rules, asked, now, scope.namespace, None)
        for key in sorted(key for key in keys if key.is_rate):
            tat = states.get((scope.namespace, key.meter))
            corrected = rules.corrected(key, tat)
            if corrected is not None and corrected > now:
                states[scope.namespace, key.meter] = corrected
            self._decide(key, under, rules, asked, now, scope.namespace, tat)

    def _look_back(self, scope: ClaimScope, jobs: Jobs, now: Instant) -> set[Key]:
        """After the clock was set back, marks of delayed jobs count again. Returns their keys, and
        those of delayed jobs that were admitted at an instant that is still to come."""
        again = [
            mark
            for mark in self._taken
            if mark[2] > now and _is_asked_for(scope, mark[0], mark[1].kind)
        ]
        self._dirty |= {(space, key, at, 0) for space, key, at in again}
        self._taken = [mark for mark in self._taken if mark not in again]
        return {key for _, key, _ in again} | {
            key
            for job in jobs.values()
            if _is_asked_for(scope, job.namespace, job.kind)
            and job.not_before
            and (self._lanes[job.id][1] or 0) > now
            for key in _keys_of(job)
        }

    def _decide(
        self,
        key: Key,
        jobs: Sequence[Job],
        rules: KeyRules,
        asked: set[QueueName],
        now: Instant,
        namespace: Namespace,
        uses: int | None,
    ) -> set[Key]:
        mine = [job for job in jobs if job.kind == key.kind and _key_of(job, key) == key.key]
        waiting = [
            job
            for job in mine
            if job.not_before is not None
            and not (key.is_rate and self._lanes[job.id][0] is Lane.WAITS_FOR_KEY)
        ]
        if not key.is_rate:
            uses = self.leases(key, mine, jobs)
        decided = admit(
            [self._keyed(job, key) for job in waiting],
            rules.room(key, uses),
            now=now,
            queues=asked,
        )
        moved = {job.id: job for job in waiting}
        touched = set()
        for job_id in decided.parked:
            lane, at = self._lanes[job_id]
            keeps = key.is_rate and moved[job_id].concurrency_key is not None
            home = Lane.WAITS_FOR_RATE if key.is_rate else Lane.WAITS_FOR_KEY
            self._lanes[job_id] = (home, at if keeps else None)
            touched.add(job_id)
        for job_id in decided.admitted:
            lane = rules.lane_behind(key, moved[job_id].rate_key)
            self._lanes[job_id] = (lane, now)
            if lane is Lane.WAITS_FOR_RATE:
                touched.add(job_id)
        self._dirty |= {(namespace, key, at, now) for at in rules.again_at(key, uses, decided)}
        if key.is_rate:
            return set()
        found = [moved[job_id].rate_key for job_id in touched]
        return {Key(key.kind, True, rate_key) for rate_key in found if rate_key is not None}

    def leases(self, key: Key, mine: Iterable[Job], jobs: Iterable[Job]) -> int:
        """How many leases the jobs of a key have. [CK3]"""
        return sum(job.lease_id is not None for job in mine)

    def _keyed(self, job: Job, key: Key) -> KeyedJob:
        lane, at = self._lanes[job.id]
        assert job.run_at is not None
        assert job.not_before is not None
        return KeyedJob(
            job.id,
            job.queue,
            job.priority,
            job.run_at,
            job.not_before,
            job.start_by,
            None if key.is_rate and lane >= Lane.WAITS_FOR_KEY else at,
        )

    def granted(
        self,
        namespace: Namespace,
        job: Job,
        rules: KeyRules,
        states: Mapping[Meter, Instant],
        now: Instant,
    ) -> None:
        """A claim has granted this job."""
        self._dirty |= {
            (namespace, key, at, now) for key, at in rules.dirtied_by_grant(job, states)
        }


def _is_asked_for(scope: ClaimScope, namespace: Namespace, kind: Kind) -> bool:
    return namespace == scope.namespace and (scope.kinds is None or kind in scope.kinds)


def _keys_of(job: Job) -> list[Key]:
    """The keys of a job."""
    named = ((False, job.concurrency_key), (True, job.rate_key))
    return [Key(job.kind, is_rate, key) for is_rate, key in named if key is not None]


def _key_of(job: Job, key: Key) -> str | None:
    return job.rate_key if key.is_rate else job.concurrency_key
