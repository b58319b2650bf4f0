"""The ASGI application of the pages: sessions, form checks, headers, errors. [DB1]

Each request passes these steps in order: whether it is addressed to this server, session, token,
form, page. Every failure becomes a page.
"""

import logging
import os
import secrets
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tenure.core.instants import seconds
from tenure.core.tokens import TokenId
from tenure.dashboard.pages import ACTIONS, PAGES
from tenure.dashboard.rendering import StaticFiles, make_environment, url
from tenure.dashboard.sessions import NONCE_BYTES, BrowserSession, Signer, new_session
from tenure.dashboard.settings import DashboardSettings
from tenure.dashboard.visits import (
    NONCE,
    Page,
    Visit,
    chosen_namespace,
    cookie_of,
    cookie_of_port,
    sent_path,
)
from tenure.protocol.replies import ProblemCode
from tenure.server import problems
from tenure.server.app import Endpoints, check_local, unknown_route
from tenure.server.audit import RequestAudit
from tenure.server.connections import KNOWN
from tenure.server.handling import in_time, media_type, read_body
from tenure.server.limits import RequestMemory
from tenure.server.principals import Principal
from tenure.server.problems import RefusedRequest
from tenure.server.services import Services, SharedAnswers
from tenure.server.threads import call_for
from tenure.telemetry.tracing import RequestSpan, server_span, trace_from_headers

_log = logging.getLogger("tenure.dashboard")

MAX_FORM_BYTES = 64 << 10
MAX_FORM_FIELDS = 1_000
FORM_TYPE = "application/x-www-form-urlencoded"
COOKIE_LENGTH_S = 365 * 86_400
PART_FRESH_FOR = seconds(1)
"""How old the changing part of a page may be that a visitor gets."""

HEADERS = {
    # Not no-referrer: browsers would then send `Origin: null` with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}
_ENCODED_HEADERS = [(name.lower().encode(), text.encode()) for name, text in HEADERS.items()]

SCRIPT_NONCE_BYTES = 16


def _security_policy(nonce: str) -> str:
    """Only the scripts that the page itself names run: not every file of this server, because
    workers choose what artifacts contain. [DB40]"""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )


def make_pages(services: Services, settings: DashboardSettings) -> ASGIApp:
    """The pages, for `tenure.server.app.make_app`."""
    return _Pages(services, settings)


class _NotSignedIn(Exception):
    """The page needs a session with a valid token."""


class _Pages:
    """Finds the page of a path, lets visitors in, and turns every failure into a page."""

    def __init__(self, services: Services, settings: DashboardSettings) -> None:
        self._services = services
        self._settings = settings
        self._signer = Signer(settings.key)
        self._static = StaticFiles()
        self._templates = make_environment(self._static.url)
        self._templates.globals["is_authenticated"] = settings.authenticated
        self._templates.globals["actions"] = {action.name: action for action in ACTIONS}
        self._menu = tuple(page for page in PAGES if page.menu)
        self._parts = SharedAnswers[tuple[object, ...], bytes](
            services.monotonic, fresh_for=PART_FRESH_FOR
        )
        by_path: dict[str, dict[str, Page]] = {}
        for page in PAGES:
            by_path.setdefault(page.path, {})[page.method] = page
        self._endpoints = Endpoints(
            {path: _PageEndpoint(methods, self) for path, methods in by_path.items()}
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        nonce = secrets.token_urlsafe(SCRIPT_NONCE_BYTES)
        scope[NONCE] = nonce
        policy = (b"content-security-policy", _security_policy(nonce).encode())

        async def finish(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], policy, *_ENCODED_HEADERS]
            await send(message)

        if scope["path"] in self._static:
            await self._static(scope, receive, finish)
        elif endpoint := self._endpoints.find(scope):
            await endpoint(scope, receive, finish)
        elif "text/html" in Request(scope).headers.get("accept", ""):
            await self._failure(_no_page(), Request(scope))(scope, receive, finish)
        else:
            await unknown_route(scope, receive, finish)

    async def respond(self, pages: dict[str, Page], http: Request, send: Send) -> None:
        """Answer a request for a path by its page for this method."""
        page = pages.get("GET" if http.method == "HEAD" else http.method)
        with self._services.memory.request() as memory:
            path = next(iter(pages.values())).path
            method = "HTTP" if page is None else page.method
            with server_span(method, path, trace_from_headers(http.headers.getlist)) as span:
                asked = _not_allowed(pages) if page is None else page
                answer = await self._answer(asked, http, memory, span)
                span.answered(answer.status_code)
            await answer(http.scope, http.receive, send)

    async def _answer(
        self, page: Page | RefusedRequest, http: Request, memory: RequestMemory, span: RequestSpan
    ) -> Response:
        """The answer to a request for a page, or the refusal of its method."""
        audit = RequestAudit(self._services.security, None, http, http.scope["tenure.request_id"])
        try:
            if isinstance(page, RefusedRequest):
                raise page
            self._check_address(http)
            visit = await self._visit(page, http, memory, span, audit)
            answer = await (self._shared(visit) if visit.is_shared else page.answer(visit))
            self._set_cookies(visit, answer)
            return answer
        except _NotSignedIn:
            return self._sign_in_first(http)
        except ClientDisconnect:
            return Response(status_code=400)  # the visitor has gone
        except Exception as problem:  # every failure becomes a page
            audit.refused(problem)
            return self._failure(problem, http)

    async def _shared(self, visit: Visit) -> Response:
        """The changing part of a page, made once for all who may see the same. [DB15]"""
        assert visit.principal is not None, "a page whose parts are shared needs a session"

        async def make() -> bytes:
            made = await visit.page.answer(visit)
            assert made.status_code == 200, "what is shared is a page"
            return bytes(made.body)

        key = (visit.here, visit.namespace, visit.principal.rights)
        return Response(await self._parts.get(key, make), media_type="text/html")

    # --- who visits

    def _check_address(self, http: Request) -> None:
        if not self._settings.authenticated:
            # A link on another site may lead to a page; that site may not load it as a part of its
            # own.
            is_link = http.headers.get("sec-fetch-mode") == "navigate"
            check_local(http, site=None if is_link else http.headers.get("sec-fetch-site"))
        if http.method == "POST":
            self._check_origin(http)

    def _check_origin(self, http: Request) -> None:
        """Refuse a form that another site's page sent. [DB7]"""
        site, origin = http.headers.get("sec-fetch-site"), http.headers.get("origin")
        ours = self._settings.public_origin or f"{http.url.scheme}://{http.headers.get('host')}"
        is_ours = site in (None, "same-origin") and origin in (None, ours)
        if not is_ours or (site is None and origin is None):
            raise RefusedRequest(
                403,
                ProblemCode.OUT_OF_SCOPE,
                "this form was not sent by a page of this server",
                hint="open the page again; behind a proxy, start the server with --public-origin",
            )

    async def _visit(
        self,
        page: Page,
        http: Request,
        memory: RequestMemory,
        span: RequestSpan,
        audit: RequestAudit,
    ) -> Visit:
        async with in_time(self._services, is_read=True):
            now = await self._services.now()
        cookie = cookie_of(http, self._cookie_name("session", http))
        session = self._signer.session(cookie, now=now)
        is_new = session is None
        if session is None:
            session = new_session(None, now=now, entropy=os.urandom(NONCE_BYTES))
        form = await self._form(http, memory, session) if page.method == "POST" else ()
        principal = await self._principal(session, page)
        audit.principal = principal or audit.principal
        if principal is not None:
            http.scope[KNOWN] = True
        call_for(audit.principal.caller)
        memory.belongs_to(audit.principal.caller)
        sent = cookie_of(http, self._cookie_name("notice", http))
        return Visit(
            page=page,
            http=http,
            services=self._services,
            span=span,
            memory=memory,
            audit=audit,
            principal=principal,
            namespace=chosen_namespace(principal, http, self._settings.namespace),
            session=session,
            form_token=self._signer.form_token(session),
            form=form,
            instant=now,
            notice=self._signer.read_notice(sent, session, now=now),
            templates=self._templates,
            menu=self._menu,
            new_session=session if is_new else None,
        )

    async def _principal(self, session: BrowserSession, page: Page) -> Principal | None:
        """The principal of a session; None on a page that needs none. Its token is read again every
        few seconds. [DB4]"""
        if not self._settings.authenticated:
            return Principal()
        token_id: TokenId | None = session.token_id
        if token_id is not None:
            async with in_time(self._services, is_read=True):
                principal = await self._services.authenticator.principal_of(token_id)
            if principal is not None:
                return principal
        if not page.is_public:
            raise _NotSignedIn
        return None

    async def _form(
        self, http: Request, memory: RequestMemory, session: BrowserSession
    ) -> tuple[tuple[str, str], ...]:
        """The fields of a form of this session. [DB6]"""
        if media_type(http) != FORM_TYPE:
            raise RefusedRequest(415, ProblemCode.UNSUPPORTED_MEDIA_TYPE, "the body must be a form")
        within_s = self._services.settings.body_within_s
        body = await read_body(http, MAX_FORM_BYTES, within_s, memory)
        try:
            fields = parse_qsl(
                body.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS
            )
        except ValueError as wrong:
            raise RefusedRequest(400, ProblemCode.MALFORMED, "the form cannot be read") from wrong
        given = next((text for name, text in fields if name == "form_token"), "")
        if not self._signer.is_form_token(session, given):
            raise RefusedRequest(
                403,
                ProblemCode.OUT_OF_SCOPE,
                "this form is too old or was not made for this browser; nothing was changed",
                hint="open the page again and repeat what you did",
            )
        return tuple(fields)

    # --- cookies

    def _is_secure(self, http: Request) -> bool:
        origin = self._settings.public_origin
        return http.url.scheme == "https" if origin is None else origin.startswith("https:")

    def _cookie_name(self, word: str, http: Request) -> str:
        """Browsers let no page of another host or of http: set a cookie with this prefix."""
        name = cookie_of_port(word, http)
        return f"__Host-{name}" if self._is_secure(http) else name

    def _set_cookies(self, visit: Visit, answer: Response) -> None:
        http = visit.http

        def put(name: str, text: str, lasts_s: int | None) -> None:
            answer.set_cookie(
                name,
                text,
                max_age=lasts_s,
                path="/",
                secure=self._is_secure(http),
                httponly=True,
                samesite="strict",
            )

        session = visit.new_session
        if session is not None:
            put(self._cookie_name("session", http), self._signer.cookie(session), None)
        notice_cookie = self._cookie_name("notice", http)
        if visit.notices:
            signed = self._signer.notice(
                visit.notices[-1], session or visit.session, now=visit.instant
            )
            put(notice_cookie, signed, None)
        elif cookie_of(http, notice_cookie) is not None and not visit.is_fragment:
            put(notice_cookie, "", 0)
        for name, text in visit.cookies.items():
            put(name, text, COOKIE_LENGTH_S)

    # --- what went wrong

    def _sign_in_first(self, http: Request) -> Response:
        """Ask for a token. A link on another site does not bring the cookie (SameSite=Strict), but
        the same request sent once more by a page of ours does. [DB3]"""
        if "hx-request" in http.headers:
            return Response(status_code=401, headers={"HX-Refresh": "true"})
        if http.method == "GET" and http.headers.get("sec-fetch-site") == "cross-site":
            return self._bare("again.html", 200)
        there = sent_path(http)
        wanted = there if http.method == "GET" and there != "/" else None
        return RedirectResponse(url("/sign-in", next=wanted), status_code=303)

    def _failure(self, problem: Exception, http: Request) -> Response:
        request_id = http.scope["tenure.request_id"]
        status, said, headers = problems.describe(problem)
        problems.log(problem, status, request_id)
        return self._bare("problem.html", status, headers, said=said, request_id=request_id)

    def _bare(
        self, template: str, status: int, headers: dict[str, str] | None = None, **context: Any
    ) -> Response:
        """A page without a visit: nothing is known of the session. It is small, and is rendered
        here: the threads may all be busy with what has failed."""
        body = self._templates.get_template(template).render(context, status=status)
        return Response(body, status, headers, media_type="text/html")


class _PageEndpoint:
    """The pages of one path, by method."""

    def __init__(self, methods: dict[str, Page], pages: _Pages) -> None:
        self._methods = methods
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._pages.respond(self._methods, Request(scope, receive), send)


def _no_page() -> RefusedRequest:
    return RefusedRequest(
        404,
        ProblemCode.UNKNOWN_ROUTE,
        "there is no such page",
        hint="the menu of the overview leads to every page",
    )


def _not_allowed(methods: Iterable[str]) -> RefusedRequest:
    return RefusedRequest(
        405,
        ProblemCode.METHOD_NOT_ALLOWED,
        "this page does not take this method",
        headers={"Allow": ", ".join(sorted(methods))},
    )
