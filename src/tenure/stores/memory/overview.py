"""What the memory store gathers for an overview. A mixin of `MemoryStore`, which owns the jobs."""

from collections import Counter
from collections.abc import Iterator

from tenure.core.claims import QueueState
from tenure.core.events import Event
from tenure.core.ids import JobId, Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.lateness import is_suspect
from tenure.core.overview import (
    COUNTED,
    MAX_QUEUES,
    MAX_TALLIED,
    MAX_TROUBLED,
    SAMPLES_PER_SLICE,
    Depth,
    EventTally,
    Overview,
    OverviewFilter,
    OverviewParts,
    Sample,
    Window,
    assemble,
    depth_limit,
    failed_runs,
    last_jobs,
    run_of,
    wait_of,
    window_of,
)
from tenure.core.queue_sample import KnownQueue, fair_share
from tenure.core.vocabulary import EventType, JobStatus
from tenure.stores.memory.resolutions import MemoryResolutions
from tenure.stores.memory.schedules import MemorySchedules
from tenure.stores.memory.workers import MemoryWorkers


class MemoryOverview(MemoryResolutions, MemorySchedules, MemoryWorkers):
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
        counted_since = self._counted_since(window)
        names, known = self._shown_queues(wanted, jobs)
        schedules = last_jobs(self.list_schedules(wanted.namespace), wanted)
        kept = self._jobs.keys() & schedules.keys()
        statuses = {job_id: self._jobs[job_id].status for job_id in kept}
        return OverviewParts(
            now=now,
            counted_since=counted_since,
            tallies=list(self._tallies(within, window, counted_since)),
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
            waits=list(self._waits(within, window)),
            runs=list(self._runs(within, window)),
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

    def _within(
        self, jobs: list[Job], since: Instant, until: Instant
    ) -> Iterator[tuple[Job, Event]]:
        for job in jobs:
            for event in self._events[job.id]:
                if since <= event.ts < until:
                    yield job, event

    def _counted_since(self, window: Window) -> Instant:
        times = sorted(
            (
                event.ts
                for _, event in self._within(list(self._jobs.values()), window.since, window.until)
                if event.type in COUNTED
            ),
            reverse=True,
        )
        return window.counted_since(times[MAX_TALLIED] if len(times) > MAX_TALLIED else None)

    def _tallies(
        self, jobs: list[Job], window: Window, counted_since: Instant
    ) -> Iterator[EventTally]:
        found = Counter(
            (event.ts // window.bucket_us * window.bucket_us, job.queue, job.kind, event.type)
            for job, event in self._within(jobs, counted_since, window.until)
            if event.type in COUNTED
        )
        for (at, queue, kind, type_), events in found.items():
            yield EventTally(Instant(at), queue, kind, type_, events)

    def _waits(self, jobs: list[Job], window: Window) -> Iterator[Sample]:
        for place, claim, job in self._sampled(EventType.CLAIMED, jobs, window):
            [before] = [each for each in self._events[job.id] if each.seq == claim.seq - 1]
            yield Sample(place, wait_of(claim.ts, before.ts, before.payload.run_at))

    def _runs(self, jobs: list[Job], window: Window) -> Iterator[Sample]:
        for place, _, job in self._sampled(EventType.SUCCEEDED, jobs, window):
            if job.started_at is not None and job.finished_at is not None:
                yield Sample(place, run_of(job.started_at, job.finished_at))

    def _sampled(
        self, type_: EventType, jobs: list[Job], window: Window
    ) -> Iterator[tuple[int, Event, Job]]:
        """The newest events of a type in each slice of the span, whichever namespace they are of;
        of these, those in scope."""
        ids = {job.id for job in jobs}
        for place, (since, until) in enumerate(window.slices()):
            found = [
                (event, job)
                for job, event in self._within(list(self._jobs.values()), since, until)
                if event.type is type_
            ]
            newest = sorted(found, key=lambda each: _order(each[0]), reverse=True)
            for event, job in newest[:SAMPLES_PER_SLICE]:
                if job.id in ids:
                    yield place, event, job


def _order(event: Event) -> tuple[Instant, JobId, int]:
    return event.ts, event.job_id, event.seq


def _is_ready(job: Job, now: Instant) -> bool:
    return job.not_before is not None and job.not_before <= now
