"""The order of a flow's jobs."""

from tenure.core.flow_rows import FlowStep, in_order, parents_first
from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.vocabulary import JobStatus
from tenure_conformance.spec import spec


def _step(name: str, *after: str) -> FlowStep:
    return FlowStep(
        job_id=JobId(name),
        step=name,
        kind=Kind("work"),
        queue=QueueName("default"),
        status=JobStatus.QUEUED,
        after=after,
    )


def _names(*steps: FlowStep) -> list[str]:
    return [step.step for step in in_order(steps)]


@spec("FL14")
def test_parents_come_before_their_children_and_others_stay_in_their_order() -> None:
    steps = (_step("total", "b", "a"), _step("b"), _step("a", "outside"), _step("mail", "total"))

    assert _names(*steps) == ["b", "a", "total", "mail"]


def test_jobs_that_seem_to_form_a_cycle_come_last() -> None:
    """They wait for jobs of another flow that have their names."""
    steps = (_step("x", "y"), _step("y", "x"), _step("self", "self"), _step("b", "a"), _step("a"))

    assert _names(*steps) == ["a", "b", "x", "y", "self"]


def test_what_waits_for_a_cycle_has_no_place() -> None:
    assert parents_first({1: [2], 2: [1], 3: [2], 4: [], 5: [4, 6]}) == [4, 5]
