"""`tenure dlq …`: look at dead letters, give them another chance, or put them away.

Commands that take many dead letters ask first, and are safe to repeat: the coordinator redrives a
dead letter once, whoever else runs the same command at the same time. [B17]
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import click
import msgspec

from tenure.cli.common import (
    KEY_IS_HELD,
    REFUSED,
    administration,
    find_job,
    json_option,
    namespace_option,
    new_request_id,
    operator,
    refuse,
    request_id_option,
    resolved_how,
    url_option,
)
from tenure.cli.jobs import hides_bodies, job_facts
from tenure.cli.output import (
    print_facts,
    print_json,
    print_table,
    print_traceback,
    printable,
)
from tenure.core.commands import Command, Discard, Redrive
from tenure.core.ids import JobId, Kind, Namespace, QueueName
from tenure.core.validation import check_job_id
from tenure.core.verdicts import Answer, Reply
from tenure.core.vocabulary import Cause, JobStatus, ReasonCode, Stage
from tenure.errors import UnknownJob
from tenure.ports import Administration, DeadLetter, JobFilter
from tenure.protocol.fields import iso
from tenure.protocol.records import JobRecord, ResolutionRecord, job_record, resolution_record

MAX_LISTED = 500
MAX_BULK = 100_000
PER_REQUEST = 500
ERROR_WIDTH = 60

_FIRST = "the first {} (there may be more; run it again for them)"

_F = TypeVar("_F", bound=Callable[..., Any])


@click.group()
def dlq() -> None:
    """Look at dead letters, redrive them, discard them."""


def filter_options(function: _F) -> _F:
    """`--namespace`, `--kind`, `--queue`, `--reason` and `--stage`."""
    function = click.option("--stage", type=click.Choice([stage.value for stage in Stage]))(
        function
    )
    function = click.option("--reason", type=click.Choice([code.value for code in ReasonCode]))(
        function
    )
    function = click.option("--queue", "-q")(function)
    function = click.option("--kind", "-k")(function)
    return namespace_option(function)


def _filter(
    namespace: str, kind: str | None, queue: str | None, reason: str | None, stage: str | None
) -> JobFilter:
    return JobFilter(
        namespace=Namespace(namespace),
        statuses=(JobStatus.DEAD_LETTERED,),
        kind=None if kind is None else Kind(kind),
        queue=None if queue is None else QueueName(queue),
        reason_code=None if reason is None else ReasonCode(reason),
        stage=None if stage is None else Stage(stage),
        resolved=False,
        limit=MAX_LISTED,
    )


# --- Looking -----------------------------------------------------------------------------------


class DeadLetterLine(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter as it is listed."""

    id: str
    kind: str
    queue: str
    reason_code: str | None
    stage: str | None
    attempt: int
    finished_at: str | None
    error: str | None
    resolution: ResolutionRecord | None


@dlq.command(name="ls")
@url_option
@json_option(list[DeadLetterLine])
@filter_options
@click.option("--resolved", is_flag=True, help="Those that were redriven or discarded.")
@click.option("--before", help="Older than this job id: the next page.")
@click.option("--limit", "-n", type=click.IntRange(1, MAX_LISTED), default=50, show_default=True)
def list_dead_letters(
    url: str | None,
    as_json: bool,
    resolved: bool,
    before: str | None,
    limit: int,
    **filters: Any,
) -> None:
    """List dead letters that nobody has resolved yet, newest first."""
    with administration(url) as serving:
        if before is not None:
            check_job_id("--before", before)
        wanted = msgspec.structs.replace(
            _filter(**filters),
            resolved=resolved,
            before=None if before is None else JobId(before),
            limit=limit,
        )
        lines = [_line(letter) for letter in serving.list_dead_letters(wanted)]
    if as_json:
        print_json(lines)
        return
    print_table(
        ["ID", "KIND", "QUEUE", "REASON", "STAGE", "ATTEMPTS", "FINISHED", "ERROR", "RESOLVED"],
        [
            (
                line.id,
                line.kind,
                line.queue,
                line.reason_code,
                line.stage,
                line.attempt,
                line.finished_at,
                None if line.error is None else line.error.partition("\n")[0][:ERROR_WIDTH],
                None if line.resolution is None else line.resolution.kind,
            )
            for line in lines
        ],
    )


def _line(letter: DeadLetter) -> DeadLetterLine:
    job, error = letter.job, letter.job.error
    return DeadLetterLine(
        id=job.id,
        kind=job.kind,
        queue=job.queue,
        reason_code=job.reason_code,
        stage=job.stage,
        attempt=job.attempt,
        finished_at=iso(job.finished_at),
        error=None if error is None else f"{error.type}: {error.message}",
        resolution=resolution_record(letter.resolution),
    )


class DeadLetterShown(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter, and what became of it if anything has."""

    job: JobRecord
    resolution: ResolutionRecord | None


@dlq.command(name="show")
@url_option
@json_option(DeadLetterShown)
@click.option("--bodies", is_flag=True, help="Also show payload and checkpoint.")
@click.argument("job_id", metavar="ID")
def show_dead_letter(url: str | None, as_json: bool, bodies: bool, job_id: str) -> None:
    """Show a dead letter and what became of it."""
    with administration(url) as serving:
        job = find_job(serving, job_id)
        if job.status is not JobStatus.DEAD_LETTERED:
            refuse(f"job {job.id} is {job.status}, not a dead letter")
        found = serving.load_resolutions([job.id]).get(job.id)
        hidden = bodies and hides_bodies(job, serving.load_events(job.id))
        shown = job_record(job, now=serving.now(), bodies=bodies and not hidden)
    if as_json:
        print_json(DeadLetterShown(job=shown, resolution=resolution_record(found)))
        return
    facts = job_facts(job, bodies=bodies, hidden=hidden)
    if found is None:
        facts.append(("resolved", "no; `tenure dlq redrive` or `tenure dlq discard` it"))
    else:
        facts.append(("resolved", f"{found.kind} by {found.actor} at {iso(found.ts)}"))
        facts.append(("new job", found.new_job_id))
        facts.append(("note", found.note))
    print_facts(facts)
    print_traceback(job)


# --- Deciding ----------------------------------------------------------------------------------


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one dead letter. With a `cause` or a `held_by` nothing did."""

    job_id: str
    new_job_id: str | None = None
    cause: Cause | None = None
    resolution: ResolutionRecord | None = None  # what had become of a refused one before
    held_by: str | None = None  # the live job that holds the dead letter's dedupe key

    @property
    def is_refused(self) -> bool:
        """Whether it is as it was."""
        return self.cause is not None or self.held_by is not None


def bulk_options(function: _F) -> _F:
    """`--all` with filters, `--yes`, and the ids otherwise."""
    function = click.argument("job_ids", metavar="[ID]...", nargs=-1)(function)
    function = click.option("--yes", "-y", is_flag=True, help="Do not ask.")(function)
    function = click.option("--all", "every", is_flag=True, help="All that the filters leave.")(
        function
    )
    return filter_options(function)


@dlq.command(name="redrive")
@url_option
@json_option(list[Done])
@request_id_option
@click.option("--payload", help="JSON to run with instead of the old payload; for one ID.")
@click.option("--again", is_flag=True, help="Also those that were redriven or discarded before.")
@bulk_options
def redrive_dead_letters(
    url: str | None,
    as_json: bool,
    request_id: str | None,
    payload: str | None,
    again: bool,
    job_ids: tuple[str, ...],
    every: bool,
    yes: bool,
    **filters: Any,
) -> None:
    """Make a new job out of each dead letter; the old ones stay, marked as redriven.

    One that was redriven or discarded before is refused, because its new job may be at work
    already; --again makes another job of it and leaves its resolution as it is.
    """
    if again and every:
        raise click.UsageError("--again goes with IDs.")
    if payload is not None and (every or len(job_ids) != 1):
        raise click.UsageError("--payload goes with exactly one ID.")
    asked_as = new_request_id(request_id)

    def command(job_id: JobId) -> Redrive:
        return Redrive(
            job_id=job_id,
            actor=operator(),
            request_id=asked_as,
            payload=None if payload is None else payload.encode("utf-8", "surrogateescape"),
            again=again,
            expected_status=JobStatus.DEAD_LETTERED,
        )

    with administration(url) as serving:
        chosen = _chosen(serving, "Redrive", job_ids, filters, every=every, yes=yes)
        done = _decide(serving, [command(job_id) for job_id in chosen])
    _show(done, as_json=as_json, hint="--again makes a new job of it all the same")


@dlq.command(name="discard")
@url_option
@json_option(list[Done])
@request_id_option
@click.option("--note", "-m", default="", help="Why; kept with the resolution.")
@bulk_options
def discard_dead_letters(
    url: str | None,
    as_json: bool,
    request_id: str | None,
    note: str,
    job_ids: tuple[str, ...],
    every: bool,
    yes: bool,
    **filters: Any,
) -> None:
    """Put dead letters away; their rows and histories stay until they are purged."""
    asked_as = new_request_id(request_id)
    with administration(url) as serving:
        chosen = _chosen(serving, "Discard", job_ids, filters, every=every, yes=yes)
        done = _decide(
            serving,
            [
                Discard(job_id=job_id, actor=operator(), request_id=asked_as, note=note)
                for job_id in chosen
            ],
        )
    _show(done, as_json=as_json)


def _chosen(
    serving: Administration,
    verb: str,
    job_ids: tuple[str, ...],
    filters: dict[str, Any],
    *,
    every: bool,
    yes: bool,
) -> list[JobId]:
    if every == bool(job_ids):
        raise click.UsageError("Give IDs, or --all (with filters, if you like).")
    if not every:
        if any(value is not None for name, value in filters.items() if name != "namespace"):
            raise click.UsageError("Filters go with --all.")
        for job_id in job_ids:
            check_job_id("ID", job_id)
        return [JobId(job_id) for job_id in dict.fromkeys(job_ids)]
    found = list(_all_ids(serving, _filter(**filters)))
    is_all = len(found) < MAX_BULK
    if found and not yes:
        many = "1 dead letter" if len(found) == 1 else f"{len(found):,} dead letters"
        click.confirm(f"{verb} {many if is_all else _FIRST.format(many)}?", abort=True, err=True)
    elif not is_all:
        click.echo(f"tenure: {_FIRST.format(f'{MAX_BULK:,} dead letters')}", err=True)
    return found


def _all_ids(serving: Administration, wanted: JobFilter) -> Iterator[JobId]:
    for _ in range(MAX_BULK // wanted.limit):
        page = serving.list_jobs(wanted)
        yield from (job.id for job in page)
        if len(page) < wanted.limit:
            return
        wanted = msgspec.structs.replace(wanted, before=page[-1].id)


def _decide(serving: Administration, commands: Sequence[Command]) -> list[Done]:
    done: list[Done] = []
    for start in range(0, len(commands), PER_REQUEST):
        some = commands[start : start + PER_REQUEST]
        answers = serving.submit_many(some).result()
        done += [_done(*pair) for pair in zip(some, answers, strict=True)]
    return done


def _done(command: Command, reply: Answer) -> Done:
    assert isinstance(reply, Reply)
    if reply.cause is not None:
        return Done(
            job_id=command.job_id,
            cause=reply.cause,
            resolution=resolution_record(reply.resolution),
        )
    assert reply.job is not None
    if isinstance(command, Discard):
        return Done(job_id=command.job_id)
    if reply.deduplicated:
        return Done(job_id=command.job_id, held_by=reply.job.id)
    return Done(job_id=command.job_id, new_job_id=reply.job.id)


def _show(done: Sequence[Done], *, as_json: bool, hint: str = "") -> None:
    """The ids of new jobs, or of what was put away, on stdout; what was refused on stderr, with a
    hint where it was resolved before."""
    refused = [each for each in done if each.is_refused]
    if as_json:
        print_json(done)
    else:
        for each in done:
            if not each.is_refused:
                click.echo(each.new_job_id or each.job_id)
        for each in refused:
            more = f"; {hint}" if hint and each.cause is Cause.ALREADY_RESOLVED else ""
            click.echo(f"tenure: job {each.job_id}: {printable(_why(each))}{more}", err=True)
    if refused:
        raise click.exceptions.Exit(REFUSED)


def _why(refused: Done) -> str:
    if refused.cause is None:
        return f"its dedupe key is held by job {refused.held_by}"
    before = refused.resolution
    if refused.cause is Cause.DEDUPE_KEY_HELD:
        return KEY_IS_HELD
    if refused.cause is Cause.UNKNOWN_JOB:
        return f"{refused.cause.value}; {UnknownJob(refused.job_id).hint}"
    if before is None:
        return refused.cause.value
    return f"{refused.cause.value}; {resolved_how(before)}"
