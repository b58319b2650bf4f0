"""`tenure workers`, `tenure doctor`, `tenure jobs artifacts` and `logs`, against a SQLite file."""

import json
from pathlib import Path
from typing import Any

import pytest

from tenure.coordinator.service import Coordinator
from tenure.core.artifacts import ArtifactUpload, AttemptOutput
from tenure.core.commands import Complete, Heartbeat, Start
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Kind,
    QueueName,
    RequestId,
    WorkerId,
)
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration
from tenure.core.vocabulary import WorkerState
from tenure.core.workers import SILENT_AFTER, WorkerProcess
from tests.cli.harness import WORKER, Run, claimed


@pytest.fixture
def job_id(run: Run, serving: Coordinator) -> str:
    """A job that succeeded and left a file and some output behind."""
    run("enqueue", "mail")
    grant = claimed(serving)
    serving.store.artifacts.stage(
        ArtifactUpload(
            job_id=grant.job_id,
            lease_id=grant.lease_id,
            actor=WORKER,
            name="report.bin",
            body=b"\x00\xff\x1b[31m",
        )
    )
    serving.store.artifacts.put_log(
        AttemptOutput(
            job_id=grant.job_id,
            lease_id=grant.lease_id,
            actor=WORKER,
            text="step 1\nstep 2 \x1b[31mred",
            left_out_bytes=5,
        )
    )
    serving.execute(
        Complete(
            job_id=grant.job_id,
            lease_id=grant.lease_id,
            actor=WORKER,
            request_id=RequestId("done"),
            result=b"1",
        )
    )
    return grant.job_id


def test_artifacts_are_listed_and_fetched_byte_for_byte(
    run: Run, job_id: str, tmp_path: Path
) -> None:
    listed = json.loads(run("jobs", "artifacts", job_id, "--json").stdout)
    piped = run("jobs", "artifacts", job_id, "report.bin")
    saved = run("jobs", "artifacts", job_id, "report.bin", "-o", str(tmp_path / "out"))

    assert [(each["name"], each["size"], each["attempt"]) for each in listed] == [
        ("report.bin", 7, 1)
    ]
    assert "report.bin" in run("jobs", "artifacts", job_id).stdout
    assert piped.stdout_bytes == (tmp_path / "out").read_bytes() == b"\x00\xff\x1b[31m"
    assert (saved.exit_code, saved.stdout) == (0, "")


def test_an_artifact_that_is_not_there_is_one_clear_line(run: Run, job_id: str) -> None:
    result = run("jobs", "artifacts", job_id, "other")

    assert (result.exit_code, result.stderr) == (
        1,
        f"tenure: job {job_id}, which is succeeded, has no artifact other\n",
    )
    assert run("jobs", "artifacts", job_id, "-o", "x").exit_code == 2


def test_a_file_that_cannot_be_written_is_named(run: Run, job_id: str, tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "copy"

    result = run("jobs", "artifacts", job_id, "report.bin", "-o", str(missing))

    assert result.exit_code == 2
    assert result.stderr == f"tenure: {str(missing)!a}: No such file or directory\n"


def test_the_output_of_a_handler_is_shown_with_control_characters_escaped(
    run: Run, job_id: str
) -> None:
    shown = run("jobs", "logs", job_id)

    assert shown.stdout == "step 1\nstep 2 \\x1b[31mred\n"
    assert shown.stderr == "attempt 1, 5 bytes left out\n"
    assert run("jobs", "logs", job_id, "--attempt", "2").stdout == ""
    assert json.loads(run("jobs", "logs", job_id, "--json").stdout)[0]["left_out_bytes"] == 5


PROCESS = WorkerProcess(
    namespace=DEFAULT_NAMESPACE,
    worker=WorkerId("w-1"),
    actor=WORKER,
    host="host-1",
    pid=7,
    queues=(QueueName("a"), QueueName("b")),
    concurrency=4,
    version="0.1.0",
    uptime_us=Duration(1_000_000),
    kinds=(Kind("mail"), Kind("fax")),
)


def test_a_pruned_renewal_is_shown_with_the_worker_that_sent_it(
    run: Run, serving: Coordinator
) -> None:
    run("enqueue", "mail")
    grant = claimed(serving)
    held: dict[str, Any] = {"job_id": grant.job_id, "lease_id": grant.lease_id, "actor": WORKER}
    serving.execute(Start(**held, request_id=RequestId("start")))
    run("jobs", "cancel", grant.job_id)
    serving.execute(Heartbeat(**held, hb_seq=1))
    serving.execute(Complete(**held, request_id=RequestId("done"), result=b"1"))
    assert serving.store.upkeep.delete("renewals", older_than_us=Duration(0), limit=10).deleted == 1

    shown = [line.split() for line in run("jobs", "events", grant.job_id).stdout.splitlines()]

    assert [line[0] for line in shown[1:]] == ["1", "2", "3", "4", "5", "6"]
    assert shown[5] == ["5", "-", "renewal", "-", "1", WORKER, "pruned"]


def test_show_says_why_a_job_waits(run: Run, serving: Coordinator) -> None:
    def waiting(*words: str) -> str | None:
        job_id = run("enqueue", *words).stdout.strip()
        told: str | None = json.loads(run("jobs", "show", job_id, "--json").stdout)["waiting"]
        assert told is None or told in run("jobs", "show", job_id).stdout
        return told

    serving.store.workers.see(PROCESS)
    serving.store.settings.put_queue(DEFAULT_NAMESPACE, QueueName("b"), paused=True, limit=None)
    served, stranger = waiting("mail", "-q", "a"), waiting("telex", "-q", "a")
    elsewhere, paused = waiting("mail", "-q", "c"), waiting("mail", "-q", "b")
    later = waiting("mail", "-q", "a", "--delay", "1h")
    run("workers", "drain", "w-1")

    assert served is None
    assert stranger == "no worker is alive that takes kind telex from queue a"
    assert elsewhere == "no worker is alive that takes kind mail from queue c"
    assert paused == "queue b is paused"
    assert later is not None
    assert later.startswith("it is not due before ")
    assert waiting("fax", "-q", "a") == "no worker is alive that takes kind fax from queue a"


def test_a_queue_at_its_limit_is_named(run: Run, serving: Coordinator) -> None:
    serving.store.workers.see(PROCESS)
    serving.store.settings.put_queue(DEFAULT_NAMESPACE, QueueName("default"), paused=None, limit=1)
    run("enqueue", "mail")
    claimed(serving)
    job_id = run("enqueue", "mail").stdout.strip()

    assert "queue default is at its limit of 1" in run("jobs", "show", job_id).stdout


def test_workers_are_listed_and_drained(run: Run, serving: Coordinator) -> None:
    before = serving.store.workers.see(PROCESS)

    drained = run("workers", "drain", "w-1")

    (view,) = json.loads(run("workers", "ls", "--json").stdout)
    assert (before, drained.exit_code, serving.store.workers.see(PROCESS)) == (False, 0, True)
    assert (view["worker"], view["state"], view["queues"]) == ("w-1", "draining", ["a", "b"])
    assert "host-1" in run("workers", "ls").stdout


def test_drain_refuses_an_unknown_worker(run: Run, serving: Coordinator) -> None:
    result = run("workers", "drain", "nobody")

    assert (result.exit_code, "there is no worker nobody" in result.stderr) == (2, True)


def test_the_help_says_what_each_state_of_a_worker_means(run: Run) -> None:
    said = run("workers", "ls", "--help").stdout

    for state in WorkerState:
        assert f"\n  {state} " in said
    assert f"more than {SILENT_AFTER // MICROSECONDS_PER_SECOND} seconds" in said
    assert max(map(len, said.splitlines())) <= 80


def test_the_doctor_names_facts_and_gives_advice(
    run: Run, serving: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.stores.sqlite.health.SAFE_SQLITE", (99,))
    monkeypatch.setattr("tenure.stores.sqlite.health.NO_SPACE_BYTES", 0)

    shown = run("doctor")
    facts = {fact["name"]: fact for fact in json.loads(run("doctor", "--json").stdout)}

    assert shown.exit_code == 0
    assert "warning  sqlite_version: if other programs than Tenure write to" in shown.stdout
    assert (facts["journal_mode"]["value"], facts["journal_mode"]["state"]) == ("wal", "ok")


def test_the_doctor_exits_with_1_when_something_is_bad(
    run: Run, serving: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.stores.sqlite.health.NO_SPACE_BYTES", 1 << 62)

    result = run("doctor")

    assert result.exit_code == 1
    assert "bad  free_bytes: the disk is nearly full" in result.stdout


def test_the_doctor_exits_with_2_without_a_store(run: Run) -> None:
    assert run("doctor").exit_code == 2
