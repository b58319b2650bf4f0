"""Where it plays no fault, the scripted coordinator answers as the real one does."""

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tenure.core.vocabulary import Role
from tenure_conformance.worker.http_server import Listener
from tenure_conformance.worker.record import Record
from tenure_conformance.worker.scenarios import BY_NAME, KIND, QUEUE
from tests.server.harness import JOB, Stage

TOKEN = "tenure_0_0"
Ask = Callable[[str, dict[str, Any]], dict[str, Any]]
Dialogue = list[dict[str, Any]]


def ask_real(stage: Stage) -> Ask:
    stage.ask(
        "POST",
        "/v1/jobs",
        {"queue": QUEUE, "kind": KIND, "payload": {}},
        token=stage.of(Role.CLIENT),
    )

    def ask(name: str, message: dict[str, Any]) -> dict[str, Any]:
        found = stage.ask("POST", f"/v1/{name}", message, token=stage.of(Role.WORKER)).json
        assert isinstance(found, dict)
        return found

    return ask


@pytest.fixture
def real() -> Iterator[Ask]:
    with closing(Stage()) as stage:
        yield ask_real(stage)


@pytest.fixture
def listener() -> Iterator[Listener]:
    with closing(Listener(BY_NAME["success"], Record(), token=TOKEN)) as listener:
        yield listener


@pytest.fixture
def scripted(listener: Listener) -> Iterator[Ask]:
    with closing(connect(listener)) as connection:

        def ask(name: str, message: dict[str, Any]) -> dict[str, Any]:
            headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
            connection.request("POST", f"/v1/{name}", json.dumps(message), headers)
            found = json.load(connection.getresponse())
            assert isinstance(found, dict)
            return found

        yield ask


def connect(listener: Listener) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(listener.url.removeprefix("http://"), timeout=60)


def seen(answer: dict[str, Any]) -> dict[str, Any]:
    """What must be equal: the words, not the times and ids."""
    words = ("verdict", "cause", "settled", "replayed", "disposition", "repeated", "job_status")
    found = {word: answer[word] for word in words if word in answer}
    if "grants" in answer:
        found["grants"] = [sorted(grant) for grant in answer["grants"]]
    return found


def life(ask: Ask, report: str, body: dict[str, Any], *, starts: bool) -> Dialogue:
    """A lease from its claim to long after its end, every step sent twice."""
    claim = {"worker": "w", "queues": [QUEUE], "claim_seq": 1, "request_id": "c1", "start": starts}
    answers = [ask("claim", claim), ask("claim", claim)]
    grant = answers[0]["grants"][0]
    lease = {"job_id": grant["job_id"], "lease_id": grant["lease_id"]}
    start = lease | {"request_id": f"{grant['lease_id']}:start"}
    answers += [
        grant,
        ask("start", start),
        ask("start", start),
        ask("start", lease | {"request_id": "t"}),
    ]
    for hb_seq in (1, 1, 2):
        answers += ask("heartbeat", {"leases": [lease | {"hb_seq": hb_seq}]})["verdicts"]
    end = lease | {"request_id": "e"} | body
    answers += [ask(report, end), ask(report, end), ask(report, end | {"request_id": "f"})]
    other = lease | {"request_id": "e", "result": "another"}
    answers += [ask("complete", other), ask("start", start)]
    answers += ask("heartbeat", {"leases": [lease | {"hb_seq": 3}]})["verdicts"]
    stranger = lease | {"lease_id": "1-" + "0" * 32, "request_id": "x"}
    answers += [ask("complete", stranger), ask("claim", claim)]
    batch = {"reports": [{"op": "start", **start}, {"op": report, **end}]}
    return [seen(answer) for answer in answers + ask("report", batch)["verdicts"]]


@pytest.mark.parametrize("starts", [False, True], ids=["claims", "claims and starts"])
@pytest.mark.parametrize(
    ("report", "body"),
    [
        ("complete", {"result": {"n": 1}}),
        ("fail", {"error": {"class": "transient", "message": "no"}, "retry_after_s": 60}),
        ("release", {"delay_s": 60}),
    ],
)
def test_the_scripted_coordinator_answers_as_the_real_one(
    real: Ask, scripted: Ask, report: str, body: dict[str, Any], starts: bool
) -> None:
    heard = life(real, report, body, starts=starts)

    assert life(scripted, report, body, starts=starts) == heard


# --- what no worker should send ------------------------------------------------------------------


BODY = b'{"worker":"w","queues":["q"],"claim_seq":1,"request_id":"r"}'
JSON = {"content-type": "application/json"}
FILE = f"/v1/jobs/{JOB.format(1)}/artifacts/a"

WRONG: dict[str, tuple[str, str, dict[str, str], bytes]] = {
    "no JSON": ("POST", "/v1/claim", JSON, b"{"),
    "no text": ("POST", "/v1/claim", JSON, b"\xff"),
    "no object": ("POST", "/v1/claim", JSON, b"[]"),
    "a field too few": ("POST", "/v1/claim", JSON, b"{}"),
    "a field too many": ("POST", "/v1/claim", JSON, BODY[:-1] + b',"colour":1}'),
    "a form": ("POST", "/v1/claim", {"content-type": "application/x-www-form-urlencoded"}, BODY),
    "nearly JSON": ("POST", "/v1/claim", {"content-type": "application/json-seq"}, BODY),
    "an unknown route": ("POST", "/v1/clam", JSON, BODY),
    "another method": ("PUT", "/v1/claim", JSON, BODY),
    "a client's route": ("POST", "/v1/jobs", JSON, b"{"),
    "an operator's route": ("POST", "/v1/queues/q/pause", {}, b""),
    "a file without a lease": ("PUT", FILE, {"content-type": "text/plain"}, b"x"),
    "a wrong token": ("POST", "/v1/claim", {**JSON, "authorization": "Bearer tenure_1_1"}, BODY),
}


def heard(status: int, body: bytes) -> tuple[int, str, str | None]:
    problem = json.loads(body)
    return status, problem["code"], problem["verdict"]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_hears_the_same_words_from_both(listener: Listener, wrong: str) -> None:
    method, path, headers, body = WRONG[wrong]
    with closing(Stage()) as stage:
        token = None if "authorization" in headers else stage.of(Role.WORKER)
        real = stage.ask(method, path, token=token, headers=headers, pieces=[body])

    with closing(connect(listener)) as connection:
        shown = {"authorization": f"Bearer {TOKEN}", **headers}
        connection.request(method, path, body, shown)
        scripted = connection.getresponse()
        answer = heard(scripted.status, scripted.read())

    assert answer == heard(real.status, real.body)
    assert len(listener.record.malformed) == 1


@pytest.mark.parametrize(
    ("framing", "status", "code"),
    [
        (b"Content-Length: -1\r\n\r\n", 400, "malformed"),
        (b"Content-Length: \xb2\r\n\r\n", 400, "malformed"),
        (b"Content-Length: 99999999\r\n\r\n", 413, "too_large"),
        (b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400, "malformed"),
        (b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400, "malformed"),
        (b"Transfer-Encoding: chunked\r\n\r\n\r\n", 400, "malformed"),
        (b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 40 + b"\r\n", 400, "malformed"),
    ],
)
def test_a_body_that_cannot_be_is_answered_and_the_connection_ends(
    listener: Listener, framing: bytes, status: int, code: str
) -> None:
    host, _, port = listener.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as strange:
        strange.sendall(b"POST /v1/claim HTTP/1.1\r\nHost: localhost\r\n" + framing)
        head, _, body = b"".join(iter(lambda: strange.recv(65536), b"")).partition(b"\r\n\r\n")

    assert heard(int(head.split()[1]), body) == (status, code, "REJECTED")
    assert len(listener.record.malformed) == 1


def test_a_body_in_chunks_is_read(listener: Listener) -> None:
    with closing(connect(listener)) as connection:
        headers = {**JSON, "authorization": f"Bearer {TOKEN}"}
        pieces = iter([BODY[:10], BODY[10:]])
        connection.request("POST", "/v1/claim", pieces, headers, encode_chunked=True)

        assert connection.getresponse().status == 200
    assert listener.record.malformed == []
