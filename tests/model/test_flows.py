"""Two parents that end at the same moment: their child goes on once, and always."""

import pytest

from tenure.core.vocabulary import JobStatus
from tenure_conformance.spec import spec
from tests.model import flows
from tests.model.flows import CHILD, CHILD_CANCELLED, PARENTS, State, explore, steps


def is_settled(state: State) -> bool:
    """Whether both parents have ended and no process has anything left to do."""
    have_ended = all(state.job(each).status.is_terminal for each in PARENTS)
    return have_ended and all(step.label == CHILD_CANCELLED for step in steps(state))


@spec("FL5", "I32", "T28", "T29")
@pytest.mark.parametrize("whatever", [False, True])
def test_a_join_goes_on_once_whoever_ends_last_and_whoever_dies(whatever: bool) -> None:
    states = explore(whatever=whatever)

    assert len(states) > 500
    assert any(state.ready_events == 1 for state in states)
    both_look = [s for s in states if all(each.decided for each in s.processes[:2])]
    assert both_look, "no two processes raced for the child"


@spec("FL5", "I33", "V4")
@pytest.mark.parametrize("whatever", [False, True])
def test_no_child_is_stuck_once_the_sweeper_has_looked(whatever: bool) -> None:
    states = explore(whatever=whatever)

    settled = [state for state in states if is_settled(state)]

    assert settled
    ends = {state.job(CHILD).status for state in settled}
    assert JobStatus.WAITING not in ends
    assert JobStatus.QUEUED in ends
    for state in settled:
        well = all(state.job(each).status is JobStatus.SUCCEEDED for each in PARENTS)
        if state.ready_events:
            assert well or whatever


@spec("FL5")
def test_without_the_note_a_process_that_dies_leaves_a_child_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model is able to say no."""
    goes_on = flows.continuations
    monkeypatch.setattr(
        flows, "continuations", lambda s, n, p: goes_on(s._replace(noted=frozenset()), n, p)
    )

    states = explore(whatever=False)

    assert any(s.job(CHILD).status is JobStatus.WAITING for s in states if is_settled(s))
