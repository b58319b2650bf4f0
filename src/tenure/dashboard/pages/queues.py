"""Queues and kinds: how full they are, and what is set for them; and the workers that take their
jobs."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import Response

from tenure.core.vocabulary import JobStatus
from tenure.dashboard.actions import KIND, QUEUE, WORKER, Action, Field, whole_number
from tenure.dashboard.pages.overview import RANGES, ask_overview, plotted
from tenure.dashboard.visits import Page, Visit
from tenure.errors import InvalidInput
from tenure.protocol.records import KindRecord, QueueRecord
from tenure.protocol.replies import JobPage, KindsReply, QueuesReply, WorkersReply


async def queues(visit: Visit) -> Response:
    """All queues of the namespace: what is set for them, and their jobs now."""
    found = await visit.ask("queues", QueuesReply)
    overview = await ask_overview(visit)
    depths = {each.queue: each for each in overview.queues}
    return await visit.show("queues.html", queues=found.queues, depths=depths)


async def kinds(visit: Visit) -> Response:
    """The kinds that have jobs now, had events in the range, or have settings."""
    found = await visit.ask("kinds", KindsReply)
    overview = await ask_overview(visit)
    depths = {each.kind: each for each in overview.kinds}
    settings = {each.kind: each for each in found.kinds}
    return await visit.show(
        "kinds.html",
        names=sorted({*depths, *settings}),
        depths=depths,
        settings=settings,
        overview=overview,
        ranges=RANGES,
    )


async def queue(visit: Visit) -> Response:
    """One queue. It has a page even if nothing is set for it."""
    return await _show_one(visit, "queue")


async def kind(visit: Visit) -> Response:
    """One kind. It has a page even if nothing is set for it."""
    return await _show_one(visit, "kind")


async def _show_one(visit: Visit, sort: str) -> Response:
    name = visit.part(sort)
    overview = await ask_overview(visit, **{sort: name})
    depths = overview.queues if sort == "queue" else overview.kinds
    return await visit.show(
        f"{sort}.html",
        name=name,
        settings=await _settings(visit, sort, name),
        depth=next((each for each in depths if getattr(each, sort) == name), None),
        **plotted(overview),
    )


async def _settings(visit: Visit, sort: str, name: str) -> QueueRecord | KindRecord | None:
    """What is set for a queue or kind."""
    if sort == "queue":
        queues = (await visit.ask("queues", QueuesReply)).queues
        return next((each for each in queues if each.name == name), None)
    kinds = (await visit.ask("kinds", KindsReply)).kinds
    return next((each for each in kinds if each.kind == name), None)


# --- limits

NO_RATE = "none"

RATE = Field(
    name="rate", label="Rate", hint="Such as 100/m or 5/s; none removes it. Empty: unchanged."
)
BURST = Field(
    name="burst", label="Burst", kind="number", hint="How many jobs of the rate may start at once."
)


def limits_in(number: str) -> Callable[[Mapping[str, str]], dict[str, Any]]:
    """Reads a form with a rate, a burst and this number of jobs at a time. Empty fields change
    nothing."""

    def read(form: Mapping[str, str]) -> dict[str, Any]:
        given = {name: form.get(name, "").strip() for name in (number, "burst")}
        body: dict[str, Any] = {
            name: whole_number(name, text) for name, text in given.items() if text
        }
        rate = form.get("rate", "").strip()
        if rate:
            body["rate"] = None if rate == NO_RATE else rate
        if rate == NO_RATE:
            body.pop("burst", None)  # the form opened with that of the rate that is removed
        if not body:
            raise InvalidInput("rate", "nothing is filled in", hint="fill in a limit or a rate")
        return body

    return read


def limits_of(sort: str, *fields: str) -> Callable[[Visit, str], Awaitable[Mapping[str, str]]]:
    """Reads what is set for a queue or kind, as the fields of these names show it."""

    async def read(visit: Visit, name: str) -> Mapping[str, str]:
        settings = await _settings(visit, sort, name)
        found = {field: getattr(settings, field, None) for field in fields}
        return {field: str(value) for field, value in found.items() if value is not None}

    return read


# --- workers

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
        name="pause",
        target=QUEUE,
        verb="Pause",
        explains="Workers get no more jobs of this queue. Running jobs are not stopped.",
        done="paused",
        icon="pause",
    ),
    Action(
        name="resume",
        target=QUEUE,
        verb="Resume",
        explains="Workers get jobs of this queue again.",
        done="resumed",
        icon="play",
    ),
    Action(
        name="limit",
        target=QUEUE,
        verb="Set limits",
        phrase="Set limits of {}",
        explains="The limit says how many jobs of this queue may run at a time, the rate how many"
        " may start, for all workers together.",
        done="limits set",
        icon="gauge",
        fields=(
            Field(
                name="limit",
                label="Jobs at a time",
                kind="number",
                hint="0 means no limit. Empty: unchanged.",
            ),
            RATE,
            BURST,
        ),
        message=limits_in("limit"),
        current=limits_of("queue", "limit", "rate", "burst"),
    ),
    Action(
        name="set-kind",
        target=KIND,
        verb="Set limits",
        phrase="Set limits of {}",
        explains="What is set here holds for all jobs of this kind, for all workers together.",
        done="limits set",
        icon="gauge",
        fields=(
            RATE,
            BURST,
            Field(
                name="concurrency_limit",
                label="Jobs at a time for each concurrency key",
                kind="number",
                hint="Empty: unchanged.",
            ),
        ),
        message=limits_in("concurrency_limit"),
        current=limits_of("kind", "rate", "burst", "concurrency_limit"),
    ),
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
    Page("queues", "/queues", queues, menu="Queues", icon="queue", key="q", asks="queues"),
    Page("queue", "/queues/{queue}", queue),
    Page("kinds", "/kinds", kinds, menu="Kinds", icon="kind", key="k", asks="kinds"),
    Page("kind", "/kinds/{kind}", kind),
    Page("workers", "/workers", workers, menu="Workers", icon="worker", key="w", asks="workers"),
    Page("worker", "/workers/{worker}", worker),
)
