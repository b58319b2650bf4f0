"""Lists of flows: which of them have their jobs counted."""

from tenure.core.flow_rows import MAX_COUNTED_JOBS, FlowRow, counted_flows
from tenure.core.ids import DEFAULT_NAMESPACE, FlowId
from tenure.core.instants import Instant
from tenure_conformance.spec import spec


def flow(number: int, jobs: int, *, made_again: int = 0) -> tuple[FlowRow, int]:
    """A flow, and how many jobs it has with those that replace others."""
    made = FlowRow(
        id=FlowId(str(number)),
        namespace=DEFAULT_NAMESPACE,
        name="f",
        made_at=Instant(0),
        jobs=jobs,
    )
    return made, jobs + made_again


@spec("FL15")
def test_the_newest_flows_are_counted_and_those_that_have_too_many_jobs_left_out() -> None:
    half = MAX_COUNTED_JOBS // 2

    assert counted_flows([flow(1, half), flow(2, half)]) == ["1", "2"]
    assert counted_flows([flow(1, half), flow(2, half), flow(3, 1)]) == ["1", "2"]
    assert counted_flows([flow(1, half), flow(2, half + 1), flow(3, 1)]) == ["1", "3"]


@spec("FL15", "FL10")
def test_jobs_that_replace_others_count_as_read() -> None:
    half = MAX_COUNTED_JOBS // 2

    assert counted_flows([flow(1, half, made_again=half)]) == ["1"]
    assert counted_flows([flow(1, half, made_again=half + 1), flow(2, 1)]) == ["2"]
