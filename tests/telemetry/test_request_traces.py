"""Requests between real servers and workers: whose trace and correlation id each of them carries,
and its spans where there is a real SDK."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tenure.core.claims import ClaimRequest
from tenure.core.commands import Heartbeat
from tenure.core.ids import DEFAULT_NAMESPACE, QueueName, RequestId, WorkerId, worker_actor
from tenure.core.verdicts import Verdict
from tenure.core.vocabulary import VerdictKind
from tenure.telemetry import tracing
from tenure.wiring import open_remote
from tenure_conformance.spec import spec
from tests.server.harness import JOB
from tests.server.processes import House, Process
from tests.support.commands import ROOT
from tests.support.waiting import until
from tests.telemetry.recorder import Heard, Recorder
from tests.telemetry.traced import (
    GATE,
    HANDLER_TOKEN,
    PLAIN,
    SPANS_FILE,
    Span,
    kept,
    read_spans,
)

pytestmark = pytest.mark.process

TRACES = ("4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c")
TRACED = (sys.executable, "-m", "tests.telemetry.traced")
IDS = ("order 7, 100 % für 🎉", "Ä" * 200)
ABOUT_NO_JOB = {"claim", "alive", "time", "kinds", "declare-kind"}
"""What a worker asks for itself: before it has a job, or of the server."""


def traceparent(number: int) -> str:
    return f"00-{TRACES[number]}-00f067aa0ba902b7-01"


class TraceContext:
    """A server and perhaps a worker, their spans in one file."""

    def __init__(self, directory: Path, *, plain: bool = False) -> None:
        self.house = House(f"sqlite:///{directory / 'traced.db'}", directory)
        self._file = directory / "spans"
        self.gate = directory / "gate"
        self._environment = os.environ | {
            "TENURE_URL": self.house.url,
            "TENURE_LEASE_BOUNDS": "1s,120s",
            SPANS_FILE: str(self._file),
            GATE: str(self.gate),
        }
        if plain:
            self._environment[PLAIN] = "yes"
        command = [*TRACED, "serve", "--port", "0"]
        self.server = Process(command, self._environment, directory)
        self.worker_token = self.house.token("worker", "fleet")
        self.client_token = self.house.token("client", "shop")
        self.recorder = Recorder(self.server.port)
        self._workers: list[subprocess.Popen[bytes]] = []

    def enqueue(self, number: int, **fields: object) -> str:
        message = {
            "job_id": JOB.format(number),
            "queue": "default",
            "kind": "traced.say",
            "payload": {"word": "hello"},
            "trace_id": traceparent(number),
            "correlation_id": IDS[number],
            **fields,
        }
        made = self.server.ask("POST", "/v1/jobs", message, token=self.client_token)
        assert made.status == 201, made
        return JOB.format(number)

    def status(self, job_id: str) -> str:
        found = self.server.ask("GET", f"/v1/jobs/{job_id}", token=self.client_token)
        return str(found.json["job"]["status"])

    def start_worker(self) -> None:
        environment = self._environment | {
            "TENURE_URL": self.recorder.url,
            "TENURE_TOKEN": self.worker_token,
            HANDLER_TOKEN: self.client_token,
        }
        words = ["worker", "tests.telemetry.traced:app", "-c", "2"]
        command = [sys.executable, "-m", "tenure", *words]
        self._workers.append(subprocess.Popen(command, cwd=ROOT, env=environment))

    def stop_worker(self) -> None:
        worker = self._workers.pop()
        worker.terminate()
        assert worker.wait(60) == 0

    def spans(self, name: str, sort: str) -> list[Span]:
        found = read_spans(self._file)
        return [span for span in found if (span.name, span.sort) == (name, sort)]

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()
        self.recorder.close()
        self.server.close()
        self.house.close()


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[TraceContext]:
    traced = TraceContext(tmp_path)
    yield traced
    traced.close()


@pytest.fixture(params=["with OpenTelemetry", "plain"])
def heard_by(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TraceContext]:
    traced = TraceContext(tmp_path, plain=request.param == "plain")
    yield traced
    traced.close()


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "_tracer", lambda: provider.get_tracer("tenure"))
    return exporter


@spec("OB4", "OB6")
def test_what_a_real_worker_asks_about_a_job_is_in_the_jobs_trace(traced: TraceContext) -> None:
    job_id = traced.enqueue(0)

    traced.start_worker()
    until(lambda: traced.status(job_id) == "succeeded", "the job is done")
    traced.stop_worker()

    [ran] = traced.spans("run traced.say", "CONSUMER")
    assert (ran.trace, ran.links) == (TRACES[0], (TRACES[0],))
    reports = traced.spans("POST /v1/report", "CLIENT")
    assert reports
    assert {(span.trace, span.links) for span in reports} == {(TRACES[0], ())}
    [output] = traced.spans("POST /v1/output", "CLIENT")
    assert output.trace == TRACES[0]
    assert {span.correlation for span in [ran, output, *reports]} == {IDS[0]}
    heard = traced.spans("POST /v1/report", "SERVER")
    assert {span.parent for span in heard} == {span.span for span in reports}
    assert {(span.trace, span.status) for span in heard} == {(TRACES[0], 200)}
    assert {span.correlation for span in heard} == {IDS[0]}
    events = traced.server.ask("GET", f"/v1/jobs/{job_id}/events", token=traced.client_token)
    assert {event["trace_id"] for event in events.json["events"]} == {traceparent(0)}


@spec("OB6")
def test_a_batch_about_several_jobs_is_a_trace_of_its_own(
    traced: TraceContext, spans: InMemorySpanExporter
) -> None:
    for number in (0, 1):
        traced.enqueue(number)
    remote = open_remote(traced.recorder.url, token=traced.worker_token)
    actor = worker_actor("fleet")
    request = ClaimRequest(
        namespace=DEFAULT_NAMESPACE,
        worker=WorkerId("w"),
        actor=actor,
        queues=(QueueName("default"),),
        limit=2,
        claim_seq=1,
        request_id=RequestId("w:1"),
    )
    grants = remote.submit_claim(request).result().grants

    with tracing.use_trace(tracing.trace_of_jobs(grant.job for grant in grants)):
        answers = remote.submit_many(
            [
                Heartbeat(job_id=each.job_id, lease_id=each.lease_id, actor=actor, hb_seq=1)
                for each in grants
            ]
        ).result()
    remote.close()

    assert [each.kind for each in answers if isinstance(each, Verdict)] == [VerdictKind.OK] * 2
    made = [kept(span) for span in spans.get_finished_spans()]
    [report] = [span for span in made if span.name == "POST /v1/report"]
    assert (report.parent, report.trace in TRACES) == (None, False)
    [heard] = traced.spans("POST /v1/report", "SERVER")
    assert (heard.trace, heard.parent) == (report.trace, report.span)
    assert heard.correlation is None


@spec("OB4", "OB6")
def test_whatever_is_asked_about_a_job_carries_its_trace_and_correlation_id(
    heard_by: TraceContext,
) -> None:
    job_id = heard_by.enqueue(0, kind="traced.work", payload={})

    heard_by.start_worker()
    until(lambda: "peek-leases" in routes(heard_by), "the worker polls its lease")
    heard_by.gate.touch()
    until(lambda: heard_by.status(job_id) == "succeeded", "the job is done")
    heard_by.stop_worker()

    requests = heard_by.recorder.heard
    workers = [each for each in requests if each.asks_as(heard_by.worker_token)]
    handlers = [each for each in requests if each.asks_as(heard_by.client_token)]
    assert len(workers) + len(handlers) == len(requests)
    about = [each for each in workers if each.route not in ABOUT_NO_JOB]
    assert {each.route for each in about} == {"report", "peek-leases", "output", "upload-artifact"}
    reports = [each.json["reports"] for each in about if each.route == "report"]
    ops = {report["op"] for each in reports for report in each}
    assert ops - {"start"} == {"heartbeat", "complete"}  # the claim may have started it
    assert {each.route for each in handlers} == {"time", "enqueue-many", "cancel"}
    assert {trace_of(each) for each in [*about, *handlers]} == {TRACES[0]}
    assert {each.told.correlation_id for each in [*about, *handlers]} == {IDS[0]}
    [made] = [job for each in handlers if each.route == "enqueue-many" for job in each.json["jobs"]]
    assert (made["trace_id"].split("-")[1], made["correlation_id"]) == (TRACES[0], IDS[0])


@spec("OB6")
def test_a_batch_about_several_jobs_is_in_the_trace_of_none(
    heard_by: TraceContext,
) -> None:
    jobs = [heard_by.enqueue(number, kind="traced.work", payload={}) for number in (0, 1)]

    heard_by.start_worker()
    until(lambda: any(len(each.json["leases"]) > 1 for each in peeks(heard_by)), "it polls both")
    heard_by.gate.touch()
    until(lambda: {*map(heard_by.status, jobs)} == {"succeeded"}, "the jobs are done")
    heard_by.stop_worker()

    both = [each for each in peeks(heard_by) if len(each.json["leases"]) == 2]
    assert both
    for each in both:
        assert trace_of(each) not in TRACES
        assert each.told.correlation_id is None


def routes(traced: TraceContext) -> set[str]:
    return {each.route for each in traced.recorder.heard}


def peeks(traced: TraceContext) -> list[Heard]:
    return [each for each in traced.recorder.heard if each.route == "peek-leases"]


def trace_of(request: Heard) -> str | None:
    """The trace that it says it is in."""
    traceparent = request.told.traceparent
    return None if traceparent is None else traceparent.split("-")[1]


@spec("OB3")
def test_a_job_of_a_caller_without_a_trace_begins_one_at_the_server(traced: TraceContext) -> None:
    message = {"job_id": JOB.format(1), "queue": "q", "kind": "k"}

    made = traced.server.ask("POST", "/v1/jobs", message, token=traced.client_token)

    [span] = traced.spans("POST /v1/jobs", "SERVER")
    assert made.json["job"]["trace_id"].startswith(f"00-{span.trace}-{span.span}-")
