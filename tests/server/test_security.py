"""The security log: what a refused token, a foreign lease or an operator leaves behind."""

import errno
import json
import os
import stat
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tenure.core.ids import Namespace, QueueName
from tenure.core.tokens import TOKEN_ENTROPY_BYTES, mint
from tenure.core.vocabulary import Role
from tenure.errors import OutcomeUnknown
from tenure.telemetry import security
from tenure.telemetry.security import (
    MAX_LINES_PER_S,
    MAX_WAITING,
    SecurityEvent,
    SecurityLog,
    security_log,
)
from tenure_conformance.spec import spec
from tests.server.harness import JOB, Stage
from tests.server.processes import House
from tests.server.test_roles import EXAMPLES
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.process

C, P, W, O, V = Role  # noqa: E741 - as in the table


def noted(stage: Stage) -> list[dict[str, Any]]:
    """The lines since the last time."""
    assert stage.security.wait_written(PATIENCE_S)
    lines = [json.loads(line) for line in stage.noted]
    stage.noted.clear()
    return lines


@spec("OB11")
@pytest.mark.parametrize("shown", ["missing", "nonsense", "unknown", "wrong secret", "revoked"])
def test_a_refused_token_leaves_a_line_without_its_secret(stage: Stage, shown: str) -> None:
    known, text = stage.new_token(C, "app")
    unknown = mint(bytes([200]) * TOKEN_ENTROPY_BYTES)[2]
    tokens = {
        "missing": None,
        "nonsense": "hello",
        "unknown": unknown,
        "wrong secret": text[:-4] + "ffff",
        "revoked": text,
    }
    if shown == "revoked":
        stage.store.tokens.revoke(known.id)

    heard = stage.ask("GET", "/v1/jobs", token=tokens[shown])

    [line] = noted(stage)
    assert heard.status == 401
    assert (line["log"], line["event"], line["route"]) == ("security", "token_refused", "jobs")
    assert (line["request_id"], line["address"]) == (heard.json["request_id"], "127.0.0.1")
    assert "actor" not in line
    is_token = shown in ("unknown", "wrong secret", "revoked")
    assert line.get("token_id") == (str(tokens[shown]).split("_")[1] if is_token else None)
    for secret in (text, unknown, text[:-4] + "ffff"):
        assert secret.rpartition("_")[2] not in json.dumps(line)


@spec("OB11")
def test_a_scope_violation_leaves_a_line_with_who_it_was(stage: Stage) -> None:
    limited = {"namespace": Namespace("shop"), "queues": (QueueName("mine"),)}
    token, text = stage.new_token(C, "app", **limited)
    job_id = stage.enqueue(1, queue="q")

    stage.ask("POST", "/v1/jobs", {"queue": "q", "kind": "k"}, token=text)
    by_queue = noted(stage)
    stage.ask("POST", "/v1/queues/q/pause", token=text)
    by_role = noted(stage)
    stage.ask("GET", f"/v1/jobs/{job_id}", token=text)
    by_job = noted(stage)
    stage.ask("GET", f"/v1/jobs/{JOB.format(9)}", token=text)

    assert noted(stage) == [], "a job that nobody has is no violation"
    for [line] in (by_queue, by_role, by_job):
        assert line["event"] == "scope_violation"
        assert (line["actor"], line["namespace"]) == ("client:shop/app", "shop")
        assert line["token_id"] == token.id
    assert by_queue[0]["field"] == "queue"
    assert by_role[0]["route"] == "pause"
    assert by_job[0]["job_id"] == job_id


@spec("OB11")
@pytest.mark.parametrize("name", ["complete", "heartbeat", "upload-artifact", "output"])
def test_a_foreign_lease_leaves_a_line_without_its_id(stage: Stage, name: str) -> None:
    lease = stage.leased(1)
    thief = stage.token(W, "thief")
    message: dict[str, Any] = {**lease, "request_id": "r"}
    more: dict[str, Any] = {}
    method, path = "POST", f"/v1/{name}"
    if name == "heartbeat":
        message = {"leases": [{**lease, "hb_seq": 1}]}
    elif name == "output":
        message = {**lease, "text": "hello"}
    elif name == "upload-artifact":
        method, path = "PUT", f"/v1/jobs/{lease['job_id']}/artifacts/a"
        more = {"headers": {"Tenure-Lease": lease["lease_id"]}, "pieces": [b"x"]}

    stage.ask(method, path, None if more else message, token=thief, **more)

    [line] = noted(stage)
    assert (line["event"], line["actor"]) == ("foreign_lease", "worker:thief")
    assert (line["job_id"], line["number"]) == (lease["job_id"], 1)
    assert lease["lease_id"] not in json.dumps(line)


@spec("OB11")
def test_operator_actions_are_logged_and_reads_are_not(stage: Stage) -> None:
    job_id = stage.enqueue(1)
    stage.call("alive", EXAMPLES["alive"], role=W, worker="w")
    noted(stage)

    stage.call("pause", role=O, queue="q")
    stage.call("limit", {"limit": 3}, role=O, queue="q")
    stage.call("drain", role=O, worker="w")
    stage.call("cancel", {"request_id": "c", "mode": "hard"}, role=O, job_id=job_id)
    stage.call("requeue", {"request_id": "r"}, role=O, job_id=job_id)
    actions = noted(stage)
    stage.call("jobs", role=O)
    stage.call("job", role=O, job_id=job_id)
    stage.call("cancel", {"request_id": "d"}, role=C, job_id=job_id)

    assert noted(stage) == []
    assert [(line["event"], line["route"], line["status"]) for line in actions] == [
        ("operator_action", "pause", 200),
        ("operator_action", "limit", 200),
        ("operator_action", "drain", 200),
        ("operator_action", "cancel", 200),
        ("operator_action", "requeue", 409),
    ]
    assert {line["actor"] for line in actions} == {"operator:operator-1"}
    assert (actions[0]["queue"], actions[2]["worker"]) == ("q", "w")
    assert actions[3]["job_id"] == job_id


@spec("OB41")
def test_an_action_is_logged_with_what_was_asked_and_done(stage: Stage) -> None:
    jobs = [stage.enqueue(number) for number in (1, 2)]
    noted(stage)
    spec_of = {"queue": "q", "kind": "k", "every_s": 3600, "payload": {"pin": 1234}}

    stage.call("limit", {"limit": 3}, role=O, queue="q")
    stage.call("put-schedule", spec_of, role=O, schedule="s")
    many = {"job_ids": [*jobs, JOB.format(77)], "request_id": "c"}
    stage.call("cancel-many", many, role=O)
    limited, made, cancelled = noted(stage)

    assert json.loads(limited["asked"])["limit"] == 3
    assert json.loads(made["asked"])["every_s"] == 3600
    assert "1234" not in json.dumps(made)
    assert json.loads(cancelled["asked"])["job_ids"] == many["job_ids"]
    assert cancelled["done"] == 2


@spec("OB41")
def test_an_action_whose_outcome_is_unknown_is_logged(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OutcomeUnknown("the store was writing")

    monkeypatch.setattr(stage.store.settings, "put_queue", fail)
    answer = stage.call("limit", {"limit": 3}, role=O, queue="q")

    [line] = noted(stage)
    assert answer.status == 503
    assert (line["event"], line["route"]) == ("operator_action", "limit")
    assert (line["outcome"], line["queue"]) == ("unknown", "q")


@spec("OB41", "OB32")
def test_why_a_job_waits_is_no_violation_of_the_scope(stage: Stage) -> None:
    held = {"concurrency_key": "tenant-1"}
    stage.leased(1, **held)
    stage.enqueue(2, queue="other", **held)
    limited = stage.token(V, "limited", queues=("other",))
    noted(stage)

    answer = stage.ask("GET", f"/v1/jobs/{JOB.format(2)}/wait-reasons", token=limited)

    assert answer.status == 200
    assert noted(stage) == []


@spec("OB11")
def test_allowed_requests_write_no_security_line(stage: Stage) -> None:
    lease = stage.leased(1)
    stage.call("start", {**lease, "request_id": "s"}, role=W)
    stage.call("complete", {**lease, "request_id": "c"}, role=W)
    stage.call("complete", {**lease, "request_id": "c"}, role=W)
    stage.ask("GET", "/healthz")
    stage.ask("GET", "/nothing")

    assert noted(stage) == []


def written(log: SecurityLog, lines: list[str]) -> list[dict[str, Any]]:
    """All lines, once they are written."""
    assert log.wait_written(PATIENCE_S)
    return [json.loads(line) for line in lines]


@spec("OB12")
def test_a_flood_is_counted_and_its_lines_are_limited() -> None:
    now, lines = [100.0], list[str]()
    log = SecurityLog(lines.append, clock=lambda: now[0])

    for _ in range(1000):
        log.note(SecurityEvent.TOKEN_REFUSED, {"address": "192.0.2.1"})
    log.note(SecurityEvent.FOREIGN_LEASE, {})
    now[0] = 101.0
    log.note(SecurityEvent.TOKEN_REFUSED, {"address": "192.0.2.1"})

    shown = written(log, lines)
    assert len(shown) == MAX_LINES_PER_S + 2
    assert shown[-1]["left_out"] == 1000 - MAX_LINES_PER_S
    assert log.counts() == {
        "token_refused": 1001,
        "scope_violation": 0,
        "foreign_lease": 1,
        "operator_action": 0,
        "signed_in": 0,
        "signed_out": 0,
    }


@spec("OB12")
def test_each_action_of_an_operator_leaves_its_line(stage: Stage) -> None:
    job_id = stage.enqueue(1)
    noted(stage)

    for _ in range(2 * MAX_LINES_PER_S):  # the log's clock stands still
        stage.call("resume", role=O, queue="q")
    stage.call("cancel", {"request_id": "c", "mode": "hard"}, role=O, job_id=job_id)

    routes = [line["route"] for line in noted(stage)]
    assert routes == ["resume"] * 2 * MAX_LINES_PER_S + ["cancel"]


@spec("OB12")
def test_no_tenant_hides_the_lines_of_another(stage: Stage) -> None:
    loud = stage.token(C, "loud", namespace=Namespace("a"))
    quiet = stage.token(C, "quiet", namespace=Namespace("b"))

    for _ in range(2 * MAX_LINES_PER_S):
        stage.ask("POST", "/v1/queues/q/pause", token=loud)
    stage.ask("POST", "/v1/queues/q/pause", token=quiet)

    actors = [line["actor"] for line in noted(stage)]
    assert actors == ["client:a/loud"] * MAX_LINES_PER_S + ["client:b/quiet"]


@spec("OB11")
def test_a_line_is_one_line_whatever_is_in_it() -> None:
    lines = list[str]()
    log = SecurityLog(lines.append)

    log.note(SecurityEvent.SCOPE_VIOLATION, {"reason": 'a\n{"x":1}\u2028'})

    [shown] = written(log, lines)
    assert [line.count("\n") for line in lines] == [1]
    assert shown["reason"] == 'a\n{"x":1}\u2028'


@spec("OB14")
def test_a_line_that_cannot_be_written_fails_no_request_and_is_counted_later() -> None:
    lines = list[str]()
    is_full = [True]

    def write(line: str) -> None:
        if is_full[0]:
            raise OSError(errno.ENOSPC, "no space left on device")
        lines.append(line)

    log = SecurityLog(write)
    log.note(SecurityEvent.OPERATOR_ACTION, {})
    log.note(SecurityEvent.OPERATOR_ACTION, {})
    assert log.wait_written(PATIENCE_S)
    is_full[0] = False
    log.note(SecurityEvent.OPERATOR_ACTION, {})

    assert [line["lost"] for line in written(log, lines)] == [{"operator_action": 2}]
    assert log.counts()["operator_action"] == 3


@spec("OB14")
def test_lines_that_find_the_queue_full_are_counted_in_the_next_line() -> None:
    lines = list[str]()
    begun, may_write = threading.Event(), threading.Event()

    def write(line: str) -> None:
        begun.set()
        assert may_write.wait(PATIENCE_S)
        lines.append(line)

    log = SecurityLog(write, clock=lambda: 100.0)
    log.note(SecurityEvent.OPERATOR_ACTION, {"number": 0})
    assert begun.wait(PATIENCE_S)
    for number in range(MAX_WAITING // 2):
        log.note(SecurityEvent.OPERATOR_ACTION, {"number": 1 + number})
    log.note(SecurityEvent.TOKEN_REFUSED, {})  # the rest is for operators
    for number in range(MAX_WAITING // 2 + 7):
        log.note(SecurityEvent.OPERATOR_ACTION, {"number": 1 + MAX_WAITING // 2 + number})
    may_write.set()

    shown = written(log, lines)
    assert [line["number"] for line in shown] == list(range(1 + MAX_WAITING))
    assert [line["lost"] for line in shown if "lost" in line] == [
        {"token_refused": 1, "operator_action": 7}
    ]
    assert "lost" in shown[1]


@spec("OB14")
def test_closing_the_log_waits_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security, "CLOSE_WITHIN_S", 0.05)
    may_write = threading.Event()
    log = SecurityLog(lambda _: may_write.wait(PATIENCE_S))
    log.note(SecurityEvent.OPERATOR_ACTION, {})

    log.close()

    assert not log.wait_written(0)
    may_write.set()
    assert log.wait_written(PATIENCE_S)


@spec("OB14")
def test_a_closed_log_is_closed_again_at_once() -> None:
    log = SecurityLog(lambda _: None)
    log.note(SecurityEvent.OPERATOR_ACTION, {})
    log.close()
    began = time.monotonic()

    log.close()
    log.close()

    assert time.monotonic() - began < security.CLOSE_WITHIN_S


def test_only_the_owner_can_read_the_security_log(tmp_path: Path) -> None:
    path = tmp_path / "security.log"

    for log in (security_log(path), security_log(path)):
        log.note(SecurityEvent.TOKEN_REFUSED, {})
        log.close()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(path.read_text().splitlines()) == 2


@spec("OB14")
def test_a_server_answers_while_nobody_reads_its_log(tmp_path: Path) -> None:
    house = House(f"sqlite:///{tmp_path / 'house.db'}", tmp_path)
    client = house.token("client")
    reading, writing = os.pipe()
    server = house.serve(stderr=writing)
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"\n" * 1000)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"\n")
    os.set_blocking(writing, True)
    os.close(writing)

    for _ in range(3):
        assert server.ask("GET", "/v1/jobs", token=client[:-4] + "0000").status == 401
    assert server.ask("GET", "/healthz").status == 200
    assert server.stop() == 0
    house.close()
    os.close(reading)


@spec("OB11")
def test_a_server_writes_its_log_and_shows_its_counters(tmp_path: Path) -> None:
    house = House(f"sqlite:///{tmp_path / 'house.db'}", tmp_path)
    path = tmp_path / "security.log"
    operator, client = house.token("operator"), house.token("client")
    server = house.serve("--security-log", str(path))

    server.ask("GET", "/v1/jobs", token=client[:-4] + "0000")
    server.ask("POST", "/v1/queues/mail/pause", token=client)
    server.ask("POST", "/v1/queues/mail/pause", token=operator)
    shown = server.ask("GET", "/metrics", token=operator).body.decode()
    until(lambda: len(path.read_text().splitlines()) == 3, "three lines")
    server.stop()
    house.close()

    events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert events == ["token_refused", "scope_violation", "operator_action"]
    for event in events:
        assert f'tenure_security_events_total{{event="{event}"}} 1.0' in shown
    assert "security" not in server.log
