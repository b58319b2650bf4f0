"""Queues: how full they are, and what holds for them."""

from starlette.responses import Response

from tenure.dashboard.actions import Action, Field
from tenure.dashboard.page import Page
from tenure.dashboard.pages.limits import BURST, RATE, limits_in, limits_of, show_one
from tenure.dashboard.pages.overview import ask_overview
from tenure.dashboard.visits import Visit
from tenure.protocol.records import QueueRecord
from tenure.protocol.replies import QueuesReply


async def queues(visit: Visit) -> Response:
    """All queues of the namespace: what is set for them, and their jobs now."""
    found = await visit.ask("queues", QueuesReply)
    overview = await ask_overview(visit)
    depths = {each.queue: each for each in overview.queues}
    return await visit.show("queues.html", queues=found.queues, depths=depths)


async def queue(visit: Visit) -> Response:
    """One queue."""
    name = visit.part("queue")
    return await show_one(visit, "queue", name, await _settings(visit, name))


async def _settings(visit: Visit, name: str) -> QueueRecord | None:
    found = await visit.ask("queues", QueuesReply)
    return next((each for each in found.queues if each.name == name), None)


async def _limits(visit: Visit, name: str) -> dict[str, str]:
    return limits_of(await _settings(visit, name), "limit", "rate", "burst")


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
        phrase="Set limits of {}",
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
        message=limits_in("limit"),
        current=_limits,
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
