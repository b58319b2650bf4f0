"""A batch shares what its decisions have in common, and each decision is the same as alone."""

from collections.abc import Callable
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from tenure.core.commands import Command
from tenure.core.lifecycle import decide
from tenure.core.outcomes import Applied, NeedsHistory, Outcome, Shared
from tests.core.test_every_pair import COMMANDS, SITUATIONS
from tests.support.jobs import Driver
from tools import lives

ASKED: dict[str, Callable[[Driver], Command]] = COMMANDS | {
    "complete, a result": lambda d: d.complete(result=b"1"),
    "complete, another result": lambda d: d.complete(result=b"2"),
}
FREQUENT = (
    ("no job", "enqueue"),
    ("queued", "claim"),
    ("queued", "claim and start"),
    ("claimed", "start"),
    *[("running", name) for name in ASKED if name.startswith("complete")],
    *[("claimed", name) for name in ASKED if name.startswith("complete")],
)
PAIRS = [(situation, name) for situation in SITUATIONS for name in ASKED]


@cache
def in_situation(name: str) -> Driver:
    """Asked only: nothing that is decided is kept, so that all tests can use it."""
    return SITUATIONS[name]()


def decided_in_batch(driver: Driver, command: Command, shared: Shared) -> Outcome:
    outcome = decide(command, driver.context(shared=shared))
    if isinstance(outcome, NeedsHistory):
        outcome = decide(command, driver.context(shared=shared, history=driver.events))
    return outcome


@given(st.lists(st.sampled_from(PAIRS) | st.sampled_from(FREQUENT), min_size=2, max_size=30))
def test_a_batch_decides_each_command_as_it_is_decided_alone(batch: list[tuple[str, str]]) -> None:
    asked = [(in_situation(where), ASKED[what](in_situation(where))) for where, what in batch]
    alone = [driver.ask(command) for driver, command in asked]

    shared = Shared()
    together = [decided_in_batch(driver, command, shared) for driver, command in asked]

    assert together == alone


def test_equal_completions_of_a_batch_share_their_way_and_their_facts() -> None:
    """Otherwise the property above would hold because nothing is shared."""
    shared, paths, outcomes = Shared(), [], []
    for driver in (lives.running(), lives.running()):
        outcomes.append(decided_in_batch(driver, driver.complete(result=b"1"), shared))
        paths.append(shared.last_path)

    assert all(isinstance(outcome, Applied) for outcome in outcomes)
    first, second = [each.change.events[0] for each in outcomes if isinstance(each, Applied)]
    assert first.payload is second.payload
    assert paths[0] is paths[1] is not None
