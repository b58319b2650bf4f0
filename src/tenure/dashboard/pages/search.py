"""The search field: leads to a job by its id, and finds names of everything else."""

import re
from collections.abc import Iterable

from starlette.responses import Response

from tenure.dashboard.page import Page
from tenure.dashboard.pages.overview import ask_overview
from tenure.dashboard.rendering import url
from tenure.dashboard.visits import Visit
from tenure.protocol.replies import KindsReply, QueuesReply, SchedulesReply, WorkersReply

MAX_FOUND = 50
"""Names of each sort that are shown."""

ID_PREFIX = re.compile(r"[0-9a-f-]{4,36}", re.IGNORECASE)
JOB_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


async def search(visit: Visit) -> Response:
    """Names that contain the text, or the job that it names."""
    text = (visit.query("q") or "").strip()[:200]
    if JOB_ID.fullmatch(text):
        return visit.go(url("/jobs", text.lower()))
    found: dict[str, list[str]] = {}
    if text:
        queues = await visit.ask("queues", QueuesReply)
        kinds = await visit.ask("kinds", KindsReply)
        overview = await ask_overview(visit)
        workers = await visit.ask("workers", WorkersReply)
        schedules = await visit.ask("schedules", SchedulesReply)
        found = {
            "queues": _matching(text, (each.name for each in queues.queues)),
            "kinds": _matching(text, (each.kind for each in (*kinds.kinds, *overview.kinds))),
            "workers": _matching(text, (each.worker for each in workers.workers)),
            "schedules": _matching(text, (each.name for each in schedules.schedules)),
        }
    is_prefix = ID_PREFIX.fullmatch(text) is not None
    return await visit.show("search.html", text=text, found=found, is_prefix=is_prefix)


def _matching(text: str, names: Iterable[str]) -> list[str]:
    wanted = text.lower()
    return sorted({name for name in names if wanted in name.lower()})[:MAX_FOUND]


PAGES = (Page(name="search", path="/search", answer=search),)
