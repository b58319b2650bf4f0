"""Tracing: one trace from the enqueue through the handler to what it enqueues (W3C Trace Context).

A job's `trace_id` is the `traceparent` of the code that enqueued it. Its attempts run in that
trace, and so do the jobs that its handler enqueues and the requests that it makes. With
opentelemetry-api installed there are spans for the enqueue, for each attempt (linked to the
enqueue), for each request to a server and for its answer. Without it no ids are made up: those
given are passed on. [OB3] [OB4]

A worker's request is often about many jobs. A request about one job is in that job's trace. A span
has one parent, so a request about several jobs has a trace of its own, with links to theirs. Its
headers name the traces and correlation ids of its jobs. [OB6]
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
from tenure.protocol import CORRELATION_HEADER, TRACEPARENT_HEADER, TRACES_HEADER

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

MAX_NAMED = 100
"""How many jobs of a batch are remembered with their traces and ids."""
MAX_TOLD = 32
"""The jobs of a batch that its headers name. With them and the longest ids they have 7 KiB: the
head that the strictest proxies let pass has 8, and a server's own limit is twice that. [H43]"""
MAX_IDS_BYTES = 5 << 10
"""The correlation ids in a header. Two of the longest fit, so that several never look like one."""


class Labelled(Protocol):
    """A job, as far as traces are concerned."""

    @property
    def trace_id(self) -> str | None:
        """A traceparent, or any label of the producer's."""

    @property
    def correlation_id(self) -> str | None:
        """What the producer gave to jobs that belong together."""


class TraceContext(msgspec.Struct, frozen=True, kw_only=True):
    """The trace and correlation ids of the attempt or request that runs here, if one does."""

    traceparent: str | None = None
    label: str | None = None
    """The attempt's trace id, if that is not a traceparent: only jobs and log lines carry it."""
    correlation_ids: tuple[str, ...] = ()
    """The attempt's own, or the ids of the jobs that the request is about, without duplicates."""
    traces: tuple[str, ...] = ()
    """The traces of the jobs that a request is about; empty for an attempt."""

    @property
    def correlation_id(self) -> str | None:
        """The correlation id, if there is exactly one."""
        return self.correlation_ids[0] if len(self.correlation_ids) == 1 else None

    @property
    def trace_id(self) -> str | None:
        """The trace id of jobs that are enqueued here: that of the attempt goes before that of a
        span, which could not be found under the attempt's label. [OB4]"""
        return self.traceparent if self.label is None else self.label


NO_TRACE = TraceContext()
_current: ContextVar[TraceContext] = ContextVar("tenure_traced", default=NO_TRACE)


def current() -> TraceContext:
    """The trace that code here runs in: the current span's, else the attempt's or request's."""
    traced = _current.get()
    if not has_opentelemetry():
        return traced
    here = _as_traceparent(_current_span()().get_span_context())
    return traced if here is None else msgspec.structs.replace(traced, traceparent=here)


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
    from opentelemetry.trace import SpanKind

    with _tracer().start_as_current_span(
        f"run {kind}",
        context=_parent(traced.traceparent),
        kind=SpanKind.CONSUMER,
        links=_links(filter(None, [traced.traceparent])),
        attributes={
            "messaging.system": "tenure",
            "messaging.destination.name": queue,
            "messaging.message.id": job_id,
            "tenure.attempt": attempt,
            **_correlated(traced.correlation_ids),
        },
    ) as span:
        here = _as_traceparent(span.get_span_context()) or traced.traceparent
        with use_trace(msgspec.structs.replace(traced, traceparent=here)):
            yield here


def trace_of_jobs(jobs: Iterable[Labelled]) -> TraceContext:
    """The trace of a request about these jobs. [OB6]"""
    labels = [(job.trace_id, job.correlation_id) for job in jobs]
    traces = tuple(dict.fromkeys(filter(None, (traceparent_of(trace) for trace, _ in labels))))
    ids = tuple(dict.fromkeys(each for _, each in labels if each is not None))
    return TraceContext(
        traceparent=traces[0] if len(traces) == 1 else None,
        correlation_ids=ids[:MAX_NAMED],
        traces=traces[:MAX_NAMED],
    )


@contextmanager
def client_span(method: str, path: str) -> Iterator["RequestSpan"]:
    """A span for a request to a server, which carries the span's traceparent."""
    with _request_span(method, path, current(), "CLIENT", "url.template") as (inside, span):
        yield RequestSpan(inside, span)


@contextmanager
def server_span(method: str, path: str, told: TraceContext) -> Iterator["RequestSpan"]:
    """A span for answering a request, in the caller's trace."""
    with (
        _request_span(method, path, told, "SERVER", "http.route") as (inside, span),
        use_trace(inside),
    ):
        yield RequestSpan(inside if told.traceparent is None else told, span, named=told)


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
        context=_parent(traced.traceparent),
        kind=SpanKind[kind],
        links=_links(traced.traces),
        attributes={
            "http.request.method": method,
            path_attribute: path,
            **_correlated(traced.correlation_ids),
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

    def about(self, jobs: Iterable[Labelled]) -> None:
        """Record the jobs that the request is about, as links and attributes."""
        if self._span is None or not self._span.is_recording():
            return
        found = trace_of_jobs(jobs)
        for link in _links(found.traces):
            self._span.add_link(link.context)
        self._span.set_attributes(_correlated(found.correlation_ids))


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
    """The headers of a request in this trace, as many jobs as there is room for. [OB6]"""
    headers = {}
    if traced.traceparent is not None:
        headers[TRACEPARENT_HEADER] = traced.traceparent
    if len(traced.traces) > 1:
        headers[TRACES_HEADER] = ",".join(traced.traces[:MAX_TOLD])
    if traced.correlation_ids:
        headers[CORRELATION_HEADER] = _written(traced.correlation_ids)
    return headers


def trace_from_headers(values_of: Callable[[str], Sequence[str]]) -> TraceContext:
    """The trace that a request's headers name. A malformed header is ignored as a whole. [OB6]"""
    return TraceContext(
        traceparent=traceparent_of(",".join(values_of(TRACEPARENT_HEADER))),
        correlation_ids=_ids_in(",".join(values_of(CORRELATION_HEADER))),
        traces=_traces_in(",".join(values_of(TRACES_HEADER))),
    )


_MALFORMED = re.compile(r"[^\t -~]|%(?![0-9A-Fa-f]{2})")


def _written(ids: Sequence[str]) -> str:
    """Percent-encoded: an id may be any text, a header only ASCII."""
    text = quote(ids[0], safe=":/@")
    for each in ids[1:MAX_TOLD]:
        longer = f"{text},{quote(each, safe=':/@')}"
        if len(longer) > MAX_IDS_BYTES:
            break
        text = longer
    return text


def _ids_in(text: str) -> tuple[str, ...]:
    if _MALFORMED.search(text) is not None:
        return ()
    try:
        ids = tuple(unquote(each, errors="strict") for each in _listed(text))
        for each in ids:
            check_correlation_id(CORRELATION_HEADER, each)
    except (UnicodeDecodeError, InvalidInput):
        return ()
    return tuple(dict.fromkeys(ids))[:MAX_NAMED]


def _traces_in(text: str) -> tuple[str, ...]:
    traces = _listed(text)
    return tuple(dict.fromkeys(traces))[:MAX_NAMED] if all(map(traceparent_of, traces)) else ()


def _listed(text: str) -> list[str]:
    """The parts of a comma-separated header; empty parts do not count, as in HTTP."""
    return [each for each in (part.strip() for part in text.split(",")) if each]


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


def _parent(traceparent: str | None) -> "Context | None":
    """The context that a span starts in; None means the current one."""
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    if traceparent is None:
        return None
    return set_span_in_context(NonRecordingSpan(_as_context(traceparent)))


def _correlated(ids: Sequence[str]) -> "dict[str, AttributeValue]":
    """A span's attributes. OpenTelemetry's attribute holds one id, so several have another name."""
    match ids:
        case []:
            return {}
        case [only]:
            return {"messaging.message.conversation_id": only}
        case _:
            return {"tenure.correlation_ids": ids}


def _links(traceparents: Iterable[str]) -> "list[Link]":
    from opentelemetry.trace import Link

    return [Link(_as_context(each)) for each in traceparents]


def _as_context(traceparent: str) -> "SpanContext":
    from opentelemetry.trace import SpanContext, TraceFlags

    _, trace, span, flags = traceparent.split("-")
    return SpanContext(
        trace_id=int(trace, 16),
        span_id=int(span, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(flags, 16)),
    )
