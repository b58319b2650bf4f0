"""Queues: how full they are, and what holds for them."""

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from tenure.dashboard.actions import Action, Field, whole_number
from tenure.dashboard.page import Page
from tenure.dashboard.pages.overview import RANGES, ask_overview
from tenure.dashboard.series import plots_of
from tenure.dashboard.visits import Visit
from tenure.errors import InvalidInput
from tenure.protocol.replies import QueuesReply

NO_RATE = "none"


async def queues(visit: Visit) -> Response:
    """All queues of the namespace: what is set for them, and their jobs now."""
    found = await visit.ask("queues", QueuesReply)
    overview = await ask_overview(visit)
    depths = {each.queue: each for each in overview.queues}
    return await visit.show("queues.html", queues=found.queues, depths=depths)


async def queue(visit: Visit) -> Response:
    """One queue."""
    name = visit.part("queue")
    found = await visit.ask("queues", QueuesReply)
    overview = await ask_overview(visit, queue=name)
    here = [each for each in found.queues if each.name == name]
    depth = [each for each in overview.queues if each.queue == name]
    return await visit.show(
        "queue.html",
        name=name,
        queue=here[0] if here else None,
        depth=depth[0] if depth else None,
        overview=overview,
        plots=plots_of(overview),
        ranges=RANGES,
    )


def limits(form: Mapping[str, str]) -> dict[str, Any]:
    """The limits that a form sets; what is left empty stays as it is."""
    body: dict[str, Any] = {}
    limit, rate, burst = (form.get(name, "").strip() for name in ("limit", "rate", "burst"))
    if limit:
        body["limit"] = whole_number("limit", limit)
    if rate:
        body["rate"] = None if rate == NO_RATE else rate
    if burst:
        body["burst"] = whole_number("burst", burst)
    if not body:
        raise InvalidInput("limit", "nothing is filled in", hint="fill in a limit or a rate")
    return body


RATE = Field(
    name="rate", label="Rate", hint="Such as 100/m or 5/s; none removes it. Empty: as it is."
)
BURST = Field(
    name="burst", label="Burst", kind="number", hint="How many jobs of the rate may begin at once."
)

ACTIONS = (
    Action(
        name="pause",
        target="queue",
        noun="queue",
        verb="Pause",
        explains="Workers get no more jobs of this queue. Jobs that run go on.",
        done="paused",
        icon="pause",
        back="/queues",
    ),
    Action(
        name="resume",
        target="queue",
        noun="queue",
        verb="Resume",
        explains="Workers get jobs of this queue again.",
        done="resumed",
        icon="play",
        back="/queues",
    ),
    Action(
        name="limit",
        target="queue",
        noun="queue",
        verb="Set limits",
        explains="The limit says how many jobs of this queue may run at a time, the rate how many"
        " may begin, for all workers together.",
        done="limits set",
        icon="gauge",
        back="/queues",
        fields=(
            Field(
                name="limit",
                label="Jobs at a time",
                kind="number",
                hint="0 means no limit. Empty: as it is.",
            ),
            RATE,
            BURST,
        ),
        message=limits,
    ),
)

PAGES = (
    Page(
        name="queues",
        path="/queues",
        answer=queues,
        menu="Queues",
        icon="queue",
        key="q",
        asks="queues",
    ),
    Page(name="queue", path="/queues/{queue}", answer=queue),
)
