"""`tenure dlq …`: list dead letters, redrive them, discard them.

Running redrive and discard again is safe: the coordinator resolves a dead letter once, even if
another process runs the same command at the same time. [B17]
"""

from datetime import datetime
from typing import Any

import click
import msgspec

from tenure.cli.invocation import Invocation, Listing, command, find_job_id, list_command
from tenure.cli.job_view import headline
from tenure.cli.many import JobOutcome, Many, about_jobs, execute_all, id_that_runs
from tenure.cli.options import (
    before_option,
    choice,
    flag,
    kind_option,
    limit_option,
    queue_option,
    together,
)
from tenure.cli.output import ago
from tenure.core.commands import Discard, Redrive
from tenure.core.views.dead_letter_groups import MAX_GROUPED, DeadLetterGroup, DeadLetterGroupFilter
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import JobStatus, ReasonCode, Stage
from tenure.ports import DeadLetter
from tenure.protocol.fields import moment
from tenure.protocol.records import DeadLetterRecord, dead_letter_record

MAX_LISTED = 500


@click.group()
def dlq() -> None:
    """List dead letters, redrive them, discard them.

    A dead letter is a job that will not run again by itself: its attempts are used up, or its
    arguments can never work. Redriving makes a new job of it. `tenure jobs show` shows one with its
    error and what became of it.
    """


filter_options = together(
    kind_option,
    queue_option,
    choice("--reason", "reason_code", words_of=ReasonCode, help="Only those with this reason."),
    choice("--stage", words_of=Stage, help="Only those that failed at this stage."),
)


# --- Reading -------------------------------------------------------------------------------------


@list_command(dlq, json=list[DeadLetterRecord])
@filter_options
@click.option(
    "--by",
    type=click.Choice(["error"]),
    help="Count them by kind and error instead of listing each.",
)
@flag("--resolved", help="Those that were redriven or discarded.")
@before_option
@limit_option(MAX_LISTED)
def list_dead_letters(
    cli: Invocation, by: str | None, resolved: bool, before: str | None, limit: int, **filters: Any
) -> Listing[Any]:
    """List unresolved dead letters, newest first.

    Those that were redriven or discarded are listed with --resolved.

    With --by error the unresolved ones are counted by kind and error, the most frequent first.
    Errors of one type whose first lines differ only in numbers and ids count as one. --json then
    prints objects with kind, error, count, newest_at and example_id, which is the newest of them.

    \b
    Examples:
      tenure dlq ls --by error
      tenure dlq ls --kind mail --reason timeout
    """
    if by is not None and (resolved or before is not None):
        raise click.UsageError("--resolved and --before do not go with --by.")
    if by is not None:
        return _by_error(cli, limit, **filters)
    last = None if before is None else find_job_id(cli, before, is_before=True)
    wanted = JobFilter(
        namespace=cli.namespace,
        statuses=(JobStatus.DEAD_LETTERED,),
        resolved=resolved,
        before=last,
        limit=limit,
        bodies=False,
        **filters,
    )
    found = cli.store.views.dead_letters(wanted)
    now = cli.now
    return Listing(
        found,
        {
            "ID": lambda letter: letter.job.id,
            "KIND": lambda letter: letter.job.kind,
            "QUEUE": lambda letter: letter.job.queue,
            "REASON": lambda letter: letter.job.reason_code,
            "STAGE": lambda letter: letter.job.stage,
            "ATTEMPTS": lambda letter: letter.job.attempt,
            "FINISHED": lambda letter: ago(letter.job.finished_at, now),
            "ERROR": lambda letter: headline(letter.job),
            **({"RESOLVED": _resolution} if resolved else {}),
        },
        document=lambda letter: dead_letter_record(
            letter.job, letter.resolution, now=now, bodies=False
        ),
        optional=("REASON", "STAGE", "ATTEMPTS", "QUEUE"),
        notes=[] if found else [_there_are_none(cli, filters, resolved=resolved)],
    )


def _resolution(letter: DeadLetter) -> str | None:
    return None if letter.resolution is None else letter.resolution.kind


def _there_are_none(cli: Invocation, filters: dict[str, Any], *, resolved: bool) -> str:
    word = "resolved" if resolved else "unresolved"
    if any(filters.values()):
        return f"no {word} dead letter matches"
    return f"there are no {word} dead letters in namespace {cli.namespace}"


class ErrorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one kind with one error; `example_id` and `error` are the newest one's."""

    kind: str
    error: str | None
    count: int
    newest_at: datetime | None
    example_id: str


def _by_error(
    cli: Invocation, limit: int, *, reason_code: object, stage: object, **scope: Any
) -> Listing[DeadLetterGroup]:
    names: Any = {f"{field}s": () if name is None else (name,) for field, name in scope.items()}
    found = cli.store.views.dead_letter_groups(
        DeadLetterGroupFilter(namespace=cli.namespace, **names)
    )
    groups = [
        each
        for each in found.groups
        if reason_code in (None, each.reason_code) and stage in (None, each.stage)
    ][:limit]
    notes = [] if found.complete else [f"only the newest {MAX_GROUPED:,} dead letters are counted"]
    if not groups:
        filters = {**scope, "reason_code": reason_code, "stage": stage}
        notes.append(_there_are_none(cli, filters, resolved=False))
    return Listing(
        groups,
        {
            "COUNT": lambda each: each.letters,
            "KIND": lambda each: each.kind,
            "ERROR": lambda each: each.headline,
            "NEWEST": lambda each: ago(each.last_at, found.now),
            "ID": lambda each: each.job_ids[0],
        },
        document=lambda each: ErrorGroup(
            kind=each.kind,
            error=each.headline,
            count=each.letters,
            newest_at=moment(each.last_at),
            example_id=each.job_ids[0],
        ),
        notes=notes,
    )


# --- Deciding ------------------------------------------------------------------------------------


@command(dlq, "redrive", json=list[JobOutcome])
@click.option("--payload", help="JSON to run with instead of the old payload; for one ID.")
@flag("--again", help="Also those that were redriven or discarded before.")
@about_jobs(filter_options)
def redrive_dead_letters(cli: Invocation, many: Many, payload: str | None, again: bool) -> None:
    """Make new jobs out of dead letters; prints the new ids.

    The dead letter stays, marked as redriven. One that was redriven or discarded before is refused,
    because its new job may be running; --again makes another job of it and leaves the mark
    unchanged.

    \b
    Examples:
      tenure dlq redrive 01a1e921-05b9-7b91
      tenure dlq redrive --all --kind charge --reason timeout

    Exits with 0 if each has a new job, 1 if some were refused or you said no, 2 if it could not be
    done. It is safe to run again.
    """
    if again and many.every:
        raise click.UsageError("--again goes with IDs.")
    if payload is not None and len(many.job_ids) != 1:
        raise click.UsageError("--payload goes with exactly one ID.")
    fields: Any = {
        **many.request(),
        "payload": None if payload is None else payload.encode("utf-8", "surrogateescape"),
        "again": again,
        "expected_status": JobStatus.DEAD_LETTERED,
    }
    chosen = _select(many, "Redrive")
    commands = [Redrive(job_id=each, actor=cli.operator, **fields) for each in chosen]
    execute_all(cli, commands, line=id_that_runs)


@command(dlq, "discard", json=list[JobOutcome])
@click.option("--note", "-m", default="", help="Why; kept with the dead letter.")
@about_jobs(filter_options)
def discard_dead_letters(cli: Invocation, many: Many, note: str) -> None:
    """Mark dead letters as discarded: they are no longer listed.

    Their jobs and histories stay until they are purged.

    Exits with 0 if all were discarded, 1 if some were refused or you said no, 2 if it could not be
    done. It is safe to run again.
    """
    asked = many.request()
    commands = [
        Discard(job_id=each, actor=cli.operator, **asked, note=note)
        for each in _select(many, "Discard")
    ]
    execute_all(cli, commands, line=lambda done, _: done.job_id)


def _select(many: Many, verb: str) -> Any:
    wanted = many.filter(statuses=(JobStatus.DEAD_LETTERED,), resolved=False)
    return many.select(wanted, verb=verb, noun="dead letter")
