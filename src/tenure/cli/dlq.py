"""`tenure dlq …`: show dead letters, redrive them, discard them.

Running redrive and discard again is safe: the coordinator resolves a dead letter once, whoever else
runs the same command at the same time. [B17]
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any, TypeVar

import click
import msgspec

from tenure.cli.bulk import (
    MAX_JOBS,
    PER_PAGE,
    JobOutcome,
    Selection,
    execute_all,
    many_options,
    select,
)
from tenure.cli.common import (
    Request,
    coordination,
    find_job,
    find_job_id,
    job_argument,
    json_option,
    namespace_option,
    operator,
    refuse,
    reported_errors,
    request_options,
    url_option,
)
from tenure.cli.job_view import headline, job_facts, print_traceback, resolution_facts
from tenure.cli.jobs import hint_again, id_that_runs
from tenure.cli.output import ago, print_facts, print_json, print_table, say
from tenure.core.commands import Discard, Redrive
from tenure.core.dead_letter_groups import error_signature
from tenure.core.ids import JobId, Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.job_search import JobFilter
from tenure.core.vocabulary import JobStatus, ReasonCode, Stage
from tenure.ports import Coordination, DeadLetter
from tenure.protocol.fields import optional_moment
from tenure.protocol.records import DeadLetterRecord, dead_letter_record

MAX_LISTED = 500

_F = TypeVar("_F", bound=Callable[..., Any])


@click.group()
def dlq() -> None:
    """Show dead letters, redrive them, discard them.

    A dead letter is a job that will not run again by itself: its attempts are used up, or its
    arguments can never work. Redriving makes a new job of it.
    """


def filter_options(function: _F) -> _F:
    """`--namespace`, `--kind`, `--queue`, `--reason` and `--stage`."""
    function = click.option(
        "--stage",
        type=click.Choice([stage.value for stage in Stage]),
        help="Only those that failed at this stage.",
    )(function)
    function = click.option(
        "--reason",
        type=click.Choice([code.value for code in ReasonCode]),
        help="Only those with this reason.",
    )(function)
    function = click.option("--queue", "-q", help="Only those of this queue.")(function)
    function = click.option("--kind", "-k", help="Only those of this kind.")(function)
    return namespace_option(function)


def _has_filters(filters: dict[str, Any]) -> bool:
    return any(value for name, value in filters.items() if name != "namespace")


def _filter(
    *, namespace: str, kind: str | None, queue: str | None, reason: str | None, stage: str | None
) -> JobFilter:
    with reported_errors():
        return JobFilter(
            namespace=Namespace(namespace),
            statuses=(JobStatus.DEAD_LETTERED,),
            kind=None if kind is None else Kind(kind),
            queue=None if queue is None else QueueName(queue),
            reason_code=None if reason is None else ReasonCode(reason),
            stage=None if stage is None else Stage(stage),
            resolved=False,
            limit=MAX_LISTED,
            bodies=False,
        )


# --- Looking -------------------------------------------------------------------------------------


@dlq.command(name="ls")
@url_option
@json_option(list[DeadLetterRecord])
@filter_options
@click.option(
    "--by",
    type=click.Choice(["error"]),
    help="Count them by kind and error instead of listing each.",
)
@click.option("--resolved", is_flag=True, help="Those that were redriven or discarded.")
@click.option(
    "--before",
    metavar="ID",
    help="Only those older than this one. For the next page, give the last ID of this page.",
)
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, MAX_LISTED),
    default=50,
    show_default=True,
    help="At most this many lines.",
)
def list_dead_letters(
    url: str | None,
    as_json: bool,
    by: str | None,
    resolved: bool,
    before: str | None,
    limit: int,
    **filters: Any,
) -> None:
    """List unresolved dead letters, newest first.

    Those that were redriven or discarded are listed with --resolved.

    With --by error they are counted by kind and error, the most frequent first. Errors of one type
    whose first lines differ only in numbers and ids count as one. --json then prints objects with
    kind, error, count, newest_at and example_id, which is the newest of them.

    \b
    Examples:
      tenure dlq ls --by error
      tenure dlq ls --kind mail --reason timeout
    """
    wanted = msgspec.structs.replace(_filter(**filters), resolved=resolved)
    with coordination(url) as serving:
        if before is not None:
            last = find_job_id(serving, before, wanted.namespace, is_before=True)
            wanted = msgspec.structs.replace(wanted, before=last)
        if by is not None:
            groups = _by_error(_all_dead_letters(serving, wanted))[:limit]
            _show_groups(groups, now=serving.store.now(), as_json=as_json)
            if not groups:
                _say_there_are_none(filters, resolved=resolved)
            return
        found = serving.store.views.dead_letters(msgspec.structs.replace(wanted, limit=limit))
        now = serving.store.now()
    if as_json:
        print_json(
            [dead_letter_record(each.job, each.resolution, now=now, bodies=False) for each in found]
        )
    else:
        _print_dead_letters(found, now, resolved=resolved)
    if not found:
        _say_there_are_none(filters, resolved=resolved)


def _say_there_are_none(filters: dict[str, Any], *, resolved: bool) -> None:
    word = "resolved" if resolved else "unresolved"
    if _has_filters(filters):
        say(f"no {word} dead letter matches")
    else:
        say(f"there are no {word} dead letters in namespace {filters['namespace']}")


def _print_dead_letters(found: list[DeadLetter], now: Instant, *, resolved: bool) -> None:
    head = ["ID", "KIND", "QUEUE", "REASON", "STAGE", "ATTEMPTS", "FINISHED", "ERROR"]
    rows: list[tuple[object, ...]] = [
        (
            letter.job.id,
            letter.job.kind,
            letter.job.queue,
            letter.job.reason_code,
            letter.job.stage,
            letter.job.attempt,
            ago(letter.job.finished_at, now),
            headline(letter.job),
        )
        for letter in found
    ]
    if resolved:
        head.append("RESOLVED")
        rows = [
            (*row, None if letter.resolution is None else letter.resolution.kind)
            for row, letter in zip(rows, found, strict=True)
        ]
    print_table(head, rows, optional=("REASON", "STAGE", "ATTEMPTS", "QUEUE"))


class ErrorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one kind with one error; `example_id` and `error` are the newest one's."""

    kind: str
    error: str | None
    count: int
    newest_at: datetime | None
    example_id: str


def _all_dead_letters(serving: Coordination, wanted: JobFilter) -> Iterator[Job]:
    wanted = msgspec.structs.replace(wanted, limit=PER_PAGE)
    for _ in range(MAX_JOBS // PER_PAGE):
        page = serving.store.views.jobs(wanted).jobs
        yield from page
        if len(page) < PER_PAGE:
            return
        wanted = msgspec.structs.replace(wanted, before=page[-1].id)
    say(f"only the newest {MAX_JOBS:,} dead letters are counted")


def _by_error(found: Iterable[Job]) -> list[tuple[Job, int]]:
    """The newest dead letter of each kind and error, and how many there are; most first."""
    newest: dict[tuple[str, str], Job] = {}
    counts: dict[tuple[str, str], int] = {}
    for job in found:
        key = (job.kind, error_signature(headline(job) or ""))
        known = newest.setdefault(key, job)
        if (job.finished_at or 0) > (known.finished_at or 0):
            newest[key] = job
        counts[key] = counts.get(key, 0) + 1
    return sorted(
        ((newest[key], count) for key, count in counts.items()), key=lambda group: -group[1]
    )


def _show_groups(groups: list[tuple[Job, int]], *, now: Instant, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                ErrorGroup(
                    kind=job.kind,
                    error=headline(job),
                    count=count,
                    newest_at=optional_moment(job.finished_at),
                    example_id=job.id,
                )
                for job, count in groups
            ]
        )
        return
    print_table(
        ["COUNT", "KIND", "ERROR", "NEWEST", "ID"],
        [(count, j.kind, headline(j), ago(j.finished_at, now), j.id) for j, count in groups],
    )


@dlq.command(name="show")
@url_option
@json_option(DeadLetterRecord)
@click.option("--bodies", is_flag=True, help="Also show payload and checkpoint.")
@job_argument
def show_dead_letter(
    url: str | None, as_json: bool, bodies: bool, namespace: str, job_id: str
) -> None:
    """Show a dead letter, its error and what became of it."""
    with coordination(url) as serving:
        job = find_job(serving, job_id, namespace)
        if job.status is not JobStatus.DEAD_LETTERED:
            refuse(f"job {job.id} is {job.status}, not a dead letter")
        found = serving.store.jobs.resolutions([job.id]).get(job.id)
        now = serving.store.now()
    if as_json:
        print_json(dead_letter_record(job, found, now=now, bodies=bodies))
        return
    print_facts([*job_facts(job, now=now, bodies=bodies), *resolution_facts(found, now)])
    print_traceback(job)


# --- Deciding ------------------------------------------------------------------------------------


def _selection(
    job_ids: tuple[str, ...], filters: dict[str, Any], *, every: bool, yes: bool
) -> Selection:
    if job_ids and _has_filters(filters):
        raise click.UsageError("Filters go with --all.")
    return Selection(job_ids=job_ids, every=every, yes=yes, wanted=_filter(**filters))


@dlq.command(name="redrive")
@url_option
@json_option(list[JobOutcome])
@request_options
@click.option("--payload", help="JSON to run with instead of the old payload; for one ID.")
@click.option("--again", is_flag=True, help="Also those that were redriven or discarded before.")
@filter_options
@many_options
def redrive_dead_letters(
    url: str | None,
    as_json: bool,
    request: Request,
    payload: str | None,
    again: bool,
    job_ids: tuple[str, ...],
    every: bool,
    yes: bool,
    **filters: Any,
) -> None:
    """Make new jobs out of dead letters; prints the new ids.

    The dead letter stays, marked as redriven. One that was redriven or discarded before is refused,
    because its new job may be running; --again makes another job of it and leaves the mark as it
    is.

    \b
    Examples:
      tenure dlq redrive 01a1e921-05b9-7b91
      tenure dlq redrive --all --kind charge --reason timeout

    Exits with 0 if each has a new job, 1 if some were refused or you said no, 2 if it could not be
    done. It is safe to run again.
    """
    if again and every:
        raise click.UsageError("--again goes with IDs.")
    if payload is not None and (every or len(job_ids) != 1):
        raise click.UsageError("--payload goes with exactly one ID.")
    selection = _selection(job_ids, filters, every=every, yes=yes)
    asked = request.fields()

    def command(job_id: JobId) -> Redrive:
        return Redrive(
            job_id=job_id,
            actor=operator(),
            **asked,
            payload=None if payload is None else payload.encode("utf-8", "surrogateescape"),
            again=again,
            expected_status=JobStatus.DEAD_LETTERED,
        )

    with coordination(url) as serving:
        chosen = select(serving, selection, verb="Redrive", noun="dead letter")
        commands = [command(job_id) for job_id in chosen]
        execute_all(serving, commands, as_json=as_json, line=id_that_runs, hint=hint_again)


@dlq.command(name="discard")
@url_option
@json_option(list[JobOutcome])
@request_options
@click.option("--note", "-m", default="", help="Why; kept with the dead letter.")
@filter_options
@many_options
def discard_dead_letters(
    url: str | None,
    as_json: bool,
    request: Request,
    note: str,
    job_ids: tuple[str, ...],
    every: bool,
    yes: bool,
    **filters: Any,
) -> None:
    """Mark dead letters as discarded: they are no longer listed.

    Their jobs and histories stay until they are purged.

    Exits with 0 if all were discarded, 1 if some were refused or you said no, 2 if it could not be
    done. It is safe to run again.
    """
    selection = _selection(job_ids, filters, every=every, yes=yes)
    asked = request.fields()
    with coordination(url) as serving:
        commands = [
            Discard(job_id=job_id, actor=operator(), **asked, note=note)
            for job_id in select(serving, selection, verb="Discard", noun="dead letter")
        ]
        execute_all(serving, commands, as_json=as_json, line=lambda done, _: done.job_id)
