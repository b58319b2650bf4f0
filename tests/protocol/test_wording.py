"""What a caller reads about a field that breaks a rule, and what the facts of an event are."""

import json
from typing import Any

import pytest

from tenure.core.events import FACTS_OF, Facts
from tenure.core.vocabulary import EventType
from tenure.errors import InvalidInput
from tenure.protocol import codec, requests
from tenure.protocol.routes import ROUTES
from tenure_conformance.golden import golden_logs
from tenure_conformance.spec import spec
from tests.support.cases import each_case

JOB = "018f0000-0000-7000-8000-000000000001"
LEASE = "1-" + "ab" * 16
NAME = (
    "a name of ASCII letters, digits and . _ : / -, beginning with a letter or digit,"
    " at most 128 characters"
)
UUID = "a UUID such as 0190163d-8694-739b-aea5-966c26f8ad91"
VALUES = ['"\\n"', '""', "{}", "[]", "-1.5", "null", '"' + "x" * 5000 + '"']
MESSAGES = {route.request for route in ROUTES if route.request is not None}


def refusal(message: Any, body: str) -> InvalidInput:
    with pytest.raises(InvalidInput) as refused:
        codec.decode_request(message, body.encode())
    return refused.value


@spec("H49", "Y6")
@each_case(
    ("body", "field", "problem"),
    [
        ('{"queue":"a b","kind":"k"}', "queue", f"expected {NAME}"),
        ('{"queue":"q","kind":"k","job_id":"7"}', "job_id", f"expected {UUID}"),
        ('{"kind":"k"}', "queue", "is missing"),
        (
            '{"queue":"q","kind":"k","prio":1}',
            "prio",
            "unknown field: this message has none of this name; correct or leave it out, or"
            " upgrade the server if a newer version has it",
        ),
        ('{"queue":1,"kind":"k"}', "queue", "expected text, not an integer"),
        ('{"queue":"q","kind":"k","priority":"1"}', "priority", "expected an integer, not text"),
        ('{"queue":"q","kind":"k","priority":99999}', "priority", "expected at most 32767"),
        ('{"queue":"q","kind":"k","delay_s":-1}', "delay_s", "expected at least 0"),
        ('{"queue":"q","kind":"k","dedupe_key":""}', "dedupe_key", "expected at least 1 charact"),
        (
            '{"queue":"q","kind":"k","run_at":"2030-01-01T00:00:00"}',
            "run_at",
            "expected an instant with its timezone, such as 2030-01-31T12:00:00Z",
        ),
        ('{"queue":"q","kind":"k","run_at":"soon"}', "run_at", "expected an instant with its"),
        (
            '{"queue":"q","kind":"k","policy":{"on_lost":"weep"}}',
            "policy.on_lost",
            "'weep' is none of hold, reclaim, requeue",
        ),
        (
            '{"queue":"q","kind":"k","meta":{"a b":"x"}}',
            "meta",
            "expected keys of ASCII letters, digits and . _ -, beginning with a letter or digit,"
            " at most 64 characters",
        ),
        (
            f'{{"queue":"q","kind":"k","meta":{{"{"a" * 65}":"x"}}}}',
            "meta",
            "expected at most 64 characters",
        ),
        (
            json.dumps({"queue": "q", "kind": "k", "meta": dict.fromkeys(map(str, range(17)), "")}),
            "meta",
            "expected at most 16 entries",
        ),
        ('{"queue":"q","kind":"k","meta":{"a":1}}', "meta[...]", "expected text, not an integer"),
        ("[]", "body", "expected an object, not a list"),
    ],
)
def test_a_field_that_breaks_a_rule_hears_what_is_expected(
    body: str, field: str, problem: str
) -> None:
    wrong = refusal(requests.EnqueueMessage, body)

    assert wrong.field == field
    assert wrong.problem.startswith(problem)


@spec("H49", "Y6")
@pytest.mark.parametrize(
    ("body", "field", "problem"),
    [
        ('{"reports":[]}', "reports", "expected at least 1 elements"),
        (
            '{"reports":[{"op":"explode"}]}',
            "reports[0].op",
            "'explode' is none of complete, fail, heartbeat, release, start",
        ),
        (
            f'{{"reports":[{{"op":"start","job_id":"{JOB}","lease_id":"7","request_id":"r"}}]}}',
            "reports[0].lease_id",
            "expected the lease_id of a grant",
        ),
        (
            f'{{"reports":[{{"op":"release","job_id":"{JOB}","lease_id":"{LEASE}",'
            '"request_id":"r","kind":"lunch"}]}',
            "reports[0].kind",
            "'lunch' is none of deploy, snooze",
        ),
    ],
)
def test_a_field_within_a_batch_hears_what_is_expected(body: str, field: str, problem: str) -> None:
    wrong = refusal(requests.ReportsMessage, body)

    assert (wrong.field, wrong.problem) == (field, problem)


@spec("H49", "Y6")
@each_case("message", sorted(MESSAGES, key=str))
@each_case("value", ['"\\n"', '""', "{}", "[]", "-1.5", "null", '"' + "x" * 5000 + '"'])
def test_no_problem_of_any_field_shows_a_pattern_or_a_type(message: Any, value: str) -> None:
    for name in message.__struct_encode_fields__:
        wrong = refusal(message, f'{{"unknown":1,"{name}":{value}}}')

        assert "regex" not in wrong.problem
        assert "`" not in wrong.problem


@spec("H50")
def test_the_facts_of_every_event_are_those_listed_for_its_type() -> None:
    seen: set[EventType] = set()

    for log in golden_logs(1):
        for event in log.read_events():
            facts = event.payload
            stated = {name for name in facts.__struct_fields__ if getattr(facts, name) is not None}
            seen.add(event.type)
            assert stated <= set(FACTS_OF[event.type])

    assert seen == set(EventType) == set(FACTS_OF)
    assert {fact for facts in FACTS_OF.values() for fact in facts} == set(Facts.__struct_fields__)
