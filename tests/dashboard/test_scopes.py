"""Tokens that are limited to queues and kinds, and roles: on every page and for every action."""

from collections.abc import Iterator
from typing import Any

import pytest

from tenure.core.ids import Kind, QueueName
from tenure.core.vocabulary import Role
from tenure.dashboard.actions import Action
from tenure.dashboard.pages import ACTIONS
from tenure_conformance.spec import spec
from tests.dashboard.harness import DashboardStage, Links
from tests.dashboard.test_pages import DOWNLOADS, EXAMPLES, FLOW, dump, furnish
from tests.server.harness import JOB

FOREIGN_JOB, FOREIGN_FLOW = JOB.format(70), JOB.format(79)

SHARED_FLOW = JOB.format(80)

FOREIGN: dict[str, str] = {
    "job": f"/jobs/{FOREIGN_JOB}",
    "verify-job": f"/jobs/{FOREIGN_JOB}/verify",
    "artifact": f"/jobs/{FOREIGN_JOB}/artifacts/report.html",
    "flow": f"/flows/{FOREIGN_FLOW}",
    "cancel-flow": f"/flows/{FOREIGN_FLOW}/cancel",
    "redrive-flow": f"/flows/{FOREIGN_FLOW}/redrive",
    "dead-letter-group": EXAMPLES["dead-letter-group"],
    "confirm-group": EXAMPLES["confirm-group"],
    "queue": "/queues/foreign-q",
    "kind": "/kinds/foreign-k",
    "schedule": "/schedules/foreign-s",
}
"""Pages about one thing, which is out of the token's scope."""

NOT_ABOUT_ONE = {"worker", "confirm-action", "dead-letter-list"}
"""The page of a worker that a token may not see says that there is none."""

MAX_CRAWLED = 400

FIELDS = {"rate": "5/s", "reason": "because", "reason_code": "policy_violation"}

SCOPES = [
    {"queues": (QueueName("q"),)},
    {"kinds": (Kind("k"),)},
    {"queues": (QueueName("q"),), "kinds": (Kind("k"),)},
]


def furnish_foreign(stage: DashboardStage) -> None:
    """Things beside those of `furnish`, out of scope of a token of q and k."""
    furnish(stage)
    stage.enqueue(70, queue="foreign-q", kind="foreign-k", correlation_id="foreign-c")
    job = {"job_id": JOB.format(71), "queue": "foreign-q", "kind": "foreign-k"}
    flow = {"flow_id": FOREIGN_FLOW, "name": "foreign-f", "jobs": [{"job": job, "name": "only"}]}
    stage.call("flow", flow, role=Role.OPERATOR)
    stage.call("limit", {"limit": 3}, role=Role.OPERATOR, queue="foreign-q")
    stage.call("set-kind", {"rate": "5/s"}, role=Role.OPERATOR, kind="foreign-k")
    spec_ = {"kind": "foreign-k", "queue": "foreign-q", "cron": "0 3 * * *"}
    stage.call("put-schedule", spec_, role=Role.OPERATOR, schedule="foreign-s")
    share(stage)


@pytest.fixture(scope="module")
def furnished() -> Iterator[DashboardStage]:
    """A dashboard with things in and out of scope, for tests that change nothing."""
    stage = DashboardStage()
    furnish_foreign(stage)
    yield stage
    stage.close()


def share(stage: DashboardStage) -> None:
    """A worker and a flow that are partly in scope of a token of q and k."""
    alive = {
        "host": "h",
        "pid": 1,
        "queues": ["q", "foreign-q"],
        "kinds": ["k", "foreign-k"],
        "schedules": ["foreign-s"],
        "concurrency": 2,
        "version": "1",
        "uptime_s": 5.0,
    }
    assert stage.call("alive", alive, role=Role.WORKER, worker="shared").status == 200
    jobs: list[dict[str, object]] = []
    for number, name, is_own in (
        (81, "foreign-1", False),
        (82, "own", True),
        (83, "foreign-2", False),
    ):
        job = {"job_id": JOB.format(number), "queue": "q", "kind": "k"}
        foreign = {} if is_own else {"queue": "foreign-q", "kind": "foreign-k"}
        after = [{"job_id": JOB.format(number - 1), "name": str(jobs[-1]["name"])}] if jobs else []
        jobs.append({"job": {**job, **foreign}, "name": name, "after": after})
    flow = {"flow_id": SHARED_FLOW, "name": "shared", "jobs": jobs}
    assert stage.call("flow", flow, role=Role.OPERATOR).status == 201


def foreign_words(scope: dict[str, object]) -> list[str]:
    """What a token of this scope must not see. Queues have no kind and kinds no queue, so a token
    that is limited by one of them alone sees the names of the other."""
    words = ["foreign-s", "foreign-c", "foreign-f", FOREIGN_JOB, FOREIGN_FLOW]
    words += ["foreign-1", "foreign-2", JOB.format(81), JOB.format(83)]
    words += ["foreign-q"] if "queues" in scope else []
    return words + (["foreign-k"] if "kinds" in scope else [])


@spec("DB2")
@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: "-".join(scope))
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_limited_token_sees_only_its_own_on_every_page(
    furnished: DashboardStage, name: str, scope: dict[str, tuple[QueueName, ...]]
) -> None:
    browser = furnished.browser(Role.OPERATOR, **scope)

    answer = browser.get(EXAMPLES[name])

    assert answer.status == expected_status(name, dict(scope))
    assert not [word for word in foreign_words(dict(scope)) if word in answer.text]


@spec("FL9")
@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: "-".join(scope))
def test_a_flow_with_hidden_jobs_is_not_said_to_have_ended(
    stage: DashboardStage, scope: dict[str, tuple[QueueName, ...]]
) -> None:
    share(stage)
    limited = stage.browser(Role.OPERATOR, **scope)
    whole = stage.browser(Role.OPERATOR)
    cancelling = limited.get(f"/flows/{SHARED_FLOW}/cancel").text
    stage.call("cancel", {"request_id": "end"}, role=Role.OPERATOR, job_id=JOB.format(82))

    page = limited.get(f"/flows/{SHARED_FLOW}").text
    asked = limited.get(f"/flows/{SHARED_FLOW}/redrive").text

    hidden = "2 of its 3 jobs are not visible to this token"
    assert f"{hidden} and are not cancelled." in cancelling
    assert "the visible job has ended" in page
    assert ">ended</span>" not in page
    assert "2 are not visible to this token" in page
    assert "purged" not in page
    assert f"{hidden}, so it cannot redrive the flow." in asked
    assert "in progress" in whole.get(f"/flows/{SHARED_FLOW}").text
    stage.call("cancel", {"request_id": "end"}, role=Role.OPERATOR, job_id=JOB.format(81))
    assert ">ended</span>" in whole.get(f"/flows/{SHARED_FLOW}").text


@spec("DB2", "H41", "FL9")
@pytest.mark.parametrize("scope", SCOPES, ids=lambda scope: "-".join(scope))
@pytest.mark.parametrize(
    "path",
    [
        "/workers/shared",
        f"/flows/{SHARED_FLOW}",
        f"/flows/{SHARED_FLOW}/cancel",
        f"/flows/{SHARED_FLOW}/redrive",
        f"/jobs/{JOB.format(82)}",
        f"/jobs/{JOB.format(82)}/verify",
        "/search?q=shared",
    ],
)
def test_of_what_is_shared_a_limited_token_sees_its_own_part(
    furnished: DashboardStage, path: str, scope: dict[str, tuple[QueueName, ...]]
) -> None:
    browser = furnished.browser(Role.OPERATOR, **scope)

    answer = browser.get(path)

    assert answer.status == 200
    assert not [word for word in foreign_words(dict(scope)) if word in answer.text]


@spec("DB2", "H41")
@pytest.mark.parametrize(("action", "target"), [("drain", "shared"), ("redrive-flow", SHARED_FLOW)])
def test_a_refusal_does_not_say_what_else_there_is(
    furnished: DashboardStage, action: str, target: str
) -> None:
    browser = furnished.browser(Role.OPERATOR, queues=(QueueName("q"),), kinds=(Kind("k"),))

    answer = browser.submit(f"/actions/{action}", {"target": target})

    assert answer.status == 403
    assert "foreign" not in answer.text


def expected_status(name: str, scope: dict[str, object]) -> int:
    """The route of all flows is not for limited tokens, and the dead letters of the example are in
    another queue than q."""
    if name in ("dead-letter-group", "confirm-group") and "queues" in scope:
        return 404
    return 403 if name == "flows" else 200


CRAWLED = [
    *SCOPES,
    {"queues": (QueueName("q"), QueueName("r"))},
    {"queues": (QueueName("q"), QueueName("r")), "kinds": (Kind("k"), Kind("other"))},
]


@spec("DB27")
@pytest.mark.parametrize(
    ("role", "scope"),
    [
        (Role.VIEWER, CRAWLED[-1]),
        *(pytest.param(Role.OPERATOR, scope, marks=pytest.mark.slow) for scope in CRAWLED),
        *(
            pytest.param(Role.VIEWER, scope, marks=pytest.mark.proof)  # the same links or fewer
            for scope in CRAWLED[:-1]
        ),
    ],
)
def test_no_link_leads_a_limited_token_to_a_refusal(
    furnished: DashboardStage, role: Role, scope: dict[str, tuple[QueueName, ...]]
) -> None:
    browser = furnished.browser(role, **scope)
    waiting, seen = ["/"], set[str]()
    refused = []

    while waiting:
        path = waiting.pop(0)
        if path in seen or not path.startswith("/") or len(seen) >= MAX_CRAWLED:
            continue
        seen.add(path)
        answer = browser.get(path)
        waiting += [href.partition("#")[0] for href in Links(answer.text).hrefs]
        if answer.status != 200:
            refused.append((path, answer.status))

    assert {"/jobs", "/dead-letters", "/queues", "/kinds", "/workers", "/schedules"} <= seen
    assert not refused


@spec("DB27")
def test_the_menu_has_what_the_token_may_see(furnished: DashboardStage) -> None:
    flows = 'href="/flows"'

    assert flows in furnished.browser(Role.VIEWER).get("/help").text
    assert flows not in furnished.browser(Role.VIEWER, queues=(QueueName("q"),)).get("/help").text


@spec("DB27")
def test_a_token_of_several_queues_chooses_one(furnished: DashboardStage) -> None:
    browser = furnished.browser(Role.VIEWER, queues=(QueueName("q"), QueueName("r")))

    first, second = browser.get("/jobs").text, browser.get("/jobs?queue=r").text

    assert JOB.format(1) in first
    assert JOB.format(5) not in first
    assert JOB.format(5) in second
    assert "<option selected>r</option>" in second
    assert "foreign-q" not in second


@spec("DB27")
@pytest.mark.parametrize(
    ("path", "action", "scope", "is_offered"),
    [
        ("/queues", "pause", {"queues": (QueueName("q"),)}, True),
        ("/queues", "pause", {"kinds": (Kind("k"),)}, False),
        ("/kinds", "set-kind", {"kinds": (Kind("k"),)}, True),
        ("/kinds", "set-kind", {"queues": (QueueName("q"),)}, False),
        ("/workers/shared", "drain", {"queues": (QueueName("q"), QueueName("foreign-q"))}, True),
        ("/workers/shared", "drain", {"queues": (QueueName("q"),)}, False),
        ("/workers", "drain", {"queues": (QueueName("q"),)}, True),
    ],
)
def test_actions_are_offered_to_those_who_may_use_them(
    furnished: DashboardStage, path: str, action: str, scope: dict[str, Any], is_offered: bool
) -> None:

    page = furnished.browser(Role.OPERATOR, **scope).get(path).text

    assert (f"/actions/{action}?" in page) is is_offered


@spec("DB2")
@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_out_of_scope_has_no_page(furnished: DashboardStage, name: str) -> None:
    browser = furnished.browser(Role.OPERATOR, queues=(QueueName("q"),), kinds=(Kind("k"),))

    assert browser.get(FOREIGN[name]).status in (403, 404)


def test_every_page_about_one_thing_is_tried_out_of_scope() -> None:
    about_one = {name for name, path in EXAMPLES.items() if path.count("/") > 1}

    assert {*about_one, *DOWNLOADS} - NOT_ABOUT_ONE == set(FOREIGN)


@spec("DB2")
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.name)
def test_a_viewer_can_do_nothing(furnished: DashboardStage, action: Action) -> None:
    browser = furnished.browser(Role.VIEWER)
    before = dump(furnished)

    answer = browser.submit(f"/actions/{action.name}", {**FIELDS, **own_target(action)})

    assert answer.status == 403
    assert dump(furnished) == before


@spec("DB2")
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.name)
def test_an_operator_of_another_scope_can_do_nothing(
    furnished: DashboardStage, action: Action
) -> None:
    browser = furnished.browser(Role.OPERATOR, queues=(QueueName("x"),), kinds=(Kind("x"),))
    before = dump(furnished)

    answer = browser.submit(f"/actions/{action.name}", {**FIELDS, **own_target(action)})

    assert answer.status in (403, 404)
    assert dump(furnished) == before


def own_target(action: Action) -> dict[str, str]:
    """A thing that the action could be about."""
    targets = {
        "queue": "q",
        "kind": "k",
        "worker": "w",
        "schedule": "s",
        "job_id": JOB.format(1),
        "flow_id": FLOW,
    }
    return {"target": targets[action.target.part]}
