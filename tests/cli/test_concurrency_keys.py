"""Concurrency keys on the command line."""

import json

from tenure.conformance.spec import spec
from tenure.coordinator.service import Coordinator
from tests.cli.harness import Run, claimed


@spec("CK1", "CK4")
def test_a_job_that_is_passed_by_names_the_job_that_runs(run: Run, serving: Coordinator) -> None:
    first = run("enqueue", "bill", "--concurrency-key", "42").stdout.strip()
    second = run("enqueue", "bill", "--concurrency-key", "42").stdout.strip()
    other = run("enqueue", "bill", "--concurrency-key", "43").stdout.strip()
    claimed(serving)

    shown = run("jobs", "show", second).stdout

    assert f"waits for another job with the key 42 (limit 1): {first}" in shown
    assert "concurrency key" in shown
    assert "waits for another job" not in run("jobs", "show", other).stdout


@spec("CK1")
def test_kinds_can_share_a_key_by_a_group(run: Run) -> None:
    options = ("--concurrency-key", "42", "--concurrency-group", "accounts")
    job_id = run("enqueue", "bill", *options).stdout.strip()

    record = json.loads(run("jobs", "show", job_id, "--json").stdout)["job"]

    assert (record["concurrency_key"], record["concurrency_group"]) == ("42", "accounts")
    assert "42 of the group accounts" in run("jobs", "show", job_id).stdout


@spec("CK5")
def test_what_is_wrong_with_a_key_names_the_option_and_writes_nothing(run: Run) -> None:
    alone = run("enqueue", "bill", "--concurrency-group", "accounts")
    long = run("enqueue", "bill", "--concurrency-key", "x" * 201)

    assert alone.exit_code == long.exit_code == 2
    assert "--concurrency-group: given without a key" in alone.stderr
    assert "--concurrency-key: 201 characters are over the limit of 200" in long.stderr
    assert json.loads(run("jobs", "ls", "--json").stdout) == []
