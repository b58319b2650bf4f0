"""Jobs of a worker that fell silent, as the commands show them: suspect, then over, then swept."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tenure.clock import host_clock
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Enqueue
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    JobId,
    Kind,
    QueueName,
    client_actor,
    new_job_id,
)
from tenure.core.instants import Instant, seconds
from tenure.core.policy import Policy
from tenure.stores.sql.upkeep import SqlUpkeep
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.cli.harness import Run, started

WorkedAgo = Callable[[float], JobId]


@contextmanager
def _in_the_past(store_path: Path, ago_s: float) -> Iterator[Coordinator]:
    store = SqliteStore(store_path, clock=lambda: Instant(host_clock() - seconds(ago_s)))
    coordinator = Coordinator(store)
    yield coordinator
    coordinator.close()
    store.close()


@pytest.fixture
def worked_ago(store_path: Path) -> WorkedAgo:
    """A job whose worker started it so many seconds ago, with a lease of 60 s and a heartbeat
    each 15 s, and was then silent; its id."""

    def work(ago_s: float) -> JobId:
        with _in_the_past(store_path, ago_s) as serving:
            job_id = new_job_id(serving.store.now(), os.urandom(16))
            serving.execute(
                Enqueue(
                    job_id=job_id,
                    namespace=DEFAULT_NAMESPACE,
                    queue=QueueName("default"),
                    kind=Kind("mail"),
                    actor=client_actor("tests"),
                    policy=Policy(heartbeat_us=seconds(15)),
                )
            )
            started(serving)
            serving.store.upkeep.tick()  # that worker swept, too
        return job_id

    return work


@spec("L18")
def test_ls_and_show_say_that_a_job_is_suspect(run: Run, worked_ago: WorkedAgo) -> None:
    job_id = worked_ago(40)

    listed = run("jobs", "ls")
    shown = run("jobs", "show", job_id)
    records = json.loads(run("jobs", "ls", "--json").stdout)
    record = json.loads(run("jobs", "show", job_id, "--json").stdout)

    assert "NOTE" in listed.stdout
    assert "running  suspect, silent 4" in listed.stdout
    assert re.search(r"^note +suspect: its worker w .* no heartbeat for 4", shown.stdout, re.M)
    assert [each["suspect"] for each in records] == [True]
    assert record["job"]["suspect"] is True
    assert "no heartbeat" in record["waiting"]


@spec("L19")
def test_ls_lists_orphaned_jobs_alone(run: Run, worked_ago: WorkedAgo) -> None:
    silent, heard = worked_ago(40), worked_ago(20)

    every = json.loads(run("jobs", "ls", "--json").stdout)
    orphaned = json.loads(run("jobs", "ls", "--orphaned", "--json").stdout)
    stalled = json.loads(run("jobs", "ls", "--status", "ORPHANED", "--json").stdout)

    assert sorted(each["id"] for each in every) == sorted([silent, heard])
    assert [each["id"] for each in orphaned] == [silent]
    assert stalled == []


@spec("L18")
def test_a_job_whose_worker_was_heard_lately_has_no_note(run: Run, worked_ago: WorkedAgo) -> None:
    job_id = worked_ago(20)

    listed = run("jobs", "ls")

    assert "running" in listed.stdout
    assert "NOTE" not in listed.stdout
    assert not re.search("^(waiting|note)", run("jobs", "show", job_id).stdout, re.M)
    assert json.loads(run("jobs", "ls", "--json").stdout)[0]["suspect"] is False


@spec("L18")
def test_a_wait_that_ends_says_that_the_worker_is_silent(run: Run, worked_ago: WorkedAgo) -> None:
    job_id = worked_ago(40)

    waited = run("jobs", "wait", job_id, "--timeout", "100ms")

    assert waited.exit_code == 1
    assert "is still running: suspect: its worker w has sent no heartbeat" in waited.stderr


@spec("W5")
@pytest.mark.parametrize("words", [("show",), ("show", "--json"), ("events",), ("logs",)])
def test_whoever_asks_about_a_lost_job_has_it_swept(
    run: Run, worked_ago: WorkedAgo, store_path: Path, words: tuple[str, ...]
) -> None:
    job_id = worked_ago(480)

    assert run("jobs", words[0], job_id, *words[1:]).exit_code == 0

    with _in_the_past(store_path, 0) as serving:
        job = serving.store.jobs.read([job_id])[job_id]
    assert (job.status, job.failures) == ("queued", 1)


@spec("W5")
def test_ls_sweeps_its_page_before_it_shows_it(run: Run, worked_ago: WorkedAgo) -> None:
    worked_ago(480)

    listed = run("jobs", "ls")

    assert "queued" in listed.stdout
    assert "running" not in listed.stdout


@spec("W5")
def test_a_wait_sweeps_the_job_that_it_waits_for(run: Run, worked_ago: WorkedAgo) -> None:
    job_id = worked_ago(480)

    waited = run("jobs", "wait", job_id, "--timeout", "100ms")

    assert f"job {job_id} is still queued" in waited.stderr


@spec("W5")
def test_rows_that_cannot_be_swept_are_marked(
    run: Run, worked_ago: WorkedAgo, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = worked_ago(480)

    def refuse(_: SqlUpkeep, *, after: Instant | None = None) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(SqlUpkeep, "tick", refuse)
    listed, shown = run("jobs", "ls"), run("jobs", "show", job_id)

    assert "running  lease ended 7 min ago" in listed.stdout
    assert "lease ended" in shown.stdout
    assert "lease until" not in shown.stdout
    assert "the lease of its worker w is over, which is not recorded yet" in shown.stdout
