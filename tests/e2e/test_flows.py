"""Flows with real workers: every job once, no child before its parents, nothing left behind."""

import signal
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from tenure.client.channel import Link
from tenure.client.flows import Flow
from tenure.core.flow_rows import FlowView
from tenure.core.ids import DEFAULT_NAMESPACE
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import EventType, JobStatus
from tenure.verify import assert_holds
from tenure_conformance.spec import spec
from tests.e2e.app import app
from tests.e2e.workers import EACH_DATABASE, Site
from tests.support.waiting import until

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def connected(site: Site) -> Iterator[None]:
    """The application sends its jobs to the site."""
    with app.channel.diverted(Link(coordination=site.coordinator, close=lambda: None)):
        yield


def diamond(**fields: bool) -> Flow:
    with app.flow("diamond") as flow:
        top = flow.add(app.call("part", {"number": 1}), name="top")
        left = flow.add(app.call("part", {"number": 2, **fields}), after=top, name="left")
        right = flow.add(app.call("part", {"number": 3}), after=top, name="right")
        flow.add(app.call("join"), after=[left, right], name="bottom")
        flow.add(app.call("ends"), after=flow.jobs[-1], when="ended", name="last")
    return flow


@spec("FL1", "FL7", "I32", "I33")
@EACH_DATABASE
def test_a_diamond_whose_handler_is_killed_runs_each_job_once_and_in_order(site: Site) -> None:
    site.start("one", concurrency=2)
    site.start("two", concurrency=2)

    flow = diamond(crash=True)

    assert set(flow.wait("60s").values()) == {JobStatus.SUCCEEDED}
    assert flow.result(flow.jobs[3]) == 13
    for job in flow.jobs:
        types = site.types(job.id)
        assert types.count(EventType.SUCCEEDED) == 1
        assert types.count(EventType.READY) == int(bool(job.after))
    assert_holds(site.store)


@spec("FL2")
def test_a_part_that_fails_cancels_what_needs_it_and_the_rest_is_told(site: Site) -> None:
    site.start("worker")

    flow = diamond(fail=True)

    ends = flow.wait("60s")
    told = flow.result(flow.jobs[4])
    assert (ends["left"], ends["bottom"], ends["last"]) == ("failed", "cancelled", "succeeded")
    assert told == {"bottom": "cancelled"}
    assert_holds(site.store)


@spec("FL7")
def test_every_lane_reads_the_results_of_parents(site: Site) -> None:
    site.start("worker", concurrency=3)
    with app.flow("lanes") as flow:
        parts = [flow.add(app.call("part", {"number": number})) for number in range(30)]
        joins = [
            flow.add(app.call(kind), after=parts)
            for kind in ("join", "join_in_thread", "join_in_loop")
        ]

    found = [flow.result(each, "60s") for each in joins]
    assert found == [sum(number * number for number in range(30))] * 3


def settled(site: Site) -> list[FlowView]:
    """All flows, once all of them have ended."""

    def ended() -> bool:
        found = site.store.flows.page(DEFAULT_NAMESPACE, before=None, limit=500)
        return not any(each.is_live for each in found)

    until(ended, "every flow has ended", within_s=180)
    views = [
        site.store.flows.load(DEFAULT_NAMESPACE, each.flow.id)
        for each in site.store.flows.page(DEFAULT_NAMESPACE, before=None, limit=500)
    ]
    return [view for view in views if view is not None]


def not_done_once(site: Site, views: Sequence[FlowView]) -> dict[str, list[EventType]]:
    """The logs of the jobs that did not succeed exactly once, or became ready more than once."""
    logs = {
        f"{step.step} {step.job_id}": site.types(step.job_id) for v in views for step in v.steps
    }
    return {
        name: types
        for name, types in logs.items()
        if types.count(EventType.SUCCEEDED) != 1 or types.count(EventType.READY) > 1
    }


@spec("FL13")
@pytest.mark.parametrize("kind", ["nest", "nest_in_thread", "nest_in_loop"])
def test_handlers_of_every_lane_make_flows_within_flows_once(site: Site, kind: str) -> None:
    site.start("worker", concurrency=3)

    first = app.enqueue(kind, {"depth": 2, "width": 3})
    ids = first.result("120s")

    views = settled(site)
    assert len(views) == 3
    assert sum(len(view.steps) for view in views) == 3 * 5 + 2
    assert not_done_once(site, views) == {}
    assert sorted(ids) in [sorted(step.job_id for step in view.steps) for view in views]
    joined = [step.job_id for view in views for step in view.steps if step.step == "joined"]
    assert [app.get(each).result() for each in joined] == [5, 5, 5]
    assert_holds(site.store)


@spec("FL13", "FL5", "I32", "I33")
@pytest.mark.parametrize(
    "site", ["sqlite", pytest.param("postgres", marks=pytest.mark.proof)], indirect=True
)
@pytest.mark.parametrize(("flows", "kills"), [(1, 2), pytest.param(3, 4, marks=pytest.mark.proof)])
def test_nested_flows_survive_workers_that_are_killed(site: Site, flows: int, kills: int) -> None:
    """Whole workers die by SIGKILL, with their children, while flows are made and run."""
    for name in ("one", "two"):
        site.start(name, concurrency=3)
    for _ in range(flows):
        app.enqueue("nest", {"depth": 2, "width": 3})
    for number, name in enumerate(("one", "two", "one", "two")[:kills], start=1):
        until(partial(has_succeeded, site, 6 * number), f"{6 * number} jobs succeeded")
        site.signal(name, signal.SIGKILL)
        site.workers[name].wait()
        site.start(name, concurrency=3)

    views = settled(site)

    assert len(views) == 3 * flows
    assert sum(len(view.steps) for view in views) == flows * (3 * 5 + 2)
    assert not_done_once(site, views) == {}
    assert_holds(site.store)


def has_succeeded(site: Site, number: int) -> bool:
    wanted = JobFilter(namespace=DEFAULT_NAMESPACE, statuses=(JobStatus.SUCCEEDED,), limit=number)
    return len(site.store.views.jobs(wanted).jobs) == number


@spec("FL3", "FL13")
@EACH_DATABASE
@pytest.mark.parametrize("width", [500, pytest.param(5000, marks=pytest.mark.proof)])
def test_a_handler_spreads_over_many_jobs_with_a_join(site: Site, width: int) -> None:
    site.start("one", concurrency=8)
    site.start("two", concurrency=8)

    flow_id = app.enqueue("spread", {"width": width}).result("120s")

    view = app.flows.show(flow_id)
    assert len(view.steps) == width + 1
    [joined] = [step for step in view.steps if step.name == "joined"]
    assert app.get(joined.job_id).result("300s") == width // 10 * sum(n * n for n in range(10))
    assert site.types(joined.job_id).count(EventType.READY) == 1
