"""One visit: what a page is given, and how it answers."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeVar

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tenure.core.checks import MAX_NAME, NAME_PATTERN
from tenure.core.ids import Namespace
from tenure.core.instants import Instant
from tenure.dashboard.asking import Asker, Query
from tenure.dashboard.page import Page
from tenure.dashboard.sessions import Notice, Session
from tenure.protocol.codec import encode
from tenure.protocol.fields import moment
from tenure.protocol.records import WorkerRecord
from tenure.server.audit import RequestAudit
from tenure.server.principals import Principal
from tenure.server.services import Services

THEMES = ("auto", "light", "dark")
THEME_COOKIE = "tenure_theme"
FRAGMENT_HEADER = "hx-request"

_R = TypeVar("_R")


NONCE = "tenure.script_nonce"
"""In the scope of a request: what the scripts of its page are named by. [DB40]"""


class Visit:
    """A request of a browser whose session is known.

    `form` has the fields of a form that was posted; they are texts, and several may have the same
    name.
    """

    def __init__(
        self,
        *,
        page: Page,
        http: Request,
        services: Services,
        asker: Asker,
        audit: RequestAudit,
        principal: Principal | None,
        session: Session,
        form_token: str,
        now: Instant,
        form: tuple[tuple[str, str], ...],
        notice: Notice | None,
        templates: Environment,
        menu: tuple[Page, ...],
        namespace: Namespace,
    ) -> None:
        self.page = page
        self.http = http
        self.services = services
        self.principal = principal
        self.session = session
        self.form = form
        self.instant = now
        self.namespace = namespace
        self._asker = asker
        self._audit = audit
        self._form_token = form_token
        self._notice = notice
        self._templates = templates
        self._menu = menu
        self.notices: list[Notice] = []
        """What the next page shows."""
        self.cookies: dict[str, str] = {}
        """Settings of this browser that the answer changes."""
        self.new_session: Session | None = None
        """The session that the answer begins, instead of this one."""

    # --- what was sent

    @property
    def now(self) -> datetime:
        """The store's clock, for display."""
        return moment(self.instant)

    def query(self, name: str) -> str | None:
        """A parameter of the URL; an empty one counts as missing, as forms send it."""
        return self.http.query_params.get(name) or None

    def queries(self, name: str) -> list[str]:
        """All values of a parameter of the URL."""
        return [each for each in self.http.query_params.getlist(name) if each]

    def part(self, name: str) -> str:
        """A part of the path in braces."""
        return str(self.http.path_params[name])

    def field(self, name: str) -> str:
        """A field of the form; empty if it is missing."""
        return next((text for each, text in self.form if each == name), "")

    def fields(self, name: str) -> list[str]:
        """All values of a field of the form."""
        return [text for each, text in self.form if each == name]

    @property
    def is_fragment(self) -> bool:
        """Whether only the changing part of the page is wanted."""
        return FRAGMENT_HEADER in self.http.headers

    @property
    def is_shared(self) -> bool:
        """Whether the answer is also for other visitors who may see the same. [DB15]"""
        return self.page.is_shared and self.is_fragment

    @property
    def theme(self) -> str:
        """The colours that this browser chose."""
        chosen = cookie_of(self.http, THEME_COOKIE) or "auto"
        return chosen if chosen in THEMES else "auto"

    @property
    def path(self) -> str:
        """The path of this page, encoded as it was sent."""
        return self.here.partition("?")[0]

    @property
    def here(self) -> str:
        """The path and query of this page."""
        return sent_path(self.http)

    # --- what is asked

    @property
    def sees_bodies(self) -> bool:
        """Whether this visitor may see payloads and results. [H46]"""
        return self.principal is not None and self.principal.sees_bodies

    def may(self, route: str) -> bool:
        """Whether this visitor may use a route of `/v1`."""
        return self._asker.may(route)

    def may_drain(self, worker: WorkerRecord) -> bool:
        """Whether this visitor may stop a worker, which other queues and kinds may need too."""
        return self.may("drain") and not worker.in_part

    def listed(self, chosen: Mapping[str, str | None]) -> dict[str, str | None]:
        """The filters of a list of jobs, with a queue and a kind where this visitor's token has
        several and has to name one. [H41]"""
        found = dict(chosen)
        for name, given in self.choices.items():
            found[name] = found[name] or given[0]
        return found

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """The queues and kinds that this visitor's token is limited to, where it has several."""
        token = None if self.principal is None else self.principal.token
        given = {} if token is None else {"queue": token.queues, "kind": token.kinds}
        return {name: names for name, names in given.items() if len(names) > 1}

    async def ask(
        self,
        route: str,
        reply: type[_R],
        *,
        path: Mapping[str, str] | None = None,
        query: Query | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> _R:
        """The reply of a route of `/v1`; see `Asker.ask`."""
        return await self._asker.ask(route, reply, path=path, query=query, body=body)

    async def response(
        self, route: str, *, path: Mapping[str, str], body: Mapping[str, Any] | None = None
    ) -> Response:
        """The response of a route of `/v1` as it is: for files, and for its status."""
        return await self._asker.response(route, path=path, body=body)

    def note_signed_in(self, principal: Principal) -> None:
        """Write to the security log who begins a session."""
        self._audit.principal = principal
        self._audit.signed_in()

    def note_signed_out(self) -> None:
        """Write to the security log who ends a session."""
        if self.principal is not None and self.principal.token is not None:
            self._audit.signed_out()

    def note_refused(self, problem: Exception) -> None:
        """Write to the security log that this visitor was refused."""
        self._audit.refused(problem)

    # --- what is answered

    async def show(self, template: str, /, *, status: int = 200, **context: Any) -> Response:
        """A page. It is rendered on a thread, because a long one would hold up the event loop."""
        known = {
            "visit": self,
            "page": self.page,
            "menu": [each for each in self._menu if self.may(each.asks)],
            "now": self.now,
            "may": self.may,
            "is_fragment": self.is_fragment,
            "script_nonce": self.http.scope.get(NONCE),
            **context,
        }
        if not self.is_shared:  # a template that needs them fails instead of giving them to others
            known |= {"form_token": self._form_token, "notice": self._notice}
        made = self._templates.get_template(template)
        body = await self.services.listing(lambda: made.render(known))
        return Response(body, status, media_type="text/html")

    async def data(self, message: object) -> Response:
        """JSON, for plots."""
        body = await self.services.listing(lambda: encode(message))
        return Response(body, media_type="application/json")

    def go(self, to: str, notice: Notice | None = None) -> Response:
        """Send the browser to another page, which shows the notice."""
        if notice is not None:
            self.notices.append(notice)
        return RedirectResponse(local_path(to), status_code=303)


def sent_path(http: Request) -> str:
    """The path and query of a request, encoded as they were sent."""
    path = http.scope["raw_path"].decode("ascii", "replace")
    query = http.scope["query_string"].decode("ascii", "replace")
    return f"{path}?{query}" if query else path


def local_path(text: str, otherwise: str = "/") -> str:
    """The text if it is a path of this site, so that no form leads to another one. [DB8]"""
    is_local = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if is_local and "\\" not in text else otherwise


def cookie_of_port(word: str, http: Request) -> str:
    """The name of a cookie of one server: browsers send the cookies of a host to all of its ports,
    so without it two servers on one machine would overwrite each other's."""
    port = http.headers.get("host", "").rpartition(":")[2]
    return f"tenure_{word}_{port}" if port.isdecimal() and port.isascii() else f"tenure_{word}"


def cookie_of(http: Request, name: str) -> str | None:
    """The last cookie of this name, without quotes. Not `Request.cookies`: it decodes the cookies
    of all names, and before Python 3.11.10 and 3.12.6 that took time in proportion to the square
    of their length. [DB32]"""
    found = None
    for header in http.headers.getlist("cookie"):
        for each in header.split(";"):
            key, _, text = each.partition("=")
            if key.strip() == name:
                found = text.strip()
    if found is not None and len(found) > 1 and found[0] == found[-1] == '"':
        return found[1:-1]
    return found


def chosen_namespace(principal: Principal | None, http: Request, otherwise: Namespace) -> Namespace:
    """The token's namespace; without tokens the one that the browser chose. [DB11]"""
    if principal is not None and principal.token is not None:
        return principal.token.namespace
    chosen = cookie_of(http, cookie_of_port("namespace", http)) or otherwise
    is_name = len(chosen) <= MAX_NAME and NAME_PATTERN.fullmatch(chosen) is not None
    return Namespace(chosen) if is_name else otherwise
