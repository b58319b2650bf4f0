"""Jobs that real handlers enqueue, through the worker that runs them."""

import pytest

from tenure.core.ids import JobId
from tenure.core.vocabulary import EventCause, JobStatus
from tenure_conformance.spec import spec
from tests.e2e.workers import Site

pytestmark = pytest.mark.process

LANES = ("lead", "lead_in_thread", "lead_in_loop")


@spec("D8", "D9", "D11")
def test_a_retried_handler_enqueues_once_in_every_lane(site: Site) -> None:
    leads = {kind: site.enqueue(kind) for kind in LANES}
    site.start("worker", concurrency=3)

    for kind, job_id in leads.items():
        job = site.until_ended(job_id)
        assert (job.status, job.attempt) == (JobStatus.SUCCEEDED, 2)
        assert job.result is not None
        followed = [site.until_ended(JobId(each)) for each in job.result.decode()[1:-1].split()]
        assert [each.result for each in followed] == [f'"{kind} 1"'.encode()] * 2
        assert {(each.origin_id, each.origin_cause) for each in followed} == {
            (job_id, EventCause.FOLLOW_UP)
        }
