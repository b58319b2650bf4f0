"""Every page: who sees it, what a GET changes, its headers. Made from the table of pages."""

from collections.abc import Iterator

import pytest

from tenure.core.ids import DEFAULT_NAMESPACE, JobId, Kind, QueueName
from tenure.core.instants import Instant
from tenure.core.views.dead_letter_groups import DeadLetterGroupFilter, Letter, group
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import ReasonCode, Role
from tenure.dashboard.app import HEADERS
from tenure.dashboard.pages import ACTIONS, PAGES
from tenure.dashboard.visits import Page
from tenure_conformance.spec import spec
from tests.dashboard.harness import Browser, DashboardStage, Links
from tests.server.harness import JOB

FLOW = JOB.format(10)
MAX_CRAWLED = 300


def group_key(kind: str, error: str) -> str:
    """The key of a group of dead letters that ran out of attempts."""
    letter = Letter(
        JobId(JOB.format(1)),
        QueueName("q"),
        Kind(kind),
        ReasonCode.EXHAUSTED_RETRIES,
        None,
        Instant(0),
        error,
    )
    wanted = DeadLetterGroupFilter(namespace=DEFAULT_NAMESPACE)
    return group([letter], wanted, now=Instant(0), complete=True).groups[0].key


GROUP = group_key("k", "Boom: broken")

EXAMPLES: dict[str, str] = {
    "overview": "/",
    "jobs": "/jobs",
    "job": f"/jobs/{JOB.format(1)}",
    "verify-job": f"/jobs/{JOB.format(1)}/verify",
    "dead-letters": "/dead-letters",
    "dead-letter-list": "/dead-letters/list",
    "dead-letter-group": f"/dead-letters/{GROUP}",
    "confirm-group": f"/dead-letters/{GROUP}/redrive",
    "flows": "/flows",
    "flow": f"/flows/{FLOW}",
    "cancel-flow": f"/flows/{FLOW}/cancel",
    "redrive-flow": f"/flows/{FLOW}/redrive",
    "queues": "/queues",
    "queue": "/queues/q",
    "kinds": "/kinds",
    "kind": "/kinds/k",
    "workers": "/workers",
    "worker": "/workers/w",
    "schedules": "/schedules",
    "schedule": "/schedules/s",
    "search": "/search?q=q",
    "sign-in": "/sign-in",
    "help": "/help",
    "confirm-action": "/actions/pause?target=q",
}
"""A path of each page that is read. A page that is missing here fails the tests."""

DOWNLOADS = {"artifact": f"/jobs/{JOB.format(1)}/artifacts/report.html"}
"""Answered with a file instead of a page."""

READ = [page for page in PAGES if page.method == "GET"]
NEED_SESSION = [page for page in PAGES if not page.is_public]


@pytest.fixture(scope="module")
def furnished() -> Iterator[DashboardStage]:
    """A dashboard with something on every page, for tests that change nothing."""
    stage = DashboardStage()
    furnish(stage)
    yield stage
    stage.close()


def test_every_page_has_an_example() -> None:
    assert {page.name for page in READ} == {*EXAMPLES, *DOWNLOADS}


@spec("DB1")
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_page_is_shown(furnished: DashboardStage, name: str) -> None:
    browser = furnished.browser(Role.VIEWER)

    answer = browser.get(EXAMPLES[name])

    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert not Links(answer.text).suspicious


@spec("DB2")
@pytest.mark.parametrize("page", NEED_SESSION, ids=lambda page: page.name)
def test_nothing_is_shown_to_those_who_have_not_signed_in(
    stage: DashboardStage, page: Page
) -> None:
    browser = stage.browser()
    path = (EXAMPLES | DOWNLOADS).get(page.name, page.path.replace("{action}", "pause"))

    if page.method == "GET":
        answer = browser.ask("GET", path)
    else:
        answer = browser.submit(path, {"target": "q"}, page="/sign-in")

    assert answer.status == 303
    assert answer.headers["location"].startswith("/sign-in")


@spec("DB10")
@pytest.mark.parametrize("path", [*EXAMPLES.values(), "/nowhere"])
def test_every_page_forbids_what_it_does_not_need(furnished: DashboardStage, path: str) -> None:
    answer = furnished.browser(Role.VIEWER).get(path)

    for name, text in HEADERS.items():
        assert answer.headers[name.lower()] == text
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "unsafe" not in answer.headers["content-security-policy"]


@spec("DB8")
@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
@pytest.mark.slow
def test_a_crawl_with_get_changes_nothing(furnished: DashboardStage, role: Role) -> None:
    browser = furnished.browser(role)
    before = dump(furnished)

    seen = crawl(browser)

    assert len(seen) > len(EXAMPLES)
    assert dump(furnished) == before


def crawl(browser: Browser) -> set[str]:
    """Follow every link from every page; the paths that were visited."""
    waiting = [*EXAMPLES.values(), *(f"/actions/{each.name}?target=q" for each in ACTIONS)]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.startswith("/") or len(seen) > MAX_CRAWLED:
            continue
        seen.add(path)
        waiting += Links(browser.get(path).text).hrefs
    return seen


@spec("DB1")
def test_unknown_paths(stage: DashboardStage) -> None:
    browser = stage.browser()

    page = browser.get("/nowhere")
    assert (page.status, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert browser.get("/v1/nowhere").code == "unknown_route"
    assert stage.ask("GET", "/nowhere").code == "unknown_route"
    refused = browser.ask("PUT", "/queues")
    assert (refused.status, refused.headers["allow"]) == (405, "GET")
    assert browser.ask("PUT", "/sign-in").headers["allow"] == "GET, POST"


def furnish(stage: DashboardStage) -> None:
    """A store in which every page has something to show."""
    for number in (1, 2):
        stage.enqueue(number)
    stage.claim()
    stage.call("flow", flow_message(), role=Role.OPERATOR)
    make_dead_letter(stage)
    stage.call("limit", {"limit": 3, "rate": "5/s"}, role=Role.OPERATOR, queue="q")
    stage.call("set-kind", {"rate": "5/s"}, role=Role.OPERATOR, kind="k")
    stage.call(
        "alive",
        {
            "host": "h",
            "pid": 1,
            "queues": ["q"],
            "kinds": ["k"],
            "concurrency": 2,
            "version": "1",
            "uptime_s": 5.0,
        },
        role=Role.WORKER,
        worker="w",
    )
    stage.call(
        "put-schedule",
        {"kind": "k", "queue": "q", "cron": "0 3 * * *"},
        role=Role.OPERATOR,
        schedule="s",
    )


def make_dead_letter(stage: DashboardStage) -> None:
    """The dead letter of the example's group."""
    stage.enqueue(5, queue="r", policy={"max_attempts": 1})
    [grant] = stage.claim(queues=["r"])
    failed = {
        "job_id": grant["job_id"],
        "lease_id": grant["lease_id"],
        "request_id": "fail-5",
        "error": {"class": "transient", "type": "Boom", "message": "broken"},
    }
    assert stage.call("fail", failed, role=Role.WORKER).status == 200


def flow_message() -> dict[str, object]:
    """A flow of two jobs."""
    first, second = JOB.format(11), JOB.format(12)
    return {
        "flow_id": FLOW,
        "name": "orders",
        "jobs": [
            {"job": {"job_id": first, "queue": "q", "kind": "k"}, "name": "first"},
            {
                "job": {"job_id": second, "queue": "q", "kind": "k"},
                "name": "second",
                "after": [{"job_id": first, "name": "first"}],
            },
        ],
    }


def dump(stage: DashboardStage) -> object:
    """Everything that a store says of itself."""
    store = stage.store
    ids = [job.id for job in store.views.jobs(JobFilter(namespace=DEFAULT_NAMESPACE)).jobs]
    return (
        store.jobs.load(ids).jobs,
        store.events.load(ids),
        store.settings.queues(DEFAULT_NAMESPACE),
        store.settings.kinds(DEFAULT_NAMESPACE),
        store.workers.page(DEFAULT_NAMESPACE),
        store.schedules.page(DEFAULT_NAMESPACE),
        [(token.id, token.revoked_at) for token in store.tokens.all()],
    )


@spec("SC24")
def test_the_pages_of_schedules_say_that_a_revoked_token_paused_one(stage: DashboardStage) -> None:
    token, text = stage.new_token(Role.OPERATOR, "gone")
    spec_of = {"kind": "k", "queue": "q", "cron": "0 3 * * *"}
    stage.ask("PUT", "/v1/schedules/s/spec", spec_of, token=text)
    stage.store.tokens.revoke(token.id)
    browser = stage.browser(Role.VIEWER)

    pages = [browser.get(path) for path in ("/schedules", "/schedules/s")]

    assert ["last token of operator:gone revoked" in page.text for page in pages] == [True, True]
