"""Rate keys and fair keys on the command line."""

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


@spec("CK8")
def test_fair_is_set_shown_and_removed(run: Run) -> None:
    run("enqueue", "bill")

    first = run("kinds", "limit", "bill", "--fair")
    second = run("kinds", "limit", "bill", "--concurrency-limit", "3")
    (shown,) = json.loads(run("kinds", "ls", "--json").stdout)
    table = run("kinds", "ls").stdout.splitlines()
    removed = run("kinds", "limit", "bill", "--not-fair")

    assert first.stdout == "bill: no rate, keys take turns\n"
    assert second.stdout == "bill: no rate, at most 3 at a time for each key, keys take turns\n"
    assert (shown["fair"], shown["concurrency_limit"]) == (True, 3)
    assert table[0].split()[-2:] == ["FAIR", "POLICY"]
    assert table[1].split()[-2:] == ["yes", "-"]
    assert removed.stdout == "bill: no rate, at most 3 at a time for each key\n"
