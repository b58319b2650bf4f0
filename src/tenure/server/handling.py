"""From a route and its texts to the handler's answer, for every caller alike.

The endpoints of `/v1` and the pages of a dashboard call handlers through here, so roles, the format
of fields, time limits, memory limits and the security log are the same for both. It does not
authenticate: its caller names the principal. Bodies are read within their limits. [H43] [H62]
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

import msgspec
from msgspec.structs import asdict
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
from tenure.server.calls import SMALL_BYTES, Message, RequestContext, ServerCall
from tenure.server.limits import LARGE_BYTES, RequestMemory
from tenure.server.problems import RefusedRequest, busy
from tenure.server.services import Services
from tenure.server.threads import call_for

CLOSE = {"Connection": "close"}


def media_type(http: Request) -> str:
    """The media type of the body, without parameters. Raises a 415 problem if it is compressed."""
    if http.headers.get("content-encoding", "identity").lower() != "identity":
        raise RefusedRequest(
            415, ProblemCode.UNSUPPORTED_MEDIA_TYPE, "compressed bodies are not accepted"
        )
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
        raise RefusedRequest(
            408, ProblemCode.TOO_SLOW, f"the body took longer than {within_s:g} s", headers=CLOSE
        ) from late
    return bytes(body)


def _too_large(most: int, http: Request) -> RefusedRequest:
    """The 413 problem. Many callers write the whole body before they read the answer, and would see
    a reset instead of it, so the server reads and drops the rest for as long as a head may take.
    A caller that sent `Expect: 100-continue` has not started to send. [H43]"""
    has_asked = "expect" in http.headers
    return RefusedRequest(
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
whose error has more detail, answers first."""


async def carry_out(
    services: Services,
    context: RequestContext,
    *,
    path: Mapping[str, str],
    query: Iterable[tuple[str, str]],
    body: Callable[[], Awaitable[bytes]],
) -> Response:
    """Check the fields, call the handler within its time limit and log what it did. Path and query
    are texts, as sent; `body` reads the body, and is called when they are known to be right."""
    caller = context.audit.principal.caller
    call_for(caller)
    context.memory.belongs_to(caller)
    route = context.route
    typed_path, parameters = _typed_path(route, path), _query(route, list(query))
    sent = await body()
    message: object = sent
    if route.request is not None:
        message = await _message(services, context, typed_path, sent)
    call = ServerCall(
        **asdict(context),
        services=services,
        path=typed_path,
        parameters=parameters,
        body=message,
        is_small=len(sent) <= SMALL_BYTES,
        bodies_are_checked=len(sent) > LARGE_BYTES,
    )
    call.audit.requested(call.body)
    try:
        async with in_time(services, is_read=route.only_reads, more_s=call.waits_s):
            answer = await HANDLERS[route.name](call)
    except OutcomeUnknown:
        call.audit.outcome_unknown()
        raise
    call.audit.answered(answer.status_code)
    if isinstance(answer, Message) and call.is_encoded:
        answer.encoded()
    call.memory.answer(len(answer.body), can_refuse=route.only_reads)
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


def _typed_path(route: Route, path: Mapping[str, str]) -> dict[str, str]:
    typed: dict[str, str] = {
        name: convert_text(PATH_FIELDS[name], name, path[name]) for name in route.path_fields
    }
    if "job_id" in typed:
        typed["job_id"] = typed["job_id"].lower()
    return typed


def _query(route: Route, pairs: list[tuple[str, str]]) -> msgspec.Struct | None:
    if route.query is not None:
        query: msgspec.Struct = decode_query(route.query, pairs)
        return query
    if pairs and not route.is_public:
        raise InvalidMessage(ascii(pairs[0][0][:40])[1:-1], "unknown query parameter")
    return None


async def _message(
    services: Services, context: RequestContext, path: Mapping[str, str], body: bytes
) -> msgspec.Struct:
    """Decode the body; a large one on a thread, not on the event loop. [H39] The payloads, results
    and checkpoints of a very large one are checked here, those of others by the core. [H89]"""
    kind = context.route.request
    assert kind is not None
    if len(body) <= SMALL_BYTES:
        small: msgspec.Struct = decode_request(kind, body)
        return small
    message: msgspec.Struct = await services.blocking(lambda: decode_request(kind, body))
    if len(body) > LARGE_BYTES and await _may_hold_lease(services, context, path, message):
        await _check_bodies(services, context.memory, message)
    return message


async def _may_hold_lease(
    services: Services, context: RequestContext, path: Mapping[str, str], message: msgspec.Struct
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
    actor = context.audit.principal.actor(context.route)
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
