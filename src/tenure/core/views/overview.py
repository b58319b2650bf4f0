"""What a namespace is doing: rates, depths, durations, workers, and what needs attention.

Pure: a store gathers `OverviewParts` within its limits, `assemble` makes the picture of them. It is
for people; no decision about a job uses it. Every number has a limit at which counting stops, so
that an overview costs the same on a store of a million jobs as on a small one. [OB28]
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from tenure.core.claims import QueueState
from tenure.core.ids import JobId, Kind, Namespace, QueueName, ScheduleName
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.schedules import Schedule
from tenure.core.views.job_search import Scope
from tenure.core.views.rollups import Rollup, Series, Tally, percentile
from tenure.core.vocabulary import JobStatus, WorkerState
from tenure.core.workers import ListedWorker

MAX_QUEUES = 100
"""How many queues an overview has; queues with jobs come first."""

MAX_DEPTH = 200_000
"""Jobs that are counted, divided among the queues of one answer: at least `LEAST_DEPTH` each."""
LEAST_DEPTH = 1000

MAX_TROUBLED = 10_000
"""How many of the newest dead letters, stalled jobs and jobs that wait for others are read each;
the ones in scope are counted."""

MAX_TALLIED = 10_000
"""How many events are counted beside the rollups: the newest that are not folded yet."""

LATEST_FOLD = seconds(30)
"""If there are more events than that, this much of the newest time may lack some of them. If
folding is further behind, only the newest are counted, and the picture states since when. [OB34]"""


class TimeRange(StrEnum):
    """How far back an overview goes."""

    QUARTER_HOUR = "15m"
    HOUR = "1h"
    SIX_HOURS = "6h"
    DAY = "24h"
    WEEK = "7d"


_BUCKETS = {
    TimeRange.QUARTER_HOUR: (60, seconds(15)),
    TimeRange.HOUR: (60, seconds(60)),
    TimeRange.SIX_HOURS: (72, seconds(300)),
    TimeRange.DAY: (72, seconds(1200)),
    TimeRange.WEEK: (84, seconds(7200)),
}
"""The number of buckets and the length of each."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """A span of time in buckets of equal length, which start at multiples of it. The last one is
    not over."""

    since: Instant
    bucket_us: Duration
    buckets: int

    @property
    def until(self) -> Instant:
        """Where the last bucket will end."""
        return Instant(self.since + self.buckets * self.bucket_us)

    def position(self, at: int) -> int:
        """In which bucket an instant is; it may be none of them."""
        return (at - self.since) // self.bucket_us

    def counted_since(self, first_uncounted: int | None) -> Instant:
        """From when on events are counted, if this is the newest that is not: whole buckets, unless
        the last one alone has too many."""
        if first_uncounted is None or first_uncounted < self.since:
            return self.since
        bucket = self.since + (self.position(first_uncounted) + 1) * self.bucket_us
        return Instant(bucket if bucket < self.until else first_uncounted + 1)

    def counted_from(
        self,
        now: Instant,
        *,
        skipped_until: Instant | None,
        folded_until: Instant | None,
        first_uncounted: Instant | None,
    ) -> Instant:
        """From when on events are counted. `first_uncounted` is the newest event that is neither
        folded nor counted beside the rollups. [OB34]"""
        is_late = folded_until is None or folded_until < now - LATEST_FOLD
        return self.counted_since(first_uncounted if first_uncounted and is_late else skipped_until)


def window_of(range_: TimeRange, now: Instant) -> Window:
    """The buckets that a range has at `now`."""
    number, length = _BUCKETS[range_]
    last = now // length * length
    return Window(since=Instant(last - (number - 1) * length), bucket_us=length, buckets=number)


def range_since(since: Instant, now: Instant) -> TimeRange:
    """The shortest range that is as long as the time since then, else the longest."""
    reaching = (
        each for each, (number, length) in _BUCKETS.items() if number * length >= now - since
    )
    return next(reaching, TimeRange.WEEK)


class OverviewFilter(Scope, frozen=True, kw_only=True):
    """Which jobs an overview is about, and how far back."""

    range: TimeRange = TimeRange.HOUR


# --- What a store gathers ----------------------------------------------------------------------


class OutcomeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Events of some span of time by type: how many jobs were enqueued, claimed, requeued after an
    attempt, and how many ended in which way."""

    enqueued: int = 0
    claimed: int = 0
    requeued: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    dead_lettered: int = 0


class Depths(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of jobs. `delayed` jobs wait for their time, `leased` ones have a worker, `suspect`
    ones have a silent worker [L18], `waiting` ones wait for other jobs of their flow, `stalled`
    ones are not tried again by themselves; `dead_letters` have no resolution."""

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    suspect: int = 0
    waiting: int = 0
    stalled: int = 0
    dead_letters: int = 0


_DEPTHS = Depths.__struct_fields__


class Depth(Depths, frozen=True, kw_only=True):
    """How many jobs of one kind are in one queue."""

    queue: QueueName
    kind: Kind


class FailedRun(msgspec.Struct, frozen=True):
    """A schedule and its last job, which did not succeed."""

    schedule: ScheduleName
    job_id: JobId
    status: JobStatus
    queue: QueueName
    kind: Kind


class OverviewParts(msgspec.Struct, frozen=True, kw_only=True):
    """What a store gathers for an overview, all of it within the filter's scope but for workers and
    rollups."""

    now: Instant
    counted_since: Instant
    rollups: Sequence[Rollup]
    """The rollups of the namespace and the span, as long as its buckets, or of the shortest
    length."""
    depths: Sequence[Depth]
    oldest_ready_at: Mapping[QueueName, Instant]
    settings: Sequence[QueueState]
    left_out: int
    workers: Sequence[ListedWorker]
    failed_runs: Sequence[FailedRun]


# --- The picture -------------------------------------------------------------------------------


class OutcomeBucket(OutcomeCounts, frozen=True, kw_only=True):
    """The events of one bucket, which starts at `at`."""

    at: Instant


class QueueOverview(Depths, frozen=True, kw_only=True):
    """A queue: its jobs now, since when the oldest ready one is ready, what is set for it, and its
    events in the span."""

    queue: QueueName
    oldest_ready_at: Instant | None
    paused: bool
    limit: int | None
    workers: int
    """Live workers that claim from it."""
    events: OutcomeCounts


class Durations(msgspec.Struct, frozen=True, kw_only=True):
    """The median and the 95th percentile (each within 1/16) and the number of some durations; None
    if there are none."""

    p50_us: Duration | None = None
    p95_us: Duration | None = None
    samples: int = 0


class KindOverview(Depths, frozen=True, kw_only=True):
    """A kind: its jobs now in all queues, its events in the span, and how long its jobs waited and
    ran. [OB50]"""

    kind: Kind
    events: OutcomeCounts
    wait: Durations
    run: Durations


class WorkerCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Workers by their state."""

    alive: int = 0
    draining: int = 0
    silent: int = 0


class Matter(StrEnum):
    """What can need attention, the most urgent first."""

    UNCLAIMED = "unclaimed"
    """Ready jobs that no live worker takes."""
    SUSPECT = "suspect"
    """Jobs whose workers are silent. [L18]"""
    STALLED = "stalled"
    """Jobs that stalled, and that an operator has to requeue or dead-letter."""
    DEAD_LETTERS = "dead_letters"
    """Dead letters without a resolution."""
    SCHEDULE_FAILED = "schedule_failed"
    """A schedule whose last job did not succeed."""
    PAUSED = "paused"
    """A paused queue, with its jobs that would otherwise be ready or become so."""


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Something that needs attention: how many jobs it is about, and where they are."""

    matter: Matter
    jobs: int
    queue: QueueName | None = None
    kind: Kind | None = None
    schedule: ScheduleName | None = None
    job_id: JobId | None = None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """What a namespace is doing, at `now` and since `since`. A number of jobs as large as its limit
    means "that many or more". [OB28]"""

    now: Instant
    range: TimeRange
    since: Instant
    counted_since: Instant
    """Since when events were counted: later than `since` if there were too many."""
    bucket_us: Duration
    buckets: tuple[OutcomeBucket, ...]
    wait: Durations
    run: Durations
    queues: tuple[QueueOverview, ...]
    queues_left_out: int
    kinds: tuple[KindOverview, ...]
    workers: WorkerCounts
    attention: tuple[Attention, ...]


def depth_limit(queues: int) -> int:
    """How many jobs of each sort are counted per queue, in an answer with this many queues."""
    return max(LEAST_DEPTH, MAX_DEPTH // max(1, queues))


def assemble(parts: OverviewParts, wanted: OverviewFilter) -> Overview:
    """The picture of what a store gathered."""
    window = window_of(wanted.range, parts.now)
    live = [each for each in parts.workers if each.state(parts.now) is WorkerState.ALIVE]
    rollups = _in_time(parts, window)
    tallies = [(rollup.key.at, _in_scope(rollup, wanted)) for rollup in rollups]
    series = [
        each for rollup in rollups for each in rollup.series if wanted.has(each.queue, each.kind)
    ]
    return Overview(
        now=parts.now,
        range=wanted.range,
        since=window.since,
        counted_since=parts.counted_since,
        bucket_us=window.bucket_us,
        buckets=_buckets(tallies, window),
        wait=_durations(each.waits for _, each in tallies),
        run=_durations(each.runs for _, each in tallies),
        queues=_queues(parts, live, wanted, series),
        queues_left_out=parts.left_out,
        kinds=_kinds(parts, series),
        workers=_worker_counts(parts, wanted),
        attention=_attention(parts, live),
    )


def _in_time(parts: OverviewParts, window: Window) -> list[Rollup]:
    """The buckets within the span, and not before counting started."""
    return [
        each
        for each in parts.rollups
        if each.key.at + each.key.length_us > parts.counted_since
        and 0 <= window.position(each.key.at) < window.buckets
    ]


def _in_scope(rollup: Rollup, wanted: OverviewFilter) -> Tally:
    """What is in scope of a rollup. Events that were counted under no name are in its total, which
    is for callers who may see all of the namespace. [OB35]"""
    if not wanted.queues and not wanted.kinds:
        return rollup.total
    found = Tally()
    for each in rollup.series:
        if wanted.has(each.queue, each.kind):
            found.add(each.tally)
    return found


def _buckets(tallies: Iterable[tuple[Instant, Tally]], window: Window) -> tuple[OutcomeBucket, ...]:
    found: list[Counter[str]] = [Counter() for _ in range(window.buckets)]
    for at, each in tallies:
        found[window.position(at)].update(each.counts)
    return tuple(
        OutcomeBucket(at=Instant(window.since + place * window.bucket_us), **counts)
        for place, counts in enumerate(found)
    )


def _durations(histograms: Iterable[Mapping[int, int]]) -> Durations:
    bins: Counter[int] = Counter()
    for each in histograms:
        bins.update(each)
    return Durations(
        p50_us=percentile(bins, 0.50), p95_us=percentile(bins, 0.95), samples=bins.total()
    )


def _summed(depths: Iterable[Depth], by: str) -> dict[str, Counter[str]]:
    """The depths of each queue or kind."""
    found: dict[str, Counter[str]] = {}
    for each in depths:
        sums = found.setdefault(getattr(each, by), Counter())
        for field in _DEPTHS:
            sums[field] += getattr(each, field)
    return found


def _queues(
    parts: OverviewParts,
    live: Sequence[ListedWorker],
    wanted: OverviewFilter,
    series: Iterable[Series],
) -> tuple[QueueOverview, ...]:
    depths = _summed(parts.depths, "queue")
    events: dict[str, Counter[str]] = {}
    for one in series:
        events.setdefault(one.queue, Counter()).update(one.counts)
    settings = {each.name: each for each in parts.settings if wanted.has_queue(each.name)}
    names = sorted({*depths, *events, *settings}, key=lambda name: (name not in depths, name))
    return tuple(
        QueueOverview(
            queue=QueueName(name),
            oldest_ready_at=parts.oldest_ready_at.get(QueueName(name)),
            paused=name in settings and settings[QueueName(name)].paused,
            limit=settings[QueueName(name)].limit if name in settings else None,
            workers=sum(name in each.queues for each in live),
            events=OutcomeCounts(**events.get(name, Counter())),
            **depths.get(name, Counter()),
        )
        for name in names[:MAX_QUEUES]
    )


def _kinds(parts: OverviewParts, series: Iterable[Series]) -> tuple[KindOverview, ...]:
    depths = _summed(parts.depths, "kind")
    tallies: dict[str, Tally] = {}
    for one in series:
        tallies.setdefault(one.kind, Tally()).add(one.tally)
    return tuple(
        KindOverview(
            kind=Kind(name),
            events=OutcomeCounts(**tally.counts),
            wait=_durations([tally.waits]),
            run=_durations([tally.runs]),
            **depths.get(name, Counter()),
        )
        for name in sorted({*depths, *tallies})
        for tally in [tallies.get(name, Tally())]
    )


def _worker_counts(parts: OverviewParts, wanted: OverviewFilter) -> WorkerCounts:
    states = Counter(
        each.state(parts.now).value
        for each in parts.workers
        if any(wanted.has_queue(queue) for queue in each.queues)
    )
    return WorkerCounts(**states)


def is_taken(queue: QueueName, kind: Kind, live: Iterable[ListedWorker]) -> bool:
    """Whether one of these workers claims jobs of this kind from this queue; one that names no
    kinds claims all of them."""
    return any(queue in each.queues and (not each.kinds or kind in each.kinds) for each in live)


def _attention(parts: OverviewParts, live: Sequence[ListedWorker]) -> tuple[Attention, ...]:
    paused = {each.name for each in parts.settings if each.paused}
    found = [
        Attention(matter=matter, jobs=jobs, queue=each.queue, kind=each.kind)
        for each in parts.depths
        for matter, jobs in (
            (Matter.UNCLAIMED, 0 if is_taken(each.queue, each.kind, live) else each.ready),
            (Matter.SUSPECT, each.suspect),
            (Matter.STALLED, each.stalled),
            (Matter.DEAD_LETTERS, each.dead_letters),
        )
        # A paused queue is not claimed from: that it is paused is what matters.
        if jobs and not (matter is Matter.UNCLAIMED and each.queue in paused)
    ]
    waiting: Counter[QueueName] = Counter()
    for each in parts.depths:
        waiting[each.queue] += each.ready + each.delayed
    found += [
        Attention(matter=Matter.PAUSED, jobs=waiting[queue], queue=queue)
        for queue in sorted(paused)
    ]
    found += [
        Attention(
            matter=Matter.SCHEDULE_FAILED,
            jobs=1,
            queue=run.queue,
            kind=run.kind,
            schedule=run.schedule,
            job_id=run.job_id,
        )
        for run in parts.failed_runs
    ]
    order = {matter: place for place, matter in enumerate(Matter)}
    return tuple(sorted(found, key=lambda each: (order[each.matter], -each.jobs)))


def last_jobs(schedules: Iterable[Schedule], wanted: OverviewFilter) -> dict[JobId, Schedule]:
    """The last job of each schedule that is in scope and has made one."""
    return {
        each.last_job_id: each
        for each in schedules
        if each.last_job_id is not None and wanted.has(each.spec.queue, each.spec.kind)
    }


def failed_runs(
    schedules: Mapping[JobId, Schedule], statuses: Mapping[JobId, JobStatus]
) -> list[FailedRun]:
    """The schedules whose last job failed or is a dead letter."""
    return [
        FailedRun(each.name, job_id, statuses[job_id], each.spec.queue, each.spec.kind)
        for job_id, each in schedules.items()
        if statuses.get(job_id) in (JobStatus.FAILED, JobStatus.DEAD_LETTERED)
    ]


class KnownQueue(msgspec.Struct, frozen=True, order=True):
    """A queue that could be measured. Their order is the one in which they are listed."""

    is_empty: bool
    namespace: Namespace
    queue: QueueName


def fair_share(queues: Iterable[KnownQueue], most: int) -> list[KnownQueue]:
    """At most `most` queues: queues with jobs before empty ones, and the first of each namespace
    before the second of any, so that a namespace with many queues leaves room for others. [B27]"""
    places: dict[tuple[bool, Namespace], int] = {}
    in_turn: list[tuple[bool, int, KnownQueue]] = []
    for queue in sorted(queues):
        place = places.setdefault((queue.is_empty, queue.namespace), 0)
        places[queue.is_empty, queue.namespace] = place + 1
        in_turn.append((queue.is_empty, place, queue))
    return sorted(queue for _, _, queue in sorted(in_turn)[:most])
