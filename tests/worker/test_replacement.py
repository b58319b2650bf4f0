"""Children that are replaced by count: the successor serves before its predecessor has left."""

import pytest

from tenure.clock import Boot, boot_now
from tenure.core.instants import seconds
from tenure.handlers.registry import Isolation
from tests.worker.actors import Actors

pytestmark = pytest.mark.process

JOBS_PER_CHILD = 100
START_TAKES = seconds(0.3)
JOB_TAKES = seconds(0.05)


class Clock:
    """Time that passes only when the test says so."""

    def __init__(self) -> None:
        self.now = boot_now()

    def __call__(self) -> Boot:
        return self.now

    def advance(self, amount_us: int) -> None:
        self.now = Boot(self.now + amount_us)


def test_a_lane_always_has_a_ready_child_while_its_children_are_replaced_by_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    actors = Actors(monkeypatch, Isolation.PROCESS, 1, jobs_per_child=JOBS_PER_CHILD, clock=clock)
    actors.pool._start_us = START_TAKES
    starting: dict[int, Boot] = {}  # by number of the child, and when it will be ready
    least_serving = actors.serving

    for _ in range(3 * JOBS_PER_CHILD):
        actors.pass_through(1)
        clock.advance(JOB_TAKES)
        for child in range(1, len(actors.ends)):
            starting.setdefault(child, Boot(clock.now + START_TAKES))
        for child in [each for each, ready_at in starting.items() if ready_at == clock.now]:
            actors.say_ready(child)
        actors.turn()
        least_serving = min(least_serving, actors.serving)

    assert least_serving >= 1
    assert len(actors.ends) in (3, 4), "one for each hundred jobs, and perhaps the next"
    actors.close()
    assert actors.finished >= 3 * JOBS_PER_CHILD
