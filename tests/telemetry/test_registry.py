"""An application's own registry shows what the application committed."""

import re
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from socketserver import BaseServer
from urllib.request import urlopen

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tenure import Tenure
from tenure.errors import InvalidInput, TenureError, install_hint
from tenure.telemetry.counts import Counts
from tenure.telemetry.metrics import Metrics, MetricsAddress, exposed
from tenure_conformance.spec import spec
from tests.support.commands import ROOT
from tests.support.waiting import PATIENCE_S, until
from tests.telemetry.scrape import samples, total


def enqueue_one(app: Tenure) -> None:
    @app.job(queue="q")
    def work() -> None: ...

    work.enqueue()
    app.close()


@spec("OB24")
def test_a_registry_that_is_given_shows_what_the_application_committed(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    app = Tenure(f"sqlite:///{tmp_path / 'own.db'}", metrics=registry)
    before = generate_latest(registry)

    enqueue_one(app)
    text = generate_latest(registry)

    assert total(before, "tenure_transitions_total") == 0
    assert total(text, "tenure_transitions_total", type="enqueued", kind="work") == 1


def test_true_means_the_librarys_default_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)

    enqueue_one(Tenure("memory://", metrics=True))

    assert total(generate_latest(registry), "tenure_transitions_total") == 1


def test_nothing_is_registered_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", registry)

    enqueue_one(Tenure("memory://"))

    assert generate_latest(registry) == b""


def test_a_second_application_in_one_registry_is_refused() -> None:
    registry = CollectorRegistry()
    Tenure("memory://", metrics=registry)

    with pytest.raises(InvalidInput, match="already has Tenure's metrics"):
        Tenure("memory://", metrics=registry)


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.telemetry.metrics.find_spec", lambda name: None)

    with pytest.raises(TenureError, match=re.escape(install_hint("metrics"))):
        Tenure("memory://", metrics=True)


FORKS = """
import os, sys
from prometheus_client import REGISTRY
from tenure import Tenure
app = Tenure(sys.argv[1], metrics=True)
job = app.job(queue="q", name="work")(lambda: None)
labels = {"namespace": "default", "kind": "work", "type": "enqueued"}
count = lambda: REGISTRY.get_sample_value("tenure_transitions_total", labels)
job.enqueue()
child = os.fork()
if child:
    os.waitpid(child, 0)
else:
    assert count() is None, "the child counts what its parent committed"
for _ in range(1 if child else 3):
    job.enqueue()
print(count(), flush=True)
app.close()
"""


@pytest.mark.process
@spec("OB24")
def test_a_forked_process_counts_only_what_it_commits_itself(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'forks.db'}"
    ran = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, url],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.split() == ["3", "2"]


def test_a_port_shows_the_metrics_while_it_is_open() -> None:
    worker = {"succeeded": 3}
    metrics = Metrics(Counts(), worker=lambda: worker)

    with exposed(metrics, MetricsAddress("127.0.0.1", 0)) as port:
        text = urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read()

    assert samples(text).keys() == {"tenure_worker_events_total", "tenure_claim_conflicts_total"}
    with pytest.raises(OSError, match="refused"):
        urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30)


def test_the_port_of_a_worker_is_closed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BaseServer.serve_forever, "__defaults__", (PATIENCE_S,))  # its poll
    began = time.monotonic()

    with exposed(Metrics(Counts()), MetricsAddress("127.0.0.1", 0)):
        pass

    assert time.monotonic() - began < PATIENCE_S / 2


def test_the_port_of_a_worker_cuts_off_a_caller_that_sends_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tenure.telemetry.metrics.CALLER_TIMEOUT_S", 0.1)

    with (
        exposed(Metrics(Counts()), MetricsAddress("127.0.0.1", 0)) as port,
        socket.create_connection(("127.0.0.1", port), timeout=60) as caller,
    ):
        received = caller.recv(1)

    assert received == b""  # closed by the server
    assert capfd.readouterr().err == ""


def test_the_port_of_a_worker_answers_only_so_many_callers_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tenure.telemetry.metrics.MAX_CALLERS", 2)
    monkeypatch.setattr("tenure.telemetry.metrics.CALLER_TIMEOUT_S", 600.0)

    def is_answered(port: int) -> bool:
        try:
            return b"tenure" in urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read()
        except (OSError, HTTPException):
            return False

    metrics = Metrics(Counts(), worker=lambda: {"succeeded": 3})
    with exposed(metrics, MetricsAddress("127.0.0.1", 0)) as port:
        with ExitStack() as silent:
            for _ in range(2):
                silent.enter_context(socket.create_connection(("127.0.0.1", port)))
            with socket.create_connection(("127.0.0.1", port), timeout=60) as third:
                received = third.recv(1)
        until(lambda: is_answered(port), "those who left made room")

    assert received == b""  # closed at once, not after a silence


def test_a_caller_of_a_workers_port_that_resets_its_connection_is_not_a_fault(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with exposed(Metrics(Counts()), MetricsAddress("127.0.0.1", 0)) as port:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as caller:
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                caller.sendall(b"GET /metrics HTTP/1.1\r\n")
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            answer.read()

    assert capfd.readouterr().err == ""
