"""`tenure jobs …`: look at jobs, stop them, let them go again."""

import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from tenure.cli.common import (
    accepted,
    administration,
    client,
    duration_value,
    find_job,
    json_option,
    namespace_option,
    new_request_id,
    operator,
    refuse,
    request_id_option,
    url_option,
)
from tenure.cli.job_end import show_end, wait_for_end
from tenure.cli.output import (
    coloured,
    print_facts,
    print_json,
    print_table,
    print_traceback,
    printable,
)
from tenure.core.commands import Cancel, DeadLetter, Redrive, Requeue
from tenure.core.events import Event, digest
from tenure.core.ids import Actor, JobId, Kind, Namespace, QueueName
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration
from tenure.core.job import Job
from tenure.core.validation import check_job_id
from tenure.core.vocabulary import (
    RENEWALS,
    CancelMode,
    EventCause,
    EventType,
    JobStatus,
    ReasonCode,
    Stage,
    parse_status,
)
from tenure.ports import Administration, JobFilter
from tenure.protocol.fields import iso
from tenure.protocol.records import (
    ArtifactRecord,
    EventRecord,
    JobRecord,
    OutputRecord,
    artifact_record,
    event_record,
    job_record,
    output_record,
)
from tenure.telemetry.unclaimed import why_waiting

MAX_LISTED = 500
_STATUSES = ", ".join(JobStatus)


@click.group()
def jobs() -> None:
    """Look at jobs and decide about them."""


@jobs.command(name="ls")
@url_option
@json_option(list[JobRecord])
@namespace_option
@click.option(
    "--status", "-s", multiple=True, help=f"Only this, one of {_STATUSES}; may be repeated."
)
@click.option("--queue", "-q")
@click.option("--kind", "-k")
@click.option("--correlation-id")
@click.option("--before", help="Older than this job id: the next page.")
@click.option("--limit", "-n", type=click.IntRange(1, MAX_LISTED), default=50, show_default=True)
def list_jobs(
    url: str | None,
    as_json: bool,
    namespace: str,
    status: tuple[str, ...],
    queue: str | None,
    kind: str | None,
    correlation_id: str | None,
    before: str | None,
    limit: int,
) -> None:
    """List jobs, newest first.

    In the order of their ids, which begin with the time they were made. A job that was redriven,
    rerun, enqueued by a handler or compensates has an id derived from its origin's: it stands
    beside its origin.
    """
    try:
        statuses = tuple(parse_status(word) for word in status)
    except ValueError as wrong:
        raise click.BadParameter(
            f"no such status; one of {_STATUSES}", param_hint="--status"
        ) from wrong
    with administration(url) as serving:
        if before is not None:
            check_job_id("--before", before)
        found = serving.list_jobs(
            JobFilter(
                namespace=Namespace(namespace),
                statuses=statuses,
                queue=None if queue is None else QueueName(queue),
                kind=None if kind is None else Kind(kind),
                correlation_id=correlation_id,
                before=None if before is None else JobId(before),
                limit=limit,
            )
        )
        now = serving.now()
    if as_json:
        print_json([job_record(job, now=now, bodies=False) for job in found])
        return
    _print_jobs(found)


def _print_jobs(found: Sequence[Job]) -> None:
    print_table(
        ["ID", "KIND", "QUEUE", "STATUS", "ATTEMPT", "OWNER", "ENQUEUED", "FINISHED"],
        [
            (
                job.id,
                job.kind,
                job.queue,
                job.status,
                job.attempt,
                job.owner,
                iso(job.enqueued_at),
                iso(job.finished_at),
            )
            for job in found
        ],
    )


class JobShown(msgspec.Struct, frozen=True, kw_only=True):
    """A job, what keeps it from running if it is queued and anything is known, and its log."""

    job: JobRecord
    waiting: str | None
    events: list[EventRecord]


@jobs.command(name="show")
@url_option
@json_option(JobShown)
@click.option("--bodies", is_flag=True, help="Also show payload, result and checkpoint.")
@click.argument("job_id", metavar="ID")
def show_job(url: str | None, as_json: bool, bodies: bool, job_id: str) -> None:
    """Show a job and its timeline."""
    with administration(url) as serving:
        job = find_job(serving, job_id)
        events = serving.load_events(job.id)
        hidden = bodies and hides_bodies(job, events)
        shown = job_record(job, now=serving.now(), bodies=bodies and not hidden)
        waiting = why_waiting(serving, job)
    if as_json:
        history = [event_record(event) for event in events]
        print_json(JobShown(job=shown, waiting=waiting, events=history))
        return
    print_facts([*job_facts(job, bodies=bodies, hidden=hidden), ("waiting", waiting)])
    click.echo()
    print_timeline(events, folded=True)
    print_traceback(job)


def job_facts(job: Job, *, bodies: bool, hidden: bool) -> list[tuple[str, object]]:
    """What people want to know of a job first; with its bodies, or that they are hidden."""
    progress = job.progress
    done = None
    if progress is not None:
        done = f"{progress.done}/{progress.total or '?'} {progress.note}".rstrip()
    error = job.error or job.last_error
    facts: list[tuple[str, object]] = [
        ("id", job.id),
        ("kind", job.kind),
        ("queue", job.queue),
        ("status", job.status),
        ("attempts", f"{job.attempt}, failures {job.failures} of {job.policy.max_attempts}"),
        ("enqueued", iso(job.enqueued_at)),
        ("runs at", iso(job.run_at)),
        ("owner", job.owner),
        ("lease until", iso(job.lease_expires_at)),
        ("progress", done),
        ("cancel requested", iso(job.cancel_requested_at)),
        ("cancel reason", job.cancel_reason),
        ("stalled by", job.stall_cause),
        ("reason", job.reason_code),
        ("stage", job.stage),
        ("error", None if error is None else error.headline),
        ("key", job.dedupe_key),
        ("correlation", job.correlation_id),
        ("made from", None if job.origin_id is None else f"{job.origin_id} ({job.origin_cause})"),
        ("finished", iso(job.finished_at)),
    ]
    if hidden:
        facts.append(("bodies", "hidden: a token of this role sees no payload, checkpoint, result"))
    elif bodies:
        for name in ("payload", "checkpoint", "result"):
            body = getattr(job, name)
            facts.append((name, None if body is None else body.decode()))
    return facts


def hides_bodies(job: Job, events: Sequence[Event]) -> bool:
    """Whether a server kept the bodies of a job from whoever asks. A payload that is left out reads
    as null. The first event tells it from one that is null: it has the payload's digest, and for
    a viewer, who sees no digests, none. [H46]"""
    if job.status is JobStatus.SUCCEEDED and job.result is None:
        return True
    return bool(events) and events[0].payload.sha256 != digest(job.payload)


def print_timeline(events: Sequence[Event], *, folded: bool = False) -> None:
    """The events of a job below each other, with the time since the first, and where renewals of
    an ended attempt were pruned; `folded`, renewals that follow each other are one line."""
    rows: list[tuple[object, ...]] = []
    holder: Actor | None = None  # whoever claimed the attempt has renewed it
    seen = 0
    for run in _runs(events, folded=folded):
        first, last = run[0], run[-1]
        if first.seq > seen + 1:
            what, seqs = _renewals(seen + 1, first.seq - 1)
            rows.append((seqs, None, what, None, first.attempt, holder, "pruned"))
        if first.type is EventType.CLAIMED:
            holder = first.actor
        since = f"+{(last.ts - events[0].ts) / MICROSECONDS_PER_SECOND:.3f}s"
        if first is last:
            change = f"{first.from_status or '-'} → {first.to_status}"
            about: tuple[object, ...] = (first.seq, since, first.type, change)
        else:
            what, seqs = _renewals(first.seq, last.seq)
            about = (seqs, since, what, None)
        rows.append((*about, first.attempt, first.actor, first.cause))
        seen = last.seq
    print_table(["SEQ", "TIME", "EVENT", "CHANGE", "ATTEMPT", "BY", "CAUSE"], rows)


def _runs(events: Sequence[Event], *, folded: bool) -> list[list[Event]]:
    """Every event alone; `folded`, the renewals between two other events together."""
    runs: list[list[Event]] = []
    for event in events:
        last = runs[-1][-1] if runs else None
        if folded and last is not None and {last.type, event.type} <= RENEWALS:
            runs[-1].append(event)
        else:
            runs.append([event])
    return runs


def _renewals(first: int, last: int) -> tuple[str, str]:
    return ("renewal", f"{first}") if first == last else ("renewals", f"{first}–{last}")


@jobs.command(name="events")
@url_option
@json_option(list[EventRecord])
@click.argument("job_id", metavar="ID")
def job_events(url: str | None, as_json: bool, job_id: str) -> None:
    """Show a job's history."""
    with administration(url) as serving:
        events = serving.load_events(find_job(serving, job_id).id)
    if as_json:
        print_json([event_record(event) for event in events])
    else:
        print_timeline(events)


@jobs.command(name="artifacts")
@url_option
@json_option(list[ArtifactRecord])
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the artifact to this file.",
)
@click.argument("job_id", metavar="ID")
@click.argument("name", required=False)
def job_artifacts(
    url: str | None, as_json: bool, output: Path | None, job_id: str, name: str | None
) -> None:
    """List the files a succeeded job left behind, or fetch the one called NAME."""
    if output is not None and name is None:
        raise click.UsageError("-o needs a NAME.")
    with administration(url) as serving:
        job = find_job(serving, job_id)
        if name is not None:
            _fetch_artifact(serving, job, name, output)
            return
        found = serving.list_artifacts(job.id)
    if as_json:
        print_json([artifact_record(each) for each in found])
        return
    print_table(
        ["NAME", "TYPE", "BYTES", "SHA256", "STAGED"],
        [(a.name, a.media_type, a.size, a.sha256, iso(a.ts)) for a in found],
    )


def _fetch_artifact(serving: Administration, job: Job, name: str, output: Path | None) -> None:
    stored = serving.load_artifact(job.id, name)
    if stored is None:
        refuse(f"job {job.id}, which is {job.status}, has no artifact {name}")
    if output is not None:
        output.write_bytes(stored.body)
        click.echo(f"{output}: {stored.artifact.size} bytes", err=True)
    elif sys.stdout.isatty():
        refuse(f"{name} may hold anything, and this is a terminal; give -o FILE, or redirect it")
    else:
        sys.stdout.buffer.write(stored.body)
        sys.stdout.buffer.flush()  # here, where a full disk can still be said


@jobs.command(name="logs")
@url_option
@json_option(list[OutputRecord])
@click.option("--attempt", "-a", type=click.IntRange(1), help="Only this attempt.")
@click.argument("job_id", metavar="ID")
def job_logs(url: str | None, as_json: bool, attempt: int | None, job_id: str) -> None:
    """Show what a job's handler wrote, attempt by attempt.

    Of an attempt that runs it is what it has written so far, a few seconds ago.
    """
    with administration(url) as serving:
        job = find_job(serving, job_id)
        logs = [
            log
            for log in serving.load_attempt_logs(job.id)
            if attempt is None or log.attempt == attempt
        ]
    if as_json:
        print_json([output_record(log) for log in logs])
        return
    if not logs:
        click.echo(f"tenure: {_why_no_output(job, attempt)}", err=True)
    for log in logs:
        left_out = f", {log.left_out_bytes} bytes left out" if log.left_out_bytes else ""
        so_far = ", so far" if _is_running(job, log.attempt) else ""
        click.secho(f"attempt {log.attempt}{so_far}{left_out}", bold=True, err=True)
        for line in log.text.splitlines():
            click.echo(printable(line))


def _is_running(job: Job, attempt: int) -> bool:
    return job.lease is not None and job.attempt == attempt


def _why_no_output(job: Job, attempt: int | None) -> str:
    """Why there is nothing to show, of one attempt or of all."""
    asked_for = attempt or job.attempt
    if job.attempt == 0:
        return f"job {job.id} is {job.status} and has not been attempted yet"
    if asked_for > job.attempt:
        return f"job {job.id} has had {job.attempt} attempts; there is no attempt {asked_for} yet"
    if _is_running(job, asked_for):
        return (
            f"attempt {asked_for} of job {job.id} runs on {job.owner} and has written nothing so"
            " far; what it writes can be read a few seconds later"
        )
    if attempt is None and job.attempt > 1:
        return f"the {job.attempt} attempts of job {job.id} have written nothing"
    return f"attempt {asked_for} of job {job.id} has written nothing"


@jobs.command(name="cancel")
@url_option
@request_id_option
@click.option(
    "--hard",
    is_flag=True,
    help="Revoke the lease at once instead of asking; the handler is killed when its worker hears "
    "of it, with the next heartbeat.",
)
@click.option("--reason", default="", help="Kept with the job.")
@click.argument("job_id", metavar="ID")
def cancel_job(
    url: str | None, request_id: str | None, hard: bool, reason: str, job_id: str
) -> None:
    """Cancel a job: at once if it does not run, else softly with a grace, or --hard."""
    with administration(url) as serving:
        command = Cancel(
            job_id=JobId(job_id),
            actor=client(),
            request_id=new_request_id(request_id),
            mode=CancelMode.HARD if hard else CancelMode.SOFT,
            reason=reason,
        )
        reply = accepted(serving.execute(command), command.job_id)
    assert reply.job is not None
    word = "cancel requested, still " if reply.pending else ""
    click.echo(f"{job_id}: {word}{coloured(reply.job.status)}")


@jobs.command(name="rerun")
@url_option
@request_id_option
@click.option("--again", is_flag=True, help="Also a dead letter that was redriven or discarded.")
@click.argument("job_id", metavar="ID")
def rerun_job(url: str | None, request_id: str | None, again: bool, job_id: str) -> None:
    """Make a new job out of a finished one; prints the new id."""
    with administration(url) as serving:
        command = Redrive(
            job_id=JobId(job_id),
            actor=operator(),
            request_id=new_request_id(request_id),
            cause=EventCause.RERUN,
            again=again,
        )
        reply = accepted(serving.execute(command), command.job_id)
    assert reply.job is not None
    click.echo(reply.job.id)


@jobs.command(name="requeue")
@url_option
@request_id_option
@click.argument("job_id", metavar="ID")
def requeue_job(url: str | None, request_id: str | None, job_id: str) -> None:
    """Let a held job (stalled, on_lost=hold) go back to its queue."""
    with administration(url) as serving:
        command = Requeue(
            job_id=JobId(job_id), actor=operator(), request_id=new_request_id(request_id)
        )
        reply = accepted(serving.execute(command), command.job_id, hint=_instead_of_requeue)
    assert reply.job is not None
    click.echo(f"{job_id}: {coloured(reply.job.status)}")  # a repeated request may find it running


def _instead_of_requeue(job: Job) -> str | None:
    """What to do with a job that is not held."""
    if job.status is JobStatus.DEAD_LETTERED:
        return f"`tenure dlq redrive {job.id}` makes a new job of it"
    if job.status.is_terminal:
        return f"`tenure jobs rerun {job.id}` makes a new job of it"
    return None


@jobs.command(name="dead-letter")
@url_option
@request_id_option
@click.option(
    "--reason",
    type=click.Choice([code.value for code in ReasonCode]),
    default=ReasonCode.POLICY_VIOLATION.value,
    show_default=True,
)
@click.option("--stage", type=click.Choice([stage.value for stage in Stage]))
@click.option("--message", "-m", default="", help="Kept with the job.")
@click.argument("job_id", metavar="ID")
def dead_letter_job(
    url: str | None,
    request_id: str | None,
    reason: str,
    stage: str | None,
    message: str,
    job_id: str,
) -> None:
    """Take a live job out of circulation."""
    with administration(url) as serving:
        command = DeadLetter(
            job_id=JobId(job_id),
            actor=operator(),
            request_id=new_request_id(request_id),
            reason_code=ReasonCode(reason),
            stage=None if stage is None else Stage(stage),
            message=message,
        )
        accepted(serving.execute(command), command.job_id)
    click.echo(f"{job_id}: {coloured('dead_lettered')}")


@jobs.command(name="wait")
@url_option
@json_option(JobRecord)
@click.option("--timeout", callback=duration_value, help="Give up after this long, as in 10m.")
@click.argument("job_id", metavar="ID")
def wait_for_job(url: str | None, as_json: bool, timeout: Duration | None, job_id: str) -> None:
    """Wait until a job is finished. Exits with 0 if it succeeded, 1 otherwise."""
    with administration(url) as serving:
        job = wait_for_end(serving, find_job(serving, job_id), timeout)
        show_end(serving, job, as_json=as_json)
