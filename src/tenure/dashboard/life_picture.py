"""The picture of a job's life: where each bar, mark and label of its lanes is, in percent.

Pure: values in, values out. A template writes them as SVG, with these positions and with classes; a
picture has no colour of its own. Nothing overlaps: marks that would are drawn as one with a count,
and bars too short to be seen are drawn a little longer.
"""

from collections.abc import Sequence

import msgspec

from tenure.core.instants import Instant
from tenure.dashboard.job_life import BUSY, AttemptLane, JobPhase, Life, Mark, Sign, Span
from tenure.dashboard.rendering import counted_words, duration_words
from tenure.dashboard.time_axis import WIDTH, AxisTick, Gap, Stretch, TimeAxis, time_axis

SHORTEST_BAR = 0.6
MARK_DISTANCE = 3.0
RENEWAL_DISTANCE = 0.8
"""Renewals nearer to each other than this are one tick of the lease."""

MAX_MARK_LINES = 12
"""How many events the text of one mark lists."""

_RANK = {sign: rank for rank, sign in enumerate(Sign)}

_PHASE_WORDS = {
    JobPhase.WAITING: "waited for its parents",
    JobPhase.DELAYED: "was delayed",
    JobPhase.QUEUED: "waited in the queue",
    JobPhase.CLAIMED: "was claimed",
    JobPhase.RUNNING: "ran",
    JobPhase.STOPPING: "ran on after the cancellation was requested",
    JobPhase.SILENT: "had lost its lease, not recorded yet",
    JobPhase.HELD: "was held",
    JobPhase.LATE: "worked on without a lease",
    JobPhase.AHEAD: "remains",
}


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """A phase as a bar."""

    phase: JobPhase
    x: float
    width: float
    title: str

    @property
    def right(self) -> float:
        """Where it ends."""
        return self.x + self.width


class Glyph(msgspec.Struct, frozen=True, kw_only=True):
    """One or several marks at one place."""

    sign: Sign
    x: float
    count: int
    title: str


class LaneRow(msgspec.Struct, frozen=True, kw_only=True):
    """A lane with its geometry. `lease` is the line under its bars, `renewals` the ticks on it."""

    lane: AttemptLane
    bars: tuple[Bar, ...]
    glyphs: tuple[Glyph, ...]
    lease: Bar | None
    renewals: tuple[float, ...]
    summary: str


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is drawn. `now` is where the present is, if the job has not ended."""

    ticks: tuple[AxisTick, ...]
    cuts: tuple[Stretch, ...]
    rows: tuple[LaneRow, ...]
    now: float | None
    left_out: int
    phases: tuple[JobPhase, ...]
    signs: tuple[Sign, ...]
    """What the legend explains."""

    @property
    def cuts_ahead(self) -> int:
        """How many of the cuts are in the future."""
        return 0 if self.now is None else sum(cut.left >= self.now for cut in self.cuts)

    @property
    def has_counts(self) -> bool:
        """Whether a number is drawn above a sign."""
        return any(glyph.count > 1 for row in self.rows for glyph in row.glyphs)


def picture_of(life: Life) -> Picture:
    """The picture of a life."""
    axis = time_axis(life.start, life.end, idle=_idle_gaps(life))
    rows = tuple(_row(lane, axis) for lane in life.lanes)
    phases = {bar.phase for row in rows for bar in row.bars}
    signs = {glyph.sign for row in rows for glyph in row.glyphs}
    return Picture(
        ticks=axis.ticks(),
        cuts=axis.cuts,
        rows=rows,
        now=None if life.now is None else axis.position(life.now),
        left_out=life.left_out,
        phases=tuple(each for each in JobPhase if each in phases),
        signs=tuple(each for each in Sign if each in signs),
    )


def _idle_gaps(life: Life) -> list[Gap]:
    """When no attempt was under way."""
    busy = sorted(
        (span.start, span.end) for lane in life.lanes for span in lane.spans if span.phase in BUSY
    )
    gaps: list[Gap] = []
    here = life.start
    for start, end in busy:
        if here < start:
            gaps.append((here, start))
        here = Instant(max(here, end))
    return [*gaps, (here, life.end)]


def _row(lane: AttemptLane, axis: TimeAxis) -> LaneRow:
    return LaneRow(
        lane=lane,
        bars=_bars(lane.spans, axis),
        glyphs=_glyphs(lane.marks, axis),
        lease=_lease(lane, axis),
        renewals=_thinned([axis.position(at) for at in lane.renewals]),
        summary=_summary(lane),
    )


def _bars(spans: Sequence[Span], axis: TimeAxis) -> tuple[Bar, ...]:
    """Bars in their order, none over another. One that is too short takes room from the next one,
    and at the right edge from those before it."""
    edges = []
    here = 0.0
    for span in spans:
        left = max(here, axis.position(span.start))
        here = max(left + SHORTEST_BAR, axis.position(span.end))
        edges.append((left, here))
    limit = WIDTH
    for at in range(len(edges) - 1, -1, -1):
        right = min(limit, edges[at][1])
        edges[at] = (max(0.0, min(edges[at][0], right - SHORTEST_BAR)), right)
        limit = edges[at][0]
    return tuple(
        Bar(phase=span.phase, x=left, width=max(0.0, right - left), title=_span_title(span))
        for span, (left, right) in zip(spans, edges, strict=True)
    )


def _span_title(span: Span) -> str:
    return f"{_PHASE_WORDS[span.phase]}: {duration_words(span.end - span.start)}"


def _lease(lane: AttemptLane, axis: TimeAxis) -> Bar | None:
    if lane.lease is None:
        return None
    left, right = axis.position(lane.lease.start), axis.position(lane.lease.end)
    held = duration_words(lane.lease.end - lane.lease.start)
    title = f"Lease held for {held}, renewed {_times(lane.renewal_count)}"
    return Bar(phase=JobPhase.CLAIMED, x=left, width=right - left, title=title)


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count} times")


def _thinned(positions: Sequence[float]) -> tuple[float, ...]:
    kept: list[float] = []
    for x in positions:
        if not kept or x - kept[-1] >= RENEWAL_DISTANCE:
            kept.append(x)
    return tuple(kept)


def _glyphs(marks: Sequence[Mark], axis: TimeAxis) -> tuple[Glyph, ...]:
    """The most telling marks first; one that is too near to another joins it."""
    groups: list[tuple[float, list[Mark]]] = []
    for mark in sorted(marks, key=lambda mark: (_RANK[mark.sign], -mark.at)):
        x = axis.position(mark.at)
        nearest = min(groups, key=lambda group: abs(group[0] - x), default=None)
        if nearest is not None and abs(nearest[0] - x) < MARK_DISTANCE:
            nearest[1].append(mark)
        else:
            groups.append((x, [mark]))
    return tuple(
        Glyph(sign=group[0].sign, x=x, count=len(group), title=_mark_title(group))
        for x, group in sorted(groups, key=lambda group: group[0])
    )


def _mark_title(marks: Sequence[Mark]) -> str:
    in_time = sorted(marks, key=lambda mark: mark.at)
    lines = [counted_words(len(marks), "event")] if len(marks) > 1 else []
    lines += [_mark_line(mark) for mark in in_time[:MAX_MARK_LINES]]
    if len(in_time) > MAX_MARK_LINES:
        lines.append(f"and {len(in_time) - MAX_MARK_LINES} more")
    return "\n".join(lines)


def _mark_line(mark: Mark) -> str:
    return f"{mark.what} by {mark.who}" + (f": {mark.why}" if mark.why else "")


def _summary(lane: AttemptLane) -> str:
    """The lane as a sentence, for screen readers."""
    name = f"Attempt {lane.attempt}" if lane.attempt else "Not claimed"
    by = "" if lane.owner is None else f" by {lane.owner}"
    parts = [_span_title(span) for span in lane.spans]
    if lane.renewal_count:
        parts.append(f"lease renewed {_times(lane.renewal_count)}")
    parts += [_mark_line(mark) for mark in lane.marks if mark.sign in _TOLD]
    return f"{name}{by}: " + (", ".join(parts) or "no time has passed")


_TOLD = frozenset(
    set(Sign)
    - {Sign.ENQUEUED, Sign.READY, Sign.CLAIMED, Sign.STARTED, Sign.CHECKPOINT, Sign.PROGRESS}
)
