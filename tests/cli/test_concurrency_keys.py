"""Concurrency keys on the command line."""

import json

from tenure.coordinator.service import Coordinator
from tenure_conformance.spec import spec
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


@spec("CK5")
def test_what_is_wrong_with_a_key_names_the_option_and_writes_nothing(run: Run) -> None:
    long = run("enqueue", "bill", "--concurrency-key", "x" * 201)

    assert long.exit_code == 2
    assert "--concurrency-key: 201 characters are over the limit of 200" in long.stderr
    assert json.loads(run("jobs", "ls", "--json").stdout) == []


@spec("CK7")
def test_the_limit_of_a_kind_is_set_and_shown(run: Run, serving: Coordinator) -> None:
    jobs = [run("enqueue", "bill", "--concurrency-key", "42").stdout.strip() for _ in range(3)]
    first = run("kinds", "limit", "bill", "--concurrency-limit", "2", "--create")
    second = run("kinds", "limit", "bill", "--rate", "1000/s")
    shown = json.loads(run("kinds", "ls", "--json").stdout)
    running = [claimed(serving, claim_seq=number).job_id for number in (1, 2)]
    waiting = json.loads(run("jobs", "show", jobs[2], "--json").stdout)["waiting"]
    removed = run("kinds", "limit", "bill", "--concurrency-limit", "none")

    assert first.stdout == "bill: no rate, at most 2 at a time for each key\n"
    assert second.stdout.endswith("at most 2 at a time for each key\n")
    assert (shown[0]["rate"], shown[0]["concurrency_limit"]) == ("1000/s", 2)
    assert waiting.startswith("waits for other jobs with the key 42 (limit 2): ")
    assert set(running) == set(jobs[:2])
    assert "for each key" not in removed.stdout
    assert run("kinds", "ls").stdout.splitlines()[0].split()[3:5] == ["PER", "KEY"]


@spec("CK7")
def test_a_limit_of_nothing_is_refused(run: Run) -> None:
    run("enqueue", "bill")

    for limit in ("0", "-1", "two", "1000001"):
        refused = run("kinds", "limit", "bill", "--concurrency-limit", limit)
        assert refused.exit_code == 2, limit
        assert "concurrency-limit" in refused.stderr.replace("_", "-"), limit
    assert run("kinds", "limit", "bill").exit_code == 2
    assert json.loads(run("kinds", "ls", "--json").stdout) == []
