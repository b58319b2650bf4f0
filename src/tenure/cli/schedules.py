"""`tenure schedules …`: list schedules, make them, pause them, run them now, write the code's."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import click
import msgspec

from tenure.cli.invocation import Invocation, Listing, command, list_command
from tenure.cli.options import app_argument, app_url_option, choice, flag, payload_value
from tenure.cli.output import ago, in_words, print_facts, print_json, print_table, printable, say
from tenure.cli.queues import live_workers
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, Namespace
from tenure.core.instants import MICROSECONDS_PER_SECOND
from tenure.core.schedules import (
    PutSchedule,
    Schedule,
    ScheduleSpec,
    unknown_schedule,
    upcoming_times,
)
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import CatchUp, Overlap, counted
from tenure.core.workers import ListedWorker
from tenure.errors import InvalidInput
from tenure.handlers.options import schedule_name
from tenure.protocol.fields import moment
from tenure.protocol.records import JobRecord, ScheduleRecord, job_record, schedule_record
from tenure.telemetry.kind_names import kind_hint

SHOWN_RUNS = 10


class ListedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule in a list. `undeclared`: its application declares it no more, as far as its
    live workers say; null if no worker lives, or if this token may not list them all."""

    schedule: ScheduleRecord
    last_run: JobRecord | None
    undeclared: bool | None


class ShownSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, the next times at which it fires, and its last runs, newest first."""

    schedule: ScheduleRecord
    next_times: tuple[datetime, ...]
    runs: tuple[JobRecord, ...]
    undeclared: bool | None


class SyncedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """What `sync` did with a schedule: `new`, `changed`, `unchanged`, `removed`, or `kept: ` and a
    reason to remove it: the application declares it no more, or another application declared it
    and no live worker does."""

    name: str
    action: str


@click.group()
def schedules() -> None:
    """Show schedules, make them, pause them, run them now."""


# --- Which of them are declared ------------------------------------------------------------------


def undeclared(found: Schedule, workers: tuple[ListedWorker, ...] | None) -> bool | None:
    """Whether an application declared it and none of these workers does, as after a move to another
    module or under another name; None if there are no workers, or none that the caller may list."""
    if found.declared_by is None:
        return False
    return (
        None if not workers else all(found.name not in (each.schedules or ()) for each in workers)
    )


def how_to_prune(former: Iterable[str | None]) -> str:
    """The command that removes schedules of applications under these former names."""
    options = "".join(f" --from {name}" for name in sorted(set(filter(None, former))))
    return f"`tenure schedules sync MODULE:APP --prune{options}`"


# --- Reading -------------------------------------------------------------------------------------


@list_command(schedules, json=list[ListedSchedule])
def list_schedules(cli: Invocation) -> Listing[Any]:
    """List schedules with their next time and their last run.

    SKIPPED counts the times at which the run before had not ended, MISSED times that no process
    fired in time. A STATE of undeclared means that an application declared the schedule, that
    workers live now, and that none of them declares it.
    """
    now = cli.now
    found = cli.store.schedules.page(cli.namespace)
    workers = live_workers(cli.store, cli.namespace, now)
    ids = [each.last_job_id for each in found if each.last_job_id is not None]
    runs = cli.serving.read_jobs(ids) if ids else {}
    lines = [
        (each, undeclared(each, workers), runs.get(each.last_job_id) if each.last_job_id else None)
        for each in found
    ]
    former = [each.declared_by for each, is_undeclared, _ in lines if is_undeclared]
    note = (
        f"no live worker declares {counted(len(former), 'schedule')}; if the application moved,"
        f" {how_to_prune(former)} removes what it declares no more"
    )
    return Listing(
        lines,
        {
            "SCHEDULE": lambda line: line[0].name,
            "STATE": lambda line: _state(line[0], line[1]),
            "FIRES": lambda line: _timing(line[0].spec),
            "NEXT": lambda line: ago(line[0].next_at, now),
            "KIND": lambda line: line[0].spec.kind,
            "LAST RUN": lambda line: None if line[2] is None else line[2].status,
            "FIRED": lambda line: line[0].fired,
            "SKIPPED": lambda line: line[0].skipped,
            "MISSED": lambda line: line[0].missed,
        },
        document=lambda line: ListedSchedule(
            schedule=schedule_record(line[0], bodies=False),
            last_run=None if line[2] is None else job_record(line[2], now=now, bodies=False),
            undeclared=line[1],
        ),
        optional=("FIRED", "KIND", "MISSED", "SKIPPED"),
        notes=[note] if former else [],
    )


@command(schedules, "show", json=ShownSchedule)
@click.argument("schedule")
def show_schedule(cli: Invocation, schedule: str) -> None:
    """Show a schedule, its next five times and its last runs."""
    known = {each.name: each for each in cli.store.schedules.page(cli.namespace)}
    found = known.get(schedule_name(schedule))
    if found is None:
        raise unknown_schedule(schedule_name(schedule), list(known))
    now = cli.now
    is_undeclared = undeclared(found, live_workers(cli.store, cli.namespace, now))
    wanted = JobFilter(namespace=cli.namespace, schedule=found.name, limit=SHOWN_RUNS, bodies=False)
    runs = cli.serving.list_jobs(wanted).jobs
    times = upcoming_times(found)
    if cli.as_json:
        print_json(
            ShownSchedule(
                schedule=schedule_record(found, bodies=False),
                next_times=tuple(map(moment, times)),
                runs=tuple(job_record(run, now=now, bodies=False) for run in runs),
                undeclared=is_undeclared,
            )
        )
        return
    print_facts(_facts(found, is_undeclared))
    click.echo()
    print_table(["NEXT", "IN"], [(_local(moment(at), found.spec.tz), ago(at, now)) for at in times])
    click.echo()
    print_table(
        ["FOR", "JOB", "STATUS", "ATTEMPTS", "ENDED"],
        [
            (
                None
                if run.scheduled_for is None
                else _local(moment(run.scheduled_for), found.spec.tz),
                run.id,
                run.status,
                run.attempt,
                ago(run.finished_at, now),
            )
            for run in runs
        ],
    )


def _facts(found: Schedule, is_undeclared: bool | None) -> list[tuple[str, object]]:
    spec = found.spec
    jitter = spec.jitter_us / MICROSECONDS_PER_SECOND
    return [
        ("schedule", found.name),
        ("state", _state(found, is_undeclared)),
        ("fires", _timing(spec)),
        ("kind", spec.kind),
        ("queue", spec.queue),
        ("catch up", spec.catch_up),
        ("overlap", spec.overlap),
        ("jitter", f"up to {in_words(jitter)}" if jitter else None),
        ("declared by", found.declared_by or "hand"),
        ("created", f"{_local(moment(found.created_at), spec.tz)} by {found.created_by}"),
        ("changed", f"{_local(moment(found.changed_at), spec.tz)} by {found.changed_by}"),
        ("fired", found.fired),
        ("skipped", f"{found.skipped}, because the run before had not ended"),
        ("missed", f"{found.missed}, because no process fired them in time"),
    ]


def _timing(spec: ScheduleSpec) -> str:
    if spec.every_us is not None:
        return f"every {in_words(spec.every_us / MICROSECONDS_PER_SECOND)}"
    return f"{spec.cron} {spec.tz}"


def _local(at: datetime, tz: str) -> str:
    """A time as the schedule's own zone has it."""
    return at.astimezone(ZoneInfo(tz)).isoformat(sep=" ", timespec="seconds")


def _state(found: Schedule, is_undeclared: bool | None) -> str:
    state = "active" if found.paused_at is None else "paused"
    state += "" if found.pause_reason is None else f": {found.pause_reason}"
    return f"{state}, undeclared" if is_undeclared else state


# --- Changing ------------------------------------------------------------------------------------


@command(schedules, "add", url=app_url_option, namespace=None)
@click.option(
    "--app",
    metavar="MODULE:APP",
    help="The application that declares KIND: use the kind's settings, and check the payload.",
)
@click.option("--namespace", help="The namespace. [default: the one of --app, then default]")
@click.option("--cron", help="When it fires: minute, hour, day, month, day of the week.")
@click.option("--tz", help="The time zone of --cron, as in Europe/Berlin. [default: UTC]")
@click.option("--every", help="How often it fires, counted from 1970, as in 10m.")
@choice(
    "--catch-up",
    words_of=CatchUp,
    default="latest",
    help="Which of the times that no process fired are made up for.",
)
@choice(
    "--overlap",
    words_of=Overlap,
    default="skip",
    help="What to do while the last run has not ended.",
)
@click.option("--jitter", help="Spread the runs over this long, as in 30s.")
@click.option("--queue", "-q", help="The queue. [default: the kind's with --app, then default]")
@click.option("--priority", type=int, help="Jobs with a higher number run first. [default: 0]")
@flag("--replace", help="Change the schedule if there is one of this name.")
@click.argument("schedule")
@click.argument("kind")
@click.argument("payload", default="null", callback=payload_value)
def add_schedule(
    cli: Invocation,
    app: str | None,
    namespace: str | None,
    replace: bool,
    schedule: str,
    kind: str,
    payload: msgspec.Raw,
    queue: str | None,
    priority: int | None,
    **timing: Any,
) -> None:
    """Make a SCHEDULE that enqueues jobs of KIND with a JSON PAYLOAD.

    \b
    Examples:
      tenure schedules add nightly report --cron '15 3 * * *' --tz Europe/Berlin
      tenure schedules add ping check '{"host": "a"}' --every 10m --overlap allow
    """
    given: Any = {"queue": queue, "priority": priority}
    given = {name: value for name, value in given.items() if value is not None}
    options: Any = {name: value for name, value in timing.items() if value is not None}
    if app is None:
        cli.open(cli.url, create=True)
        cli.namespace = Namespace(namespace or DEFAULT_NAMESPACE)
        call = cli.api.call(kind, payload, **given)
        if unknown := kind_hint(cli.store, cli.namespace, kind):
            say(f"{unknown} The schedule is made anyway")
    else:
        from tenure.cli.application import checked_call, load_app, open_for  # here: slow to import

        application = load_app(app)
        if Kind(kind) not in application.registry.kinds():
            raise InvalidInput("KIND", f"the application has no kind {kind}", hint="omit --app")
        call = checked_call(application, kind, payload, given)
        open_for(cli, application)
        cli.namespace = Namespace(namespace or application.namespace)
    _say_when(cli.api.schedules.add(schedule, call, replace=replace, **options))


def _say_when(changed: ScheduleRecord) -> None:
    at = None if changed.next_at is None else _local(changed.next_at, changed.tz)
    click.echo(f"{printable(changed.name)}: fires next at {at or 'never'}")


@command(schedules, "pause")
@click.argument("schedule")
def pause_schedule(cli: Invocation, schedule: str) -> None:
    """Fire SCHEDULE no more until it is resumed. A deploy does not resume it."""
    cli.api.schedules.pause(schedule)
    click.echo(f"{printable(schedule)}: paused")


@command(schedules, "resume")
@click.argument("schedule")
def resume_schedule(cli: Invocation, schedule: str) -> None:
    """Fire SCHEDULE again, from its next time on: paused time is not caught up."""
    _say_when(cli.api.schedules.resume(schedule))


@command(schedules, "rm")
@click.argument("schedule")
def remove_schedule(cli: Invocation, schedule: str) -> None:
    """Remove SCHEDULE; its jobs stay. Workers do not write it again, `sync` does."""
    cli.api.schedules.remove(schedule)
    click.echo(f"{printable(schedule)}: removed")


@command(schedules, "run")
@click.argument("schedule")
def run_schedule(cli: Invocation, schedule: str) -> None:
    """Make a job of SCHEDULE now, whatever its times and its last run say; prints its id."""
    click.echo(cli.api.schedules.run(schedule).id)


@command(schedules, "sync", json=list[SyncedSchedule], url=app_url_option, namespace=None)
@click.option("--namespace", help="The namespace. [default: the application's]")
@flag(
    "--prune", help="Remove schedules that this application declared before and declares no more."
)
@click.option(
    "--from",
    "former",
    metavar="MODULE:APP",
    multiple=True,
    help="A former name of this application, whose schedules --prune removes too; may be repeated.",
)
@app_argument
def sync_schedules(
    cli: Invocation, namespace: str | None, prune: bool, former: tuple[str, ...], app: str
) -> None:
    """Write the schedules that the application declares: a step of a deploy.

    Paused schedules stay paused. Schedules that were made by hand, or that another application
    declares, are left alone. An application is known by the text MODULE:APP: after a move, --prune
    --from OLD_MODULE:APP removes what it declared under its former name and declares no more.
    Schedules of others that no live worker declares are named.
    """
    from tenure.cli.application import load_app, open_for  # here: it takes as long as the rest

    application = load_app(app)
    open_for(cli, application)
    cli.namespace = Namespace(namespace or application.namespace)
    known = {each.name: each for each in cli.store.schedules.page(cli.namespace)}
    declared = application.registry.schedules()
    done = []
    for name, spec in declared.items():
        put = PutSchedule(
            namespace=cli.namespace, name=name, actor=cli.operator, spec=spec, declared_by=app
        )
        reply = cli.serving.change_schedule(put)
        changed = "changed" if name in known else "new"
        done.append(SyncedSchedule(name=name, action=changed if reply.changed else "unchanged"))
    others = [each for each in known.values() if each.name not in declared]
    done += _no_longer_declared(cli, others, {app, *former}, prune=prune)
    for gone in sorted(set(former) - {each.declared_by for each in known.values()}):
        say(f"no schedule is declared by {gone}")
    if cli.as_json:
        print_json(done)
        return
    for synced in done:
        click.echo(f"{printable(synced.name)}: {printable(synced.action)}")


def _no_longer_declared(
    cli: Invocation, others: list[Schedule], names: set[str], *, prune: bool
) -> list[SyncedSchedule]:
    """Report schedules that the application declared under one of these names and no longer does,
    and remove them with `prune`; also report those of others that no live worker declares. [SC22]
    """
    done = []
    workers = live_workers(cli.store, cli.namespace, cli.now)
    for each in others:
        if each.declared_by in names:
            if prune:
                cli.api.schedules.remove(each.name)
            action = "removed" if prune else "kept: no longer declared, --prune removes it"
        elif (each.declared_by is not None and workers == ()) or undeclared(each, workers):
            live = "does" if workers else "is seen"
            action = (
                f"kept: {each.declared_by} declared it, and no live worker {live}; if that is a"
                f" former name of this application, --prune --from {each.declared_by} removes it"
            )
        else:
            continue
        done.append(SyncedSchedule(name=each.name, action=action))
    return done
