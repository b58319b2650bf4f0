"""One trace from the enqueue through the handler and on; spans where OpenTelemetry is installed."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import ProxyTracer, SpanKind, get_current_span

from tenure import Context, Tenure
from tenure.core.checks import MAX_DEDUPE_KEY, check_correlation_id
from tenure.core.commands import Enqueue, fingerprint
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, QueueName, client_actor, traceparent_of
from tenure.core.vocabulary import Role
from tenure.errors import InvalidInput
from tenure.protocol import CORRELATION_HEADER, TRACEPARENT_HEADER
from tenure.remote.caller import Caller, RouteCall
from tenure.remote.settings import Patience, Trust, parse_address
from tenure.remote.transport import HttpRequest
from tenure.telemetry import tracing
from tenure.telemetry.logs import JsonFormatter
from tenure.testing import Inline, inline
from tenure_conformance.spec import spec
from tests.server.harness import JOB, Stage
from tests.support.cases import each_case

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"
OTHER = f"00-{TRACE[::-1]}-{SPAN}-01"

app = Tenure()
seen: list[tuple[str | None, str | None]] = []
labels: list[tuple[str | None, str]] = []
current_traces: list[int | None] = []


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
def leaf(ctx: Context) -> None:
    labels.append((ctx.trace_id, ctx.correlation_id))


@app.job
def root(ctx: Context) -> list[str]:
    labels.append((ctx.trace_id, ctx.correlation_id))
    with ThreadPoolExecutor(1) as other:  # a thread that knows nothing of the attempt's trace
        far = other.submit(lambda: ctx.enqueue(leaf.call(), step="far")).result()
    near = ctx.enqueue(leaf.call(), step="near")
    own = ctx.enqueue(leaf.using(trace_id="t", correlation_id="c").call(), step="own")
    return [far.id, near.id, leaf.enqueue().id, own.id]


@app.job
def watched() -> None:
    found = get_current_span().get_span_context()
    current_traces.append(found.trace_id if found.is_valid else None)


@app.job
def broken() -> None:
    raise ValueError("no")


@pytest.fixture
def stand() -> Iterator[Inline]:
    seen.clear()
    labels.clear()
    current_traces.clear()
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


@pytest.mark.parametrize("given", [None, TRACEPARENT])
def test_without_a_tracer_provider_a_given_trace_is_current_and_no_other_span_is_made(
    stand: Inline, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    made: list[str] = []
    start = ProxyTracer.start_as_current_span

    def counted(self: ProxyTracer, name: str, *args: Any, **named: Any) -> Any:
        made.append(name)
        return start(self, name, *args, **named)

    monkeypatch.setattr(ProxyTracer, "start_as_current_span", counted)
    monkeypatch.setattr(ProxyTracer, "start_span", lambda *_, **__: pytest.fail("of an enqueue"))
    watched.using(trace_id=given).enqueue()

    stand.drain()

    assert made == ([] if given is None else ["run watched"])
    assert current_traces == [None if given is None else int(TRACE, 16)]


@spec("OB4")
@pytest.mark.usefixtures("plain")
def test_nothing_is_made_up_where_no_trace_was_given(stand: Inline) -> None:
    job = outer.enqueue()
    other = inner.using(trace_id="my-own-label").enqueue()

    stand.drain()

    assert seen[0] == (None, job.id)
    assert {event.trace_id for event in job.events()} == {None}
    assert {event.trace_id for event in other.events()} == {"my-own-label"}


@spec("OB4")
@pytest.mark.parametrize("trace_id", ["order 7's trace", TRACEPARENT, None])
@pytest.mark.usefixtures("plain")
def test_a_handler_and_its_jobs_get_the_trace_id_whatever_its_form(
    stand: Inline, trace_id: str | None
) -> None:
    job = root.using(trace_id=trace_id, correlation_id="order-7").enqueue()

    stand.drain()

    *inherited, own = [app.get(each).refresh() for each in job.result()]
    assert sorted(labels, key=str) == sorted([(trace_id, "order-7")] * 4 + [("t", "c")], key=str)
    assert [(each.trace_id, each.correlation_id) for each in inherited] == [
        (trace_id, "order-7")
    ] * 3
    assert (own.trace_id, own.correlation_id) == ("t", "c")


@spec("OB4")
def test_a_label_is_handed_on_also_where_attempts_are_spans(
    stand: Inline, spans: InMemorySpanExporter
) -> None:
    job = root.using(trace_id="order 7's trace").enqueue()

    stand.drain()

    *inherited, _ = [app.get(each).refresh() for each in job.result()]
    assert {each.trace_id for each in inherited[1:]} == {"order 7's trace"}
    assert named(spans, "run root").links == ()


@spec("OB26")
@pytest.mark.usefixtures("plain")
def test_a_job_without_a_correlation_id_and_what_it_enqueues_are_found_under_its_own_id(
    stand: Inline,
) -> None:
    job = root.enqueue()

    stand.drain()

    *inherited, own = job.result()
    family = {job.id, *inherited}
    assert {record.id for record in app.jobs.ls(correlation_id=job.id)} == family
    assert job.refresh().correlation_id == job.id
    assert {event.correlation_id for event in job.events()} == {job.id}
    assert app.jobs.ls(correlation_id=own) == []


@spec("OB3", "OB4")
def test_an_attempt_is_a_span_linked_to_that_of_its_enqueue(
    stand: Inline, spans: InMemorySpanExporter
) -> None:
    job = outer.using(correlation_id="order-7").enqueue()

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
    traced = tracing.TraceContext(traceparent=TRACEPARENT, correlation_id="order 7")

    with tracing.attempt_span(job_id="j", kind="k", queue="q", attempt=1, traced=traced):
        within = request(caller)
    outside = request(caller)
    caller.close()

    assert within.headers[TRACEPARENT_HEADER] == TRACEPARENT
    assert within.headers[CORRELATION_HEADER] == "order%207"
    assert {TRACEPARENT_HEADER, CORRELATION_HEADER}.isdisjoint(outside.headers)


def request(caller: Caller) -> HttpRequest:
    """What would be sent from here."""
    with tracing.client_span("GET", "/v1/time") as asked:
        return caller._request(RouteCall(name="time"), asked)


class Labels(msgspec.Struct):
    """A job, as far as traces are concerned."""

    trace_id: str | None
    correlation_id: str | None = None


@spec("OB6")
@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize(
    ("traces", "sent"),
    [
        ([TRACEPARENT], TRACEPARENT),
        ([TRACEPARENT, None, TRACEPARENT], TRACEPARENT),
        ([TRACEPARENT, "label"], TRACEPARENT),
        ([TRACEPARENT, OTHER, OTHER], None),
        ([], None),
    ],
)
def test_a_request_is_in_the_trace_of_its_job_unless_it_is_about_several(
    traces: list[str | None], sent: str | None
) -> None:
    traced = tracing.trace_of_jobs(Labels(each) for each in traces)

    with tracing.use_trace(traced), tracing.client_span("POST", "/v1/report") as asked:
        headers = tracing.trace_headers(asked.traced)

    assert headers == ({} if sent is None else {TRACEPARENT_HEADER: sent})


def heard(headers: dict[str, str]) -> tracing.TraceContext:
    """What a server makes of them."""
    return tracing.trace_from_headers(lambda name: [headers[name]] if name in headers else [])


def is_correlation_id(text: str) -> bool:
    try:
        check_correlation_id("text", text)
    except InvalidInput:
        return False
    return True


ids = st.text(min_size=1, max_size=MAX_DEDUPE_KEY).filter(is_correlation_id)


@spec("OB6")
@given(ids)
def test_a_correlation_id_arrives_as_it_was_given(given_id: str) -> None:
    headers = tracing.trace_headers(tracing.trace_of_jobs([Labels(None, given_id)] * 2))

    assert all(text.isascii() and text.isprintable() for text in headers.values())
    assert heard(headers).correlation_id == given_id


@spec("OB6")
def test_a_request_about_jobs_of_several_correlation_ids_carries_none() -> None:
    traced = tracing.trace_of_jobs(Labels(None, each) for each in ("order-7", "order-8"))

    assert tracing.trace_headers(traced) == {}


@spec("OB6")
@pytest.mark.parametrize(
    "text", ["a,b", "100 %", "%41", " é ", '"\\;', "Größe", "🎉" * MAX_DEDUPE_KEY]
)
def test_a_correlation_id_may_be_any_text(text: str) -> None:
    assert heard(
        tracing.trace_headers(tracing.trace_of_jobs([Labels(None, text)]))
    ) == tracing.TraceContext(correlation_id=text)


@spec("OB6")
@each_case(
    "text",
    [
        "",
        ",",
        "%",
        "%4",
        "a%zz",
        "a,b",
        "a%FF",
        "a%00",
        "a b",
        "a%0Ab",
        "ü",
        "\x07",
        "a" * (MAX_DEDUPE_KEY + 1),
    ],
)
def test_what_is_not_one_correlation_id_is_taken_for_none(text: str) -> None:
    assert heard({CORRELATION_HEADER: text}) == tracing.NO_TRACE


@spec("OB6")
def test_a_header_that_came_twice_names_nothing() -> None:
    lines = {CORRELATION_HEADER: ["a", "b"], TRACEPARENT_HEADER: [TRACEPARENT, OTHER]}

    assert tracing.trace_from_headers(lambda name: lines[name]) == tracing.NO_TRACE


@spec("OB3")
def test_over_http_the_header_names_the_correlation_id_unless_the_job_does() -> None:
    stage = Stage()
    token = stage.of(Role.CLIENT)

    def enqueue(number: int, header: str | None, **fields: object) -> int:
        message = {"job_id": JOB.format(number), "queue": "q", "kind": "k", **fields}
        headers = {} if header is None else {CORRELATION_HEADER: header}
        return stage.ask("POST", "/v1/jobs", message, token=token, headers=headers).status

    made = [
        enqueue(1, "order%2C7"),
        enqueue(2, "order-7", correlation_id="mine"),
        enqueue(3, "one,other"),
        enqueue(4, "%"),
    ]
    # It is part of what is asked, wherever it is said.
    repeated = [enqueue(1, "order%2C7"), enqueue(1, None, correlation_id="order,7")]
    others = [enqueue(1, "other"), enqueue(1, None)]
    found = [stage.events(JOB.format(number))[0].correlation_id for number in (1, 2, 3, 4)]
    stage.close()

    assert found == ["order,7", "mine", None, None]
    assert (made, repeated, others) == ([201] * 4, [200] * 2, [409] * 2)


@spec("OB5", "OB6")
@pytest.mark.usefixtures("plain")
def test_a_servers_line_within_a_request_has_the_ids_that_the_request_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(JsonFormatter())
    stage = Stage()

    def fail() -> None:
        raise RuntimeError("a bug")

    def line(*jobs: Labels) -> dict[str, object]:
        headers = tracing.trace_headers(tracing.trace_of_jobs(jobs))
        answer = stage.ask("GET", "/v1/time", token=stage.of(Role.CLIENT), headers=headers)
        assert answer.status == 500
        found = json.loads(caplog.text.strip().splitlines()[-1])
        return {name: found[name] for name in found if name.startswith(("trace", "correlation"))}

    monkeypatch.setattr(stage.coordinator.store, "now", fail)
    one, several = Labels(TRACEPARENT, "order,7"), Labels(OTHER, "Größe")

    alone, together = line(one), line(one, several)
    stage.close()

    assert alone == {"trace_id": TRACEPARENT, "correlation_id": "order,7"}
    assert together == {}
