"""Tracing: one trace from the enqueue to the handler and on, in W3C's words.

A job carries the `traceparent` of what enqueued it, as its `trace_id`; an attempt runs within it,
and what the handler enqueues or asks goes on with it. With opentelemetry-api installed there are
spans: one for the enqueue, one for each attempt, linked to it, one for each request to a server
and one for its answer. Without it nothing is made up: what was given is handed on. [OB3] [OB4]

A worker's requests are often about many jobs. What is about one belongs to that job's trace; what
is about several is a trace of its own with links to theirs: a span has one parent. In its headers a
request names the traces and correlation ids of its jobs. [OB6]
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
    from opentelemetry.trace import Link, Span, SpanContext, Tracer
    from opentelemetry.util.types import AttributeValue

MAX_NAMED = 100
"""The jobs of a batch whose traces and ids are kept; of more, a reader sees enough."""
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
        """What the jobs of one undertaking have in common."""


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """What runs here, as far as traces are concerned: an attempt, a request, or nothing."""

    traceparent: str | None = None
    correlation_ids: tuple[str, ...] = ()
    """An attempt's own, or those of the jobs that a request is about; each of them once."""
    traces: tuple[str, ...] = ()
    """The traces of the jobs that it is about, where it is no attempt."""

    @property
    def correlation_id(self) -> str | None:
        """The one that all of it has, if there is one."""
        return self.correlation_ids[0] if len(self.correlation_ids) == 1 else None


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
            "tenure.attempt": attempt,
            **_correlated(traced.correlation_ids),
        },
    ) as span:
        here = _as_traceparent(span.get_span_context()) or traced.traceparent
        with within(msgspec.structs.replace(traced, traceparent=here)):
            yield here


def concerning(jobs: Iterable[Labelled]) -> Traced:
    """What a request about these jobs belongs to. [OB6]"""
    labels = [(job.trace_id, job.correlation_id) for job in jobs]
    traces = tuple(dict.fromkeys(filter(None, (traceparent_of(trace) for trace, _ in labels))))
    ids = tuple(dict.fromkeys(each for _, each in labels if each is not None))
    return Traced(
        traceparent=traces[0] if len(traces) == 1 else None,
        correlation_ids=ids[:MAX_NAMED],
        traces=traces[:MAX_NAMED],
    )


@contextmanager
def asking(method: str, path: str) -> Iterator["Asked"]:
    """Ask a server: a span for the request, whose traceparent goes with it."""
    traced = current()
    if not has_opentelemetry():
        yield Asked(traced)
        return
    from opentelemetry.trace import SpanKind

    with _tracer().start_as_current_span(
        f"{method} {path}",
        context=_parent(traced.traceparent),
        kind=SpanKind.CLIENT,
        links=_links(traced.traces),
        attributes={
            "http.request.method": method,
            "url.template": path,
            **_correlated(traced.correlation_ids),
        },
    ) as span:
        here = _as_traceparent(span.get_span_context()) or traced.traceparent
        yield Asked(msgspec.structs.replace(traced, traceparent=here), span)


@contextmanager
def answering(method: str, path: str, told: Traced) -> Iterator["Asked"]:
    """Answer a request that came with this: a span in the caller's trace."""
    if not has_opentelemetry():
        with within(told):
            yield Asked(told)
        return
    from opentelemetry.trace import SpanKind

    with _tracer().start_as_current_span(
        f"{method} {path}",
        context=_parent(told.traceparent),
        kind=SpanKind.SERVER,
        links=_links(told.traces),
        attributes={
            "http.request.method": method,
            "http.route": path,
            **_correlated(told.correlation_ids),
        },
    ) as span:
        here = _as_traceparent(span.get_span_context()) or told.traceparent
        traced = msgspec.structs.replace(told, traceparent=here)
        with within(traced):
            yield Asked(traced if told.traceparent is None else told, span)


class Asked:
    """A request on its way, for what is known of it only later.

    `traced` is what goes with it; of one that is answered, what the jobs that it makes belong to,
    which is the caller's trace before that of the answer's span. [OB3]
    """

    def __init__(self, traced: Traced, span: "Span | None" = None) -> None:
        self.traced = traced
        self._span = span

    def answered(self, status: int) -> None:
        """It was answered with this status."""
        if self._span is None:
            return
        from opentelemetry.trace import StatusCode

        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._span.set_status(StatusCode.ERROR)

    def about(self, jobs: Iterable[Labelled]) -> None:
        """It turned out to be about these jobs."""
        if self._span is None or not self._span.is_recording():
            return
        found = concerning(jobs)
        for link in _links(found.traces):
            self._span.add_link(link.context)
        self._span.set_attributes(_correlated(found.correlation_ids))


@contextmanager
def within(traced: Traced) -> Iterator[None]:
    """Let what runs in the block belong to this trace."""
    token = _current.set(traced)
    try:
        yield
    finally:
        _current.reset(token)


# --- headers -------------------------------------------------------------------------------------


def headers_of(traced: Traced) -> dict[str, str]:
    """What a request says of it; as much as heads have room for. [OB6]"""
    headers = {}
    if traced.traceparent is not None:
        headers[TRACEPARENT_HEADER] = traced.traceparent
    if len(traced.traces) > 1:
        headers[TRACES_HEADER] = ",".join(traced.traces[:MAX_TOLD])
    if traced.correlation_ids:
        headers[CORRELATION_HEADER] = _written(traced.correlation_ids)
    return headers


def told_by(values_of: Callable[[str], Sequence[str]]) -> Traced:
    """What the headers of a request say of it. A malformed one says nothing, as a whole. [OB6]"""
    return Traced(
        traceparent=traceparent_of(",".join(values_of(TRACEPARENT_HEADER))),
        correlation_ids=_ids_in(",".join(values_of(CORRELATION_HEADER))),
        traces=_traces_in(",".join(values_of(TRACES_HEADER))),
    )


_MALFORMED = re.compile(r"[^\t -~]|%(?![0-9A-Fa-f]{2})")


def _written(ids: Sequence[str]) -> str:
    """Percent-encoded, because an id may be any text, and a header may not."""
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
    """The parts of a list; an empty one between two commas is none, as HTTP has it."""
    return [each for each in (part.strip() for part in text.split(",")) if each]


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


def _correlated(ids: Sequence[str]) -> "dict[str, AttributeValue]":
    """A span's attributes: the name for one id has no room for several."""
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
