"""Actions: what their forms mean, what they do to several targets, and what is said afterwards."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from tenure.core.vocabulary import Role
from tenure.dashboard.actions import MAX_TARGETS
from tenure.dashboard.pages import ACTIONS
from tenure.dashboard.pages.jobs import ROW_CHOICES
from tenure.dashboard.pages.queues import limits_in
from tenure.errors import InvalidInput
from tenure.protocol.routes import BY_NAME
from tenure_conformance.spec import spec
from tests.dashboard.harness import DashboardStage
from tests.dashboard.test_job_pages import ended_flow
from tests.dashboard.test_pages import furnish
from tests.server.harness import JOB
from tests.support.cases import each_case


@each_case("action", ACTIONS)
def test_every_action_is_a_route_that_changes_something(action: Any) -> None:
    route = BY_NAME[action.name]

    assert not route.only_reads
    assert route.path_fields == (action.target.part,)
    assert Role.VIEWER not in route.roles


@pytest.mark.parametrize(
    ("form", "body"),
    [
        ({"limit": "5"}, {"limit": 5}),
        ({"limit": " 0 ", "rate": ""}, {"limit": 0}),
        ({"rate": "100/m", "burst": "7"}, {"rate": "100/m", "burst": 7}),
        ({"rate": "none"}, {"rate": None}),
        ({"rate": "none", "burst": "7"}, {"rate": None}),
    ],
)
def test_what_is_left_empty_stays_as_it_is(
    form: Mapping[str, str], body: dict[str, object]
) -> None:
    assert limits_in("limit")(form) == body


@each_case("read", [limits_in("limit"), limits_in("concurrency_limit")])
@each_case("form", [{}, {"limit": "  "}, {"burst": "-1"}, {"burst": "1e3"}, {"burst": "²"}])
def test_a_form_that_says_nothing_or_nonsense_is_refused(
    read: Any, form: Mapping[str, str]
) -> None:
    with pytest.raises(InvalidInput):
        read(form)


def test_several_targets_are_done_one_by_one_and_counted(stage: DashboardStage) -> None:
    furnish(stage)
    browser = stage.browser(Role.OPERATOR)

    page = browser.get("/actions/pause?target=q&target=r&target=q").text
    browser.submit("/actions/pause", {"target": ["q", "r", "not a name"]})

    assert "Pause 2 queues?" in page
    shown = browser.get("/queues").text
    assert "2 queues: paused. Not done: 1 ×" in shown


@pytest.mark.parametrize("number", [0, MAX_TARGETS + 1])
def test_no_target_and_too_many_are_refused(stage: DashboardStage, number: int) -> None:
    browser = stage.browser(Role.OPERATOR)
    targets = [f"q{each}" for each in range(number)]

    answer = browser.submit("/actions/pause", {"target": targets})

    assert answer.status == 422


def test_a_field_that_the_route_refuses_is_said(stage: DashboardStage) -> None:
    browser = stage.browser(Role.OPERATOR)

    answer = browser.submit("/actions/limit", {"target": "q", "rate": "fast"})

    assert answer.status == 422
    assert "rate" in answer.text


def test_an_unknown_action_has_no_page(stage: DashboardStage) -> None:
    browser = stage.browser(Role.OPERATOR)

    assert browser.get("/actions/nothing?target=q").status == 404
    assert browser.get("/actions/put-schedule?target=q").status == 404


def test_an_action_leads_back_to_where_it_was_offered(stage: DashboardStage) -> None:
    furnish(stage)
    browser = stage.browser(Role.OPERATOR)

    there = browser.submit("/actions/pause", {"target": "q", "back": "/queues/q?range=6h"})
    elsewhere = browser.submit("/actions/resume", {"target": "q", "back": "//evil.example"})

    assert there.headers["location"] == "/queues/q?range=6h"
    assert elsewhere.headers["location"] == "/queues"


def test_a_schedule_is_run_paused_and_resumed(stage: DashboardStage) -> None:
    furnish(stage)
    browser = stage.browser(Role.OPERATOR)

    for name in ("run", "pause", "resume"):
        assert browser.submit(f"/actions/{name}-schedule", {"target": "s"}).status == 303

    spec = stage.call("schedule", role=Role.OPERATOR, schedule="s").json["schedule"]
    made = stage.ask("GET", "/v1/jobs?schedule=s", token=stage.of(Role.OPERATOR)).json["jobs"]
    assert (spec["paused_at"], spec["rev"]) == (None, 4)
    assert [job["kind"] for job in made] == ["k"]
    assert f'href="/jobs/{made[0]["id"]}"' in browser.get("/schedules/s").text


@spec("DB22")
def test_a_form_that_is_sent_twice_runs_a_schedule_once(stage: DashboardStage) -> None:
    furnish(stage)
    browser = stage.browser(Role.OPERATOR)
    page = browser.get("/actions/run-schedule?target=s").text
    form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))

    for _ in range(2):
        assert browser.post("/actions/run-schedule", form).status == 303

    made = stage.ask("GET", "/v1/jobs?schedule=s", token=stage.of(Role.OPERATOR)).json["jobs"]
    assert len(made) == 1


def test_a_worker_is_drained(stage: DashboardStage) -> None:
    furnish(stage)

    stage.browser(Role.OPERATOR).submit("/actions/drain", {"target": "w"})

    [worker] = stage.call("workers", role=Role.OPERATOR).json["workers"]
    assert worker["state"] == "draining"


@spec("B33")
def test_the_page_of_a_worker_is_about_the_process_that_it_shows(stage: DashboardStage) -> None:
    furnish(stage)
    browser = stage.browser(Role.OPERATOR)
    browser.submit("/actions/drain", {"target": "w"})
    asked = browser.get("/workers/w").text

    stage.clock.advance(5)
    alive = {"host": "h", "pid": 9, "queues": ["q"], "concurrency": 1, "version": "1"}
    stage.call("alive", {**alive, "uptime_s": 1}, role=Role.WORKER, worker="w")

    no_request = '<dt>Asked to stop</dt><dd><span class="muted">no</span></dd>'
    assert no_request not in asked
    assert no_request in browser.get("/workers/w").text


@spec("DB22")
def test_all_rows_of_the_longest_page_of_jobs_can_be_ticked(stage: DashboardStage) -> None:
    """A browser sends them in the URL of the confirmation, and the head of a request has a
    limit."""
    browser = stage.browser(Role.OPERATOR)
    rows = int(ROW_CHOICES[-1])
    targets = "&".join(f"target={JOB.format(number)}" for number in range(1, rows + 1))

    asked = browser.get(f"/actions/cancel?back=%2Fjobs%3Frows%3D{rows}&{targets}")

    assert asked.status == 200
    assert f"Cancel {rows} jobs?" in asked.text


@spec("DB22")
def test_a_job_that_is_gone_does_not_stop_the_others(stage: DashboardStage) -> None:
    jobs = [stage.enqueue(1), JOB.format(77), stage.enqueue(2)]
    browser = stage.browser(Role.OPERATOR)
    dead = {"target": jobs, "reason_code": "policy_violation"}

    answer = browser.submit("/actions/dead-letter", dead)

    assert answer.status == 303
    assert "2 jobs" in browser.get("/help").text
    assert [stage.job(each).status.value for each in (jobs[0], jobs[2])] == ["dead_lettered"] * 2


def field_of(page: str, name: str) -> str:
    """What a field of a form shows."""
    [tag] = re.findall(rf'<input id="field-{name}"[^>]*>', page)
    [value] = re.findall(r'value="([^"]*)"', tag)
    return str(value)


def test_the_form_of_a_queues_limits_opens_with_what_is_set(stage: DashboardStage) -> None:
    stage.call("limit", {"limit": 5, "rate": "90/m", "burst": 7}, role=Role.OPERATOR, queue="q")
    browser = stage.browser(Role.OPERATOR)

    page = browser.get("/actions/limit?target=q").text
    shown = {name: field_of(page, name) for name in ("limit", "rate", "burst")}
    answer = browser.submit("/actions/limit", {"target": "q", **shown, "limit": "6"})
    [queue] = stage.call("queues", role=Role.OPERATOR).json["queues"]

    assert shown == {"limit": "5", "rate": "90/m", "burst": "7"}
    assert answer.status == 303
    assert (queue["limit"], queue["rate"], queue["burst"]) == (6, "90/m", 7)
    assert field_of(browser.get("/actions/limit?target=other").text, "limit") == ""


def test_the_form_of_a_kinds_limits_opens_with_what_is_set(stage: DashboardStage) -> None:
    limits = {"rate": "3/s", "burst": 4, "concurrency_limit": 2}
    stage.call("set-kind", limits, role=Role.OPERATOR, kind="k")
    browser = stage.browser(Role.OPERATOR)

    page = browser.get("/actions/set-kind?target=k").text

    shown = {name: field_of(page, name) for name in limits}
    assert shown == {"rate": "3/s", "burst": "4", "concurrency_limit": "2"}
    assert field_of(browser.get("/actions/set-kind?target=other").text, "rate") == ""


@pytest.mark.parametrize(("role", "is_offered"), [(Role.VIEWER, False), (Role.OPERATOR, True)])
def test_only_a_visitor_who_may_act_is_told_to_tick_rows(
    stage: DashboardStage, role: Role, is_offered: bool
) -> None:
    ended_flow(stage)
    browser = stage.browser(role)

    for path, noun in (("/jobs", "jobs"), ("/dead-letters/list", "dead letters")):
        page = browser.get(path).text

        assert 'class="rows"' in page
        assert (f"Tick {noun} to act on several" in page) is is_offered
        assert ('id="bulk"' in page) is is_offered
