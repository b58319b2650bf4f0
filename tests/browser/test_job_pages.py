"""The pages of jobs and flows in a real browser: picture, actions, live output, hostile texts."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tenure.core.commands import Sweep
from tenure.core.ids import JobId
from tenure.core.vocabulary import Role
from tenure.dashboard.pages import ACTIONS
from tenure_conformance.spec import spec
from tests.browser import test_actions
from tests.browser.site import Site
from tests.browser.watching import Watched
from tests.dashboard.featured import EXPORT, HERO, IMPORT
from tests.dashboard.harness import DashboardStage
from tests.dashboard.shop import HOUR_S
from tests.dashboard.test_job_pages import HOSTILE, dead, ended_flow, finished, report
from tests.dashboard.test_pages import FLOW
from tests.server.harness import JOB

pytestmark = pytest.mark.browser

QUEUED, HELD, DEAD, OTHER_DEAD, DONE, MISTAKEN, LIVE, EVIL, FOREIGN = range(21, 30)

TRIED = {
    "cancel": (QUEUED, "Reason", "wrong order", "cancelled, or asked to stop"),
    "rerun": (DONE, None, "", "enqueued again as a new job"),
    "stall": (FOREIGN, None, "", "stalled"),
    "requeue": (HELD, None, "", "requeued"),
    "dead-letter": (MISTAKEN, "Message", "must not run", "dead-lettered"),
    "redrive": (DEAD, None, "", "redriven as a new job"),
    "discard": (OTHER_DEAD, "Note", "switched off", "discarded"),
}
"""Each action: the job, a field and its text, and what is said afterwards."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with Site(fill) as site:
        yield site


def fill(stage: DashboardStage) -> None:
    """A job for each action, one that runs, and one whose every text is hostile."""
    stage.clock.advance(HOUR_S - 60)
    ended_flow(stage)
    held = stage.leased(HELD, policy={"on_lost": "hold", "max_attempts": 3, "lease_s": 30.0})
    report(stage, "start", held)
    stage.clock.advance(55)
    stage.coordinator.execute(Sweep(job_id=JobId(held["job_id"])))
    finished(stage, DONE)
    dead(stage, DEAD, "broken")
    dead(stage, OTHER_DEAD, "also broken")
    _make_hostile(stage)
    live = stage.leased(LIVE)
    report(stage, "start", live)
    stage.call("output", {**live, "text": "first line\n"}, role=Role.WORKER)
    LEASES["live"] = live
    stage.leased(FOREIGN)
    for number in (QUEUED, MISTAKEN):
        stage.enqueue(number, queue="waiting")


LEASES: dict[str, dict[str, str]] = {}
"""What the worker of the live job holds: its test speaks for it."""


def _make_hostile(stage: DashboardStage) -> None:
    text = "".join(HOSTILE)
    held = stage.leased(EVIL, policy={"max_attempts": 1}, payload={"field": text * 10})
    stage.call("output", {**held, "text": text * 10}, role=Role.WORKER)
    error = {"class": "transient", "type": text[:100], "message": text, "traceback": text}
    report(stage, "fail", held, error=error)


@spec("DB20")
def test_the_picture_shows_what_happened_to_a_job(seen: Watched, shop: Site) -> None:
    seen.sign_in(shop, Role.VIEWER)
    seen.page.goto(f"{shop.address}/jobs/{HERO}")

    lanes = seen.page.locator("svg.lane")
    expect(lanes).to_have_count(3)
    expect(lanes.nth(1)).to_have_attribute("aria-label", _contains("Late result refused"))
    expect(lanes.nth(1).locator(".glyph-refused")).to_be_visible()
    expect(seen.page.locator("table.events")).to_contain_text("Late result refused")
    for lane in lanes.all():
        box = lane.bounding_box()
        assert box is not None
        for glyph in lane.locator(".bar").all():
            inside = glyph.bounding_box()
            assert inside is not None
            assert box["x"] - 2 <= inside["x"] <= box["x"] + box["width"] + 2


def _contains(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text))


def test_every_action_is_tried_here_or_there() -> None:
    flows = {"redrive-flow"}  # test_a_flow_that_has_ended_is_redriven

    assert {each.name for each in ACTIONS} == {*TRIED, *flows, *test_actions.TRIED}


@spec("DB22")
@pytest.mark.parametrize("name", TRIED)
def test_an_operator_acts_on_a_job_in_a_dialog(seen: Watched, site: Site, name: str) -> None:
    number, field, text, said = TRIED[name]
    seen.sign_in(site, Role.OPERATOR)
    seen.page.goto(f"{site.address}/jobs/{JOB.format(number)}")

    seen.page.locator(f'a[data-dialog][href^="/actions/{name}?"]').click()
    dialog = seen.page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    assert not seen.violations()
    if field is not None:
        dialog.get_by_label(field).fill(text)
    dialog.locator("button").click()

    expect(seen.page.get_by_role("status")).to_contain_text(said)
    expect(seen.page).to_have_url(f"{site.address}/jobs/{JOB.format(number)}")
    if name in ("cancel", "discard"):
        expect(seen.page.locator("main")).to_contain_text(text)


@spec("DB22")
def test_ticked_jobs_are_counted_and_cancelled_together(seen: Watched, shop: Site) -> None:
    seen.sign_in(shop, Role.OPERATOR)
    seen.page.goto(f"{shop.address}/jobs?queue=newsletter&status=queued")
    for box in seen.page.locator('input[name="target"]').all()[:3]:
        box.check()
    expect(seen.page.locator("[data-bulk-count]")).to_have_text("3 selected")

    seen.page.locator('button[formaction="/actions/cancel"]').click()
    dialog = seen.page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel 3 jobs?")
    dialog.get_by_label("Reason").fill("sent by hand")
    dialog.locator("button").click()

    expect(seen.page.get_by_role("status")).to_contain_text("3 jobs")


@spec("DB26")
def test_a_flow_that_has_ended_is_redriven(seen: Watched, site: Site) -> None:
    seen.sign_in(site, Role.OPERATOR)
    seen.page.goto(f"{site.address}/flows/{FLOW}")

    seen.page.get_by_role("link", name="Redrive 2 jobs").click()
    dialog = seen.page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 of its 2 jobs did not succeed")
    assert not seen.violations()
    dialog.locator("button").click()

    expect(seen.page.get_by_role("status")).to_contain_text("redriven")
    expect(seen.page.locator(".job-head")).to_contain_text("in progress")
    expect(seen.page.get_by_role("link", name=_contains("Redrive"))).to_have_count(0)


@spec("DB22")
def test_the_jobs_of_a_flow_are_cancelled(seen: Watched, shop: Site) -> None:
    [order] = [
        flow
        for flow in shop.call("flows", role=Role.OPERATOR)["flows"]
        if flow["name"].startswith("order-")
    ]
    seen.sign_in(shop, Role.OPERATOR)
    seen.page.goto(f"{shop.address}/flows/{order['id']}")

    seen.page.get_by_role("link", name="Cancel", exact=True).click()
    dialog = seen.page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel 4 jobs?")
    assert not seen.violations()
    dialog.get_by_label("Reason").fill("the customer changed her mind")
    dialog.locator("button").click()

    expect(seen.page.get_by_role("status")).to_contain_text("4 jobs: cancelled")


@spec("DB24")
@pytest.mark.parametrize(("name", "kind"), [("redrive", "import-feed"), ("discard", "import-feed")])
def test_a_group_of_dead_letters_is_resolved(
    seen: Watched, shop: Site, name: str, kind: str
) -> None:
    seen.sign_in(shop, Role.OPERATOR)
    seen.page.goto(f"{shop.address}/dead-letters?kind={kind}")
    row = seen.page.locator("tbody tr").last
    letters = row.locator(".group-count").inner_text()

    row.locator(f'a[data-dialog][href$="/{name}"]').click()
    dialog = seen.page.get_by_role("dialog")
    expect(dialog).to_contain_text(f"{letters} dead letters?")
    dialog.locator("button").click()

    expect(seen.page.get_by_role("status")).to_contain_text(f"{letters} dead letters: {name}")


@spec("DB20")
def test_output_appears_as_it_is_written_and_the_end_changes_the_page(
    seen: Watched, site: Site
) -> None:
    seen.sign_in(site, Role.OPERATOR)
    seen.page.goto(f"{site.address}/jobs/{JOB.format(LIVE)}")
    expect(seen.page.get_by_role("log")).to_contain_text("first line")
    expect(seen.page.locator('a[href^="/actions/cancel?"]')).to_be_visible()
    live = LEASES["live"]

    more = {**live, "text": "first line\nsecond line\n", "part": 1}
    site.call("output", more, role=Role.WORKER)
    expect(seen.page.get_by_role("log")).to_contain_text("second line", timeout=30_000)
    site.call("complete", {**live, "request_id": "end", "result": 7}, role=Role.WORKER)

    succeeded = seen.page.locator(".job-head .status-succeeded")
    expect(succeeded).to_be_visible(timeout=30_000)
    expect(seen.page.locator('a[href^="/actions/rerun?"]')).to_be_visible(timeout=30_000)


@spec("DB21")
def test_an_artifact_is_downloaded_and_never_runs(seen: Watched, shop: Site) -> None:
    seen.sign_in(shop, Role.OPERATOR)
    seen.page.goto(f"{shop.address}/jobs/{HERO}")

    with seen.page.expect_download() as download:
        seen.page.get_by_role("link", name="preview.html").click()

    assert download.value.suggested_filename == "preview.html"
    expect(seen.page).not_to_have_title("it ran")


@spec("DB9")
@pytest.mark.parametrize("width", [1280, 390])
def test_hostile_texts_run_nothing_and_keep_the_layout(
    seen: Watched, site: Site, width: int
) -> None:
    seen.page.set_viewport_size({"width": width, "height": 860})
    seen.sign_in(site, Role.OPERATOR)
    for path in (f"/jobs/{JOB.format(EVIL)}", "/jobs", "/jobs?error=%3Cscript%3E"):
        seen.page.goto(f"{site.address}{path}")

        assert seen.page.locator("main img").count() == 0
        assert not seen.is_wider_than_the_window(), path
        assert not seen.violations()


@spec("DB23")
def test_a_flow_leads_to_its_jobs(seen: Watched, shop: Site) -> None:
    seen.sign_in(shop, Role.VIEWER)
    seen.page.goto(f"{shop.address}/flows/{IMPORT}")
    graph = seen.page.locator("svg.flow-graph")
    expect(graph.locator("a")).to_have_count(7)

    graph.get_by_role("link", name=_contains("24 × parse-file")).click()
    expect(seen.page.locator("#jobs")).to_contain_text("24 of kind parse-file")
    seen.page.locator("svg.flow-graph").get_by_role("link", name=_contains("download")).click()

    expect(seen.page.locator("h1")).to_contain_text("download-feed")


def test_a_job_that_was_asked_to_stop_says_by_whom(seen: Watched, shop: Site) -> None:
    seen.sign_in(shop, Role.VIEWER)
    seen.page.goto(f"{shop.address}/jobs/{EXPORT}")

    events = seen.page.locator("table.events")
    expect(events).to_contain_text("operator:operator-1")
    expect(events).to_contain_text("the export of 2025 was sent already")
