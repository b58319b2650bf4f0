"""Following events over HTTP: within the token's scope, in pages, and waiting for the next one."""

import asyncio
from typing import Any

import msgspec
import pytest

from tenure.core.ids import Kind, Namespace, QueueName
from tenure.core.vocabulary import Role
from tenure.server import handling
from tenure_conformance.spec import spec
from tests.server.harness import JOB, SETTINGS, Answer, Stage

LIMITS: dict[str, dict[str, Any]] = {
    "queue": {"queues": (QueueName("mine"),)},
    "kind": {"kinds": (Kind("mine"),)},
}
PATIENT_S = 10


def tail(stage: Stage, query: str = "", *, token: str | None = None) -> Answer:
    answer = stage.ask("GET", f"/v1/events/tail{query}", token=token or stage.of(Role.VIEWER))
    assert answer.status == 200, answer
    return answer


def jobs(answer: Answer) -> list[str]:
    return [each["event"]["job_id"] for each in answer.json["events"]]


@spec("E10")
def test_pages_of_the_tail_go_on_where_the_last_one_ended(stage: Stage) -> None:
    made = [stage.enqueue(number) for number in (1, 2, 3)]

    first = tail(stage, "?limit=2")
    rest = tail(stage, f"?limit=2&after={first.json['next_after']}")
    end = tail(stage, f"?after={rest.json['next_after']}")
    stage.enqueue(4)
    later = tail(stage, f"?after={end.json['next_after']}")

    assert (jobs(first), jobs(rest)) == (made[:2], made[2:])
    assert (first.json["is_end"], rest.json["is_end"], end.json["is_end"]) == (False, True, True)
    assert (jobs(end), jobs(later)) == ([], [JOB.format(4)])
    assert jobs(tail(stage, "?newest=1")) == [JOB.format(4)]
    assert jobs(tail(stage, "?type=job_claimed")) == []
    after_second = first.json["events"][1]["position"]
    assert jobs(tail(stage, f"?after={after_second}&limit=1")) == made[2:]


@spec("E10", "H41")
@pytest.mark.parametrize("word", LIMITS)
def test_a_limited_token_follows_the_events_of_its_own_jobs_only(stage: Stage, word: str) -> None:
    for number in (1, 2, 3):
        stage.enqueue(number, queue="q", kind="k")
    stage.enqueue(4, queue="mine", kind="mine")
    token = stage.token(Role.VIEWER, "limited", **LIMITS[word])
    mine, other = JOB.format(4), JOB.format(1)

    assert jobs(tail(stage, token=token)) == jobs(tail(stage, "?newest=5", token=token)) == [mine]
    assert jobs(tail(stage, f"?job_id={mine.upper()}", token=token)) == [mine]
    assert jobs(tail(stage, f"?job_id={other}", token=token)) == []


@spec("E10", "H21")
def test_a_token_follows_no_event_of_another_namespace(stage: Stage) -> None:
    stage.enqueue(1)
    theirs = stage.token(Role.OPERATOR, "theirs", namespace=Namespace("theirs"))

    asked = stage.ask("GET", "/v1/events/tail?namespace=default", token=theirs)

    assert jobs(tail(stage, token=theirs)) == []
    assert (asked.status, asked.json["field"]) == (403, "namespace")


@spec("E10")
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?wait_s=11", "wait_s"),
        ("?limit=501", "limit"),
        ("?newest=101", "newest"),
        ("?newest=1&after=1", "newest"),
        ("?after=nowhere", "after"),
        ("?type=nope", "type"),
    ],
)
def test_a_question_beyond_the_limits_is_refused(stage: Stage, query: str, field: str) -> None:
    refused = stage.ask("GET", f"/v1/events/tail{query}", token=stage.of(Role.VIEWER))

    assert (refused.status, refused.json["field"]) == (422, field)


@spec("E20")
def test_a_reader_at_the_end_is_answered_when_there_is_an_event(stage: Stage) -> None:
    stage.enqueue(1)
    at = tail(stage).json["next_after"]
    path = f"/v1/events/tail?after={at}&wait_s={PATIENT_S}"
    viewer, client = stage.of(Role.VIEWER), stage.of(Role.CLIENT)

    async def scenario() -> Answer:
        reading = asyncio.create_task(stage.aask("GET", path, token=viewer))
        await asyncio.sleep(0)
        assert not reading.done()
        message = {"job_id": JOB.format(2), "queue": "q", "kind": "k"}
        await stage.aask("POST", "/v1/jobs", message, token=client)
        return await asyncio.wait_for(reading, PATIENT_S / 2)

    assert jobs(stage.run(scenario())) == [JOB.format(2)]


@spec("E20")
def test_a_reader_without_events_is_answered_after_its_time(stage: Stage) -> None:
    answer = tail(stage, "?newest=0&wait_s=0.05")

    assert (jobs(answer), answer.json["is_end"]) == ([], True)


@spec("E20", "H31")
def test_the_time_that_a_reader_waits_is_not_the_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with a short time-out must not end a wait that was asked for."""
    monkeypatch.setattr(handling, "COORDINATOR_FIRST_S", 0.0)
    stage = Stage(timeout_s=1.5)

    answer = tail(stage, "?newest=0&wait_s=1.7")
    stage.close()

    assert jobs(answer) == []


@spec("E20", "H25")
def test_a_reader_that_waits_ends_with_its_token(stage: Stage) -> None:
    token, text = stage.new_token(Role.VIEWER, "short")
    path = f"/v1/events/tail?wait_s={PATIENT_S}"

    async def scenario() -> Answer:
        reading = asyncio.create_task(stage.aask("GET", path, token=text))
        await asyncio.sleep(0)
        stage.store.tokens.revoke(token.id)
        return await asyncio.wait_for(reading, PATIENT_S / 2)

    assert stage.run(scenario()).status == 401


@spec("E20")
def test_a_server_that_stops_answers_its_readers(stage: Stage) -> None:
    path, viewer = f"/v1/events/tail?wait_s={PATIENT_S}", stage.of(Role.VIEWER)

    async def scenario() -> Answer:
        reading = asyncio.create_task(stage.aask("GET", path, token=viewer))
        await asyncio.sleep(0.01)
        stage.services.followers.stop()
        return await asyncio.wait_for(reading, PATIENT_S / 2)

    assert jobs(stage.run(scenario())) == []


@spec("E20")
def test_too_many_readers_are_answered_without_waiting() -> None:
    stage = Stage(settings=msgspec.structs.replace(SETTINGS, max_followers=1))
    path, viewer = f"/v1/events/tail?wait_s={PATIENT_S}", stage.of(Role.VIEWER)

    async def scenario() -> tuple[Answer, bool]:
        reading = asyncio.create_task(stage.aask("GET", path, token=viewer))
        while not stage.services.followers.waiting:
            await asyncio.sleep(0)
        second = await asyncio.wait_for(stage.aask("GET", path, token=viewer), PATIENT_S / 2)
        still_waits = not reading.done()
        stage.services.followers.stop()
        await reading
        return second, still_waits

    second, still_waits = stage.run(scenario())
    stage.close()

    assert still_waits
    assert jobs(second) == []


@spec("E20", "H60")
def test_the_readers_of_one_token_leave_places_for_others() -> None:
    settings = msgspec.structs.replace(SETTINGS, max_followers=4)
    stage = Stage(settings=settings)
    path = f"/v1/events/tail?wait_s={PATIENT_S}"
    greedy, other = stage.token(Role.VIEWER, "greedy"), stage.token(Role.VIEWER, "other")

    async def scenario() -> list[bool]:
        async def read(token: str, waiting: int) -> asyncio.Task[Answer]:
            reading = asyncio.create_task(stage.aask("GET", path, token=token))
            while not reading.done() and stage.services.followers.waiting < waiting:
                await asyncio.sleep(0)
            return reading

        tasks = [await read(greedy, 1), await read(greedy, 2), await read(greedy, 3)]
        tasks.append(await read(other, 3))
        answered = [task.done() for task in tasks]
        stage.services.followers.stop()
        await asyncio.gather(*tasks)
        return answered

    answered = stage.run(scenario())
    again = tail(stage, "?wait_s=0.01", token=greedy)
    stage.close()

    assert answered == [False, False, True, False]
    assert jobs(again) == []
