"""Flows over HTTP: made as a whole or not at all, within the token's scope."""

from typing import Any

import pytest

from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.vocabulary import Role
from tenure_conformance.spec import spec
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
    assert JobId(JOB.format(5)) not in stage.store.jobs.load([JobId(JOB.format(5))]).jobs


@spec("FL3")
def test_a_parent_can_be_named_without_its_id(stage: Stage) -> None:
    child = member(2)
    child["after"] = [{"name": "job-1"}]

    made = stage.ask("POST", "/v1/flows", flow(member(1), child), token=stage.token(Role.CLIENT))

    assert made.status == 201, made.json
    assert [stage.job(JOB.format(number)).status for number in (1, 2)] == ["queued", "waiting"]


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
    assert stage.store.jobs.load(made).jobs == {}


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


@spec("FL16")
def test_flows_are_found_by_the_beginning_of_their_id(stage: Stage) -> None:
    stage.ask("POST", "/v1/flows", flow(member(1)), token=stage.token(Role.CLIENT))

    def found(prefix: str) -> Any:
        return stage.ask("GET", f"/v1/flows?id_prefix={prefix}", token=stage.token(Role.VIEWER))

    assert [each["id"] for each in found(FLOW[:13].upper()).json["flows"]] == [FLOW]
    assert found("ffff").json["flows"] == []
    assert (found("01z").status, found("01z").json["field"]) == (422, "id_prefix")


def dead_flow(stage: Stage, *members: dict[str, Any]) -> None:
    """A flow whose jobs were all cancelled."""
    made = stage.ask("POST", "/v1/flows", flow(*members), token=stage.token(Role.CLIENT))
    assert made.status == 201, made.json
    for each in members:
        job_id = each["job"]["job_id"]
        stage.call("cancel", {"request_id": "c"}, role=Role.OPERATOR, job_id=job_id)


@spec("FL10", "FL11", "FL12")
def test_a_flow_is_redriven_once_for_each_request(stage: Stage) -> None:
    dead_flow(stage, member(1), member(2, 1))
    path, operator = f"/v1/flows/{FLOW}/redrive", stage.token(Role.OPERATOR)

    first = stage.ask("POST", path, {"request_id": "r"}, token=operator)
    again = stage.ask("POST", path, {"request_id": "r"}, token=operator)
    early = stage.ask("POST", path, {"request_id": "other"}, token=operator)
    alone = stage.call("rerun", {"request_id": "x"}, role=Role.OPERATOR, job_id=JOB.format(1))
    shown = stage.ask("GET", f"/v1/flows/{FLOW}", token=operator).json

    assert (first.status, again.status, early.status, alone.status) == (201, 200, 409, 409)
    assert first.json["redrive"]["jobs"] == 2
    assert again.json["redrive"] == first.json["redrive"]
    assert (again.json["replayed"], early.json["cause"]) == (True, "not_finished")
    assert alone.json["cause"] == "part_of_flow"
    replaced = {step["replaces"]: step["status"] for step in shown["steps"] if "replaces" in step}
    replaced.pop(None, None)
    assert replaced == {JOB.format(1): "queued", JOB.format(2): "waiting"}
    assert [each["request_id"] for each in shown["redrives"]] == ["r"]


@spec("FL10", "H41", "H36")
def test_a_limited_token_redrives_only_flows_that_are_all_its_own(stage: Stage) -> None:
    undo = {"compensation": {"kind": "undo", "queue": "hidden"}}
    dead_flow(stage, member(1), member(2, 1), member(3, policy=undo))
    path = f"/v1/flows/{FLOW}/redrive"
    scopes: dict[str, Any] = {
        "another queue": {"queues": (QueueName("other"),)},
        "another kind": {"kinds": (Kind("other"),)},
        "not what its end makes": {"queues": (QueueName("q"),)},
    }
    refused = {
        name: stage.ask(
            "POST",
            path,
            {"request_id": "r"},
            token=stage.token(Role.OPERATOR, name.replace(" ", "-"), **scope),
        ).status
        for name, scope in scopes.items()
    }
    elsewhere = stage.token(Role.OPERATOR, "elsewhere", namespace="elsewhere")

    assert refused == {"another queue": 404, "another kind": 404, "not what its end makes": 403}
    assert stage.ask("POST", path, {"request_id": "r"}, token=elsewhere).status == 404
    own = stage.token(Role.OPERATOR, "own", queues=(QueueName("q"), QueueName("hidden")))
    assert stage.ask("POST", path, {"request_id": "r"}, token=own).status == 201


# --- flows from handlers -------------------------------------------------------------------------


def child(name: str, *after: str, **fields: Any) -> dict[str, Any]:
    job = {"queue": "q", "kind": "k", **fields}
    return {"job": job, "name": name, "after": [{"name": each} for each in after]}


@spec("FL13", "D12")
def test_a_worker_makes_a_flow_under_its_lease_and_makes_it_once(stage: Stage) -> None:
    job_id = stage.enqueue(1)
    [grant] = stage.claim()
    message = {"lease_id": grant["lease_id"], "name": "f", "jobs": [child("a"), child("b", "a")]}
    path, worker = f"/v1/jobs/{job_id}/flows", stage.of(Role.WORKER)

    first = stage.ask("POST", path, message, token=worker)
    again = stage.ask("POST", path, message, token=worker)
    stranger = stage.ask("POST", path, message, token=stage.token(Role.WORKER, "other"))
    unknown = stage.ask("POST", f"/v1/jobs/{JOB.format(7)}/flows", message, token=worker)
    shown = stage.ask("GET", f"/v1/flows/{first.json['flow_id']}", token=stage.of(Role.CLIENT))

    assert (first.status, again.status, stranger.status, unknown.status) == (201, 200, 409, 404)
    assert again.json["flow_id"] == first.json["flow_id"]
    assert stranger.json["cause"] == "invalid_lease"
    statuses = {step["name"]: step["status"] for step in shown.json["steps"]}
    assert statuses == {"a": "queued", "b": "waiting"}


@spec("FL13", "D12", "H41")
@pytest.mark.parametrize(
    ("jobs", "status"),
    [
        ([child("a"), child("b", queue="hidden")], 403),
        ([child("a", job_id=JOB.format(5))], 422),
        ([child("a", "nobody")], 422),
        ([child("a"), child("a")], 422),
        ([child("a", "b"), child("b", "a")], 422),
        ([child("a", dedupe_key="k")], 422),
        ([{**child("a"), "after": [{"name": "x", "job_id": JOB.format(3)}]}], 422),
    ],
)
def test_a_handlers_flow_that_is_wrong_or_out_of_scope_makes_nothing(
    stage: Stage, jobs: list[dict[str, Any]], status: int
) -> None:
    job_id = stage.enqueue(1)
    stage.enqueue(3, queue="hidden")
    limited = stage.token(Role.WORKER, "limited", queues=(QueueName("q"),))
    [grant] = stage.claim(token=limited)
    message = {"lease_id": grant["lease_id"], "name": "f", "jobs": jobs}

    refused = stage.ask("POST", f"/v1/jobs/{job_id}/flows", message, token=limited)

    assert refused.status == status, refused.json
    assert stage.ask("GET", "/v1/flows", token=stage.of(Role.CLIENT)).json["flows"] == []
