"""`tenure schedules …`: list schedules, make them, pause them, run them now, write those of the
code."""

import os
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click
import msgspec

from tenure.cli.application import app_value, load_app, namespace_of, token_for, url_for
from tenure.cli.common import (
    app_url_option,
    coordination,
    duration_value,
    json_option,
    namespace_option,
    operator,
    refuse,
    url_option,
)
from tenure.cli.kind_suggestions import kind_suggestion
from tenure.cli.live_declarations import how_to_prune, live_workers, undeclared
from tenure.cli.output import ago, in_words, print_facts, print_json, print_table, printable, say
from tenure.cli.payloads import check_payload
from tenure.client.schedules import unknown_schedule
from tenure.core.checks import check_name
from tenure.core.counting import counted
from tenure.core.ids import (
    DEFAULT_QUEUE,
    ENTROPY_BYTES,
    Kind,
    Namespace,
    QueueName,
    ScheduleName,
    new_job_id,
)
from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant
from tenure.core.job import Job
from tenure.core.job_search import JobFilter
from tenure.core.schedules import (
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    Schedule,
    ScheduleCommand,
    ScheduleSpec,
    shown_times,
)
from tenure.core.vocabulary import CatchUp, Overlap
from tenure.errors import InvalidInput
from tenure.handlers.calls import JobSpec
from tenure.handlers.options import ScheduleOptions, called, schedule_name, schedule_spec
from tenure.ports import Coordination
from tenure.protocol.fields import moment
from tenure.protocol.records import JobRecord, ScheduleRecord, job_record, schedule_record
from tenure.telemetry.kind_names import is_known_kind

SHOWN_RUNS = 10

_F = TypeVar("_F", bound=Callable[..., Any])


class ListedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is listed. `undeclared`: its application declares it no more, as far as its
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


@schedules.command(name="ls")
@url_option
@json_option(list[ListedSchedule])
@namespace_option
def list_schedules(url: str | None, as_json: bool, namespace: str) -> None:
    """List schedules with their next time and their last run.

    SKIPPED counts the times at which the run before had not ended, MISSED those that nobody fired
    in time. A STATE of undeclared means that an application declared the schedule, and that
    workers live now of which none does.
    """
    with coordination(url) as serving:
        check_name("namespace", namespace)
        space = Namespace(namespace)
        now = serving.store.now()
        found = serving.store.schedules.page(space)
        workers = live_workers(serving.store, space, now)
        last = _last_runs(serving, found)
    lines = [(each, undeclared(each, workers), last.get(each.last_job_id)) for each in found]
    if as_json:
        print_json(
            [
                ListedSchedule(
                    schedule=schedule_record(each, bodies=False),
                    last_run=None if run is None else job_record(run, now=now, bodies=False),
                    undeclared=is_undeclared,
                )
                for each, is_undeclared, run in lines
            ]
        )
        return
    print_table(
        ["SCHEDULE", "STATE", "FIRES", "NEXT", "KIND", "LAST RUN", "FIRED", "SKIPPED", "MISSED"],
        [
            (
                each.name,
                _state(each, is_undeclared),
                _timing(each.spec),
                ago(each.next_at, now),
                each.spec.kind,
                None if run is None else run.status,
                each.fired,
                each.skipped,
                each.missed,
            )
            for each, is_undeclared, run in lines
        ],
        optional=("FIRED", "KIND", "MISSED", "SKIPPED"),
    )
    former = [each.declared_by for each, is_undeclared, _ in lines if is_undeclared]
    if former:
        number = counted(len(former), "schedule")
        say(
            f"no live worker declares {number}; if the application moved, {how_to_prune(former)}"
            " removes what it declares no more"
        )


@schedules.command(name="show")
@url_option
@json_option(ShownSchedule)
@namespace_option
@click.argument("schedule")
def show_schedule(url: str | None, as_json: bool, namespace: str, schedule: str) -> None:
    """Show a schedule, its next five times and its last runs."""
    with coordination(url) as serving:
        space = Namespace(namespace)
        check_name("namespace", namespace)
        found = _find(serving, space, schedule)
        now = serving.store.now()
        is_undeclared = undeclared(found, live_workers(serving.store, space, now))
        runs = serving.store.views.jobs(
            JobFilter(namespace=space, schedule=found.name, limit=SHOWN_RUNS, bodies=False)
        ).jobs
    times = shown_times(found)
    if as_json:
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
    print_table(["NEXT", "IN"], [(_local(at, found), ago(at, now)) for at in times])
    click.echo()
    print_table(
        ["FOR", "JOB", "STATUS", "ATTEMPTS", "ENDED"],
        [
            (
                None if run.scheduled_for is None else _local(run.scheduled_for, found),
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
        ("created", f"{_local(found.created_at, found)} by {found.created_by}"),
        ("changed", f"{_local(found.changed_at, found)} by {found.changed_by}"),
        ("fired", found.fired),
        ("skipped", f"{found.skipped}, because the run before had not ended"),
        ("missed", f"{found.missed}, because nobody fired them in time"),
    ]


def _timing(spec: ScheduleSpec) -> str:
    if spec.every_us is not None:
        return f"every {in_words(spec.every_us / MICROSECONDS_PER_SECOND)}"
    return f"{spec.cron} {spec.tz}"


def _local(at: Instant, found: Schedule) -> str:
    """A time as the schedule's own zone has it."""
    return moment(at).astimezone(ZoneInfo(found.spec.tz)).isoformat(sep=" ", timespec="seconds")


def _state(found: Schedule, is_undeclared: bool | None) -> str:
    state = "active" if found.paused_at is None else "paused"
    state += "" if found.pause_reason is None else f": {found.pause_reason}"
    return f"{state}, undeclared" if is_undeclared else state


def _last_runs(serving: Coordination, found: Sequence[Schedule]) -> dict[Any, Job]:
    ids = [each.last_job_id for each in found if each.last_job_id is not None]
    return dict(serving.store.jobs.read(ids)) if ids else {}


def _find(serving: Coordination, namespace: Namespace, name: str) -> Schedule:
    """The schedule of this name; ends the command if there is none."""
    known = {each.name: each for each in serving.store.schedules.page(namespace)}
    if name not in known:
        refuse(str(unknown_schedule(ScheduleName(name), list(known))))
    return known[ScheduleName(name)]


# --- Changing ------------------------------------------------------------------------------------


@schedules.command(name="add")
@app_url_option
@click.option(
    "--app",
    metavar="MODULE:APP",
    help="The application that declares KIND: use the kind's settings, and check the payload.",
)
@click.option("--namespace", help="The namespace. [default: the one of --app, then default]")
@click.option("--cron", help="When it fires: minute, hour, day, month, day of the week.")
@click.option("--tz", help="The time zone of --cron, as in Europe/Berlin. [default: UTC]")
@click.option(
    "--every", callback=duration_value, help="How often it fires, counted from 1970, as in 10m."
)
@click.option(
    "--catch-up",
    type=click.Choice([word.value for word in CatchUp]),
    default="latest",
    show_default=True,
    help="Which of the times that nobody fired are made up for.",
)
@click.option(
    "--overlap",
    type=click.Choice([word.value for word in Overlap]),
    default="skip",
    show_default=True,
    help="What to do while the last run has not ended.",
)
@click.option(
    "--jitter", callback=duration_value, help="Spread the runs over this long, as in 30s."
)
@click.option("--queue", "-q", help="The queue. [default: the kind's with --app, then default]")
@click.option("--priority", type=int, help="Jobs with a higher number run first. [default: 0]")
@click.option("--replace", is_flag=True, help="Change the schedule if there is one of this name.")
@click.argument("schedule")
@click.argument("kind")
@click.argument("payload", default="null")
def add_schedule(
    url: str | None,
    app: str | None,
    namespace: str | None,
    replace: bool,
    schedule: str,
    kind: str,
    payload: str,
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
    application = None if app is None else load_app(app)
    chosen = url if application is None else url_for(application, url, tell=say)
    with coordination(chosen, create=True, token=token_for(application, url)) as serving:
        body = payload.encode("utf-8", "surrogateescape")
        job = _job(application, kind, body, queue, priority)
        command = PutSchedule(
            namespace=Namespace(namespace or namespace_of(application)),
            name=schedule_name(schedule),
            actor=operator(),
            spec=schedule_spec(job, _options(timing)),
        )
        known = [each.name for each in serving.store.schedules.page(command.namespace)]
        if command.name in known and not replace:
            refuse(f"there is a schedule {schedule} already; --replace changes it")
        if application is None and not is_known_kind(serving.store, command.namespace, kind):
            meant = kind_suggestion(serving, command.namespace, kind)
            say(f"no worker or job has kind {kind} so far.{meant} The schedule is made anyway")
        changed = _ask(serving, command)
    next_at = "never" if changed.next_at is None else _local(changed.next_at, changed)
    click.echo(f"{printable(schedule)}: fires next at {next_at}")


def _options(timing: dict[str, Any]) -> ScheduleOptions:
    spans = {name: timing.pop(name) for name in ("every", "jitter")}
    given: Any = {name: value for name, value in timing.items() if value is not None}
    for name, value in spans.items():
        if value is not None:
            given[name] = value / MICROSECONDS_PER_SECOND
    options: ScheduleOptions = given
    return options


def _job(app: Any, kind: str, payload: bytes, queue: str | None, priority: int | None) -> JobSpec:
    if app is None:
        return JobSpec(
            kind=Kind(kind),
            queue=QueueName(queue or DEFAULT_QUEUE),
            payload=payload,
            priority=priority or 0,
        )
    handler = app.registry.get(Kind(kind))
    if handler is None:
        raise InvalidInput("KIND", f"the application has no kind {kind}", hint="omit --app")
    check_payload(handler, payload)
    given: Any = {"queue": queue, "priority": priority}
    options = {name: value for name, value in given.items() if value is not None}
    return called(app.call(kind, msgspec.json.decode(payload), **options))


def _ask(serving: Coordination, command: ScheduleCommand) -> Schedule:
    reply = serving.change_schedule(command)
    if reply.schedule is None:
        known = serving.store.schedules.page(command.namespace)
        refuse(str(unknown_schedule(command.name, [each.name for each in known])))
    if reply.cause is not None:
        refuse(f"schedule {command.name}: another job has this id ({reply.cause.value})")
    return reply.schedule


def _schedule_argument(function: _F) -> _F:
    return url_option(namespace_option(click.argument("schedule")(function)))


@schedules.command(name="pause")
@_schedule_argument
def pause_schedule(url: str | None, namespace: str, schedule: str) -> None:
    """Fire SCHEDULE no more until it is resumed. A deploy does not resume it."""
    with coordination(url) as serving:
        _ask(serving, PauseSchedule(**_key(namespace, schedule)))
    click.echo(f"{printable(schedule)}: paused")


@schedules.command(name="resume")
@_schedule_argument
def resume_schedule(url: str | None, namespace: str, schedule: str) -> None:
    """Fire SCHEDULE again, from its next time on: paused time is not caught up."""
    with coordination(url) as serving:
        changed = _ask(serving, ResumeSchedule(**_key(namespace, schedule)))
    next_at = "never" if changed.next_at is None else _local(changed.next_at, changed)
    click.echo(f"{printable(schedule)}: fires next at {next_at}")


@schedules.command(name="rm")
@_schedule_argument
def remove_schedule(url: str | None, namespace: str, schedule: str) -> None:
    """Remove SCHEDULE; its jobs stay. Workers do not write it again, `sync` does."""
    with coordination(url) as serving:
        _ask(serving, RemoveSchedule(**_key(namespace, schedule)))
    click.echo(f"{printable(schedule)}: removed")


@schedules.command(name="run")
@_schedule_argument
def run_schedule(url: str | None, namespace: str, schedule: str) -> None:
    """Make a job of SCHEDULE now, whatever its times and its last run say; prints its id."""
    with coordination(url) as serving:
        job_id = new_job_id(serving.store.now(), os.urandom(ENTROPY_BYTES))
        _ask(serving, RunSchedule(**_key(namespace, schedule), job_id=job_id))
    click.echo(job_id)


def _key(namespace: str, schedule: str) -> dict[str, Any]:
    return {
        "namespace": Namespace(namespace),
        "name": schedule_name(schedule),
        "actor": operator(),
    }


@schedules.command(name="sync")
@app_url_option
@json_option(list[SyncedSchedule])
@click.option("--namespace", help="The namespace. [default: the application's]")
@click.option(
    "--prune",
    is_flag=True,
    help="Remove schedules that this application declared before and declares no more.",
)
@click.option(
    "--from",
    "former",
    metavar="MODULE:APP",
    multiple=True,
    help="A former name of this application, whose schedules --prune removes too; may be repeated.",
)
@click.argument("app", metavar="[MODULE:APP]", required=False, callback=app_value)
def sync_schedules(
    url: str | None,
    as_json: bool,
    namespace: str | None,
    prune: bool,
    former: tuple[str, ...],
    app: str,
) -> None:
    """Write the schedules that the application declares: a step of a deploy.

    Paused schedules stay paused. Schedules that were made by hand, or that another application
    declares, are left alone. An application is known by the text MODULE:APP: after a move, --prune
    --from OLD_MODULE:APP removes what it declared under its former name and declares no more.
    Schedules of others that no live worker declares are named.
    """
    application = load_app(app)
    chosen = url_for(application, url, tell=say)
    with coordination(chosen, create=True, token=token_for(application, url)) as serving:
        space = Namespace(namespace or application.namespace)
        known = {each.name: each for each in serving.store.schedules.page(space)}
        declared = application.registry.schedules()
        others = [each for each in known.values() if each.name not in declared]
        done = _put_all(serving, space, declared, app, known)
        done += _no_longer_declared(serving, space, others, {app, *former}, prune=prune)
    for name in sorted(set(former) - {each.declared_by for each in known.values()}):
        say(f"no schedule is declared by {name}")
    if as_json:
        print_json(done)
        return
    for each in done:
        click.echo(f"{printable(each.name)}: {printable(each.action)}")


def _put_all(
    serving: Coordination,
    namespace: Namespace,
    declared: dict[ScheduleName, ScheduleSpec],
    app: str,
    known: dict[ScheduleName, Schedule],
) -> list[SyncedSchedule]:
    done = []
    for name, spec in declared.items():
        command = PutSchedule(
            namespace=namespace, name=name, actor=operator(), spec=spec, declared_by=app
        )
        reply = serving.change_schedule(command)
        changed = "changed" if name in known else "new"
        done.append(SyncedSchedule(name=name, action=changed if reply.changed else "unchanged"))
    return done


def _no_longer_declared(
    serving: Coordination,
    namespace: Namespace,
    others: list[Schedule],
    names: set[str],
    *,
    prune: bool,
) -> list[SyncedSchedule]:
    """Report schedules that the application declared under one of these names and no longer does,
    and remove them with `prune`; also report those of others that no live worker declares. [SC22]
    """
    done = []
    workers = live_workers(serving.store, namespace, serving.store.now())
    for each in others:
        if each.declared_by in names:
            if prune:
                _ask(serving, RemoveSchedule(**_key(namespace, each.name)))
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
