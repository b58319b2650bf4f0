"""Schedules: when they fire, their last runs, pausing them and running them now."""

from starlette.responses import Response

from tenure.dashboard.actions import SCHEDULE, Action
from tenure.dashboard.visits import Page, Visit
from tenure.protocol.records import JobRecord, ScheduleRecord
from tenure.protocol.replies import JobPage, ScheduleReply, SchedulesReply

SHOWN_RUNS = 20


async def schedules(visit: Visit) -> Response:
    """All schedules of the namespace."""
    found = await visit.ask("schedules", SchedulesReply)
    return await visit.show("schedules.html", schedules=found.schedules)


async def schedule(visit: Visit) -> Response:
    """One schedule with its next times."""
    name = visit.part("schedule")
    found = await visit.ask("schedule", ScheduleReply, path={"schedule": name})
    return await visit.show(
        "schedule.html",
        schedule=found.schedule,
        next_times=found.next_times,
        runs=await _last_runs(visit, found.schedule),
    )


async def _last_runs(visit: Visit, schedule: ScheduleRecord) -> tuple[JobRecord, ...]:
    """Its newest jobs. A limited token has to name one queue and kind of a list; the schedule's
    own are within its scope."""
    wanted: dict[str, str | int] = {"schedule": schedule.name, "limit": SHOWN_RUNS}
    if visit.principal is not None and visit.principal.is_limited:
        wanted |= {"queue": schedule.queue, "kind": schedule.kind}
    page = await visit.ask("jobs", JobPage, query=wanted)
    return page.jobs


ACTIONS = (
    Action(
        name="pause-schedule",
        target=SCHEDULE,
        verb="Pause",
        explains="It fires no more until it is resumed.",
        done="paused",
        icon="pause",
    ),
    Action(
        name="resume-schedule",
        target=SCHEDULE,
        verb="Resume",
        explains="It fires again at its next time.",
        done="resumed",
        icon="play",
    ),
    Action(
        name="run-schedule",
        target=SCHEDULE,
        verb="Run now",
        phrase="Run {} now",
        explains="Makes one job of this schedule now. Its own times stay unchanged.",
        done="one job was made",
        icon="bolt",
    ),
)

PAGES = (
    Page(
        "schedules",
        "/schedules",
        schedules,
        menu="Schedules",
        icon="clock",
        key="s",
        asks="schedules",
    ),
    Page("schedule", "/schedules/{schedule}", schedule),
)
