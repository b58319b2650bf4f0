"""Rate keys on the command line."""

import json

from tenure.coordinator.service import Coordinator
from tenure_conformance.spec import spec
from tests.cli.harness import Run, claimed


@spec("RL11", "RL10")
def test_a_job_that_waits_for_its_rate_key_says_so(run: Run, serving: Coordinator) -> None:
    run("enqueue", "send", "--rate-key", "42")
    second = run("enqueue", "send", "--rate-key", "42").stdout.strip()
    other = run("enqueue", "send", "--rate-key", "43").stdout.strip()
    run("kinds", "limit", "send", "--rate", "1/h")
    claimed(serving)

    shown = run("jobs", "show", second).stdout

    assert "it waits for the rate limit 1/h of kind send for the rate key 42, which has" in shown
    assert "room for the next job in about 36" in shown or "about 3600 s" in shown
    assert "rate key" in shown
    assert "rate limit" not in run("jobs", "show", other).stdout
    assert json.loads(run("jobs", "show", second, "--json").stdout)["job"]["rate_key"] == "42"


@spec("RL12")
def test_a_rate_key_that_is_too_long_names_the_option_and_writes_nothing(run: Run) -> None:
    long = run("enqueue", "send", "--rate-key", "x" * 201)

    assert long.exit_code == 2
    assert "--rate-key: 201 characters are over the limit of 200" in long.stderr
    assert json.loads(run("jobs", "ls", "--json").stdout) == []
