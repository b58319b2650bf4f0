"""The ASGI application: the table of routes, mounted.

Each request passes these steps in order: size of the head, authentication, authorisation, body and
its size, handler. `problems.response` turns every error on the way into a response.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenure.coordinator.batches import deadline_error
from tenure.core.checks import MAX_NAME, NAME_PATTERN
from tenure.protocol import PROTOCOL_VERSION, REQUEST_ID_HEADER, VERSION_HEADER
from tenure.protocol.codec import (
    Decoded,
    InvalidMessage,
    convert_text,
    decode_query,
    decode_request,
)
from tenure.protocol.hosts import is_loopback
from tenure.protocol.problem_codes import ProblemCode
from tenure.protocol.routes import PATH_FIELDS, ROUTES, Route, Shape
from tenure.server import job_routes, problems, schedule_routes, system_routes, worker_routes
from tenure.server.audit import RequestAudit
from tenure.server.calls import SMALL_BYTES, Call
from tenure.server.memory import RequestMemory
from tenure.server.principals import Principal
from tenure.server.problems import Refused
from tenure.server.services import Services
from tenure.server.settings import ServerSettings
from tenure.telemetry.tracing import RequestSpan, server_span, trace_from_headers

_log = logging.getLogger("tenure.server")

HANDLERS = {
    **worker_routes.HANDLERS,
    **job_routes.HANDLERS,
    **schedule_routes.HANDLERS,
    **system_routes.HANDLERS,
}

COORDINATOR_FIRST_S = 1.0
"""How much longer than the coordinator's time-out a request may take, so that the coordinator,
whose error says more, answers first."""

_BRACES = re.compile(r"\{(\w+)\}")
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_CLOSE = {"Connection": "close"}
_NAME = "tenure_name"


def make_app(services: Services, *, authenticated: bool) -> ASGIApp:
    """Make the application. Without authentication it only answers requests to localhost. [H28]"""
    register_url_convertor(_NAME, _Name())
    addresses: dict[str, list[Route]] = {}
    for route in ROUTES:
        addresses.setdefault(route.path, []).append(route)
    mounted = [
        _mounted(path, _Endpoint(routes, services, authenticated=authenticated))
        for path, routes in addresses.items()
    ]
    app = Starlette(routes=mounted, exception_handlers={HTTPException: _not_mounted})
    app.router.redirect_slashes = False
    return _Envelope(app, services.settings)


def _mounted(path: str, address: "_Endpoint") -> StarletteRoute:
    """Mount an endpoint at exactly its path: Starlette's `$` would allow a trailing line feed.
    [H1]"""
    route = StarletteRoute(_BRACES.sub(_converter, path), address)
    pattern = route.path_regex.pattern
    assert pattern.endswith("$")
    route.path_regex = re.compile(pattern.removesuffix("$") + r"\Z")
    return route


def _converter(found: re.Match[str]) -> str:
    """Names may contain slashes, and arrive decoded; job ids have none. [H3]"""
    return found[0] if found[1] == "job_id" else f"{{{found[1]}:{_NAME}}}"


class _Name(Convertor[str]):
    """Matches any text, even line breaks: an illegal name gets a 422, not a 404."""

    regex = "(?s:.*)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


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

        deadline_s = 0.0

        async def finish(message: Message) -> None:
            nonlocal deadline_s
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_headers(request_id)]
                deadline_s = asyncio.get_running_loop().time() + self._sent_within_s(message)
            try:
                async with asyncio.timeout_at(deadline_s):
                    await send(message)
            except TimeoutError as late:
                raise _NotRead from late

        # The parser limits heads that arrive in pieces; this limits one that arrives at once. [H43]
        if _head_bytes(scope) > self._settings.max_header_bytes:
            refused = Refused(
                400, ProblemCode.HEAD_TOO_LARGE, "the head is over the limit", headers=_CLOSE
            )
            await problems.response(refused, request_id)(scope, receive, finish)
            return
        try:
            await self._app(scope, receive, finish)
        except _NotRead:
            # uvicorn closes the connection because the answer has no end.
            _log.info("the client did not read the answer to request %s in time", request_id)

    def _sent_within_s(self, start: Message) -> float:
        """A client that does not read must not keep its answer in memory for ever. [H13]"""
        sizes = [int(text) for name, text in start["headers"] if name == b"content-length"]
        return self._settings.send_within_s + sum(sizes) / self._settings.slowest_bytes_per_s


def _headers(request_id: str) -> list[tuple[bytes, bytes]]:
    extra = {**_HEADERS, REQUEST_ID_HEADER: request_id}
    return [(name.lower().encode(), text.encode()) for name, text in extra.items()]


def _head_bytes(scope: Scope) -> int:
    fields = sum(len(name) + len(text) for name, text in scope["headers"])
    return fields + len(scope["raw_path"]) + len(scope["query_string"])


def _request_id(given: str | None) -> str:
    is_usable = given is not None and len(given) <= MAX_NAME and NAME_PATTERN.fullmatch(given)
    return given if given is not None and is_usable else problems.new_request_id()


class _Endpoint:
    """The routes of one path, by method. If each were mounted by itself, Starlette would try other
    paths when the method does not match."""

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
            with server_span(method, self._path, trace_from_headers(http.headers.getlist)) as asked:
                answer = await self._answer(http, scope["tenure.request_id"], asked, memory)
                asked.answered(answer.status_code)
            await answer(scope, receive, send)

    async def _answer(
        self, http: Request, request_id: str, asked: RequestSpan, memory: RequestMemory
    ) -> Response:
        route = self._routes.get("GET" if http.method == "HEAD" else http.method)
        audit = RequestAudit(self._services.security, route, http, request_id)
        try:
            if route is None:
                raise _not_allowed(self._routes)
            if not self._authenticated:
                check_local(http.headers.get("host", ""), http.headers.get("origin"))
            async with self._in_time(is_read=True):
                principal = await self._principal(route, http, audit)
            call = await _read(
                route, self._services, principal, http, request_id, asked, memory, audit
            )
            more_s = getattr(call.body, "wait_s", 0.0)
            async with self._in_time(is_read=route.only_reads, more_s=more_s):
                answer = await HANDLERS[route.name](call)
            audit.answered(answer.status_code)
            memory.answer(len(answer.body), can_refuse=route.only_reads)
            return answer
        except ClientDisconnect:
            return Response(status_code=400)  # the caller has gone
        except Exception as problem:  # every failure becomes a response
            audit.refused(problem)
            return problems.response(problem, request_id)

    @asynccontextmanager
    async def _in_time(self, *, is_read: bool, more_s: float = 0.0) -> AsyncIterator[None]:
        """Limit the whole request. The coordinator keeps its own time-out; this also covers the
        time before it is asked, such as the wait for a thread while all wait for the store.
        [H31]"""
        timeout_s = self._services.coordinator.timeout_s
        limit = asyncio.timeout(timeout_s + more_s + COORDINATOR_FIRST_S)
        try:
            async with limit:
                yield
        except TimeoutError as problem:
            if not limit.expired():
                raise
            raise deadline_error(timeout_s, is_known=is_read) from problem

    async def _principal(self, route: Route, http: Request, audit: RequestAudit) -> Principal:
        if route.is_public or not self._authenticated:
            return audit.principal
        shown = http.headers.get("authorization")
        audit.principal = await self._services.authenticator.principal(shown)
        audit.principal.check_route(route)
        return audit.principal


def _not_allowed(methods: Iterable[str]) -> Refused:
    return Refused(
        405,
        ProblemCode.METHOD_NOT_ALLOWED,
        "this path does not take this method",
        hint="/openapi.json describes every route",
        headers={"Allow": ", ".join(sorted(methods))},
    )


async def _read(
    route: Route,
    services: Services,
    principal: Principal,
    http: Request,
    request_id: str,
    asked: RequestSpan,
    memory: RequestMemory,
    audit: RequestAudit,
) -> Call:
    _check_version(http.headers.get(VERSION_HEADER))
    path = {
        name: convert_text(PATH_FIELDS[name], name, http.path_params[name])
        for name in route.path_fields
    }
    if "job_id" in path:
        path["job_id"] = path["job_id"].lower()
    pairs = http.query_params.multi_items()
    query = None if route.query is None else decode_query(route.query, pairs)
    if route.query is None and pairs and not route.is_public:
        raise InvalidMessage(ascii(pairs[0][0][:40])[1:-1], "unknown query parameter")
    body = await _body(route, services, http, memory)
    message, is_ijson = await _message(route, services, body)
    return Call(
        route=route,
        services=services,
        principal=principal,
        http=http,
        path=path,
        query=query,
        body=message,
        is_ijson=is_ijson,
        request_id=request_id,
        asked=asked,
        memory=memory,
        audit=audit,
        is_small=len(body) <= SMALL_BYTES,
    )


def _check_version(declared: str | None) -> None:
    """[H2]"""
    if declared is not None and declared != str(PROTOCOL_VERSION):
        raise Refused(
            400,
            ProblemCode.UNSUPPORTED_PROTOCOL,
            f"this server speaks version {PROTOCOL_VERSION} of the protocol",
            field=VERSION_HEADER,
            hint="upgrade the server, or send a version that it speaks",
        )


async def _message(route: Route, services: Services, body: bytes) -> Decoded[Any]:
    """Decode the body; a large one on a thread, not on the event loop. [H39]"""
    if route.request is None:
        return Decoded(body, is_ijson=False)
    if len(body) <= SMALL_BYTES:
        return decode_request(route.request, body)
    kind = route.request
    return await services.blocking(lambda: decode_request(kind, body))


async def _body(route: Route, services: Services, http: Request, memory: RequestMemory) -> bytes:
    if route.request_shape is Shape.NONE:
        return b""
    if http.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, ProblemCode.UNSUPPORTED_MEDIA_TYPE, "compressed bodies are not accepted")
    media_type = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    # A web page cannot send this type to another site without a CORS preflight. [H28]
    if route.request_shape is Shape.JSON and media_type != "application/json":
        raise Refused(
            415,
            ProblemCode.UNSUPPORTED_MEDIA_TYPE,
            "the body must be JSON",
            hint="send `Content-Type: application/json`",
        )
    return await _bytes(http, route.max_body_bytes, services.settings.body_within_s, memory)


async def _bytes(http: Request, most: int, within_s: float, memory: RequestMemory) -> bytes:
    """Read the body, counting its bytes: Content-Length is only a hint. [H43] [H13]"""
    declared = http.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > most:
        raise _too_large(most, http)
    body = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for piece in http.stream():
                body += piece
                if len(body) > most:
                    raise _too_large(most, http)
                memory.receive(len(piece))
    except TimeoutError as late:
        raise Refused(
            408, ProblemCode.TOO_SLOW, f"the body took longer than {within_s:g} s", headers=_CLOSE
        ) from late
    return bytes(body)


def _too_large(most: int, http: Request) -> Refused:
    """The 413 problem. Many callers write the whole body before they read the answer, and would see
    a reset instead of it, so the server reads and drops the rest for as long as a head may take.
    A caller that sent `Expect: 100-continue` has not begun to send. [H43]"""
    has_asked = "expect" in http.headers
    return Refused(
        413,
        ProblemCode.TOO_LARGE,
        f"the body is over the limit of {most} bytes",
        hint="send less at a time; put large data into an object store",
        headers=_CLOSE if has_asked else {},
    )


def check_local(host: str, origin: str | None) -> None:
    """Raise unless the request is addressed to localhost and does not come from another site's
    page: a web page can make a browser send requests to 127.0.0.1, even under its own name.
    [H28]"""
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    if not is_loopback(name):
        raise Refused(
            403, ProblemCode.OUT_OF_SCOPE, "this server answers requests to localhost only"
        )
    if origin is not None and origin.partition("://")[2] != host:
        raise Refused(
            403, ProblemCode.OUT_OF_SCOPE, "requests from the pages of other sites are refused"
        )


async def _not_mounted(http: Request, problem: Exception) -> Response:
    refused = Refused(
        404,
        ProblemCode.UNKNOWN_ROUTE,
        "no route has this path",
        hint="/openapi.json describes every route",
    )
    return problems.response(refused, http.scope["tenure.request_id"])
