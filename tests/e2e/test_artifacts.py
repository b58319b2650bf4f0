"""When artifacts of real workers are visible on the command line."""

import signal
from pathlib import Path

import pytest
from msgspec import json

from tenure.core.ids import JobId
from tenure.core.vocabulary import CancelMode, JobStatus
from tenure_conformance.spec import spec
from tests.e2e.papers import paper
from tests.e2e.workers import Site
from tests.support.waiting import until

pytestmark = pytest.mark.process


def seen(site: Site, job_id: JobId) -> list[str]:
    """The names that `tenure jobs artifacts` lists."""
    listed = site.tenure("jobs", "artifacts", job_id, "--json")
    assert listed.returncode == 0, listed.stderr
    return [each["name"] for each in json.decode(listed.stdout)]


def is_out_of_sight(site: Site, job_id: JobId, name: str) -> bool:
    """Whether it can be neither listed nor fetched by its name."""
    fetched = site.tenure("jobs", "artifacts", job_id, name)
    return name not in seen(site, job_id) and (fetched.returncode, fetched.stdout) == (1, b"")


@spec("B8")
def test_an_artifact_appears_with_the_success_and_not_before(staffed: Site, tmp_path: Path) -> None:
    note = tmp_path / "note"
    job_id = staffed.enqueue("write", how="waits", note=str(note))
    until(Path(f"{note}.ready").exists, "the artifact is staged")

    was_hidden = is_out_of_sight(staffed, job_id, "paper-1")
    note.touch()
    job = staffed.until_ended(job_id)

    assert was_hidden
    assert job.status is JobStatus.SUCCEEDED
    assert seen(staffed, job_id) == ["paper-1"]
    assert staffed.tenure("jobs", "artifacts", job_id, "paper-1").stdout == paper(1)


@spec("B8")
def test_only_the_attempt_that_succeeded_is_seen(staffed: Site) -> None:
    job_id = staffed.enqueue("write", how="raises")

    job = staffed.until_ended(job_id)

    assert (job.status, job.attempt) == (JobStatus.SUCCEEDED, 2)
    assert seen(staffed, job_id) == ["paper-2"]
    assert is_out_of_sight(staffed, job_id, "paper-1")


@spec("B8")
def test_artifacts_of_a_failed_job_are_never_seen(staffed: Site) -> None:
    job_id = staffed.enqueue("write", how="fails")

    assert staffed.until_ended(job_id).status is JobStatus.FAILED
    assert is_out_of_sight(staffed, job_id, "paper-1")


@spec("B8")
def test_artifacts_of_a_killed_worker_are_never_seen(site: Site, tmp_path: Path) -> None:
    note = tmp_path / "note"
    job_id = site.enqueue("write", how="waits", note=str(note))
    site.start("first")
    until(Path(f"{note}.ready").exists, "the artifact is staged")

    site.signal("first", signal.SIGKILL)
    site.start("second")
    job = site.until_ended(job_id)

    assert (job.status, job.attempt) == (JobStatus.SUCCEEDED, 2)
    assert seen(site, job_id) == ["paper-2"]
    assert is_out_of_sight(site, job_id, "paper-1")


@spec("B8")
def test_artifacts_of_a_cancelled_job_are_never_seen(staffed: Site, tmp_path: Path) -> None:
    note = tmp_path / "note"
    job_id = staffed.enqueue("write", how="waits", note=str(note))
    until(Path(f"{note}.ready").exists, "the artifact is staged")

    staffed.cancel(job_id, CancelMode.HARD)
    note.touch()  # a handler that would finish now is too late

    assert staffed.until_ended(job_id).status is JobStatus.CANCELLED
    after = staffed.until_ended(staffed.enqueue("write", how="well"))
    assert after.status is JobStatus.SUCCEEDED
    assert is_out_of_sight(staffed, job_id, "paper-1")
