"""Answers that never come: whichever one is lost, the run ends as if none had been."""

from collections.abc import Callable
from functools import partial

import pytest

from tenure.verify import assert_holds
from tenure_conformance.spec import spec
from tests.remote.proxy import SwallowingProxy
from tests.remote.script import Script, World
from tests.remote.serving import ThreadedServer

pytestmark = pytest.mark.slow

OPERATIONS = {
    "POST /v1/workers/w-1/alive",
    "POST /v1/jobs/batch",
    "POST /v1/claim",
    "POST /v1/report",
    "PUT /v1/jobs/{}/artifacts/report%2Fa.txt",
    "POST /v1/output",
    "GET /v1/jobs/{}/artifacts",
    "GET /v1/jobs/{}/artifacts/report%2Fa.txt",
    "POST /v1/jobs/{}/cancel",
    "POST /v1/jobs/{}/dead-letter",
    "POST /v1/jobs/{}/stall",
    "POST /v1/jobs/{}/requeue",
    "POST /v1/jobs/{}/redrive",
    "POST /v1/jobs/{}/rerun",
    "POST /v1/dead-letters/{}/discard",
    "POST /v1/queues/work/pause?namespace=default",
    "POST /v1/queues/work/resume?namespace=default",
    "POST /v1/queues/work/limit?namespace=default",
    "POST /v1/workers/w-1/drain?namespace=default",
}


def play(
    server: ThreadedServer, swallows: Callable[[int, str], bool]
) -> tuple[dict[str, object], SwallowingProxy]:
    """What the run leaves behind when these answers are lost."""
    world = World()
    mounted = server.mount(world.coordinator, world.clock)
    proxy = SwallowingProxy(server.port, swallows)
    script = Script(proxy.url, world.tokens)
    try:
        script.run()
        assert_holds(world.store, [])
        return world.left_behind(), proxy
    finally:
        script.close()
        proxy.close()
        mounted.close()
        world.close()


def nothing(number: int, name: str) -> bool:
    return False


@spec("Q1", "H8", "R15")
def test_whichever_answer_is_lost_the_run_ends_the_same(server: ThreadedServer) -> None:
    expected, proxy = play(server, nothing)
    answers = len(proxy.answers)

    for lost in range(1, answers + 1):
        found, proxy = play(server, partial(_is_number, lost))

        assert len(proxy.swallowed) == 1
        assert found == expected, proxy.swallowed


def _is_number(lost: int, number: int, name: str) -> bool:
    return number == lost


def test_the_run_asks_every_operation(server: ThreadedServer) -> None:
    _, proxy = play(server, nothing)

    asked = {_without_id(name) for name in proxy.answers}

    assert asked == OPERATIONS


def _without_id(name: str) -> str:
    words = ["{}" if len(part) == 36 and part.count("-") == 4 else part for part in name.split("/")]
    return "/".join(words)


@pytest.mark.parametrize("operation", ["POST /v1/report", "POST /v1/claim", "POST /v1/jobs/batch"])
def test_an_operation_may_lose_three_answers_in_a_row(
    server: ThreadedServer, operation: str
) -> None:
    expected, _ = play(server, nothing)
    left = [3]

    def first_three(number: int, name: str) -> bool:
        left[0] -= name == operation
        return name == operation and left[0] >= 0

    found, proxy = play(server, first_three)

    assert proxy.swallowed == [operation] * 3
    assert found == expected
