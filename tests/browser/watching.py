"""Watches a page: errors, requests to other hosts, dialogs of scripts, accessibility, layout."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Page

from tenure.core.vocabulary import Role
from tests.browser.site import Site

AXE = Path(__file__).parent / "vendor" / "axe.min.js"
LOCAL = ("localhost", "127.0.0.1")


class Watched:
    """What a page did that it must not do."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("console", lambda said: self._said(said.type, said.text))
        page.on("pageerror", lambda error: self.errors.append(f"script: {error}"))
        page.on("request", lambda request: self._asked(request.url))
        page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}"))

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.errors.append(f"console: {text}")

    def _asked(self, url: str) -> None:
        if urlsplit(url).hostname not in LOCAL:
            self.errors.append(f"request to another host: {url}")

    def sign_in(self, site: Site, role: Role) -> None:
        """Sign in as a user of this role does."""
        self.sign_in_with(site, site.tokens[role])

    def sign_in_with(self, site: Site, token: str) -> None:
        """Sign in with a token."""
        self.page.goto(f"{site.address}/sign-in")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(f"{site.address}/")

    def violations(self) -> list[str]:
        """What axe finds on the page as it is."""
        # Evaluated by the driver, which the page's Content-Security-Policy does not stop.
        self.page.evaluate(AXE.read_text())
        found: dict[str, Any] = self.page.evaluate("() => axe.run(document)")
        return [
            f"{each['id']}: {each['help']}: {[node['html'][:160] for node in each['nodes'][:3]]}"
            for each in found["violations"]
        ]

    def is_wider_than_the_window(self) -> bool:
        """Whether the page itself scrolls sideways."""
        return bool(
            self.page.evaluate(
                "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"
            )
        )

    def has_cut_tables(self) -> bool:
        """Whether a table is wider than its box, so that columns are out of sight. Those of plots
        may be: they scroll."""
        return bool(
            self.page.evaluate(
                "() => [...document.querySelectorAll('.table-box:not(.scroll)')]"
                ".some(box => box.scrollWidth > box.clientWidth + 1)"
            )
        )


@contextmanager
def watched(page: Page) -> Iterator[Watched]:
    """Watch a page; fails at the end if it did what it must not do."""
    seen = Watched(page)
    yield seen
    assert not seen.errors, "\n".join(seen.errors)
