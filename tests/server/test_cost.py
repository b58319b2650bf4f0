"""What one request costs the event loop, counted in function calls: a clock would measure the
machine."""

import gc
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import h11
import pytest

from tenure.core.validation import Limits
from tenure.core.vocabulary import Role
from tenure.errors import InvalidInput
from tenure.protocol.codec import EmbeddedBodies, decode_request
from tenure.protocol.requests import EnqueueMessage, HeartbeatsMessage
from tenure.server.connections import BYTES_PER_CHUNK, FREE_CHUNKS, StrictConnection
from tenure_conformance.spec import spec
from tests.server.harness import JOB, Answer, Stage
from tests.server.test_large_bodies import Parsed

MOST_CALLS = 30_000
"""On the loop for one request; a few milliseconds."""

LEASE = "1-" + "ab" * 16


def objects(size: int) -> str:
    return "[" + ",".join(["{}"] * (size // 3)) + "]"


def numbers(size: int) -> str:
    return "[" + ",".join(["1"] * (size // 2)) + "]"


def keys(size: int) -> str:
    return "{" + ",".join(f'"{number}":1' for number in range(size // 9)) + "}"


def keys_with_the_last_one_twice(size: int) -> str:
    last = size // 9 - 1
    return keys(size).removesuffix("}") + f',"{last}":1' + "}"


def brackets(size: int) -> str:
    return ",".join(["[" * 60 + "]" * 60] * (size // 121)).join("[]")


SHAPES = [objects, numbers, keys, keys_with_the_last_one_twice, brackets]


def calls_during(work: Callable[[], object]) -> int:
    """How many functions, Python's and C's, this thread called. Without the garbage collector: it
    runs the finalizers of whatever earlier tests left behind, in any thread."""
    called = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal called
        called += event in ("call", "c_call")

    gc.disable()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return called


@spec("H39")
@pytest.mark.parametrize("shape", SHAPES)
def test_reading_twice_as_much_takes_twice_as_many_calls(shape: Callable[[int], str]) -> None:
    def calls(size: int) -> int:
        body = b'{"queue":"q","kind":"k","payload":%s}' % shape(size).encode()
        return calls_during(lambda: _read_anyhow(body))

    calls(1000)  # the first reader of a message is made for it

    assert calls(64_000) <= 2.2 * calls(32_000)


def _read_anyhow(body: bytes) -> None:
    with suppress(InvalidInput):
        EmbeddedBodies(decode_request(EnqueueMessage, body), Limits()).check()


def ask(stage: Stage, path: str, body: str, role: Role) -> Answer:
    return stage.ask(
        "POST",
        path,
        token=stage.of(role),
        headers={"content-type": "application/json"},
        pieces=[body.encode()],
    )


@spec("H39")
@pytest.mark.parametrize("size", [7_000, 60_000, 500_000])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_checkpoint_of_any_shape_and_size_does_not_hold_the_loop(
    stage: Stage, shape: Callable[[int], str], size: int
) -> None:
    report = f'"job_id":"{JOB.format(1)}","lease_id":"{LEASE}","hb_seq":1'
    body = f'{{"leases":[{{{report},"checkpoint":{shape(size)}}}]}}'
    ask(stage, "/v1/heartbeat", body[:100], Role.WORKER)

    calls = calls_during(lambda: ask(stage, "/v1/heartbeat", body, Role.WORKER))

    assert calls <= MOST_CALLS


@spec("H89")
@pytest.mark.parametrize("number", [400, 3000])
@pytest.mark.parametrize("text", ["plain", "caf\u00e9, escaped"])
def test_each_body_is_parsed_once_by_itself(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, text: str, number: int
) -> None:
    some = [{"n": each, "text": text} for each in range(number)]
    parsed = Parsed(monkeypatch)

    send_everywhere(stage, some)

    assert [size for size in parsed.sizes if size > 1000] == 7 * [len(json.dumps(some))]


def send_everywhere(stage: Stage, body: object) -> None:
    """Send it as a payload, a checkpoint and a result: seven times in five requests."""
    new = {"queue": "q", "kind": "k", "payload": body}
    made = stage.call("enqueue", new, role=Role.CLIENT)
    many = stage.call("enqueue-many", {"jobs": [new] * 3}, role=Role.CLIENT)
    [grant] = stage.claim()
    lease = {"job_id": grant["job_id"], "lease_id": grant["lease_id"]}
    beat = {"leases": [{**lease, "hb_seq": 1, "checkpoint": body}]}
    beaten = stage.call("heartbeat", beat, role=Role.WORKER)
    done = {**lease, "request_id": "c", "result": body}
    reported = stage.call("complete", done, role=Role.WORKER)
    again = {"request_id": "r", "payload": body}
    rerun = stage.call("rerun", again, role=Role.OPERATOR, job_id=lease["job_id"])
    assert [each.status for each in (made, many, beaten, reported, rerun)] == [
        201, 200, 200, 200, 201,
    ]  # fmt: skip


@spec("J1", "J2")
@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ("9007199254740993", "payload"),
        ('"\\u0000"', "payload"),
        ("1e999", "payload"),
        ('{"a":1,"a":2}', "payload"),
        ("[" * 70 + "]" * 70, "payload"),
    ],
)
def test_what_is_not_i_json_is_refused_by_its_field(stage: Stage, payload: str, field: str) -> None:
    body = f'{{"queue":"q","kind":"k","payload":{payload}}}'

    refused = ask(stage, "/v1/jobs", body, Role.CLIENT)

    assert (refused.status, refused.json["field"]) == (422, field)


@spec("H39")
@pytest.mark.parametrize("last_kind", ["k", "no/such\\nname", "k" * 129])
def test_a_batch_of_a_thousand_jobs_does_not_hold_the_loop(stage: Stage, last_kind: str) -> None:
    jobs = [f'{{"queue":"q","kind":"k","payload":{numbers(300)}}}'] * 999
    jobs.append(f'{{"queue":"q","kind":"{last_kind}"}}')
    body = '{"jobs":[' + ",".join(jobs) + "]}"
    stage.enqueue(1)

    calls = calls_during(lambda: ask(stage, "/v1/jobs/batch", body, Role.CLIENT))

    assert calls <= MOST_CALLS


@spec("H39")
def test_the_position_of_a_wrong_field_is_found_on_a_thread(stage: Stage) -> None:
    deep = "[" * 70 + "]" * 70
    jobs = [f'{{"queue":"q","kind":"k","payload":{numbers(300)}}}'] * 999
    body = '{"jobs":[' + ",".join([*jobs, f'{{"queue":"q","kind":"k","payload":{deep}}}']) + "]}"
    stage.enqueue(1)
    heard: list[Answer] = []

    calls = calls_during(lambda: heard.append(ask(stage, "/v1/jobs/batch", body, Role.CLIENT)))

    assert (heard[0].status, heard[0].json["field"]) == (422, "jobs[999].payload")
    assert calls <= MOST_CALLS


@spec("H39")
def test_a_body_in_tiny_chunks_is_refused_after_the_first_thousand() -> None:
    tiny, fair = StrictConnection(16384), StrictConnection(16384)
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    taken: list[h11.Data] = []
    chunk = b"%x\r\n" % BYTES_PER_CHUNK + b"x" * BYTES_PER_CHUNK + b"\r\n"
    tiny.receive_data(head + b"1\r\nx\r\n" * 10_000)
    fair.receive_data(head + chunk * 10_000 + b"0\r\n\r\n")

    with pytest.raises(h11.RemoteProtocolError, match="too many small chunks"):
        _pieces(tiny, taken)
    _pieces(fair, [])

    assert len(taken) <= FREE_CHUNKS + FREE_CHUNKS // BYTES_PER_CHUNK + 1


def _pieces(connection: StrictConnection, taken: list[h11.Data]) -> None:
    """Read to the end of the body."""
    while not isinstance(event := connection.next_event(), h11.EndOfMessage):
        if isinstance(event, h11.Data):
            taken.append(event)


def test_the_heartbeat_used_above_is_valid() -> None:
    """Or the counts above would be those of a refusal."""
    report = {"job_id": JOB.format(1), "lease_id": LEASE, "hb_seq": 1, "checkpoint": {}}

    decode_request(HeartbeatsMessage, json.dumps({"leases": [report]}).encode())
