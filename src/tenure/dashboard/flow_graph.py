"""The graph of a flow: its jobs in layers from left to right, equal siblings drawn as one.

Pure: from the steps of a flow to boxes and curves in pixels. Jobs are equal if they have the same
kind and their parents and children are equal, so that five thousand fetches before one summary are
one box with a count of each status. A graph that is too large even so is cut after its first boxes,
and says so. Equal jobs are in the same layer, hence the boxes form no cycle either.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

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

_Place = tuple[int, int]  # a layer, and a number within the graph


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


class _Edge(msgspec.Struct, frozen=True, kw_only=True):
    """A curve from one box to another, and the places that it passes between them."""

    parent: int
    child: int
    passes: tuple[_Place, ...]


class _Group(msgspec.Struct, kw_only=True):
    """Jobs that are drawn as one box."""

    number: int
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
    layers = _layers(parents)
    groups = _groups(steps, parents, layers)
    drawn, left_out = _first(groups)
    edges = _edges(drawn)
    rows = _arranged(drawn, edges)
    boxes = _boxes(drawn, rows)
    return FlowGraph(
        width=max((box.x for box in boxes.values()), default=0) + BOX_WIDTH + MARGIN,
        height=max((box.y for box in boxes.values()), default=0) + BOX_HEIGHT + MARGIN,
        boxes=tuple(boxes.values()),
        curves=tuple(_curve(edge, boxes, rows) for edge in edges),
        left_out=left_out,
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


def _layers(parents: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """The longest way from a job without parents to each job, in the order of layers."""
    layers: dict[str, int] = {}
    for name, after in parents.items():  # parents come first
        layers[name] = max((layers[parent] + 1 for parent in after), default=0)
    return dict(sorted(layers.items(), key=lambda each: each[1]))


def _groups(
    steps: Sequence[FlowStepRecord],
    parents: Mapping[str, Sequence[str]],
    layers: dict[str, int],
) -> list[_Group]:
    """Jobs that are drawn together, in the order of layers."""
    by_name = {step.name: step for step in steps}
    classes = _classes(by_name, parents, layers)
    sizes = Counter(classes.values())
    is_small = len(steps) <= MAX_SINGLE_JOBS
    group_of: dict[str, int] = {}
    groups: list[_Group] = []
    number_of: dict[int, int] = {}
    for name, layer in layers.items():  # parents come first
        shared = classes[name]
        stands_alone = is_small and sizes[shared] <= MAX_SIBLINGS
        if stands_alone or shared not in number_of:
            number_of[shared] = len(groups)
            groups.append(_Group(number=len(groups), layer=layer, steps=[], parents=set()))
        number = number_of[shared]
        group_of[name] = number
        groups[number].steps.append(by_name[name])
        groups[number].parents.update(group_of[parent] for parent in parents[name])
    return groups


def _classes(
    steps: Mapping[str, FlowStepRecord],
    parents: Mapping[str, Sequence[str]],
    layers: dict[str, int],
) -> dict[str, int]:
    """A number for each job: equal for equal kinds with equal parents and equal children."""
    numbers: dict[object, int] = {}
    downwards: dict[str, int] = {}
    for name in layers:
        above = frozenset(downwards[parent] for parent in parents[name])
        downwards[name] = numbers.setdefault((steps[name].kind, above), len(numbers))
    children: dict[str, set[int]] = {name: set() for name in layers}
    both: dict[str, int] = {}
    numbers = {}
    for name in reversed(layers):
        shared = (downwards[name], frozenset(children[name]))
        both[name] = numbers.setdefault(shared, len(numbers))
        for parent in parents[name]:
            children[parent].add(both[name])
    return both


def _first(groups: Sequence[_Group]) -> tuple[list[_Group], int]:
    """The first boxes in the order of layers, and how many jobs are in none of them."""
    ordered = sorted(groups, key=lambda group: group.layer)
    drawn = ordered[:MAX_BOXES]
    return drawn, sum(len(group.steps) for group in ordered[MAX_BOXES:])


def _edges(groups: Sequence[_Group]) -> list[_Edge]:
    """The edges between these groups. A curve across several layers has a place in each, so that it
    goes around the boxes there."""
    layer_of = {group.number: group.layer for group in groups}
    edges: list[_Edge] = []
    bends = 0
    for group in groups:
        for parent in sorted(group.parents & layer_of.keys()):
            passes = range(layer_of[parent] + 1, group.layer)
            bends += len(passes)
            if len(edges) == MAX_CURVES:
                return edges
            number = -1 - len(edges)  # below zero: the place of a curve, not of a box
            places = tuple((layer, number) for layer in passes) if bends <= MAX_BENDS else ()
            edges.append(_Edge(parent=parent, child=group.number, passes=places))
    return edges


def _arranged(groups: Sequence[_Group], edges: Sequence[_Edge]) -> dict[_Place, float]:
    """The row of each box, and of each place that a curve passes. A few sweeps move everything
    towards the middle of its neighbours, which removes most crossings."""
    place_of = {group.number: (group.layer, group.number) for group in groups}
    above: dict[_Place, list[_Place]] = {place: [] for place in place_of.values()}
    for edge in edges:
        here = place_of[edge.parent]
        for place in (*edge.passes, place_of[edge.child]):
            above.setdefault(place, []).append(here)
            here = place
    return _swept(above)


def _swept(above: Mapping[_Place, Sequence[_Place]]) -> dict[_Place, float]:
    below: dict[_Place, list[_Place]] = {place: [] for place in above}
    for place, parents in above.items():
        for parent in parents:
            below[parent].append(place)
    layers: dict[int, list[_Place]] = {}
    for place in above:
        layers.setdefault(place[0], []).append(place)
    rows = {place: float(row) for places in layers.values() for row, place in enumerate(places)}
    for sweep in range(SWEEPS):
        neighbours = above if sweep % 2 == 0 else below
        for layer in sorted(layers, reverse=bool(sweep % 2)):
            _sort_layer(layers[layer], rows, neighbours)
    _centre(layers, rows)
    return rows


def _sort_layer(
    places: list[_Place], rows: dict[_Place, float], neighbours: Mapping[_Place, Sequence[_Place]]
) -> None:
    def wanted(place: _Place) -> float:
        near = neighbours[place]
        return sum(rows[each] for each in near) / len(near) if near else rows[place]

    places.sort(key=wanted)
    for row, place in enumerate(places):
        rows[place] = float(row)


def _centre(layers: Mapping[int, Sequence[_Place]], rows: dict[_Place, float]) -> None:
    """Centre short layers on the longest one."""
    longest = max((len(places) for places in layers.values()), default=0)
    for places in layers.values():
        for place in places:
            rows[place] += (longest - len(places)) / 2


def _x(layer: int) -> int:
    return MARGIN + layer * (BOX_WIDTH + LAYER_GAP)


def _y(row: float) -> int:
    return MARGIN + round(row * (BOX_HEIGHT + ROW_GAP))


def _boxes(groups: Sequence[_Group], rows: Mapping[_Place, float]) -> dict[int, Box]:
    boxes = {}
    for group in groups:
        first, count = group.steps[0], len(group.steps)
        boxes[group.number] = Box(
            name=shortened(first.name if count == 1 else first.kind),
            kind=first.kind,
            count=count,
            statuses=by_urgency(step.status for step in group.steps),
            job_id=first.job_id if count == 1 else None,
            first_step=first.name,
            x=_x(group.layer),
            y=_y(rows[group.layer, group.number]),
        )
    return boxes


def shortened(name: str) -> str:
    """A name that fits a box."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _curve(edge: _Edge, boxes: Mapping[int, Box], rows: Mapping[_Place, float]) -> Curve:
    parent, child = boxes[edge.parent], boxes[edge.child]
    between = [(_x(place[0]), _y(rows[place])) for place in edge.passes]
    return Curve(_path(parent, between, child), parent.status)


def _path(parent: Box, between: Sequence[tuple[int, int]], child: Box) -> str:
    """From the right side of a box to the left side of another, level within each layer."""
    middle = BOX_HEIGHT // 2
    x, y = parent.x + BOX_WIDTH, parent.y + middle
    path = [f"M{x} {y}"]
    for left, top in [*between, (child.x, child.y)]:
        to = top + middle
        path.append(f"C{x + LAYER_GAP // 2} {y} {left - LAYER_GAP // 2} {to} {left} {to}")
        x, y = left, to
        if (left, top) != (child.x, child.y):
            x = left + BOX_WIDTH
            path.append(f"H{x}")
    return " ".join(path)
