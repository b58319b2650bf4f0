"""The graph of a flow: its jobs in layers from left to right.

Pure: from the steps of a flow to boxes and curves in pixels. In a large flow, jobs of one kind in
one layer are one box with a count of each status, so that five thousand fetches before one summary
are two boxes. A graph that is too large even so is cut after its first boxes, and says so.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import msgspec

from tenure.core.flow_rows import parents_first
from tenure.core.vocabulary import JobStatus
from tenure.protocol.replies import FlowStepRecord

MAX_SINGLE_JOBS = 20
"""In a flow of more jobs, those of one kind in one layer are one box."""

MAX_BOXES = 300
MAX_CURVES = 2_000
BOX_WIDTH, BOX_HEIGHT = 176, 46
LAYER_GAP, ROW_GAP = 36, 16
MARGIN = 12
LONGEST_NAME = 20


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """One job, or several of one kind."""

    name: str
    kind: str
    count: int
    statuses: tuple[tuple[JobStatus, int], ...]
    """How many jobs have each status, the most urgent first."""
    job_id: str | None
    """None if the box represents several."""
    first_step: str
    """The name of one of its jobs: names the box in a link."""
    x: int
    y: int

    @property
    def status(self) -> JobStatus:
        """The one that needs attention first."""
        return self.statuses[0][0]


class Curve(msgspec.Struct, frozen=True):
    """An edge as a path of SVG, and the status of the box it comes from."""

    path: str
    status: JobStatus


class FlowGraph(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is drawn. `left_out` counts jobs, not boxes."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    curves: tuple[Curve, ...]
    left_out: int
    has_groups: bool
    box_size: tuple[int, int] = (BOX_WIDTH, BOX_HEIGHT)


URGENCY = (
    JobStatus.DEAD_LETTERED,
    JobStatus.FAILED,
    JobStatus.STALLED,
    JobStatus.RUNNING,
    JobStatus.CLAIMED,
    JobStatus.QUEUED,
    JobStatus.WAITING,
    JobStatus.CANCELLED,
    JobStatus.SUCCEEDED,
)
"""Which status a reader needs to see first."""


def by_urgency(
    statuses: Iterable[JobStatus] | Mapping[JobStatus, int],
) -> tuple[tuple[JobStatus, int], ...]:
    """How often each status occurs, the most urgent first; statuses of a newer version last. [Y4]

    Takes statuses one by one, or counted.
    """
    counts = Counter(statuses)
    rank = {status: number for number, status in enumerate(URGENCY)}
    ordered = sorted(counts, key=lambda status: (rank.get(status, len(URGENCY)), status))
    return tuple((status, counts[status]) for status in ordered)


class _Group(msgspec.Struct, kw_only=True):
    """Jobs that are drawn as one box, and the numbers of the boxes of their parents."""

    layer: int
    steps: list[FlowStepRecord]
    parents: set[int]


def graph_of(steps: Sequence[FlowStepRecord]) -> FlowGraph:
    """The graph of a flow's steps. A parent that is no step of it, because it belongs to another
    flow or because the reader may not see it, is left out."""
    known = {step.name for step in steps}
    parents = _without_cycles(
        {step.name: [name for name in step.after if name in known] for step in steps}
    )
    groups = _groups(steps, parents)
    drawn = groups[:MAX_BOXES]
    boxes = [
        _box(
            group,
            MARGIN + group.layer * (BOX_WIDTH + LAYER_GAP),
            MARGIN + round(row * (BOX_HEIGHT + ROW_GAP)),
        )
        for group, row in zip(drawn, _rows(drawn), strict=True)
    ]
    edges = [(boxes[p], box) for box, each in zip(boxes, drawn, strict=True) for p in each.parents]
    return FlowGraph(
        width=max((box.x for box in boxes), default=0) + BOX_WIDTH + MARGIN,
        height=max((box.y for box in boxes), default=0) + BOX_HEIGHT + MARGIN,
        boxes=tuple(boxes),
        curves=tuple(Curve(_path(start, end), start.status) for start, end in edges[:MAX_CURVES]),
        left_out=sum(len(group.steps) for group in groups[MAX_BOXES:]),
        has_groups=any(len(group.steps) > 1 for group in drawn),
    )


def _without_cycles(parents: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """The same without the edges of seeming cycles, in an order in which parents come first. A
    parent of another flow may have the name of a job of this one; edges themselves form no cycle,
    because a flow that has one is refused. [FL3]"""
    ordered = parents_first(parents)
    placed = set(ordered)
    found: dict[str, Sequence[str]] = {name: parents[name] for name in ordered}
    for name, after in parents.items():
        if name not in placed:
            found[name] = [parent for parent in after if parent in placed]
    return found


def _groups(steps: Sequence[FlowStepRecord], parents: Mapping[str, Sequence[str]]) -> list[_Group]:
    """Jobs that are drawn together, in the order of layers: a job's layer is the longest way to it
    from a job without parents."""
    layers: dict[str, int] = {}
    for name, after in parents.items():  # parents come first
        layers[name] = max((layers[parent] + 1 for parent in after), default=0)
    by_name = {step.name: step for step in steps}
    groups: list[_Group] = []
    numbers: dict[object, int] = {}
    number_of_job: dict[str, int] = {}
    for name in sorted(layers, key=layers.__getitem__):
        step, layer = by_name[name], layers[name]
        key = name if len(steps) <= MAX_SINGLE_JOBS else (layer, step.kind)
        number = number_of_job[name] = numbers.setdefault(key, len(groups))
        if number == len(groups):
            groups.append(_Group(layer=layer, steps=[], parents=set()))
        groups[number].steps.append(step)
        groups[number].parents.update(number_of_job[parent] for parent in parents[name])
    return groups


def _rows(groups: Sequence[_Group]) -> list[float]:
    """The row of each box. Layers are ordered by the rows of their parents, which avoids most
    crossings, and centred on the longest one."""
    columns: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        columns.setdefault(group.layer, []).append(number)
    longest = max(map(len, columns.values()), default=0)
    rows = [0.0] * len(groups)
    for layer in sorted(columns):
        numbers = columns[layer]
        wanted = {each: fmean(rows[p] for p in groups[each].parents or [0]) for each in numbers}
        for row, number in enumerate(sorted(numbers, key=wanted.__getitem__)):
            rows[number] = row + (longest - len(numbers)) / 2
    return rows


def _box(group: _Group, x: int, y: int) -> Box:
    first, count = group.steps[0], len(group.steps)
    name = first.name if count == 1 else first.kind
    return Box(
        name=name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…",
        kind=first.kind,
        count=count,
        statuses=by_urgency(step.status for step in group.steps),
        job_id=first.job_id if count == 1 else None,
        first_step=first.name,
        x=x,
        y=y,
    )


def _path(start: Box, end: Box) -> str:
    """From the right side of a box to the left side of another."""
    x, y, to_y = start.x + BOX_WIDTH, start.y + BOX_HEIGHT // 2, end.y + BOX_HEIGHT // 2
    bend = LAYER_GAP // 2
    return f"M{x} {y}C{x + bend} {y} {end.x - bend} {to_y} {end.x} {to_y}"
