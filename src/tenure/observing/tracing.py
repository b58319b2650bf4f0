"""Tracing: one trace from the enqueue to the handler and on, in W3C's words.

A job carries the `traceparent` of what enqueued it, as its `trace_id`; an attempt runs within it,
and what the handler enqueues or asks goes on with it. With opentelemetry-api installed there are
spans: one for the enqueue, one for each attempt, linked to it. Without it nothing is made up: what
was given is handed on. [OB3] [OB4]
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext, Tracer

HEADER = "traceparent"


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt that runs here, as far as traces are concerned."""

    traceparent: str | None = None
    correlation_id: str | None = None


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
    from opentelemetry.trace import Link, NonRecordingSpan, SpanKind, set_span_in_context

    origin = _as_context(traced.traceparent)
    with _tracer().start_as_current_span(
        f"run {kind}",
        context=None if origin is None else set_span_in_context(NonRecordingSpan(origin)),
        kind=SpanKind.CONSUMER,
        links=[] if origin is None else [Link(origin)],
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


def _as_context(traceparent: str | None) -> "SpanContext | None":
    from opentelemetry.trace import SpanContext, TraceFlags

    if traceparent is None:
        return None
    _, trace, span, flags = traceparent.split("-")
    return SpanContext(
        trace_id=int(trace, 16),
        span_id=int(span, 16),
        is_remote=True,
        trace_flags=TraceFlags(int(flags, 16)),
    )
