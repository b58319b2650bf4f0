"""How far a limited token reaches: every route that names a queue or a kind, from the table."""

import json
from typing import Any

import msgspec
import pytest
from msgspec.inspect import VarTupleType

from tenure.core.ids import Kind, Namespace, QueueName
from tenure.core.vocabulary import Role
from tenure.protocol.requests import MAX_CANCELLED
from tenure.protocol.routes import ROUTES, Route
from tenure_conformance.spec import spec
from tests.server.harness import JOB, Answer, Stage
from tests.server.test_roles import EXAMPLES, LEASE, PARTS, name_of, send

C, W, O, V = Role.CLIENT, Role.WORKER, Role.OPERATOR, Role.VIEWER  # noqa: E741 - as in the table

LIMITS: dict[str, dict[str, Any]] = {
    "queue": {"queues": (QueueName("mine"),)},
    "kind": {"kinds": (Kind("mine"),)},
}

NAMED_BY_HAND = {
    "queue": {
        *("claim", "alive", "enqueue", "enqueue-many", "jobs", "dead-letters"),
        *("start", "complete", "fail", "release", "heartbeat", "report"),
        *("peek-leases", "output", "upload-artifact", "follow-up", "parents", "flow"),
        "handler-flow",
        *("pause", "resume", "limit", "drain", "overview", "dead-letter-groups"),
        *(
            "job",
            "events",
            "observations",
            "verify-job",
            "wait-reasons",
            "logs",
            "artifacts",
            "artifact",
        ),
        *("cancel", "stall", "requeue", "dead-letter", "redrive", "rerun", "discard"),
        *("put-schedule", "run-schedule"),
    },
    "kind": {
        *("claim", "alive", "enqueue", "enqueue-many", "jobs", "dead-letters"),
        *("start", "complete", "fail", "release", "heartbeat", "report"),
        *("peek-leases", "output", "upload-artifact", "follow-up", "parents", "flow"),
        "handler-flow",
        *("pause", "resume", "limit"),  # a queue has jobs of every kind
        *("drain", "set-kind", "declare-kind", "overview", "dead-letter-groups"),
        *(
            "job",
            "events",
            "observations",
            "verify-job",
            "wait-reasons",
            "logs",
            "artifacts",
            "artifact",
        ),
        *("cancel", "stall", "requeue", "dead-letter", "redrive", "rerun", "discard"),
        *("put-schedule", "run-schedule"),
    },
}


def fields_of(message: type[msgspec.Struct]) -> set[str]:
    """The names of a message's fields, and of the fields of what it has a list of."""
    info = msgspec.inspect.type_info(message)
    assert isinstance(info, msgspec.inspect.StructType)
    lists = [each.type for each in info.fields if isinstance(each.type, VarTupleType)]
    items = [each.item_type for each in lists]
    structs = [info, *(each for each in items if isinstance(each, msgspec.inspect.StructType))]
    found = {field.encode_name for struct in structs for field in struct.fields}
    for struct in structs[1:]:  # a job of a flow is within one of its list
        within = (each.type for each in struct.fields)
        inner = [each for each in within if isinstance(each, msgspec.inspect.StructType)]
        found |= {field.encode_name for each in inner for field in each.fields}
    return found


def names(route: Route, word: str) -> bool:
    """Whether a request of this route says which queue, or which kind, it is about; a report does
    by its job; jobs to look up and lists of events are narrowed instead."""
    if route.name in ("log", "tail"):
        return False
    said = _said(route) | {*route.path_fields}
    whole = {"queue", "worker", "job_id", "reports"}
    return bool({word, f"{word}s", *whole} & said)


def _said(route: Route) -> set[str]:
    parts = [each for each in (route.request, route.query) if each is not None]
    return set[str]().union(*map(fields_of, parts))


def ask(stage: Stage, route: Route, word: str, *, token: str) -> Answer:
    """The route's example, about the queue `q` and the kind `k`."""
    if route.name == "claim":
        return stage.ask("POST", route.path, stage.claim_message(kinds=["k"]), token=token)
    if route.method == "GET" and not route.path_fields:
        value = {"queue": "q", "kind": "k"}[word]
        return stage.ask("GET", f"{route.path}?{word}={value}", token=token)
    return send(stage, route, token=token)


CASES = [(route, word) for word in LIMITS for route in ROUTES if names(route, word)]


@spec("H41")
def test_the_table_by_hand_agrees_which_routes_name_what() -> None:
    for word, by_hand in NAMED_BY_HAND.items():
        assert {route.name for route, each in CASES if each == word} == by_hand


@spec("H41")
@pytest.mark.parametrize(("route", "word"), CASES, ids=name_of)
def test_a_limited_token_reaches_nothing_else_by_any_route(
    stage: Stage, route: Route, word: str
) -> None:
    stage.enqueue(1, queue="q", kind="k")
    stage.call("alive", EXAMPLES["alive"], role=Role.WORKER, worker="w")
    before = _state(stage)

    tokens = [stage.token(role, f"limited-{role}", **LIMITS[word]) for role in route.roles]
    answers = [ask(stage, route, word, token=token) for token in tokens]

    for answer in answers:
        if route.name in ("heartbeat", "report"):
            assert [each["cause"] for each in answer.json["verdicts"]] == ["unknown_job"]
        elif route.name == "peek-leases":
            assert answer.json == {"news": ["lost"]}
        else:
            assert answer.status in (403, 404), answer
    assert _state(stage) == before


@spec("H41")
def test_a_worker_is_drained_by_whoever_has_all_of_its_queues(stage: Stage) -> None:
    about = {**msgspec.to_builtins(EXAMPLES["alive"]), "kinds": []}
    queues = {"both": ["mine", "q"], "others": ["q"], "mine": ["mine"]}
    for worker, names_of in queues.items():
        stage.call("alive", {**about, "queues": names_of}, role=Role.WORKER, worker=worker)
    limited = stage.token(Role.OPERATOR, "limited", **LIMITS["queue"])

    answers = {
        worker: stage.ask("POST", f"/v1/workers/{worker}/drain", token=limited) for worker in queues
    }

    heard = {worker: (answer.status, answer.json.get("code")) for worker, answer in answers.items()}
    assert heard == {
        "both": (403, "out_of_scope"),
        "others": (404, "unknown_worker"),
        "mine": (200, None),
    }
    listed = stage.ask("GET", "/v1/workers", token=limited).json["workers"]
    assert {each["worker"]: each["draining"] for each in listed} == {"both": False, "mine": True}


@spec("H41")
def test_a_worker_is_drained_by_whoever_has_all_of_its_kinds(stage: Stage) -> None:
    about = msgspec.to_builtins(EXAMPLES["alive"])
    kinds = {"both": ["mine", "k"], "all": [], "mine": ["mine"]}
    for worker, names_of in kinds.items():
        stage.call("alive", {**about, "kinds": names_of}, role=Role.WORKER, worker=worker)
    limited = stage.token(Role.OPERATOR, "limited", **LIMITS["kind"])

    heard = {
        worker: stage.ask("POST", f"/v1/workers/{worker}/drain", token=limited).status
        for worker in kinds
    }

    assert heard == {"both": 403, "all": 403, "mine": 200}


REPORTS: dict[str, dict[str, Any]] = {
    "start": {"request_id": "r"},
    "complete": {"request_id": "r"},
    "fail": {"request_id": "r", "error": {"class": "transient"}},
    "release": {"request_id": "r"},
    "output": {"text": "hello"},
}


@spec("H42", "H41", "R1")
@pytest.mark.parametrize(
    "name", [*REPORTS, "heartbeat", "report", "peek-leases", "upload-artifact"]
)
@pytest.mark.parametrize("word", [*LIMITS])
def test_a_lease_of_the_same_holder_is_out_of_reach_for_its_limited_token(
    stage: Stage, name: str, word: str
) -> None:
    lease = stage.leased(1)
    limited = stage.token(Role.WORKER, "worker-1", **LIMITS[word])  # the same principal
    before = stage.job(lease["job_id"])
    message, more = {**lease, **REPORTS.get(name, {})}, dict[str, Any]()
    if name in ("heartbeat", "peek-leases"):
        message = {"leases": [{**lease, **({"hb_seq": 1} if name == "heartbeat" else {})}]}
    elif name == "report":
        message = {"reports": [{"op": "start", **lease, "request_id": "r"}]}
    method, path = "POST", f"/v1/{name}"
    if name == "upload-artifact":
        method, path = "PUT", f"/v1/jobs/{lease['job_id']}/artifacts/a"
        more = {"headers": {"Tenure-Lease": lease["lease_id"]}, "pieces": [b"x"]}

    refused = stage.ask(method, path, None if more else message, token=limited, **more)

    if name == "peek-leases":
        assert refused.json == {"news": ["lost"]}
    elif name in ("heartbeat", "report"):
        assert [each["cause"] for each in refused.json["verdicts"]] == ["unknown_job"]
    else:
        assert (refused.status, refused.code) == (404, "unknown_job")
    assert stage.job(lease["job_id"]) == before


ABOUT_A_JOB = [
    route
    for route in ROUTES
    if {"job_id", "reports"} & (_said(route) | {*route.path_fields})
    and route.name not in ("enqueue", "enqueue-many")
]
OLD, NEW = "0-" + "ab" * 16, "1-" + "ab" * 16


@spec("H8", "H41")
@pytest.mark.parametrize("lease_id", [OLD, NEW])
@pytest.mark.parametrize("word", [*LIMITS])
@pytest.mark.parametrize("route", ABOUT_A_JOB, ids=name_of)
def test_a_job_out_of_scope_is_answered_like_an_unknown_one(
    stage: Stage, route: Route, word: str, lease_id: str
) -> None:
    stage.enqueue(1, queue="q", kind="k")
    role = route.roles[0]
    limited = stage.token(role, f"limited-{role}", **LIMITS[word])

    def heard(job_id: str) -> tuple[int, str]:
        answer = _about(stage, route, job_id, lease_id, token=limited)
        said = answer.body.decode().replace(job_id, "ID")
        return answer.status, said.replace(answer.headers["x-request-id"], "REQUEST")

    hidden, unknown = heard(JOB.format(1)), heard(JOB.format(2))

    assert hidden == unknown


def _about(stage: Stage, route: Route, job_id: str, lease_id: str, *, token: str) -> Answer:
    """The route's example about this job and lease, with the same request id each time."""
    message = EXAMPLES.get(route.name)
    text = json.dumps(message).replace(PARTS["job_id"], job_id).replace(LEASE, lease_id)
    path = route.path.format(**{**PARTS, "job_id": job_id})
    more: dict[str, Any] = {}
    if route.name == "upload-artifact":
        more = {"pieces": [b"bytes"], "headers": {"Tenure-Lease": lease_id}}
    return stage.ask(
        route.method, path, None if message is None else json.loads(text), token=token, **more
    )


def _state(stage: Stage) -> tuple[object, ...]:
    job = stage.job(PARTS["job_id"])
    queues = stage.store.settings.queues(job.namespace)
    return job, stage.events(job.id), queues, stage.store.workers.page(job.namespace)


@spec("H36")
@pytest.mark.parametrize("verb", ["redrive", "rerun"])
@pytest.mark.parametrize("undo", [{"queue": "theirs", "kind": "k"}, {"queue": "mine", "kind": "z"}])
def test_no_job_is_made_again_whose_compensation_is_out_of_scope(
    stage: Stage, verb: str, undo: dict[str, str]
) -> None:
    scope: dict[str, Any] = {"queues": (QueueName("mine"),), "kinds": (Kind("k"),)}
    limited = stage.token(Role.OPERATOR, "limited", **scope)
    old = stage.enqueue(1, queue="mine", payload="theirs too", policy={"compensation": undo})
    killed = {"request_id": "x", "reason_code": "policy_violation"}
    stage.call("dead-letter", killed, role=Role.OPERATOR, job_id=old)

    path, message = f"/v1/jobs/{old}/{verb}", {"request_id": "again"}
    refused = stage.ask("POST", path, message, token=limited)
    unlimited = stage.ask("POST", path, message, token=stage.of(Role.OPERATOR))

    assert (refused.status, refused.code) == (403, "out_of_scope")
    assert unlimited.status == 201, "nothing was made before"


@spec("H36", "HK9")
@pytest.mark.parametrize(
    "report", [{"queue": "theirs", "kind": "k2"}, {"queue": "mine", "kind": "z"}]
)
def test_no_job_is_made_whose_dead_letter_would_be_reported_out_of_scope(
    stage: Stage, report: dict[str, str]
) -> None:
    scope: dict[str, Any] = {
        "queues": (QueueName("mine"),),
        "kinds": (Kind("k"), Kind("k2")),
    }
    limited = stage.token(Role.OPERATOR, "limited", **scope)
    new = {"job_id": JOB.format(1), "queue": "mine", "kind": "k", "on_dead_letter": report}
    client = stage.token(Role.CLIENT, "client", **scope)

    refused = stage.ask("POST", "/v1/jobs", new, token=client)
    made = stage.ask("POST", "/v1/jobs", new, token=stage.of(Role.CLIENT))
    killed = {"request_id": "x", "reason_code": "policy_violation"}
    stage.call("dead-letter", killed, role=Role.OPERATOR, job_id=JOB.format(1))
    again = stage.ask(
        "POST", f"/v1/jobs/{JOB.format(1)}/redrive", {"request_id": "again"}, token=limited
    )

    assert (refused.status, refused.code) == (403, "out_of_scope")
    assert made.status == 201, "nothing was made before"
    assert (again.status, again.code) == (403, "out_of_scope")


@spec("H36")
@pytest.mark.parametrize("verb", ["redrive", "rerun"])
def test_a_job_is_made_again_whose_compensation_is_in_scope(stage: Stage, verb: str) -> None:
    limited = stage.token(Role.OPERATOR, "limited", queues=(QueueName("mine"),))
    undo = {"compensation": {"queue": "mine", "kind": "undo"}}
    old = stage.enqueue(1, queue="mine", policy=undo)
    killed = {"request_id": "x", "reason_code": "policy_violation"}
    stage.call("dead-letter", killed, role=Role.OPERATOR, job_id=old)

    made = stage.ask("POST", f"/v1/jobs/{old}/{verb}", {"request_id": "again"}, token=limited)

    assert made.status == 201


@spec("D6", "D5")
@pytest.mark.parametrize("is_batch", [False, True], ids=["alone", "in a batch"])
def test_a_key_that_is_held_out_of_scope_is_a_conflict_without_details(
    stage: Stage, is_batch: bool
) -> None:
    theirs = stage.token(Role.CLIENT, "theirs", queues=(QueueName("q1"),))
    mine = stage.token(Role.CLIENT, "mine", queues=(QueueName("q2"),))
    delayed = {"job_id": JOB.format(1), "queue": "q1", "kind": "k", "dedupe_key": "invoice-7"}
    late = {**delayed, "delay_s": 11 * 24 * 3600}
    assert stage.ask("POST", "/v1/jobs", late, token=theirs).status == 201

    new = {**delayed, "job_id": JOB.format(2), "queue": "q2"}
    path, message = ("/v1/jobs/batch", {"jobs": [new]}) if is_batch else ("/v1/jobs", new)
    hidden = stage.ask("POST", path, message, token=mine)
    seen = stage.ask("POST", "/v1/jobs", new, token=stage.of(Role.CLIENT))
    free = stage.ask("POST", "/v1/jobs", {**new, "kind": "other"}, token=mine)

    [told] = hidden.json["replies"] if is_batch else [hidden.json]
    assert hidden.status == (200 if is_batch else 409)
    assert (told["job"], told["cause"]) == (None, "dedupe_key_held")
    assert not told["deduplicated"]
    assert JOB.format(1).encode() not in hidden.body
    assert b"q1" not in hidden.body
    assert (seen.status, seen.json["deduplicated"], seen.json["job"]["queue"]) == (200, True, "q1")
    assert free.status == 201


@spec("D13", "D6", "D17")
def test_a_key_that_stays_taken_is_told_only_to_those_who_see_its_job(stage: Stage) -> None:
    mine = stage.token(Role.CLIENT, "mine", queues=(QueueName("q2"),))
    new = {"job_id": JOB.format(1), "queue": "q1", "kind": "k", "dedupe_key": "d"}
    first = {**new, "unique_for_s": 3600}
    made = stage.ask("POST", "/v1/jobs", first, token=stage.of(Role.CLIENT))
    cancel = {"request_id": "c", "reason": "enough"}
    stage.ask("POST", f"/v1/jobs/{JOB.format(1)}/cancel", cancel, token=stage.of(Role.CLIENT))

    again = {**new, "job_id": JOB.format(2), "queue": "q2"}
    seen = stage.ask("POST", "/v1/jobs", again, token=stage.of(Role.CLIENT))
    hidden = stage.ask("POST", "/v1/jobs", again, token=mine)
    keyless = {"queue": "q1", "kind": "k", "unique_for_s": 3600}
    wrong = stage.ask("POST", "/v1/jobs", keyless, token=stage.of(Role.CLIENT))

    assert (made.status, made.json["job"]["unique_for_s"]) == (201, 3600)
    assert (seen.status, seen.json["deduplicated"]) == (200, True)
    assert (seen.json["job"]["id"], seen.json["job"]["status"]) == (JOB.format(1), "cancelled")
    assert (hidden.status, hidden.json["cause"]) == (409, "dedupe_key_held")
    assert JOB.format(1).encode() not in hidden.body
    assert (wrong.status, wrong.json["field"]) == (422, "unique_for_s")


@spec("D6", "H41")
@pytest.mark.parametrize("verb", ["redrive", "rerun"])
def test_a_conflicting_job_out_of_scope_is_not_shown(stage: Stage, verb: str) -> None:
    limited = stage.token(Role.OPERATOR, queues=(QueueName("mine"),))
    old = stage.enqueue(1, queue="mine", dedupe_key="d")
    killed = {"request_id": "x", "reason_code": "policy_violation"}
    stage.call("dead-letter", killed, role=Role.OPERATOR, job_id=old)
    stage.enqueue(2, queue="hidden", dedupe_key="d", payload="secret")
    path, message = f"/v1/jobs/{old}/{verb}", {"request_id": "again"}

    heard = stage.ask("POST", path, message, token=limited)

    assert (heard.status, heard.json["cause"]) == (409, "dedupe_key_held")
    assert heard.json["job"] is None
    assert b"secret" not in heard.body


@spec("H36", "H41")
def test_a_token_of_some_queues_and_kinds_reaches_no_others(stage: Stage) -> None:
    scope: dict[str, Any] = {"queues": (QueueName("q"),), "kinds": (Kind("k"),)}
    mine = {role: stage.token(role, f"scoped-{role}", **scope) for role in Role}
    elsewhere = [stage.enqueue(1, queue="z"), stage.enqueue(2, kind="z")]
    new = {"queue": "q", "kind": "k"}
    undo = {"compensation": {"kind": "k", "queue": "z"}}

    enqueued = [
        stage.ask("POST", "/v1/jobs", {**new, **change}, token=mine[C])
        for change in ({}, {"queue": "z"}, {"kind": "z"}, {"policy": undo})
    ]
    claims = [
        stage.ask("POST", "/v1/claim", stage.claim_message(**change), token=mine[W])
        for change in ({"queues": ["q", "z"]}, {"kinds": ["k", "z"]})
    ]
    seen = [stage.ask("GET", f"/v1/jobs/{job_id}", token=mine[V]) for job_id in elsewhere]
    cancelled = [
        stage.ask("POST", f"/v1/jobs/{job_id}/cancel", {"request_id": "r"}, token=mine[O])
        for job_id in elsewhere
    ]
    paused = [stage.ask("POST", f"/v1/queues/{q}/pause", token=mine[O]) for q in ("q", "z")]

    assert [answer.status for answer in enqueued] == [201, 403, 403, 403]
    refused = [*enqueued[1:], *claims, *paused]
    assert {(answer.status, answer.code) for answer in refused} == {(403, "out_of_scope")}
    assert {(answer.status, answer.code) for answer in [*seen, *cancelled]} == {
        (404, "unknown_job")
    }
    assert [stage.job(job_id).status for job_id in elsewhere] == ["queued", "queued"]


@spec("H90", "H41", "H21")
def test_many_jobs_are_cancelled_each_as_if_it_were_the_only_one(stage: Stage) -> None:
    ended, waits, elsewhere = (stage.enqueue(n, queue=q) for n, q in ((1, "q"), (2, "q"), (3, "z")))
    bury = {"request_id": "d", "reason_code": "policy_violation"}
    stage.call("dead-letter", bury, role=O, job_id=ended)
    alone = stage.call("cancel", {"request_id": "r"}, role=O, job_id=ended).json["cause"]
    foreign = stage.enqueue(4, token=stage.token(C, namespace="elsewhere"))
    asked = [ended, waits.upper(), elsewhere, foreign, JOB.format(9)]
    mine = stage.token(O, "scoped", queues=(QueueName("q"),))
    message = {"job_ids": asked, "request_id": "r", "reason": "enough"}

    first = stage.ask("POST", "/v1/jobs/cancel", message, token=mine)
    again = stage.ask("POST", "/v1/jobs/cancel", message, token=mine)

    assert first.status == 200, first.json
    assert [each["cause"] for each in first.json["replies"]] == [
        alone,
        None,
        *["unknown_job"] * 3,
    ]
    assert [each["replayed"] for each in again.json["replies"]] == [False, True, *[False] * 3]
    assert first.json["replies"][1]["job"]["cancel_reason"] == "enough"
    assert all("payload" not in (each["job"] or {}) for each in first.json["replies"])
    assert [stage.job(each).status for each in (waits, elsewhere, foreign)] == [
        "cancelled",
        "queued",
        "queued",
    ]


@spec("H90")
def test_a_request_to_cancel_too_many_jobs_cancels_none(stage: Stage) -> None:
    job_id = stage.enqueue(1)
    message = {"job_ids": [job_id] * (MAX_CANCELLED + 1), "request_id": "r"}

    refused = stage.ask("POST", "/v1/jobs/cancel", message, token=stage.of(O))

    assert (refused.status, refused.json["field"]) == (422, "job_ids")
    assert stage.job(job_id).status == "queued"


@spec("H41")
def test_a_claim_that_names_no_kinds_gets_those_of_its_token(stage: Stage) -> None:
    stage.enqueue(1, kind="other")
    stage.enqueue(2, kind="k")
    token = stage.token(W, "scoped", kinds=(Kind("k"),))

    grants = stage.claim(token=token, limit=10)

    assert [grant["kind"] for grant in grants] == ["k"]


@spec("H41")
def test_lists_are_narrowed_to_the_scope(stage: Stage) -> None:
    stage.enqueue(1, queue="q")
    stage.enqueue(2, queue="z")
    one = stage.token(V, "one", queues=(QueueName("q"),))
    two = stage.token(V, "two", queues=(QueueName("q"), QueueName("z")))

    def jobs(query: str, token: str) -> Any:
        return stage.ask("GET", f"/v1/jobs{query}", token=token)

    assert [job["queue"] for job in jobs("", one).json["jobs"]] == ["q"]
    assert (jobs("?queue=z", one).status, jobs("?queue=z", one).code) == (403, "out_of_scope")
    assert (jobs("", two).status, jobs("", two).json["field"]) == (422, "queue")
    assert [job["queue"] for job in jobs("?queue=z", two).json["jobs"]] == ["z"]
    listed = stage.ask("GET", "/v1/queues", token=one).json["queues"]
    assert [queue["name"] for queue in listed] == ["q"]


@spec("E9")
@pytest.mark.parametrize("word", LIMITS)
def test_a_limited_token_sees_the_events_of_its_own_jobs_only(stage: Stage, word: str) -> None:
    for number in (1, 2, 3):
        stage.enqueue(number, queue="q", kind="k")
    stage.enqueue(4, queue="mine", kind="mine")
    token = stage.token(Role.VIEWER, "limited", **LIMITS[word])
    mine, other = JOB.format(4), JOB.format(1)

    def seen(query: str = "") -> list[str]:
        answer = stage.ask("GET", f"/v1/events{query}", token=token)
        assert answer.status == 200, answer
        return [event["job_id"] for event in answer.json["events"]]

    assert seen() == seen("?type=enqueued") == seen("?oldest_first=true&limit=1") == [mine]
    assert seen(f"?job_id={mine.upper()}") == seen(f"?correlation_id={mine}") == [mine]
    assert seen(f"?job_id={other}") == seen(f"?correlation_id={other}") == []


@spec("E9", "H21")
def test_a_token_sees_no_event_of_another_namespace(stage: Stage) -> None:
    stage.enqueue(1)
    theirs = stage.token(Role.OPERATOR, "theirs", namespace=Namespace("theirs"))

    seen = stage.ask("GET", "/v1/events", token=theirs)
    asked = stage.ask("GET", "/v1/events?namespace=default", token=theirs)

    assert (seen.json["events"], seen.json["next_after"]) == ([], None)
    assert (asked.status, asked.json["field"]) == (403, "namespace")
