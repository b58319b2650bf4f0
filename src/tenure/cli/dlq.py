"""`tenure dlq …`: list dead letters, redrive them, discard them.

Running redrive and discard again is safe: the coordinator resolves a dead letter once, even if
another process runs the same command at the same time. [B17]
"""

from typing import Any

import click
import msgspec

from tenure.cli.invocation import Invocation, Listing, command, find_job_id, list_command
from tenure.cli.job_view import headline
from tenure.cli.many import MAKES_JOBS, Many, about_jobs
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
from tenure.core.job import Job
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import JobStatus, ReasonCode, Stage
from tenure.protocol.records import DeadLetterRecord, JobOutcome, dead_letter_record

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
    choice("--reason", words_of=ReasonCode, help="Only dead letters with this reason."),
    choice("--stage", words_of=Stage, help="Only dead letters of this stage."),
)


# --- Reading -------------------------------------------------------------------------------------


@list_command(dlq, json=list[DeadLetterRecord])
@filter_options
@flag("--resolved", help="Dead letters that were redriven or discarded.")
@before_option
@limit_option(MAX_LISTED)
def list_dead_letters(
    cli: Invocation, resolved: bool, before: str | None, limit: int, **filters: Any
) -> Listing[Job]:
    """List unresolved dead letters, newest first.

    Redriven and discarded dead letters are listed with --resolved.

    \b
    Example:
      tenure dlq ls --kind mail --reason timeout
    """
    last = None if before is None else find_job_id(cli, before, is_before=True)
    wanted = JobFilter(
        namespace=cli.namespace,
        statuses=(JobStatus.DEAD_LETTERED,),
        reason_code=filters["reason"],
        resolved=resolved,
        before=last,
        limit=limit,
        bodies=False,
        **{name: filters[name] for name in ("kind", "queue", "stage")},
    )
    page = cli.store.views.jobs(wanted)
    found, resolutions = page.jobs, page.resolutions
    now = cli.now

    def resolution(job: Job) -> str | None:
        known = resolutions.get(job.id)  # None: deleted since the list was read
        return None if known is None else known.kind

    return Listing(
        found,
        {
            "ID": lambda job: job.id,
            "KIND": lambda job: job.kind,
            "QUEUE": lambda job: job.queue,
            "REASON": lambda job: job.reason_code,
            "STAGE": lambda job: job.stage,
            "ATTEMPTS": lambda job: job.attempt,
            "FINISHED": lambda job: ago(job.finished_at, now),
            "ERROR": headline,
            **({"RESOLVED": resolution} if resolved else {}),
        },
        document=lambda job: dead_letter_record(
            job, resolutions.get(job.id), now=now, bodies=False
        ),
        optional=("REASON", "STAGE", "ATTEMPTS", "QUEUE"),
        notes=[] if found else [_there_are_none(cli, filters, resolved=resolved)],
    )


def _there_are_none(cli: Invocation, filters: dict[str, Any], *, resolved: bool) -> str:
    word = "resolved" if resolved else "unresolved"
    if any(filters.values()):
        return f"no {word} dead letter matches"
    return f"there are no {word} dead letters in namespace {cli.namespace}"


# --- Deciding ------------------------------------------------------------------------------------


@command(dlq, "redrive", json=list[JobOutcome])
@click.option("--payload", help="JSON to run with instead of the old payload; for one ID.")
@flag("--again", help="Also dead letters that were redriven or discarded before.")
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
    given = (
        {}
        if payload is None
        else {"payload": msgspec.Raw(payload.encode("utf-8", "surrogateescape"))}
    )
    client = cli.api.dead_letters
    chosen = many.chosen(client.ids, verb="Redrive", noun="dead letter")
    many.decide(client.redrive_many, chosen, hints=MAKES_JOBS, again=again, **given)


@command(dlq, "discard", json=list[JobOutcome])
@click.option("--note", "-m", default="", help="Why; kept with the dead letter.")
@about_jobs(filter_options)
def discard_dead_letters(cli: Invocation, many: Many, note: str) -> None:
    """Mark dead letters as discarded: they are no longer listed.

    Their jobs and histories stay until they are purged.

    Exits with 0 if all were discarded, 1 if some were refused or you said no, 2 if it could not be
    done. It is safe to run again.
    """
    client = cli.api.dead_letters
    chosen = many.chosen(client.ids, verb="Discard", noun="dead letter")
    many.decide(client.discard_many, chosen, note=note)
