"""A real process whose spans can be read: it appends them to the file that SPANS_FILE names.

`python -m tests.telemetry.traced serve …` is `tenure serve …` with an SDK; as the module of an
application it gives the same to a worker and to its children. Where PLAIN is set, there is no
OpenTelemetry.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

from tenure import Context, Tenure
from tenure.cli.main import main
from tenure.telemetry import tracing

SPANS_FILE = "SPANS_FILE"
PLAIN = "TRACED_WITHOUT_OPENTELEMETRY"
HANDLER_TOKEN = "TRACED_HANDLER_TOKEN"
GATE = "TRACED_GATE"


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a span."""

    name: str
    sort: str
    trace: str
    span: str
    parent: str | None
    links: tuple[str, ...]
    """Of each its trace."""
    status: int | None
    correlation: str | None = None


def kept(span: ReadableSpan) -> Span:
    context = span.get_span_context()
    assert context is not None
    attributes = span.attributes or {}
    status = attributes.get("http.response.status_code")
    return Span(
        name=span.name,
        sort=span.kind.name,
        trace=f"{context.trace_id:032x}",
        span=f"{context.span_id:016x}",
        parent=None if span.parent is None else f"{span.parent.span_id:016x}",
        links=tuple(f"{link.context.trace_id:032x}" for link in span.links),
        status=status if isinstance(status, int) else None,
        correlation=attributes.get("messaging.message.conversation_id"),  # type: ignore[arg-type]  # a text
    )


class ToFile(SpanExporter):
    """One line each; a write of one is whole, whoever else appends."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with Path(os.environ[SPANS_FILE]).open("ab", buffering=0) as file:
            for span in spans:
                file.write(msgspec.json.encode(kept(span)) + b"\n")
        return SpanExportResult.SUCCESS


def read_spans(file: Path) -> list[Span]:
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.convert(json.loads(line), Span) for line in lines]


def record_spans() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ToFile()))
    trace.set_tracer_provider(provider)


app = Tenure()


@app.job(name="traced.say")
def say(word: str, ctx: Context) -> str | None:
    sys.stdout.write(f"{word}\n")
    return ctx.traceparent


@app.job(name="traced.work", lease="3s")
def work(ctx: Context) -> str:
    """Whatever makes a worker or a handler ask a server something; ends when the gate opens."""
    sys.stdout.write("working\n")
    ctx.save({"half": True})
    ctx.artifact("paper", b"words")
    server = Tenure(token=os.environ[HANDLER_TOKEN])
    inner = server.enqueue("traced.later", {}, queue="later")
    inner.cancel()
    while not Path(os.environ[GATE]).exists():
        ctx.check()
        time.sleep(0.02)
    return inner.id


if PLAIN in os.environ:
    tracing.has_opentelemetry = lambda: False  # type: ignore[assignment]  # as if not installed
elif SPANS_FILE in os.environ:
    record_spans()

if __name__ == "__main__":
    main()
