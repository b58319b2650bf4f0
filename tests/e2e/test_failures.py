"""How jobs of a real worker fail, and what becomes of them then."""

import pytest
from msgspec import json

from tenure.core.ids import DEFAULT_NAMESPACE, JobId, Kind
from tenure.core.job import Job
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import JobStatus, ReasonCode, Stage
from tests.e2e.workers import Site
from tests.support.waiting import until

pytestmark = pytest.mark.process


def test_every_way_to_fail_ends_as_its_policy_says(staffed: Site) -> None:
    exhausted = staffed.enqueue("unlucky", how="always")
    recovered = staffed.enqueue("unlucky", how="once")
    refused = staffed.enqueue("unlucky", how="permanent")
    unfit = staffed.enqueue("unlucky", how="unencodable")
    resigned = staffed.enqueue("resigned")
    misread = staffed.enqueue("add", one="x", two=2)
    endless = staffed.enqueue("endless")

    assert facts(staffed.until_ended(exhausted)) == (
        JobStatus.DEAD_LETTERED,
        2,
        ReasonCode.EXHAUSTED_RETRIES,
        Stage.EXEC,
    )
    assert staffed.until_ended(recovered).result == b'"second"'
    assert facts(staffed.until_ended(refused)) == (JobStatus.FAILED, 1, None, Stage.EXEC)
    assert facts(staffed.until_ended(unfit)) == (JobStatus.FAILED, 1, None, Stage.OUTPUT)
    assert facts(staffed.until_ended(resigned)) == (JobStatus.FAILED, 1, None, Stage.EXEC)
    letter = staffed.until_ended(misread)
    assert facts(letter) == (
        JobStatus.DEAD_LETTERED,
        1,
        ReasonCode.VALIDATION_FAILED,
        Stage.INPUT,
    )
    assert letter.last_error is not None
    assert letter.last_error.message.endswith("at one")
    assert staffed.until_ended(endless).reason_code is ReasonCode.TIMEOUT


def facts(job: Job) -> tuple[JobStatus, int, ReasonCode | None, Stage | None]:
    """Status, attempts, reason and stage."""
    assert job.error is not None
    return job.status, job.attempt, job.reason_code, job.error.stage


def test_the_next_attempt_goes_on_where_the_last_one_was_and_output_is_kept(staffed: Site) -> None:
    job_id = staffed.enqueue("steps")

    job = staffed.until_ended(job_id)

    assert (job.status, job.result) == (JobStatus.SUCCEEDED, b"[10,11,22,23]")
    assert job.progress is not None
    assert (job.progress.done, job.progress.total) == (4, 4)
    wanted = b"attempt 1 begins with []\nattempt 2 begins with [10, 11]\n"
    until(lambda: staffed.tenure("jobs", "logs", job_id).stdout == wanted, "its output is kept")


def test_jobs_that_ended_badly_are_compensated(staffed: Site) -> None:
    job_id = staffed.call("charge", amount=40)
    assert staffed.until_ended(job_id).status is JobStatus.FAILED

    undoing = staffed.until_ended(only(staffed, "refund"))

    told = [job_id, "charge", "failed", 40]
    assert undoing.result is not None
    assert json.decode(undoing.result) == told


def test_a_dead_letter_is_redriven_with_another_payload_and_says_by_whom(staffed: Site) -> None:
    job_id = staffed.enqueue("add", one="x", two=2)
    staffed.until_ended(job_id)

    redriven = staffed.tenure("dlq", "redrive", job_id, "--payload", '{"one": 1, "two": 2}')
    new = staffed.until_ended(JobId(redriven.stdout.decode().strip()))

    shown = json.decode(staffed.tenure("jobs", "show", job_id, "--json").stdout)
    assert (new.status, new.result, new.origin_id) == (JobStatus.SUCCEEDED, b"3", job_id)
    assert shown["resolution"]["actor"].startswith("operator:")
    assert shown["resolution"]["new_job_id"] == new.id


def test_a_command_waits_for_the_result_or_says_why_there_is_none(staffed: Site) -> None:

    good = staffed.tenure("enqueue", "add", '{"one": 1, "two": 2}', "--wait")
    bad = staffed.tenure("enqueue", "unlucky", '{"how": "permanent"}', "--wait")

    assert (good.returncode, good.stdout) == (0, b"3\n")
    assert (bad.returncode, bad.stdout) == (1, b"")
    assert b"no such account" in bad.stderr


def only(site: Site, kind: str) -> JobId:
    """The one job of a kind, once there is one."""
    wanted = JobFilter(namespace=DEFAULT_NAMESPACE, kind=Kind(kind))
    until(lambda: bool(site.store.views.jobs(wanted).jobs), f"there is a {kind}")
    [job] = site.store.views.jobs(wanted).jobs
    return job.id
