"""Soft cancels, drains and recycled children of real workers, on both databases."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec import json

from tenure.core.ids import JobId
from tenure.core.vocabulary import CancelMode, JobStatus
from tenure_conformance.spec import spec
from tests.e2e.workers import Site
from tests.support.waiting import until
from tests.worker.harness import is_alive

pytestmark = pytest.mark.process


def test_a_soft_cancel_reaches_every_kind_of_handler_and_kills_those_that_ignore_it(
    site: Site, tmp_path: Path
) -> None:
    site.start("worker", concurrency=3)
    kinds = ("attentive", "dream", "obstinate")
    jobs = {kind: site.enqueue(kind, note=str(tmp_path / kind)) for kind in kinds}
    for kind in kinds:
        until((tmp_path / f"{kind}.ready").exists, f"{kind} runs")
    deaf = int((tmp_path / "obstinate.ready").read_text())

    for job_id in jobs.values():
        site.cancel(job_id, CancelMode.SOFT)
    ended = {kind: site.until_ended(job_id) for kind, job_id in jobs.items()}

    assert {job.status for job in ended.values()} == {JobStatus.CANCELLED}
    for kind in ("attentive", "dream"):
        until((tmp_path / f"{kind}.told").exists, f"{kind} was told")
    until(lambda: not is_alive(deaf), "the deaf one is gone")


@pytest.mark.parametrize("mode", CancelMode)
def test_a_cancel_does_not_wait_for_a_heartbeat(
    site: Site, tmp_path: Path, mode: CancelMode
) -> None:
    note = tmp_path / "pid"
    job_id = site.enqueue("unhurried", pid_file=str(note))
    site.start("worker")
    until(lambda: note.exists() and note.read_text() != "", "it runs")
    half_a_minute = site.job(job_id).policy.heartbeat_interval_us

    site.cancel(job_id, mode)
    asked_at = site.store.now()
    site.until_ended(job_id)
    if mode is CancelMode.HARD:
        until(lambda: not is_alive(int(note.read_text())), "its handler is gone")

    assert site.store.now() - asked_at < half_a_minute * 2 // 3


def test_a_worker_is_drained_by_name(site: Site, tmp_path: Path) -> None:
    note = tmp_path / "note"
    running = site.enqueue("write", how="waits", note=str(note))
    site.start("worker", grace="60s")
    site.until_status(running, JobStatus.RUNNING)

    drained = site.tenure("workers", "drain", "worker")
    [view] = json.decode(site.tenure("workers", "ls", "--json").stdout)
    note.touch()
    code = site.workers["worker"].wait(timeout=120)

    assert (drained.returncode, code) == (0, 0)
    assert (view["worker"], view["state"]) == ("worker", "draining")
    assert json.decode(site.tenure("workers", "ls", "--json").stdout) == []  # it said goodbye
    assert (site.job(running).status, site.job(running).failures) == (JobStatus.SUCCEEDED, 0)


@spec("WP22")
def test_a_worker_that_was_sent_a_signal_is_listed_as_draining_at_once(
    site: Site, tmp_path: Path
) -> None:
    note, talk = tmp_path / "note", tmp_path / "talk"
    running = site.enqueue("write", how="waits", note=str(note))
    site.start("worker", grace="60s", talk=talk)
    site.until_status(running, JobStatus.RUNNING)

    site.signal("worker", signal.SIGTERM)
    until(lambda: "draining" in _states(site), "it is listed as draining")
    note.touch()
    code = site.workers["worker"].wait(timeout=120)

    assert (code, site.job(running).status) == (0, JobStatus.SUCCEEDED)
    assert "draining: 1 job is running and has 54 s to end; press Ctrl-C" in talk.read_text()


def _states(site: Site) -> list[str]:
    return [each["state"] for each in json.decode(site.tenure("workers", "ls", "--json").stdout)]


@pytest.mark.parametrize("words", [("--recycle-after", "1"), ("--recycle-above", "1k")])
def test_children_are_replaced_by_their_jobs_and_their_memory(
    site: Site, words: tuple[str, ...]
) -> None:
    site.start("worker", *words, concurrency=1)

    results = [site.until_ended(site.enqueue("pid")).result for _ in range(3)]

    assert len(set(results)) == 3
    assert str(os.getpid()).encode() not in results


def start_family(site: Site, note: Path) -> tuple[JobId, list[int]]:
    """A job that does not listen, and the processes it consists of."""
    job_id = site.enqueue("family", note=str(note))
    site.start("worker", grace="600s")
    until(note.exists, "the handler and its program run")
    return job_id, [int(pid) for pid in note.read_text().split()]


def test_a_hard_cancel_ends_what_the_handler_started_too(site: Site, tmp_path: Path) -> None:
    job_id, pids = start_family(site, tmp_path / "pids")

    site.cancel(job_id, CancelMode.HARD)

    until(lambda: not any(map(is_alive, pids)), "the handler and its program are gone")
    assert site.job(job_id).status is JobStatus.CANCELLED


def test_handlers_and_what_they_started_die_with_a_killed_worker(
    site: Site, tmp_path: Path
) -> None:
    _, pids = start_family(site, tmp_path / "pids")

    site.signal("worker", signal.SIGKILL)

    until(lambda: not any(map(is_alive, pids)), "the handler and its program are gone")


def test_a_second_sigterm_ends_the_worker_at_once_and_costs_no_budget(
    site: Site, tmp_path: Path
) -> None:
    job_id, pids = start_family(site, tmp_path / "pids")
    worker = site.workers["worker"]

    def has_ended() -> bool:
        """Two signals that the worker has not looked at yet count as one: it gets another."""
        site.signal("worker", signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            worker.wait(timeout=2)
        return worker.returncode is not None

    until(has_ended, "the worker has ended")

    job = site.job(job_id)
    assert worker.returncode == 0
    assert not any(map(is_alive, pids))
    assert (job.status, job.failures, job.releases) == (JobStatus.QUEUED, 0, 1)
    assert job.run_at == job.enqueued_at  # the place it had [Z5]
