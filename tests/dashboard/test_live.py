"""What a page shows without JavaScript, and what a poll gets of it."""

import pytest

from tenure.core.vocabulary import Role
from tenure.dashboard.pages import PAGES
from tenure.dashboard.visits import Page
from tenure_conformance.spec import spec
from tests.dashboard.harness import DashboardStage
from tests.dashboard.test_pages import furnish


@spec("DB13")
@pytest.mark.parametrize("path", ["/", "/queues", "/kinds", "/workers", "/schedules"])
def test_a_poll_gets_only_the_part_that_changes(stage: DashboardStage, path: str) -> None:
    furnish(stage)
    browser = stage.browser(Role.VIEWER)

    whole, part = browser.get(path).text, browser.get(path, hx_request="true").text

    assert '<div id="live" data-live="' in whole
    assert part.strip().startswith('<div id="live" data-live="')
    assert "<html" not in part
    assert part.strip() in whole


@spec("DB13")
def test_a_plot_has_its_table(stage: DashboardStage) -> None:
    furnish(stage)

    text = stage.browser(Role.VIEWER).get("/").text

    assert 'data-plot="table-rates"' in text
    assert '<table id="table-rates">' in text


@spec("OB28")
@pytest.mark.parametrize("path", ["/", "/kinds", "/kinds/k", "/queues/q"])
def test_a_page_says_from_when_on_events_were_counted(
    stage: DashboardStage, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    furnish(stage)
    browser = stage.browser(Role.VIEWER)
    words = "Events were counted from"
    assert words not in browser.get(path).text
    stage.clock.advance(60)
    monkeypatch.setattr("tenure.stores.sql.overview.MAX_TALLIED", 1)

    assert words in browser.get(path).text


@spec("DB15")
def test_polls_of_visitors_with_equal_rights_are_answered_once_a_second(
    stage: DashboardStage,
) -> None:
    stage.enqueue(1, kind="early")
    first, second = (stage.browser(Role.VIEWER, name=name) for name in ("ada", "grace"))
    part = first.get("/jobs", hx_request="true").text
    stage.enqueue(2, kind="late")

    shared, whole = second.get("/jobs", hx_request="true").text, second.get("/jobs").text
    elsewhere = second.get("/jobs?kind=late", hx_request="true").text
    stage.clock.advance(1)
    later = first.get("/jobs", hx_request="true").text

    assert shared == part
    assert "late" not in part
    assert all("late" in text for text in (whole, elsewhere, later))


@spec("DB15", "DB2")
def test_polls_are_not_shared_across_rights(stage: DashboardStage) -> None:
    for number, queue in enumerate(("mine", "theirs")):
        stage.enqueue(number, queue=queue)
    parts = {
        name: stage.browser(role, name=name, **scope).get("/queues", hx_request="true").text
        for name, role, scope in (
            ("whole", Role.OPERATOR, {}),
            ("limited", Role.OPERATOR, {"queues": ("mine",)}),
            ("viewer", Role.VIEWER, {}),
        )
    }

    assert ("theirs" in parts["whole"], "theirs" in parts["viewer"]) == (True, True)
    assert ("mine" in parts["limited"], "theirs" in parts["limited"]) == (True, False)
    assert ("/actions/pause" in parts["whole"], "/actions/pause" in parts["viewer"]) == (
        True,
        False,
    )


@spec("DB15", "DB6")
@pytest.mark.parametrize("page", [each for each in PAGES if each.menu], ids=lambda p: p.name)
def test_a_shared_part_has_nothing_of_a_session(stage: DashboardStage, page: Page) -> None:
    furnish(stage)
    browser = stage.browser(Role.OPERATOR, name="grace")

    part = browser.get(page.path, hx_request="true")

    assert part.status == 200
    assert browser.form_token("/help") not in part.text
    assert "grace" not in part.text
