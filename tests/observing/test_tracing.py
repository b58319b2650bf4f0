"""One trace from the enqueue through the handler and on; spans where OpenTelemetry is installed."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from tenure import Context, Tenure
from tenure.conformance.spec import spec
from tenure.core.commands import Enqueue, fingerprint
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, QueueName, client_actor, traceparent_of
from tenure.core.vocabulary import Role
from tenure.observing import tracing
from tenure.remote.calling import Call, Caller
from tenure.remote.settings import Patience, Trust, parse_address
from tenure.remote.transport import Request
from tenure.testing import Inline, inline
from tests.server.harness import JOB, Stage

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"
OTHER = f"00-{TRACE[::-1]}-{SPAN}-01"

app = Tenure()
seen: list[tuple[str | None, str | None]] = []


@app.job
def inner(ctx: Context) -> None:
    seen.append((ctx.traceparent, ctx.correlation_id))


@app.job
def outer(ctx: Context) -> str:
    seen.append((ctx.traceparent, ctx.correlation_id))
    return inner.enqueue().id


@app.job
async def aouter(ctx: Context) -> str:
    seen.append((ctx.traceparent, ctx.correlation_id))
    return (await inner.aenqueue()).id


@app.job
def broken() -> None:
    raise ValueError("no")


@pytest.fixture
def stand() -> Iterator[Inline]:
    seen.clear()
    with inline(app) as stand:
        yield stand


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenTelemetry."""
    monkeypatch.setattr(tracing, "has_opentelemetry", lambda: False)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", lambda: provider.get_tracer("tenure"))
    return exporter


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    (span,) = [each for each in spans.get_finished_spans() if each.name == name]
    return span


def traceparent(span: ReadableSpan) -> str:
    context = span.get_span_context()
    assert context is not None
    flags = int(context.trace_flags)
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{flags:02x}"


@spec("OB3", "OB4")
@pytest.mark.parametrize("function", [outer, aouter])
@pytest.mark.usefixtures("plain")
def test_what_was_given_is_handed_on_from_job_to_job(stand: Inline, function: object) -> None:
    job = app.enqueue(function.kind, {}, trace_id=TRACEPARENT, correlation_id="order-7")  # type: ignore[attr-defined]  # both are job functions

    stand.drain()

    assert seen == [(TRACEPARENT, "order-7")] * 2
    second = app.get(str(job.result()))
    for each in (job, second):
        events = each.events()
        assert {event.trace_id for event in events} == {TRACEPARENT}
        assert {event.correlation_id for event in events} == {"order-7"}


@spec("OB4")
@pytest.mark.usefixtures("plain")
def test_nothing_is_made_up_where_no_trace_was_given(stand: Inline) -> None:
    job = outer.enqueue()
    other = inner.enqueue(trace_id="my-own-label")

    stand.drain()

    assert seen[0] == (None, None)
    assert {event.trace_id for event in job.events()} == {None}
    assert {event.trace_id for event in other.events()} == {"my-own-label"}


@spec("OB3", "OB4")
def test_an_attempt_is_a_span_linked_to_that_of_its_enqueue(
    stand: Inline, spans: InMemorySpanExporter
) -> None:
    job = outer.enqueue(correlation_id="order-7")

    stand.drain()

    enqueued, ran = named(spans, "enqueue outer"), named(spans, "run outer")
    assert (enqueued.kind, ran.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert {event.trace_id for event in job.events()} == {traceparent(enqueued)}
    assert [link.context.span_id for link in ran.links] == [enqueued.context.span_id]
    assert ran.context.trace_id == enqueued.context.trace_id
    assert ran.attributes is not None
    assert ran.attributes["messaging.message.id"] == job.id
    assert ran.attributes["messaging.message.conversation_id"] == "order-7"
    assert seen[0] == (traceparent(ran), "order-7")
    second = named(spans, "enqueue inner")
    assert second.parent is not None
    assert second.parent.span_id == ran.context.span_id


def test_a_failed_attempt_is_a_failed_span(stand: Inline, spans: InMemorySpanExporter) -> None:
    broken.enqueue()

    stand.drain()

    for span in spans.get_finished_spans():
        if span.name == "run broken":
            assert not span.status.is_ok
            assert [event.name for event in span.events] == ["exception"]
    assert any(span.name == "run broken" for span in spans.get_finished_spans())


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "label",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f" 00-{TRACE}-{SPAN}-01",
    ],
)
def test_what_is_no_traceparent_is_taken_for_none(text: str | None) -> None:
    assert traceparent_of(text) is None
    assert traceparent_of(TRACEPARENT) == TRACEPARENT


@spec("OB3")
def test_over_http_the_header_names_the_trace_unless_the_job_does() -> None:
    stage = Stage()
    token = stage.of(Role.CLIENT)
    header = {"traceparent": TRACEPARENT}
    for number, fields in ((1, {}), (2, {"trace_id": "mine"})):
        message = {"job_id": JOB.format(number), "queue": "q", "kind": "k", **fields}
        made = stage.ask("POST", "/v1/jobs", message, token=token, headers=header)
        assert made.status == 201, made
    message = {"job_id": JOB.format(3), "queue": "q", "kind": "k"}
    bad = stage.ask("POST", "/v1/jobs", message, token=token, headers={"traceparent": "no"})

    traces = [stage.events(JOB.format(number))[0].trace_id for number in (1, 2, 3)]
    again = stage.ask(
        "POST", "/v1/jobs", {"job_id": JOB.format(1), "queue": "q", "kind": "k"}, token=token
    )
    stage.close()

    assert traces == [TRACEPARENT, "mine", None]
    assert (bad.status, again.status) == (201, 200)


@spec("OB3")
def test_a_traceparent_is_no_part_of_what_is_asked_and_a_label_is() -> None:
    def command(trace_id: str | None, kind: str = "k") -> Enqueue:
        return Enqueue(
            job_id=JOB.format(1),  # type: ignore[arg-type]  # a job id is a text
            namespace=DEFAULT_NAMESPACE,
            queue=QueueName("q"),
            kind=Kind(kind),
            actor=client_actor("tests"),
            trace_id=trace_id,
        )

    assert fingerprint(command(TRACEPARENT)) == fingerprint(command(None))
    assert fingerprint(command(TRACEPARENT)) != fingerprint(command(TRACEPARENT, "other"))
    assert fingerprint(command("my-own-label")) != fingerprint(command(None))


@spec("OB4")
@pytest.mark.usefixtures("plain")
def test_what_a_handler_asks_of_a_server_carries_its_trace() -> None:
    caller = Caller(parse_address("http://127.0.0.1:1"), Trust(), Patience())
    traced = tracing.Traced(traceparent=TRACEPARENT)

    with tracing.attempting(job_id="j", kind="k", queue="q", attempt=1, traced=traced):
        within = request(caller)
    outside = request(caller)
    caller.close()

    assert within.headers["traceparent"] == TRACEPARENT
    assert "traceparent" not in outside.headers


def request(caller: Caller) -> Request:
    """What would be sent from here."""
    with tracing.asking("GET", "/v1/time") as asked:
        return caller._request(Call(name="time"), asked)


@spec("OB6")
@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    ("traces", "sent"),
    [
        ([TRACEPARENT], TRACEPARENT),
        ([TRACEPARENT, None, TRACEPARENT], TRACEPARENT),
        ([TRACEPARENT, "label"], TRACEPARENT),
        ([TRACEPARENT, OTHER], None),
        ([], None),
    ],
)
def test_a_request_is_in_the_trace_of_its_job_unless_it_is_about_several(
    traces: list[str | None], sent: str | None
) -> None:
    with tracing.concerning(traces), tracing.asking("POST", "/v1/report") as asked:
        assert asked.traceparent == sent
