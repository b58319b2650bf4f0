"""The numbers that the guide to jobs gives are those of the code."""

import re
from pathlib import Path

from tenure.core.instants import parse_duration, seconds
from tenure.core.policy import LeaseBounds, Policy
from tenure.wiring import LEASE_BOUNDS_VARIABLE, limits_from_environment

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "jobs.md").read_text()


def test_heartbeat_intervals_are_those_of_the_leases_named() -> None:
    named = re.findall(r"(\d+) s for a lease\s+of (\d+) s", PAGE)

    assert len(named) == 3
    for interval_s, lease_s in named:
        assert Policy(lease_us=seconds(int(lease_s))).heartbeat_us == seconds(int(interval_s))


def test_a_deaf_handler_has_the_heartbeat_interval_and_the_grace() -> None:
    [(by_default_s, grace, with_grace_s)] = re.findall(
        r'a deaf handler has (\d+) s, and with\s+`grace="(\w+)"` it still has (\d+) s', PAGE
    )

    policy = Policy()
    assert policy.heartbeat_us + policy.grace_us == seconds(int(by_default_s))
    assert policy.heartbeat_us + parse_duration(grace) == seconds(int(with_grace_s))


def test_the_options_name_the_leases_that_are_accepted() -> None:
    [(shortest, longest)] = re.findall(r"^\| `lease` \|.* `\"(\w+)\"` to `\"(\w+)\"`", PAGE, re.M)
    [setting] = re.findall(rf"{LEASE_BOUNDS_VARIABLE}=(\S+?)`", PAGE)

    by_default = LeaseBounds()
    assert parse_duration(shortest) == by_default.shortest_us
    assert parse_duration(longest) == by_default.longest_us
    assert limits_from_environment({LEASE_BOUNDS_VARIABLE: setting}).lease != by_default
