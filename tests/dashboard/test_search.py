"""The search field."""

from tenure.core.vocabulary import Role
from tests.dashboard.harness import DashboardStage, Links
from tests.dashboard.test_pages import furnish
from tests.server.harness import JOB


def test_a_job_id_leads_to_its_job(stage: DashboardStage) -> None:
    browser = stage.browser(Role.VIEWER)

    answer = browser.ask("GET", f"/search?q=+{JOB.format(1).upper()}+")

    assert (answer.status, answer.headers["location"]) == (303, f"/jobs/{JOB.format(1)}")


def test_a_part_of_a_name_finds_what_has_it(stage: DashboardStage) -> None:
    furnish(stage)
    stage.enqueue(50, queue="mail/out", kind="send-mail")
    browser = stage.browser(Role.VIEWER)

    links = Links(browser.get("/search?q=MAIL").text).hrefs

    assert "/queues/mail%2Fout" in links
    assert "/kinds/send-mail" in links
    assert "/queues/q" not in links
    assert "/jobs?correlation_id=MAIL" in links
    assert "/jobs?error=MAIL" in links


def test_an_empty_search_says_what_can_be_found(stage: DashboardStage) -> None:
    browser = stage.browser(Role.VIEWER)

    assert "What are you looking for?" in browser.get("/search").text
    assert "id_prefix=0190" in browser.get("/search?q=0190").text
