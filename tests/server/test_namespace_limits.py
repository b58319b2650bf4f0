"""A namespace has a limited number of queues, schedules, kinds and live workers on a server."""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.core.vocabulary import Role
from tenure.server.limits import NamespaceLimits
from tenure_conformance.spec import spec
from tests.server.harness import JOB, SETTINGS, Answer, Stage

C, W, O = Role.CLIENT, Role.WORKER, Role.OPERATOR  # noqa: E741 - as in the table
FEW = replace(SETTINGS, max_queues=2, max_schedules=2, max_live_workers=2, max_kinds=2)


@pytest.fixture
def stage() -> Iterator[Stage]:
    made = Stage(settings=FEW)
    yield made
    made.close()


def job(number: int, queue: str, **fields: Any) -> dict[str, Any]:
    return {"job_id": JOB.format(number), "queue": queue, "kind": "k", **fields}


def enqueue(stage: Stage, *jobs: dict[str, Any], token: str | None = None) -> Answer:
    message = jobs[0] if len(jobs) == 1 else {"jobs": jobs}
    path = "/v1/jobs" if len(jobs) == 1 else "/v1/jobs/batch"
    return stage.ask("POST", path, message, token=token or stage.of(C))


def refusal(answer: Answer) -> tuple[int, str, str]:
    assert answer.json["nothing_changed"] is True
    return answer.status, answer.code, answer.json["verdict"]


def forgetful(stage: Stage) -> None:
    """As a server that was started anew."""
    services = stage.services
    store = services.coordinator.store
    services.namespace_limits = NamespaceLimits(store, FEW, services.blocking)


@spec("H77")
def test_a_queue_too_many_is_refused_and_others_go_on(stage: Stage) -> None:
    enqueue(stage, job(1, "a"))
    enqueue(stage, job(2, "b"))
    forgetful(stage)

    refused = enqueue(stage, job(3, "c"))
    elsewhere = stage.token(C, "other", namespace="globex")

    assert refusal(refused) == (422, "too_many_queues", "REJECTED")
    assert enqueue(stage, job(4, "a")).status == 201
    assert enqueue(stage, job(5, "c"), token=elsewhere).status == 201


@spec("H77")
def test_a_batch_that_needs_a_queue_too_many_is_refused_as_a_whole(stage: Stage) -> None:
    refused = enqueue(stage, job(1, "a"), job(2, "b"), job(3, "c"))

    assert refusal(refused) == (422, "too_many_queues", "REJECTED")
    assert stage.ask("GET", "/v1/jobs", token=stage.of(O)).json["jobs"] == []


@spec("H77")
def test_a_repeated_enqueue_is_answered_as_such_when_there_is_no_room(stage: Stage) -> None:
    undone = {"policy": {"compensation": {"kind": "undo", "queue": "not-yet-made"}}}
    first = enqueue(stage, job(1, "a", **undone))
    enqueue(stage, job(2, "b"))
    forgetful(stage)

    again = enqueue(stage, job(1, "a", **undone))
    new = enqueue(stage, job(3, "a", **undone))

    assert (first.status, again.status) == (201, 200)
    assert refusal(new) == (422, "too_many_queues", "REJECTED")


@spec("H77")
def test_a_queue_too_many_cannot_be_paused_into_being(stage: Stage) -> None:
    for number, queue in enumerate("ab"):
        enqueue(stage, job(number, queue))

    refused = stage.call("pause", role=O, queue="c")

    assert refusal(refused) == (422, "too_many_queues", "REJECTED")
    assert stage.call("pause", role=O, queue="a").status == 200


def put(stage: Stage, name: str, **fields: Any) -> Answer:
    message = {"kind": "k", "queue": "a", "every_s": 60, **fields}
    return stage.call("put-schedule", message, role=O, schedule=name)


@spec("H77")
def test_a_schedule_too_many_is_refused_and_those_that_exist_can_be_changed(stage: Stage) -> None:
    assert {put(stage, name).status for name in ("one", "two")} <= {200, 201}

    refused = put(stage, "three")
    changed = put(stage, "two", every_s=90)
    stage.call("remove-schedule", role=O, schedule="one")

    assert refusal(refused) == (422, "too_many_schedules", "REJECTED")
    assert changed.status == 200
    assert put(stage, "three").status in (200, 201)


def alive(stage: Stage, worker: str, **fields: Any) -> Answer:
    about = {"host": "h", "pid": 1, "queues": ["a"], "concurrency": 1, "version": "1"}
    return stage.call("alive", {**about, "uptime_s": 1, **fields}, role=W, worker=worker)


@spec("H77")
def test_a_live_worker_too_many_is_refused_until_another_is_silent(stage: Stage) -> None:
    assert {alive(stage, name).status for name in ("one", "two")} == {200}
    forgetful(stage)

    refused = alive(stage, "three")
    again = alive(stage, "two")
    stage.clock.advance(61)

    assert refusal(refused) == (422, "too_many_workers", "REJECTED")
    assert again.status == 200
    assert alive(stage, "three").status == 200


def set_kind(stage: Stage, kind: str, route: str = "set-kind") -> Answer:
    return stage.call(route, {"rate": "5/s"}, role=O, kind=kind)


@spec("H77")
@pytest.mark.parametrize("route", ["set-kind", "declare-kind"])
def test_a_kind_too_many_is_refused_and_those_that_exist_can_be_changed(
    stage: Stage, route: str
) -> None:
    assert [set_kind(stage, kind, route).status for kind in ("one", "two")] == [200, 200]
    forgetful(stage)

    refused = set_kind(stage, "three", route)
    changed = stage.call("set-kind", {"rate": "9/s"}, role=O, kind="two")

    assert refusal(refused) == (422, "too_many_kinds", "REJECTED")
    assert (changed.status, changed.json["rate"]) == (200, "9/s")
    kinds = stage.call("kinds", role=O).json["kinds"]
    assert [each["kind"] for each in kinds] == ["one", "two"]
