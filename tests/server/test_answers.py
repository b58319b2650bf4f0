"""What callers hear over HTTP: verdicts, replies, problems, and nothing of what failed inside."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.core.commands import Sweep
from tenure.core.ids import Epoch, JobId
from tenure.core.vocabulary import Role
from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.ports import Loaded
from tenure.protocol.routes import MAX_BODY_BYTES
from tenure_conformance.spec import spec
from tests.server.harness import JOB, Stage
from tests.support.documents import REQUIRED_OF_DEAD_LETTERS

C, W, O, V = Role.CLIENT, Role.WORKER, Role.OPERATOR, Role.VIEWER  # noqa: E741 - as in the table


def _report(lease: dict[str, Any], request_id: str, **more: Any) -> dict[str, Any]:
    return {**lease, "request_id": request_id, **more}


@spec("H4")
def test_every_verdict_on_a_known_job_is_a_200(stage: Stage) -> None:
    lease = stage.leased()

    started = stage.call("start", _report(lease, "s"), role=W)
    again = stage.call("start", _report(lease, "s2"), role=W)
    done = stage.call("complete", _report(lease, "c", result={"n": 1}), role=W)
    replayed = stage.call("complete", _report(lease, "c", result={"n": 1}), role=W)
    reused = stage.call("complete", _report(lease, "c", result={"n": 2}), role=W)

    answers = [started, again, done, replayed, reused]
    assert {answer.status for answer in answers} == {200}
    assert [answer.json["verdict"] for answer in answers] == [
        "OK",
        "REJECTED",
        "COMMITTED",
        "COMMITTED",
        "REJECTED",
    ]
    assert [again.json["cause"], reused.json["cause"]] == [
        "already_started",
        "idempotency_key_reuse",
    ]
    assert (done.json["disposition"], replayed.json["replayed"]) == ("succeeded", True)
    assert stage.job(lease["job_id"]).result == b'{"n": 1}'


@spec("H4")
def test_a_lease_that_is_over_is_cancelled_with_200(stage: Stage) -> None:
    lease = stage.leased()
    stage.clock.advance(61)

    late = stage.call("complete", _report(lease, "c"), role=W)

    assert (late.status, late.json["verdict"], late.json["cause"]) == (
        200,
        "CANCELLED",
        "lease_expired",
    )


@spec("H4", "H8")
@pytest.mark.parametrize("name", ["start", "complete", "fail", "release", "output"])
def test_an_unknown_job_is_a_404_that_says_rejected(stage: Stage, name: str) -> None:
    needed: dict[str, dict[str, Any]] = {"fail": {"error": {}}, "output": {"text": ""}}
    more = needed.get(name, {})
    lease = {"job_id": JOB.format(9), "lease_id": "1-" + "0" * 32}
    message = {**lease, **more} if name == "output" else _report(lease, "r", **more)

    answer = stage.call(name, message, role=W)

    assert answer.status == 404
    assert (answer.code, answer.json["verdict"]) == ("unknown_job", "REJECTED")


@spec("H42")
def test_a_batch_answers_each_report_in_its_place(stage: Stage) -> None:
    first, second = stage.leased(1), stage.leased(2)
    unknown = {"job_id": JOB.format(9), "lease_id": first["lease_id"]}
    reports = [
        {"op": "start", **_report(first, "s1")},
        {"op": "heartbeat", **second, "hb_seq": 1, "progress": {"done": 1}},
        {"op": "complete", **_report(unknown, "x")},
        {"op": "complete", **_report(first, "c1", result=[1])},
        {"op": "fail", **_report(second, "f2"), "error": {"class": "permanent", "message": "m"}},
    ]

    answer = stage.call("report", {"reports": reports}, role=W)

    verdicts = answer.json["verdicts"]
    assert [each["verdict"] for each in verdicts] == [
        "OK",
        "OK",
        "REJECTED",
        "COMMITTED",
        "COMMITTED",
    ]
    assert verdicts[2]["cause"] == "unknown_job"
    assert [each["disposition"] for each in verdicts[3:]] == ["succeeded", "failed"]


@spec("H42", "H8")
def test_a_bad_part_of_a_batch_is_named_by_its_place_and_nothing_is_done(stage: Stage) -> None:
    lease = stage.leased()
    deep = json.loads("[" * 65 + "]" * 65)
    good = {"op": "complete", **_report(lease, "c1")}

    reported = stage.call(
        "report", {"reports": [good, {**good, "request_id": "c2", "result": deep}]}, role=W
    )
    beaten = stage.call(
        "heartbeat", {"leases": [{**lease, "hb_seq": 1, "checkpoint": deep}]}, role=W
    )
    new = {"queue": "q", "kind": "k"}
    made = stage.call("enqueue-many", {"jobs": [new, {**new, "policy": {"lease_s": 1}}]}, role=C)

    assert [(answer.status, answer.json["field"]) for answer in (reported, beaten, made)] == [
        (422, "reports[1].result"),
        (422, "leases[0].checkpoint"),
        (422, "jobs[1].policy.lease_s"),
    ]
    assert stage.job(lease["job_id"]).status == "claimed"
    assert len(stage.call("jobs", role=C).json["jobs"]) == 1


@spec("H5", "J13")
def test_a_job_is_made_once_and_the_answer_says_whether_it_was(stage: Stage) -> None:
    message = {"job_id": JOB.format(1), "queue": "q", "kind": "k", "payload": [1]}

    made = stage.call("enqueue", message, role=C)
    again = stage.call("enqueue", message, role=C)
    empty = stage.call("enqueue", {**message, "meta": {}}, role=C)  # as without [J13]
    other = stage.call("enqueue", {**message, "payload": [2]}, role=C)

    assert [each.status for each in (made, again, empty, other)] == [201, 200, 200, 409]
    assert other.json["cause"] == "idempotency_key_reuse"
    assert other.json["job"] == again.json["job"] == made.json["job"]
    assert made.json["job"]["id"] == JOB.format(1)


@spec("H5")
def test_a_job_without_an_id_is_given_one(stage: Stage) -> None:
    made = stage.call("enqueue", {"queue": "q", "kind": "k"}, role=C)

    assert made.status == 201
    assert stage.job(made.json["job"]["id"]).queue == "q"


@spec("H5")
def test_a_refused_request_is_a_409_with_the_current_record(stage: Stage) -> None:
    lease = stage.leased()
    stage.call("complete", _report(lease, "c"), role=W)

    refused = stage.call("cancel", {"request_id": "x"}, role=C, job_id=lease["job_id"])

    assert refused.status == 409
    assert refused.json["cause"] == "job_finished"
    assert refused.json["job"]["status"] == "succeeded"


@spec("H48")
def test_a_job_id_may_be_written_in_upper_case_everywhere(stage: Stage) -> None:
    upper = "0190163D-8694-739B-AEA5-966C26F8AD91"
    new = {"job_id": upper, "queue": "q", "kind": "k"}
    path: dict[str, Any] = {"role": O, "job_id": upper}

    made = stage.call("enqueue", new, role=C)
    again = stage.call("enqueue", {**new, "job_id": upper.lower()}, role=C)
    shown = stage.call("job", **path)
    [found] = stage.call("lookup", {"job_ids": [upper]}, role=C).json["jobs"]
    earlier = stage.ask("GET", f"/v1/jobs?before={upper}", token=stage.of(C)).json["jobs"]
    [listed] = stage.ask("GET", f"/v1/jobs?id_prefix={upper[:8]}", token=stage.of(C)).json["jobs"]
    [grant] = stage.claim()
    lease = {"job_id": upper, "lease_id": grant["lease_id"]}
    news = stage.call("peek-leases", {"leases": [lease]}, role=W)
    done = stage.call("complete", _report(lease, "c"), role=W)
    rerun = stage.call("rerun", {"request_id": "r"}, **path)

    assert (made.status, again.status) == (201, 200)
    jobs = [made.json["job"], shown.json["job"], found, listed]
    assert {job["id"] for job in jobs} == {grant["job_id"]} == {upper.lower()}
    assert earlier == []
    assert news.json == {"news": ["none"]}
    assert (done.json["verdict"], rerun.status) == ("COMMITTED", 201)


@spec("H50")
def test_events_have_names_and_instants_not_positions_and_microseconds(stage: Stage) -> None:
    made = stage.call("enqueue", {"queue": "q", "kind": "k"}, role=C)

    [event] = stage.call("events", role=C, job_id=made.json["job"]["id"]).json["events"]

    facts = event["payload"]
    assert facts["policy"] == made.json["job"]["policy"]
    assert facts["run_at"] == made.json["job"]["run_at"]


def test_a_large_request_gets_the_same_answer_as_a_small_one(stage: Stage) -> None:
    new = {"job_id": JOB.format(1), "queue": "q", "kind": "k", "payload": "x" * 200_000}

    made = stage.call("enqueue", new, role=C)
    wrong = stage.call("enqueue", {**new, "kynd": 1}, role=C)
    deep = stage.call("enqueue", {**new, "policy": {"lease_s": 1}}, role=C)

    assert made.status == 201
    assert [(answer.status, answer.json["field"]) for answer in (wrong, deep)] == [
        (422, "kynd"),
        (422, "policy.lease_s"),
    ]
    assert len(stage.job(JOB.format(1)).payload) == 200_002


def test_many_jobs_are_made_together(stage: Stage) -> None:
    jobs = [{"job_id": JOB.format(n), "queue": "q", "kind": "k"} for n in (1, 2)]

    answer = stage.call("enqueue-many", {"jobs": [*jobs, jobs[0]]}, role=C)

    replies = answer.json["replies"]
    assert [reply["job"]["id"] for reply in replies] == [job["job_id"] for job in (*jobs, jobs[0])]


@spec("H3")
def test_bodies_are_kept_byte_for_byte(stage: Stage) -> None:
    body = b'{"queue":"q","kind":"k","job_id":"%s","payload": {"b" :  [1.0, 2e1], "a":"\\u00e9"} }'
    raw = body % JOB.format(1).encode()

    made = stage.ask(
        "POST",
        "/v1/jobs",
        token=stage.of(C),
        headers={"content-type": "application/json"},
        pieces=[raw[:40], raw[40:]],
    )
    shown = stage.call("job", role=C, job_id=JOB.format(1) + "?bodies=true")

    assert made.status == 201
    assert stage.job(JOB.format(1)).payload == b'{"b" :  [1.0, 2e1], "a":"\\u00e9"}'
    assert b'"payload":{"b" :  [1.0, 2e1], "a":"\\u00e9"}' in shown.body


@spec("H8")
@pytest.mark.parametrize(
    ("body", "status", "code", "field"),
    [
        (b"{", 400, "malformed", "body"),
        (b"\xff", 400, "malformed", "body"),
        (b"[]", 422, "invalid_input", "body"),
        (b'{"queue":"q"}', 422, "invalid_input", "kind"),
        (b'{"queue":"q","kind":"k","colour":1}', 422, "invalid_input", "colour"),
        (b'{"queue":"q","kind":"k","payload":{"a":1,"a":2}}', 422, "invalid_input", "payload"),
        (b'{"queue":"q","kind":"k","payload":NaN}', 400, "malformed", "body"),
        (b'{"queue":"q","kind":"k","payload":9007199254740993}', 422, "invalid_input", "payload"),
        (
            b'{"queue":"q","kind":"k","policy":{"lease_s":1}}',
            422,
            "invalid_input",
            "policy.lease_s",
        ),
        (
            b'{"queue":"q","kind":"k","payload":' + b"[" * 65 + b"]" * 65 + b"}",
            422,
            "invalid_input",
            "payload",
        ),
        (
            b'{"queue":"q","kind":"k","payload":' + b"[" * 10**5 + b"]" * 10**5 + b"}",
            422,
            "invalid_input",
            None,
        ),
    ],
)
def test_a_bad_body_names_its_field_and_writes_nothing(
    stage: Stage, body: bytes, status: int, code: str, field: str | None
) -> None:
    answer = stage.ask(
        "POST",
        "/v1/jobs",
        token=stage.of(C),
        headers={"content-type": "application/json"},
        pieces=[body],
    )

    assert (answer.status, answer.code, answer.json["verdict"]) == (status, code, "REJECTED")
    assert field is None or answer.json["field"] == field
    assert stage.call("jobs", role=C).json["jobs"] == []


@spec("H8")
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/jobs?limit=0", "limit"),
        ("/v1/jobs?status=asleep", "status[0]"),
        ("/v1/jobs?colour=red", "colour"),
        ("/v1/jobs?id_prefix=018Z", "id_prefix"),
        ("/v1/jobs/not-an-id", "job_id"),
        (f"/v1/jobs/{JOB.format(1)}/artifacts/a\nb", "name"),
        ("/v1/time?x=1", "x"),
    ],
)
def test_a_bad_address_names_its_part(stage: Stage, path: str, field: str) -> None:
    answer = stage.ask("GET", path, token=stage.of(C))

    assert (answer.status, answer.code, answer.json["field"]) == (422, "invalid_input", field)


@spec("H8")
@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", "/v2/jobs", 404, "unknown_route"), ("DELETE", "/v1/jobs", 405, "method_not_allowed")],
)
def test_a_path_that_is_not_in_the_table_is_a_404(
    stage: Stage, method: str, path: str, status: int, code: str
) -> None:
    answer = stage.ask(method, path)

    assert (answer.status, answer.code) == (status, code)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("OPTIONS", "/v1/jobs", "GET, POST"),
        ("DELETE", f"/v1/jobs/{JOB.format(1)}/artifacts/a", "GET, PUT"),
        ("GET", "/v1/jobs/batch", "POST"),
        ("POST", "/healthz", "GET"),
    ],
)
def test_an_unknown_method_is_a_405_that_lists_the_others(
    stage: Stage, method: str, path: str, allowed: str
) -> None:
    answer = stage.ask(method, path)

    assert (answer.status, answer.headers["allow"]) == (405, allowed)


@spec("H8")
@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (StoreUnavailable("the store is away"), 503, "store_unavailable"),
        (OutcomeUnknown("lost at commit"), 503, "outcome_unknown"),
        (RuntimeError("secret-of-the-house"), 500, "internal_error"),
    ],
)
def test_an_internal_failure_carries_no_verdict_and_no_details(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, failure: Exception, status: int, code: str
) -> None:
    job_id = stage.enqueue()

    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr(stage.store.jobs, "read", fail)
    answer = stage.call("job", role=C, job_id=job_id, headers={"X-Request-Id": "mine-1"})

    assert (answer.status, answer.code) == (status, code)
    assert answer.json["verdict"] is None
    assert answer.json["request_id"] == "mine-1"
    assert b"Traceback" not in answer.body
    assert b"secret-of-the-house" not in answer.body


@spec("H9")
def test_every_answer_carries_a_request_id(stage: Stage) -> None:
    given = stage.ask("GET", "/healthz", headers={"X-Request-Id": "abc.1"})
    unusable = stage.ask("GET", "/nowhere", headers={"X-Request-Id": "a b\x1b[31m"})
    made = stage.ask("GET", "/v1/time")

    assert given.headers["x-request-id"] == "abc.1"
    assert unusable.headers["x-request-id"] not in ("", "a b\x1b[31m")
    assert unusable.json["request_id"] == unusable.headers["x-request-id"]
    assert made.headers["x-request-id"] != unusable.headers["x-request-id"]


def test_nothing_is_cached_or_sniffed(stage: Stage) -> None:
    for answer in (stage.ask("GET", "/healthz"), stage.ask("GET", "/v1/jobs")):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"


@spec("H2")
def test_a_version_that_the_server_does_not_speak_is_refused(stage: Stage) -> None:
    spoken = stage.call("time", role=C, headers={"Tenure-Protocol": "1"})
    newer = stage.call("time", role=C, headers={"Tenure-Protocol": "2"})

    assert spoken.status == 200
    assert (newer.status, newer.code) == (400, "unsupported_protocol")
    assert newer.json["field"] == "Tenure-Protocol"


@spec("H43")
def test_a_body_is_limited_by_its_bytes_not_by_its_header(stage: Stage) -> None:
    json_type = {"content-type": "application/json"}
    said = stage.ask(
        "POST",
        "/v1/jobs",
        token=stage.of(C),
        headers={**json_type, "content-length": str(MAX_BODY_BYTES + 1)},
        pieces=[],
    )
    lied = stage.caller(
        "POST",
        "/v1/jobs",
        token=stage.of(C),
        headers={**json_type, "content-length": "2"},
        pieces=[b"x" * 500_000] * 100,
    )

    came = stage.run(lied.run(stage.app))

    assert [(said.status, said.code), (came.status, came.code)] == [(413, "too_large")] * 2
    assert len(lied.pieces) > 90  # the rest is not for the application


@spec("H43")
@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {},
        {"content-type": "application/json", "content-encoding": "gzip"},
    ],
)
def test_only_plain_json_is_read(stage: Stage, headers: dict[str, str]) -> None:
    answer = stage.ask("POST", "/v1/jobs", token=stage.of(C), headers=headers, pieces=[b"{}"])

    assert (answer.status, answer.code) == (415, "unsupported_media_type")


def test_an_artifact_is_accepted_only_under_a_valid_lease(stage: Stage) -> None:
    lease = stage.leased()
    upload: dict[str, Any] = {"role": W, "job_id": lease["job_id"], "name": "a", "pieces": [b"x"]}

    without = stage.call("upload-artifact", **upload)
    wrong = stage.call("upload-artifact", **upload, headers={"Tenure-Lease": "1-" + "0" * 32})
    stage.clock.advance(61)
    late = stage.call("upload-artifact", **upload, headers={"Tenure-Lease": lease["lease_id"]})

    assert (without.status, without.json["field"]) == (422, "Tenure-Lease")
    assert (wrong.status, wrong.json["verdict"], wrong.json["cause"]) == (
        200,
        "REJECTED",
        "invalid_lease",
    )
    assert (late.json["verdict"], late.json["cause"]) == ("CANCELLED", "lease_expired")


def test_dead_letters_are_listed_and_dealt_with(stage: Stage) -> None:
    first, second = stage.enqueue(1), stage.enqueue(2)
    kill = {"request_id": "d", "reason_code": "policy_violation", "message": "no"}
    for job_id in (first, second):
        stage.call("dead-letter", kill, role=O, job_id=job_id)

    discarded = stage.call("discard", {"request_id": "x", "note": "n"}, role=O, job_id=first)
    redriven = stage.call(
        "redrive", {"request_id": "y", "payload": {"new": 1}}, role=O, job_id=second
    )
    waiting = stage.call("dead-letters", role=V).json
    settled = stage.ask("GET", "/v1/dead-letters?resolved=true", token=stage.of(V)).json
    seen = stage.call("job", role=V, job_id=first).json

    assert discarded.json["resolution"]["kind"] == "discarded"
    assert (discarded.status, redriven.status) == (200, 201)
    assert stage.job(redriven.json["job"]["id"]).payload == b'{"new": 1}'
    assert waiting["dead_letters"] == []
    assert [each["resolution"]["kind"] for each in settled["dead_letters"]] == [
        "redriven",
        "discarded",
    ]
    assert seen["resolution"]["note"] == "n"


@spec("F7", "OB26")
def test_a_dead_letter_says_what_somebody_needs_to_decide(stage: Stage) -> None:
    job_id = stage.enqueue(1, policy={"max_attempts": 1})
    [lease] = stage.claim()
    held = {"job_id": job_id, "lease_id": lease["lease_id"]}
    error = {"class": "transient", "type": "OSError", "message": "no"}
    failed = stage.call("fail", _report(held, "f", error=error, stage="exec"), role=W)
    assert failed.json["job_status"] == "dead_lettered"

    [letter] = stage.call("dead-letters", role=V).json["dead_letters"]

    assert set(letter) == {*REQUIRED_OF_DEAD_LETTERS, "id", "job", "resolution"}
    assert (letter["id"], letter["correlation_id"]) == (job_id, job_id)
    assert (letter["reason_code"], letter["stage"]) == ("exhausted_retries", "exec")
    assert (letter["last_error"]["type"], letter["attempts"]) == ("OSError", 1)
    assert letter["last_owner"] == letter["job"]["last_owner"] is not None
    assert letter["last_lease_expires_at"] == letter["job"]["last_lease_expires_at"] is not None


@spec("T34", "F12", "Y6")
@pytest.mark.parametrize("reason", ["policy_violation", "infrastructure_failure"])
def test_a_worker_makes_a_dead_letter_by_the_reason_of_its_report(
    stage: Stage, reason: str
) -> None:
    job_id = stage.enqueue(1)
    [lease] = stage.claim()
    held = {"job_id": job_id, "lease_id": lease["lease_id"]}
    error = {"type": "Refused", "message": "not here"}

    refused = stage.call("fail", _report(held, "f", error=error, reason_code="timeout"), role=W)
    buried = stage.call("fail", _report(held, "f", error=error, reason_code=reason), role=W)

    assert refused.status == 422
    assert "reason_code" in refused.json["message"]
    assert (buried.json["verdict"], buried.json["disposition"]) == ("COMMITTED", "dead_lettered")
    [letter] = stage.call("dead-letters", role=V).json["dead_letters"]
    assert (letter["id"], letter["reason_code"]) == (job_id, reason)


@spec("B17", "B18", "H5")
def test_a_resolved_dead_letter_is_redriven_only_with_again(stage: Stage) -> None:
    job_id = stage.enqueue(1)
    kill = {"request_id": "d", "reason_code": "policy_violation"}
    stage.call("dead-letter", kill, role=O, job_id=job_id)

    first = stage.call("redrive", {"request_id": "1"}, role=O, job_id=job_id)
    second = stage.call("redrive", {"request_id": "2"}, role=O, job_id=job_id)
    repeated = stage.call("redrive", {"request_id": "1"}, role=O, job_id=job_id)
    again = stage.call("redrive", {"request_id": "3", "again": True}, role=O, job_id=job_id)

    made = first.json["job"]["id"]
    assert (first.status, second.status, repeated.status, again.status) == (201, 409, 200, 201)
    assert (second.json["cause"], second.json["job"]["id"]) == ("already_resolved", job_id)
    assert second.json["resolution"]["new_job_id"] == made
    assert (repeated.json["job"]["id"], repeated.json["replayed"]) == (made, True)
    assert again.json["job"]["id"] not in (made, job_id)
    resolved = stage.call("job", role=V, job_id=job_id).json["resolution"]
    assert resolved["new_job_id"] == made


def test_a_duration_out_of_range_is_refused_and_is_no_server_error(stage: Stage) -> None:
    alive = {"host": "h", "pid": 1, "queues": ["q"], "concurrency": 1, "version": "1"}

    answer = stage.call("alive", {**alive, "uptime_s": 1e308}, role=W, worker="w")

    assert (answer.status, answer.json["field"]) == (422, "uptime_s")


@spec("RL4")
def test_operators_set_rates_and_workers_declare_them(stage: Stage) -> None:
    stage.enqueue()

    queue = stage.call("limit", {"rate": "100/m", "burst": 20}, role=O, queue="q")
    both = stage.call("limit", {"rate": None, "limit": 3}, role=O, queue="q")
    declared = stage.call("declare-kind", {"rate": "5/s"}, role=W, kind="k")
    again = stage.call("declare-kind", {"rate": "9/s"}, role=W, kind="k")
    changed = stage.call("set-kind", {"rate": "9/s", "burst": 4}, role=O, kind="k")

    assert (queue.json["rate"], queue.json["burst"]) == ("100/m", 20)
    assert (both.json["rate"], both.json["limit"]) == (None, 3)
    assert (declared.json["rate"], again.json["rate"]) == ("5/s", "5/s")
    assert (changed.json["rate"], changed.json["burst"]) == ("9/s", 4)
    assert stage.call("kinds", role=V).json["kinds"] == [changed.json]


@spec("F9", "F11")
def test_a_job_without_a_policy_has_the_one_that_workers_declare(stage: Stage) -> None:
    undeclared = stage.call("enqueue", {"kind": "other", "queue": "q"}, role=C)
    stage.call("declare-kind", {"policy": {"max_attempts": 1}}, role=W, kind="once")

    declared = stage.call("enqueue", {"kind": "once", "queue": "q"}, role=C)
    own = stage.call("enqueue", {"kind": "once", "queue": "q", "policy": {}}, role=C)

    answers = [each.json for each in (undeclared, declared, own)]
    assert [each["undeclared"] for each in answers] == [True, False, False]
    assert [each["job"]["policy"]["max_attempts"] for each in answers] == [15, 1, 15]
    [shown] = stage.call("kinds", role=V).json["kinds"]
    assert shown["policy"]["max_attempts"] == 1


@spec("F10")
@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"lease_s": 7200}, "policy.lease_s"),
        ({"max_attempts": 0}, "policy.max_attempts"),
        ({"compensation": {"kind": "undo", "queue": "q"}}, "policy.compensation"),
    ],
)
def test_a_declared_policy_is_checked_as_that_of_a_job(
    stage: Stage, policy: dict[str, object], field: str
) -> None:
    refused = stage.call("declare-kind", {"policy": policy}, role=W, kind="once")

    assert (refused.status, refused.json["field"]) == (422, field)
    assert stage.call("kinds", role=V).json["kinds"] == []


@spec("RL5", "CK7")
def test_what_a_message_about_a_kind_does_not_name_stays_as_it_is(stage: Stage) -> None:
    stage.call("set-kind", {"rate": "9/s", "burst": 4}, role=O, kind="k")
    stage.call("set-kind", {"concurrency_limit": 2}, role=O, kind="k")

    changed = stage.call("set-kind", {"rate": None}, role=O, kind="k")
    refused = stage.call("set-kind", {}, role=O, kind="k")
    alone = stage.call("set-kind", {"burst": 3, "concurrency_limit": 5}, role=O, kind="k")

    assert (changed.json["rate"], changed.json["concurrency_limit"]) == (None, 2)
    assert [(each.status, each.json["field"]) for each in (refused, alone)] == [
        (422, "rate"),
        (422, "burst"),
    ]
    assert stage.call("kinds", role=V).json["kinds"] == [changed.json]


@spec("RL11")
def test_rate_keys_over_http(stage: Stage) -> None:
    job = stage.enqueue(1, rate_key="ключ/1")
    stage.call("set-kind", {"rate": "1/h"}, role=O, kind="k")
    stage.claim()
    waiting = stage.enqueue(2, rate_key="ключ/1")
    other = stage.enqueue(3)

    shown = stage.call("job", role=C, job_id=job)
    reasons, others = (
        {each["why"]: each["message"] for each in reply.json["reasons"]}
        for reply in (stage.call("wait-reasons", role=C, job_id=each) for each in (waiting, other))
    )

    assert shown.json["job"]["rate_key"] == "ключ/1"
    assert "for the rate key ключ/1" in reasons["rate"]
    assert "rate" not in others


@spec("RL4")
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "limit"),
        ({"rate": "0/s"}, "rate"),
        ({"rate": "fast"}, "rate"),
        ({"rate": "1/s", "burst": 0}, "burst"),
        ({"burst": 3}, "burst"),
        ({"rate": None, "burst": 3}, "burst"),
    ],
)
def test_what_is_no_rate_is_refused(stage: Stage, body: dict[str, object], field: str) -> None:
    stage.enqueue()

    refused = stage.call("limit", body, role=O, queue="q")

    assert (refused.status, refused.json["field"]) == (422, field)
    [queue] = stage.call("queues", role=V).json["queues"]
    assert queue["rate"] is None


def test_operators_pause_limit_and_drain(stage: Stage) -> None:
    stage.enqueue()
    alive = {"host": "h", "pid": 1, "queues": ["q"], "concurrency": 1, "version": "1"}
    first = stage.call("alive", {**alive, "uptime_s": 0}, role=W, worker="a/b:1")

    paused = stage.call("pause", role=O, queue="q")
    while_paused = stage.claim()
    stage.call("resume", role=O, queue="q")
    limited = stage.call("limit", {"limit": 1}, role=O, queue="q")
    drained = stage.call("drain", role=O, worker="a/b:1")
    unknown = stage.call("drain", role=O, worker="c")
    stage.clock.advance(1)
    second = stage.call("alive", {**alive, "uptime_s": 5}, role=W, worker="a/b:1")

    assert (first.json, second.json) == ({"drain": False}, {"drain": True})
    assert (paused.json["paused"], while_paused, limited.json["limit"]) == (True, [], 1)
    assert drained.json == {"worker": "a/b:1", "draining": True}
    assert (unknown.status, unknown.code) == (404, "unknown_worker")
    assert stage.call("workers", role=V).json["workers"][0]["draining"] is True
    assert len(stage.claim()) == 1


@spec("H53", "H46")
def test_a_list_has_the_beginnings_of_payloads_if_asked_for(stage: Stage) -> None:
    job_id = stage.enqueue(payload={"to": "x" * 1_000})

    def listed(query: str, role: Role) -> Any:
        return stage.ask("GET", f"/v1/jobs{query}", token=stage.of(role))

    assert listed("", O).json["previews"] == {}
    assert listed("?previews=true", O).json["previews"] == {job_id: '{"to": "' + "x" * 112}
    refused = listed("?previews=true", V)
    assert (refused.status, refused.json["field"]) == (403, "previews")


@spec("B33")
def test_a_worker_says_over_http_that_it_drains(stage: Stage) -> None:
    alive = {"host": "h", "pid": 1, "queues": ["q"], "concurrency": 1, "version": "1"}

    asked = stage.call("alive", {**alive, "uptime_s": 5, "draining": True}, role=W, worker="a")

    [listed] = stage.call("workers", role=V).json["workers"]
    assert asked.json == {"drain": False}
    assert (listed["state"], listed["draining"]) == ("draining", True)


@spec("B33", "B12")
def test_a_request_to_an_earlier_process_is_not_shown_of_its_successor(stage: Stage) -> None:
    alive = {"host": "h", "pid": 1, "queues": ["q"], "concurrency": 1, "version": "1"}
    stage.call("alive", {**alive, "uptime_s": 0}, role=W, worker="a")
    stage.call("drain", role=O, worker="a")
    [asked] = stage.call("workers", role=V).json["workers"]

    stage.clock.advance(5)
    stage.call("alive", {**alive, "pid": 2, "uptime_s": 1}, role=W, worker="a")

    [successor] = stage.call("workers", role=V).json["workers"]
    assert asked["drain_requested_at"] is not None
    assert (successor["draining"], successor["drain_requested_at"]) == (False, None)


def test_operators_requeue_held_jobs_and_rerun_finished_ones(stage: Stage) -> None:
    held = stage.leased(1, policy={"on_lost": "hold"})
    stage.clock.advance(61)
    stage.coordinator.execute(Sweep(job_id=JobId(held["job_id"])))

    requeued = stage.call("requeue", {"request_id": "r"}, role=O, job_id=held["job_id"])
    done = stage.leased(2)
    stage.call("complete", _report(done, "c"), role=W)
    rerun = stage.call("rerun", {"request_id": "r"}, role=O, job_id=done["job_id"])

    assert requeued.json["job"]["status"] == "queued"
    assert rerun.json["job"]["origin_cause"] == "rerun"


@spec("T33", "N5", "R11")
def test_an_operator_takes_a_job_from_its_worker_and_the_worker_is_told(stage: Stage) -> None:
    held = stage.leased(1)

    stalled = stage.call("stall", {"request_id": "r"}, role=O, job_id=held["job_id"])
    late = stage.call("complete", _report(held, "c"), role=W)
    refused = stage.call("stall", {"request_id": "r"}, role=O, job_id=stage.enqueue(2))

    shown = stalled.json["job"]
    assert (shown["status"], shown["stall_cause"], shown["owner"]) == ("stalled", "operator", None)
    assert (late.json["verdict"], late.json["cause"]) == ("CANCELLED", "revoked")
    assert (refused.status, refused.json["cause"]) == (409, "not_leased")


def test_a_job_that_was_purged_under_the_request_is_unknown(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = replace(stage.job(stage.enqueue()), id=JobId(JOB.format(2)))
    monkeypatch.setattr(stage.store.jobs, "read", lambda ids, **_: {found.id: found})
    monkeypatch.setattr(
        stage.store.jobs, "load", lambda _: Loaded(stage.clock(), Epoch(1), {found.id: found})
    )

    answer = stage.call("cancel", {"request_id": "r"}, role=C, job_id=found.id)

    assert (answer.status, answer.code) == (404, "unknown_job")


@spec("H74")
@pytest.mark.parametrize(
    ("scheme", "host", "expected"),
    [
        ("https", "jobs.example.org:7717", "max-age=31536000"),
        ("http", "jobs.example.org:7717", None),
        ("https", "localhost:7717", None),
    ],
)
def test_browsers_are_told_to_keep_to_tls(
    stage: Stage, scheme: str, host: str, expected: str | None
) -> None:
    caller = stage.caller("GET", "/healthz", headers={"host": host})
    caller.scope["scheme"] = scheme

    answer = stage.run(caller.run(stage.app))

    assert answer.headers.get("strict-transport-security") == expected
