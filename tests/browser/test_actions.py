"""What operators do, in a real browser, on a site of their own."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tenure.core.vocabulary import Role
from tenure_conformance.spec import spec
from tests.browser.site import Site
from tests.browser.watching import Watched
from tests.dashboard.harness import DashboardStage
from tests.dashboard.shop import HOUR_S
from tests.dashboard.test_pages import furnish

pytestmark = pytest.mark.browser

TRIED = {
    "pause": ("/queues", "Queue q: paused"),
    "resume": ("/queues", "Queue q: resumed"),
    "limit": ("/queues", "Queue q: limits set"),
    "set-kind": ("/kinds", "Kind k: limits set"),
    "drain": ("/workers", "Worker w: asked to finish its jobs and stop"),
    "pause-schedule": ("/schedules", "Schedule s: paused"),
    "resume-schedule": ("/schedules", "Schedule s: resumed"),
    "run-schedule": ("/schedules", "Schedule s: one job was made"),
}
"""Each action in this order: where it is offered, and what is said afterwards."""

FIELDS = {"limit": ("Jobs at a time", "3"), "set-kind": ("Rate", "7/s")}


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(fill) as site:
        yield site


def fill(stage: DashboardStage) -> None:
    """What every page shows, seen just now: the clock of a site begins an hour ago."""
    stage.clock.advance(HOUR_S)
    furnish(stage)


@spec("DB2")
@pytest.mark.parametrize("name", TRIED)
def test_an_operator_acts_in_a_dialog(seen: Watched, site: Site, name: str) -> None:
    page, said = TRIED[name]
    seen.sign_in(site, Role.OPERATOR)
    seen.page.goto(f"{site.address}{page}")

    seen.page.locator(f'a[data-dialog][href^="/actions/{name}?"]').first.click()
    dialog = seen.page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    assert not seen.violations()
    fill_in(seen.page, name)
    dialog.locator("button").click()

    expect(seen.page.get_by_role("status")).to_have_text(said)
    expect(seen.page).to_have_url(f"{site.address}{page}")


def fill_in(page: Page, name: str) -> None:
    if name in FIELDS:
        label, text = FIELDS[name]
        page.get_by_role("dialog").get_by_label(label, exact=True).fill(text)


def test_a_dialog_can_be_closed(seen: Watched, site: Site) -> None:
    seen.sign_in(site, Role.OPERATOR)
    for close in ("Escape", "Go back"):
        seen.page.goto(f"{site.address}/queues")
        seen.page.locator('a[href^="/actions/limit?"]').first.click()
        expect(seen.page.get_by_role("dialog")).to_be_visible()
        if close == "Escape":
            seen.page.keyboard.press("Escape")
        else:
            seen.page.get_by_role("link", name=close).click()
        expect(seen.page.get_by_role("dialog")).to_be_hidden()


@spec("DB13")
def test_a_page_shows_by_itself_what_has_changed(seen: Watched, site: Site) -> None:
    seen.sign_in(site, Role.VIEWER)
    seen.page.goto(f"{site.address}/queues")
    expect(seen.page.get_by_role("link", name="appeared")).to_have_count(0)

    site.call("pause", role=Role.OPERATOR, queue="appeared")

    expect(seen.page.get_by_role("link", name="appeared")).to_be_visible(timeout=30_000)


@spec("DB13")
def test_a_hidden_page_asks_for_nothing(seen: Watched, site: Site) -> None:
    seen.sign_in(site, Role.VIEWER)
    seen.page.evaluate(
        "() => Object.defineProperty(document, 'hidden', {configurable: true, get: () => true})"
    )
    asked: list[str] = []
    seen.page.on("request", lambda request: asked.append(request.url))
    site.call("pause", role=Role.OPERATOR, queue="unseen")
    seen.page.wait_for_timeout(3 * 2000)
    assert not asked

    seen.page.evaluate(
        "() => { delete document.hidden; document.dispatchEvent(new Event('visibilitychange')); }"
    )

    expect(seen.page.get_by_role("link", name="unseen").first).to_be_visible(timeout=30_000)
