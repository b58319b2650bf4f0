"""The overview: how much is going on, and what needs attention."""

from starlette.responses import Response

from tenure.dashboard.page import Page
from tenure.dashboard.visits import Visit
from tenure.protocol.replies import QueuesReply, WorkersReply


async def overview(visit: Visit) -> Response:
    """The first page."""
    queues = await visit.ask("queues", QueuesReply)
    workers = await visit.ask("workers", WorkersReply)
    return await visit.show("overview.html", queues=queues.queues, workers=workers.workers)


PAGES = (Page(name="overview", path="/", answer=overview, menu="Overview", icon="home", key="o"),)
