"""Lists of flows: which of them have their jobs counted."""

from tenure.conformance.spec import spec
from tenure.core.flow_rows import MAX_COUNTED_JOBS, Flow, counted_flows
from tenure.core.ids import DEFAULT_NAMESPACE, FlowId
from tenure.core.instants import Instant


def flow(number: int, jobs: int) -> Flow:
    return Flow(
        id=FlowId(str(number)),
        namespace=DEFAULT_NAMESPACE,
        name="f",
        made_at=Instant(0),
        jobs=jobs,
    )


@spec("FL15")
def test_the_newest_flows_are_counted_until_there_are_too_many_jobs() -> None:
    half = MAX_COUNTED_JOBS // 2

    assert counted_flows([flow(1, half), flow(2, half)]) == ["1", "2"]
    assert counted_flows([flow(1, half), flow(2, half + 1), flow(3, 1)]) == ["1"]
