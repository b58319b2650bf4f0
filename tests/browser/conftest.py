"""A browser of the system, and sites for it. See `make test-browser`."""

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.browser.site import Site
from tests.browser.watching import Watched, watched

FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium or Chrome; nothing is downloaded."""
    path = os.environ.get("BROWSER_PATH")
    assert path, "name the browser with BROWSER_PATH, or run `make test-browser`"
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else list(FLAGS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def shop() -> Iterator[Site]:
    """A shop's jobs, for tests that only look."""
    with Site() as site:
        yield site


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(30_000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page that fails its test for every console error and every request to another host."""
    with watched(context.new_page()) as seen:
        yield seen.page


@pytest.fixture
def seen(context: BrowserContext) -> Iterator[Watched]:
    with watched(context.new_page()) as seen:
        yield seen
