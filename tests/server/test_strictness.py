"""What nearly is a request of the protocol: refused, not guessed at."""

import pytest

from tenure.core.ids import DEFAULT_NAMESPACE
from tenure.core.vocabulary import Role
from tenure_conformance.spec import spec
from tests.server.harness import Stage


@spec("H1")
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/time\n", 404),
        ("/healthz\n", 404),
        ("/v1/queues/mail/pause\n", 404),
        ("/v1/queues/mail\n/pause", 422),
    ],
)
def test_a_path_with_a_line_feed_is_not_the_one_without(
    stage: Stage, path: str, status: int
) -> None:
    method = "POST" if "pause" in path else "GET"

    heard = stage.ask(method, path, token=stage.of(Role.OPERATOR))

    assert heard.status == status
    assert stage.store.settings.queues(DEFAULT_NAMESPACE) == []


@spec("H2")
@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('"queue": "z"', "queue: is given twice"),
        (
            '"\\u0071ueue": "z"',
            "body: has a field whose name is given twice or has escapes",
        ),
        ('"policy": {"lease_s": 60, "lease_s": 30}', "policy.lease_s: is given twice"),
        ('"payload": {"a": 1, "b": {"a": 1, "a": 2}}', "payload: an object has a duplicate key"),
    ],
)
def test_a_field_that_is_given_twice_is_refused(stage: Stage, body: str, problem: str) -> None:
    refused = stage.ask(
        "POST",
        "/v1/jobs",
        token=stage.of(Role.CLIENT),
        headers={"content-type": "application/json"},
        pieces=[f'{{"queue": "q", "kind": "k", {body}}}'.encode()],
    )

    assert (refused.status, refused.json["field"]) == (422, problem.partition(":")[0])
    assert refused.json["message"] == problem


@spec("H49")
@pytest.mark.parametrize("name", ["delay_us", "error.error_class", "error_class"])
def test_an_unknown_field_is_named_as_the_caller_wrote_it(stage: Stage, name: str) -> None:
    body = {"queue": "q", "kind": "k", name: 1}

    refused = stage.ask("POST", "/v1/jobs", body, token=stage.of(Role.CLIENT))

    assert (refused.status, refused.json["field"]) == (422, name)
    assert refused.json["message"].startswith(f"{name}: unknown field")


@spec("H49")
def test_an_unknown_query_parameter_is_named_as_the_caller_wrote_it(stage: Stage) -> None:
    refused = stage.ask("GET", "/v1/time?wait_us=1", token=stage.of(Role.CLIENT))

    assert (refused.status, refused.json["field"]) == (422, "wait_us")
