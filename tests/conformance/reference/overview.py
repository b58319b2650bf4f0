"""What the reference store gathers for an overview. A mixin of `ReferenceStore`."""

from collections import Counter

from tenure.core.claims import QueueState
from tenure.core.ids import Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.leases import is_suspect
from tenure.core.views.overview import (
    MAX_QUEUES,
    MAX_TALLIED,
    MAX_TROUBLED,
    Depth,
    KnownQueue,
    Overview,
    OverviewFilter,
    OverviewParts,
    Window,
    assemble,
    depth_limit,
    failed_runs,
    fair_share,
    last_jobs,
    window_of,
)
from tenure.core.views.rollups import Rollup
from tenure.core.vocabulary import JobStatus
from tests.conformance.reference.resolutions import MemoryResolutions
from tests.conformance.reference.rollups import MemoryRollups
from tests.conformance.reference.schedules import MemorySchedules
from tests.conformance.reference.workers import MemoryWorkers


class MemoryOverview(MemoryResolutions, MemorySchedules, MemoryWorkers, MemoryRollups):
    """`Store.overview` over dictionaries."""

    _queues: dict[tuple[Namespace, QueueName], QueueState]

    def overview(self, wanted: OverviewFilter) -> Overview:
        """What a namespace is doing. [OB28]"""
        with self._lock:
            self._open()
            return assemble(self._gathered(wanted, self._clock()), wanted)

    def _gathered(self, wanted: OverviewFilter, now: Instant) -> OverviewParts:
        jobs = [job for job in self._jobs.values() if job.namespace == wanted.namespace]
        within = [job for job in jobs if wanted.has(job.queue, job.kind)]
        window = window_of(wanted.range, now)
        rollups, counted_since = self._rollups_of(wanted.namespace, window, now)
        names, known = self._shown_queues(wanted, jobs)
        schedules = last_jobs(self.list_schedules(wanted.namespace), wanted)
        kept = self._jobs.keys() & schedules.keys()
        statuses = {job_id: self._jobs[job_id].status for job_id in kept}
        return OverviewParts(
            now=now,
            counted_since=counted_since,
            rollups=rollups,
            depths=self._depths(jobs, wanted, names, now),
            oldest_ready_at={
                queue: min(run_at)
                for queue in names
                if (
                    run_at := [
                        job.run_at
                        for job in within
                        if job.queue == queue and _is_ready(job, now) and job.run_at is not None
                    ]
                )
            },
            settings=self._settings(wanted, jobs, names),
            left_out=max(0, known - len(names)),
            workers=self.list_workers(wanted.namespace),
            failed_runs=failed_runs(schedules, statuses),
        )

    def _shown_queues(self, wanted: OverviewFilter, jobs: list[Job]) -> tuple[list[QueueName], int]:
        if wanted.queues:
            return list(wanted.queues)[:MAX_QUEUES], len(wanted.queues)
        busy = {job.queue for job in jobs if job.run_at is not None or job.lease_id is not None}
        known = {job.queue for job in jobs}
        known |= {name for space, name in self._queues if space == wanted.namespace}
        found = (KnownQueue(name not in busy, wanted.namespace, name) for name in known)
        return [each.queue for each in fair_share(found, MAX_QUEUES)], len(known)

    def _settings(
        self, wanted: OverviewFilter, jobs: list[Job], names: list[QueueName]
    ) -> list[QueueState]:
        """What is set for the queues that have settings or ever had jobs."""
        known = {job.queue: QueueState(name=job.queue) for job in jobs}
        known |= {
            name: state
            for (space, name), state in self._queues.items()
            if space == wanted.namespace
        }
        return [known[name] for name in sorted(names) if name in known]

    def _depths(
        self, jobs: list[Job], wanted: OverviewFilter, queues: list[QueueName], now: Instant
    ) -> list[Depth]:
        limit = depth_limit(len(queues))
        found: dict[tuple[QueueName, Kind], Counter[str]] = {}
        for job in jobs:
            if job.queue not in queues:
                continue
            counts = found.setdefault((job.queue, job.kind), Counter())
            counts["leased"] += job.lease_id is not None
            counts["suspect"] += is_suspect(job, now)
            if job.run_at is not None:
                counts["ready" if _is_ready(job, now) else "delayed"] += 1
        newest = sorted(jobs, key=lambda job: job.id, reverse=True)
        for field, troubled in (
            ("waiting", [job for job in newest if job.status is JobStatus.WAITING]),
            ("stalled", [job for job in newest if job.stall_cause is not None]),
            ("dead_letters", [job for job in newest if job.reason_code is not None]),
        ):
            for job in troubled[:MAX_TROUBLED]:
                if job.run_at is None and job.id not in self._resolutions:
                    found.setdefault((job.queue, job.kind), Counter())[field] += 1
        return [
            Depth(
                queue=job_queue,
                kind=kind,
                **{field: min(limit, number) for field, number in counts.items()},
            )
            for (job_queue, kind), counts in sorted(found.items())
            if wanted.has(job_queue, kind) and any(counts.values())
        ]

    def _rollups_of(
        self, namespace: Namespace, window: Window, now: Instant
    ) -> tuple[list[Rollup], Instant]:
        """What was folded of the span, with the newest events that were not; and since when that is
        all. [OB34]"""
        unfolded = self._unfolded_events()
        newest = unfolded[-MAX_TALLIED:]
        beyond = unfolded[: -len(newest)]
        counted_since = window.counted_from(
            now,
            skipped_until=self._fold_progress.skipped_until,
            folded_until=self._fold_progress.folded_until,
            first_uncounted=beyond[-1][1].ts if beyond else None,
        )
        folded = [each for key, each in self._rollups.items() if key.length_us == window.bucket_us]
        rollups = [
            each for each in (*folded, *self._tallied(newest)) if each.key.namespace == namespace
        ]
        return rollups, counted_since


def _is_ready(job: Job, now: Instant) -> bool:
    return job.not_before is not None and job.not_before <= now
