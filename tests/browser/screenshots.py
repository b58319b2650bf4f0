"""Writes the screenshots of the documents: `make screenshots`."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from playwright.sync_api import Browser, sync_playwright

from tenure.core.vocabulary import Role
from tests.browser.conftest import FLAGS
from tests.browser.site import Site
from tests.browser.watching import Watched
from tests.dashboard.featured import HERO, IMPORT, REPORT

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SETTLED_MS = 800.0


class Shot(NamedTuple):
    """A screenshot: its file, the page, and how the browser shows it."""

    name: str
    path: Callable[[Site], str]
    is_dark: bool = False
    width: int = 1280
    height: int = 860


def at(path: str) -> Callable[[Site], str]:
    """A page with a fixed path."""
    return lambda _: path


SHOTS = (
    Shot("overview", at("/")),
    Shot("overview-dark", at("/"), is_dark=True),
    Shot("overview-phone", at("/"), width=390, height=844),
    Shot("job", at(f"/jobs/{HERO}"), height=820),
    Shot("job-dark", at(f"/jobs/{REPORT}"), is_dark=True, height=760),
    Shot("job-phone", at(f"/jobs/{HERO}"), width=390, height=844),
    Shot("flow", at(f"/flows/{IMPORT}"), height=620),
    Shot("dead-letters", at("/dead-letters?range=1h"), height=620),
    Shot("queue", at("/queues/payments")),
    Shot("workers", at("/workers"), height=480),
    Shot("schedules", at("/schedules"), height=420),
)


def take(browser: Browser, site: Site, shot: Shot, folder: Path) -> None:
    """Write one screenshot."""
    context = browser.new_context(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme="dark" if shot.is_dark else "light",
    )
    seen = Watched(context.new_page())
    seen.sign_in(site, Role.OPERATOR)
    seen.page.goto(f"{site.address}{shot.path(site)}")
    seen.page.wait_for_timeout(SETTLED_MS)  # plots are drawn after the page has loaded
    seen.page.screenshot(path=folder / f"{shot.name}.png")
    context.close()


def main(folder: Path) -> None:
    """Write all of them."""
    folder.mkdir(parents=True, exist_ok=True)
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else list(FLAGS)
    with Site() as site, sync_playwright() as playwright:
        path = os.environ["BROWSER_PATH"]
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=flags)
        for shot in SHOTS:
            take(browser, site, shot, folder)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
