"""The search field."""

from urllib.parse import urlencode

from tenure.core.ids import short_id
from tenure.core.vocabulary import Role
from tenure_conformance.spec import spec
from tests.dashboard.harness import DashboardStage, Links
from tests.dashboard.test_pages import FLOW, furnish
from tests.server.harness import JOB


def test_a_job_id_leads_to_its_job(stage: DashboardStage) -> None:
    browser = stage.browser(Role.VIEWER)

    answer = browser.ask("GET", f"/search?q=+{JOB.format(1).upper()}+")

    assert (answer.status, answer.headers["location"]) == (303, f"/jobs/{JOB.format(1)}")


@spec("DB28")
def test_a_shortened_id_as_pages_show_it_leads_to_its_job(stage: DashboardStage) -> None:
    stage.enqueue(1)
    browser = stage.browser(Role.VIEWER)

    shown = browser.get("/jobs").text
    answer = browser.ask("GET", f"/search?{urlencode({'q': short_id(JOB.format(1))})}")

    assert f'title="{JOB.format(1)}">{JOB.format(1)[:18]}…</a>' in shown
    assert (answer.status, answer.headers["location"]) == (303, f"/jobs/{JOB.format(1)}")


@spec("DB28")
def test_a_beginning_that_several_ids_have_lists_them(stage: DashboardStage) -> None:
    furnish(stage)
    browser = stage.browser(Role.VIEWER)

    links = Links(browser.get(f"/search?q={JOB[:8].upper()}").text).hrefs

    assert {f"/jobs/{JOB.format(1)}", f"/jobs/{JOB.format(2)}", f"/flows/{FLOW}"} <= set(links)
    assert f"/jobs?id_prefix={JOB[:8]}" in links


@spec("DB28")
def test_the_id_of_a_flow_leads_to_it(stage: DashboardStage) -> None:
    furnish(stage)
    browser = stage.browser(Role.VIEWER)

    answer = browser.ask("GET", f"/search?q={FLOW}")

    assert answer.headers["location"] == f"/flows/{FLOW}"


@spec("DB27", "DB28")
def test_a_token_of_several_queues_is_led_to_the_list_of_ids(stage: DashboardStage) -> None:
    furnish(stage)
    browser = stage.browser(Role.VIEWER, queues=("q", "r"))

    links = Links(browser.get(f"/search?q={JOB[:8]}").text).hrefs

    assert f"/jobs?id_prefix={JOB[:8]}" in links


@spec("DB28")
def test_the_filter_of_ids_takes_a_shortened_one(stage: DashboardStage) -> None:
    stage.enqueue(1)
    browser = stage.browser(Role.VIEWER)

    found = browser.get(f"/jobs?{urlencode({'id_prefix': short_id(JOB.format(1)).upper()})}")

    assert f"/jobs/{JOB.format(1)}" in Links(found.text).hrefs


def test_any_other_text_leads_to_lists_of_jobs_that_have_it(stage: DashboardStage) -> None:
    browser = stage.browser(Role.VIEWER)

    links = Links(browser.get("/search?q=MAIL").text).hrefs

    assert "/jobs?correlation_id=MAIL" in links
    assert "/jobs?error=MAIL" in links


def test_an_empty_search_says_what_can_be_found(stage: DashboardStage) -> None:
    browser = stage.browser(Role.VIEWER)

    assert "What are you looking for?" in browser.get("/search").text
    assert "id_prefix=0190" in browser.get("/search?q=0190").text
