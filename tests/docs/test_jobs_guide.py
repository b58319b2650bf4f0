"""The numbers that the guide to jobs gives are those of the code."""

import re
from base64 import b64encode
from collections import Counter
from pathlib import Path

import pytest

from tenure import Tenure
from tenure.clock import Boot
from tenure.core.ids import DEFAULT_NAMESPACE, Actor, Kind, QueueName, WorkerId
from tenure.core.instants import parse_duration, seconds
from tenure.core.policy import Backoff, LeaseBounds, Policy, backoff_us
from tenure.core.validation import Limits
from tenure.handlers.registry import Isolation
from tenure.settings import LEASE_BOUNDS_VARIABLE, limits_from_environment
from tenure.worker.session.claims import ClaimPlanner, ClaimSettings
from tests.docs.commands import environment_with_tenure, run_shell

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
PAGE = (GUIDE / "jobs.md").read_text()
LOWEST_DRAW, HIGHEST_DRAW = bytes(16), b"\xff" * 16


@pytest.mark.process
def test_jobs_in_several_modules_are_found_by_the_command_that_is_shown(tmp_path: Path) -> None:
    files = re.findall(r"^```python no-run\n# (shop/\w+\.py)\n(.*?)^```$", PAGE, re.M | re.S)
    [(command, app)] = re.findall(r"^tenure (worker) (shop\.\w+:app) ", PAGE, re.M)
    (tmp_path / "shop").mkdir()
    for name, code in files:
        (tmp_path / name).write_text(code)
    url = f"sqlite:///{tmp_path}/shop.db"
    environment = environment_with_tenure(tmp_path, {"TENURE_URL": url})

    ran = run_shell(f"tenure enqueue charge '{{\"order\": 7}}' --app {app}", tmp_path, environment)
    none = run_shell(f"! tenure {command} shop.app:app", tmp_path, environment)

    assert len(files) == 4
    assert ran.returncode == 0, ran
    with Tenure(url) as client:
        assert client.get(ran.stdout.strip()).refresh().queue == "money"
    assert "shop.app:app has no jobs; decorate a function with @app.job" in none.stderr
    assert "a module that imports app and the module of the function\n" in none.stderr


def test_heartbeat_intervals_are_those_of_the_leases_named() -> None:
    named = re.findall(r"(\d+) s for a lease\s+of (\d+) s", PAGE)

    assert len(named) == 3
    for interval_s, lease_s in named:
        policy = Policy(lease_us=seconds(int(lease_s)))
        assert policy.heartbeat_interval_us == seconds(int(interval_s))


def test_a_handler_that_never_checks_has_the_heartbeat_interval_and_the_grace() -> None:
    [(by_default_s, grace, with_grace_s)] = re.findall(
        r'such a handler has (\d+) s, and with\s+`grace="(\w+)"` it still has (\d+) s', PAGE
    )

    policy = Policy()
    assert policy.heartbeat_interval_us + policy.grace_us == seconds(int(by_default_s))
    assert policy.heartbeat_interval_us + parse_duration(grace) == seconds(int(with_grace_s))


def test_the_options_name_the_leases_that_are_accepted() -> None:
    [(shortest, longest)] = re.findall(r"^\| `lease` \|.* `\"(\w+)\"` to `\"(\w+)\"`", PAGE, re.M)
    [setting] = re.findall(rf"{LEASE_BOUNDS_VARIABLE}=(\S+?)`", PAGE)

    by_default = LeaseBounds()
    assert parse_duration(shortest) == by_default.shortest_us
    assert parse_duration(longest) == by_default.longest_us
    assert limits_from_environment({LEASE_BOUNDS_VARIABLE: setting}).lease != by_default


@pytest.mark.parametrize("page", ["jobs.md", "coming-from-celery.md"])
def test_a_retry_comes_between_a_floor_and_the_backoff(page: str) -> None:
    text = (GUIDE / page).read_text()
    [(initial, soonest_s, latest_s)] = re.findall(
        r'`initial="(\w+)"`[^.]* between\s+([0-9.]+) s\s+and ([0-9.]+) s', text
    )

    backoff = Backoff(initial_us=parse_duration(initial))
    assert backoff_us(backoff, failures=1, entropy=LOWEST_DRAW) == seconds(float(soonest_s))
    latest_us = backoff_us(backoff, failures=1, entropy=HIGHEST_DRAW)
    assert seconds(float(latest_s)) - latest_us in (0, 1), "as near as microseconds come"


def test_the_formula_of_the_backoff_is_that_of_the_code() -> None:
    formula = "min(cap, initial · factor^(n − 1)) · (0.5 + 0.5 · u)"
    assert formula in PAGE

    backoff = Backoff(initial_us=seconds(2), factor=3.0, cap_us=seconds(100))
    for n in range(1, 8):
        ceiling_us = min(seconds(100), seconds(2) * 3 ** (n - 1))
        assert backoff_us(backoff, failures=n, entropy=LOWEST_DRAW) == ceiling_us // 2
        assert ceiling_us - backoff_us(backoff, failures=n, entropy=HIGHEST_DRAW) in (0, 1)


@pytest.mark.parametrize("page", ["jobs.md", "coming-from-celery.md"])
def test_the_time_that_the_default_retries_take_is_that_of_the_code(page: str) -> None:
    text = (GUIDE / page).read_text()
    [(shortest, longest)] = re.findall(r"(\d+) to (\d+) minutes", text)
    [attempts] = re.findall(r"\b(\d+) attempts(?:,? and| over)", text)

    policy = Policy()
    assert policy.max_attempts == int(attempts)
    assert round(_all_waits(policy, LOWEST_DRAW) / seconds(60)) == int(shortest)
    assert round(_all_waits(policy, HIGHEST_DRAW) / seconds(60)) == int(longest)


def _all_waits(policy: Policy, draw: bytes) -> int:
    return sum(
        backoff_us(policy.backoff, failures=failures, entropy=draw)
        for failures in range(1, policy.max_attempts)
    )


@pytest.mark.parametrize("page", ["worker.md", "coming-from-celery.md"])
def test_an_idle_worker_on_a_database_looks_as_often_as_is_said(page: str) -> None:
    text = (GUIDE / page).read_text()
    [longest_s] = re.findall(r"waits\s+at\s+most\s+([0-9.]+)\s+s\b", text)
    settings = ClaimSettings(
        namespace=DEFAULT_NAMESPACE,
        worker=WorkerId("w"),
        actor=Actor("worker:w"),
        queues={QueueName("default"): 1},
        kinds={Kind("add"): None},
        lanes={Kind("add"): Isolation.ASYNC},
    )
    claimer = ClaimPlanner(settings, random=lambda: 1.0)

    asked_at = Boot(0)
    for _ in range(20):
        asked_at = claimer.next_at
        claimer.ask(free=1, running=Counter(), ready=lambda lane: 1)
        claimer.answered(0, asked_at)

    assert claimer.next_at - asked_at == seconds(float(longest_s))


def test_as_many_bytes_fit_as_the_page_says() -> None:
    [(whole, bytes_)] = re.findall(
        r"at most (\d) MiB of JSON.*?at most (\d+) KiB of them fit", PAGE, re.DOTALL
    )
    room_bytes = Limits().body_bytes

    assert room_bytes == int(whole) << 20
    assert len(b64encode(bytes(int(bytes_) << 10))) == room_bytes
