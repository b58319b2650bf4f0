"""Handlers of the routes about queues, workers and the server itself."""

from functools import cache
from typing import Any

from msgspec import UNSET, UnsetType
from starlette.responses import Response

from tenure.core.ids import Kind, QueueName, WorkerId
from tenure.core.instants import Instant
from tenure.core.kind_settings import KindChange
from tenure.core.policy import Policy
from tenure.core.rates import Rate, parse_rate
from tenure.core.validation import check_declared_policy
from tenure.core.views.dead_letter_groups import DeadLetterGroupFilter
from tenure.core.views.event_counts import DEFAULT_SPAN, EventSpan
from tenure.core.views.events import (
    EventFilter,
    EventPosition,
    TailedEvent,
    TailFilter,
    parse_event_key,
    parse_type_filter,
)
from tenure.core.views.overview import OverviewFilter
from tenure.core.workers import FIRST_WORKER, ListedWorker, parse_worker_key
from tenure.errors import InvalidInput
from tenure.protocol import records, replies, requests
from tenure.protocol.codec import encode
from tenure.protocol.fields import moment, optional_instant
from tenure.protocol.openapi import openapi
from tenure.protocol.translation import to_core, to_wire
from tenure.server.calls import Handler, ResponseInPieces, ServerCall, answer
from tenure.server.limits import workers_named
from tenure.server.problems import RefusedRequest, not_ready, shutting_down
from tenure.telemetry.metrics import CONTENT_TYPE

COUNT_BYTES = 256
"""About how much memory one number of the stats takes."""

QUEUE_BYTES = 512
WORKER_BYTES = 1 << 10
NAME_BYTES = 64
"""About how much memory a queue, a worker without its names, and a name without its text take."""

QUEUES_AT_ONCE = 500
WORKERS_AT_ONCE = 50
"""Rows that are read and counted at a time. A worker may have 64 KiB of names."""


async def queues(call: ServerCall) -> Response:
    """List queues within the caller's scope."""
    query, namespace = call.query(requests.QueuesQuery), call.namespace()

    found, next_after = await call.page(
        lambda after, limit: call.store.settings.queues(namespace, after=after, limit=limit),
        str(query.after or ""),
        key=lambda queue: queue.name,
        limit=query.limit,
        at_once=QUEUES_AT_ONCE,
        sees=lambda queue: call.principal.sees_queue(queue.name),
        size_of=lambda queue: QUEUE_BYTES,
    )
    return await call.list_answer(
        replies.QueuesReply, records.queue_record, found, next_after=next_after
    )


async def put_queue(call: ServerCall) -> Response:
    """Pause, resume or limit a queue, by the route and the message."""
    name, namespace = QueueName(call.path["queue"]), call.namespace()
    call.principal.check_queues([name])
    wanted: dict[str, Any] = {"paused": None, "limit": None, **call.route.sets}
    if isinstance(call.body, requests.LimitMessage):
        wanted |= _limits(call.body)
    await call.services.namespace_limits.check_queues(namespace, [name])
    state = await call.services.blocking(
        lambda: call.store.settings.put_queue(namespace, name, **wanted)
    )
    call.services.waiting_claims.enqueued(namespace, [name])
    return answer(records.queue_record(state))


def _limits(body: requests.LimitMessage) -> dict[str, Any]:
    if body.rate is UNSET:
        if body.burst is not None:
            raise InvalidInput("burst", "belongs to a rate", hint="give both: rate and burst")
        if body.limit is None:
            raise InvalidInput("limit", "is missing, and so is rate", hint="give one of them")
        return {"limit": body.limit}
    return {"limit": body.limit, "rate": _rate(body.rate, body.burst)}


def _rate(rate: str | UnsetType | None, burst: int | None) -> Rate | UnsetType | None:
    if rate is not None and rate is not UNSET:
        return parse_rate("rate", rate, burst)
    if burst is not None:
        raise InvalidInput("burst", "belongs to a rate", hint="give both: rate and burst")
    return rate


async def kinds(call: ServerCall) -> Response:
    """List what is set for kinds within the caller's scope."""
    namespace = call.namespace()
    found = await call.services.listing(lambda: call.store.settings.kinds(namespace))
    seen = [each for each in found if call.principal.sees_kind(each.kind)]
    return await call.list_answer(replies.KindsReply, records.kind_record, seen)


async def put_kind(call: ServerCall) -> Response:
    """Set what holds for a kind; a worker declares it, which writes only what is new. [RL6]"""
    kind, namespace = Kind(call.path["kind"]), call.namespace()
    only_new = call.route.name == "declare-kind"
    call.principal.check_kinds([kind])
    body: requests.KindMessage = call.body
    given = (body.rate, body.concurrency_limit, body.policy)
    if not only_new and all(each is UNSET for each in given):
        hint = "give one of them"
        problem = "is missing, as are concurrency_limit and policy"
        raise InvalidInput("rate", problem, hint=hint)
    policy: Policy | UnsetType | None = None
    if isinstance(body.policy, requests.PolicyMessage):
        policy = to_core(Policy, body.policy)
        check_declared_policy(policy, call.coordinator.limits.lease)
    else:
        policy = body.policy
    change = KindChange(
        kind=kind,
        rate=_rate(body.rate, body.burst),
        concurrency_limit=body.concurrency_limit,
        policy=policy,
    )
    await call.services.namespace_limits.check_kind(namespace, kind)
    kept = await call.services.blocking(
        lambda: call.store.settings.put_kind(namespace, change, only_new=only_new)
    )
    call.services.waiting_claims.settings_changed(namespace)
    return answer(records.kind_record(kept))


async def workers(call: ServerCall) -> Response:
    """List workers within the caller's scope."""
    query, namespace = call.query(requests.WorkersQuery), call.namespace()
    found, next_key = await call.page(
        lambda after, limit: call.store.workers.page(namespace, after=after, limit=limit),
        FIRST_WORKER if query.after is None else parse_worker_key(query.after),
        key=lambda worker: worker.key,
        limit=query.limit,
        at_once=WORKERS_AT_ONCE,
        sees=call.principal.sees_worker,
        size_of=_worker_bytes,
    )
    now = await call.services.now()

    def record(worker: ListedWorker) -> records.WorkerRecord:
        in_part = not call.principal.decides_worker(worker)
        return records.worker_record(call.principal.seen_of(worker), now=now, in_part=in_part)

    next_after = None if next_key is None else next_key.text
    return await call.list_answer(replies.WorkersReply, record, found, next_after=next_after)


def _worker_bytes(worker: ListedWorker) -> int:
    """About how much memory a worker takes."""
    names = (*worker.queues, *worker.kinds, *(worker.schedules or ()))
    return WORKER_BYTES + sum(NAME_BYTES + len(name) for name in names)


async def log(call: ServerCall) -> Response:
    """List events of all jobs within the caller's scope. [E9]"""
    query = call.query(requests.LogQuery)
    wanted = to_core(
        EventFilter,
        query,
        namespace=call.namespace(),
        types=tuple(map(parse_type_filter, query.type)),
        queues=call.principal.queues,
        kinds=call.principal.kinds,
        newest_first=not query.oldest_first,
        after=None if query.after is None else parse_event_key(query.after),
    )
    page = await call.events(wanted)
    next_after = None if page.next is None else page.next.text
    return await call.list_answer(
        replies.LogReply, call.event_record, page.events, next_after=next_after
    )


async def tail(call: ServerCall) -> Response:
    """Follow the events of all jobs within the caller's scope. [E10]"""
    query = call.query(requests.TailQuery)
    wanted = to_core(
        TailFilter,
        query,
        namespace=call.namespace(),
        types=tuple(map(parse_type_filter, query.type)),
        queues=call.principal.queues,
        kinds=call.principal.kinds,
        after=None if query.after is None else EventPosition(query.after),
    )
    page = await call.services.followers.follow(
        call.store,
        wanted,
        principal=call.principal,
        count_memory=call.count_events,
        wait_s=query.wait_s,
    )
    delay = None
    if not page.events and call.principal.sees_store:
        delay = await call.services.listing(call.store.events.delay)

    def record(found: TailedEvent) -> replies.FollowedEvent:
        return replies.FollowedEvent(position=found.position, event=call.event_record(found.event))

    return await call.list_answer(
        replies.TailReply,
        record,
        page.events,
        next_after=page.next,
        is_end=page.is_end,
        delayed_by=None if delay is None else to_wire(replies.TailDelayRecord, delay),
    )


async def stats(call: ServerCall) -> Response:
    """Count the events of a span of time within the caller's scope. [OB25]"""
    query, namespace = call.query(requests.StatsQuery), call.namespace()
    since, until = optional_instant(query.since), optional_instant(query.until)
    if until is None:
        until = await call.services.now()
    span = EventSpan(
        namespace=namespace,
        since=Instant(until - DEFAULT_SPAN) if since is None else since,
        until=until,
    )
    found = await call.services.listing(lambda: call.store.events.count(span))
    call.memory.read(COUNT_BYTES * len(found.counts))
    sees = call.principal.sees_work
    counts = tuple(each for each in found.counts if sees(each.queue, each.kind))
    reply = replies.StatsReply(since=moment(span.since), until=moment(found.until), counts=counts)
    return await call.large_answer(lambda: reply)


async def overview(call: ServerCall) -> Response:
    """What the jobs within the caller's scope are doing; callers who may see the same share the
    answer. [OB30]"""
    wanted = to_core(OverviewFilter, call.query(requests.OverviewQuery), **_scope(call))
    found = await call.services.overview(wanted)
    return await call.large_answer(lambda: to_wire(records.OverviewReply, found))


async def dead_letter_groups(call: ServerCall) -> Response:
    """Unresolved dead letters by kind and error, within the caller's scope. [OB31]"""
    query = call.query(requests.DeadLetterGroupsQuery)
    wanted = to_core(DeadLetterGroupFilter, query, **_scope(call))
    found = await call.services.listing(lambda: call.store.views.dead_letter_groups(wanted))
    return await call.large_answer(lambda: to_wire(records.DeadLetterGroupsReply, found))


def _scope(call: ServerCall) -> dict[str, Any]:
    """The namespace, queues and kinds that a query is about: the ones that it names, or else all
    of the caller's. [H41]"""
    query, principal = call.parameters, call.principal
    principal.check_queues(query.queue)
    principal.check_kinds(query.kind)
    return {
        "namespace": call.namespace(),
        "queues": query.queue or principal.queues,
        "kinds": query.kind or principal.kinds,
    }


async def drain(call: ServerCall) -> Response:
    """Ask a worker to finish and stop."""
    worker, namespace = WorkerId(call.path["worker"]), call.namespace()
    named = await call.services.blocking(lambda: workers_named(call.store, namespace, worker))
    if not any(map(call.principal.sees_worker, named)):
        raise RefusedRequest(
            404, replies.ProblemCode.UNKNOWN_WORKER, f"there is no worker {worker}"
        )
    for each in named:
        call.principal.check_worker(each)
    await call.services.blocking(lambda: call.store.workers.drain(namespace, worker))
    return answer(replies.DrainReply(worker=worker))


async def time(call: ServerCall) -> Response:
    """Read the store's clock."""
    now = await call.services.blocking(call.store.now)
    return answer(replies.TimeReply(now=moment(now)))


async def description(call: ServerCall) -> Response:
    """The OpenAPI description."""
    return ResponseInPieces(
        await call.services.blocking(_description), 200, media_type="application/json"
    )


@cache
def _description() -> bytes:
    return encode(openapi())


async def metrics(call: ServerCall) -> Response:
    """The metrics, for Prometheus."""
    namespace = call.principal.measured_namespace()
    text = await call.services.measuring(lambda: call.services.metrics(namespace))
    return Response(text, 200, media_type=CONTENT_TYPE)


async def healthz(call: ServerCall) -> Response:
    """Say that the server is alive."""
    return answer(replies.HealthReply(status="ok"))


async def readyz(call: ServerCall) -> Response:
    """Say whether the server is ready: the store can be written, and the server is not shutting
    down. Answered from memory, without asking the store. [H88]"""
    if call.services.is_stopping:
        raise shutting_down()
    if not call.coordinator.writability.is_writable:
        raise not_ready()
    return answer(replies.HealthReply(status="ready"))


HANDLERS: dict[str, Handler] = {
    "queues": queues,
    "pause": put_queue,
    "resume": put_queue,
    "limit": put_queue,
    "kinds": kinds,
    "set-kind": put_kind,
    "declare-kind": put_kind,
    "workers": workers,
    "log": log,
    "tail": tail,
    "stats": stats,
    "overview": overview,
    "dead-letter-groups": dead_letter_groups,
    "drain": drain,
    "time": time,
    "openapi": description,
    "metrics": metrics,
    "healthz": healthz,
    "readyz": readyz,
}
