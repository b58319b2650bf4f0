"""Two operators redrive one flow while its jobs run and a purge comes: each is replaced once."""

import pytest

from tenure.core.outcomes import Change
from tenure.core.vocabulary import JobStatus
from tenure_conformance.spec import spec
from tests.model import flow_redrives
from tests.model.flow_redrives import BY_A_CLIENT, explore, steps, view


@spec("FL10", "FL11", "I37", "I32")
def test_a_job_is_replaced_once_whoever_redrives_and_whatever_comes_between() -> None:
    states = explore()

    assert len(states) > 200
    assert any(all(state.decided) for state in states), "the operators never raced"
    assert any(len(state.redrives) == 2 for state in states)
    done = [s for s in states if {step.status for step in view(s).current} == {"succeeded"}]
    assert done, "no redrive ever helped"


@spec("FL10", "I33")
def test_no_job_of_a_redriven_flow_waits_for_ever() -> None:
    stuck = [
        state
        for state in explore()
        if all(step.label.startswith(BY_A_CLIENT) for step in steps(state))
    ]

    assert all(job.status is not JobStatus.WAITING for state in stuck for job in state.rows)


@spec("FL10")
def test_without_the_checks_of_the_store_a_job_is_replaced_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model is able to say no."""
    monkeypatch.setattr(flow_redrives, "after_saving", _without_check)

    with pytest.raises(AssertionError, match=r"replaced twice|is gone"):
        explore()


def _without_check(
    state: flow_redrives.State, operator: int, change: Change
) -> flow_redrives.State:
    rows = (*state.rows, change.job, *(spawned.job for spawned in change.spawned))
    decided = flow_redrives.with_decision(state.decided, operator, None)
    assert change.redrive is not None
    return state._replace(
        rows=rows,
        edges=state.edges + change.edges,
        redrives=(*state.redrives, change.redrive),
        decided=decided,
    )
