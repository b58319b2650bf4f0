"""Who may ask what: every route for every role, from the table and against one written by hand."""

import hashlib
from typing import Any

import pytest

from tenure.core.vocabulary import Role
from tenure.protocol.routes import BY_NAME, ROUTES, Route
from tenure_conformance.spec import spec
from tests.server.harness import JOB, Answer, Stage

C, P, W, O, V = Role  # noqa: E741 - the table's columns
NOBODY: frozenset[Role] = frozenset()
EVERYBODY = frozenset(Role)

MAY_ASK: dict[str, frozenset[Role]] = {
    "claim": frozenset({W}),
    "start": frozenset({W}),
    "complete": frozenset({W}),
    "fail": frozenset({W}),
    "release": frozenset({W}),
    "heartbeat": frozenset({W}),
    "report": frozenset({W}),
    "peek-leases": frozenset({W}),
    "output": frozenset({W}),
    "upload-artifact": frozenset({W}),
    "follow-up": frozenset({W}),
    "parents": frozenset({W}),
    "flow": frozenset({C, P, O}),
    "flows": frozenset({C, O, V}),
    "show-flow": frozenset({C, O, V}),
    "redrive-flow": frozenset({O}),
    "handler-flow": frozenset({W}),
    "alive": frozenset({W}),
    "enqueue": frozenset({C, P, O}),
    "enqueue-many": frozenset({C, P, O}),
    "lookup": frozenset({C, P, O, V}),
    "jobs": frozenset({C, O, V}),
    "job": frozenset({C, P, O, V}),
    "events": frozenset({C, O, V}),
    "observations": frozenset({C, O, V}),
    "verify-job": frozenset({C, O, V}),
    "wait-reasons": frozenset({C, O, V}),
    "logs": frozenset({C, O}),
    "artifacts": frozenset({C, O, V}),
    "artifact": frozenset({C, O}),
    "cancel": frozenset({C, O}),
    "cancel-many": frozenset({C, O}),
    "stall": frozenset({O}),
    "requeue": frozenset({O}),
    "dead-letter": frozenset({O}),
    "redrive": frozenset({O}),
    "rerun": frozenset({O}),
    "dead-letters": frozenset({C, O, V}),
    "dead-letter-groups": frozenset({C, O, V}),
    "discard": frozenset({O}),
    "queues": frozenset({C, O, V}),
    "pause": frozenset({O}),
    "resume": frozenset({O}),
    "limit": frozenset({O}),
    "kinds": frozenset({C, W, O, V}),
    "set-kind": frozenset({O}),
    "declare-kind": frozenset({W, O}),
    "schedules": frozenset({C, O, V}),
    "schedule": frozenset({C, O, V}),
    "put-schedule": frozenset({W, O}),
    "pause-schedule": frozenset({O}),
    "resume-schedule": frozenset({O}),
    "remove-schedule": frozenset({O}),
    "run-schedule": frozenset({O}),
    "workers": frozenset({O, V}),
    "log": frozenset({O, V}),
    "tail": frozenset({O, V}),
    "stats": frozenset({O, V}),
    "overview": frozenset({O, V}),
    "drain": frozenset({O}),
    "time": EVERYBODY,
    "openapi": EVERYBODY,
    "metrics": frozenset({O, V}),
    "healthz": NOBODY,
    "readyz": NOBODY,
}

LEASE = "1-" + "ab" * 16
REPORT = {"job_id": JOB.format(1), "lease_id": LEASE, "request_id": "r"}
ASKED = {"request_id": "r"}

EXAMPLES: dict[str, object] = {
    "claim": {"worker": "w", "queues": ["q"], "claim_seq": 1, "request_id": "r"},
    "start": REPORT,
    "complete": REPORT,
    "fail": {**REPORT, "error": {"class": "transient"}},
    "release": REPORT,
    "heartbeat": {"leases": [{"job_id": JOB.format(1), "lease_id": LEASE, "hb_seq": 1}]},
    "report": {"reports": [{"op": "start", **REPORT}]},
    "peek-leases": {"leases": [{"job_id": JOB.format(1), "lease_id": LEASE}]},
    "output": {"job_id": JOB.format(1), "lease_id": LEASE, "text": "hello"},
    "follow-up": {"lease_id": LEASE, "job": {"queue": "q", "kind": "k"}},
    "parents": {"lease_id": LEASE},
    "flow": {
        "flow_id": JOB.format(8),
        "name": "f",
        "jobs": [{"job": {"job_id": JOB.format(9), "queue": "q", "kind": "k"}, "name": "a"}],
    },
    "redrive-flow": {"request_id": "r"},
    "handler-flow": {
        "lease_id": LEASE,
        "name": "f",
        "jobs": [{"job": {"queue": "q", "kind": "k"}, "name": "a"}],
    },
    "alive": {
        "host": "h",
        "pid": 1,
        "queues": ["q"],
        "kinds": ["k"],
        "concurrency": 1,
        "version": "1",
        "uptime_s": 0,
    },
    "enqueue": {"queue": "q", "kind": "k"},
    "enqueue-many": {"jobs": [{"queue": "q", "kind": "k"}]},
    "lookup": {"job_ids": [JOB.format(1)]},
    "cancel": ASKED,
    "cancel-many": {**ASKED, "job_ids": [JOB.format(1)]},
    "stall": ASKED,
    "requeue": ASKED,
    "dead-letter": {**ASKED, "reason_code": "policy_violation"},
    "redrive": ASKED,
    "rerun": ASKED,
    "discard": ASKED,
    "limit": {"limit": 3},
    "set-kind": {"rate": "10/s"},
    "declare-kind": {"rate": "10/s"},
    "put-schedule": {"queue": "q", "kind": "k", "every_s": 60, "only_new": True},
    "run-schedule": {"job_id": JOB.format(1)},
}
PARTS = {
    "job_id": JOB.format(1),
    "name": "a",
    "queue": "q",
    "kind": "k",
    "worker": "w",
    "schedule": "s",
    "flow_id": JOB.format(8),
}


def name_of(value: object) -> str:
    return value.name if isinstance(value, Route) else str(value)


def send(stage: Stage, route: Route, *, token: str | None) -> Answer:
    """The example of a route; a route that has a body and no example is a KeyError."""
    more: dict[str, Any] = {"token": token}
    if route.name == "upload-artifact":
        more |= {"pieces": [b"bytes"], "headers": {"Tenure-Lease": LEASE}}
    message = EXAMPLES[route.name] if route.request is not None else None
    path = route.path.format(**{field: PARTS[field] for field in route.path_fields})
    return stage.ask(route.method, path, message, **more)


@spec("H22")
def test_every_route_says_who_may_ask_and_the_table_by_hand_agrees() -> None:
    assert {route.name: frozenset(route.roles) for route in ROUTES} == MAY_ASK


@spec("H22")
@pytest.mark.parametrize("role", list(Role), ids=str)
@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_a_role_reaches_its_routes_and_no_others(stage: Stage, route: Route, role: Role) -> None:
    stage.enqueue()

    answer = send(stage, route, token=stage.of(role))

    is_allowed = role in MAY_ASK[route.name] or MAY_ASK[route.name] is NOBODY
    assert answer.status < 500, answer
    assert (answer.status not in (401, 403)) == is_allowed, answer
    if not is_allowed:
        assert answer.json["code"] == "out_of_scope"
        assert answer.json["verdict"] == "REJECTED"


@spec("H22")
@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_without_a_token_only_the_public_routes_answer(stage: Stage, route: Route) -> None:
    answer = send(stage, route, token=None)

    if route.is_public:
        assert answer.status == 200
    else:
        assert answer.status == 401
        assert answer.json["verdict"] == "REJECTED"
        assert answer.headers["www-authenticate"] == "Bearer"


@spec("H22")
@pytest.mark.parametrize("route", [each for each in ROUTES if not each.is_public], ids=name_of)
def test_a_refused_role_changes_nothing(stage: Stage, route: Route) -> None:
    job_id = stage.enqueue()
    before = (stage.job(job_id), stage.events(job_id))

    for role in set(Role) - MAY_ASK[route.name]:
        send(stage, route, token=stage.of(role))
    send(stage, route, token=None)

    assert (stage.job(job_id), stage.events(job_id)) == before
    assert len(stage.store.settings.queues(before[0].namespace)) == 1


@pytest.mark.parametrize("route", ROUTES, ids=name_of)
def test_a_route_answers_with_a_status_that_its_description_has(stage: Stage, route: Route) -> None:
    stage.enqueue()
    roles = list(MAY_ASK[route.name]) or [C]

    answers = [send(stage, route, token=stage.of(role)) for role in roles]

    described = stage.call("openapi", role=C).json["paths"][route.path][route.method.lower()]
    assert {str(answer.status) for answer in answers} <= described["responses"].keys()
    assert BY_NAME[route.name] is route


@spec("H46")
def test_a_viewer_sees_no_digest_of_what_it_may_not_see(stage: Stage) -> None:
    bodies = {"payload": {"pin": 1234}, "checkpoint": [1], "result": {"pin": 4321}}
    lease = stage.leased(1, payload=bodies["payload"])
    beat = {**lease, "hb_seq": 1, "checkpoint": bodies["checkpoint"]}
    stage.call("start", {**lease, "request_id": "s"}, role=W)
    stage.call("heartbeat", {"leases": [beat]}, role=W)
    put = {"headers": {"Tenure-Lease": lease["lease_id"]}, "pieces": [b"file"]}
    stage.call("upload-artifact", role=W, job_id=lease["job_id"], name="a", **put)
    done = {**lease, "request_id": "c", "result": bodies["result"]}
    stage.call("complete", done, role=W)
    kept = [event.payload for event in stage.events(lease["job_id"])]
    digests = {*(facts.sha256 for facts in kept), *(facts.checkpoint_sha256 for facts in kept)}
    digests |= {event.fingerprint for event in stage.events(lease["job_id"])}
    digests |= {hashlib.sha256(b"file").hexdigest()}

    def seen_by(role: Role) -> str:
        parts = {"job_id": lease["job_id"]}
        routes = [each for each in ROUTES if each.method == "GET" and role in each.roles]
        paths = [each.path.format(**{**PARTS, **parts}) for each in routes]
        answers = [stage.ask("GET", path, token=stage.of(role)) for path in paths]
        return "".join(answer.body.decode() for answer in answers)

    found = {
        role: {each for each in digests - {None} if str(each) in seen_by(role)} for role in Role
    }

    assert found[C] == digests - {None}
    assert (found[V], found[P]) == (set(), set())


@spec("H46")
def test_a_producer_enqueues_and_sees_no_bodies(stage: Stage) -> None:
    token = stage.of(P)
    job_id = stage.enqueue(1, token=token, payload="secret")
    lookup = {"job_ids": [job_id]}
    again = {"job_id": job_id, "queue": "q", "kind": "k", "payload": "secret"}

    shown = [
        stage.ask("GET", f"/v1/jobs/{job_id}", token=token),
        stage.ask("POST", "/v1/jobs/lookup", lookup, token=token),
        stage.ask("POST", "/v1/jobs", again, token=token),
    ]
    refused = [
        stage.ask("GET", f"/v1/jobs/{job_id}?bodies=true", token=token),
        stage.ask("POST", "/v1/jobs/lookup?bodies=true", lookup, token=token),
    ]

    assert {answer.status for answer in shown} == {200}
    assert not any(b"secret" in answer.body for answer in shown)
    assert {(answer.status, answer.json["field"]) for answer in refused} == {(403, "bodies")}
    assert stage.events(job_id)[0].actor == "client:producer-1"


VERBS = {
    *("ask", "check", "claim", "count", "dead-letter", "discard", "download", "drain", "enqueue"),
    *("follow", "limit", "list", "make", "pause", "read", "redrive", "release", "remove", "renew"),
    *(
        "replace",
        "report",
        "requeue",
        "resume",
        "run",
        "send",
        "set",
        "stall",
        "stop",
        "store",
        "upload",
    ),
}


@spec("H22")
def test_what_each_route_does_can_be_said_in_a_refusal() -> None:
    assert {route.action.split()[0] for route in ROUTES if route.roles} <= VERBS


@spec("H22")
@pytest.mark.parametrize(
    ("name", "role", "said"),
    [
        ("pause", V, "only operators may pause a queue; this token is a viewer's"),
        (
            "enqueue-many",
            V,
            "only clients, producers and operators may enqueue jobs; this token is a viewer's",
        ),
        ("alive", O, "only workers may report that a worker is alive; this token is an operator's"),
    ],
)
def test_a_refusal_says_what_was_asked_and_who_may_do_it(
    stage: Stage, name: str, role: Role, said: str
) -> None:
    refused = send(stage, BY_NAME[name], token=stage.of(role))

    assert said in str(refused.json)
