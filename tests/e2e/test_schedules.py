"""Real workers declare the schedules of their application, fire them and run their jobs."""

from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from tenure.core.ids import DEFAULT_NAMESPACE, Kind, QueueName, ScheduleName, operator_actor
from tenure.core.instants import seconds
from tenure.core.job import Job
from tenure.core.schedules import PutSchedule, RemoveSchedule, ScheduleSpec
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import JobStatus
from tenure_conformance.spec import spec
from tests.e2e.workers import EACH_DATABASE, Site
from tests.remote.sites import RemoteSite
from tests.support.waiting import until

pytestmark = pytest.mark.process

APP = "tests.e2e.scheduled:app"
OPERATOR = operator_actor("tests")
TICK, YEARLY = ScheduleName("tick"), ScheduleName("yearly")


def succeeded(site: Site) -> list[Job]:
    wanted = JobFilter(namespace=DEFAULT_NAMESPACE, schedule=TICK, statuses=(JobStatus.SUCCEEDED,))
    return site.store.views.jobs(wanted).jobs


@EACH_DATABASE
@spec("SC1", "SC25", "SC10")
def test_a_worker_declares_fires_and_runs(site: Site) -> None:
    site.deploy(APP)
    site.start("w")

    until(lambda: len(succeeded(site)) >= 3, "three ticks have run", seen=lambda: succeeded(site))

    for job in succeeded(site):
        said = datetime.fromisoformat(msgspec.json.decode(job.result or b""))
        assert job.scheduled_for is not None
        assert said.timestamp() == job.scheduled_for / seconds(1)
        assert job.scheduled_for % seconds(1) == 0
    found = site.store.schedules.page(DEFAULT_NAMESPACE)
    assert [(each.name, each.declared_by) for each in found] == [(TICK, APP), (YEARLY, APP)]
    [worker] = site.store.workers.page(DEFAULT_NAMESPACE)
    assert worker.schedules == (TICK, YEARLY)


@spec("SC10")
def test_a_worker_says_where_the_store_has_something_else(site: Site, tmp_path: Path) -> None:
    hourly = ScheduleSpec(kind=Kind("tick"), queue=QueueName("default"), every_us=seconds(3600))
    for name in (TICK, YEARLY):
        put = PutSchedule(namespace=DEFAULT_NAMESPACE, name=name, actor=OPERATOR, spec=hourly)
        site.coordinator.change_schedule(put)
    site.coordinator.change_schedule(
        RemoveSchedule(namespace=DEFAULT_NAMESPACE, name=YEARLY, actor=OPERATOR)
    )
    site.deploy(APP)
    site.start("w", talk=tmp_path / "log")

    log = tmp_path / "log"
    until(lambda: "yearly was removed" in log.read_text(), "it says so", seen=log.read_text)

    assert "schedule tick: the store has another" in log.read_text()
    assert "tenure schedules sync tests.e2e.scheduled:app" in log.read_text()
    [stored] = site.store.schedules.page(DEFAULT_NAMESPACE)
    assert stored.spec == hourly


@spec("SC10", "SC13")
def test_behind_a_server_the_worker_declares_and_the_server_fires(tmp_path: Path) -> None:
    site = RemoteSite(f"sqlite:///{tmp_path / 'remote.db'}", tmp_path)
    try:
        server = site.serve()
        site.work("w", server.address, APP)

        until(lambda: bool(succeeded(site)), "a tick has run", seen=lambda: succeeded(site))

        operator = site.token("operator", "olga")
        listed = site.ask(server.address, operator, "schedules", "ls")
        shown = site.ask(server.address, operator, "schedules", "show", "tick")
        paused = site.ask(server.address, operator, "schedules", "pause", "tick")
    finally:
        site.close()
    assert [line.split()[:2] for line in listed.stdout.splitlines()[1:]] == [
        ["tick", "active"],
        ["yearly", "active"],
    ]
    assert "succeeded" in shown.stdout
    assert paused.stdout == "tick: paused\n"
