"""Flows with real workers: every job once, no child before its parents, nothing left behind."""

from collections.abc import Iterator

import pytest

from tenure.client.channel import Link
from tenure.client.flows import Flow
from tenure.conformance.spec import spec
from tenure.core.vocabulary import EventType, JobStatus
from tenure.verify import assert_holds
from tests.e2e.app import app
from tests.e2e.workers import EACH_DATABASE, Site

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
