"""The search field: leads to a job or flow by its id or the beginning of it."""

from starlette.responses import Response

from tenure.core.ids import JOB_ID_PATTERN, SHORTEST_PREFIX, is_job_id_prefix, typed_prefix
from tenure.dashboard.rendering import url
from tenure.dashboard.visits import Page, Query, Visit
from tenure.protocol.records import JobRecord
from tenure.protocol.replies import FlowRecord, FlowsReply, JobPage

MAX_FOUND = 10
"""How many jobs, and how many flows, are shown whose ids start with the text."""


async def search(visit: Visit) -> Response:
    """The job or flow that the text names, or links to lists of jobs that have it."""
    text = (visit.query("q") or "").strip()[:200]
    prefix = typed_prefix(text)
    is_prefix = bool(prefix) and is_job_id_prefix(prefix)
    flows, jobs = await _of_prefix(visit, prefix) if is_prefix else ((), ())
    if len(flows) + len(jobs) == 1:
        return visit.go(url("/flows", flows[0].id) if flows else url("/jobs", jobs[0].id))
    if not flows and JOB_ID_PATTERN.fullmatch(prefix):
        return visit.go(url("/jobs", prefix))
    return await visit.show(
        "search.html", text=text, prefix=prefix if is_prefix else None, flows=flows, jobs=jobs
    )


async def _of_prefix(
    visit: Visit, prefix: str
) -> tuple[tuple[FlowRecord, ...], tuple[JobRecord, ...]]:
    """The newest flows and jobs whose ids start so, read by key ranges. Flows are not for limited
    tokens [FL9], and one with several queues or kinds lists the jobs of one at a time [DB27]."""
    if len(prefix) < SHORTEST_PREFIX:
        return (), ()
    query: Query = {"id_prefix": prefix, "limit": MAX_FOUND}
    flows: tuple[FlowRecord, ...] = ()
    jobs: tuple[JobRecord, ...] = ()
    if visit.may("flows"):
        flows = (await visit.ask("flows", FlowsReply, query=query)).flows
    if not visit.choices:
        jobs = (await visit.ask("jobs", JobPage, query=query)).jobs
    return flows, jobs


PAGES = (Page("search", "/search", search),)
