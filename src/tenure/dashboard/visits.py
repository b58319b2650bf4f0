"""What a page is, and one visit: what a page is given, what it asks of `/v1`, and how it answers.

A page gets what a client with the same token gets over HTTP: the message that a route answers,
before it is encoded, so no page can see a field that the protocol does not have. [DB2]
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, TypeVar, Unpack

import msgspec
from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tenure.core.checks import MAX_NAME, NAME_PATTERN
from tenure.core.ids import Namespace
from tenure.core.instants import Instant
from tenure.dashboard.sessions import BrowserSession, Notice
from tenure.protocol.codec import encode
from tenure.protocol.fields import moment
from tenure.protocol.records import WorkerRecord
from tenure.protocol.routes import BY_NAME, Route
from tenure.server.audit import RequestAudit
from tenure.server.calls import Message, RequestContext
from tenure.server.handling import carry_out
from tenure.server.limits import RequestMemory
from tenure.server.principals import Principal
from tenure.server.problems import unauthenticated
from tenure.server.services import Services
from tenure.telemetry.tracing import RequestSpan

THEMES = ("auto", "light", "dark")
THEME_COOKIE = "tenure_theme"
FRAGMENT_HEADER = "hx-request"

_R = TypeVar("_R")

Query = Mapping[str, str | int | bool | Sequence[str] | None]


class _Message(TypedDict, total=False):
    """What is asked of a route: the parts of its path, its query and its body."""

    path: Mapping[str, str]
    query: Query
    body: Mapping[str, Any]


NONCE = "tenure.script_nonce"
"""In the scope of a request: what the scripts of its page are named by. [DB40]"""


class Page(msgspec.Struct, frozen=True):
    """One path and method. A page that is in the menu has a `menu` word, an `icon`, a `key` (the
    letter that leads to it after `g`) and, in `asks`, the route of `/v1` that it shows: the menu
    shows the page to visitors who may use this route."""

    name: str
    path: str
    answer: "Callable[[Visit], Awaitable[Response]]"
    method: str = "GET"
    is_public: bool = False
    """Whether it is shown to visitors who have not signed in."""
    menu: str = ""
    icon: str = ""
    key: str = ""
    asks: str = ""


class Visit(msgspec.Struct, kw_only=True, eq=False):
    """A request of a browser whose session is known.

    `form` has the fields of a form that was posted; they are texts, and several may have the same
    name. Without a token, `namespace` is the one that the visitor chose. A visitor who has to sign
    in first has no principal and can ask nothing of `/v1`.
    """

    page: Page
    http: Request
    services: Services
    span: RequestSpan
    memory: RequestMemory
    audit: RequestAudit
    principal: Principal | None
    namespace: Namespace
    session: BrowserSession
    form_token: str
    form: tuple[tuple[str, str], ...]
    instant: Instant
    """The store's clock."""
    notice: Notice | None
    templates: Environment
    menu: tuple[Page, ...]
    notices: list[Notice] = []
    """What the next page shows."""
    cookies: dict[str, str] = {}
    """Settings of this browser that the answer changes."""
    new_session: BrowserSession | None = None
    """The session that the answer starts, instead of this one."""

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
        """Whether the answer is also for other visitors with equal rights: several people keep the
        pages of the menu open at a time. [DB15]"""
        return bool(self.page.menu) and self.is_fragment

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

    # --- what is asked of /v1

    @property
    def sees_bodies(self) -> bool:
        """Whether this visitor may see payloads and results. [H46]"""
        return self.principal is not None and self.principal.sees_bodies

    def may(self, route: str) -> bool:
        """Whether a token of this role and with these limits may use a route; what it asks for may
        still be out of its scope."""
        return self.principal is not None and self.principal.may_use(BY_NAME[route])

    def may_drain(self, worker: WorkerRecord) -> bool:
        """Whether this visitor may stop a worker, which other queues and kinds may need too."""
        return self.may("drain") and not worker.in_part

    @property
    def choices(self) -> dict[str, tuple[str, ...]]:
        """The queues and kinds that this visitor's token is limited to, where it has several."""
        token = None if self.principal is None else self.principal.token
        given = {} if token is None else {"queue": token.queues, "kind": token.kinds}
        return {name: names for name, names in given.items() if len(names) > 1}

    def listed(self, chosen: Mapping[str, str | None]) -> dict[str, str | None]:
        """The filters of a list of jobs, with a queue and a kind where this visitor's token has
        several and has to name one. [H41]"""
        found = dict(chosen)
        for name, given in self.choices.items():
            found[name] = found[name] or given[0]
        return found

    async def ask(
        self,
        name: str,
        reply: type[_R],
        **message: Unpack[_Message],
    ) -> _R:
        """The reply of a route, which by the table of routes is of this type. Raises what the
        handler raises."""
        assert BY_NAME[name].reply is reply
        response = await self.response(name, **message)
        assert isinstance(response, Message)
        assert isinstance(response.message, reply)
        return response.message

    async def response(self, name: str, **message: Unpack[_Message]) -> Response:
        """The response of a route: for files, and for its status. A message is not encoded."""
        if self.principal is None:
            raise unauthenticated("sign in first")
        route, given = BY_NAME[name], dict(message.get("path", {}))
        # The security log names the parts of the route's path, not of the page's.
        http = Request({**self.http.scope, "path_params": given})
        audit = RequestAudit(self.services.security, route, http, http.scope["tenure.request_id"])
        audit.principal = self.principal
        body = b"" if route.request is None else encode(dict(message.get("body", {})))

        async def read() -> bytes:
            return body

        try:
            self.principal.check_route(route)
            return await carry_out(
                self.services,
                RequestContext(
                    route=route,
                    http=http,
                    span=self.span,
                    memory=self.memory,
                    audit=audit,
                    is_encoded=False,
                ),
                path=given,
                query=_pairs(message.get("query", {}), self._namespace_for(route)),
                body=read,
            )
        except Exception as problem:
            audit.refused(problem)
            raise

    def _namespace_for(self, route: Route) -> dict[str, str]:
        """The chosen namespace, for a visitor without a token and a route that asks for one."""
        is_asked = "namespace" in getattr(route.query, "__struct_fields__", ())
        has_token = self.principal is not None and self.principal.token is not None
        return {"namespace": self.namespace} if is_asked and not has_token else {}

    # --- what is answered

    async def show(self, template: str, /, *, status: int = 200, **context: Any) -> Response:
        """A page. It is rendered on a thread, because a long one would hold up the event loop."""
        known = {
            "visit": self,
            "page": self.page,
            "menu": [each for each in self.menu if self.may(each.asks)],
            "now": self.now,
            "may": self.may,
            "is_fragment": self.is_fragment,
            "script_nonce": self.http.scope.get(NONCE),
            **context,
        }
        if not self.is_shared:  # a template that needs them fails instead of giving them to others
            known |= {"form_token": self.form_token, "notice": self.notice}
        made = self.templates.get_template(template)
        body = await self.services.listing(lambda: made.render(known))
        return Response(body, status, media_type="text/html")

    def go(self, to: str, notice: Notice | None = None) -> Response:
        """Send the browser to another page, which shows the notice."""
        if notice is not None:
            self.notices.append(notice)
        return RedirectResponse(local_path(to), status_code=303)


def _pairs(query: Query, more: Mapping[str, str]) -> list[tuple[str, str]]:
    """A query as texts; what is None is left out."""
    pairs = []
    for name, value in {**query, **more}.items():
        several = value if isinstance(value, list | tuple) else [value]
        pairs += [(name, _text(each)) for each in several if each is not None]
    return pairs


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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
