"""One real worker, many jobs: queues get their share by weight, kinds stay within their limit."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import pytest

from tenure.core.events import Event
from tenure.core.ids import JobId
from tenure.core.vocabulary import EventType, JobStatus
from tests.e2e.workers import Site

pytestmark = pytest.mark.process


def event_of(site: Site, job_id: JobId, wanted: EventType) -> Event:
    """The first event of this type."""
    return next(event for event in site.events(job_id) if event.type is wanted)


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """How many of these overlap at most."""
    steps = [(began, 1) for began, _ in spans] + [(end, -1) for _, end in spans]
    return max(accumulate(step for _, step in sorted(steps)))  # at one instant, ends come first


def test_queues_are_served_by_their_weight(site: Site) -> None:
    jobs = {
        site.call("add", to=queue, one=1, two=number): queue
        for number in range(20)
        for queue in ("high", "low")
    }
    aside = site.call("add", to="aside", one=1, two=1)
    site.start("worker", "-q", "high=3", "-q", "low=1", concurrency=1)
    for job_id in jobs:
        assert site.until_ended(job_id).status is JobStatus.SUCCEEDED

    claimed = sorted(jobs, key=lambda job_id: event_of(site, job_id, EventType.CLAIMED).ts)

    # While both have a backlog; the first claim, which does not know of it yet, asks for any.
    share = Counter(jobs[job_id] for job_id in claimed[1:21])
    assert share == {"high": 15, "low": 5}
    assert site.job(aside).status is JobStatus.QUEUED


def test_a_kind_stays_within_its_concurrency_and_others_do_not_wait_for_it(site: Site) -> None:
    jobs = [site.enqueue("scarce") for _ in range(6)]
    other = site.enqueue("add", one=1, two=1)
    site.start("worker", concurrency=4)
    ended = [site.until_ended(job_id) for job_id in [*jobs, other]]

    # By the handlers' own clocks: the next job may be claimed while the report of the last one,
    # whose handler is gone, is still on its way. How many are taken at once is in the log.
    ran = [tuple(json.loads(job.result or b"")) for job in ended[:-1]]
    taken = [
        (event_of(site, each, EventType.CLAIMED).ts, site.events(each)[-1].ts) for each in jobs
    ]
    assert {job.status for job in ended} == {JobStatus.SUCCEEDED}
    assert most_at_once(ran) <= 2 <= most_at_once(taken)
    assert event_of(site, other, EventType.CLAIMED).ts < max(end for _, end in taken)
