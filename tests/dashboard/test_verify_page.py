"""Why a job waits, and the result of its verification."""

import pytest
from msgspec.structs import replace

from tenure.core.ids import JobId
from tenure.core.vocabulary import Role
from tenure_conformance.spec import spec
from tests.dashboard.harness import DashboardStage, Links
from tests.dashboard.test_job_pages import finished
from tests.server.harness import JOB


@spec("DB25")
def test_a_job_is_verified_and_the_result_is_shown(stage: DashboardStage) -> None:
    held = finished(stage)
    browser = stage.browser(Role.VIEWER)
    path = f"/jobs/{held['job_id']}"
    assert f"{path}/verify" in Links(browser.get(path).text).hrefs

    page = browser.get(f"{path}/verify").text

    assert "notice-good" in page
    assert page.count('class="check-good"') > 5
    assert "check-bad" not in page


@spec("DB25")
def test_a_row_that_does_not_follow_from_its_log_is_shown_as_violated(
    stage: DashboardStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = finished(stage)
    job_id = JobId(held["job_id"])
    [record] = stage.store.audit.records(page_size=1, job_id=job_id)
    assert record.job is not None
    broken = replace(record, job=replace(stage.job(job_id), attempt=7))
    monkeypatch.setattr(stage.store.audit, "records", lambda **_: iter([broken]))

    page = stage.browser(Role.VIEWER).get(f"/jobs/{job_id}/verify").text

    assert "notice-bad" in page
    assert "check-bad" in page


@spec("DB25")
def test_the_page_of_a_job_says_why_it_waits(stage: DashboardStage) -> None:
    stage.enqueue(1)
    stage.call("pause", role=Role.OPERATOR, queue="q")
    browser = stage.browser(Role.VIEWER)

    page = browser.get(f"/jobs/{JOB.format(1)}").text

    assert "Why it waits" in page
    assert "paused" in page.partition("Why it waits")[2]
