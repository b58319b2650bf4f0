"""How one job is shown: its facts, its timeline, its traceback and the output of its handler."""

from collections.abc import Sequence

import click

from tenure.cli.output import ago, exact_and_ago, in_words, print_table, printable
from tenure.core.artifacts import AttemptLog
from tenure.core.events import Event
from tenure.core.ids import WorkerId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant
from tenure.core.job import HIDDEN, Job
from tenure.core.leases import is_overdue, is_suspect, silent_for
from tenure.core.verdicts import Observation, Resolution
from tenure.core.views.events import TimelineEntry, timeline
from tenure.core.vocabulary import counted
from tenure.protocol.fields import iso

TIMELINE = ("SEQ", "TIME", "EVENT", "CHANGE", "ATTEMPT", "BY", "CAUSE")


def job_facts(job: Job, *, now: Instant, bodies: bool) -> list[tuple[str, object]]:
    """What people want to know about a job first; with its bodies, or that they are hidden."""
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
        ("attempts", _attempts(job)),
        ("enqueued", exact_and_ago(job.enqueued_at, now)),
        ("runs at", exact_and_ago(job.run_at, now)),
        ("expires", None if job.status.is_terminal else exact_and_ago(job.start_by, now)),
        ("worker", shown_worker(job)),
        _lease_fact(job, now),
        ("progress", done),
        ("cancel requested", exact_and_ago(job.cancel_requested_at, now)),
        ("cancel reason", job.cancel_reason),
        ("stalled by", job.stall_cause),
        ("reason", job.reason_code),
        ("stage", job.stage),
        ("error", None if error is None else error.headline),
        ("key", job.dedupe_key),
        ("key taken until", _key_hold(job, now)),
        ("concurrency key", job.concurrency_key),
        ("rate key", job.rate_key),
        ("meta", ", ".join(f"{key}={text}" for key, text in (job.meta or {}).items()) or None),
        ("schedule", _schedule_fact(job)),
        ("correlation", job.correlated_by),
        ("flow", None if job.flow_id is None else f"{job.flow_id} as {job.flow_step}"),
        ("made from", None if job.origin_id is None else f"{job.origin_id} ({job.origin_cause})"),
        ("compensated by", job.compensated_by),
        ("reported by", job.reported_by),
        ("finished", exact_and_ago(job.finished_at, now)),
    ]
    if bodies and job.payload == HIDDEN:
        facts.append(("bodies", "hidden: a token of this role sees no payload, checkpoint, result"))
    elif bodies:
        for name in ("payload", "checkpoint", "result"):
            body = getattr(job, name)
            facts.append((name, None if body is None else body.decode()))
    return facts


def _attempts(job: Job) -> str:
    if job.attempt == 0 and job.status.is_terminal:
        return "0: no worker has claimed it"
    return f"{job.attempt}, failures {job.failures} of {job.policy.max_attempts}"


def _key_hold(job: Job, now: Instant) -> str | None:
    """Until when the key stays taken, or for how long it will."""
    if job.unique_for_us is None:
        return None
    if job.key_free_at is None:
        return f"{in_words(job.unique_for_us / MICROSECONDS_PER_SECOND)} after the job has ended"
    return exact_and_ago(job.key_free_at, now)


def _schedule_fact(job: Job) -> str | None:
    if job.schedule is None or job.scheduled_for is None:
        return None
    return f"{job.schedule}, for {iso(job.scheduled_for)}"


def shown_worker(job: Job) -> WorkerId | None:
    """Who has the job; who had it last, if it has finished."""
    return job.last_owner if job.status.is_terminal else job.owner


def headline(job: Job) -> str | None:
    """The error that a job ended with, in a line."""
    return None if job.error is None else job.error.headline


def resolution_facts(found: Resolution | None, now: Instant) -> list[tuple[str, object]]:
    """What became of a dead letter."""
    if found is None:
        return [("resolved", "no; `tenure dlq redrive` or `tenure dlq discard` it")]
    return [
        ("resolved", f"{found.kind} by {found.actor} at {exact_and_ago(found.ts, now)}"),
        ("new job", found.new_job_id),
        ("note", found.note),
    ]


def _lease_fact(job: Job, now: Instant) -> tuple[str, object]:
    if is_overdue(job, now):
        return "lease ended", exact_and_ago(job.due_at, now)
    return "lease until", exact_and_ago(job.lease_expires_at, now)


def lease_note(job: Job, now: Instant) -> str | None:
    """What a list says about a job whose worker is silent. [L18] [W5]"""
    if is_overdue(job, now):
        return f"lease ended {ago(job.due_at, now)}"
    if is_suspect(job, now):
        return f"suspect, silent {in_words(silent_for(job, now) / MICROSECONDS_PER_SECOND)}"
    return None


def print_timeline(
    events: Sequence[Event], observations: Sequence[Observation], *, folded: bool = False
) -> None:
    """The events of a job, one per line, with the time since the first. A line stands for the
    renewals of an ended attempt that were pruned; `folded`, also for renewals in a row.
    Observations come where their time is, without a seq: they are no part of the log. [U3]"""
    start = events[0].ts if events else None
    entries = timeline(events, observations, folded=folded)
    lines = [_timeline_line(each, start) for each in entries]
    print_table(TIMELINE, lines, optional=("ATTEMPT", "CHANGE"), whole=("EVENT", "CHANGE"))


def _timeline_line(entry: TimelineEntry, start: Instant | None) -> tuple[object, ...]:
    since = None if start is None else _since(start, entry.ts)
    if entry.observation is not None:
        seen = entry.observation
        by = f"job {seen.compensated_by}" if seen.compensated_by is not None else seen.actor
        return ("-", since, seen.type, "beside the log", entry.attempt, by, seen.cause)
    if entry.pruned is not None:
        what, seqs = _renewals(*entry.pruned)
        return (seqs, None, what, None, entry.attempt, entry.actor, "pruned")
    first, last = entry.events[0], entry.events[-1]
    if first is last:
        change = f"{first.from_status or '-'} → {first.to_status}"
        about: tuple[object, ...] = (first.seq, since, first.type, change)
    else:
        what, seqs = _renewals(first.seq, last.seq)
        about = (seqs, since, what, None)
    return (*about, first.attempt, first.actor, first.cause_or_operation)


def _since(start: Instant, ts: Instant) -> str:
    return f"+{(ts - start) / MICROSECONDS_PER_SECOND:.3f}s"


def _renewals(first: int, last: int) -> tuple[str, str]:
    return ("renewal", f"{first}") if first == last else ("renewals", f"{first}–{last}")


def print_traceback(job: Job) -> None:
    """The rest of the last error's message, and its traceback, line by line."""
    error = job.error or job.last_error
    if error is None:
        return
    for text in (error.message.partition("\n")[2].strip("\n"), error.traceback):
        if text:
            click.echo()
            for line in text.splitlines():
                click.echo(printable(line))


# --- Output of its handler -----------------------------------------------------------------------


def is_running(job: Job, attempt: int) -> bool:
    """Whether this attempt of the job has not ended."""
    return job.lease is not None and job.attempt == attempt


def why_no_output(job: Job, attempt: int | None) -> str:
    """Why there is nothing to show, of one attempt or of all."""
    if job.attempt < (attempt or 1):
        had = counted(job.attempt, "attempt")
        return f"job {job.id} is {job.status} and has had {had}"
    which = "" if attempt is None else f"attempt {attempt} of "
    if is_running(job, attempt or job.attempt):
        return (
            f"{which}job {job.id} runs on {job.owner} and has written nothing so far; its output is"
            " shown a few seconds after it is written"
        )
    return f"{which}job {job.id} has written nothing"


def print_output(job: Job, logs: Sequence[AttemptLog]) -> None:
    """The output of attempts, each under a line that names it."""
    for log in logs:
        left_out = f", {counted(log.left_out_bytes, 'byte')} left out" if log.left_out_bytes else ""
        so_far = ", so far" if is_running(job, log.attempt) else ""
        click.secho(f"attempt {log.attempt}{so_far}{left_out}", bold=True, err=True)
        for line in log.text.splitlines():
            click.echo(printable(line))
