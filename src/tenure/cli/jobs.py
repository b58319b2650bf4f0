"""`tenure jobs …`: read jobs, stop them, let them run again."""

import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from tenure.cli.errors import refuse
from tenure.cli.following import show_end, wait_for_end
from tenure.cli.invocation import Invocation, Listing, command, find_job, find_job_id, list_command
from tenure.cli.job_view import (
    headline,
    job_facts,
    lease_note,
    print_output,
    print_timeline,
    print_traceback,
    resolution_facts,
    shown_worker,
    why_no_output,
)
from tenure.cli.many import MAKES_JOBS, Many, about_jobs
from tenure.cli.options import (
    before_option,
    choice,
    flag,
    job_namespace_option,
    kind_option,
    limit_option,
    queue_option,
    timeout_option,
    together,
    when_option,
    whole_number,
)
from tenure.cli.output import ago, print_facts, print_json, say
from tenure.core.artifacts import AttemptLog
from tenure.core.checks import check_name
from tenure.core.instants import Duration
from tenure.core.job import Job
from tenure.core.views.job_search import MAX_JOBS_READ, JobFilter
from tenure.core.vocabulary import JobStatus, ReasonCode, Stage, counted
from tenure.protocol.records import (
    ArtifactRecord,
    EventRecord,
    JobOutcome,
    JobRecord,
    ObservationRecord,
    ResolutionRecord,
    artifact_record,
    event_record,
    job_record,
    observation_record,
    resolution_record,
)
from tenure.telemetry.kind_names import kind_hint

MAX_LISTED = 500

LIVE = tuple(status for status in JobStatus if not status.is_terminal)
RERUN_BY_STATUS = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)
RERUN_ALL = "cli:rerun-all"
"""`rerun --all` always asks under this id: a job is rerun once, whichever user runs it again."""

_STATUSES = ", ".join(JobStatus)


@click.group()
def jobs() -> None:
    """Show jobs, cancel them, run them again.

    An ID may be shortened to its first characters, at least 8, if no other job has an ID that
    begins with them.
    """


def _statuses(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(JobStatus.known(word) for word in words)
    except ValueError as wrong:
        raise click.BadParameter(f"no such status; one of {_STATUSES}") from wrong


filter_options = together(
    click.option(
        "--status",
        "-s",
        multiple=True,
        callback=_statuses,
        help=f"Only jobs of this status; may be repeated. One of {_STATUSES}.",
    ),
    queue_option,
    kind_option,
    click.option("--correlation-id", help="Only jobs with this correlation id."),
)
search_options = together(
    click.option("--worker", "-w", help="Only jobs that this worker runs or ran last."),
    flag("--orphaned", help="Only jobs whose workers have been silent for two heartbeats."),
    click.option(
        "--error",
        metavar="TEXT",
        help="Only jobs with this text in the type or message of their last error, in the first"
        " 4096 characters; upper and lower case are the same.",
    ),
    click.option(
        "--meta",
        metavar="KEY=VALUE",
        help="Only jobs that were enqueued with this entry of --meta.",
    ),
    when_option(
        "--since",
        "Only jobs that were enqueued at this time or later: 24h means 24 hours ago; or"
        " 2026-12-01T08:00Z.",
        field="enqueued_since",
    ),
    when_option(
        "--until",
        "Only jobs that were enqueued before this time, written as for --since.",
        field="enqueued_until",
    ),
    when_option(
        "--finished-since", "Only jobs that finished at this time or later, as for --since."
    ),
    when_option(
        "--finished-until", "Only jobs that finished before this time, written as for --since."
    ),
)
"""[J12]"""

_TIMES = ("enqueued_since", "enqueued_until", "finished_since", "finished_until")
job_argument = click.argument("job_id", metavar="ID")


# --- Reading -------------------------------------------------------------------------------------


@list_command(jobs, json=list[JobRecord])
@filter_options
@search_options
@before_option
@limit_option(MAX_LISTED)
def list_jobs(cli: Invocation, before: str | None, limit: int, **filters: Any) -> Listing[Job]:
    """List jobs, newest first by the time of enqueue.

    \b
    Examples:
      tenure jobs ls --status failed --kind mail
      tenure jobs ls -s running -s stalled
      tenure jobs ls --error "connection refused" --since 2d
    """
    now = cli.now
    filters |= {name: filters[name].instant(now) for name in _TIMES if filters[name] is not None}
    last = None if before is None else find_job_id(cli, before, is_before=True)
    wanted = JobFilter(
        namespace=cli.namespace,
        statuses=filters.pop("status"),
        before=last,
        limit=limit,
        bodies=False,
        **filters,
    )
    page = cli.serving.list_jobs(wanted)
    found, now = page.jobs, cli.now
    notes = []
    if not found and wanted.kind is not None:
        notes += [text] if (text := kind_hint(cli.store, cli.namespace, wanted.kind)) else []
    if page.next_before is not None and len(found) < limit:
        notes.append(
            f"{MAX_JOBS_READ} jobs were read; for older ones, add --before {page.next_before}"
        )
    columns = {
        "ID": lambda job: job.id,
        "KIND": lambda job: job.kind,
        "QUEUE": lambda job: job.queue,
        "STATUS": lambda job: job.status,
        "NOTE": lambda job: lease_note(job, now),
        "ATTEMPT": lambda job: job.attempt,
        "ENQUEUED": lambda job: ago(job.enqueued_at, now),
        "FINISHED": lambda job: ago(job.finished_at, now),
        "WORKER": shown_worker,
        "ERROR": headline,
    }
    if not any(lease_note(job, now) for job in found):
        del columns["NOTE"]
    # A list of all statuses has no room for the errors of a few.
    if not wanted.statuses or not any(job.error for job in found):
        del columns["ERROR"]
    return Listing(
        found,
        columns,
        document=lambda job: job_record(job, now=now, bodies=False),
        optional=("ENQUEUED", "ATTEMPT", "QUEUE", "FINISHED", "WORKER"),
        whole=("NOTE",),
        notes=notes,
    )


class JobShown(msgspec.Struct, frozen=True, kw_only=True):
    """A job, why it waits if that is known, what became of it if it is a dead letter that was
    redriven or discarded, its history, and what was observed beside it."""

    job: JobRecord
    waiting: str | None
    resolution: ResolutionRecord | None
    events: list[EventRecord]
    observations: list[ObservationRecord]


class JobEvents(msgspec.Struct, frozen=True, kw_only=True):
    """A job's log, and what was observed beside it."""

    events: list[EventRecord]
    observations: list[ObservationRecord]


@command(jobs, "show", json=JobShown, namespace=job_namespace_option)
@flag("--bodies", help="Also show payload, result and checkpoint.")
@job_argument
def show_job(cli: Invocation, bodies: bool, job_id: str) -> None:
    """Show a job, why it waits, its history, its error, and what became of a dead letter.

    Lines of the history whose SEQ is a dash are beside the log: a result that was refused, a report
    under another worker's lease, a compensation that succeeded. They changed nothing. With --json
    --bodies, they have the first 4 KiB of what was refused.
    """
    job = find_job(cli, job_id)
    events = cli.store.events.load([job.id])[job.id]
    seen = cli.store.jobs.observations(job.id)
    now = cli.now
    waiting = cli.serving.why_waiting(job)
    resolution = None
    if job.status is JobStatus.DEAD_LETTERED:
        resolution = cli.store.jobs.resolutions([job.id]).get(job.id)
    if cli.as_json:
        print_json(
            JobShown(
                job=job_record(job, now=now, bodies=bodies),
                waiting=waiting,
                resolution=resolution_record(resolution),
                events=[event_record(event) for event in events],
                observations=[observation_record(each, bodies=bodies) for each in seen],
            )
        )
        return
    facts = job_facts(job, now=now, bodies=bodies)
    if job.status is JobStatus.DEAD_LETTERED:
        facts += resolution_facts(resolution, now)
    is_unclaimed = job.status in (JobStatus.WAITING, JobStatus.QUEUED)
    print_facts([*facts, ("waiting" if is_unclaimed else "note", waiting)])
    click.echo()
    print_timeline(events, seen, folded=True)
    print_traceback(job)


@command(jobs, "events", json=JobEvents, namespace=job_namespace_option)
@job_argument
def job_events(cli: Invocation, job_id: str) -> None:
    """Show the stored events of a job's history, one line each.

    The renewals of an attempt are deleted after it has ended; one line `pruned` replaces them.
    Lines whose SEQ is a dash are observations beside the log, as in `tenure jobs show`.
    """
    job = find_job(cli, job_id)
    events = cli.store.events.load([job.id])[job.id]
    seen = cli.store.jobs.observations(job.id)
    if cli.as_json:
        print_json(
            JobEvents(
                events=[event_record(event) for event in events],
                observations=[observation_record(each, bodies=False) for each in seen],
            )
        )
    else:
        print_timeline(events, seen)


@command(jobs, "artifacts", json=list[ArtifactRecord], namespace=job_namespace_option)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the artifact to this file.",
)
@job_argument
@click.argument("name", required=False)
def job_artifacts(cli: Invocation, output: Path | None, job_id: str, name: str | None) -> None:
    """List or fetch the files of a succeeded job.

    With NAME the file of this name is written to stdout, or to the file of -o.
    """
    if output is not None and name is None:
        raise click.UsageError("-o needs a NAME.")
    job = find_job(cli, job_id)
    if name is not None:
        _fetch_artifact(cli, job, name, output)
        return
    found = cli.store.artifacts.of_job(job.id)
    now = cli.now
    Listing(
        found,
        {
            "NAME": lambda each: each.name,
            "TYPE": lambda each: each.media_type,
            "BYTES": lambda each: each.size,
            "SHA256": lambda each: each.sha256,
            "UPLOADED": lambda each: ago(each.ts, now),
        },
        document=artifact_record,
    ).print(as_json=cli.as_json)


def _fetch_artifact(cli: Invocation, job: Job, name: str, output: Path | None) -> None:
    check_name("NAME", name)
    stored = cli.store.artifacts.load(job.id, name)
    if stored is None:
        refuse(f"job {job.id}, which is {job.status}, has no artifact {name}")
    if output is not None:
        output.write_bytes(stored.body)
        click.echo(f"{output}: {counted(stored.artifact.size, 'byte')}", err=True)
    elif sys.stdout.isatty():
        refuse(f"{name} may contain anything, and stdout is a terminal; use -o FILE or a pipe")
    else:
        sys.stdout.buffer.write(stored.body)
        sys.stdout.buffer.flush()  # here, where a full disk can still be reported


@command(jobs, "logs", json=list[AttemptLog], namespace=job_namespace_option)
@whole_number("--attempt", "-a", least=1, help="Only this attempt.")
@job_argument
def job_logs(cli: Invocation, attempt: int | None, job_id: str) -> None:
    """Show the output of a job's handler, attempt by attempt.

    The output of a running attempt is a few seconds behind. Of each attempt 64 KiB are kept, the
    start and the end.
    """
    job = find_job(cli, job_id)
    every = cli.store.artifacts.logs(job.id)
    logs = [log for log in every if attempt is None or log.attempt == attempt]
    if cli.as_json:
        print_json(logs)
        return
    if not logs:
        say(why_no_output(job, attempt))
    print_output(job, logs)


@command(jobs, "wait", json=JobRecord, namespace=job_namespace_option)
@timeout_option
@job_argument
def wait_for_job(cli: Invocation, timeout: Duration | None, job_id: str) -> None:
    """Wait until a job has finished, and print its result.

    stderr shows how far the job is. Exits with 0 if it succeeded, 1 otherwise, 130 if you press
    Ctrl-C, which does not stop the job.
    """
    show_end(cli, wait_for_end(cli.serving, find_job_id(cli, job_id), timeout))


# --- Deciding ------------------------------------------------------------------------------------


@command(jobs, "cancel", json=list[JobOutcome])
@flag(
    "--hard",
    help="End the lease of a running job at once. Its worker kills the handler as soon as it gets"
    " that.",
)
@click.option("--reason", default="", help="Why; stored with the job.")
@about_jobs(filter_options)
def cancel_jobs(cli: Invocation, many: Many, hard: bool, reason: str) -> None:
    """Cancel jobs.

    A job that waits is cancelled at once. The handler of a running job is asked to stop and has a
    grace period to do so; --hard does not wait for it. With --all, every job that has
    not finished is cancelled, or every one that matches the filters.

    \b
    Examples:
      tenure jobs cancel 01a1e920-e889-7a9c
      tenure jobs cancel --all --queue research --status queued

    Exits with 0 if all were cancelled or asked to stop, 1 if some were refused or you said no, 2 if
    it could not be done. It is safe to run again.
    """
    many.only(LIVE, problem="a finished job cannot be cancelled")
    client = cli.api.jobs
    many.decide(client.cancel, many.chosen(client.ids, verb="Cancel"), hard=hard, reason=reason)


@command(jobs, "rerun", json=list[JobOutcome])
@flag("--again", help="Also dead letters that were redriven or discarded before.")
@about_jobs(filter_options, all_as=RERUN_ALL)
def rerun_jobs(cli: Invocation, many: Many, again: bool) -> None:
    """Make new jobs out of finished ones; prints the new ids.

    The new job has the kind, queue, payload and policy of the old one, which stays unchanged. --all
    needs --status, and skips jobs that were already rerun with --all, so that the command is safe
    to run again. For dead letters use `tenure dlq redrive --all`.

    \b
    Examples:
      tenure jobs rerun 01a1e920-e889-7a9c
      tenure jobs rerun --all --status failed --kind mail

    Exits with 0 if each has a new job, 1 if some were refused or you said no, 2 if it could not be
    done.
    """
    problem = "only jobs that failed, succeeded or were cancelled can be rerun with --all"
    if many.every and not many.filters["status"]:
        raise click.UsageError("Say which jobs: --all --status failed, cancelled or succeeded.")
    many.only(RERUN_BY_STATUS, problem=problem)
    client = cli.api.jobs
    chosen = many.chosen(
        client.ids, verb="Rerun", among=lambda ids: client.not_rerun(ids, many.request_id)
    )
    many.decide(client.rerun, chosen, hints=MAKES_JOBS, again=again)


@command(jobs, "stall", json=list[JobOutcome])
@about_jobs()
def stall_jobs(cli: Invocation, many: Many) -> None:
    """Take jobs from their workers and leave them stalled.

    For a worker that you no longer trust. Its lease is over at once, and its report is discarded.
    The job waits for `tenure jobs requeue`, or, with on_lost="reclaim", for the next claim. This
    costs none of the job's attempts.
    """
    many.decide(cli.api.jobs.stall, many.ids)


@command(jobs, "requeue", json=list[JobOutcome])
@about_jobs()
def requeue_jobs(cli: Invocation, many: Many) -> None:
    """Send stalled jobs back to their queue.

    A job of a kind with on_lost="hold" stalls when its worker is lost, and waits for this.
    """
    many.decide(cli.api.jobs.requeue, many.ids)


@command(jobs, "dead-letter", json=list[JobOutcome])
@choice(
    "--reason",
    words_of=ReasonCode,
    default=ReasonCode.POLICY_VIOLATION.value,
    help="Why it must not run.",
)
@choice("--stage", words_of=Stage, help="At which stage of its work the reason arose.")
@click.option("--message", "-m", default="", help="Kept with the job as its error.")
@about_jobs()
def dead_letter_jobs(cli: Invocation, many: Many, **why: Any) -> None:
    """Turn unfinished jobs into dead letters.

    They do not run, unless you redrive them.
    """
    many.decide(cli.api.jobs.dead_letter, many.ids, **why)
