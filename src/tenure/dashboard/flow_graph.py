"""The graph of a flow: its jobs in layers from left to right, equal siblings drawn as one.

Pure: from the steps of a flow to boxes and curves in pixels. Jobs are equal if they have the same
kind and their parents and children are equal, so that five thousand fetches before one summary are
one box with a count of each status. A graph that is too large even so is cut after its first boxes,
and says so. Equal jobs are in the same layer, hence the boxes form no cycle either.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean

import msgspec

from tenure.core.flow_rows import parents_first
from tenure.core.vocabulary import JobStatus
from tenure.protocol.replies import FlowStepRecord

MAX_SINGLE_JOBS = 60
"""A flow of more jobs has equal ones drawn as one box."""

MAX_SIBLINGS = 8
"""Up to this number, equal jobs of a small flow are drawn one by one."""

MAX_BOXES = 300
MAX_CURVES = 2_000
MAX_BENDS = 5_000
"""How many layers all curves together may bend around; further curves are drawn straight."""

SWEEPS = 6
"""How often the order within layers is improved."""

BOX_WIDTH, BOX_HEIGHT = 176, 46
LAYER_GAP, ROW_GAP = 36, 16
MARGIN = 12
LONGEST_NAME = 20
SHRUNK_WIDTH = 1_320
"""A graph of up to this width can be shrunk to the width of a desktop's page and read; wider ones
scroll."""


class Segment(msgspec.Struct, frozen=True):
    """A part of the bar of a box that represents several jobs."""

    status: JobStatus
    x: float
    width: float


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """One job, or several equal ones."""

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

    @property
    def segments(self) -> tuple[Segment, ...]:
        """How its jobs are divided among the statuses, for a bar as wide as the box."""
        here = float(self.x)
        found = []
        for status, count in self.statuses:
            width = BOX_WIDTH * count / self.count
            found.append(Segment(status, here, width))
            here += width
        return tuple(found)


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

    @property
    def may_shrink(self) -> bool:
        """Whether it is still readable if it is drawn as wide as the page."""
        return self.width <= SHRUNK_WIDTH


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
    ways, layers = _ways(drawn)
    rows = _rows(ways, layers)
    places = {
        place: (
            MARGIN + layer * (BOX_WIDTH + LAYER_GAP),
            MARGIN + round(rows[place] * (BOX_HEIGHT + ROW_GAP)),
        )
        for place, layer in layers.items()
    }
    boxes = [_box(group, *places[number]) for number, group in enumerate(drawn)]
    return FlowGraph(
        width=max((box.x for box in boxes), default=0) + BOX_WIDTH + MARGIN,
        height=max((box.y for box in boxes), default=0) + BOX_HEIGHT + MARGIN,
        boxes=tuple(boxes),
        curves=tuple(
            Curve(_path([places[place] for place in way]), boxes[way[0]].status) for way in ways
        ),
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
    names = sorted(layers, key=layers.__getitem__)
    by_name = {step.name: step for step in steps}
    classes = _classes(names, by_name, parents)
    sizes = Counter(classes.values())
    is_small = len(steps) <= MAX_SINGLE_JOBS
    groups: list[_Group] = []
    number_of_job: dict[str, int] = {}
    number_of_class: dict[int, int] = {}
    for name in names:
        shared = classes[name]
        stands_alone = is_small and sizes[shared] <= MAX_SIBLINGS
        if stands_alone or shared not in number_of_class:
            number_of_class[shared] = len(groups)
            groups.append(_Group(layer=layers[name], steps=[], parents=set()))
        number_of_job[name] = number_of_class[shared]
        group = groups[number_of_job[name]]
        group.steps.append(by_name[name])
        group.parents.update(number_of_job[parent] for parent in parents[name])
    return groups


def _classes(
    names: Sequence[str],
    steps: Mapping[str, FlowStepRecord],
    parents: Mapping[str, Sequence[str]],
) -> dict[str, int]:
    """A number for each job: equal for equal kinds with equal parents and equal children."""
    numbers: dict[object, int] = {}
    downwards: dict[str, int] = {}
    for name in names:
        above = frozenset(downwards[parent] for parent in parents[name])
        downwards[name] = numbers.setdefault((steps[name].kind, above), len(numbers))
    children: dict[str, set[int]] = {name: set() for name in names}
    both: dict[str, int] = {}
    numbers = {}
    for name in reversed(names):
        shared = (downwards[name], frozenset(children[name]))
        both[name] = numbers.setdefault(shared, len(numbers))
        for parent in parents[name]:
            children[parent].add(both[name])
    return both


def _ways(groups: Sequence[_Group]) -> tuple[list[list[int]], dict[int, int]]:
    """The edges, each as the places on its way, and the layer of each place. A box is a place with
    its number; between two boxes an edge has a place below zero in each layer, so that its curve
    goes around the boxes there."""
    layers = {number: group.layer for number, group in enumerate(groups)}
    ways: list[list[int]] = []
    bends = 0
    for number, group in enumerate(groups):
        for parent in sorted(group.parents)[: MAX_CURVES - len(ways)]:
            passed = range(groups[parent].layer + 1, group.layer)
            bends += len(passed)
            between = {-len(layers) - at: layer for at, layer in enumerate(passed, 1)}
            if bends > MAX_BENDS:
                between = {}
            layers |= between
            ways.append([parent, *between, number])
    return ways, layers


def _rows(ways: Sequence[Sequence[int]], layers: Mapping[int, int]) -> dict[int, float]:
    """The row of each place. A few sweeps move everything towards the middle of its neighbours,
    which removes most crossings; then short layers are centred on the longest one."""
    above: dict[int, list[int]] = {place: [] for place in layers}
    below: dict[int, list[int]] = {place: [] for place in layers}
    for way in ways:
        for parent, child in pairwise(way):
            above[child].append(parent)
            below[parent].append(child)
    columns: dict[int, list[int]] = {}
    for place, layer in layers.items():
        columns.setdefault(layer, []).append(place)
    rows = {place: float(row) for places in columns.values() for row, place in enumerate(places)}
    for sweep in range(SWEEPS):
        neighbours = below if sweep % 2 else above
        for layer in sorted(columns, reverse=bool(sweep % 2)):
            places = columns[layer]
            wanted = {
                place: fmean(rows[each] for each in neighbours[place] or [place])
                for place in places
            }
            places.sort(key=wanted.__getitem__)
            rows |= {place: float(row) for row, place in enumerate(places)}
    longest = max(map(len, columns.values()), default=0)
    return {
        place: rows[place] + (longest - len(places)) / 2
        for places in columns.values()
        for place in places
    }


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


def _path(corners: Sequence[tuple[int, int]]) -> str:
    """From the right side of a box to the left side of another, level within each layer. `corners`
    are the upper left ones of the places on the way."""
    middle, bend = BOX_HEIGHT // 2, LAYER_GAP // 2
    path: list[str] = []
    for (left, top), (to_left, to_top) in pairwise(corners):
        x, y, to_y = left + BOX_WIDTH, top + middle, to_top + middle
        path.append(f"H{x}" if path else f"M{x} {y}")
        path.append(f"C{x + bend} {y} {to_left - bend} {to_y} {to_left} {to_y}")
    return " ".join(path)
