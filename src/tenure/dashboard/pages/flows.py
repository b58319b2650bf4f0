"""Flows: the list, and one flow as a graph with the statuses of its jobs."""

import re
from collections.abc import Sequence

from starlette.responses import Response

from tenure.core.flow_rows import in_order
from tenure.core.vocabulary import JobStatus
from tenure.dashboard.actions import FLOW, MAX_TARGETS, Action, ask_first, checked_targets
from tenure.dashboard.flow_graph import by_urgency, graph_of
from tenure.dashboard.pages.job import CANCEL
from tenure.dashboard.rendering import counted_words, url
from tenure.dashboard.visits import Page, Visit
from tenure.protocol.replies import FlowReply, FlowsReply, FlowStepRecord, flow_view_of

ROWS = 50
STEP_ROWS = 100
"""How many jobs of a flow its table shows at a time."""


async def flows(visit: Visit) -> Response:
    """All flows, newest first."""
    before = visit.query("before")
    found = (await visit.ask("flows", FlowsReply, query={"before": before, "limit": ROWS})).flows
    older = url("/flows", before=found[-1].id) if len(found) == ROWS else None
    return await visit.show(
        "flows.html",
        flows=found,
        counts={each.id: by_urgency(each.statuses or {}) for each in found},
        first_url="/flows",
        older_url=older,
        is_first=before is None,
    )


async def flow(visit: Visit) -> Response:
    """One flow. Its table shows the jobs of one kind and status, if the address asks for them."""
    flow_id = visit.part("flow_id")
    found = await visit.ask("show-flow", FlowReply, path={"flow_id": flow_id})
    view = flow_view_of(found)
    chosen = {"kind": visit.query("kind"), "status": visit.query("status")}
    ordered = await visit.services.listing(lambda: _parents_first(found))
    wanted = [step for step in ordered if _is_wanted(step, chosen)]
    page, next_after = _page(wanted, visit.query("after"))
    older = None
    if next_after is not None:
        older = url("/flows", flow_id, after=next_after, **chosen)
    return await visit.show(
        "flow.html",
        flow=found.flow,
        graph=await visit.services.listing(lambda: graph_of(found.current)),
        counts=by_urgency(step.status for step in found.current),
        redrivable=0 if found.flow.is_live or found.hidden else len(view.to_replace),
        hidden=found.hidden,
        purged=view.purged,
        shown_jobs=len(found.current),
        chosen=chosen,
        steps=page,
        wanted_count=len(wanted),
        first_url=url("/flows", flow_id, **chosen),
        older_url=older,
        is_first=visit.query("after") is None,
    )


async def confirm_cancel(visit: Visit) -> Response:
    """Ask before the jobs of a flow that have not ended are cancelled."""
    flow_id = visit.part("flow_id")
    found = await visit.ask("show-flow", FlowReply, path={"flow_id": flow_id})
    live = [step for step in flow_view_of(found).current if not step.status.is_terminal]
    live = in_order(live)[::-1]  # children first: a parent's end must not start them [FL14]
    targets = checked_targets([step.job_id for step in live[:MAX_TARGETS]], CANCEL)
    left = len(live) - len(targets)
    remarks = [f"{_hidden(found)} and are not cancelled."] if found.hidden else []
    back = url("/flows", flow_id)
    return await ask_first(
        visit,
        CANCEL,
        targets,
        back=back,
        remarks=remarks,
        left=left,
        names={step.job_id: step.step for step in live},
    )


async def confirm_redrive(visit: Visit) -> Response:
    """Ask before the jobs of a flow that did not succeed are replaced. The core decides whether
    they can be; the page says first how many they are."""
    flow_id = visit.part("flow_id")
    found = await visit.ask("show-flow", FlowReply, path={"flow_id": flow_id})
    replaced = [step for step in found.current if step.status is not JobStatus.SUCCEEDED]
    statuses = by_urgency(step.status for step in replaced)
    words = ", ".join(f"{count} {status.replace('_', ' ')}" for status, count in statuses)
    every = counted_words(len(found.current), "job")
    remarks = [f"{len(replaced)} of its {every} did not succeed: {words}."]
    if not replaced:
        remarks = ["All of its jobs succeeded: there is nothing to redrive."]
    if found.flow.is_live:
        remarks = ["It is in progress: it can be redriven when all of its jobs have ended."]
    if found.hidden:
        remarks = [f"{_hidden(found)}, so it cannot redrive the flow."]
    back = url("/flows", flow_id)
    names = {str(found.flow.id): found.flow.name}
    return await ask_first(visit, REDRIVE, [found.flow.id], back=back, remarks=remarks, names=names)


def _hidden(found: FlowReply) -> str:
    every = counted_words(found.flow.jobs, "job")
    return f"{found.hidden} of its {every} are not visible to this token"


def _is_wanted(step: FlowStepRecord, chosen: dict[str, str | None]) -> bool:
    return all(value is None or getattr(step, name) == value for name, value in chosen.items())


def _parents_first(found: FlowReply) -> list[FlowStepRecord]:
    """The current jobs, parents before their children as commands show them; otherwise by name.
    [FL14]"""
    records = {step.job_id: step for step in found.current}
    by_name = sorted(flow_view_of(found).current, key=lambda step: _in_words(step.step))
    return [records[step.job_id] for step in in_order(by_name)]


def _in_words(name: str) -> tuple[list[int | str], str]:
    """Sorts `page 9` before `page 10`."""
    parts = re.split(r"([0-9]{1,9})", name)
    return [int(part) if at % 2 else part for at, part in enumerate(parts)], name


def _page(
    steps: Sequence[FlowStepRecord], after: str | None
) -> tuple[Sequence[FlowStepRecord], str | None]:
    """The steps after the one of this name, and the name after which the next page starts."""
    names = [step.name for step in steps]
    start = names.index(after) + 1 if after in names else 0
    page = steps[start : start + STEP_ROWS]
    is_last = start + STEP_ROWS >= len(steps)
    return page, None if is_last else page[-1].name


REDRIVE = Action(
    name="redrive-flow",
    target=FLOW,
    verb="Redrive",
    explains="Replaces the jobs that did not succeed by new ones with the same payloads. Jobs"
    " that succeeded stay, and the new ones get their results.",
    done="redriven",
    icon="again",
)

ACTIONS = (REDRIVE,)

PAGES = (
    Page("flows", "/flows", flows, menu="Flows", icon="flow", key="f", asks="flows"),
    # Before the page of a flow: a name in a path may contain slashes.
    Page("cancel-flow", "/flows/{flow_id}/cancel", confirm_cancel),
    Page("redrive-flow", "/flows/{flow_id}/redrive", confirm_redrive),
    Page("flow", "/flows/{flow_id}", flow),
)
