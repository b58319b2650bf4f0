"""Hostile texts in a real browser: nothing runs, and the layout holds."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tenure.core.vocabulary import Role
from tenure.dashboard.pages import PAGES
from tenure_conformance.spec import spec
from tests.browser.site import Site
from tests.browser.watching import Watched, watched
from tests.dashboard.harness import DashboardStage, Links
from tests.dashboard.hostile import NAMES, TEXTS, furnish_hostile, furnish_marked, mark
from tests.dashboard.shop import HOUR_S

pytestmark = pytest.mark.browser

MAX_VISITED = 60
SECTIONS = {page.path.split("/")[1] for page in PAGES}


def fill(stage: DashboardStage) -> None:
    stage.clock.advance(HOUR_S)
    furnish_hostile(stage)
    furnish_marked(stage)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(fill) as site:
        yield site


@spec("DB9")
@pytest.mark.parametrize("width", [1280, 390])
def test_every_field_is_shown_as_text(seen: Watched, site: Site, width: int) -> None:
    seen.page.set_viewport_size({"width": width, "height": 860})
    seen.sign_in(site, Role.OPERATOR)
    problems = []
    shown = {
        **{mark(field): path for field, path in TEXTS.items()},
        **NAMES,
    }
    for path in dict.fromkeys(shown.values()):
        seen.page.goto(f"{site.address}{path}")
        # What a cell is too narrow for is cut by the style sheet, and is still text of the page.
        text = seen.page.locator("body").text_content() or ""
        values = seen.page.eval_on_selector_all("input", "all => all.map((each) => each.value)")
        text += " ".join(values)
        problems += [
            f"{path}: no {each}" for each in shown if shown[each] == path and each not in text
        ]
        if seen.page.locator("img").count() or seen.is_wider_than_the_window():
            problems.append(f"{path}: an image, or wider than the window")

    assert not problems, "\n".join(problems)


@spec("DB9")
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_runs_and_the_layout_holds(browser: Browser, site: Site, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 860})
    waiting = [page.path for page in PAGES if page.menu]
    visited: set[str] = set()
    wide = []
    with watched(context.new_page()) as seen:
        seen.sign_in(site, Role.OPERATOR)
        while waiting and len(visited) < MAX_VISITED:
            path = waiting.pop(0)
            section = path.partition("?")[0].split("/")[1]
            if path in visited or section not in SECTIONS or "/artifacts/" in path:
                continue
            visited.add(path)
            seen.page.goto(f"{site.address}{path}", wait_until="load")
            if seen.is_wider_than_the_window():
                wide.append(path)
            hrefs = [href for href in Links(seen.page.content()).hrefs if href.startswith("/")]
            waiting += [href.partition("#")[0] for href in hrefs]
    context.close()

    assert len(visited) > len([page for page in PAGES if page.menu])
    assert not wide, wide
