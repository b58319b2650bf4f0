"""Who sees which metrics over HTTP."""

from tenure.core.ids import Kind, Namespace, QueueName
from tenure.core.vocabulary import Role
from tenure_conformance.spec import spec
from tests.server.harness import Stage


def _told(namespace: Namespace | None) -> bytes:
    return f"about {namespace}".encode()


@spec("OB2")
def test_a_token_sees_its_own_namespace() -> None:
    stage = Stage(metrics=_told)
    token = stage.token(Role.VIEWER, namespace=Namespace("shop"))

    answer = stage.ask("GET", "/metrics", token=token)
    stage.close()

    assert answer.body == b"about shop"
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


@spec("OB2")
def test_a_token_that_is_limited_sees_none() -> None:
    stage = Stage(metrics=_told)
    limited = [
        stage.token(Role.OPERATOR, queues=(QueueName("q"),)),
        stage.token(Role.OPERATOR, kinds=(Kind("k"),)),
    ]

    answers = [stage.ask("GET", "/metrics", token=token) for token in limited]
    stage.close()

    assert [(answer.status, answer.code) for answer in answers] == [(403, "out_of_scope")] * 2


def test_without_tokens_all_namespaces_are_seen() -> None:
    stage = Stage(metrics=_told, authenticated=False)

    answer = stage.ask("GET", "/metrics")
    stage.close()

    assert answer.body == b"about None"
