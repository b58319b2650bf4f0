"""A killed worker, and nobody who sweeps: each way to read its job shows that it is not running."""

import json
import signal
from contextlib import closing

import pytest

from tenure import Tenure
from tenure.core.ids import SYSTEM, JobId
from tenure.core.vocabulary import EventCause, EventType, JobStatus, Role
from tenure.wiring import open_coordinator
from tenure_conformance.spec import spec
from tests.e2e.workers import EACH_DATABASE, Site
from tests.remote.serving import ThreadedServer, connect, new_token
from tests.support.waiting import until

pytestmark = pytest.mark.process


def lose(site: Site, jobs: int) -> list[JobId]:
    """So many running jobs whose only worker was killed, and whose leases are over."""
    ids = [site.enqueue("linger", seconds=600) for _ in range(jobs)]
    site.start("doomed", concurrency=jobs)
    for job_id in ids:
        site.until_status(job_id, JobStatus.RUNNING)
    site.signal("doomed", signal.SIGKILL)
    site.workers["doomed"].wait()
    last_end = max(site.job(job_id).due_at or 0 for job_id in ids)
    until(lambda: site.store.now() > last_end, "the leases are over")
    assert {site.job(job_id).status for job_id in ids} == {JobStatus.RUNNING}
    return ids


def read_over_http(site: Site, job_id: JobId) -> JobStatus:
    """What a viewer is told by a server whose sweeper does not run."""
    server = ThreadedServer()
    token = new_token(site.store, Role.VIEWER, "looker")
    with (
        closing(server),
        open_coordinator(site.url) as coordinator,
        closing(server.mount(coordinator)),
        closing(connect(server.url, token)) as remote,
    ):
        return remote.store.jobs.read([job_id])[job_id].status


@spec("W5", "V1")
@EACH_DATABASE
def test_commands_python_and_http_sweep_the_job_of_a_killed_worker(site: Site) -> None:
    shown_id, waited_id, handle_id, http_id, listed_id = lose(site, 5)

    shown = site.tenure("jobs", "show", shown_id, "--json")
    waited = site.tenure("jobs", "wait", waited_id, "--timeout", "100ms")
    with closing(Tenure(site.url)) as app:
        status = app.get(handle_id).status
    over_http = read_over_http(site, http_id)
    listed = site.tenure("jobs", "ls", "--json", "-s", "running")

    assert json.loads(shown.stdout)["job"]["status"] == "queued"
    assert json.loads(shown.stdout)["events"][-1]["type"] == "requeued"
    assert f"job {waited_id} is still queued".encode() in waited.stderr
    assert (status, over_http) == (JobStatus.QUEUED, JobStatus.QUEUED)
    assert json.loads(listed.stdout) == []
    for job_id in (shown_id, waited_id, handle_id, http_id, listed_id):
        [stalled] = [each for each in site.events(job_id) if each.type is EventType.STALLED]
        assert (stalled.cause, stalled.actor) == (EventCause.LEASE_EXPIRED, SYSTEM)
        assert site.job(job_id).failures == 1
