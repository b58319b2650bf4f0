"""How one job is shown: its facts, its timeline, its traceback and the output of its handler."""

import re
import time
from collections.abc import Sequence
from functools import partial

import click
import msgspec

from tenure.cli.errors import INTERRUPTED
from tenure.cli.following import POLL_S, Reconnecting, following, keep_running, pause
from tenure.cli.invocation import Invocation, load_job
from tenure.cli.output import (
    ago,
    exact_and_ago,
    in_words,
    print_json_line,
    print_table,
    printable,
    say,
)
from tenure.core.artifacts import AttemptLog
from tenure.core.events import Event
from tenure.core.ids import JobId, WorkerId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant
from tenure.core.job import HIDDEN, Job
from tenure.core.leases import is_overdue, is_suspect, silent_for
from tenure.core.verdicts import Observation, Resolution
from tenure.core.views.events import TimelineEntry, timeline
from tenure.core.vocabulary import counted
from tenure.ports import JobStore
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
    if job.key_held_until is None:
        return f"{in_words(job.unique_for_us / MICROSECONDS_PER_SECOND)} after the job has ended"
    return exact_and_ago(job.key_held_until, now)


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
    return (*about, first.attempt, first.actor, first.shown_cause)


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

LAST_OUTPUT_S = 3.0
"""A worker may send the last output of an attempt so long after its result."""

_LEFT_OUT = re.compile(r"\n?\[\.\.\. .*?left out \.\.\.\]\n?")


class OutputPiece(msgspec.Struct, frozen=True, kw_only=True):
    """What an attempt wrote since the last piece."""

    attempt: int
    text: str


def is_running(job: Job, attempt: int) -> bool:
    """Whether this attempt of the job has not ended."""
    return job.lease is not None and job.attempt == attempt


def why_no_output(job: Job, attempt: int | None) -> str:
    """Why there is nothing to show, of one attempt or of all."""
    asked_for = attempt or job.attempt
    if job.attempt == 0:
        return f"job {job.id} is {job.status} and has not been attempted yet"
    if asked_for > job.attempt:
        had = counted(job.attempt, "attempt")
        return f"job {job.id} has had {had}; there is no attempt {asked_for} yet"
    if is_running(job, asked_for):
        return (
            f"attempt {asked_for} of job {job.id} runs on {job.owner} and has written nothing so"
            " far; its output is shown here a few seconds after it is written"
        )
    if attempt is None and job.attempt > 1:
        return f"the {counted(job.attempt, 'attempt')} of job {job.id} have written nothing"
    return f"attempt {asked_for} of job {job.id} has written nothing"


def print_output(job: Job, logs: Sequence[AttemptLog]) -> None:
    """The output of attempts, each under a line that names it."""
    for log in logs:
        left_out = f", {counted(log.left_out_bytes, 'byte')} left out" if log.left_out_bytes else ""
        so_far = ", so far" if is_running(job, log.attempt) else ""
        click.secho(f"attempt {log.attempt}{so_far}{left_out}", bold=True, err=True)
        for line in log.text.splitlines():
            click.echo(printable(line))


def unseen(old: AttemptLog | None, new: AttemptLog) -> str:
    """What an attempt wrote after `old`. The kept text has its beginning and its end: if more was
    written than the end has room for, what is left out is said where it was."""
    if old is None:
        return new.text
    if new.text.startswith(old.text):
        return new.text[len(old.text) :]
    written = _written_bytes(new) - _written_bytes(old)
    gaps = list(_LEFT_OUT.finditer(new.text))
    end = new.text[gaps[-1].end() :] if gaps else new.text
    if 0 <= written <= len(end.encode()):
        return end.encode()[len(end.encode()) - written :].decode("utf-8", "replace")
    return new.text[gaps[-1].start() :] if gaps else new.text


def _written_bytes(log: AttemptLog) -> int:
    return len(_LEFT_OUT.sub("", log.text).encode()) + log.left_out_bytes


def follow_output(cli: Invocation, job: Job, attempt: int | None) -> None:
    """Print output as it is written, until the job, or the one attempt, has ended. [LV4]"""
    reading = Reconnecting()
    view = _NewOutput(cli.store, job.id, attempt, as_json=cli.as_json)
    with following(interrupted=INTERRUPTED, told=keep_running([job.id])):
        reading.ask(view.show)
        while _may_write(job, attempt):
            pause(POLL_S)
            job = reading.ask(partial(load_job, cli.serving, job.id))
            reading.ask(view.show)
    told = None if job.status.is_terminal else keep_running([job.id])
    with following(interrupted=INTERRUPTED, told=told):
        ends_at = time.monotonic() + LAST_OUTPUT_S
        while time.monotonic() < ends_at:
            pause(POLL_S)
            reading.ask(view.show)
    if not view.has_shown:
        say(why_no_output(job, attempt))
    say(f"job {job.id} is {job.status}")


class _NewOutput:
    """Prints what a job, or one attempt of it, has written since the last read."""

    def __init__(
        self, store: JobStore, job_id: JobId, attempt: int | None, *, as_json: bool
    ) -> None:
        self._store = store
        self._job_id = job_id
        self._attempt = attempt
        self._print = _print_json if as_json else _TextShown().show
        self._seen: dict[int, AttemptLog] = {}

    @property
    def has_shown(self) -> bool:
        """Whether anything was written."""
        return bool(self._seen)

    def show(self) -> None:
        """Read once."""
        for log in self._store.artifacts.logs(self._job_id):
            if self._attempt in (None, log.attempt):
                piece = unseen(self._seen.get(log.attempt), log)
                if piece:
                    self._print(log.attempt, piece)
                self._seen[log.attempt] = log


def _may_write(job: Job, attempt: int | None) -> bool:
    if job.status.is_terminal:
        return False
    return attempt is None or job.attempt < attempt or is_running(job, attempt)


def _print_json(attempt: int, text: str) -> None:
    print_json_line(OutputPiece(attempt=attempt, text=text))


class _TextShown:
    """Prints pieces as lines, each attempt's under a line on stderr that names it."""

    def __init__(self) -> None:
        self._attempt = 0
        self._is_within_line = False

    def show(self, attempt: int, text: str) -> None:
        """Print a piece; its last line may continue with the next one."""
        if attempt != self._attempt:
            if self._is_within_line:
                click.echo()
            click.secho(f"attempt {attempt}", bold=True, err=True)
            self._attempt = attempt
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        click.echo("\n".join(map(printable, lines)), nl=False)
        self._is_within_line = lines[-1] != ""
