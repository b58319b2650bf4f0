"""The ASGI application: the table of routes, mounted at exactly their paths. [H1] [H3]

Each request passes these steps in order: size of the head, authentication, authorisation, body and
its size, handler. `problems.response` turns every error on the way into a response.
"""

import asyncio
import logging
import re
from collections.abc import Iterable, Mapping
from functools import partial

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenure.core.checks import MAX_NAME, NAME_PATTERN
from tenure.protocol import PROTOCOL_VERSION, REQUEST_ID_HEADER, VERSION_HEADER, is_loopback
from tenure.protocol.replies import ProblemCode
from tenure.protocol.routes import ROUTES, Route, Shape
from tenure.server import problems
from tenure.server.audit import RequestAudit
from tenure.server.calls import RequestContext
from tenure.server.connections import KNOWN
from tenure.server.handling import CLOSE, carry_out, in_time, media_type, read_body
from tenure.server.limits import RequestMemory, ServerSettings
from tenure.server.problems import RefusedRequest
from tenure.server.services import Services
from tenure.telemetry.tracing import RequestSpan, server_span, trace_from_headers

_BRACES = re.compile(r"\{(\w+)\}")


class Endpoints:
    """The endpoints of paths, each at exactly its path. [H1]"""

    def __init__(self, endpoints: Mapping[str, ASGIApp]) -> None:
        self._fixed = {path: each for path, each in endpoints.items() if "{" not in path}
        self._patterns = [
            (re.compile(_BRACES.sub(_part, path)), each)
            for path, each in endpoints.items()
            if "{" in path
        ]

    def find(self, scope: Scope) -> ASGIApp | None:
        """The endpoint of the request's path; its parts in braces are then in `path_params`."""
        path = scope["path"]
        scope["path_params"] = {}
        if path in self._fixed:
            return self._fixed[path]
        for pattern, endpoint in self._patterns:
            if found := pattern.fullmatch(path):
                scope["path_params"] = found.groupdict()
                return endpoint
        return None


def _part(found: re.Match[str]) -> str:
    """Names may contain slashes, and arrive decoded; job ids have none. [H3] Any text, even line
    breaks: an illegal name gets a 422, not a 404."""
    return f"(?P<{found[1]}>{'[^/]+' if found[1] == 'job_id' else '(?s:.*)'})"


_log = logging.getLogger("tenure.server")

HSTS = (b"strict-transport-security", b"max-age=31536000")
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def make_app(services: Services, *, authenticated: bool, pages: ASGIApp | None = None) -> ASGIApp:
    """Make the application. Without authentication it only answers requests to localhost. [H28]
    `pages` answers the paths that are no route, except those below `/v1`. [DB1]"""
    addresses: dict[str, list[Route]] = {}
    for route in ROUTES:
        addresses.setdefault(route.path, []).append(route)
    endpoints = Endpoints(
        {
            path: _Endpoint(routes, services, authenticated=authenticated)
            for path, routes in addresses.items()
        }
    )

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        is_below = f"{scope['path']}/".startswith("/v1/")
        otherwise = unknown_route if pages is None or is_below else pages
        await (endpoints.find(scope) or otherwise)(scope, receive, send)

    return _Envelope(app, services.settings)


class _NotRead(Exception):
    """The caller did not read its response in time."""


class _Envelope:
    """Gives every answer a request id, the common headers and a deadline for sending."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Request(scope).headers.get(REQUEST_ID_HEADER))
        scope["tenure.request_id"] = request_id
        # Not for localhost: browsers would ask for TLS of whatever else listens there. [H74]
        is_tls = scope["scheme"] == "https" and not is_loopback(_host_name(Request(scope)))

        deadline_s = 0.0
        head: Message | None = None

        async def finish(message: Message) -> None:
            nonlocal deadline_s, head
            if message["type"] == "http.response.start":
                message["headers"] = _with_common(message["headers"], request_id)
                if is_tls:
                    message["headers"].append(HSTS)
                deadline_s = asyncio.get_running_loop().time() + self._settings.send_within_s
                head = message  # sent with the first part of the body: one timer for both
                return
            try:
                async with asyncio.timeout_at(deadline_s):
                    if head is not None:
                        await send(head)
                        head = None
                    await send(message)
            except TimeoutError as late:
                raise _NotRead from late
            # Only what was read gives more time: a client that reads nothing must not keep a large
            # answer in memory for as long as one that reads it. [H62]
            deadline_s += len(message.get("body", b"")) / self._settings.slowest_bytes_per_s

        # The parser limits heads that arrive in pieces; this limits one that arrives at once. [H43]
        if _head_bytes(scope) > self._settings.max_header_bytes:
            refused = RefusedRequest(
                400, ProblemCode.HEAD_TOO_LARGE, "the head is over the limit", headers=CLOSE
            )
            await problems.response(refused, request_id)(scope, receive, finish)
            return
        try:
            await self._app(scope, receive, finish)
        except _NotRead:
            # uvicorn closes the connection because the answer has no end.
            _log.info("the client did not read the answer to request %s in time", request_id)


def _with_common(
    headers: Iterable[tuple[bytes, bytes]], request_id: str
) -> list[tuple[bytes, bytes]]:
    """These headers and the common ones that they lack: a static file has a Cache-Control."""
    given = list(headers)
    names = {name for name, _ in given}
    extra = {**_HEADERS, REQUEST_ID_HEADER: request_id}
    common = [(name.lower().encode(), text.encode()) for name, text in extra.items()]
    return [*given, *((name, text) for name, text in common if name not in names)]


def _head_bytes(scope: Scope) -> int:
    fields = sum(len(name) + len(text) for name, text in scope["headers"])
    return fields + len(scope["raw_path"]) + len(scope["query_string"])


def _request_id(given: str | None) -> str:
    is_usable = given is not None and len(given) <= MAX_NAME and NAME_PATTERN.fullmatch(given)
    return given if given is not None and is_usable else problems.new_request_id()


class _Endpoint:
    """The routes of one path, by method."""

    def __init__(self, routes: list[Route], services: Services, *, authenticated: bool) -> None:
        self._path = routes[0].path
        self._routes = {route.method: route for route in routes}
        self._services = services
        self._authenticated = authenticated

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        http = Request(scope, receive)
        # Callers can send any method; only known ones become span names.
        method = http.method if http.method in self._routes else "HTTP"
        with self._services.memory.request() as memory:
            with server_span(method, self._path, trace_from_headers(http.headers.getlist)) as span:
                answer = await self._answer(http, scope["tenure.request_id"], span, memory)
                span.answered(answer.status_code)
            await answer(scope, receive, send)

    async def _answer(
        self, http: Request, request_id: str, span: RequestSpan, memory: RequestMemory
    ) -> Response:
        route = self._routes.get("GET" if http.method == "HEAD" else http.method)
        audit = RequestAudit(self._services.security, route, http, request_id)
        try:
            if route is None:
                raise _not_allowed(self._routes)
            if not self._authenticated:
                check_local(http, site=http.headers.get("sec-fetch-site"))
            async with in_time(self._services, is_read=True):
                await self._authenticate(route, http, audit)
            _check_version(http.headers.get(VERSION_HEADER))
            return await carry_out(
                self._services,
                RequestContext(route=route, http=http, span=span, memory=memory, audit=audit),
                path=http.path_params,
                query=http.query_params.multi_items(),
                body=partial(_body, route, self._services, http, memory),
            )
        except ClientDisconnect:
            return Response(status_code=400)  # the caller has gone
        except Exception as problem:  # every failure becomes a response
            audit.refused(problem)
            return problems.response(problem, request_id)

    async def _authenticate(self, route: Route, http: Request, audit: RequestAudit) -> None:
        if not self._authenticated:
            http.scope[KNOWN] = True
        if route.is_public or not self._authenticated:
            return
        presented = http.headers.getlist("authorization")
        audit.principal = await self._services.authenticator.principal(*presented)
        http.scope[KNOWN] = True
        audit.principal.check_route(route)


def _not_allowed(methods: Iterable[str]) -> RefusedRequest:
    return RefusedRequest(
        405,
        ProblemCode.METHOD_NOT_ALLOWED,
        "this path does not take this method",
        hint="/openapi.json describes every route",
        headers={"Allow": ", ".join(sorted(methods))},
    )


def _check_version(declared: str | None) -> None:
    """[H2]"""
    if declared is not None and declared != str(PROTOCOL_VERSION):
        raise RefusedRequest(
            400,
            ProblemCode.UNSUPPORTED_PROTOCOL,
            f"this server speaks version {PROTOCOL_VERSION} of the protocol",
            field=VERSION_HEADER,
            hint="upgrade the server, or send a version that it speaks",
        )


async def _body(route: Route, services: Services, http: Request, memory: RequestMemory) -> bytes:
    if route.request_shape is Shape.NONE:
        return b""
    sent = media_type(http)
    # A web page cannot send this type to another site without a CORS preflight. [H28]
    if route.request_shape is Shape.JSON and sent != "application/json":
        raise RefusedRequest(
            415,
            ProblemCode.UNSUPPORTED_MEDIA_TYPE,
            "the body must be JSON",
            hint="send `Content-Type: application/json`",
        )
    return await read_body(http, route.max_body_bytes, services.settings.body_within_s, memory)


def check_local(http: Request, *, site: str | None) -> None:
    """Raise unless the request is addressed to localhost and does not come from another site's
    page: a web page can make a browser send requests to 127.0.0.1, even under its own name. `site`
    is what the browser states of the page that sends it, in `Sec-Fetch-Site`: those of other ports
    are of the same site. [H28]"""
    host, origin = http.headers.get("host", ""), http.headers.get("origin")
    if not is_loopback(_host_name(http)):
        raise RefusedRequest(
            403, ProblemCode.OUT_OF_SCOPE, "this server answers requests to localhost only"
        )
    is_foreign = origin is not None and origin.partition("://")[2] != host
    if is_foreign or site in ("cross-site", "same-site"):
        raise RefusedRequest(
            403, ProblemCode.OUT_OF_SCOPE, "requests from the pages of other sites are refused"
        )


def _host_name(http: Request) -> str:
    """The name in the `Host` header, without a port."""
    host = http.headers.get("host", "")
    return host.rpartition(":")[0] if re.search(r":\d+$", host) else host


async def unknown_route(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request for a path that nothing has."""
    refused = RefusedRequest(
        404,
        ProblemCode.UNKNOWN_ROUTE,
        "no route has this path",
        hint="/openapi.json describes every route",
    )
    await problems.response(refused, scope["tenure.request_id"])(scope, receive, send)
