"""Schedules over HTTP: who sees and changes which."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.coordinator.schedules import Firer
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, QueueName, ScheduleName, operator_actor
from tenure.core.schedules import PutSchedule, ScheduleOutcome
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import Role
from tenure_conformance.spec import spec
from tests.server.harness import JOB, Answer, Stage

HOURLY: dict[str, Any] = {"queue": "q", "kind": "k", "every_s": 3600, "payload": {"pin": 1}}
O, W, V = Role.OPERATOR, Role.WORKER, Role.VIEWER  # noqa: E741 - as in the table of routes


def put(stage: Stage, name: str = "s", token: str | None = None, **fields: Any) -> Answer:
    chosen = token or stage.of(O)
    return stage.ask("PUT", f"/v1/schedules/{name}/spec", {**HOURLY, **fields}, token=chosen)


def post(stage: Stage, path: str, message: Any = None, token: str | None = None) -> Answer:
    return stage.ask("POST", f"/v1/schedules/{path}", message, token=token or stage.of(O))


@spec("SC13")
def test_a_schedule_is_made_read_changed_and_removed(stage: Stage) -> None:
    made = put(stage)
    read = stage.ask("GET", "/v1/schedules/s/spec", token=stage.of(O))
    listed = stage.ask("GET", "/v1/schedules", token=stage.of(O)).json["schedules"]
    paused, resumed = post(stage, "s/pause"), post(stage, "s/resume")
    removed, gone = post(stage, "s/remove"), post(stage, "s/pause")

    assert (made.status, made.json["changed"]) == (200, True)
    assert read.json["schedule"] == made.json["schedule"]
    assert read.json["schedule"]["payload"] == {"pin": 1}
    assert len(read.json["next_times"]) == 5
    by = [read.json["schedule"][name] for name in ("created_by", "changed_by")]
    assert by == ["operator:operator-1"] * 2
    assert [each["name"] for each in listed] == ["s"]
    assert "payload" not in listed[0]
    assert (paused.json["next_times"], paused.json["schedule"]["next_at"]) == ([], None)
    assert resumed.json["schedule"]["paused_at"] is None
    assert removed.status == 200
    assert (gone.status, gone.code) == (404, "unknown_schedule")


@spec("SC11", "SC13")
def test_a_schedule_is_run_and_its_jobs_are_listed(stage: Stage) -> None:
    put(stage)
    asked = {"job_id": JOB.format(7)}

    first, again = post(stage, "s/run", asked), post(stage, "s/run", asked)
    fresh = post(stage, "s/run", {})
    taken = post(stage, "s/run", {"job_id": stage.enqueue(9)})

    assert first.json["job_id"] == again.json["job_id"] == JOB.format(7)
    assert (first.json["changed"], again.json["changed"]) == (True, False)
    listed = stage.ask("GET", "/v1/jobs?schedule=s", token=stage.of(O)).json["jobs"]
    assert {each["id"] for each in listed} == {JOB.format(7), fresh.json["job_id"]}
    assert (taken.status, taken.json["field"]) == (422, "job_id")


@spec("SC25", "SC13")
def test_a_fired_job_shows_its_schedule_and_a_grant_its_nominal_time(stage: Stage) -> None:
    put(stage)
    stage.clock.advance(3600)
    Firer(stage.coordinator).fire_due()

    [job] = stage.ask("GET", "/v1/jobs?schedule=s", token=stage.of(O)).json["jobs"]
    [grant] = stage.call("claim", stage.claim_message(), role=W).json["grants"]

    assert job["schedule"] == grant["schedule"] == "s"
    assert job["scheduled_for"] == grant["scheduled_for"]
    assert job["scheduled_for"].endswith(":00:00Z")


@spec("SC13", "SC10")
def test_a_worker_makes_new_schedules_only(stage: Stage) -> None:
    worker = stage.of(W)

    refused = put(stage, token=worker)
    made = put(stage, token=worker, only_new=True, declared_by="shop:app")
    again = put(stage, token=worker, only_new=True, every_s=60)

    assert (refused.status, refused.json["field"]) == (403, "only_new")
    assert (made.status, made.json["changed"]) == (200, True)
    assert (again.status, again.json["changed"]) == (200, False)
    assert again.json["schedule"]["every_s"] == 3600


@spec("SC13")
@pytest.mark.parametrize("limits", [{"queues": (QueueName("mine"),)}, {"kinds": (Kind("mine"),)}])
def test_a_limited_token_sees_and_changes_only_its_own(
    stage: Stage, limits: dict[str, Any]
) -> None:
    limited = stage.token(O, "limited", **limits)
    put(stage, "theirs")
    put(stage, "mine", queue="mine", kind="mine")

    listed = stage.ask("GET", "/v1/schedules", token=limited).json["schedules"]
    answers = [
        stage.ask("GET", "/v1/schedules/theirs/spec", token=limited),
        *(post(stage, f"theirs/{verb}", token=limited) for verb in ("pause", "resume", "remove")),
        post(stage, "theirs/run", {}, token=limited),
    ]
    taken = put(stage, "theirs", token=limited, queue="mine", kind="mine")
    other = put(stage, "new", token=limited)
    undo = {"compensation": {"queue": "theirs", "kind": "theirs"}}
    undone = put(stage, "new", token=limited, queue="mine", kind="mine", policy=undo)

    assert [each["name"] for each in listed] == ["mine"]
    assert {(each.status, each.code) for each in answers} == {(404, "unknown_schedule")}
    assert [each.status for each in (taken, other, undone)] == [403, 403, 403]
    assert post(stage, "mine/pause", token=limited).status == 200
    theirs = stage.store.schedules.load(DEFAULT_NAMESPACE, ScheduleName("theirs")).schedule
    assert theirs is not None
    assert theirs.rev == 1


@spec("H70")
@pytest.mark.parametrize("field", ["compensation", "on_dead_letter"])
def test_a_limited_token_starts_no_schedule_whose_jobs_make_others(
    stage: Stage, field: str
) -> None:
    limited = stage.token(O, "limited", queues=(QueueName("mine"),))
    made = {"queue": "theirs", "kind": "follows"}
    more = {"policy": {field: made}} if field == "compensation" else {field: made}
    put(stage, "s", queue="mine", **more)

    paused = post(stage, "s/pause", token=limited)
    refused = [
        post(stage, "s/resume", token=limited),
        post(stage, "s/run", {}, token=limited),
    ]

    assert paused.status == 200
    assert [(each.status, each.code) for each in refused] == [(403, "out_of_scope")] * 2
    assert post(stage, "s/resume").status == 200


@spec("SC13", "H46")
def test_a_viewer_sees_no_payload(stage: Stage) -> None:
    put(stage)

    seen = stage.ask("GET", "/v1/schedules/s/spec", token=stage.of(V))

    assert seen.status == 200
    assert "payload" not in seen.json["schedule"]


@spec("SC12")
@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"every_s": None, "cron": "0 0 30 2 *"}, "cron"),
        ({"every_s": None, "cron": "0 0 * * *", "tz": "Nowhere/Land"}, "tz"),
        ({"cron": "0 0 * * *"}, "cron"),
        ({"every_s": None}, "cron"),
        ({"every_s": 0.5}, "every_s"),
        ({"catch_up": "all"}, "catch_up"),
        ({"overlap": "queue"}, "overlap"),
        ({"jitter_s": -1}, "jitter_s"),
        ({"queue": "two words"}, "queue"),
        ({"every": 60}, "every"),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_written(
    stage: Stage, fields: dict[str, Any], field: str
) -> None:
    refused = put(stage, **fields)

    assert refused.status in (400, 422), refused
    assert refused.json["field"] == field
    name = ScheduleName("s")
    assert stage.store.schedules.load(DEFAULT_NAMESPACE, name).schedule is None


@spec("SC24", "H79")
def test_a_token_that_was_just_revoked_makes_and_resumes_no_schedule(stage: Stage) -> None:
    worker, text = stage.new_token(W, may_declare=True)
    operator, other = stage.new_token(O, "other")
    put(stage, token=text, only_new=True)
    post(stage, "s/pause", token=other)

    paused = [stage.store.tokens.revoke(each.id) for each in (worker, operator)]
    refused = [
        put(stage, "t", token=text, only_new=True),
        put(stage, token=other, every_s=60),
        post(stage, "s/resume", token=other),
    ]

    assert paused == [(), ()], "it was paused already"
    assert [(each.status, each.code) for each in refused] == [(401, "unauthenticated")] * 3
    [found] = stage.store.schedules.page(DEFAULT_NAMESPACE)
    assert (found.name, found.rev) == ("s", 2)


@spec("SC24", "H79")
def test_what_a_token_wrote_while_it_was_revoked_is_paused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, text = stage.new_token(O, "gone")
    before(stage, monkeypatch, lambda: stage.store.tokens.revoke(token.id))

    refused = put(stage, token=text)

    assert (refused.status, refused.code) == (401, "unauthenticated")
    [found] = stage.store.schedules.page(DEFAULT_NAMESPACE)
    assert found.paused_at is not None
    assert found.pause_reason == "last token of operator:gone revoked"


@spec("SC13", "H70")
@pytest.mark.parametrize("change", ["resume", "pause", "run", "put"])
def test_a_schedule_that_leaves_the_scope_meanwhile_is_not_changed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    limited = stage.token(O, "limited", queues=(QueueName("q"),))
    put(stage, queue="q")
    [made] = stage.store.schedules.page(DEFAULT_NAMESPACE)
    moved = PutSchedule(
        namespace=DEFAULT_NAMESPACE,
        name=made.name,
        actor=operator_actor("ada"),
        spec=replace(made.spec, queue=QueueName("other")),
    )
    change_schedule = stage.coordinator.change_schedule
    before(stage, monkeypatch, lambda: change_schedule(moved))

    if change == "put":
        refused = put(stage, queue="q", token=limited)
    else:
        message: Any = {} if change == "run" else None
        refused = post(stage, f"s/{change}", message, token=limited)

    assert refused.status == (403 if change == "put" else 404), refused
    [found] = stage.store.schedules.page(DEFAULT_NAMESPACE)
    assert (found.spec.queue, found.rev, found.changed_by) == ("other", 2, "operator:ada")
    assert stage.store.views.jobs(JobFilter(namespace=DEFAULT_NAMESPACE)).jobs == []


def before(stage: Stage, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act after a request about a schedule was checked and before it is decided."""
    decide = stage.coordinator.change_schedule

    def late(*given: Any, **more: Any) -> ScheduleOutcome:
        act()
        return decide(*given, **more)

    monkeypatch.setattr(stage.coordinator, "change_schedule", late)


@spec("SC24")
def test_readers_see_that_a_schedule_is_paused_because_a_token_was_revoked(stage: Stage) -> None:
    token, text = stage.new_token(W, may_declare=True)
    put(stage, token=text, only_new=True)
    before = stage.ask("GET", "/v1/schedules/s/spec", token=stage.of(O)).json["schedule"]

    stage.store.tokens.revoke(token.id)

    [listed] = stage.ask("GET", "/v1/schedules", token=stage.of(V)).json["schedules"]
    assert before["pause_reason"] is None
    assert listed["pause_reason"] == "last token of worker:worker-1 revoked"
    assert listed["paused_at"] is not None
    assert listed["changed_by"] == "system"


@spec("H80")
def test_the_schedules_that_a_worker_declares_are_null_to_a_limited_token(stage: Stage) -> None:
    limited = stage.token(O, "limited", queues=(QueueName("q"),))
    about = {"host": "h", "pid": 1, "queues": ["q"], "concurrency": 1, "version": "1"}
    alive = {**about, "uptime_s": 1.0, "schedules": ["s"]}
    stage.call("alive", alive, role=W, worker="w")

    shown = {
        token: stage.ask("GET", "/v1/workers", token=token).json["workers"][0]["schedules"]
        for token in (limited, stage.of(O))
    }

    assert shown == {limited: None, stage.of(O): ["s"]}
