"""The first page: what failed, what is paused, and what its numbers are called."""

import math
import re
from itertools import combinations
from pathlib import Path

from tenure.core.vocabulary import Role
from tenure.dashboard.pages.overview import RATES
from tenure_conformance.spec import spec
from tests.dashboard.harness import DashboardStage, Links

STATIC = Path(__file__).parents[2] / "src" / "tenure" / "dashboard" / "static"
LEAST_DISTANCE = 45.0
"""Between two colours of a plot, in the space of red, green and blue. At 35 people mix them up."""


def fail_one(stage: DashboardStage) -> None:
    """A job that ends as failed."""
    grant = stage.leased(1)
    failed = {
        "job_id": grant["job_id"],
        "lease_id": grant["lease_id"],
        "request_id": "fail-1",
        "error": {"class": "permanent", "type": "Boom", "message": "broken"},
    }
    assert stage.call("fail", failed, role=Role.WORKER).status == 200


@spec("DB29")
def test_a_failed_job_is_counted_and_linked(stage: DashboardStage) -> None:
    fail_one(stage)
    browser = stage.browser(Role.VIEWER)

    page = browser.get("/").text
    links = Links(page).hrefs

    assert re.search(r'figure-bad">\s*<a [^>]*status=failed[^>]*>\s*<span[^>]*>1<', page)
    assert "/jobs?status=failed&finished_since=1h" in links
    assert "/jobs?status=failed&finished_since=1h&queue=q" in links
    assert "Boom" in browser.get("/jobs?status=failed&finished_since=1h&queue=q").text


@spec("DB29")
def test_without_a_failed_job_the_number_leads_to_none_and_is_not_red(
    stage: DashboardStage,
) -> None:
    stage.enqueue(1)

    page = stage.browser(Role.VIEWER).get("/").text

    assert "figure-bad" not in page
    assert "finished_since=1h&queue" not in page


@spec("OB29")
def test_a_paused_queue_needs_attention_also_if_it_is_empty(stage: DashboardStage) -> None:
    fail_one(stage)
    stage.call("pause", {}, role=Role.OPERATOR, queue="q")
    browser = stage.browser(Role.VIEWER)

    page = browser.get("/").text
    queues = browser.get("/queues").text
    stage.call("resume", {}, role=Role.OPERATOR, queue="q")

    assert re.search(r"Needs attention.*is paused and has no jobs", page, re.DOTALL)
    assert "status-paused" in queues
    assert "status-open" in browser.get("/queues").text


def test_the_large_number_of_a_duration_has_a_name(stage: DashboardStage) -> None:
    fail_one(stage)

    page = stage.browser(Role.VIEWER).get("/").text

    assert re.search(r'figure-label">wait, p50 · p95', page)


@spec("OB50")
def test_a_kind_says_how_long_its_jobs_waited_and_ran(stage: DashboardStage) -> None:
    stage.enqueue(1)
    stage.clock.advance(4)
    [grant] = stage.claim()
    lease = {"job_id": grant["job_id"], "lease_id": grant["lease_id"]}
    stage.call("start", {**lease, "request_id": "start-1"}, role=Role.WORKER)
    stage.clock.advance(8)
    stage.call("complete", {**lease, "request_id": "done-1"}, role=Role.WORKER)

    page = stage.browser(Role.VIEWER).get("/kinds").text

    for name, value in (("wait", "4"), ("run", "8")):
        p50 = rf'<span class="spans" title="1 job">{value}(\.\d)? s <br>'
        p95 = rf'<span class="muted">{value}(\.\d)? s<'
        assert re.search(rf'data-label="{name}, p50 · p95">{p50}{p95}', page)


def test_a_kind_whose_keys_have_no_limit_shows_a_dash(stage: DashboardStage) -> None:
    stage.enqueue(1)
    browser = stage.browser(Role.VIEWER)

    before = browser.get("/kinds").text
    stage.call("set-kind", {"concurrency_limit": 4}, role=Role.OPERATOR, kind="k")

    assert re.search(r'data-label="at a time per key"><span[^>]*>–</span>', before)
    assert 'data-label="at a time per key">4</td>' in browser.get("/kinds").text


def test_the_lines_of_a_plot_differ_in_colour() -> None:
    styles = dict(
        re.findall(
            r'^    (\w+): \["--(\w+)", \[[^]]*\]\],$',
            (STATIC / "dashboard.js").read_text(),
            re.MULTILINE,
        )
    )
    colours = {
        name: both
        for name, *both in re.findall(
            r"--(\w+): light-dark\(#(\w{6}), #(\w{6})\)", (STATIC / "dashboard.css").read_text()
        )
    }

    for one, other in combinations((line.style for line in RATES), 2):
        for theme in (0, 1):
            pair = (colours[styles[one]][theme], colours[styles[other]][theme])
            assert _distance(*pair) >= LEAST_DISTANCE, (one, other, theme)


def _distance(one: str, other: str) -> float:
    return math.dist(bytes.fromhex(one), bytes.fromhex(other))
