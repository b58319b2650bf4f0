"""Dead letters: grouped by kind and error, with counts over time; many at once are redriven or
discarded, and the page says how many before it asks."""

from collections.abc import Sequence

from starlette.responses import Response

from tenure.core.ids import JobId
from tenure.core.views.overview import TimeRange
from tenure.dashboard.actions import MAX_TARGETS, ask_first
from tenure.dashboard.pages import job
from tenure.dashboard.rendering import counted_words, url
from tenure.dashboard.visits import Page, Visit
from tenure.errors import InvalidInput
from tenure.protocol.records import DeadLetterGroupRecord, DeadLetterGroupsReply
from tenure.protocol.replies import DeadLetterPage, JobPage, ProblemCode
from tenure.server.problems import RefusedRequest

ROWS = 50
GROUP_ACTIONS = {each.name: each for each in job.ACTIONS if each.name in ("redrive", "discard")}


async def dead_letters(visit: Visit) -> Response:
    """Groups of unresolved dead letters."""
    chosen = {name: visit.query(name) for name in ("queue", "kind")}
    span = visit.query("range") or TimeRange.DAY.value
    found = await visit.ask(
        "dead-letter-groups", DeadLetterGroupsReply, query={**chosen, "range": span}
    )
    peak = max((max(group.buckets, default=0) for group in found.groups), default=0)
    return await visit.show(
        "dead_letters.html",
        found=found,
        peak=peak,
        chosen=chosen,
        range=span,
        ranges=tuple(each.value for each in TimeRange),
        is_filtered=any(chosen.values()),
        most=MAX_TARGETS,
    )


async def dead_letter_list(visit: Visit) -> Response:
    """Dead letters one by one, on request also resolved ones."""
    chosen = visit.listed({name: visit.query(name) for name in ("queue", "kind", "reason_code")})
    resolved = visit.query("resolved") is not None
    before = visit.query("before")
    found = await visit.ask(
        "dead-letters",
        DeadLetterPage,
        query={**chosen, "resolved": resolved, "before": before, "limit": ROWS},
    )
    same = {**chosen, "resolved": "yes" if resolved else None}
    path = "/dead-letters/list"
    older = None if found.next_before is None else url(path, before=found.next_before, **same)
    return await visit.show(
        "dead_letter_list.html",
        jobs=[each.job for each in found.dead_letters],
        resolutions={each.id: each.resolution for each in found.dead_letters},
        chosen=chosen,
        resolved=resolved,
        group=None,
        is_filtered=any(visit.query(name) for name in chosen),
        first_url=url(path, **same),
        older_url=older,
        is_first=before is None,
    )


async def group(visit: Visit) -> Response:
    """The newest dead letters of one group."""
    found = await _group(visit)
    ids = list(found.job_ids[:ROWS])
    page = await visit.ask("lookup", JobPage, body={"job_ids": ids})
    by_id = {each.id: each for each in page.jobs}
    return await visit.show(
        "dead_letter_list.html",
        jobs=[by_id[each] for each in ids if each in by_id],
        resolutions={each.job_id: each for each in page.resolutions},
        chosen={},
        resolved=False,
        group=found,
        most=MAX_TARGETS,
        first_url=url("/dead-letters", found.key),
        older_url=None,
        is_first=True,
    )


async def confirm_group(visit: Visit) -> Response:
    """Ask before all dead letters of a group, or the newest of very many, are redriven or
    discarded. The form names them, so that exactly these are meant whatever happens meanwhile."""
    action = GROUP_ACTIONS.get(visit.part("action"))
    if action is None:
        raise RefusedRequest(404, ProblemCode.UNKNOWN_ROUTE, "there is no such action")
    found = await _group(visit)
    if action.name == "redrive":
        targets, every, remarks = _redrivable(found)
    else:
        targets, every, remarks = found.job_ids[:MAX_TARGETS], found.letters, []
    return await ask_first(
        visit,
        action,
        targets,
        back="/dead-letters",
        remarks=remarks,
        left=every - len(targets),
    )


def _redrivable(found: DeadLetterGroupRecord) -> tuple[Sequence[JobId], int, list[str]]:
    """The newest letters of a group that can be redriven by themselves, how many of these there
    are, and what to do about the others. [FL12]"""
    every = found.letters - found.in_flows
    if not every:
        raise InvalidInput(
            "target", "every dead letter of this group belongs to a flow", hint=_FLOWS
        )
    remarks = []
    if found.in_flows:
        others = counted_words(
            found.in_flows,
            "more belongs to a flow and is not redriven here",
            "more belong to flows and are not redriven here",
        )
        remarks.append(f"{others}: {_FLOWS}.")
    return found.redrivable_ids[:MAX_TARGETS], every, remarks


_FLOWS = (
    "redrive the whole flow, on its page or by `tenure flows redrive FLOW`; the page of the group"
    " names its flows"
)


async def _group(visit: Visit) -> DeadLetterGroupRecord:
    found = await visit.ask(
        "dead-letter-groups", DeadLetterGroupsReply, query={"key": visit.part("key")}
    )
    if not found.groups:
        raise RefusedRequest(
            404,
            ProblemCode.UNKNOWN_ROUTE,
            "this group has no dead letters any more",
            hint="they were redriven, discarded or purged; go back to the groups",
        )
    first: DeadLetterGroupRecord = found.groups[0]
    return first


PAGES = (
    Page(
        "dead-letters",
        "/dead-letters",
        dead_letters,
        menu="Dead letters",
        icon="dead",
        key="d",
        asks="dead-letter-groups",
    ),
    Page("dead-letter-list", "/dead-letters/list", dead_letter_list),
    # The longer path first: a name in a path may contain slashes.
    Page("confirm-group", "/dead-letters/{key}/{action}", confirm_group),
    Page("dead-letter-group", "/dead-letters/{key}", group),
)
