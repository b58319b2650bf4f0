"""`tenure jobs …`: look at jobs, stop them, let them run again."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from tenure.cli.bulk import JobOutcome, Selection, execute_all, many_options, select
from tenure.cli.common import (
    INTERRUPTED,
    OUTPUT_CLOSED,
    REFUSED,
    Request,
    When,
    client,
    coordination,
    duration_value,
    find_job,
    find_job_id,
    find_job_ids,
    job_argument,
    json_option,
    namespace_option,
    operator,
    refuse,
    reported_errors,
    request_options,
    url_option,
    when_value,
)
from tenure.cli.following import following
from tenure.cli.job_end import show_end, wait_for_end
from tenure.cli.job_output import OutputPiece, follow_output, print_output, why_no_output
from tenure.cli.job_view import (
    headline,
    job_facts,
    lease_note,
    print_timeline,
    print_traceback,
    resolution_facts,
    shown_worker,
)
from tenure.cli.kind_suggestions import kind_suggestion
from tenure.cli.output import (
    ago,
    coloured,
    print_facts,
    print_json,
    print_table,
    say,
)
from tenure.cli.watching import MAX_WATCHED, going_on, watch_to_the_end
from tenure.core.attempt_logs import AttemptLog
from tenure.core.checks import check_name
from tenure.core.commands import Cancel, Command, DeadLetter, Redrive, Requeue, Stall, redriven_id
from tenure.core.counting import counted
from tenure.core.ids import JobId, Kind, Namespace, QueueName, RequestId, WorkerId
from tenure.core.instants import Duration, Instant
from tenure.core.job import Job
from tenure.core.job_search import MAX_JOBS_READ, JobFilter
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import (
    CancelMode,
    Cause,
    EventCause,
    JobStatus,
    ReasonCode,
    Stage,
)
from tenure.ports import Coordination
from tenure.protocol.records import (
    ArtifactRecord,
    EventRecord,
    JobRecord,
    ObservationRecord,
    ResolutionRecord,
    artifact_record,
    event_record,
    job_record,
    observation_record,
    resolution_record,
)
from tenure.telemetry.kind_names import is_known_kind
from tenure.telemetry.unclaimed import why_waiting

MAX_LISTED = 500
LOADED_AT_ONCE = 20
"""Jobs are loaded with their bodies, which may be large."""

LIVE = tuple(status for status in JobStatus if not status.is_terminal)
RERUN_BY_STATUS = (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED)
RERUN_ALL = RequestId("cli:rerun-all")
"""`rerun --all` asks under the same id each time: whoever runs it again, a job is rerun once."""

_STATUSES = ", ".join(JobStatus)
_F = TypeVar("_F", bound=Callable[..., Any])


@click.group()
def jobs() -> None:
    """Show jobs, cancel them, run them again.

    An ID may be shortened to its first characters, at least 8, if no other job has an ID that
    begins with them.
    """


def filter_options(function: _F) -> _F:
    """`--status`, `--queue`, `--kind`, `--correlation-id` and `--namespace`."""
    function = click.option("--correlation-id", help="Only jobs with this correlation id.")(
        function
    )
    function = click.option("--kind", "-k", help="Only jobs of this kind.")(function)
    function = click.option("--queue", "-q", help="Only jobs of this queue.")(function)
    function = click.option(
        "--status",
        "-s",
        multiple=True,
        help=f"Only jobs of this status; may be repeated. One of {_STATUSES}.",
    )(function)
    return namespace_option(function)


def search_options(function: _F) -> _F:
    """`--worker`, `--error`, and the times of enqueue and end. [J12]"""
    for name, meaning in (
        ("--finished-until", "Only jobs that finished before this time, written as for --since."),
        ("--finished-since", "Only jobs that finished at this time or later, as for --since."),
        ("--until", "Only jobs that were enqueued before this time, written as for --since."),
        (
            "--since",
            "Only jobs that were enqueued at this time or later: 24h means 24 hours ago; or"
            " 2026-12-01T08:00Z.",
        ),
    ):
        option = click.option(name, metavar="WHEN", callback=when_value, help=meaning)
        function = option(function)
    function = click.option(
        "--error",
        metavar="TEXT",
        help="Only jobs with this text in the type or message of their last error, in the first"
        " 4096 characters; upper and lower case are the same.",
    )(function)
    function = click.option(
        "--orphaned",
        is_flag=True,
        help="Only jobs whose workers have been silent for two heartbeats.",
    )(function)
    return click.option("--worker", "-w", help="Only jobs that this worker holds or held last.")(
        function
    )


def _searched(
    wanted: JobFilter,
    now: Instant,
    *,
    worker: str | None,
    error: str | None,
    since: When | None,
    until: When | None,
    finished_since: When | None,
    finished_until: When | None,
    orphaned: bool,
) -> JobFilter:
    with reported_errors():
        return msgspec.structs.replace(
            wanted,
            worker=None if worker is None else WorkerId(worker),
            error=error,
            enqueued_since=None if since is None else since.instant(now),
            enqueued_until=None if until is None else until.instant(now),
            finished_since=None if finished_since is None else finished_since.instant(now),
            finished_until=None if finished_until is None else finished_until.instant(now),
            orphaned=orphaned,
        )


_SEARCHES = ("worker", "error", "since", "until", "finished_since", "finished_until", "orphaned")


def _filter(
    *,
    namespace: str,
    status: tuple[str, ...],
    queue: str | None,
    kind: str | None,
    correlation_id: str | None,
) -> JobFilter:
    try:
        statuses = tuple(JobStatus.known(word) for word in status)
    except ValueError as wrong:
        raise click.BadParameter(
            f"no such status; one of {_STATUSES}", param_hint="--status"
        ) from wrong
    with reported_errors():
        return JobFilter(
            namespace=Namespace(namespace),
            statuses=statuses,
            queue=None if queue is None else QueueName(queue),
            kind=None if kind is None else Kind(kind),
            correlation_id=correlation_id,
            bodies=False,
        )


def _wanted(
    job_ids: tuple[str, ...], filters: dict[str, Any], *, among: Sequence[JobStatus], problem: str
) -> JobFilter:
    """The filter of a command that takes IDs or --all, of jobs that have one of these statuses."""
    if job_ids and any(value for name, value in filters.items() if name != "namespace"):
        raise click.UsageError("Filters go with --all.")
    wanted = _filter(**filters)
    if any(status not in among for status in wanted.statuses):
        raise click.BadParameter(problem, param_hint="--status")
    return msgspec.structs.replace(wanted, statuses=wanted.statuses or tuple(among))


# --- Looking -------------------------------------------------------------------------------------


@jobs.command(name="ls")
@url_option
@json_option(list[JobRecord])
@filter_options
@search_options
@click.option(
    "--before",
    metavar="ID",
    help="Only jobs older than this one. For the next page, give the last ID of this page.",
)
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1, MAX_LISTED),
    default=50,
    show_default=True,
    help="At most this many jobs.",
)
def list_jobs(
    url: str | None, as_json: bool, before: str | None, limit: int, **filters: Any
) -> None:
    """List jobs, newest first by the time of enqueue.

    \b
    Examples:
      tenure jobs ls --status failed --kind mail
      tenure jobs ls -s running -s stalled
      tenure jobs ls --error "connection refused" --since 2d
    """
    searches = {name: filters.pop(name) for name in _SEARCHES}
    wanted = msgspec.structs.replace(_filter(**filters), limit=limit)
    with coordination(url) as serving:
        wanted = _searched(wanted, serving.store.now(), **searches)
        if before is not None:
            last = find_job_id(serving, before, wanted.namespace, is_before=True)
            wanted = msgspec.structs.replace(wanted, before=last)
        page = serving.store.views.jobs(wanted)
        found = page.jobs
        now = serving.store.now()
        if not found and wanted.kind is not None:
            _tell_of_unknown_kind(serving, wanted.namespace, wanted.kind)
    if page.next_before is not None and len(found) < limit:
        say(
            f"{MAX_JOBS_READ} jobs were looked at; for those before them, add"
            f" --before {page.next_before}"
        )
    if as_json:
        print_json([job_record(job, now=now, bodies=False) for job in found])
        return
    # A list of all statuses has no room for the errors of a few.
    has_errors = bool(wanted.statuses) and any(job.error for job in found)
    _print_jobs(found, now, has_errors=has_errors)


def _tell_of_unknown_kind(serving: Coordination, namespace: Namespace, kind: str) -> None:
    if not is_known_kind(serving.store, namespace, kind):
        meant = kind_suggestion(serving, namespace, kind)
        say(f"no worker or job has kind {kind} so far.{meant}")


def _print_jobs(found: Sequence[Job], now: Instant, *, has_errors: bool) -> None:
    notes = [lease_note(job, now) for job in found]
    has_notes = any(notes)
    print_table(
        [
            *("ID", "KIND", "QUEUE", "STATUS"),
            *(["NOTE"] if has_notes else []),
            *("ATTEMPT", "ENQUEUED", "FINISHED", "WORKER"),
            *(["ERROR"] if has_errors else []),
        ],
        [
            (
                job.id,
                job.kind,
                job.queue,
                job.status,
                *([note] if has_notes else []),
                job.attempt,
                ago(job.enqueued_at, now),
                ago(job.finished_at, now),
                shown_worker(job),
                *([headline(job)] if has_errors else []),
            )
            for job, note in zip(found, notes, strict=True)
        ],
        optional=("ENQUEUED", "ATTEMPT", "QUEUE", "FINISHED", "WORKER"),
        whole=("NOTE",),
    )


class JobShown(msgspec.Struct, frozen=True, kw_only=True):
    """A job, why it waits if that is known, what became of it if it is a dead letter that was
    redriven or discarded, its history, and what was observed beside it."""

    job: JobRecord
    waiting: str | None
    resolution: ResolutionRecord | None
    events: list[EventRecord]
    observations: list[ObservationRecord]


class JobHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A job's log, and what was observed beside it."""

    events: list[EventRecord]
    observations: list[ObservationRecord]


@jobs.command(name="show")
@url_option
@json_option(JobShown)
@click.option("--bodies", is_flag=True, help="Also show payload, result and checkpoint.")
@job_argument
def show_job(url: str | None, as_json: bool, bodies: bool, namespace: str, job_id: str) -> None:
    """Show a job, why it waits, its history, its error, and what became of a dead letter.

    Lines of the history whose SEQ is a dash are beside the log: a result that was refused, a report
    under another worker's lease, a compensation that succeeded. They changed nothing. With --json
    --bodies, they have the first 4 KiB of what was refused.
    """
    with coordination(url) as serving:
        job = find_job(serving, job_id, namespace)
        events = serving.store.events.load([job.id])[job.id]
        seen = serving.store.jobs.observations(job.id)
        now = serving.store.now()
        shown = job_record(job, now=now, bodies=bodies)
        waiting = why_waiting(serving.store, job)
        resolution = None
        if job.status is JobStatus.DEAD_LETTERED:
            resolution = serving.store.jobs.resolutions([job.id]).get(job.id)
    if as_json:
        history = [event_record(event) for event in events]
        beside = [observation_record(each, bodies=bodies) for each in seen]
        print_json(
            JobShown(
                job=shown,
                waiting=waiting,
                resolution=resolution_record(resolution),
                events=history,
                observations=beside,
            )
        )
        return
    facts = job_facts(job, now=now, bodies=bodies)
    if job.status is JobStatus.DEAD_LETTERED:
        facts += resolution_facts(resolution, now)
    is_unclaimed = job.status in (JobStatus.WAITING, JobStatus.QUEUED)
    facts.append(("waiting" if is_unclaimed else "note", waiting))
    print_facts(facts)
    click.echo()
    print_timeline(events, seen, folded=True)
    print_traceback(job)


@jobs.command(name="events")
@url_option
@json_option(JobHistory)
@job_argument
def job_events(url: str | None, as_json: bool, namespace: str, job_id: str) -> None:
    """Show the stored events of a job's history, one line each.

    The renewals of an attempt are deleted after it has ended; one line `pruned` stands for them.
    Lines whose SEQ is a dash are observations beside the log, as in `tenure jobs show`.
    """
    with coordination(url) as serving:
        job = find_job(serving, job_id, namespace)
        events = serving.store.events.load([job.id])[job.id]
        seen = serving.store.jobs.observations(job.id)
    if as_json:
        beside = [observation_record(each, bodies=False) for each in seen]
        print_json(
            JobHistory(events=[event_record(event) for event in events], observations=beside)
        )
    else:
        print_timeline(events, seen)


@jobs.command(name="artifacts")
@url_option
@json_option(list[ArtifactRecord])
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the artifact to this file.",
)
@job_argument
@click.argument("name", required=False)
def job_artifacts(
    url: str | None,
    as_json: bool,
    output: Path | None,
    namespace: str,
    job_id: str,
    name: str | None,
) -> None:
    """List or fetch the files of a succeeded job.

    With NAME the file of this name is written to stdout, or to the file of -o.
    """
    if output is not None and name is None:
        raise click.UsageError("-o needs a NAME.")
    with coordination(url) as serving:
        job = find_job(serving, job_id, namespace)
        if name is not None:
            _fetch_artifact(serving, job, name, output)
            return
        found = serving.store.artifacts.of_job(job.id)
        now = serving.store.now()
    if as_json:
        print_json([artifact_record(each) for each in found])
        return
    print_table(
        ["NAME", "TYPE", "BYTES", "SHA256", "UPLOADED"],
        [(a.name, a.media_type, a.size, a.sha256, ago(a.ts, now)) for a in found],
    )


def _fetch_artifact(serving: Coordination, job: Job, name: str, output: Path | None) -> None:
    check_name("NAME", name)
    stored = serving.store.artifacts.load(job.id, name)
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


@jobs.command(name="logs")
@url_option
@json_option(list[AttemptLog], followed_shape=OutputPiece)
@click.option("--attempt", "-a", type=click.IntRange(1), help="Only this attempt.")
@click.option(
    "--follow",
    "-f",
    "follows",
    is_flag=True,
    help="Go on until the job has ended, and show what its handler writes meanwhile.",
)
@job_argument
def job_logs(
    url: str | None, as_json: bool, attempt: int | None, follows: bool, namespace: str, job_id: str
) -> None:
    """Show the output of a job's handler, attempt by attempt.

    The output of a running attempt is a few seconds behind. Of each attempt 64 KiB are kept, the
    beginning and the end: -f shows what is between if it comes slowly enough.
    """
    with coordination(url) as serving:
        job = find_job(serving, job_id, namespace)
        if follows:
            follow_output(serving, job, attempt, as_json=as_json)
            return
        logs = [
            log
            for log in serving.store.artifacts.logs(job.id)
            if attempt is None or log.attempt == attempt
        ]
    if as_json:
        print_json(logs)
        return
    if not logs:
        say(why_no_output(job, attempt))
    print_output(job, logs)


# --- Deciding ------------------------------------------------------------------------------------


@jobs.command(name="cancel")
@url_option
@json_option(list[JobOutcome])
@request_options
@filter_options
@click.option(
    "--hard",
    is_flag=True,
    help="End the lease of a running job at once. Its worker kills the handler as soon as it hears"
    " of it.",
)
@click.option("--reason", default="", help="Why; stored with the job.")
@many_options
def cancel_jobs(
    url: str | None,
    as_json: bool,
    request: Request,
    hard: bool,
    reason: str,
    job_ids: tuple[str, ...],
    every: bool,
    yes: bool,
    **filters: Any,
) -> None:
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
    wanted = _wanted(job_ids, filters, among=LIVE, problem="a finished job cannot be cancelled")
    selection = Selection(job_ids=job_ids, every=every, yes=yes, wanted=wanted)
    asked = request.fields()
    mode = CancelMode.HARD if hard else CancelMode.SOFT
    with coordination(url) as serving:
        commands = [
            Cancel(job_id=job_id, actor=client(), **asked, mode=mode, reason=reason)
            for job_id in select(serving, selection, verb="Cancel")
        ]
        execute_all(serving, commands, as_json=as_json, line=_status_line)


@jobs.command(name="rerun")
@url_option
@json_option(list[JobOutcome])
@request_options
@filter_options
@click.option(
    "--again", is_flag=True, help="Also dead letters that were redriven or discarded before."
)
@many_options
def rerun_jobs(
    url: str | None,
    as_json: bool,
    request: Request,
    again: bool,
    job_ids: tuple[str, ...],
    every: bool,
    yes: bool,
    **filters: Any,
) -> None:
    """Make new jobs out of finished ones; prints the new ids.

    The new job has the kind, queue, payload and policy of the old one, which stays as it is. --all
    needs --status, and skips jobs that were already rerun with --all, so that the command is safe
    to run again. For dead letters use `tenure dlq redrive --all`.

    \b
    Examples:
      tenure jobs rerun 01a1e920-e889-7a9c
      tenure jobs rerun --all --status failed --kind mail

    Exits with 0 if each has a new job, 1 if some were refused or you said no, 2 if it could not be
    done.
    """
    if every and not filters["status"]:
        raise click.UsageError("Say which jobs: --all --status failed, cancelled or succeeded.")
    problem = "only jobs that failed, succeeded or were cancelled can be rerun with --all"
    wanted = _wanted(job_ids, filters, among=RERUN_BY_STATUS, problem=problem)
    selection = Selection(job_ids=job_ids, every=every, yes=yes, wanted=wanted)
    asked = request.fields(RERUN_ALL if every else None)

    def command(job_id: JobId) -> Redrive:
        cause = EventCause.RERUN
        return Redrive(job_id=job_id, actor=operator(), **asked, cause=cause, again=again)

    with coordination(url) as serving:

        def rerun_before(page: Sequence[JobId]) -> set[JobId]:
            old_ids = {redriven_id(command(job_id)): job_id for job_id in page}
            new_ids, found = list(old_ids), set()
            for start in range(0, len(new_ids), LOADED_AT_ONCE):
                loaded = serving.store.jobs.read(new_ids[start : start + LOADED_AT_ONCE])
                found |= {old_ids[new_id] for new_id in loaded}
            return found

        chosen = select(serving, selection, verb="Rerun", without=rerun_before)
        commands = [command(job_id) for job_id in chosen]
        execute_all(serving, commands, as_json=as_json, line=id_that_runs, hint=hint_again)


def id_options(function: _F) -> _F:
    """`--url`, `--json`, `--request-id`, `--expected-rev`, `--namespace` and the ids of jobs, at
    least one."""
    function = json_option(list[JobOutcome])(request_options(ids_argument(function)))
    return url_option(function)


def ids_argument(function: _F) -> _F:
    """`ID...`, at least one, and `--namespace`."""
    function = click.argument("job_ids", metavar="ID...", nargs=-1, required=True)(function)
    return namespace_option(function)


@jobs.command(name="retry")
@id_options
def retry_jobs(
    url: str | None,
    as_json: bool,
    request: Request,
    namespace: str,
    job_ids: tuple[str, ...],
) -> None:
    """Run jobs again; prints the ids of the jobs that will run.

    What it does depends on the status of the job:

    \b
    dead_lettered                 makes a new job, marks the old one as redriven
    failed, cancelled, succeeded  makes a new job
    stalled                       sends the job back to its queue
    queued, claimed, running      refuses, and says what to do instead

    For many jobs at once use `tenure jobs rerun --all` or `tenure dlq redrive --all`.

    Exits with 0 if all will run, 1 if some were refused, 2 if it could not be done.
    """
    asked = request.fields()
    with coordination(url) as serving:
        found = [find_job(serving, text, namespace) for text in job_ids]
        commands = [_retry(job, asked) for job in {job.id: job for job in found}.values()]
        execute_all(
            serving,
            commands,
            as_json=as_json,
            line=id_that_runs,
            hint=lambda reply: _instead_of_retry(serving, reply),
        )


def _retry(job: Job, asked: dict[str, Any]) -> Command:
    """A job that has not finished goes back to its queue if it is stalled: the coordinator decides,
    and answers a repeated request as it did before."""
    if not job.status.is_terminal:
        return Requeue(job_id=job.id, actor=operator(), **asked)
    is_dead = job.status is JobStatus.DEAD_LETTERED
    cause = EventCause.REDRIVE if is_dead else EventCause.RERUN
    return Redrive(job_id=job.id, actor=operator(), **asked, cause=cause)


def _instead_of_retry(serving: Coordination, reply: Reply) -> str | None:
    job = reply.job
    if reply.cause is Cause.ALREADY_RESOLVED and job is not None:
        return f"`tenure jobs rerun --again {job.id}` makes another job of it"
    if reply.cause is not Cause.NOT_HELD or job is None:
        return None
    if job.status is JobStatus.WAITING:
        return why_waiting(serving.store, job)
    if job.status is not JobStatus.QUEUED:
        return (
            f"worker {job.owner} has it: wait for its end, or `tenure jobs cancel {job.id}` and"
            " then retry it"
        )
    if job.run_at is not None and job.run_at > serving.store.now():
        return (
            f"it runs {ago(job.run_at, serving.store.now())}; to run it now, `tenure jobs cancel"
            f" {job.id}` and then retry it"
        )
    return why_waiting(serving.store, job) or "a worker will claim it soon"


@jobs.command(name="stall")
@id_options
def stall_jobs(
    url: str | None,
    as_json: bool,
    request: Request,
    namespace: str,
    job_ids: tuple[str, ...],
) -> None:
    """Take jobs from their workers and leave them stalled.

    For a worker that you no longer trust. Its lease is over at once, and its report is discarded.
    The job waits for `tenure jobs requeue`, or, with on_lost="reclaim", for the next claim. This
    costs none of the job's attempts.
    """
    asked = request.fields()
    with coordination(url) as serving:
        commands = [
            Stall(job_id=job_id, actor=operator(), **asked)
            for job_id in find_job_ids(serving, job_ids, namespace)
        ]
        execute_all(serving, commands, as_json=as_json, line=_status_line)


@jobs.command(name="requeue")
@id_options
def requeue_jobs(
    url: str | None,
    as_json: bool,
    request: Request,
    namespace: str,
    job_ids: tuple[str, ...],
) -> None:
    """Send stalled jobs back to their queue.

    A job of a kind with on_lost="hold" stalls when its worker is lost, and waits for this.
    """
    asked = request.fields()
    with coordination(url) as serving:
        commands = [
            Requeue(job_id=job_id, actor=operator(), **asked)
            for job_id in find_job_ids(serving, job_ids, namespace)
        ]
        execute_all(serving, commands, as_json=as_json, line=_status_line, hint=_instead_of_requeue)


def _instead_of_requeue(reply: Reply) -> str | None:
    """What to do with a job that has finished."""
    if reply.job is not None and reply.job.status.is_terminal:
        return f"`tenure jobs retry {reply.job.id}` makes a new job of it"
    return None


@jobs.command(name="dead-letter")
@id_options
@click.option(
    "--reason",
    type=click.Choice([code.value for code in ReasonCode]),
    default=ReasonCode.POLICY_VIOLATION.value,
    show_default=True,
    help="Why it must not run.",
)
@click.option(
    "--stage",
    type=click.Choice([stage.value for stage in Stage]),
    help="At which stage of its work the reason arose.",
)
@click.option("--message", "-m", default="", help="Kept with the job as its error.")
def dead_letter_jobs(
    url: str | None,
    as_json: bool,
    request: Request,
    reason: str,
    stage: str | None,
    message: str,
    namespace: str,
    job_ids: tuple[str, ...],
) -> None:
    """Turn unfinished jobs into dead letters.

    They do not run, unless somebody redrives them.
    """
    asked = request.fields()
    with coordination(url) as serving:
        commands = [
            DeadLetter(
                job_id=job_id,
                actor=operator(),
                **asked,
                reason_code=ReasonCode(reason),
                stage=None if stage is None else Stage(stage),
                message=message,
            )
            for job_id in find_job_ids(serving, job_ids, namespace)
        ]
        execute_all(serving, commands, as_json=as_json, line=_status_line)


def _status_line(command: Command, reply: Reply) -> str:
    assert reply.job is not None
    word = "cancel requested, still " if reply.pending else ""
    return f"{command.job_id}: {word}{coloured(reply.job.status)}"


def id_that_runs(_: Command, reply: Reply) -> str:
    """The new job's id, or that of the job that goes on."""
    assert reply.job is not None
    return reply.job.id


def hint_again(reply: Reply) -> str | None:
    """How to make another job of a dead letter that was resolved before."""
    if reply.cause is not Cause.ALREADY_RESOLVED:
        return None
    return "--again makes a new job of it all the same"


@jobs.command(name="wait")
@url_option
@json_option(JobRecord)
@click.option("--timeout", callback=duration_value, help="Give up after this long, as in 10m.")
@job_argument
def wait_for_job(
    url: str | None, as_json: bool, timeout: Duration | None, namespace: str, job_id: str
) -> None:
    """Wait until a job has finished, and print its result.

    Exits with 0 if it succeeded, 1 otherwise.
    """
    with coordination(url) as serving:
        job = wait_for_end(serving, find_job(serving, job_id, namespace), timeout)
        show_end(serving, job, as_json=as_json)


@jobs.command(name="watch")
@url_option
@json_option(list[JobRecord])
@click.option("--timeout", callback=duration_value, help="Give up after this long, as in 10m.")
@ids_argument
def watch_jobs(
    url: str | None,
    as_json: bool,
    timeout: Duration | None,
    namespace: str,
    job_ids: tuple[str, ...],
) -> None:
    """Show how far jobs are until they have finished.

    On a terminal each job has a line that is redrawn, with a bar if its handler reports progress.
    Elsewhere a line is printed when something has changed. With --json the jobs are printed at the
    end, and the lines go to stderr.

    Exits with 0 if all succeeded, 1 otherwise, 130 if you press Ctrl-C.
    """
    with coordination(url) as serving:
        ids = find_job_ids(serving, job_ids, namespace)
        if len(ids) > MAX_WATCHED:
            many = counted(len(ids), "job")
            refuse(f"{many} are more than {MAX_WATCHED}, the most that can be watched")
        told = going_on(ids)
        with following(interrupted=INTERRUPTED, told=told, output_closed=OUTPUT_CLOSED):
            found = watch_to_the_end(serving, ids, timeout, err=as_json)
        if as_json:
            now = serving.store.now()
            print_json([job_record(job, now=now, bodies=False) for job in found])
    if any(job.status is not JobStatus.SUCCEEDED for job in found):
        sys.exit(REFUSED)
