"""From a route and its texts to the handler's answer, for every caller alike.

The endpoints of `/v1` and the pages of a dashboard call handlers through here, so roles, the format
of fields, time limits, memory limits and the security log are the same for both. It does not
authenticate: its caller says who asks. Bodies are read within their limits. [H43] [H62]
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tenure.core.ids import JobId
from tenure.deadlines import deadline_error
from tenure.errors import OutcomeUnknown
from tenure.protocol.codec import (
    EmbeddedBodies,
    InvalidMessage,
    convert_text,
    decode_query,
    decode_request,
)
from tenure.protocol.replies import ProblemCode
from tenure.protocol.routes import PATH_FIELDS, Route
from tenure.server import job_routes, schedule_routes, system_routes, worker_routes
from tenure.server.audit import RequestAudit
from tenure.server.calls import SMALL_BYTES, Call, Message
from tenure.server.limits import LARGE_BYTES, RequestMemory
from tenure.server.problems import Refused, busy
from tenure.server.services import Services
from tenure.server.threads import call_for
from tenure.telemetry.tracing import RequestSpan

CLOSE = {"Connection": "close"}


def media_type(http: Request) -> str:
    """The media type of the body, without parameters. Raises a 415 problem if it is compressed."""
    if http.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, ProblemCode.UNSUPPORTED_MEDIA_TYPE, "compressed bodies are not accepted")
    return http.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(http: Request, most: int, within_s: float, memory: RequestMemory) -> bytes:
    """Read the body, counting its bytes: Content-Length is only a hint. [H43] [H62]"""
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
            408, ProblemCode.TOO_SLOW, f"the body took longer than {within_s:g} s", headers=CLOSE
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
        headers=CLOSE if has_asked else {},
    )


HANDLERS = {
    **worker_routes.HANDLERS,
    **job_routes.HANDLERS,
    **schedule_routes.HANDLERS,
    **system_routes.HANDLERS,
}

COORDINATOR_FIRST_S = 1.0
"""How much longer than the coordinator's time-out a request may take, so that the coordinator,
whose error says more, answers first."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose sender is known: `audit.principal`. Its parts are texts, as sent."""

    route: Route
    http: Request
    path: Mapping[str, str]
    query: Iterable[tuple[str, str]]
    body: Callable[[], Awaitable[bytes]]
    """Reads the body; called when path and query are known to be right."""
    request_id: str
    span: RequestSpan
    memory: RequestMemory
    audit: RequestAudit
    is_encoded: bool = True
    """Whether the answer is sent. A page of this process takes the message of the response."""


async def carry_out(services: Services, asked: Asked) -> Response:
    """Check the fields, call the handler within its time limit and note what it did."""
    caller = asked.audit.principal.caller
    call_for(caller)
    asked.memory.belongs_to(caller)
    call = await _read(services, asked)
    route = asked.route
    asked.audit.asked(call.body)
    try:
        async with in_time(services, is_read=route.only_reads, more_s=call.waits_s):
            answer = await HANDLERS[route.name](call)
    except OutcomeUnknown:
        asked.audit.outcome_unknown()
        raise
    asked.audit.answered(answer.status_code)
    if isinstance(answer, Message) and asked.is_encoded:
        answer.encoded()
    asked.memory.answer(len(answer.body), can_refuse=route.only_reads)
    return answer


@asynccontextmanager
async def in_time(services: Services, *, is_read: bool, more_s: float = 0.0) -> AsyncIterator[None]:
    """Limit the whole request. The coordinator keeps its own time-out; this also covers the
    time before it is asked, such as the wait for a thread while all wait for the store.
    [H31]"""
    timeout_s = services.coordinator.timeout_s
    limit = asyncio.timeout(timeout_s + more_s + COORDINATOR_FIRST_S)
    try:
        async with limit:
            yield
    except TimeoutError as problem:
        if not limit.expired():
            raise
        raise deadline_error(timeout_s, is_known=is_read) from problem


async def _read(services: Services, asked: Asked) -> Call:
    route = asked.route
    path = {
        name: convert_text(PATH_FIELDS[name], name, asked.path[name]) for name in route.path_fields
    }
    if "job_id" in path:
        path["job_id"] = path["job_id"].lower()
    pairs = list(asked.query)
    query = None if route.query is None else decode_query(route.query, pairs)
    if route.query is None and pairs and not route.is_public:
        raise InvalidMessage(ascii(pairs[0][0][:40])[1:-1], "unknown query parameter")
    body = await asked.body()
    message = body if route.request is None else await _message(services, asked, path, body)
    return Call(
        route=route,
        services=services,
        principal=asked.audit.principal,
        http=asked.http,
        path=path,
        parameters=query,
        body=message,
        bodies_are_checked=len(body) > LARGE_BYTES,
        request_id=asked.request_id,
        asked=asked.span,
        memory=asked.memory,
        audit=asked.audit,
        is_small=len(body) <= SMALL_BYTES,
        is_encoded=asked.is_encoded,
    )


async def _message(
    services: Services, asked: Asked, path: Mapping[str, str], body: bytes
) -> msgspec.Struct:
    """Decode the body; a large one on a thread, not on the event loop. [H39] The payloads, results
    and checkpoints of a very large one are checked here, those of others by the core. [H89]"""
    kind = asked.route.request
    assert kind is not None
    if len(body) <= SMALL_BYTES:
        small: msgspec.Struct = decode_request(kind, body)
        return small
    message: msgspec.Struct = await services.blocking(lambda: decode_request(kind, body))
    if len(body) > LARGE_BYTES and await _may_hold_lease(services, asked, path, message):
        await _check_bodies(services, asked.memory, message)
    return message


async def _may_hold_lease(
    services: Services, asked: Asked, path: Mapping[str, str], message: msgspec.Struct
) -> bool:
    """Whether a request under a lease of the job in its path can be carried out. A lease that is
    not the job's now never is again: the core refuses the request, whatever its payloads are, and
    they are not parsed. [H89]"""
    lease_id = getattr(message, "lease_id", None)
    if lease_id is None or "job_id" not in path:
        return True
    job_id = JobId(path["job_id"])
    store = services.coordinator.store
    job = (await services.blocking(lambda: store.jobs.read([job_id], bodies=False))).get(job_id)
    actor = asked.audit.principal.actor(asked.route)
    return job is not None and job.lease_id == lease_id and job.principal == actor


async def _check_bodies(services: Services, memory: RequestMemory, message: msgspec.Struct) -> None:
    """Check the payloads, results and checkpoints of a large request, one by one and after those of
    other large requests. Memory is taken when the turn has come: requests that wait for the turn
    must not wait for the memory of each other. [H89]"""
    limits = services.coordinator.limits
    try:
        async with asyncio.timeout(services.settings.body_within_s) as wait:
            async with services.parsing.turn() as run:
                wait.reschedule(None)
                found = await run(lambda: EmbeddedBodies(message, limits))
                with memory.parsing(found.parsing_bytes):
                    await run(found.check)
    except TimeoutError as late:
        raise busy() from late
