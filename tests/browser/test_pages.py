"""Every page and every action in a real browser: no error, no other host, no violation of axe."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, expect

from tenure.core.vocabulary import Role
from tenure.dashboard.pages import PAGES
from tenure_conformance.spec import spec
from tests.browser.site import Site
from tests.browser.watching import Watched, watched
from tests.dashboard.featured import EXPORT, REPORT
from tests.dashboard.harness import DashboardStage
from tests.dashboard.test_pages import DOWNLOADS, EXAMPLES, group_key

pytestmark = pytest.mark.browser

CLOUD_HOST = "ip-10-0-113-17.eu-central-1.compute.internal"
DECLINED = group_key("charge-card", "CardDeclined: insufficient funds")

SHOP = {
    "dead-letter-group": f"/dead-letters/{DECLINED}",
    "confirm-group": f"/dead-letters/{DECLINED}/redrive",
    "queue": "/queues/payments",
    "kind": "/kinds/charge-card",
    "worker": "/workers/mail-1",
    "schedule": "/schedules/sync-stock",
    "search": "/search?q=pay",
    "confirm-action": "/actions/limit?target=payments",
}
"""Pages about one thing, in the shop."""


VARIANTS = (
    f"/jobs/{REPORT}",
    f"/jobs/{EXPORT}",
    "/jobs?worker=nobody",
    "/dead-letters/list?resolved=yes",
    "/queues/empty",
    "/workers/nobody",
    "/search?q=nothing-is-called-so",
    "/kinds?range=7d",
)
"""Pages that look different from the example of their name."""


def paths(site: Site) -> list[str]:
    """A path of every page."""
    job = site.call("jobs", role=Role.OPERATOR)["jobs"][0]["id"]
    flow = site.call("flows", role=Role.OPERATOR)["flows"][0]["id"]
    known = {**EXAMPLES, **SHOP, "job": f"/jobs/{job}", "flow": f"/flows/{flow}"}
    assert {*known, *DOWNLOADS} == {page.name for page in PAGES if page.method == "GET"}
    return [*known.values(), *VARIANTS]


@spec("DB10")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_are_accessible_and_fit_the_window(
    browser: Browser, shop: Site, scheme: str, width: int
) -> None:
    with in_colours(browser, scheme, width) as seen:
        seen.sign_in(shop, Role.OPERATOR)
        problems = [each for path in paths(shop) for each in looked_at(seen, shop, path)]

    assert not problems, "\n".join(problems)


@contextmanager
def in_colours(browser: Browser, scheme: str, width: int) -> Iterator[Watched]:
    """A page in light or dark colours, as wide as this."""
    context = browser.new_context(
        viewport={"width": width, "height": 860},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    with watched(context.new_page()) as seen:
        yield seen
    context.close()


def looked_at(seen: Watched, site: Site, path: str) -> list[str]:
    """What is wrong with a page."""
    answer = seen.page.goto(f"{site.address}{path}")
    assert answer is not None
    assert answer.status == 200, path
    problems = [f"{path}: {each}" for each in seen.violations()]
    problems += [f"{path}: scrolls sideways"] if seen.is_wider_than_the_window() else []
    return [*problems, f"{path}: a table is cut"] if seen.has_cut_tables() else problems


@pytest.fixture(scope="module")
def empty() -> Iterator[Site]:
    with Site(lambda stage: None) as site:
        yield site


@spec("DB10")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_of_an_empty_store_are_accessible_and_say_what_to_do(
    browser: Browser, empty: Site, scheme: str
) -> None:
    with in_colours(browser, scheme, 390) as seen:
        problems = looked_at(seen, empty, "/sign-in")
        seen.sign_in(empty, Role.OPERATOR)
        for page in PAGES:
            if page.menu:
                problems += looked_at(seen, empty, page.path)
                expect(seen.page.locator(".empty-title")).to_be_visible()

    assert not problems, "\n".join(problems)


@spec("DB1")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", ["/nowhere", "/jobs?queue=%3Cb%3E"])
def test_the_page_of_a_problem_is_accessible(
    browser: Browser, shop: Site, scheme: str, path: str
) -> None:
    with in_colours(browser, scheme, 390) as seen:
        seen.sign_in(shop, Role.VIEWER)
        seen.page.goto(f"{shop.address}{path}")

        assert not seen.violations()
        assert not seen.is_wider_than_the_window()
        # The browser itself reports the status of the page.
        assert all("status of 4" in each for each in seen.errors)
        seen.errors.clear()


@spec("DB27")
def test_a_limited_token_is_led_to_no_refusal(seen: Watched, shop: Site) -> None:
    seen.sign_in_with(shop, shop.limited)
    expect(seen.page.get_by_role("navigation", name="Pages")).not_to_contain_text("Flows")
    menu = [page for page in PAGES if page.menu and page.name != "flows"]

    for page in menu:
        seen.page.locator(f'.menu a[href="{page.path}"]').click()
        expect(seen.page.get_by_role("heading", level=1)).to_have_text(page.menu)
    seen.page.goto(f"{shop.address}/kinds")

    expect(seen.page.get_by_role("link", name="charge-card").first).to_be_visible()
    expect(seen.page.locator('a[href^="/actions/set-kind"]')).to_have_count(0)


def test_sign_in_and_out(seen: Watched, shop: Site) -> None:
    page = seen.page
    page.goto(f"{shop.address}/queues")
    expect(page).to_have_url(re.compile(r"/sign-in\?next=%2Fqueues$"))
    assert not seen.violations()

    page.get_by_label("Token").fill(shop.tokens[Role.VIEWER])
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{shop.address}/queues")
    assert page.evaluate("() => document.cookie") == ""
    assert page.evaluate("() => localStorage.length") == 0

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("status")).to_have_text("Signed out")


def test_a_wrong_token_is_refused_with_the_reason(seen: Watched, shop: Site) -> None:
    seen.page.goto(f"{shop.address}/sign-in")
    seen.page.get_by_label("Token").fill(shop.tokens[Role.WORKER])
    seen.page.get_by_role("button", name="Sign in").click()

    expect(seen.page.get_by_role("alert")).to_contain_text("viewers and operators")
    assert not seen.violations()
    # The browser itself reports the status of the form's answer.
    assert [each for each in seen.errors if "403" in each] == seen.errors
    seen.errors.clear()


@spec("DB2")
def test_a_viewer_is_offered_no_action(seen: Watched, shop: Site) -> None:
    seen.sign_in(shop, Role.VIEWER)
    for path in paths(shop):
        if path.startswith("/actions"):
            continue
        seen.page.goto(f"{shop.address}{path}")
        assert seen.page.locator("a[data-dialog], #bulk button").count() == 0


@spec("DB13")
def test_pages_can_be_read_without_javascript(browser: Browser, shop: Site) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{shop.address}/sign-in")
    page.get_by_label("Token").fill(shop.tokens[Role.OPERATOR])
    page.get_by_role("button", name="Sign in").click()

    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.get_by_text("As a table").first.click()
    expect(page.get_by_role("table", name="Jobs per second")).to_be_visible()
    for path in paths(shop):
        answer = page.goto(f"{shop.address}{path}")
        assert answer is not None
        assert answer.status == 200
    context.close()


def test_keys(seen: Watched, shop: Site) -> None:
    seen.sign_in(shop, Role.VIEWER)
    page = seen.page
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("pay")
    page.keyboard.press("Enter")
    page.wait_for_url("**/search?q=pay")

    page.keyboard.press("g")
    page.keyboard.press("w")
    expect(page.get_by_role("heading", level=1)).to_have_text("Workers")
    page.keyboard.press("?")
    expect(page.get_by_role("heading", level=1)).to_have_text("Keys")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the page")).to_be_focused()


def test_rows_are_walked_and_ticked_by_keys(seen: Watched, shop: Site) -> None:
    seen.sign_in(shop, Role.OPERATOR)
    seen.page.goto(f"{shop.address}/jobs")
    links = seen.page.locator(".rows tbody th a")

    for key in "jjjk":
        seen.page.keyboard.press(key)
    expect(links.nth(1)).to_be_focused()
    seen.page.keyboard.press("x")
    expect(seen.page.locator("[data-bulk-count]")).to_have_text("1 selected")
    expect(seen.page.locator('.rows tbody tr:nth-child(2) input[type="checkbox"]')).to_be_checked()
    seen.page.keyboard.press("x")
    target = links.nth(1).get_attribute("href")
    seen.page.keyboard.press("Enter")

    expect(seen.page).to_have_url(f"{shop.address}{target}")


@spec("DB13")
def test_a_poll_keeps_the_focus_and_what_was_opened(seen: Watched, shop: Site) -> None:
    seen.sign_in(shop, Role.VIEWER)
    seen.page.get_by_text("As a table").first.click()
    seen.page.get_by_role("link", name="payments", exact=True).first.focus()
    seen.page.evaluate("() => { document.getElementById('live').dataset.old = 'yes'; }")

    expect(seen.page.locator("#live[data-old]")).to_have_count(0, timeout=30_000)

    expect(seen.page.get_by_role("link", name="payments", exact=True).first).to_be_focused()
    expect(seen.page.get_by_role("table", name="Jobs per second")).to_be_visible()


def test_the_colours_can_be_chosen(seen: Watched, shop: Site) -> None:
    seen.sign_in(shop, Role.VIEWER)
    background = "() => getComputedStyle(document.body).backgroundColor"
    light = seen.page.evaluate(background)

    seen.page.get_by_role("button", name="Change colours to dark").click()
    expect(seen.page.locator("html")).to_have_attribute("data-theme", "dark")

    assert seen.page.evaluate(background) != light


def test_plots_are_drawn_from_their_tables(seen: Watched, shop: Site) -> None:
    seen.sign_in(shop, Role.VIEWER)

    expect(seen.page.locator("#plot-rates canvas")).to_be_visible()
    seen.page.get_by_role("link", name="15m").click()
    expect(seen.page.locator("#plot-rates canvas")).to_be_visible()
    assert seen.page.locator("#table-rates tbody tr").count() >= 59


def one_worker(stage: DashboardStage) -> None:
    """A worker with names as long as those of clouds."""
    queues = ["transactional-mail", "newsletters-weekly", "password-resets", "webhooks-outgoing"]
    sign = {
        "host": CLOUD_HOST,
        "pid": 4711,
        "queues": queues,
        "concurrency": 8,
        "version": "0.1.0",
        "uptime_s": 60,
    }
    worker = "mail-worker-eu-central-1a"
    assert stage.call("alive", sign, role=Role.WORKER, worker=worker).status == 200


@spec("DB10")
def test_the_host_of_a_worker_can_be_read(seen: Watched) -> None:
    with Site(one_worker) as site:
        seen.sign_in(site, Role.OPERATOR)
        seen.page.goto(f"{site.address}/workers")
        host = seen.page.locator("#worker-1 bdi").filter(has_text="ip-10-0-113-17").bounding_box()

        assert host is not None
        assert host["width"] > 100, "squeezed into a few characters"
        assert host["height"] < 40, "broken into many lines"
        assert not seen.has_cut_tables()


@spec("DB10")
@pytest.mark.parametrize("path", ["/schedules", "/help"])
def test_the_menu_of_a_phone_shows_where_the_visitor_is(
    browser: Browser, shop: Site, path: str
) -> None:
    with in_colours(browser, "light", 390) as seen:
        seen.sign_in(shop, Role.OPERATOR)
        seen.page.goto(f"{shop.address}{path}")

        expect(seen.page.locator(".menu a[aria-current]")).to_be_in_viewport(ratio=0.99)
