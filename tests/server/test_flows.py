"""Flows over HTTP: made as a whole or not at all, within the token's scope."""

from typing import Any

import pytest

from tenure.conformance.spec import spec
from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.vocabulary import Role
from tests.server.harness import JOB, Stage

FLOW = JOB.format(90)


def member(number: int, *after: int, ended: bool = False, **fields: Any) -> dict[str, Any]:
    job = {"job_id": JOB.format(number), "queue": "q", "kind": "k", **fields}
    parents = [
        {"job_id": JOB.format(each), "name": f"job-{each}", "ended": ended} for each in after
    ]
    return {"job": job, "name": f"job-{number}", "after": parents}


def flow(*members: dict[str, Any]) -> dict[str, Any]:
    return {"flow_id": FLOW, "name": "import", "jobs": list(members)}


@spec("FL3", "FL8", "H5")
def test_a_flow_is_made_once_however_often_it_is_sent(stage: Stage) -> None:
    message = flow(member(1), member(2), member(3, 1, 2))

    first = stage.ask("POST", "/v1/flows", message, token=stage.token(Role.CLIENT))
    again = stage.ask("POST", "/v1/flows", message, token=stage.token(Role.CLIENT))

    assert (first.status, again.status) == (201, 200)
    assert first.json["job"]["flow_id"] == FLOW
    assert [stage.job(JOB.format(n)).status for n in (1, 2, 3)] == ["queued", "queued", "waiting"]


@spec("FL3", "FL8")
@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ((member(1, 2), member(2, 1)), "cycle"),
        ((member(1, 7),), "there is no job"),
        ((member(1, dedupe_key="k"),), "dedupe_key"),
        ((member(1), member(1)), "two jobs"),
        (({"job": {"queue": "q", "kind": "k"}, "name": "a"},), "job_id"),
    ],
)
def test_a_flow_that_cannot_work_is_refused_whole(
    stage: Stage, members: tuple[dict[str, Any], ...], problem: str
) -> None:
    refused = stage.ask(
        "POST", "/v1/flows", flow(member(5), *members), token=stage.token(Role.CLIENT)
    )

    assert refused.status == 422, refused.json
    assert problem in str(refused.json)
    assert JobId(JOB.format(5)) not in stage.store.load([JobId(JOB.format(5))]).jobs


@spec("FL3")
def test_ids_that_are_taken_are_the_callers_mistake(stage: Stage) -> None:
    client = stage.token(Role.CLIENT)
    stage.enqueue(2)
    taken_job = stage.ask("POST", "/v1/flows", flow(member(1), member(2)), token=client)
    stage.ask("POST", "/v1/flows", flow(member(3)), token=client)
    taken_flow = stage.ask("POST", "/v1/flows", flow(member(4)), token=client)

    for refused in (taken_job, taken_flow):
        assert (refused.status, refused.json["cause"]) == (409, "idempotency_key_reuse")
    made = [JobId(JOB.format(number)) for number in (1, 4)]
    assert stage.store.load(made).jobs == {}


@spec("FL8", "H41")
def test_a_parent_out_of_the_tokens_scope_does_not_exist(stage: Stage) -> None:
    stage.enqueue(7, queue="hidden", kind="k")
    limited = stage.token(Role.CLIENT, "limited", queues=(QueueName("q"),), kinds=(Kind("k"),))

    refused = stage.ask("POST", "/v1/flows", flow(member(1, 7)), token=limited)
    seen = stage.ask("POST", "/v1/flows", flow(member(1, 7)), token=stage.token(Role.CLIENT))

    assert (refused.status, seen.status) == (422, 201)
    assert "there is no job" in str(refused.json)


@spec("FL7")
def test_parents_are_read_under_the_lease_and_by_nobody_else(stage: Stage) -> None:
    message = flow(member(1), member(2, 1, ended=True))
    stage.ask("POST", "/v1/flows", message, token=stage.token(Role.CLIENT))
    worker = stage.token(Role.WORKER)
    claim = stage.ask("POST", "/v1/claim", stage.claim_message(queues=["q"]), token=worker)
    [grant] = claim.json["grants"]
    lease = {"job_id": grant["job_id"], "lease_id": grant["lease_id"]}
    stage.ask("POST", "/v1/complete", {**lease, "request_id": "r", "result": [1, 2]}, token=worker)
    claim = stage.ask(
        "POST", "/v1/claim", stage.claim_message(queues=["q"], wait_s=5), token=worker
    )
    [grant] = claim.json["grants"]
    path = f"/v1/jobs/{grant['job_id']}/parents"

    heard = stage.ask("POST", path, {"lease_id": grant["lease_id"]}, token=worker)
    stranger = stage.ask(
        "POST", path, {"lease_id": grant["lease_id"]}, token=stage.token(Role.WORKER, "other")
    )

    assert heard.status == 200
    assert heard.json["parents"] == [
        {"position": 0, "name": "job-1", "status": "succeeded", "result": [1, 2]}
    ]
    assert (heard.json["is_last"], heard.json["verdict"]) == (True, "OK")
    assert stranger.json.get("parents", []) == []
    assert stranger.json["verdict"] == "REJECTED"


@spec("FL9", "H41")
def test_flows_are_listed_and_shown_within_the_tokens_scope(stage: Stage) -> None:
    message = flow(member(1), member(2, 1), member(3, 2, queue="hidden"))
    stage.ask("POST", "/v1/flows", message, token=stage.token(Role.CLIENT))
    limited = stage.token(Role.VIEWER, "limited", queues=(QueueName("q"),))
    blind = stage.token(Role.VIEWER, "blind", queues=(QueueName("other"),))
    viewer = stage.token(Role.VIEWER)

    listed = stage.ask("GET", "/v1/flows", token=viewer).json["flows"]
    shown = stage.ask("GET", f"/v1/flows/{FLOW}", token=viewer).json
    part = stage.ask("GET", f"/v1/flows/{FLOW}", token=limited).json

    assert [(each["id"], each["jobs"], each["is_live"]) for each in listed] == [(FLOW, 3, True)]
    assert [(step["name"], step["status"], step["after"]) for step in shown["steps"]] == [
        ("job-1", "queued", []),
        ("job-2", "waiting", ["job-1"]),
        ("job-3", "waiting", ["job-2"]),
    ]
    assert [step["name"] for step in part["steps"]] == ["job-1", "job-2"]
    assert stage.ask("GET", f"/v1/flows/{FLOW}", token=blind).status == 404
    assert stage.ask("GET", "/v1/flows", token=limited).status == 403
