"""`--expected-rev`: a command is carried out only if the job is as the user saw it."""

import json

import pytest

from tenure_conformance.spec import spec
from tests.cli.harness import Run, enqueued


def rev_of(run: Run, job_id: str) -> int:
    rev = json.loads(run("jobs", "show", job_id, "--json").stdout)["job"]["rev"]
    assert isinstance(rev, int)
    return rev


WORDS = {
    "jobs cancel": "queued",
    "jobs rerun": "dead_lettered",
    "jobs dead-letter": "queued",
    "dlq redrive": "dead_lettered",
    "dlq discard": "dead_lettered",
}


@spec("K12")
@pytest.mark.parametrize("command", [*WORDS, "jobs stall", "jobs requeue"])
def test_a_command_for_another_rev_is_refused_and_one_for_this_rev_is_not(
    run: Run, command: str
) -> None:
    job_id = enqueued(run, "mail")
    status = WORDS.get(command, "queued")
    if status == "dead_lettered":
        run("jobs", "dead-letter", job_id)
    rev = rev_of(run, job_id)

    refused = run(*command.split(), job_id, "--expected-rev", str(rev + 1))
    as_json = run(*command.split(), job_id, "--expected-rev", str(rev + 1), "--json")

    said = f"tenure: job {job_id}: it is {status} and has rev {rev} now (revision_mismatch)"
    assert (refused.exit_code, refused.stderr) == (1, f"{said}\n")
    [outcome] = json.loads(as_json.stdout)
    assert outcome["cause"] == "revision_mismatch"
    assert rev_of(run, job_id) == rev
    meant = run(*command.split(), job_id, "--expected-rev", str(rev))
    assert "revision_mismatch" not in meant.stderr
    assert meant.exit_code == (0 if command in WORDS else 1)  # nobody holds a queued job


@pytest.mark.parametrize("command", [*WORDS, "jobs stall", "jobs requeue"])
def test_an_expected_rev_is_that_of_one_job(run: Run, command: str) -> None:
    one, two = enqueued(run, "mail"), enqueued(run, "mail")

    result = run(*command.split(), one, two, "--expected-rev", "1")

    assert result.exit_code == 2
    assert "--expected-rev goes with exactly one ID." in result.stderr


@spec("K12")
def test_a_redrive_of_another_rev_of_no_dead_letter_names_the_status(run: Run) -> None:
    job_id = enqueued(run, "mail")

    refused = run("dlq", "redrive", job_id, "--expected-rev", "7")

    said = f"tenure: job {job_id}: it is queued, not a dead letter (not_dead_lettered)\n"
    assert refused.stderr == said
