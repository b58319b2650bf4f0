"""Reads of jobs and of the server: in pages, within limits, and without holding up others."""

import asyncio
import json
import threading
from functools import partial

import pytest

from tenure.coordinator.sweeper import Sweeper
from tenure.core.claims import ClaimAnswer
from tenure.core.ids import DEFAULT_NAMESPACE, QueueName
from tenure.core.instants import Instant, seconds
from tenure.core.validation import REPORTABLE_REASONS
from tenure.core.views.overview import Overview, OverviewFilter
from tenure.core.vocabulary import Role
from tenure.errors import StoreUnavailable
from tenure.protocol import replies
from tenure.protocol.codec import encode
from tenure.protocol.replies import ClaimReply, claim_reply
from tenure.protocol.routes import BY_NAME
from tenure.server import calls
from tenure.server.services import SharedAnswers
from tenure_conformance.spec import spec
from tests.server.harness import JOB, Stage
from tests.server.test_roles import send
from tests.support.doubles import instead

C, W, V = Role.CLIENT, Role.WORKER, Role.VIEWER


@spec("E1", "E6", "E7")
def test_a_job_is_read_by_every_route(stage: Stage) -> None:
    lease = stage.leased(payload={"secret": 1})
    job_id = lease["job_id"]
    upload = stage.call(
        "upload-artifact",
        role=W,
        job_id=job_id,
        name="reports/a.txt",
        headers={"Tenure-Lease": lease["lease_id"], "Content-Type": "text/plain"},
        pieces=[b"hel", b"lo"],
    )
    kept = stage.call("output", {**lease, "text": "printed"}, role=W)
    stage.call("complete", {**lease, "request_id": "c", "result": [1]}, role=W)

    plain = stage.call("job", role=C, job_id=job_id)
    events = stage.call("events", role=V, job_id=job_id).json["events"]
    logs = stage.call("logs", role=C, job_id=job_id).json["logs"]
    listed = stage.call("artifacts", role=V, job_id=job_id).json["artifacts"]
    file = stage.call("artifact", role=C, job_id=job_id, name="reports/a.txt")
    missing = stage.call("artifact", role=C, job_id=job_id, name="b")

    assert (upload.json["verdict"], kept.json["verdict"]) == ("OK", "OK")
    assert "payload" not in plain.json["job"]
    assert [(event["id"], event["name"], event["cause"]) for event in events] == [
        (f"{job_id}:1", "job_enqueued", "enqueue"),
        (f"{job_id}:2", "job_claimed", "claim"),
        (f"{job_id}:3", "job_started", "implicit"),
        (f"{job_id}:4", "job_succeeded", "complete"),
    ]
    assert logs[0]["text"] == "printed"
    assert [each["name"] for each in listed] == ["reports/a.txt"]
    assert (file.body, file.headers["content-type"]) == (b"hello", "application/octet-stream")
    assert file.headers["content-disposition"] == 'attachment; filename="a.txt"'
    assert file.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert (missing.status, missing.code) == (404, "unknown_artifact")


@spec("U3", "H46", "H7")
def test_observations_are_read_beside_the_log_and_viewers_see_no_bodies(stage: Stage) -> None:
    lease = stage.leased()
    job_id = lease["job_id"]
    stage.call("cancel", {"request_id": "x", "mode": "hard"}, role=C, job_id=job_id)
    report = {**lease, "request_id": f"{lease['lease_id']}:c", "result": "late"}
    late = stage.call("complete", report, role=W)
    path = f"/v1/jobs/{job_id}/observations"

    [seen] = stage.call("observations", role=C, job_id=job_id).json["observations"]
    [with_body] = stage.ask("GET", f"{path}?bodies=true", token=stage.of(C)).json["observations"]
    [by_viewer] = stage.call("observations", role=V, job_id=job_id).json["observations"]
    refused = stage.ask("GET", f"{path}?bodies=true", token=stage.of(V))
    events = stage.call("events", role=V, job_id=job_id)

    assert late.json["verdict"] == "CANCELLED"
    assert (seen["type"], seen["cause"]) == ("result_discarded", "job_cancelled")
    assert (seen["body"], with_body["body"], by_viewer["body"]) == (None, '"late"', None)
    assert (seen["sha256"], by_viewer["sha256"]) == (with_body["sha256"], None)
    assert (seen["size"], by_viewer["size"], len(seen["sha256"])) == (6, 6, 64)
    assert (refused.status, refused.json["field"]) == (403, "bodies")
    assert "result_discarded" not in str(events.json)
    assert lease["lease_id"] not in str(with_body)


@spec("M5")
def test_a_job_and_its_compensation_name_each_other(stage: Stage) -> None:
    undo = {"compensation": {"kind": "undo", "queue": "q"}}
    lease = stage.leased(policy=undo)
    before = stage.call("job", role=V, job_id=lease["job_id"]).json["job"]
    stage.call("start", {**lease, "request_id": "s"}, role=W)
    cancel = {"request_id": "x", "mode": "hard"}
    stage.call("cancel", cancel, role=C, job_id=lease["job_id"])
    [grant] = stage.claim()
    report = {name: grant[name] for name in ("job_id", "lease_id")} | {"request_id": "c"}
    stage.call("complete", report, role=W)

    undone = stage.call("job", role=V, job_id=lease["job_id"]).json["job"]
    undoing = stage.call("job", role=V, job_id=grant["job_id"]).json["job"]
    [seen] = stage.call("observations", role=V, job_id=undone["id"]).json["observations"]

    assert (before["compensated_by"], before["compensates"]) == (None, None)
    assert (undone["compensated_by"], undone["compensates"]) == (undoing["id"], None)
    assert (undoing["compensated_by"], undoing["compensates"]) == (None, undone["id"])
    assert (seen["type"], seen["compensated_by"]) == ("compensated", undoing["id"])
    assert seen["request_id"] is None


def test_lists_come_in_pages(stage: Stage) -> None:
    for number in (1, 2, 3):
        stage.enqueue(number)

    first = stage.ask("GET", "/v1/jobs?limit=2&status=queued", token=stage.of(V)).json
    rest = stage.ask("GET", f"/v1/jobs?before={first['next_before']}", token=stage.of(V)).json

    assert [job["id"] for job in first["jobs"]] == [JOB.format(3), JOB.format(2)]
    assert [job["id"] for job in rest["jobs"]] == [JOB.format(1)]
    assert rest["next_before"] is None


@spec("S12")
def test_requests_may_use_the_status_words_of_older_documents(stage: Stage) -> None:
    lease = stage.leased()
    job_id = lease["job_id"]
    path = f"/v1/jobs/{job_id}/cancel"
    stage.enqueue(7)

    claimed = stage.ask("GET", "/v1/jobs?status=assigned", token=stage.of(V)).json["jobs"]
    done = stage.ask("GET", "/v1/jobs?status=COMPLETED", token=stage.of(V)).json["jobs"]
    both = "/v1/jobs?status=assigned&status=COMPLETED&status=queued"
    three = stage.ask("GET", both, token=stage.of(V)).json["jobs"]
    stale = stage.ask(
        "POST", path, {"request_id": "a", "expected_status": "COMPLETED"}, token=stage.of(C)
    )
    fresh = stage.ask(
        "POST", path, {"request_id": "b", "expected_status": "assigned"}, token=stage.of(C)
    )
    unknown = stage.ask("GET", "/v1/jobs?status=done", token=stage.of(V))

    assert [(job["id"], job["status"]) for job in claimed] == [(job_id, "claimed")]
    assert (done, len(three)) == ([], 2)
    assert (stale.status, stale.json["cause"]) == (409, "revision_mismatch")
    assert (fresh.status, fresh.json["job"]["status"]) == (200, "cancelled")
    assert (unknown.status, unknown.json["field"]) == (422, "status[0]")


@spec("L19")
def test_as_a_status_orphaned_is_stalled(stage: Stage) -> None:
    lease = stage.leased()
    path = f"/v1/jobs/{lease['job_id']}"
    stage.ask("POST", f"{path}/stall", {"request_id": "a"}, token=stage.of(Role.OPERATOR))

    listed = stage.ask("GET", "/v1/jobs?status=Orphaned", token=stage.of(V)).json["jobs"]
    cancelled = stage.ask(
        "POST",
        f"{path}/cancel",
        {"request_id": "b", "expected_status": "orphaned"},
        token=stage.of(C),
    )

    assert [(job["id"], job["status"]) for job in listed] == [(lease["job_id"], "stalled")]
    assert (cancelled.status, cancelled.json["job"]["status"]) == (200, "cancelled")


def test_jobs_are_listed_by_the_beginning_of_their_id(stage: Stage) -> None:
    for number in (1, 2):
        stage.enqueue(number)

    whole = stage.ask("GET", f"/v1/jobs?id_prefix={JOB.format(1)}", token=stage.of(V)).json
    begun = stage.ask("GET", f"/v1/jobs?id_prefix={JOB.format(1)[:13]}", token=stage.of(V)).json
    none = stage.ask("GET", "/v1/jobs?id_prefix=ffff", token=stage.of(V)).json

    assert [job["id"] for job in whole["jobs"]] == [JOB.format(1)]
    assert [job["id"] for job in begun["jobs"]] == [JOB.format(2), JOB.format(1)]
    assert none["jobs"] == []


@spec("OB25")
def test_a_span_that_ends_in_1970_does_not_end_now(stage: Stage) -> None:
    stage.enqueue()

    query = "since=1969-12-31T00:00:00Z&until=1970-01-01T00:00:00Z"
    found = stage.ask("GET", f"/v1/stats?{query}", token=stage.of(V)).json

    assert (found["until"], found["counts"]) == ("1970-01-01T00:00:00Z", [])


@spec("H3")
@pytest.mark.parametrize("since", ["2026", "1.8e9", "2026-11-17T08:00:00", "yesterday"])
def test_a_time_in_a_query_is_an_instant_and_no_number(stage: Stage, since: str) -> None:
    refused = stage.ask("GET", f"/v1/stats?since={since}", token=stage.of(V))

    assert (refused.status, refused.json["field"]) == (422, "since")
    assert "such as 2030-01-31T12:00:00Z" in refused.json["message"]


@spec("E4", "E6", "E8")
def test_the_events_of_all_jobs_are_listed_by_either_word(stage: Stage) -> None:
    lease = stage.leased(1)
    stage.call("start", {**lease, "request_id": "s"}, role=W)
    stage.enqueue(2, correlation_id="order-7")
    first, second = JOB.format(1), JOB.format(2)

    def listed(query: str = "") -> list[tuple[str, str]]:
        found = stage.ask("GET", f"/v1/events?oldest_first=true{query}", token=stage.of(V)).json
        return [(event["id"], event["name"]) for event in found["events"]]

    enqueued = [(f"{first}:1", "job_enqueued"), (f"{second}:1", "job_enqueued")]
    claimed, started = (f"{first}:2", "job_claimed"), (f"{first}:3", "job_started")
    assert sorted(listed()) == sorted([*enqueued, claimed, started])
    assert listed("&type=enqueued") == listed("&type=job_enqueued") == enqueued
    assert listed("&type=job_claimed&type=started") == [claimed, started]
    assert listed("&type=job_compensated") == listed("&type=job_heartbeat") == []
    assert listed("&type=job_lease_renewed") == []
    assert listed("&correlation_id=order-7") == enqueued[1:]
    assert listed(f"&correlation_id={first}") == [enqueued[0], claimed, started]
    assert listed(f"&job_id={second}&type=job_enqueued") == enqueued[1:]
    assert listed("&until=1971-01-01T00:00:00Z") == []
    assert len(listed("&since=1971-01-01T00:00:00Z")) == 4


@spec("E8")
def test_the_events_of_all_jobs_come_in_pages(stage: Stage) -> None:
    for number in range(1, 6):
        stage.enqueue(number)
    shown: list[str] = []
    query = "?limit=2"

    for _ in range(4):
        page = stage.ask("GET", f"/v1/events{query}", token=stage.of(V)).json
        shown += [event["job_id"] for event in page["events"]]
        if page["next_after"] is None:
            break
        query = f"?limit=2&after={page['next_after']}"

    assert shown == [JOB.format(number) for number in (5, 4, 3, 2, 1)]


@spec("E6", "E8")
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("type=nope", "type"),
        ("type=job_job_claimed", "type"),
        ("after=yesterday", "after"),
        ("after=1:x:2", "after"),
        ("limit=501", "limit"),
        ("job_id=1", "job_id"),
        ("since=2026", "since"),
        ("since=2026-01-02T00:00:00Z&until=2026-01-01T00:00:00Z", "since"),
        ("typ=claimed", "typ"),
    ],
)
def test_a_wrong_question_about_events_is_refused_by_name(
    stage: Stage, query: str, field: str
) -> None:
    refused = stage.ask("GET", f"/v1/events?{query}", token=stage.of(V))

    assert (refused.status, refused.json["field"]) == (422, field)


@spec("H46")
def test_a_viewer_sees_no_digest_in_a_list_of_events(stage: Stage) -> None:
    stage.enqueue(1, payload={"secret": 1})

    [seen] = stage.ask("GET", "/v1/events", token=stage.of(V)).json["events"]
    [whole] = stage.ask("GET", "/v1/events", token=stage.of(Role.OPERATOR)).json["events"]

    assert "sha256" not in seen["payload"]
    assert seen["fingerprint"] is None
    assert len(whole["payload"]["sha256"]) == 64


@spec("H43")
def test_a_log_comes_in_pages(stage: Stage) -> None:
    lease = stage.leased()
    stage.call("start", {**lease, "request_id": "s"}, role=W)
    stage.call("complete", {**lease, "request_id": "c"}, role=W)
    path = f"/v1/jobs/{lease['job_id']}/events"

    pages = [
        stage.ask("GET", f"{path}{query}", token=stage.of(V)).json
        for query in ("?limit=3", "?limit=3&after_seq=3", "?after_seq=4", "?limit=4", "")
    ]
    wrong = [
        stage.ask("GET", f"{path}?{query}", token=stage.of(V)).json["field"]
        for query in ("limit=501", "limit=0", "after_seq=-1")
    ]

    shown = [([each["seq"] for each in page["events"]], page["next_after_seq"]) for page in pages]
    assert shown == [
        ([1, 2, 3], 3),
        ([4], None),
        ([], None),
        ([1, 2, 3, 4], 4),
        ([1, 2, 3, 4], None),
    ]
    assert wrong == ["limit", "limit", "after_seq"]


@pytest.mark.parametrize(
    "name",
    [
        "lookup",
        "jobs",
        "dead-letters",
        "events",
        "observations",
        "logs",
        "artifacts",
    ],
)
def test_large_responses_are_encoded_on_a_thread(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    stage.enqueue()
    made_on: list[threading.Thread] = []

    def noted(message: object) -> bytes:
        made_on.append(threading.current_thread())
        return encode(message)

    monkeypatch.setattr(calls, "encode", noted)
    answer = send(stage, BY_NAME[name], token=stage.of(C))

    assert answer.status == 200
    assert len(made_on) == 1
    assert threading.main_thread() not in made_on


@pytest.mark.parametrize("jobs", [1, 11])
def test_a_response_about_many_new_jobs_is_encoded_on_a_thread(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    made_on: list[threading.Thread] = []

    def noted(message: object) -> bytes:
        made_on.append(threading.current_thread())
        return encode(message)

    monkeypatch.setattr(calls, "encode", noted)
    new = {"queue": "q", "kind": "k"}
    answer = stage.call("enqueue-many", {"jobs": [new] * jobs}, role=C)

    assert len(answer.json["replies"]) == jobs
    assert [thread is threading.main_thread() for thread in made_on] == [jobs == 1]


@pytest.mark.parametrize("size", [10, 100_000])
def test_large_grants_are_encoded_on_a_thread(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    stage.enqueue(payload="x" * size)
    made_on: list[threading.Thread] = []

    def noted(found: ClaimAnswer) -> ClaimReply:
        made_on.append(threading.current_thread())
        return claim_reply(found)

    monkeypatch.setattr(replies, "claim_reply", noted)
    [grant] = stage.claim()

    assert len(grant["payload"]) == size
    assert (threading.main_thread() in made_on) == (size == 10)


@spec("H43")
def test_the_number_of_bodies_in_an_answer_is_limited(stage: Stage) -> None:
    ids = [JOB.format(number) for number in range(51)]

    answers = [
        stage.ask("GET", "/v1/jobs?bodies=true&limit=51", token=stage.of(C)),
        stage.ask("GET", "/v1/dead-letters?bodies=true&limit=51", token=stage.of(C)),
        stage.ask("POST", "/v1/jobs/lookup?bodies=true", {"job_ids": ids}, token=stage.of(C)),
        stage.call("claim", stage.claim_message(limit=101), role=W),
    ]
    allowed = stage.ask("GET", "/v1/jobs?bodies=true&limit=50", token=stage.of(C))

    assert [(answer.status, answer.json["field"]) for answer in answers] == [
        (422, "limit"),
        (422, "limit"),
        (422, "job_ids"),
        (422, "limit"),
    ]
    assert allowed.json["jobs"] == []


@spec("L18", "L19")
def test_every_read_says_that_a_job_is_suspect(stage: Stage) -> None:
    job_id = stage.leased(policy={"lease_s": 60, "heartbeat_s": 15})["job_id"]

    def suspect() -> list[bool]:
        return [
            stage.call("job", role=V, job_id=job_id).json["job"]["suspect"],
            stage.call("jobs", role=V).json["jobs"][0]["suspect"],
            stage.call("lookup", {"job_ids": [job_id]}, role=V).json["jobs"][0]["suspect"],
        ]

    def orphaned() -> list[str]:
        found = stage.ask("GET", "/v1/jobs?orphaned=true", token=stage.of(V)).json["jobs"]
        return [each["id"] for each in found]

    stage.clock.advance(29)
    assert suspect() == [False] * 3
    assert orphaned() == []
    stage.clock.advance(1)
    assert suspect() == [True] * 3
    assert orphaned() == [job_id]


@spec("W5")
@pytest.mark.parametrize("route", ["job", "jobs", "lookup", "events"])
def test_a_read_by_a_viewer_sweeps_a_job_whose_lease_is_over(stage: Stage, route: str) -> None:
    job_id = stage.leased(policy={"lease_s": 60})["job_id"]
    sweeper = Sweeper(stage.coordinator, monotonic=stage.clock, pause=stage.clock.advance)
    stage.coordinator.sweep_overdue = sweeper.sweep_overdue
    stage.clock.advance(480)

    more = {"job_id": job_id} if route in ("job", "events") else {}
    message = {"job_ids": [job_id]} if route == "lookup" else None
    read = stage.call(route, message, role=V, **more)

    assert read.status == 200
    if route == "events":
        assert read.json["events"][-1]["type"] == "requeued"
    else:
        [shown] = [read.json["job"]] if route == "job" else read.json["jobs"]
        assert (shown["status"], shown["failures"]) == ("queued", 1)
    assert [event.actor for event in stage.events(job_id)[-2:]] == ["system", "system"]


def test_the_server_describes_itself(stage: Stage) -> None:
    description = stage.call("openapi", role=V)

    assert description.json["openapi"] == "3.1.0"
    assert json.loads(description.body)["paths"]["/v1/claim"]["post"]["operationId"] == "claim"


@spec("F12", "Y6")
def test_the_description_says_which_reasons_a_worker_may_report(stage: Stage) -> None:
    schemas = stage.call("openapi", role=V).json["components"]["schemas"]

    for name in ("FailMessage", "FailReport"):
        listed = [
            each["enum"]
            for each in schemas[name]["properties"]["reason_code"]["anyOf"]
            if "enum" in each
        ]
        assert [set(reasons) for reasons in listed] == [REPORTABLE_REASONS]


@spec("H88")
def test_ready_means_that_the_sweepers_last_write_succeeded(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeper = Sweeper(stage.coordinator, monotonic=stage.clock)
    sweeper.sweep_once()
    ready = stage.ask("GET", "/readyz")

    def fail(*, after: Instant | None = None) -> None:
        raise StoreUnavailable("full")

    with monkeypatch.context() as patched:
        patched.setattr(stage.store.upkeep, "tick", fail)
        with pytest.raises(StoreUnavailable):
            sweeper.sweep_once()
    not_ready = stage.ask("GET", "/readyz")
    sweeper.sweep_once()
    again = stage.ask("GET", "/readyz")

    assert (ready.status, ready.json) == (200, {"status": "ready"})
    assert (not_ready.status, not_ready.code) == (503, "not_ready")
    assert not_ready.headers["retry-after"] == "1"
    assert again.status == 200


@spec("H88")
def test_a_sweeper_that_no_longer_writes_makes_the_server_not_ready(stage: Stage) -> None:
    Sweeper(stage.coordinator, monotonic=stage.clock).sweep_once()

    stage.clock.advance(stage.coordinator.timeout_s + 6)

    assert stage.ask("GET", "/readyz").status == 503


@spec("H88")
def test_readyz_makes_no_call_to_the_store(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(stage.store, "now", lambda: asked.append("now"))
    for name in ("upkeep.tick", "upkeep.last_tick", "jobs.load", "jobs.save", "tokens.load"):
        instead(stage.store, name, lambda *_, name=name: asked.append(name))

    assert stage.ask("GET", "/readyz").status == 200
    assert asked == []


def test_the_stores_clock_is_read_now_and_then(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[Instant] = []

    def read() -> Instant:
        readings.append(stage.clock())
        return stage.clock()

    monkeypatch.setattr(stage.coordinator.store, "now", read)
    shown = []
    for passes_s in (0, 9, 1, 1, 9):
        stage.clock.advance(passes_s)
        shown.append(stage.run(stage.services.now()) - stage.clock())

    assert shown == [0] * 5  # between two readings it goes on by this machine's clock
    assert [each - readings[0] for each in readings] == [0, seconds(11)]


def test_metrics_are_what_the_server_was_given() -> None:
    stage = Stage(metrics=lambda namespace: b"tenure_up 1\n")

    answer = stage.call("metrics", role=V)

    stage.close()
    assert answer.body == b"tenure_up 1\n"
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


@spec("OB28", "H41")
def test_an_overview_has_only_what_is_in_the_tokens_scope(stage: Stage) -> None:
    stage.enqueue(1, queue="q", kind="k")
    stage.enqueue(2, queue="q", kind="other")
    limited = stage.token(V, "limited", kinds=("k",))

    seen = stage.ask("GET", "/v1/overview?range=15m", token=stage.of(V)).json
    less = stage.ask("GET", "/v1/overview?range=15m", token=limited).json

    assert sum(bucket["enqueued"] for bucket in seen["buckets"]) == 2
    assert sum(bucket["enqueued"] for bucket in less["buckets"]) == 1
    assert [kind["kind"] for kind in less["kinds"]] == ["k"]
    assert [queue["ready"] for queue in less["queues"]] == [1]
    assert {each["kind"] for each in less["attention"]} == {"k"}


@spec("OB50")
def test_an_overview_says_how_long_jobs_of_each_kind_waited(stage: Stage) -> None:
    stage.enqueue(1, queue="q", kind="k")
    stage.clock.advance(4)
    stage.claim()

    found = stage.ask("GET", "/v1/overview?range=15m", token=stage.of(V)).json

    [kind] = found["kinds"]
    assert kind["wait"] == found["wait"]
    assert kind["wait"]["p95_s"] == pytest.approx(4, rel=1 / 16)
    assert kind["run"] == {"p50_s": None, "p95_s": None, "samples": 0}


@spec("OB28")
def test_an_overview_of_an_unknown_range_is_refused(stage: Stage) -> None:
    refused = stage.ask("GET", "/v1/overview?range=1y", token=stage.of(V))

    assert (refused.status, refused.json["field"]) == (422, "range")


@spec("OB30")
def test_viewers_share_an_overview_for_two_seconds(stage: Stage) -> None:
    def shown() -> int:
        found = stage.ask("GET", "/v1/overview?range=15m", token=stage.of(V)).json
        return sum(bucket["enqueued"] for bucket in found["buckets"])

    stage.enqueue(1)
    first = shown()
    stage.enqueue(2)
    shared = shown()
    stage.clock.advance(2)

    assert (first, shared, shown()) == (1, 1, 2)


@spec("J12")
def test_jobs_are_searched_by_worker_time_and_error(stage: Stage) -> None:
    lease = stage.leased(meta={"tenant": "acme"})
    error = {"class": "permanent", "type": "OSError", "message": "connection refused"}
    stage.call("fail", {**lease, "request_id": "f", "error": error}, role=W)
    stage.enqueue(2)

    def ids(query: str) -> list[str]:
        page = stage.ask("GET", f"/v1/jobs?{query}", token=stage.of(V)).json
        return [job["id"] for job in page["jobs"]]

    assert ids("error=Connection%20REFUSED") == [lease["job_id"]]
    assert ids("error=timed%20out") == []
    assert ids("worker=nobody") == []
    assert ids("meta=tenant=acme") == ids("meta=tenant%3Dacme") == [lease["job_id"]]
    assert ids("meta=tenant=other") == []
    assert ids("finished_since=2020-01-01T00:00:00Z") == [lease["job_id"]]
    assert ids("enqueued_until=2020-01-01T00:00:00Z") == []


@spec("OB31", "H41")
def test_groups_of_dead_letters_have_only_those_in_the_tokens_scope(stage: Stage) -> None:
    for number, kind in enumerate(("k", "other"), start=1):
        job_id = stage.enqueue(number, kind=kind)
        asked = {"request_id": f"d{number}", "reason_code": "policy_violation"}
        stage.call("dead-letter", asked, role=Role.OPERATOR, job_id=job_id)
    limited = stage.token(V, "limited", kinds=("k",))

    every = stage.ask("GET", "/v1/dead-letter-groups", token=stage.of(V)).json
    own = stage.ask("GET", "/v1/dead-letter-groups", token=limited).json
    key = own["groups"][0]["key"]
    named = stage.ask("GET", f"/v1/dead-letter-groups?key={key}", token=limited).json

    assert sorted(each["kind"] for each in every["groups"]) == ["k", "other"]
    assert [each["kind"] for each in own["groups"]] == ["k"]
    assert [each["letters"] for each in named["groups"]] == [1]
    assert named["groups"][0]["job_ids"] == [JOB.format(1)]


@spec("X4", "H41")
def test_a_job_is_verified_by_itself(stage: Stage) -> None:
    job_id = stage.enqueue(1, kind="k")
    other = stage.token(V, "limited", kinds=("other",))

    found = stage.call("verify-job", role=V, job_id=job_id).json
    hidden = stage.ask("GET", f"/v1/jobs/{job_id}/verification", token=other)

    states = {each["id"]: each["state"] for each in found["invariants"]}
    assert (found["holds"], found["events"], found["job_id"]) == (True, 1, job_id)
    assert (states["I1"], states["I12"], states["I17"], states["I16"]) == (
        "holds",
        "holds",
        "not checked",
        "not checked",
    )
    assert hidden.status == 404


@spec("OB32")
def test_why_a_job_waits_is_data(stage: Stage) -> None:
    job_id = stage.enqueue(1, queue="q", delay_s=60)
    stage.call("pause", role=Role.OPERATOR, queue="q")

    found = stage.call("wait-reasons", role=V, job_id=job_id).json["reasons"]

    assert [each["why"] for each in found] == ["not_due", "paused", "no_worker"]
    assert found[0]["until"] is not None
    assert found[1]["message"] == "queue q is paused"


@spec("OB32", "H41")
def test_a_reason_names_only_jobs_in_the_tokens_scope(stage: Stage) -> None:
    held = {"concurrency_key": "tenant-1"}
    stage.leased(1, **held)
    stage.enqueue(2, queue="other", **held)
    limited = stage.token(V, "limited", queues=("other",))

    every = stage.call("wait-reasons", role=V, job_id=JOB.format(2)).json["reasons"]
    path = f"/v1/jobs/{JOB.format(2)}/wait-reasons"
    less = stage.ask("GET", path, token=limited).json["reasons"]

    assert (every[0]["why"], every[0]["job_ids"]) == ("key", [JOB.format(1)])
    assert (less[0]["why"], less[0]["job_ids"]) == ("key", [])


@spec("OB30")
def test_an_overview_that_nobody_waits_for_any_more_is_not_made() -> None:
    """Otherwise a viewer who asks for many and leaves would keep the threads of lists busy."""
    made: list[OverviewFilter] = []

    async def scenario() -> int:
        turn = asyncio.Event()

        async def make(wanted: OverviewFilter) -> Overview:
            await turn.wait()
            made.append(wanted)
            raise AssertionError("nobody waits for it")

        shared = SharedAnswers[OverviewFilter, Overview](lambda: 0, fresh_for=seconds(2))
        filters = [
            OverviewFilter(namespace=DEFAULT_NAMESPACE, queues=(QueueName(f"q{number}"),))
            for number in range(100)
        ]
        viewers = [
            asyncio.create_task(shared.get(each, partial(make, each)))
            for each in filters
            for _ in range(2)
        ]
        await asyncio.sleep(0)
        for viewer in viewers:
            viewer.cancel()
        await asyncio.gather(*viewers, return_exceptions=True)
        turn.set()
        return len(asyncio.all_tasks() - {asyncio.current_task()})

    assert asyncio.run(scenario()) == 0
    assert made == []


@spec("OB30")
def test_an_overview_is_made_for_those_who_still_wait(stage: Stage) -> None:
    everything = OverviewFilter(namespace=DEFAULT_NAMESPACE)
    made: list[OverviewFilter] = []

    async def scenario() -> Overview:
        turn = asyncio.Event()

        async def make(wanted: OverviewFilter) -> Overview:
            await turn.wait()
            made.append(wanted)
            return stage.store.views.overview(wanted)

        shared = SharedAnswers[OverviewFilter, Overview](lambda: 0, fresh_for=seconds(2))
        gone, stays = (
            asyncio.create_task(shared.get(everything, partial(make, everything))) for _ in range(2)
        )
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        turn.set()
        return await stays

    assert stage.run(scenario()).queues == ()
    assert made == [everything]


@spec("OB30")
def test_an_overview_that_took_long_is_shown_for_longer(stage: Stage) -> None:
    store = stage.store
    quick = store.views.overview

    def slow(wanted: OverviewFilter) -> Overview:
        stage.clock.advance(1)
        return quick(wanted)

    store.views.overview = slow  # a store that takes a second

    def shown() -> str:
        found = stage.ask("GET", "/v1/overview", token=stage.of(V)).json
        return str(found["now"])

    first = shown()
    stage.clock.advance(19)
    shared = shown()
    stage.clock.advance(2)

    assert first == shared != shown()
