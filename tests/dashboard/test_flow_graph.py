"""The graph of a flow: layers, equal siblings as one box, bounds, and no box over another."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.vocabulary import JobStatus
from tenure.dashboard.flow_graph import (
    BOX_HEIGHT,
    BOX_WIDTH,
    LONGEST_NAME,
    MAX_BOXES,
    MAX_CURVES,
    FlowGraph,
    graph_of,
)
from tenure.protocol.replies import FlowStepRecord


def step(
    name: str,
    *after: str,
    kind: str = "work",
    status: JobStatus = JobStatus.QUEUED,
) -> FlowStepRecord:
    return FlowStepRecord(
        job_id=JobId(f"id of {name}"),
        name=name,
        kind=Kind(kind),
        queue=QueueName("default"),
        status=status,
        after=after,
    )


def columns(graph: FlowGraph) -> list[list[str]]:
    """The names of the boxes, column by column."""
    found: dict[int, list[str]] = {}
    for box in graph.boxes:
        found.setdefault(box.x, []).append(box.name)
    return [sorted(names) for _, names in sorted(found.items())]


def test_a_child_is_right_of_all_its_parents() -> None:
    graph = graph_of([step("a"), step("b", "a"), step("c", "a", "b"), step("d", "a")])

    assert columns(graph) == [["a"], ["b", "d"], ["c"]]
    assert len(graph.curves) == 4


def test_many_equal_siblings_are_one_box_with_a_count_of_each_status() -> None:
    fetches = [
        step(
            f"fetch {number}",
            "list",
            kind="fetch",
            status=JobStatus.RUNNING if number < 10 else JobStatus.SUCCEEDED,
        )
        for number in range(5_000)
    ]
    names = [fetch.name for fetch in fetches]

    graph = graph_of([step("list", kind="list"), *fetches, step("sum", *names, kind="sum")])

    group = next(box for box in graph.boxes if box.count > 1)
    assert (group.name, group.count, group.job_id) == ("fetch", 5_000, None)
    assert group.statuses == ((JobStatus.RUNNING, 10), (JobStatus.SUCCEEDED, 4_990))
    assert (len(graph.boxes), len(graph.curves), graph.has_groups) == (3, 2, True)


def test_equal_chains_are_one_chain_of_groups() -> None:
    steps = [step("merge", *(f"parse {n}" for n in range(500)), kind="merge")]
    for number in range(500):
        steps += [
            step(f"fetch {number}", kind="fetch"),
            step(f"parse {number}", f"fetch {number}", kind="parse"),
        ]

    graph = graph_of(steps)

    assert columns(graph) == [["fetch"], ["parse"], ["merge"]]


def test_a_few_equal_siblings_of_a_small_flow_are_drawn_one_by_one() -> None:
    graph = graph_of([step("a"), *(step(f"b{number}", "a") for number in range(5))])

    assert not graph.has_groups
    assert len(graph.boxes) == 6
    assert all(box.job_id for box in graph.boxes)


def test_a_graph_that_is_too_large_is_cut_and_says_how_many_jobs_are_missing() -> None:
    graph = graph_of([step(f"j{number}", kind=f"kind {number}") for number in range(10_000)])

    assert len(graph.boxes) == MAX_BOXES
    assert graph.left_out == 10_000 - MAX_BOXES


def test_edges_between_very_many_boxes_are_bounded() -> None:
    names: list[str] = []
    steps = []
    for number in range(400):
        steps.append(step(f"j{number}", *names[-100:], kind=f"kind {number}"))
        names.append(f"j{number}")

    graph = graph_of(steps)

    assert len(graph.curves) == MAX_CURVES


def test_a_parent_that_is_not_among_the_steps_is_left_out() -> None:
    graph = graph_of([step("b", "of another flow")])

    assert (len(graph.boxes), graph.curves) == (1, ())


def test_parents_of_another_flow_with_names_of_this_one_are_no_cycle() -> None:
    """`fetch-1` waits for the `fetch-1` of another flow, `a` and `b` for the `b` and `a` of it."""
    steps = [
        step("fetch-1", "fetch-1"),
        step("a", "b", "first"),
        step("b", "a", "first"),
        step("first"),
    ]

    assert columns(graph_of(steps)) == [["fetch-1", "first"], ["a", "b"]]


def test_a_flow_without_visible_steps_is_an_empty_graph() -> None:
    assert graph_of([]).boxes == ()


def test_the_most_urgent_status_is_first_and_long_names_are_cut() -> None:
    graph = graph_of([step("x" * 200, status=JobStatus.DEAD_LETTERED)])

    assert graph.boxes[0].status is JobStatus.DEAD_LETTERED
    assert len(graph.boxes[0].name) == LONGEST_NAME


@st.composite
def flows(draw: st.DrawFn) -> Sequence[FlowStepRecord]:
    """Any graph without a cycle: each job waits for some of those before it."""
    steps: list[FlowStepRecord] = []
    for number in range(draw(st.integers(0, 70))):
        names = [each.name for each in steps]
        after = draw(st.lists(st.sampled_from(names), max_size=4, unique=True)) if names else []
        kind = draw(st.sampled_from(["fetch", "parse", "sum"]))
        status = draw(st.sampled_from(list(JobStatus)))
        steps.append(step(f"s{number}", *after, kind=kind, status=status))
    return draw(st.permutations(steps))


@given(flows())
def test_in_any_graph_every_job_is_in_a_box_and_no_box_is_over_another(
    steps: Sequence[FlowStepRecord],
) -> None:
    graph = graph_of(steps)

    assert sum(box.count for box in graph.boxes) + graph.left_out == len(steps)
    places = sorted((box.x, box.y) for box in graph.boxes)
    for (x, y), (next_x, next_y) in pairwise(places):
        assert next_x >= x + BOX_WIDTH or next_y >= y + BOX_HEIGHT
    assert all(0 <= box.x <= graph.width - BOX_WIDTH for box in graph.boxes)
    assert all(0 <= box.y <= graph.height - BOX_HEIGHT for box in graph.boxes)
