"""A dashboard without sockets, and a browser without JavaScript that visits it."""

import re
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

from starlette.types import ASGIApp

from tenure.core.vocabulary import Role
from tenure.dashboard.app import make_pages
from tenure.dashboard.settings import DashboardSettings
from tenure.server.services import Services
from tests.server.harness import Answer, Stage

KEY = bytes(range(32))
ORIGIN = "http://localhost:7717"
FORM_HEADERS = {"content_type": "application/x-www-form-urlencoded", "origin": ORIGIN}


class DashboardStage(Stage):
    """A server in virtual time with pages."""

    def __init__(
        self,
        *,
        authenticated: bool = True,
        public_origin: str | None = None,
        **more: Any,
    ) -> None:
        """`more` is for the server's stage."""
        settings = DashboardSettings(
            key=KEY, authenticated=authenticated, public_origin=public_origin
        )

        def pages(services: Services) -> ASGIApp:
            return make_pages(services, settings)

        super().__init__(authenticated=authenticated, pages=pages, **more)

    def browser(self, role: Role | None = None, **scope: Any) -> "Browser":
        """A browser; with a role it has signed in with a new token of this scope."""
        browser = Browser(self)
        if role is not None:
            browser.sign_in(self.token(role, **scope))
        return browser


class Browser:
    """Keeps cookies, follows redirects and sends forms as a browser does."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.cookies: dict[str, str] = {}
        self.headers = {"accept": "text/html", "sec-fetch-site": "same-origin"}

    def get(self, path: str, **headers: str) -> Answer:
        """The page at a path, after redirects."""
        answer = self.ask("GET", path, None, **headers)
        for _ in range(3):
            if answer.status != 303:
                break
            answer = self.ask("GET", answer.headers["location"], None, **headers)
        return answer

    def ask(self, method: str, path: str, body: bytes | None = None, /, **headers: str) -> Answer:
        """One request with this browser's cookies. A header's underscore is a hyphen."""
        return self.stage.run(self.aask(method, path, body, **headers))

    async def aask(
        self, method: str, path: str, body: bytes | None = None, /, **headers: str
    ) -> Answer:
        """The same, for several at a time."""
        given = {**self.headers}
        if self.cookies:
            given["cookie"] = "; ".join(f"{name}={text}" for name, text in self.cookies.items())
        given |= {name.replace("_", "-"): text for name, text in headers.items()}
        pieces = None if body is None else [body]
        caller = self.stage.caller(method, path, headers=given, pieces=pieces)
        answer = await caller.run(self.stage.app)
        for cookie in answer.cookies:
            name, _, rest = cookie.partition("=")
            self.cookies[name] = rest.partition(";")[0]
        return answer

    def form_token(self, page: str) -> str:
        """The token of the forms of a page."""
        found = re.search(r'name="form_token" value="([0-9a-f]+)"', self.get(page).text)
        assert found is not None, page
        return found[1]

    def post(self, path: str, fields: dict[str, Any], **headers: str) -> Answer:
        """Send these fields as a form, without following where it leads."""
        body = urlencode(fields, doseq=True).encode()
        return self.ask("POST", path, body, **{**FORM_HEADERS, **headers})

    def submit(self, path: str, fields: dict[str, Any], *, page: str = "/help") -> Answer:
        """Send a form of a page, with its token."""
        return self.post(path, {"form_token": self.form_token(page), **fields})

    def sign_in(self, token: str) -> Answer:
        """Sign in; the answer to the form."""
        return self.submit("/sign-in", {"token": token}, page="/sign-in")


class Links(HTMLParser):
    """The links of a page, and the elements that would run script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.hrefs: list[str] = []
        self.suspicious: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "href" and tag == "a" and value is not None:
                self.hrefs.append(value)
            leads = name in ("href", "src", "action", "formaction", "xlink:href")
            is_script = leads and (value or "").strip().lower().startswith(("javascript:", "data:"))
            if name.startswith("on") or name == "style" or is_script:
                self.suspicious.append(f"<{tag} {name}={value!r}>")
        if tag in ("iframe", "object", "embed", "style", "base"):
            self.suspicious.append(f"<{tag}>")
        if tag == "script" and "src" not in dict(attrs):
            self.suspicious.append("<script> without src")
