"""Where it plays no fault, the scripted coordinator answers as the real one does."""

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from tenure.conformance.worker.listening import Listener
from tenure.conformance.worker.record import Record
from tenure.conformance.worker.scenarios import BY_NAME, KIND, QUEUE
from tenure.core.vocabulary import Role
from tests.server.harness import Stage

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
def scripted() -> Iterator[Ask]:
    with closing(Listener(BY_NAME["success"], Record(), token=TOKEN)) as listener:
        connection = http.client.HTTPConnection(listener.url.removeprefix("http://"), timeout=60)

        def ask(name: str, message: dict[str, Any]) -> dict[str, Any]:
            headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
            connection.request("POST", f"/v1/{name}", json.dumps(message), headers)
            found = json.load(connection.getresponse())
            assert isinstance(found, dict)
            return found

        with closing(connection):
            yield ask


def seen(answer: dict[str, Any]) -> dict[str, Any]:
    """What must be equal: the words, not the times and ids."""
    words = ("verdict", "cause", "settled", "replayed", "disposition", "repeated", "job_status")
    found = {word: answer[word] for word in words if word in answer}
    if "grants" in answer:
        found["grants"] = [sorted(grant) for grant in answer["grants"]]
    return found


def life(ask: Ask, report: str, body: dict[str, Any]) -> Dialogue:
    """A lease from its claim to long after its end, every step sent twice."""
    claim = {"worker": "w", "queues": [QUEUE], "claim_seq": 1, "request_id": "c1"}
    answers = [ask("claim", claim), ask("claim", claim)]
    grant = answers[0]["grants"][0]
    lease = {"job_id": grant["job_id"], "lease_id": grant["lease_id"]}
    start = lease | {"request_id": "s"}
    answers += [ask("start", start), ask("start", start), ask("start", lease | {"request_id": "t"})]
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


@pytest.mark.parametrize(
    ("report", "body"),
    [
        ("complete", {"result": {"n": 1}}),
        ("fail", {"error": {"class": "transient", "message": "no"}, "retry_after_s": 60}),
        ("release", {"delay_s": 60}),
    ],
)
def test_the_scripted_coordinator_answers_as_the_real_one(
    real: Ask, scripted: Ask, report: str, body: dict[str, Any]
) -> None:
    assert life(scripted, report, body) == life(real, report, body)
