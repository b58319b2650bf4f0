"""Workers: who is alive, what they take, and asking one to stop."""

from starlette.responses import Response

from tenure.core.vocabulary import JobStatus
from tenure.dashboard.actions import WORKER, Action
from tenure.dashboard.visits import Page, Visit
from tenure.protocol.replies import JobPage, WorkersReply

MAX_RUNNING = 100
"""Jobs of one worker that its page shows."""
RUNNING = (JobStatus.CLAIMED, JobStatus.RUNNING)


async def workers(visit: Visit) -> Response:
    """The workers that were seen within a day."""
    found = await visit.ask("workers", WorkersReply)
    return await visit.show("workers.html", workers=found.workers)


async def worker(visit: Visit) -> Response:
    """The processes of one worker's name, and the jobs that they run."""
    name = visit.part("worker")
    found = await visit.ask("workers", WorkersReply)
    here = [each for each in found.workers if each.worker == name]
    shown_of = visit.listed({"queue": None, "kind": None})
    query = {**shown_of, "worker": name, "status": RUNNING, "limit": MAX_RUNNING}
    running = await visit.ask("jobs", JobPage, query=query)
    return await visit.show(
        "worker.html", name=name, workers=here, jobs=running.jobs, shown_of=shown_of
    )


ACTIONS = (
    Action(
        name="drain",
        target=WORKER,
        verb="Drain",
        explains="The worker claims nothing more, finishes its jobs and stops. It does not start"
        " again by itself.",
        done="asked to finish its jobs and stop",
        icon="drain",
        is_severe=True,
    ),
)

PAGES = (
    Page("workers", "/workers", workers, menu="Workers", icon="worker", key="w", asks="workers"),
    Page("worker", "/workers/{worker}", worker),
)
