"""What a page shows without JavaScript, and what a poll gets of it."""

import pytest

from tenure.conformance.spec import spec
from tenure.core.vocabulary import Role
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

    for name in ("rates", "backlog"):
        assert f'data-plot="table-{name}"' in text
        assert f'<table id="table-{name}">' in text


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
    monkeypatch.setattr("tenure.stores.memory.overview.MAX_TALLIED", 1)

    assert words in browser.get(path).text
