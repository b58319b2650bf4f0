"""The list of jobs: newest first, by filters, pages by key."""

from starlette.responses import Response

from tenure.core.vocabulary import JobStatus
from tenure.dashboard.page import Page
from tenure.dashboard.rendering import url
from tenure.dashboard.visits import Visit
from tenure.protocol.replies import JobPage

ROWS = 50

FILTERS = ("status", "queue", "kind", "correlation_id", "schedule", "id_prefix")
"""Parameters of the page, and of the route that lists jobs."""


async def jobs(visit: Visit) -> Response:
    """Jobs that match the filters."""
    chosen = {name: visit.query(name) for name in FILTERS}
    chosen["status"] = None
    statuses = visit.queries("status")
    before = visit.query("before")
    query = {**chosen, "status": statuses, "before": before, "limit": ROWS}
    found = await visit.ask("jobs", JobPage, query=query)
    same = {**chosen, "status": statuses}
    older = None if found.next_before is None else url("/jobs", before=found.next_before, **same)
    return await visit.show(
        "jobs.html",
        jobs=found.jobs,
        chosen=chosen,
        statuses=statuses,
        all_statuses=tuple(JobStatus),
        first_url=url("/jobs", **same),
        older_url=older,
        is_first=before is None,
        is_filtered=any(same.values()),
    )


PAGES = (Page(name="jobs", path="/jobs", answer=jobs, menu="Jobs", icon="job", key="j"),)
