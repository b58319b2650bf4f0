"""What a large request costs: memory and parsing, counted without a clock."""

import asyncio
import json
import threading
import tracemalloc
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tenure.core import ijson, validation
from tenure.core.vocabulary import Role
from tenure.protocol import codec
from tenure_conformance.spec import spec
from tests.server.harness import JOB, SETTINGS, Answer, Stage

EMPTY_LISTS = "[" + "[]," * 60_000 + "[]]"
OBJECTS = "[" + '{"a":[]},' * 20_000 + "[]]"
ESCAPED = "[" + '["\\u00e9"],' * 20_000 + "[]]"
JSON = {"content-type": "application/json"}


def flow(payloads: Sequence[str]) -> bytes:
    jobs = [
        f'{{"name":"n{n}","job":{{"job_id":"{JOB.format(10 + n)}","queue":"q","kind":"k",'
        f'"payload":{payload}}}}}'
        for n, payload in enumerate(payloads)
    ]
    return f'{{"flow_id":"{JOB.format(9)}","name":"f","jobs":[{",".join(jobs)}]}}'.encode()


def handler_flow(lease_id: str, payload: str) -> bytes:
    job = f'{{"queue":"q","kind":"k","payload":{payload}}}'
    return f'{{"lease_id":"{lease_id}","name":"f","jobs":[{{"name":"n","job":{job}}}]}}'.encode()


def post(stage: Stage, path: str, body: bytes, role: Role = Role.CLIENT) -> Answer:
    return stage.ask("POST", path, token=stage.of(role), headers=JSON, pieces=[body])


class Parsed:
    """Notes the sizes of bodies that are parsed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        one, many = ijson.check_content, ijson.are_as_written_here

        def check_content(body: bytes) -> None:
            self.sizes.append(len(body))
            one(body)

        def are_as_written_here(bodies: Sequence[bytes]) -> bool:
            self.sizes.append(sum(map(len, bodies)))
            return many(bodies)

        for module in (codec, ijson):
            monkeypatch.setattr(module, "check_content", check_content)
        monkeypatch.setattr(validation, "are_as_written_here", are_as_written_here)

    @property
    def large(self) -> list[int]:
        return [size for size in self.sizes if size > 10_000]


@spec("H89")
@pytest.mark.parametrize("payload", [EMPTY_LISTS, OBJECTS, ESCAPED])
@pytest.mark.slow
def test_checking_many_payloads_takes_the_memory_of_one(stage: Stage, payload: str) -> None:
    stage.enqueue(1)
    refused = flow([*[payload] * 8, "1e999"])

    def peak(body: bytes) -> int:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        assert post(stage, "/v1/flows", body).status == 422
        return tracemalloc.get_traced_memory()[1] - before

    tracemalloc.start()
    try:
        peak_bytes = peak(refused)
    finally:
        tracemalloc.stop()

    # The request takes its size a few times; a tree of it would take more than twenty times that.
    assert peak_bytes <= 8 * len(refused) + 12_000_000


@spec("H89", "J2")
@pytest.mark.parametrize("wrong", ['"' + "x" * (1 << 20) + '"', "[" * 65 + "]" * 65])
def test_size_and_depth_of_every_payload_are_checked_before_one_is_parsed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    parsed = Parsed(monkeypatch)

    refused = post(stage, "/v1/flows", flow([OBJECTS, OBJECTS, wrong]))

    assert (refused.status, refused.json["field"]) == (422, "jobs[2].job.payload")
    assert not parsed.large


@spec("H89", "H2")
def test_a_large_payload_that_is_given_twice_is_refused_unparsed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = Parsed(monkeypatch)
    body = f'{{"queue":"q","kind":"k","payload":{OBJECTS},"payload":1}}'.encode()

    refused = post(stage, "/v1/jobs", body)

    assert (refused.status, refused.json["field"]) == (422, "payload")
    assert "is given twice" in refused.json["message"]
    assert not parsed.large


@spec("H89")
def test_a_flow_under_a_lease_that_the_caller_does_not_hold_is_refused_unparsed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = stage.leased(1)
    parsed = Parsed(monkeypatch)
    path = f"/v1/jobs/{lease['job_id']}/flows"

    refused = post(stage, path, handler_flow("1-" + "ab" * 16, OBJECTS), Role.WORKER)
    unparsed = parsed.large
    made = post(stage, path, handler_flow(lease["lease_id"], OBJECTS), Role.WORKER)

    assert (refused.status, made.status) == (409, 201)
    assert refused.json["cause"] == "invalid_lease"
    assert not unparsed
    assert parsed.large


@spec("H89")
@pytest.mark.parametrize("holds_lease", [False, True])
def test_the_depth_of_a_large_body_is_measured_once_and_without_the_lease_never(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, holds_lease: bool
) -> None:
    lease = stage.leased(1)
    measured: list[int] = []
    check_size = ijson.check_size

    def noted(body: bytes, **limits: int) -> None:
        measured.append(len(body))
        check_size(body, **limits)

    for module in (codec, ijson, validation):
        monkeypatch.setattr(module, "check_size", noted)
    lease_id = lease["lease_id"] if holds_lease else "1-" + "ab" * 16
    path = f"/v1/jobs/{lease['job_id']}/flows"

    answer = post(stage, path, handler_flow(lease_id, OBJECTS), Role.WORKER)

    assert answer.status == (201 if holds_lease else 409)
    assert measured == [len(OBJECTS)] * holds_lease


@spec("H89")
def test_large_requests_are_parsed_one_at_a_time(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsing, most, other = 0, 0, threading.Event()
    check = ijson.check_content

    def counted(body: bytes) -> None:
        nonlocal parsing, most
        parsing += 1
        most = max(most, parsing)
        if parsing > 1:
            other.set()
        other.wait(0.05)  # gives others the time to come too
        check(body)
        parsing -= 1

    monkeypatch.setattr(codec, "check_content", counted)
    message = {"queue": "q", "kind": "k", "payload": "x" * 100_000}

    async def scenario() -> list[Answer]:
        asked = [stage.aask("POST", "/v1/jobs", message, token=token) for token in tokens]
        return list(await asyncio.gather(*asked))

    tokens = [stage.token(Role.CLIENT, f"c{number}") for number in range(4)]
    answers = stage.run(scenario())

    assert [each.status for each in answers] == [201] * 4
    assert most == 1


@spec("H89", "H45")
def test_what_a_parser_needs_counts_in_the_memory_limit() -> None:
    stage = Stage(settings=replace(SETTINGS, max_memory_bytes=2_000_000))

    refused = post(stage, "/v1/flows", flow([OBJECTS]))
    made = post(stage, "/v1/flows", flow(['"' + "x" * len(OBJECTS) + '"']))
    stage.close()

    assert (refused.status, refused.code) == (503, "busy")
    assert made.status == 201


@spec("H60", "H89")
def test_requests_of_other_tokens_are_parsed_in_turn(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    check = ijson.check_content

    def noted(body: bytes) -> None:
        order.append(json.loads(body)[0])
        check(body)

    monkeypatch.setattr(codec, "check_content", noted)
    many, one = stage.token(Role.CLIENT, "many"), stage.token(Role.CLIENT, "one")

    def message(name: str) -> dict[str, object]:
        return {"queue": "q", "kind": "k", "payload": [name, "x" * 100_000]}

    async def scenario() -> None:
        asked = [stage.aask("POST", "/v1/jobs", message("many"), token=many) for _ in range(8)]
        asked.append(stage.aask("POST", "/v1/jobs", message("one"), token=one))
        await asyncio.gather(*asked)

    stage.run(scenario())

    assert len(order) == 9
    assert order.index("one") <= 4


@spec("H89")
def test_a_request_whose_turn_has_come_is_checked_to_its_end(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    check_size, check_content = ijson.check_size, ijson.check_content

    def sized(body: bytes, *, max_bytes: int, max_depth: int) -> None:
        order.append(json.loads(body)[0])
        check_size(body, max_bytes=max_bytes, max_depth=max_depth)

    def parsed(body: bytes) -> None:
        order.append(json.loads(body)[0])
        check_content(body)

    monkeypatch.setattr(codec, "check_size", sized)
    monkeypatch.setattr(codec, "check_content", parsed)

    def message(number: int) -> dict[str, object]:
        return {"queue": "q", "kind": "k", "payload": [str(number), "x" * 100_000]}

    async def scenario() -> list[Answer]:
        client = stage.of(Role.CLIENT)
        asked = [stage.aask("POST", "/v1/jobs", message(each), token=client) for each in range(8)]
        return list(await asyncio.gather(*asked))

    answers = stage.run(scenario())

    assert [each.status for each in answers] == [201] * 8
    assert order[::2] == order[1::2]


@spec("H89", "H45")
def test_large_requests_of_one_token_that_wait_leave_room_for_the_parser() -> None:
    body = flow([OBJECTS])
    parsing_bytes = ijson.parsed_bytes(OBJECTS.encode())
    # A token's half has room for the parser beside four of the requests, not beside all eight.
    room_bytes = 2 * (4 * len(body) + parsing_bytes)
    stage = Stage(settings=replace(SETTINGS, max_memory_bytes=room_bytes))

    async def scenario() -> list[Answer]:
        client = stage.of(Role.CLIENT)
        asked = [
            stage.aask("POST", "/v1/flows", token=client, headers=JSON, pieces=[body])
            for _ in range(8)
        ]
        return list(await asyncio.gather(*asked))

    answers = stage.run(scenario())
    stage.close()

    assert {each.status for each in answers} <= {200, 201}
    assert stage.services.memory.used_bytes == 0
