"""A time axis in percent of a picture's width, on which long idle gaps are cut short.

A life of three attempts of 5 ms with an hour between them would be three invisible dots on a plain
axis. So idle gaps are cut, the longest first, until the work fills a third of what is left; a cut
gap has a fixed small width and says how long it was. Between cuts the axis is
linear, with one scale everywhere. It knows instants and percents, nothing of jobs.
"""

from bisect import bisect_right
from collections.abc import Sequence

import msgspec

from tenure.core.instants import Duration, Instant
from tenure.dashboard.rendering import duration_words

WIDTH = 100.0
"""Percent: positions hold for every width of the page."""

WORK_SHARE = 3
"""Gaps are cut until the work is at least this fraction (one third) of the time that is drawn."""

CUT_WIDTH = 6.0
CUTS_WIDTH = 40.0
"""How wide one cut is, and how wide all together may be."""

SHORTEST_US = 1_000
"""An axis is never shorter, so that a job that was just enqueued has one."""

CHARACTER_WIDTH = 1.9
"""The width of one character of a label on a phone: on wider screens labels take less."""

LABEL_GAP = 2.0
TICK_DISTANCE = 15.0
MAX_TICKS = 64

_SECOND = 1_000_000
_MINUTE, _HOUR, _DAY = 60 * _SECOND, 3600 * _SECOND, 86400 * _SECOND
STEPS_US: tuple[int, ...] = (
    *(factor * 10**power for power in range(6) for factor in (1, 2, 5)),
    *(factor * _SECOND for factor in (1, 2, 5, 10, 15, 30)),
    *(factor * _MINUTE for factor in (1, 2, 5, 10, 15, 30)),
    *(factor * _HOUR for factor in (1, 2, 3, 6, 12)),
    *(factor * _DAY for factor in (1, 2, 7, 14, 28, 84, 364, 3640)),
)

Gap = tuple[Instant, Instant]


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the axis from `left` to `right`; linear, or a gap that was cut."""

    start: Instant
    end: Instant
    left: float
    right: float
    is_cut: bool

    @property
    def length_us(self) -> Duration:
        """How much time it covers."""
        return Duration(self.end - self.start)


class AxisTick(msgspec.Struct, frozen=True, kw_only=True):
    """A label of the axis, for an instant or for a gap that was cut. `anchor` is SVG's
    `text-anchor`: which part of the text is at `x`."""

    at: Instant
    x: float
    label: str
    anchor: str
    is_cut: bool

    @property
    def left(self) -> float:
        """Where its text starts."""
        share = {"start": 0.0, "middle": 0.5, "end": 1.0}[self.anchor]
        return self.x - share * self.width

    @property
    def right(self) -> float:
        """Where its text ends."""
        return self.left + self.width

    @property
    def width(self) -> float:
        """The width of its text."""
        return len(self.label) * CHARACTER_WIDTH


class TimeAxis(msgspec.Struct, frozen=True):
    """Where instants are; its stretches follow each other without a hole."""

    stretches: tuple[Stretch, ...]

    @property
    def start(self) -> Instant:
        """The first instant."""
        return self.stretches[0].start

    @property
    def end(self) -> Instant:
        """The last instant."""
        return self.stretches[-1].end

    @property
    def cuts(self) -> tuple[Stretch, ...]:
        """The gaps that were cut short."""
        return tuple(stretch for stretch in self.stretches if stretch.is_cut)

    def position(self, instant: Instant) -> float:
        """Where an instant is, in percent; at an end of the axis if it is outside."""
        if instant >= self.end:
            return WIDTH
        if instant <= self.start:
            return 0.0
        starts = [stretch.start for stretch in self.stretches]
        stretch = self.stretches[bisect_right(starts, instant) - 1]
        share = (instant - stretch.start) / stretch.length_us
        return stretch.left + share * (stretch.right - stretch.left)

    def ticks(self) -> tuple[AxisTick, ...]:
        """Labels that do not overlap: first for cuts, as far as there is room, then for round
        times, counted from the start or from the last cut."""
        placed: list[AxisTick] = []
        for cut in self.cuts:
            _place(placed, cut.start, (cut.left + cut.right) / 2, cut.length_us, is_cut=True)
        step_us = self._step_us()
        for stretch in self.stretches:
            if stretch.is_cut:
                continue
            count = min(MAX_TICKS, stretch.length_us // step_us + 1)
            for number in range(count):
                at = Instant(stretch.start + number * step_us)
                _place(placed, at, self.position(at), Duration(number * step_us), is_cut=False)
        return tuple(sorted(placed, key=lambda tick: tick.x))

    def _step_us(self) -> int:
        """The smallest round step whose ticks are far enough from each other."""
        linear = [stretch for stretch in self.stretches if not stretch.is_cut]
        drawn_us = sum(stretch.length_us for stretch in linear)
        width = sum(stretch.right - stretch.left for stretch in linear)
        smallest_us = drawn_us * TICK_DISTANCE / width
        return next((step for step in STEPS_US if step >= smallest_us), STEPS_US[-1])


def _place(
    placed: list[AxisTick], at: Instant, x: float, span_us: Duration, *, is_cut: bool
) -> None:
    """Add a label, unless it overlaps another."""
    label = f"⋯ {duration_words(span_us)} ⋯" if is_cut else duration_words(span_us)
    half = len(label) * CHARACTER_WIDTH / 2
    anchor = "start" if x < half else "end" if x > WIDTH - half else "middle"
    tick = AxisTick(at=at, x=x, label=label, anchor=anchor, is_cut=is_cut)
    if all(
        tick.right + LABEL_GAP <= other.left or other.right + LABEL_GAP <= tick.left
        for other in placed
    ):
        placed.append(tick)


def time_axis(start: Instant, end: Instant, *, idle: Sequence[Gap]) -> TimeAxis:
    """The axis from `start` to `end`; `idle` gaps may be cut. They do not overlap each other."""
    end = Instant(max(end, start + SHORTEST_US))
    within = [(max(start, gap[0]), min(end, gap[1])) for gap in idle]
    gaps = sorted(gap for gap in within if gap[0] < gap[1])
    parts = _parts(start, end, _gaps_to_cut(gaps, Duration(end - start)))
    cuts = sum(is_cut for _, _, is_cut in parts)
    cut_width = min(CUT_WIDTH, CUTS_WIDTH / cuts) if cuts else 0.0
    linear_us = sum(to - since for since, to, is_cut in parts if not is_cut)
    stretches: list[Stretch] = []
    drawn_us, cuts_before = 0, 0
    for since, to, is_cut in parts:
        left = stretches[-1].right if stretches else 0.0
        drawn_us += 0 if is_cut else to - since
        cuts_before += is_cut
        # From the sums, so that rounding errors do not add up.
        linear_width = WIDTH - cuts * cut_width
        right = cuts_before * cut_width + linear_width * drawn_us / linear_us
        stretches.append(Stretch(start=since, end=to, left=left, right=right, is_cut=is_cut))
    return TimeAxis(tuple(stretches))


def _gaps_to_cut(gaps: Sequence[Gap], total_us: Duration) -> set[Gap]:
    """The longest ones, until the work is a large enough part of the rest. Where there was no work,
    nothing is cut: the gap is all there is to see."""
    work_us = total_us - sum(to - since for since, to in gaps)
    if work_us <= 0:
        return set()
    drawn_us = int(total_us)
    cut: set[Gap] = set()
    for gap in sorted(gaps, key=lambda gap: gap[0] - gap[1]):
        if drawn_us <= WORK_SHARE * work_us:
            break
        cut.add(gap)
        drawn_us -= gap[1] - gap[0]
    return cut


def _parts(start: Instant, end: Instant, cut: set[Gap]) -> list[tuple[Instant, Instant, bool]]:
    parts: list[tuple[Instant, Instant, bool]] = []
    here = start
    for since, to in sorted(cut):
        if here < since:
            parts.append((here, since, False))
        parts.append((since, to, True))
        here = to
    if here < end:
        parts.append((here, end, False))
    return parts
