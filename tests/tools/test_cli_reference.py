"""The reference page: written from the commands, and true of what they print."""

import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenure import Tenure
from tenure.coordinator.service import Coordinator
from tenure.core.artifacts import ArtifactUpload, AttemptOutput
from tenure.core.claims import ClaimRequest
from tenure.core.commands import Complete
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Kind,
    QueueName,
    RequestId,
    WorkerId,
    worker_actor,
)
from tenure.core.instants import Duration
from tenure.core.workers import WorkerProcess
from tenure.stores.sqlite.store import SqliteStore
from tests.cli.harness import Run, tenure
from tools.cli_reference import commands, page, shape_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "cli.md"
RIGHT = f"{sys.executable} -m tests.conformance_worker.worker"

WORDS = {
    "enqueue": "enqueue mail",
    "jobs ls": "jobs ls",
    "jobs show": "jobs show {done} --bodies",
    "jobs events": "jobs events {done}",
    "jobs artifacts": "jobs artifacts {done}",
    "jobs logs": "jobs logs {done}",
    "jobs wait": "jobs wait {done}",
    "jobs cancel": "jobs cancel --all --yes",
    "jobs rerun": "jobs rerun {done}",
    "jobs stall": "jobs stall {done}",
    "jobs requeue": "jobs requeue {done}",
    "jobs dead-letter": "jobs dead-letter {done}",
    "dlq ls": "dlq ls --resolved",
    "dlq redrive": "dlq redrive {dead} --again",
    "dlq discard": "dlq discard {dead}",
    "queues ls": "queues ls",
    "flows ls": "flows ls",
    "flows show": "flows show {flow}",
    "flows wait": "flows wait {flow}",
    "flows cancel": "flows cancel {flow}",
    "flows redrive": "flows redrive {flow}",
    "kinds ls": "kinds ls",
    "schedules ls": "schedules ls",
    "schedules show": "schedules show hourly",
    "schedules sync": "schedules sync tests.e2e.scheduled:app",
    "workers ls": "workers ls",
    "events": "events --type job_enqueued --since 1h",
    "stats": "stats",
    "tokens create": "tokens create ann --role viewer",
    "tokens ls": "tokens ls",
    "doctor": "doctor",
    "verify": "verify",
    "conform worker": f"conform worker --scenario success -- {RIGHT}",
}
"""How each command that has --json is run on the store below."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TENURE_URL", f"sqlite:///{tmp_path / 'tenure.db'}")

    return tenure


@pytest.fixture
def ids(run: Run, tmp_path: Path) -> dict[str, str]:
    """A store with a little of everything: `done` ran and left something, `dead` was redriven."""
    run("enqueue", "mail", "--delay", "1h", "--correlation-id", "order-7")
    done = run("enqueue", "mail", '{"to":"ada"}', "--priority", "1").stdout.strip()
    store = SqliteStore(tmp_path / "tenure.db")
    coordinator = Coordinator(store)
    _work(coordinator)
    coordinator.close()
    store.close()
    dead = run("enqueue", "mail").stdout.strip()
    run("jobs", "dead-letter", dead, "-m", "spam")
    assert run("dlq", "redrive", dead).exit_code == 0
    run("tokens", "create", "bob", "--role", "client")
    run("kinds", "limit", "mail", "--rate", "10/s")
    run("schedules", "add", "hourly", "mail", "--every", "1h")
    assert run("schedules", "run", "hourly").exit_code == 0
    with Tenure(f"sqlite:///{tmp_path / 'tenure.db'}") as app, app.flow("import") as flow:
        page = flow.add(app.call("fetch"))
        flow.add(app.call("merge"), after=page)
    assert run("flows", "cancel", flow.id).exit_code == 0
    return {"done": done, "dead": dead, "flow": flow.id}


def _work(coordinator: Coordinator) -> None:
    """What a worker does with one job: it signs, runs it, prints, leaves a file."""
    actor = worker_actor("w")
    process = WorkerProcess(
        namespace=DEFAULT_NAMESPACE,
        worker=WorkerId("w"),
        actor=actor,
        host="here",
        pid=7,
        queues=(QueueName("default"),),
        kinds=(Kind("mail"),),
        concurrency=1,
        version="1",
        uptime_us=Duration(0),
    )
    coordinator.store.workers.see(process)
    request = ClaimRequest(
        namespace=DEFAULT_NAMESPACE,
        worker=WorkerId("w"),
        actor=actor,
        queues=(QueueName("default"),),
        limit=1,
        claim_seq=1,
        request_id=RequestId("claim"),
    )
    [grant] = coordinator.claim(request).grants
    lease: Any = {"job_id": grant.job_id, "lease_id": grant.lease_id, "actor": actor}
    coordinator.store.artifacts.stage(ArtifactUpload(name="report.txt", body=b"done", **lease))
    coordinator.store.artifacts.put_log(AttemptOutput(text="hello\n", left_out_bytes=0, **lease))
    coordinator.execute(Complete(request_id=RequestId("complete"), result=b"7", **lease))


@pytest.mark.slow
def test_the_page_is_written_from_the_commands() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make docs-generated`"


def test_every_command_that_has_json_is_run_here() -> None:
    assert WORDS.keys() == {name for name, each in commands() if shape_of(each) is not None}


@pytest.mark.process
@pytest.mark.parametrize("name", WORDS)
def test_what_a_command_prints_is_what_the_page_says(
    run: Run, ids: dict[str, str], name: str
) -> None:
    shape = shape_of(dict(commands())[name])
    words = [word.format(**ids) for word in WORDS[name].split()]
    words.insert(len(name.split()), "--json")

    printed = run(*words).stdout

    # Decoding ignores what the type does not have: written again, it would be missing.
    told = msgspec.json.decode(printed, type=shape)
    assert msgspec.json.decode(msgspec.json.encode(told)) == msgspec.json.decode(printed)
    assert told, "an empty list shows nothing"


def test_every_link_of_the_page_leads_somewhere() -> None:
    text = PAGE.read_text(encoding="utf-8")

    for file, anchor in re.findall(r"\]\(([a-z-]*(?:\.md)?)#?([a-z-]*)\)", text):
        target = (PAGE.parent / file if file else PAGE).read_text(encoding="utf-8")
        heads = [line.lstrip("#").strip().lower() for line in target.splitlines() if "#" in line]
        assert not anchor or anchor in heads, f"{file}#{anchor}"
