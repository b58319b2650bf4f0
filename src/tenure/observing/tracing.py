"""Tracing: one trace from the enqueue to the handler and on, in W3C's words.

A job carries the `traceparent` of what enqueued it, as its `trace_id`; an attempt runs within it,
and what the handler enqueues or asks goes on with it. With opentelemetry-api installed there are
spans: one for the enqueue, one for each attempt, linked to it, one for each request to a server
and one for its answer. Without it nothing is made up: what was given is handed on. [OB3] [OB4]

A worker's requests are often about many jobs. What is about one belongs to that job's trace; what
is about several is a trace of its own with links to theirs: a span has one parent. [OB6]
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from tenure.core.ids import traceparent_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, Tracer

HEADER = "traceparent"
MAX_LINKS = 100
"""The jobs of a batch that its span is linked to; of more, a reader sees enough."""


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """What runs here, as far as traces are concerned: an attempt, a request, or nothing."""

    traceparent: str | None = None
    correlation_id: str | None = None
    jobs: tuple[str, ...] = ()
    """The traces of the jobs that it is about, where it is no attempt."""


UNTRACED = Traced()
_current: ContextVar[Traced] = ContextVar("tenure_traced", default=UNTRACED)


def current() -> Traced:
    """What runs here: the span of the moment if there is one, else the attempt's."""
    traced = _current.get()
    if not has_opentelemetry():
        return traced
    from opentelemetry.trace import get_current_span

    here = _as_traceparent(get_current_span().get_span_context())
    return traced if here is None else msgspec.structs.replace(traced, traceparent=here)


def enqueued(kind: str, queue: str) -> Traced:
    """What a job that is enqueued here belongs to; with a span of its own for the enqueue."""
    traced = current()
    if not has_opentelemetry():
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
def attempting(
    *, job_id: str, kind: str, queue: str, attempt: int, traced: Traced
) -> Iterator[str | None]:
    """Run an attempt within its trace; what is yielded is the traceparent to hand on."""
    if not has_opentelemetry():
        with within(traced):
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
            "messaging.message.conversation_id": traced.correlation_id or "",
            "tenure.attempt": attempt,
        },
    ) as span:
        here = _as_traceparent(span.get_span_context()) or traced.traceparent
        with within(msgspec.structs.replace(traced, traceparent=here)):
            yield here


def concerning(trace_ids: Iterable[str | None]) -> AbstractContextManager[None]:
    """Let requests in the block be about the jobs of these traces. [OB6]"""
    traces = tuple(dict.fromkeys(filter(None, map(traceparent_of, trace_ids))))
    only = traces[0] if len(traces) == 1 else None
    return within(Traced(traceparent=only, jobs=traces[:MAX_LINKS]))


@contextmanager
def asking(method: str, path: str) -> Iterator["Asked"]:
    """Ask a server: a span for the request, whose traceparent goes with it."""
    traced = current()
    if not has_opentelemetry():
        yield Asked(traced.traceparent)
        return
    from opentelemetry.trace import SpanKind

    with _tracer().start_as_current_span(
        f"{method} {path}",
        context=_parent(traced.traceparent),
        kind=SpanKind.CLIENT,
        links=_links(traced.jobs),
        attributes={"http.request.method": method, "url.template": path},
    ) as span:
        here = _as_traceparent(span.get_span_context()) or traced.traceparent
        yield Asked(here, span)


@contextmanager
def answering(method: str, path: str, traceparent: str | None) -> Iterator["Asked"]:
    """Answer a request that came with this traceparent: a span in the caller's trace."""
    if not has_opentelemetry():
        with within(Traced(traceparent=traceparent)):
            yield Asked(traceparent)
        return
    from opentelemetry.trace import SpanKind

    with _tracer().start_as_current_span(
        f"{method} {path}",
        context=_parent(traceparent),
        kind=SpanKind.SERVER,
        attributes={"http.request.method": method, "http.route": path},
    ) as span:
        here = _as_traceparent(span.get_span_context()) or traceparent
        with within(Traced(traceparent=here)):
            yield Asked(here, span)


class Asked:
    """A request on its way, for what is known of it only later."""

    def __init__(self, traceparent: str | None, span: "Span | None" = None) -> None:
        self.traceparent = traceparent
        self._span = span

    def answered(self, status: int) -> None:
        """It was answered with this status."""
        if self._span is None:
            return
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._span.set_status(StatusCode.ERROR)

    def about(self, trace_ids: Iterable[str | None]) -> None:
        """It turned out to be about the jobs of these traces."""
        if self._span is None or not self._span.is_recording():
            return
        traces = dict.fromkeys(filter(None, map(traceparent_of, trace_ids)))
        for link in _links(tuple(traces)[:MAX_LINKS]):
            self._span.add_link(link.context)


@contextmanager
def within(traced: Traced) -> Iterator[None]:
    """Let what runs in the block belong to this trace."""
    token = _current.set(traced)
    try:
        yield
    finally:
        _current.reset(token)


# --- OpenTelemetry -------------------------------------------------------------------------------


@cache
def has_opentelemetry() -> bool:
    """Whether spans can be made."""
    return find_spec("opentelemetry") is not None and find_spec("opentelemetry.trace") is not None


@cache
def _tracer() -> "Tracer":
    """Kept: looking it up is most of the price of a span that nobody records."""
    from opentelemetry.trace import get_tracer

    return get_tracer("tenure")


def _as_traceparent(context: "SpanContext") -> str | None:
    if not context.is_valid:
        return None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _parent(traceparent: str | None) -> "Context | None":
    """What a span begins in; None is whatever is current."""
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    if traceparent is None:
        return None
    return set_span_in_context(NonRecordingSpan(_as_context(traceparent)))


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
