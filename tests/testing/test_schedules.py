"""Schedules in virtual time, in a user's own tests."""

import asyncio
import re
from typing import Any

import pytest

from tenure import Context, Tenure
from tenure.errors import InvalidInput, TenureError
from tenure.testing import FakeContext, Inline, inline
from tenure_conformance.spec import spec


@spec("SC5", "SC25")
def test_advancing_fires_a_schedule_at_each_of_its_times(app: Tenure, jobs: Inline) -> None:
    ran = []

    @app.job(every="10m")
    def tick(ctx: Context) -> None:
        assert ctx.scheduled_for is not None
        ran.append(ctx.scheduled_for.strftime("%H:%M"))

    jobs.advance("1h")

    assert ran == ["00:10", "00:20", "00:30", "00:40", "00:50", "01:00"]
    [schedule] = app.schedules.ls()
    assert (schedule.name, schedule.fired, schedule.missed) == ("tick", 6, 0)


@spec("SC4")
def test_a_cron_expression_is_in_its_time_zone(app: Tenure, jobs: Inline) -> None:
    @app.job
    def report(full: bool = False) -> bool:
        return full

    app.schedule("nightly", report.call(full=True), cron="15 3 * * *", tz="Europe/Berlin")
    jobs.advance("1d")

    [job] = jobs.enqueued
    assert (job.schedule, job.result) == ("nightly", True)
    assert job.scheduled_for is not None
    assert job.scheduled_for.isoformat() == "2026-01-01T02:15:00+00:00"


@spec("SC7")
def test_a_run_that_waits_for_its_retry_is_not_overtaken(app: Tenure, jobs: Inline) -> None:
    @app.job(every="1m")
    def fails() -> None:
        raise RuntimeError("no")

    jobs.advance("3m")

    [schedule] = app.schedules.ls()
    assert schedule.fired == 1
    assert schedule.skipped == 2


@spec("SC9", "SC11")
def test_a_paused_schedule_does_not_fire_and_can_be_run(app: Tenure, jobs: Inline) -> None:
    @app.job(every="1h")
    def tick() -> str:
        return "ticked"

    jobs.advance("1h")
    app.schedules.pause("tick")
    jobs.advance("5h")
    by_hand = app.schedules.run("tick")

    assert by_hand.result() == "ticked"
    assert len(jobs.enqueued) == 2
    app.schedules.resume("tick")
    jobs.advance("1h")
    assert len(jobs.enqueued) == 3
    app.schedules.remove("tick")
    jobs.advance("5h")
    assert (len(jobs.enqueued), app.schedules.ls()) == (3, [])


@spec("SC9")
def test_a_program_makes_shows_and_changes_a_schedule(app: Tenure, jobs: Inline) -> None:
    @app.job
    def report(customer: str) -> str:
        return customer

    made = app.schedules.add("report-ada", report.call("ada"), cron="15 3 * * *")
    with pytest.raises(InvalidInput, match="a schedule report-ada already; `replace` changes it"):
        app.schedules.add("report-ada", report.call("bob"), every="1h")
    shown = app.schedules.show("report-ada")
    changed = asyncio.run(
        app.schedules.aadd("report-ada", report.call("bob"), every="1h", replace=True)
    )

    assert (made.cron, made.next_at) == ("15 3 * * *", shown.next_times[0])
    assert shown.schedule == made
    assert [at.hour for at in shown.next_times] == [3] * 5
    assert changed.every_s == 3600
    assert asyncio.run(app.schedules.ashow("report-ada")).schedule == changed
    jobs.advance("1h")
    assert [job.result for job in jobs.enqueued] == ["bob"]


def test_a_wrong_schedule_is_refused_and_nothing_is_written(app: Tenure, jobs: Inline) -> None:
    @app.job
    def report() -> None: ...

    for wrong, said in (
        ({"cron": "0 0 30 2 *"}, "cron: '0 0 30 2 *' never happens"),
        ({"cron": "* * * * *", "tz": "Mars/Olympus"}, "Mars/Olympus"),
        ({}, "cron"),
        ({"crom": "* * * * *"}, "crom"),
    ):
        options: Any = wrong
        with pytest.raises(InvalidInput, match=re.escape(said)):
            app.schedules.add("nightly", report.call(), **options)
    with pytest.raises(InvalidInput, match="there is no schedule nightly"):
        app.schedules.show("nightly")

    assert app.schedules.ls() == []


def test_draining_fires_what_its_clock_passes(app: Tenure, jobs: Inline) -> None:
    ran = []

    @app.job(every="10m")
    def tick() -> None:
        ran.append("tick")

    @app.job
    def slow() -> None:
        ran.append("slow")

    slow.using(delay="25m").enqueue()
    jobs.drain()

    assert ran == ["tick", "tick", "slow"]


def test_a_fake_context_has_a_nominal_time() -> None:
    assert FakeContext().scheduled_for is None


def declare(app: Tenure, **options: object) -> None:
    def work(a: int = 0) -> None: ...

    app.job(**options)(work)  # type: ignore[call-overload]  # wrong on purpose


@spec("SC12")
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"schedule": "0 0 30 2 *"}, "cron"),
        ({"schedule": "0 0 * * *", "tz": "Nowhere/Land"}, "tz"),
        ({"schedule": "0 0 * * *", "every": "1h"}, "cron"),
        ({"every": "0s"}, "every"),
        ({"every": "often"}, "every"),
        ({"every": "1h", "catch_up": "all"}, "catch_up"),
        ({"every": "1h", "catch_up": "some"}, "catch_up"),
        ({"every": "1h", "overlap": "queue"}, "overlap"),
        ({"every": "1h", "jitter": "-1s"}, "jitter"),
        ({"tz": "Europe/Berlin"}, "tz"),
        ({"name": "x" * 129, "every": "1h"}, "name"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(
    app: Tenure, options: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        declare(app, **options)

    assert refused.value.field == field
    assert app.registry.schedules() == {}


@spec("SC12")
def test_a_function_that_needs_arguments_has_no_schedule_of_its_own(app: Tenure) -> None:
    with pytest.raises(InvalidInput, match="without arguments"):

        @app.job(every="1h")
        def mail(to: str) -> None: ...


@spec("SC12")
@pytest.mark.parametrize(
    "options", [{"key": "k"}, {"delay": "1m"}, {"job_id": "0190163d-8694-739b-aea5-966c26f8ad91"}]
)
def test_a_schedules_call_has_no_options_of_one_job(app: Tenure, options: dict[str, str]) -> None:
    @app.job
    def work() -> None: ...

    call = work.using(**options).call()  # type: ignore[arg-type]  # one of several

    with pytest.raises(InvalidInput):
        app.schedule("s", call, every="1h")


@spec("SC12")
def test_two_schedules_of_one_name_are_refused(app: Tenure) -> None:
    @app.job(every="1h")
    def work() -> None: ...

    with pytest.raises(InvalidInput, match="declared twice"):
        app.schedule("work", work.call(), every="2h")
    with pytest.raises(InvalidInput, match="is not a call"):
        app.schedule("other", work, every="2h")  # type: ignore[arg-type]  # wrong on purpose


def test_a_schedule_that_fires_too_often_for_a_test_can_be_paused(app: Tenure) -> None:
    @app.job(every="5s")
    def ping() -> None: ...

    @app.job(schedule="15 3 * * *")
    def report() -> None: ...

    told = pytest.raises(TenureError, match=r"app\.schedules\.pause\(name\)")
    with inline(app, max_attempts=20) as jobs, told:
        jobs.advance("1d")

    with inline(app) as jobs:
        app.schedules.pause("ping")
        jobs.advance("7d")

        assert [job.kind for job in jobs.enqueued] == ["report"] * 7
