"""The list of jobs: newest first, by filters, pages by key; and the search field, which leads to a
job or flow by its id or the beginning of it."""

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from tenure.core.ids import JOB_ID_PATTERN, SHORTEST_PREFIX, JobId, is_job_id_prefix, typed_prefix
from tenure.core.instants import Instant, parse_duration
from tenure.core.views.job_search import PREVIEW_CHARS
from tenure.core.vocabulary import JobStatus
from tenure.dashboard.rendering import cut, url
from tenure.dashboard.visits import Page, Query, Visit
from tenure.protocol.fields import iso
from tenure.protocol.records import JobRecord
from tenure.protocol.replies import FlowRecord, FlowsReply, JobPage

ROWS = 50
ROW_CHOICES = ("50", "200")
"""Rows that are ticked are sent in a URL, which a server reads up to 16 KiB of. [H43]"""

EMPTY = ("null", "{}", "[]")
"""Payloads that say nothing about a job."""


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of the page and of the route that lists jobs, and how the form shows it. One
    without a label is only in links, one that is rare behind a click."""

    name: str
    label: str = ""
    size: int = 12
    is_time: bool = False
    is_rare: bool = False


FILTERS = (
    Filter(name="queue", label="Queue"),
    Filter(name="kind", label="Kind", size=14),
    Filter(name="error", label="Text in the error", size=18),
    Filter(name="enqueued_since", label="Enqueued since", is_time=True),
    Filter(name="enqueued_until", label="Enqueued until", is_time=True, is_rare=True),
    Filter(name="worker", label="Worker", is_rare=True),
    Filter(name="correlation_id", label="Correlation id", size=18, is_rare=True),
    Filter(name="meta", label="Meta, as key=value", size=18, is_rare=True),
    Filter(name="schedule", label="Schedule", is_rare=True),
    Filter(name="id_prefix", label="Id begins with", is_rare=True),
    Filter(name="flow_id", is_rare=True),
    Filter(name="finished_since", is_time=True, is_rare=True),
    Filter(name="finished_until", is_time=True, is_rare=True),
)


async def jobs(visit: Visit) -> Response:
    """Jobs that match the filters."""
    chosen = visit.listed({each.name: visit.query(each.name) for each in FILTERS})
    statuses = visit.queries("status")
    rows = visit.query("rows") if visit.query("rows") in ROW_CHOICES else None
    before = visit.query("before")
    found = await visit.ask(
        "jobs",
        JobPage,
        query={
            **asked(chosen, visit.instant),
            "status": statuses,
            "before": before,
            "previews": visit.sees_bodies,
            "limit": ROWS if rows is None else int(rows),
        },
    )
    same = {**chosen, "status": statuses, "rows": rows}
    older = None if found.next_before is None else url("/jobs", before=found.next_before, **same)
    return await visit.show(
        "jobs.html",
        jobs=found.jobs,
        previews=_previews(found),
        filters=FILTERS,
        chosen=chosen,
        statuses=statuses,
        all_statuses=tuple(JobStatus),
        rows=rows or str(ROWS),
        row_choices=ROW_CHOICES,
        first_url=url("/jobs", **same),
        older_url=older,
        is_first=before is None,
        has_rare=any(chosen[each.name] for each in FILTERS if each.is_rare),
        is_filtered=any(chosen.values()) or bool(statuses),
    )


def _previews(found: JobPage) -> dict[JobId, str]:
    """The beginnings of the payloads that have something to tell jobs apart by, by job. [DB31]"""
    return {
        job_id: cut(text, PREVIEW_CHARS - 1)
        for job_id, text in found.previews.items()
        if text not in EMPTY
    }


def asked(chosen: Mapping[str, str | None], now: Instant) -> dict[str, str | None]:
    """The filters as the route takes them: `2h` in a field for a time means two hours ago, and an
    id may be given as pages and commands shorten it."""
    found = dict(chosen)
    for each in FILTERS:
        text = chosen[each.name]
        if each.is_time and text is not None:
            found[each.name] = _moment(text, now)
    if chosen["id_prefix"] is not None:
        found["id_prefix"] = typed_prefix(chosen["id_prefix"])
    return found


def _moment(text: str, now: Instant) -> str:
    """A time that was given as a duration before now; anything else is for the route to judge."""
    try:
        ago = parse_duration(text)
    except ValueError:
        return text
    return str(iso(Instant(now - ago)))


# --- search

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


PAGES = (
    Page("jobs", "/jobs", jobs, menu="Jobs", icon="job", key="j", asks="jobs"),
    Page("search", "/search", search),
)
