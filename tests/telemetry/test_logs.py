"""Log lines: one object a line, with the ids of what it is about and without secrets."""

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenure.core.tokens import TOKEN_ENTROPY_BYTES, mint
from tenure.core.vocabulary import Role
from tenure.server.threads import Blocking
from tenure.telemetry import tracing
from tenure.telemetry.log_lines import job_ids
from tenure.telemetry.logs import JsonFormatter, TextFormatter, redacted
from tenure_conformance.harness import Kit, MemoryFactory
from tenure_conformance.spec import spec
from tests.server.harness import Stage
from tests.server.processes import House
from tests.support.cases import each_case
from tests.support.waiting import until
from tests.telemetry.test_processes import Fleet
from tests.telemetry.test_tracing import TRACEPARENT

pytestmark = pytest.mark.process

SECRET = "hunter2"


def line_of(message: str, *args: object, **extra: Any) -> dict[str, Any]:
    record = logging.getLogger("tenure.test").makeRecord(
        "tenure.test", logging.WARNING, "file", 1, message, args, None, extra=extra
    )
    text = JsonFormatter().format(record)
    assert "\n" not in text
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


@spec("OB5")
def test_a_line_is_one_object_whatever_is_in_it() -> None:
    line = line_of("broken\r\n\x1b[31m%s", "\u2028 NUL \x00", note="two\nlines")

    assert line["message"] == "broken\r\n\x1b[31m\u2028 NUL \x00"
    assert line["note"] == "two\nlines"
    assert (line["level"], line["logger"]) == ("warning", "tenure.test")
    assert line["ts"].endswith("Z")


def text_of(message: str, *args: object, **more: Any) -> str:
    given = {"msg": message, "args": args, "levelname": "WARNING"}
    return TextFormatter().format(logging.makeLogRecord(given | more))


def test_a_line_of_text_cannot_begin_another_one() -> None:
    forged = "2026-01-01 00:00:00,000 ERROR the disk is full"

    line = text_of("worker %s left", f"w\r\n{forged}\x1b[2J\u2028{forged}\x85\x0b\x0c")

    assert line.isprintable()
    assert "w\\r\\n2026" in line
    assert "\\x1b[2J\\u20282026" in line


def test_a_stack_below_a_line_of_text_is_set_in() -> None:
    forged = "2026-01-01 00:00:00,000 ERROR the disk is full"
    try:
        raise ValueError(f"no\n{forged}\x1b[2J")
    except ValueError:
        failure = sys.exc_info()

    printed = "one\r\n\n\ttwo"
    first, *below = text_of("it failed", exc_info=failure, below=printed).split("\n")

    assert first.endswith("WARNING it failed")
    assert below[:2] == ["  one", "  \\ttwo"]
    assert below[2] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") and line.isprintable() for line in below)
    assert f"  {forged}\\x1b[2J" in below


def test_a_token_is_left_out_wherever_it_stands() -> None:
    token_id, _, text = mint(bytes(range(TOKEN_ENTROPY_BYTES)))
    said = f"who is {text}?"

    assert text_of(said).endswith(f"who is tenure_{token_id}_[redacted]?")
    assert line_of(said, about=[text])["message"] == f"who is tenure_{token_id}_[redacted]?"
    assert line_of(said, about=[text])["about"] == [f"tenure_{token_id}_[redacted]"]


@spec("OB5")
@each_case(
    "extra",
    [
        {"password": SECRET},
        {"Authorization": f"Bearer {SECRET}"},
        {"api_key": SECRET, "kept": 1},
        {"client_secret": [SECRET]},
        {"lease_id": SECRET},
        {"headers": {"Cookie": SECRET}},
        {"deep": [{"more": ({"session_token": SECRET},)}]},
        {"about": f"postgresql://me:{SECRET}@db/x"},
        {"about": f"retry with password={SECRET}, please"},
        {"about": f'{{"token": "{SECRET}"}}'},
    ],
)
def test_what_is_secret_by_its_name_is_left_out(extra: dict[str, Any]) -> None:
    line = line_of("something about %s", "it", **extra)

    assert SECRET not in json.dumps(line)
    assert "[redacted]" in json.dumps(line)
    assert line.get("kept", 1) == 1


def test_secrets_in_messages_and_stacks_are_left_out_of_both_formats() -> None:
    try:
        raise ValueError(f"cannot reach postgresql://me:{SECRET}@db/x")
    except ValueError:
        failure = sys.exc_info()
    record = logging.makeLogRecord(
        {"msg": f"secret: {SECRET}", "levelname": "ERROR", "exc_info": failure}
    )

    for formatter in (JsonFormatter(), TextFormatter()):
        text = formatter.format(record)
        assert SECRET not in text
        assert "ValueError: cannot reach postgresql://me:[redacted]@db/x" in text


def test_what_is_no_secret_stays() -> None:
    kept = {"queue": "mail", "count": 3, "ratio": 0.5, "no": None, "yes": True, "names": ["a", "b"]}

    assert redacted(kept) == kept
    assert redacted("a token of mine was used") == "a token of mine was used"
    assert redacted([[[[[[[[SECRET]]]]]]]]) == [[[[[["[redacted]"]]]]]]


def test_a_line_about_a_job_has_its_ids() -> None:
    kit = Kit(MemoryFactory())
    job = kit.claimed_job(correlation_id="order-7", trace_id=TRACEPARENT)
    kit.close()

    line = line_of("lost", **job_ids(job))

    assert (line["job_id"], line["kind"], line["attempt"]) == (job.id, "task", 1)
    assert (line["correlation_id"], line["trace_id"]) == ("order-7", TRACEPARENT)


def test_a_line_made_within_a_trace_has_it() -> None:
    with tracing.use_trace(tracing.TraceContext(traceparent=TRACEPARENT, correlation_id="order-7")):
        line = line_of("hello")

    assert (line["correlation_id"], line["trace_id"]) == ("order-7", TRACEPARENT)
    assert "trace_id" not in line_of("hello")


@spec("OB5")
def test_a_line_made_on_a_thread_of_the_server_has_the_requests_ids() -> None:
    async def request() -> dict[str, Any]:
        with tracing.use_trace(
            tracing.TraceContext(traceparent=TRACEPARENT, correlation_id="order-7")
        ):
            return await blocking(lambda: line_of("slow"))

    blocking = Blocking(1)
    line = asyncio.run(request())
    blocking.close()

    assert (line["trace_id"], line["correlation_id"]) == (TRACEPARENT, "order-7")


def test_a_failed_request_is_logged_with_its_id_and_trace(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.handler.setFormatter(JsonFormatter())
    stage = Stage()

    def fail() -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(stage.coordinator.store, "now", fail)
    headers = {"traceparent": TRACEPARENT, "x-request-id": "request-1"}
    answer = stage.ask("GET", "/v1/time", token=stage.of(Role.CLIENT), headers=headers)
    stage.close()

    line = json.loads(caplog.text.strip().splitlines()[-1])
    assert answer.status == 500
    assert (line["request_id"], line["trace_id"]) == ("request-1", TRACEPARENT)
    assert "RuntimeError: a bug" in line["exception"]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(f"sqlite:///{tmp_path / 'logs.db'}", tmp_path)
    yield house
    house.close()


@spec("OB5")
def test_a_workers_lines_are_json_and_name_the_job_they_are_about(
    house: House, tmp_path: Path
) -> None:
    fleet = Fleet(tmp_path, {"TENURE_URL": house.url})
    fleet.start("talker", "--log-format", "json")
    words = ("enqueue", "linger", '{"seconds": 30}', "--correlation-id", "order-7", "--json")
    made = house.tenure(*words)
    job_id = json.loads(made.stdout)["id"]

    def shown() -> str:
        return str(
            json.loads(house.tenure("jobs", "show", job_id, "--json").stdout)["job"]["status"]
        )

    until(lambda: shown() == "running", "it runs")
    cancelled = house.tenure("jobs", "cancel", job_id, "--hard")
    assert cancelled.returncode == 0, cancelled
    until(lambda: "CANCELLED" in fleet.log("talker"), "the worker has heard of it")
    fleet.workers["talker"].send_signal(signal.SIGTERM)
    fleet.workers["talker"].wait(60)

    lines = [json.loads(line) for line in fleet.log("talker").splitlines()]
    fleet.close()
    about = [line for line in lines if "CANCELLED" in line["message"]]
    assert {(line["job_id"], line["correlation_id"]) for line in about} == {(job_id, "order-7")}
    assert all(line["ts"] and line["level"] for line in lines)


@spec("OB5")
def test_a_servers_lines_are_json(house: House) -> None:
    server = house.serve("--log-format", "json", "--no-auth")
    code = server.stop()

    assert code == 0
    for line in server.log.splitlines():
        json.loads(line)
