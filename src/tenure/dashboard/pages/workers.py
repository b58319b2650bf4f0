"""Workers: who is alive, what they take, and asking one to stop."""

from starlette.responses import Response

from tenure.dashboard.actions import Action
from tenure.dashboard.page import Page
from tenure.dashboard.visits import Visit
from tenure.protocol.replies import WorkersReply


async def workers(visit: Visit) -> Response:
    """The workers that were seen within a day."""
    found = await visit.ask("workers", WorkersReply)
    return await visit.show("workers.html", workers=found.workers)


async def worker(visit: Visit) -> Response:
    """The processes of one worker's name."""
    name = visit.part("worker")
    found = await visit.ask("workers", WorkersReply)
    here = [each for each in found.workers if each.worker == name]
    return await visit.show("worker.html", name=name, workers=here)


ACTIONS = (
    Action(
        name="drain",
        target="worker",
        noun="worker",
        verb="Drain",
        explains="The worker claims nothing more, finishes its jobs and stops. It does not start"
        " again by itself.",
        done="asked to finish its jobs and stop",
        icon="drain",
        back="/workers",
        is_severe=True,
    ),
)

PAGES = (
    Page(
        name="workers",
        path="/workers",
        answer=workers,
        menu="Workers",
        icon="worker",
        key="w",
        asks="workers",
    ),
    Page(name="worker", path="/workers/{worker}", answer=worker),
)
