"""Tracing: one trace from the enqueue through the handler to what it enqueues (W3C Trace Context).

A job's `trace_id` is the `traceparent` of the code that enqueued it. Its attempts run in that
trace, and so do the jobs that its handler enqueues and the requests that it makes. With
opentelemetry-api installed there are spans for the enqueue, for each attempt (linked to the
enqueue), for each request to a server and for its answer. Without it no ids are made up: given
ones are passed on. [OB3] [OB4]

A worker's request is often about many jobs. It is in their trace if they all have the same one, and
carries their correlation id if that is the same; its body names the jobs anyway. [OB6]
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote, unquote

import msgspec

from tenure.core.checks import check_correlation_id
from tenure.core.ids import traceparent_of
from tenure.errors import InvalidInput
from tenure.protocol import CORRELATION_HEADER, TRACEPARENT_HEADER

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider


class Labelled(Protocol):
    """A job, as far as traces are concerned."""

    @property
    def trace_id(self) -> str | None:
        """A traceparent, or any label of the producer's."""

    @property
    def correlation_id(self) -> str | None:
        """What the producer gave to jobs that belong together."""


class TraceContext(msgspec.Struct, frozen=True, kw_only=True):
    """The trace and correlation id of the attempt or request that runs here, if one does."""

    traceparent: str | None = None
    label: str | None = None
    """The attempt's trace id, if that is not a traceparent: only jobs and log lines carry it."""
    correlation_id: str | None = None

    @property
    def trace_id(self) -> str | None:
        """The trace id of jobs that are enqueued here: that of the attempt is used before that of a
        span, which could not be found under the attempt's label. [OB4]"""
        return self.traceparent if self.label is None else self.label


NO_TRACE = TraceContext()
_current: ContextVar[TraceContext] = ContextVar("tenure_traced", default=NO_TRACE)


def current() -> TraceContext:
    """The trace that code here runs in: the current span's, else the attempt's or request's."""
    traced = _current.get()
    if not has_opentelemetry():
        return traced
    here = _current_span()().get_span_context()
    if not here.is_valid:
        return traced
    return msgspec.structs.replace(traced, traceparent=_as_traceparent(here))


def enqueue_span(kind: str, queue: str) -> TraceContext:
    """The trace of a job that is enqueued here; makes a span for the enqueue."""
    traced = current()
    if not _makes_spans():
        return traced
    from opentelemetry.trace import SpanKind

    span = _tracer().start_span(
        f"enqueue {kind}",
        kind=SpanKind.PRODUCER,
        attributes={"messaging.system": "tenure", "messaging.destination.name": queue},
    )
    span.end()
    made = _as_traceparent(span.get_span_context())
    return traced if made is None else msgspec.structs.replace(traced, traceparent=made)


@contextmanager
def attempt_span(
    *, job_id: str, kind: str, queue: str, attempt: int, traced: TraceContext
) -> Iterator[str | None]:
    """Run an attempt in its trace; yields the traceparent to pass on."""
    if not _is_traced(traced):
        with use_trace(traced):
            yield traced.traceparent
        return
    from opentelemetry.trace import Link, SpanKind

    enqueued = None if traced.traceparent is None else _as_context(traced.traceparent)
    with _tracer().start_as_current_span(
        f"run {kind}",
        context=_within(enqueued),
        kind=SpanKind.CONSUMER,
        links=[] if enqueued is None else [Link(enqueued)],
        attributes={
            "messaging.system": "tenure",
            "messaging.destination.name": queue,
            "messaging.message.id": job_id,
            "tenure.attempt": attempt,
            **_correlated(traced),
        },
    ) as span:
        here = _as_traceparent(span.get_span_context()) or traced.traceparent
        with use_trace(msgspec.structs.replace(traced, traceparent=here)):
            yield here


def trace_of_jobs(jobs: Iterable[Labelled]) -> TraceContext:
    """The trace of a request about these jobs, if it is the only one that they have, and likewise
    their correlation id. [OB6]"""
    traces, ids = set[str | None](), set[str | None]()
    for job in jobs:
        traces.add(traceparent_of(job.trace_id))
        ids.add(job.correlation_id)
    return TraceContext(traceparent=_only(traces), correlation_id=_only(ids))


def _only(found: set[str | None]) -> str | None:
    found.discard(None)
    return found.pop() if len(found) == 1 else None


@contextmanager
def client_span(method: str, path: str) -> Iterator["RequestSpan"]:
    """A span for a request to a server, which carries the span's traceparent."""
    with _request_span(method, path, current(), "CLIENT", "url.template") as (inside, span):
        yield RequestSpan(inside, span)


@contextmanager
def server_span(method: str, path: str, caller: TraceContext) -> Iterator["RequestSpan"]:
    """A span for answering a request, in the caller's trace."""
    with (
        _request_span(method, path, caller, "SERVER", "http.route") as (inside, span),
        use_trace(inside),
    ):
        yield RequestSpan(inside if caller.traceparent is None else caller, span, named=caller)


@contextmanager
def _request_span(
    method: str, path: str, traced: TraceContext, kind: str, path_attribute: str
) -> Iterator[tuple[TraceContext, "Span | None"]]:
    """A span in this trace, and the trace inside the span."""
    if not _is_traced(traced):
        yield traced, None
        return
    from opentelemetry.trace import SpanKind

    with _tracer().start_as_current_span(
        f"{method} {path}",
        context=_within(None if traced.traceparent is None else _as_context(traced.traceparent)),
        kind=SpanKind[kind],
        attributes={
            "http.request.method": method,
            path_attribute: path,
            **_correlated(traced),
        },
    ) as span:
        here = _as_traceparent(span.get_span_context()) or traced.traceparent
        yield msgspec.structs.replace(traced, traceparent=here), span


class RequestSpan:
    """The span of a request, which gets facts that are known only later.

    `traced` is the trace that the request carries. On the server it is the trace of the jobs that
    the request enqueues: the caller's, if it named one, else that of the server's own span. [OB3]
    `named` is only what the caller named: a follow-up has its parent's trace otherwise. [OB4]
    """

    def __init__(
        self,
        traced: TraceContext,
        span: "Span | None" = None,
        *,
        named: TraceContext = NO_TRACE,
    ) -> None:
        self.traced = traced
        self.named = named
        self._span = span

    def answered(self, status: int) -> None:
        """Record the status of the answer."""
        if self._span is None:
            return
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._span.set_status(StatusCode.ERROR)


@contextmanager
def use_trace(traced: TraceContext) -> Iterator[None]:
    """Run the block in this trace."""
    token = _current.set(traced)
    try:
        yield
    finally:
        _current.reset(token)


# --- headers -------------------------------------------------------------------------------------


def trace_headers(traced: TraceContext) -> dict[str, str]:
    """The headers of a request in this trace. The correlation id is percent-encoded: it may be any
    text, a header only ASCII. [OB6]"""
    headers = {}
    if traced.traceparent is not None:
        headers[TRACEPARENT_HEADER] = traced.traceparent
    if traced.correlation_id is not None:
        headers[CORRELATION_HEADER] = quote(traced.correlation_id, safe=":/@")
    return headers


def trace_from_headers(values_of: Callable[[str], Sequence[str]]) -> TraceContext:
    """The trace that a request's headers name. A malformed header is ignored. [OB6]"""
    return TraceContext(
        traceparent=traceparent_of(",".join(values_of(TRACEPARENT_HEADER))),
        correlation_id=_id_in(",".join(values_of(CORRELATION_HEADER))),
    )


_ENCODED = re.compile(r"(?:[!-$&-+\--~]|%[0-9A-Fa-f]{2})+")
"""Visible ASCII without a comma, which separates values of a header."""


def _id_in(text: str) -> str | None:
    if _ENCODED.fullmatch(text.strip()) is None:
        return None
    try:
        found = unquote(text.strip(), errors="strict")
        check_correlation_id(CORRELATION_HEADER, found)
    except (UnicodeDecodeError, InvalidInput):
        return None
    return found


# --- OpenTelemetry -------------------------------------------------------------------------------


@cache
def has_opentelemetry() -> bool:
    """Whether opentelemetry-api is installed."""
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.trace") is not None


def _makes_spans() -> bool:
    """Whether OpenTelemetry has a tracer provider. Spans without one are recorded nowhere and cost
    an attempt 20 µs, a third of what a job that does nothing costs its child."""
    if not has_opentelemetry():
        return False
    proxy_tracer, proxy_provider, tracer_provider = _proxies()
    return not isinstance(_tracer(), proxy_tracer) or not isinstance(
        tracer_provider(), proxy_provider
    )


def _is_traced(traced: TraceContext) -> bool:
    """Whether code in this trace has to find it in OpenTelemetry's context, too: a trace that was
    given is passed on by instrumented libraries, even if no span of ours is recorded."""
    return has_opentelemetry() and (traced.traceparent is not None or _makes_spans())


@cache
def _proxies() -> tuple[type, type, "Callable[[], TracerProvider]"]:
    """What OpenTelemetry has in place of a tracer and a provider until it gets one, and the
    function that returns the provider."""
    from opentelemetry.trace import ProxyTracer, ProxyTracerProvider, get_tracer_provider

    return ProxyTracer, ProxyTracerProvider, get_tracer_provider


@cache
def _current_span() -> "Callable[[], Span]":
    """Cached: an import statement takes a microsecond each time."""
    from opentelemetry.trace import get_current_span

    return get_current_span


@cache
def _tracer() -> "Tracer":
    """Cached: looking it up is most of the cost of a span that is not recorded."""
    from opentelemetry.trace import get_tracer

    return get_tracer("tenure")


def _as_traceparent(context: "SpanContext") -> str | None:
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _within(context: "SpanContext | None") -> "Context | None":
    """The context of a span in this one; None means the current one."""
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    return None if context is None else set_span_in_context(NonRecordingSpan(context))


def _correlated(traced: TraceContext) -> dict[str, str]:
    """The attribute of a span for its correlation id."""
    found = traced.correlation_id
    return {} if found is None else {"messaging.message.conversation_id": found}


def _as_context(traceparent: str) -> "SpanContext":
    from opentelemetry.trace import SpanContext, TraceFlags

    _, trace, span, flags = traceparent.split("-")
    return SpanContext(
        trace_id=int(trace, 16),
        span_id=int(span, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(flags, 16)),
    )
