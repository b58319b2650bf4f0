"""The search field: leads to a job or flow by its id or the beginning of it, and finds names of
everything else."""

from collections.abc import Iterable
from typing import Any, TypeVar

from starlette.responses import Response

from tenure.core.ids import (
    JOB_ID_PATTERN,
    SHORTEST_PREFIX,
    is_job_id_prefix,
    typed_prefix,
)
from tenure.dashboard.pages.overview import ask_overview
from tenure.dashboard.rendering import url
from tenure.dashboard.visits import Page, Visit
from tenure.protocol.records import JobRecord
from tenure.protocol.replies import (
    FlowRecord,
    FlowsReply,
    JobPage,
    KindsReply,
    QueuesReply,
    SchedulesReply,
    WorkersReply,
)
from tenure.protocol.requests import MAX_PAGE

_Page = TypeVar("_Page", QueuesReply, SchedulesReply, WorkersReply)

MAX_FOUND = 50
"""Names of each sort that are shown."""

MAX_JOBS = 10
"""How many jobs, and how many flows, are shown whose ids start with the text."""


async def search(visit: Visit) -> Response:
    """Names that contain the text, or the job or flow that it names."""
    text = (visit.query("q") or "").strip()[:200]
    prefix = typed_prefix(text)
    is_prefix = bool(prefix) and is_job_id_prefix(prefix)
    flows, jobs = await _of_prefix(visit, prefix) if is_prefix else ([], [])
    if len(flows) + len(jobs) == 1:
        return visit.go(url("/flows", flows[0].id) if flows else url("/jobs", jobs[0].id))
    if not flows and JOB_ID_PATTERN.fullmatch(prefix):
        return visit.go(url("/jobs", prefix))
    found: dict[str, list[str]] = {}
    if text:
        queues = await _pages(visit, "queues", QueuesReply)
        kinds = await visit.ask("kinds", KindsReply)
        overview = await ask_overview(visit)
        workers = await _pages(visit, "workers", WorkersReply)
        schedules = await _pages(visit, "schedules", SchedulesReply)
        found = {
            "queues": _matching(text, (each.name for page in queues for each in page.queues)),
            "kinds": _matching(text, (each.kind for each in (*kinds.kinds, *overview.kinds))),
            "workers": _matching(text, (each.worker for page in workers for each in page.workers)),
            "schedules": _matching(
                text, (each.name for page in schedules for each in page.schedules)
            ),
        }
    return await visit.show(
        "search.html",
        text=text,
        found=found,
        prefix=prefix if is_prefix else None,
        flows=flows,
        jobs=jobs,
    )


async def _pages(visit: Visit, route: str, reply: type[_Page]) -> list[_Page]:
    """All pages of a list of names."""
    query: dict[str, Any] = {"limit": MAX_PAGE}
    pages: list[_Page] = []
    while not pages or pages[-1].next_after is not None:
        pages.append(await visit.ask(route, reply, query=query))
        query = query | {"after": pages[-1].next_after}
    return pages


async def _of_prefix(visit: Visit, prefix: str) -> tuple[list[FlowRecord], list[JobRecord]]:
    """The newest flows and jobs whose ids start so, read by key ranges. Flows are not for limited
    tokens [FL9], and one with several queues or kinds lists the jobs of one at a time [DB27]."""
    flows: list[FlowRecord] = []
    jobs: list[JobRecord] = []
    if len(prefix) < SHORTEST_PREFIX:
        return flows, jobs
    if visit.may("flows"):
        query: dict[str, str | int] = {"id_prefix": prefix, "limit": MAX_JOBS}
        flows = list((await visit.ask("flows", FlowsReply, query=query)).flows)
    if not visit.choices:
        found = await visit.ask("jobs", JobPage, query={"id_prefix": prefix, "limit": MAX_JOBS})
        jobs = list(found.jobs)
    return flows, jobs


def _matching(text: str, names: Iterable[str]) -> list[str]:
    wanted = text.lower()
    return sorted({name for name in names if wanted in name.lower()})[:MAX_FOUND]


PAGES = (Page("search", "/search", search),)
