"""A store in which every field that takes any text has a hostile one."""

import json
from typing import Any
from urllib.parse import quote

from tenure.core.vocabulary import Role
from tests.dashboard.harness import DashboardStage
from tests.server.harness import JOB

SHORT = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "{{ 777771 * 777773 }}{% raw %}{# #}",
    "javascript:alert(1)",
    "\u202egnp.exe\u2066\u200b\ufeff",
    "</title></td></table><svg onload=alert(1)>",
)
"""Texts that fit into the shortest fields."""

WORD = "W" * 60_000
"""A word without a space, longer than any screen."""
MEGABYTE = "M" * 1_000_000

FORBIDDEN = (
    "<script>alert",
    "<img src=x",
    "<svg onload",
    "604929283983",
    "\u202e",
    "\u2066",
    "\x1b",
    "\x07",
)
"""What no page may contain; the number is what the template syntax would compute."""


def furnish_hostile(stage: DashboardStage) -> list[str]:
    """Fill a store; the ids of its jobs."""
    ids = []
    for number, text in enumerate((*SHORT, "\x1b[31m\x07" + WORD)):
        ids.append(_dead_job(stage, 100 + number, text))
    big = {"text": MEGABYTE, **{text: text for text in SHORT}}
    ids.append(stage.enqueue(200, payload=big, correlation_id=SHORT[0]))
    for number, text in enumerate(SHORT):
        _worker(stage, f"w{number}", text)
        schedule = {"kind": "k", "queue": "q", "every_s": 60.0, "declared_by": text}
        _ask(stage, "put-schedule", {**schedule, "payload": text}, schedule=f"s{number}")
    _flow(stage)
    longest = "n" * 128
    _ask(stage, "limit", {"limit": 1}, queue=longest)
    _ask(stage, "set-kind", {"rate": "1/s"}, kind=longest)
    _worker(stage, longest, "host")
    _ask(
        stage,
        "put-schedule",
        {"kind": longest, "queue": longest, "cron": "0 3 * * *"},
        schedule=longest,
    )
    return ids


def _ask(stage: DashboardStage, route: str, message: object, **path: str) -> Any:
    answer = stage.call(route, message, role=Role.OPERATOR, **path)
    assert answer.status < 300, (route, answer)
    return answer.json


def _dead_job(stage: DashboardStage, number: int, text: str) -> str:
    short = text[:200]
    job_id = stage.enqueue(
        number,
        payload={"text": text},
        correlation_id=_label(short),
        dedupe_key=_label(short),
        concurrency_key=_label(short),
        meta={"note": short},
        priority=100,
    )
    [grant] = stage.claim(worker="w", start=True)
    lease = {"job_id": job_id, "lease_id": grant["lease_id"]}
    worker = stage.of(Role.WORKER)
    note = {"done": 1, "total": 2, "note": text[:4096]}
    for path, message in (
        ("heartbeat", {"leases": [{**lease, "hb_seq": 1, "progress": note}]}),
        ("output", {**lease, "text": text}),
        (
            "fail",
            {
                **lease,
                "request_id": f"fail-{number}",
                "error": {"type": text[:128], "message": text, "traceback": text},
            },
        ),
    ):
        answer = stage.ask("POST", f"/v1/{path}", message, token=worker)
        assert answer.status == 200, json.dumps(answer.json)
    reason = {"request_id": f"dead-{number}", "reason": text[:4096]}
    stage.call("dead-letter", reason, role=Role.OPERATOR, job_id=job_id)
    return job_id


def _label(text: str) -> str:
    """Labels take no control characters."""
    return "".join(each for each in text if each.isprintable()) or "x"


def _worker(stage: DashboardStage, name: str, text: str, version: str | None = None) -> None:
    sign = {
        "host": text,
        "pid": 1,
        "queues": ["q"],
        "concurrency": 2,
        "version": version or text,
        "uptime_s": 5.0,
    }
    answer = stage.call("alive", sign, role=Role.WORKER, worker=name)
    assert answer.status == 200, answer


def _flow(stage: DashboardStage) -> None:
    jobs: list[dict[str, object]] = []
    for number, text in enumerate(SHORT):
        name = _label(text)
        job = {"job_id": JOB.format(300 + number), "queue": "q", "kind": "k"}
        after = [{"job_id": JOB.format(299 + number), "name": jobs[-1]["name"]}] if jobs else []
        jobs.append({"name": name, "job": job, "after": after})
    flow = {"flow_id": JOB.format(399), "name": _label(SHORT[1]), "jobs": jobs}
    stage.call("flow", flow, role=Role.OPERATOR)


# --- One mark for each field, so that a test can tell which fields a page shows -----------------

LIVE, DEAD, DISCARDED, CANCELLED, DONE = (JOB.format(number) for number in range(250, 255))
MARKED_FLOW = JOB.format(261)


def mark(field: str) -> str:
    """Markup that would run, and that names its field."""
    return f"<img src=x onerror=alert('{field}')>"


def name_mark(field: str) -> str:
    """The most that a name can do: names have letters, digits and `._:/-`."""
    up = "...." if field == "artifact" else "../.."  # names of artifacts lead to no other folder
    return f"javascript:alert/{up}/{field}"


QUEUE, KIND, WORKER, SCHEDULE = map(name_mark, ("queue", "kind", "worker", "schedule"))

TEXTS: dict[str, str] = {
    "payload": f"/jobs/{LIVE}",
    "checkpoint": f"/jobs/{LIVE}",
    "progress note": f"/jobs/{LIVE}",
    "output": f"/jobs/{LIVE}",
    "correlation_id": f"/jobs/{LIVE}",
    "dedupe_key": f"/jobs/{LIVE}",
    "concurrency_key": f"/jobs/{LIVE}",
    "meta": f"/jobs/{LIVE}",
    "error type": f"/jobs/{DEAD}",
    "error message": f"/jobs/{DEAD}",
    "traceback": f"/jobs/{DEAD}",
    "discard note": f"/jobs/{DISCARDED}",
    "cancel reason": f"/jobs/{CANCELLED}",
    "result": f"/jobs/{DONE}",
    "host": f"/workers/{quote(WORKER, safe='')}",
    "version": f"/workers/{quote(WORKER, safe='')}",
    "declared_by": f"/schedules/{quote(SCHEDULE, safe='')}",
    "flow": f"/flows/{MARKED_FLOW}",
    "flow step": f"/flows/{MARKED_FLOW}",
    "searched": f"/search?q={quote(mark('searched'))}",
    "filtered error": f"/jobs?error={quote(mark('filtered error'))}",
}
"""The page that shows the mark of each field that takes any text."""

NAMES: dict[str, str] = {
    QUEUE: "/queues",
    KIND: "/kinds",
    WORKER: "/workers",
    SCHEDULE: "/schedules",
    name_mark("artifact"): f"/jobs/{DONE}",
}
"""The page that shows each name."""


def furnish_marked(stage: DashboardStage) -> None:
    """A mark in each of these fields."""
    keys = {key: mark(key) for key in ("correlation_id", "dedupe_key", "concurrency_key")}
    meta = {"note": mark("meta")}
    live = _leased(stage, 250, queue=QUEUE, payload={"it": mark("payload")}, **keys, meta=meta)
    note = {"done": 1, "total": 2, "note": mark("progress note")}
    beat = {**live, "hb_seq": 1, "progress": note, "checkpoint": mark("checkpoint")}
    _report(stage, "heartbeat", {"leases": [beat]})
    _report(stage, "output", {**live, "text": mark("output")})
    error = {
        "type": mark("error type"),
        "message": mark("error message"),
        "traceback": mark("traceback"),
    }
    for number in (251, 252):
        dead = _leased(stage, number, policy={"max_attempts": 1})
        _report(stage, "fail", {**dead, "request_id": f"end-{number}", "error": error})
    discard = {"request_id": "discard", "note": mark("discard note")}
    _ask(stage, "discard", discard, job_id=DISCARDED)
    stage.enqueue(253)
    stop = {"request_id": "stop", "reason": mark("cancel reason")}
    _ask(stage, "cancel", stop, job_id=CANCELLED)
    done = _leased(stage, 254, kind=KIND)
    _upload(stage, done, name_mark("artifact"))
    ended = {**done, "request_id": "done", "result": {"it": mark("result")}}
    _report(stage, "complete", ended)
    _worker(stage, WORKER, mark("host"), version=mark("version"))
    spec = {"kind": KIND, "queue": QUEUE, "every_s": 60.0, "declared_by": mark("declared_by")}
    _ask(stage, "put-schedule", spec, schedule=SCHEDULE)
    step = {
        "name": mark("flow step"),
        "job": {"job_id": JOB.format(260), "queue": QUEUE, "kind": KIND},
    }
    flow = {"flow_id": MARKED_FLOW, "name": mark("flow"), "jobs": [step]}
    _ask(stage, "flow", flow)


def _leased(
    stage: DashboardStage, number: int, queue: str = "marked", **job: Any
) -> dict[str, str]:
    job_id = stage.enqueue(number, queue=queue, **job)
    [grant] = stage.claim(worker="w", queues=[queue], start=True)
    return {"job_id": job_id, "lease_id": grant["lease_id"]}


def _report(stage: DashboardStage, route: str, message: object) -> None:
    answer = stage.call(route, message, role=Role.WORKER)
    assert answer.status == 200, (route, answer)


def _upload(stage: DashboardStage, lease: dict[str, str], name: str) -> None:
    put = {"headers": {"Tenure-Lease": lease["lease_id"]}, "pieces": [b"file"]}
    job_id = lease["job_id"]
    answer = stage.call("upload-artifact", role=Role.WORKER, job_id=job_id, name=name, **put)
    assert answer.status == 200, answer
