"""Rollups: how many events of each type a namespace had in each stretch of time, and how long its
jobs waited and ran.

Pure: a store gives pages of its log in the order of the tail, `roll_up` adds them to what was
counted before. Rollups are for plots and never the truth: no decision uses them, `verify` does not
read them, and a log that is purged leaves them behind. Their number does not depend on the number
of events. [OB33]
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from tenure.core.ids import Kind, Namespace, QueueName
from tenure.core.instants import Duration, Instant, later, seconds
from tenure.core.views.events import EventPosition
from tenure.core.vocabulary import EventType

_Name = TypeVar("_Name", int, str)

_HOUR = seconds(3600)

SHORTEST = seconds(15)

KEPT_FOR: dict[Duration, Duration] = {
    SHORTEST: _HOUR,
    seconds(60): Duration(2 * _HOUR),
    seconds(300): Duration(12 * _HOUR),
    seconds(1200): Duration(48 * _HOUR),
    Duration(2 * _HOUR): Duration(8 * 24 * _HOUR),
}
"""The lengths of rollups, one for each range of an overview, with how long they are kept. Each is a
multiple of the shortest one. Events are counted in all of them at once: nothing is ever moved from
one to another."""

MAX_SERIES = 100
"""How many pairs of queue and kind a rollup distinguishes: events of later ones are in its total
alone. [OB35]"""

COUNTED = (
    EventType.ENQUEUED,
    EventType.CLAIMED,
    EventType.REQUEUED,
    EventType.SUCCEEDED,
    EventType.FAILED,
    EventType.CANCELLED,
    EventType.DEAD_LETTERED,
)
"""The types of events that are counted over time."""


class CountedEvent(msgspec.Struct, frozen=True, gc=False):
    """An event of a type that is counted, and of which jobs it is. `duration_us` is how long the
    job had waited, if it was claimed, or had run, if it succeeded."""

    namespace: Namespace
    queue: QueueName
    kind: Kind
    type: EventType
    ts: Instant
    duration_us: Duration | None = None


def wait_of(claimed_at: Instant, queued_at: Instant, run_at: Instant | None) -> Duration:
    """How long a claimed job had been ready; `queued_at` and `run_at` are of the event before."""
    ready_at = queued_at if run_at is None else later(queued_at, run_at)
    return Duration(max(0, claimed_at - ready_at))


def run_of(started_at: Instant, finished_at: Instant) -> Duration:
    """How long the attempt that succeeded ran."""
    return Duration(max(0, finished_at - started_at))


# --- Durations as a histogram ------------------------------------------------------------------

_PER_OCTAVE = 8
_EXACT_BELOW = 2 * _PER_OCTAVE
"""Shorter durations, in microseconds, have a bin each; longer ones eight for each doubling."""


def bin_of(duration_us: int) -> int:
    """The bin of a duration. A bin is at most an eighth of its durations wide."""
    if duration_us < _EXACT_BELOW:
        return duration_us
    doublings = duration_us.bit_length() - _EXACT_BELOW.bit_length() + 1
    return doublings * _PER_OCTAVE + (duration_us >> doublings)


def middle_of(bin_: int) -> Duration:
    """The duration that represents all of a bin: at most a sixteenth too short or too long."""
    if bin_ < _EXACT_BELOW:
        return Duration(bin_)
    doublings = bin_ // _PER_OCTAVE - 1
    first = (bin_ - doublings * _PER_OCTAVE) << doublings
    return Duration(first + (1 << doublings) // 2)


def percentile(bins: Mapping[int, int], share: float) -> Duration | None:
    """The shortest duration that this share of all does not exceed, as exact as the bins."""
    rest = share * sum(bins.values())
    for bin_, number in sorted(bins.items()):
        rest -= number
        if rest <= 0:
            return middle_of(bin_)
    return None


# --- Counting ----------------------------------------------------------------------------------


class Tally(msgspec.Struct, array_like=True):
    """A number of events by type, and by bin how long jobs waited and ran. Sums are added in place:
    `roll_up` adds only to copies."""

    counts: dict[str, int] = {}
    waits: dict[int, int] = {}
    runs: dict[int, int] = {}

    def count(self, event: CountedEvent) -> None:
        """Count this event, too."""
        word = event.type.value
        self.counts[word] = self.counts.get(word, 0) + 1
        if event.duration_us is not None:
            bins = self.waits if event.type is EventType.CLAIMED else self.runs
            place = bin_of(event.duration_us)
            bins[place] = bins.get(place, 0) + 1

    def add(self, other: "Tally") -> None:
        """Count what the other one has, too."""
        _add(self.counts, other.counts)
        _add(self.waits, other.waits)
        _add(self.runs, other.runs)


class Series(msgspec.Struct, frozen=True, array_like=True):
    """What was counted of one kind in one queue. The bins stay encoded until they are added up:
    decoded, the bins of a hundred series in a week of rollups take 26 MB instead of 4."""

    queue: QueueName
    kind: Kind
    counts: dict[str, int]
    bins: msgspec.Raw

    @property
    def tally(self) -> Tally:
        """A copy that can be added to."""
        waits, runs = _decode_bins(self.bins)
        return Tally(dict(self.counts), waits, runs)


_decode_bins = msgspec.json.Decoder(tuple[dict[int, int], dict[int, int]]).decode


class RollupKey(msgspec.Struct, frozen=True):
    """A rollup's namespace, its length, and when it starts."""

    namespace: Namespace
    length_us: Duration
    at: Instant


class Rollup(msgspec.Struct, frozen=True):
    """What was counted in one stretch of time: in all, and of each kind in each queue."""

    key: RollupKey
    total: Tally
    series: tuple[Series, ...]


class _Sums(msgspec.Struct):
    """A rollup that is being added up."""

    total: Tally
    of: dict[tuple[QueueName, Kind], Tally]

    def series_of(self, queue: QueueName, kind: Kind) -> Tally | None:
        """What is counted of one kind in one queue. None if there are too many pairs: the first
        `MAX_SERIES` keep their places. [OB35]"""
        if (queue, kind) not in self.of:
            if len(self.of) >= MAX_SERIES:
                return None
            self.of[queue, kind] = Tally()
        return self.of[queue, kind]

    def rollup(self, key: RollupKey) -> Rollup:
        """What was added up."""
        series = [
            Series(queue, kind, each.counts, msgspec.Raw(_encode((each.waits, each.runs))))
            for (queue, kind), each in self.of.items()
        ]
        return Rollup(key, self.total, tuple(series))


_encode = msgspec.json.Encoder().encode


def tally(events: Iterable[CountedEvent]) -> list[Rollup]:
    """Rollups of the shortest length that have these events and no others."""
    found: dict[tuple[Namespace, int], dict[tuple[QueueName, Kind], Tally]] = {}
    for event in events:
        of = found.setdefault((event.namespace, event.ts // SHORTEST), {})
        series = of.get((event.queue, event.kind))
        if series is None:
            series = of[event.queue, event.kind] = Tally()
        series.count(event)
    rollups = []
    for (namespace, number), of in found.items():
        sums = _Sums(Tally(), dict(islice(of.items(), MAX_SERIES)))
        for series in of.values():
            sums.total.add(series)
        rollups.append(sums.rollup(RollupKey(namespace, SHORTEST, Instant(number * SHORTEST))))
    return rollups


def touched(tallied: Iterable[Rollup], now: Instant) -> set[RollupKey]:
    """The rollups that these are part of, without rollups that would be deleted at once."""
    return {key for each in tallied for key in _stretches(each.key, now)}


def roll_up(
    tallied: Iterable[Rollup], before: Mapping[RollupKey, Rollup], now: Instant
) -> list[Rollup]:
    """The rollups that change, with what was counted `before` and these. [OB33]"""
    found: dict[RollupKey, _Sums] = {}
    for each in tallied:
        for key in _stretches(each.key, now):
            if key not in found:
                found[key] = _Sums(Tally(), {})
                if key in before:
                    _add_rollup(found[key], before[key])
            _add_rollup(found[key], each)
    return [sums.rollup(key) for key, sums in found.items()]


def _stretches(key: RollupKey, now: Instant) -> Iterator[RollupKey]:
    for length, kept_for in KEPT_FOR.items():
        if key.at >= now - kept_for:
            yield RollupKey(key.namespace, length, Instant(key.at // length * length))


def _add_rollup(sums: _Sums, rollup: Rollup) -> None:
    sums.total.add(rollup.total)
    for each in rollup.series:
        series = sums.series_of(each.queue, each.kind)
        if series is not None:
            series.add(each.tally)


def _add(sums: dict[_Name, int], more: Mapping[_Name, int]) -> None:
    for name, number in more.items():
        sums[name] = sums.get(name, 0) + number


# --- Folding -----------------------------------------------------------------------------------

MAX_CATCH_UP = 1_000_000
"""Events that are folded when a store with a log is folded for the first time: the newest."""


class FoldProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the log was folded into rollups. [OB33]"""

    position: EventPosition | None = None
    """All events up to this one were folded; None: folding has not started."""
    skipped_until: Instant | None = None
    """The time of the newest event that will never be folded: the log was too long at first."""
    folded_until: Instant | None = None
    """Events before this time were folded, except events that were committed late."""
    folded_at: Instant | None = None
    """When the last fold was saved."""


class UnfoldedPage(msgspec.Struct, frozen=True, kw_only=True):
    """The next events to fold, added up, and the rollups that they belong to as they are now.
    `end` is the place of the last event that was read; None if there was none."""

    now: Instant
    progress: FoldProgress
    skipped_until: Instant | None
    end: EventPosition | None
    is_full: bool
    tallied: Sequence[Rollup]
    before: Mapping[RollupKey, Rollup]


class Fold(msgspec.Struct, frozen=True, kw_only=True):
    """What a fold changes. `expected` is the place from which it read."""

    expected: EventPosition | None
    progress: FoldProgress
    rollups: Sequence[Rollup]


def fold(page: UnfoldedPage) -> Fold | None:
    """What a page changes; None if there was nothing to fold."""
    if page.end is None:
        return None
    before = page.progress.folded_until or Instant(0)
    # A page that is not full has all that there was.
    until = max([before, *(each.key.at for each in page.tallied)]) if page.is_full else page.now
    return Fold(
        expected=page.progress.position,
        progress=FoldProgress(
            position=page.end, skipped_until=page.skipped_until, folded_until=until
        ),
        rollups=roll_up(page.tallied, page.before, page.now),
    )
