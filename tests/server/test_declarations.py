"""What a worker's token may declare: nothing, unless it was created for that."""

from typing import Any

import pytest

from tenure.core.ids import DEFAULT_NAMESPACE, Kind, QueueName
from tenure.core.tokens import NewToken, TokenId, check_new_token
from tenure.core.vocabulary import Role
from tenure.errors import InvalidInput
from tenure_conformance.spec import spec
from tests.server.harness import Answer, Stage

O, W = Role.OPERATOR, Role.WORKER  # noqa: E741 - as in the table of routes

SCHEDULE = {"queue": "q", "kind": "k", "every_s": 3600, "only_new": True}


def declare_kind(stage: Stage, token: str, kind: str = "k", **fields: Any) -> Answer:
    return stage.ask("POST", f"/v1/kinds/{kind}/declare", {"rate": "1/h", **fields}, token=token)


def declare_schedule(stage: Stage, token: str, name: str = "s") -> Answer:
    return stage.ask("PUT", f"/v1/schedules/{name}/spec", SCHEDULE, token=token)


@spec("H78")
def test_a_workers_token_declares_nothing_unless_it_was_created_for_that(stage: Stage) -> None:
    plain, declaring = stage.token(W, "plain"), stage.token(W, "declaring", may_declare=True)

    refused = [declare_kind(stage, plain), declare_schedule(stage, plain)]
    kept = (
        stage.store.settings.kinds(DEFAULT_NAMESPACE),
        stage.store.schedules.page(DEFAULT_NAMESPACE),
    )
    made = [declare_kind(stage, declaring), declare_schedule(stage, declaring)]

    assert [(each.status, each.code) for each in refused] == [(403, "out_of_scope")] * 2
    assert all("--may-declare" in each.json["hint"] for each in refused)
    assert kept == ([], [])
    assert [each.status for each in made] == [200, 200]


@spec("H78")
@pytest.mark.parametrize("role", [W, O])
def test_a_token_for_some_queues_declares_no_kind(stage: Stage, role: Role) -> None:
    may = {"may_declare": True} if role is W else {}
    limited = stage.token(role, "limited", queues=(QueueName("q"),), **may)

    refused = declare_kind(stage, limited)
    made = declare_schedule(stage, limited)

    assert (refused.status, refused.code) == (403, "out_of_scope")
    assert "only a token for all queues may" in refused.json["message"]
    assert stage.store.settings.kinds(DEFAULT_NAMESPACE) == []
    assert made.status == 200


@spec("H78")
def test_a_token_for_some_kinds_declares_those(stage: Stage) -> None:
    limited = stage.token(W, "limited", kinds=(Kind("k"),), may_declare=True)

    assert declare_kind(stage, limited).status == 200
    assert declare_kind(stage, limited, "other").json["field"] == "kind"


@spec("H78")
@pytest.mark.parametrize("role", [each for each in Role if each is not W])
def test_only_a_workers_token_is_created_to_declare(role: Role) -> None:
    token_id = TokenId("0" * 16)
    new = NewToken(id=token_id, secret_sha256="0" * 64, name="n", role=role, may_declare=True)

    with pytest.raises(InvalidInput, match="may_declare"):
        check_new_token(new)
