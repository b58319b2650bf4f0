"""A server whose store hangs: every caller hears so in time, and may ask again. [H31]"""

import asyncio
import time
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from tenure.core.vocabulary import Role
from tenure.deadlines import DEADLINE, deadline_error
from tenure_conformance.spec import spec
from tests.server.harness import JOB, Answer, Stage, together
from tests.support.doubles import instead

TIMEOUT_S = 1.0
LATEST_S = 10.0


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage(timeout_s=TIMEOUT_S)
    yield stage
    stage.close()


@pytest.fixture
def hang(stage: Stage) -> Iterator[Any]:
    """Lets a method of the store wait until the test is over, or, within a call of the coordinator,
    until the deadline: then it fails as a store does."""
    over = Event()

    def let(method: str) -> None:
        def wait(*arguments: Any, **named: Any) -> Any:
            until = DEADLINE.get()
            if over.wait(None if until is None else until.remaining_s):
                return answer(*arguments, **named)
            raise deadline_error(TIMEOUT_S, is_known=method != "jobs.save")

        answer = instead(stage.store, method, wait)

    yield let
    over.set()


@spec("H31", "K16")
@pytest.mark.parametrize(
    ("method", "code", "nothing_changed"),
    [("jobs.load", "store_unavailable", True), ("jobs.save", "outcome_unknown", False)],
)
def test_a_command_is_answered_with_503_in_time(
    stage: Stage, hang: Any, method: str, code: str, nothing_changed: bool
) -> None:
    stage.of(Role.CLIENT)
    hang(method)
    began = time.monotonic()

    message = {"job_id": JOB.format(1), "queue": "q", "kind": "k"}
    answer = stage.call("enqueue", message, role=Role.CLIENT)

    assert (answer.status, answer.code) == (503, code)
    assert answer.json["nothing_changed"] is nothing_changed
    assert answer.headers["retry-after"] == "1"
    assert time.monotonic() - began < LATEST_S


@spec("H31", "K16")
def test_reads_that_wait_for_a_thread_are_answered_in_time_as_well(stage: Stage, hang: Any) -> None:
    job_id, token = stage.enqueue(), stage.of(Role.OPERATOR)
    hang("jobs.read")
    more_than_threads = 3 * stage.services.settings.blocking_calls

    async def ask() -> Answer:
        return await stage.aask("GET", f"/v1/jobs/{job_id}", token=token)

    async def ask_together() -> list[Answer]:
        async with asyncio.timeout(LATEST_S):
            return await together(*[ask() for _ in range(more_than_threads)])

    answers = stage.run(ask_together())

    assert {(each.status, each.code) for each in answers} == {(503, "store_unavailable")}
    assert {each.headers["retry-after"] for each in answers} == {"1"}


@spec("H31")
def test_a_claim_is_answered_in_time_after_its_wait(stage: Stage, hang: Any) -> None:
    token = stage.of(Role.WORKER)
    hang("claims.claim")

    message = stage.claim_message(wait_s=0.1)
    answer = stage.ask("POST", "/v1/claim", message, token=token)

    assert (answer.status, answer.code) == (503, "store_unavailable")


@spec("H61")
def test_slow_lists_delay_no_other_read(stage: Stage, hang: Any) -> None:
    job_id, token = stage.enqueue(), stage.of(Role.OPERATOR)
    hang("views.jobs")
    more_than_threads = 2 * (
        stage.services.settings.blocking_calls + stage.services.settings.listing_calls
    )

    async def ask_together() -> Answer:
        lists = [
            asyncio.create_task(stage.aask("GET", "/v1/jobs", token=token))
            for _ in range(more_than_threads)
        ]
        await asyncio.sleep(0)  # they come first
        job = await stage.aask("GET", f"/v1/jobs/{job_id}", token=token)
        assert not any(each.done() for each in lists)
        await together(*lists)
        return job

    assert stage.run(ask_together()).status == 200


@spec("H60", "H61")
def test_slow_lists_of_one_token_leave_threads_for_others(stage: Stage, hang: Any) -> None:
    stage.enqueue()
    greedy, other = stage.token(Role.VIEWER, "greedy"), stage.token(Role.VIEWER, "other")
    hang("views.jobs")
    more_than_threads = 3 * stage.services.settings.listing_calls

    async def ask_together() -> tuple[Answer, list[Answer]]:
        lists = [
            asyncio.create_task(stage.aask("GET", "/v1/jobs", token=greedy))
            for _ in range(more_than_threads)
        ]
        heard = await together(*lists)  # they have given up; the store still hangs
        return await stage.aask("GET", "/v1/queues", token=other), heard

    queues, heard = stage.run(ask_together())

    assert {each.status for each in heard} == {503}
    assert queues.status == 200


@spec("H60", "H61")
def test_slow_lists_of_one_namespace_leave_threads_for_others(stage: Stage, hang: Any) -> None:
    stage.enqueue()
    greedy = [stage.token(Role.VIEWER, f"greedy-{each}", namespace="acme") for each in range(3)]
    other = stage.token(Role.VIEWER, "other", namespace="globex")
    hang("views.jobs")
    more_than_threads = 3 * stage.services.settings.listing_calls

    async def ask_together() -> tuple[Answer, list[Answer]]:
        lists = [
            asyncio.create_task(stage.aask("GET", "/v1/jobs", token=token))
            for token in greedy
            for _ in range(more_than_threads)
        ]
        heard = await together(*lists)
        return await stage.aask("GET", "/v1/queues", token=other), heard

    queues, heard = stage.run(ask_together())

    assert {each.status for each in heard} == {503}
    assert queues.status == 200


@spec("H61")
def test_metrics_are_answered_while_all_lists_hang(stage: Stage, hang: Any) -> None:
    stage.enqueue()
    viewers = [stage.token(Role.VIEWER, f"of-{name}", namespace=name) for name in ("a", "b", "c")]
    hang("views.jobs")
    more_than_threads = 3 * stage.services.settings.listing_calls

    async def ask_together() -> tuple[Answer, list[Answer]]:
        lists = [
            asyncio.create_task(stage.aask("GET", "/v1/jobs", token=token))
            for token in viewers
            for _ in range(more_than_threads)
        ]
        heard = await together(*lists)
        return await stage.aask("GET", "/metrics", token=stage.of(Role.VIEWER)), heard

    metrics, heard = stage.run(ask_together())

    assert {each.status for each in heard} == {503}
    assert metrics.status == 200
