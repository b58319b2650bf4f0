"""Commands that follow a store: pauses between two reads, lost connections, early ends; and how
jobs are shown until they have ended.

Such a command runs until what it follows has ended, its time is over, the user presses Ctrl-C, or
its output has no reader any more.
"""

import select
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NoReturn, TypeVar

import click

from tenure.cli.errors import DONE, INTERRUPTED, OUTPUT_CLOSED, discard_output, refuse
from tenure.cli.invocation import Invocation, load_job
from tenure.cli.output import (
    GAP,
    SHORTEST_ID,
    LiveLines,
    bar,
    in_words,
    print_json,
    printable,
    say,
    shortened,
)
from tenure.core.events import Event
from tenure.core.ids import JobId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant
from tenure.core.job import Job
from tenure.core.vocabulary import EventCause, EventType, JobStatus, counted
from tenure.deadlines import retrying_for
from tenure.errors import StoreUnavailable, UnknownJob
from tenure.ports import Coordination, JobStore
from tenure.protocol.records import job_record
from tenure.telemetry.unclaimed import why_waiting

POLL_S = 0.5
"""How often a store in this process is asked for news."""

FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 5.0

RETRY_FOR_S = 5.0
"""Before it is said that the connection is lost; from then on this module sends again."""

_T = TypeVar("_T")


class OutputClosed(Exception):
    """Stdout has no reader any more: there is nothing left to do, and nothing to say."""


def pause(span_s: float) -> None:
    """Wait for this long. Raises `OutputClosed` if the reader of stdout goes away meanwhile:
    `tenure events -f | head` would otherwise end at the next event only."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # an object of a test, without a file
        output = -1
    watch = select.poll()
    if output >= 0:
        watch.register(output, 0)  # closed pipes are reported without being asked for
    if watch.poll(span_s * 1000):
        raise OutputClosed


class Reconnecting:
    """Asks a store. After the first answer it asks again for as long as the store cannot be
    reached, or until the timeout is over, and says so once for each outage. Before it says anything
    it calls `make_room`, which takes lines that change off the terminal."""

    def __init__(
        self,
        *,
        timeout: Duration | None = None,
        was_answered: bool = False,
        make_room: Callable[[], None] = lambda: None,
    ) -> None:
        self._give_up_at = None
        if timeout is not None:
            self._give_up_at = time.monotonic() + timeout / MICROSECONDS_PER_SECOND
        self._was_answered = was_answered
        self._make_room = make_room

    @property
    def is_too_late(self) -> bool:
        """Whether the timeout is over."""
        return self._give_up_at is not None and time.monotonic() >= self._give_up_at

    def ask(self, question: Callable[[], _T]) -> _T:
        """The answer. Fails at once if the store cannot be reached for the first question."""
        retry_s = FIRST_RETRY_S
        is_lost = False
        while True:
            try:
                with retrying_for(RETRY_FOR_S):
                    answer = question()
            except StoreUnavailable as problem:
                if not self._was_answered or self.is_too_late:
                    raise
                if not is_lost:
                    self._make_room()
                    say(f"lost the connection: {problem.message}; trying again until it is back")
                is_lost = True
                pause(retry_s)
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)
                continue
            if is_lost:
                self._make_room()
                say("connected again; continues where it was")
            self._was_answered = True
            return answer


@contextmanager
def following(
    *, interrupted: int, told: str | None = None, output_closed: int = DONE
) -> Iterator[None]:
    """End the command with the exit code `output_closed` when its output has no reader any more
    [LV9]; with `interrupted` when the user presses Ctrl-C, after a line that says `told`."""
    try:
        yield
    except (OutputClosed, BrokenPipeError):
        discard_output()
        sys.exit(output_closed)
    except KeyboardInterrupt:
        click.echo(err=True)  # the terminal shows ^C in a line of its own
        if told is not None:
            say(told)
        sys.exit(interrupted)


def keeps_running(what: str, *, shown_by: str) -> str:
    """What a command says whose user stops waiting: that stops no job. [LV8]"""
    return f"{what} keeps running; `tenure {shown_by}` shows it"


def keep_running(ids: Sequence[JobId]) -> str:
    """The same about jobs."""
    if len(ids) == 1:
        return keeps_running(f"job {ids[0]}", shown_by=f"jobs watch {ids[0]}")
    return "the jobs that have not ended keep running; the same command shows them again"


def give_up(problem: str, *, told: str) -> NoReturn:
    """End the command because its time is over, after a line that says `told`."""
    say(problem)
    refuse(told)


# --- A job while it runs -------------------------------------------------------------------------

MAX_WATCHED = 50
"""Jobs that one command watches, because this many can be read with their bodies at a time."""

ASK_WHY_EVERY_S = 5.0
"""Why a job waits takes several reads: they are not repeated for each read of the job."""


def progress_words(job: Job, why: str | None, *, now: Instant | None) -> str:
    """What is said after a job's status: the bar, the attempt, or why it waits or has ended.
    Without `now`, nothing that changes while the job does not."""
    if job.status.is_terminal:
        return _end_words(job)
    parts = []
    if job.progress is not None:
        done, total, note = job.progress.done, job.progress.total, job.progress.note
        parts += [bar(done, total)] if total and now is not None else []
        parts.append(f"{done}/{total}" if total else f"{done} done")
        parts += [note] if note else []
    if job.owner is not None:
        parts.append(f"attempt {job.attempt} on {job.owner}")
        since = job.started_at or job.claimed_at
        if since is not None and now is not None:
            parts.append(in_words(max(0, now - since) / MICROSECONDS_PER_SECOND))
    parts += [*_failures(job), *([] if why is None else [why])]
    return GAP.join(parts)


def _failures(job: Job) -> list[str]:
    if not job.failures or job.last_error is None:
        return []
    spent = f"{job.failures} of {counted(job.policy.max_attempts, 'attempt')} failed"
    return [f"{spent}, the last with {job.last_error.headline}"]


def _end_words(job: Job) -> str:
    parts = []
    if job.finished_at is not None:
        took_s = (job.finished_at - job.enqueued_at) / MICROSECONDS_PER_SECOND
        parts.append(f"after {in_words(max(0.0, took_s))}, attempts {job.attempt}")
    if job.error is not None:
        parts.append(job.error.headline)
    return GAP.join(parts)


def job_line(job: Job, why: str | None, now: Instant | None) -> tuple[str, str, str]:
    """A job's line: its id and kind, its status, and how far it is. Without `now` the id is whole,
    and nothing is shown that changes while the job does not."""
    job_id = job.id if now is None else shortened(job.id, SHORTEST_ID)
    return f"{job_id}{GAP}{job.kind}", job.status, progress_words(job, why, now=now)


class WaitingReasons:
    """Why jobs wait, asked again only every few seconds."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._known: dict[JobId, tuple[int, float, str | None]] = {}

    def of(self, job: Job) -> str | None:
        """Why the job waits; None if it does not, or no reason is known."""
        if job.status.is_terminal:
            return None
        rev, asked_at, reason = self._known.get(job.id, (-1, 0.0, None))
        if rev != job.rev or time.monotonic() - asked_at >= ASK_WHY_EVERY_S:
            reason = why_waiting(self._store, job)
            self._known[job.id] = (job.rev, time.monotonic(), reason)
        return reason


def watch_to_the_end(
    serving: Coordination, ids: Sequence[JobId], timeout: Duration | None, *, err: bool
) -> list[Job]:
    """Show a line for each job until all have ended. Ends the command after the timeout, and
    because of Ctrl-C."""
    with _until_ended(ids):
        lines = LiveLines(err=err)
        reading = Reconnecting(timeout=timeout, make_room=lines.erase)
        store, reasons = serving.store, WaitingReasons(serving.store)
        while True:
            loaded = reading.ask(lambda: serving.read_jobs(ids))
            found = [loaded.get(each) or refuse(str(UnknownJob(each))) for each in ids]
            now = reading.ask(store.now) if lines.is_terminal else None
            lines.show([job_line(job, reading.ask(partial(reasons.of, job)), now) for job in found])
            live = [job.id for job in found if not job.status.is_terminal]
            if not live:
                return found
            if reading.is_too_late:
                problem = f"not finished in time: {len(live)} of {counted(len(found), 'job')}"
                give_up(problem, told=keep_running(live))
            pause(POLL_S)


# --- The end of a job ----------------------------------------------------------------------------

WAIT_POLL_S = 0.1
FIRST_SHOWN_AFTER_S = 1.0
SHOWN_EVERY_S = 0.5

_LOST = {
    EventCause.ATTEMPT_FAILED: "failed",
    EventCause.LEASE_EXPIRED: "was lost: its worker sent no heartbeat before the lease ended",
    EventCause.OUTAGE: "was lost in an outage of the store",
    EventCause.TIMEOUT: "was stopped: it took longer than its timeout",
    EventCause.START_TIMEOUT: "was lost: it was claimed and never started",
    EventCause.OPERATOR: "was ended by an operator: the job is stalled",
}


def lost_attempts(events: Sequence[Event], *, after: int, now: Instant) -> list[str]:
    """A line for each attempt that ended without ending the job, from events later than `after`:
    what went wrong, and when the next attempt begins. Attempts that a worker gave back unharmed are
    left out."""
    lines = []
    for event, next_event in zip(events, [*events[1:], None], strict=True):
        if event.seq <= after or event.type is not EventType.STALLED or event.cause not in _LOST:
            continue
        error = event.payload.error
        what = _LOST[event.cause] + ("" if error is None else f": {error.headline}")
        next_at = None if next_event is None else next_event.payload.run_at
        if next_at is not None:
            pause_s = max(0, next_at - now) / MICROSECONDS_PER_SECOND
            what += f"; the next begins in {in_words(pause_s)}" if pause_s else "; the next is due"
        lines.append(f"attempt {event.attempt} {what}")
    return lines


def wait_for_end(serving: Coordination, job: Job, timeout: Duration | None) -> Job:
    """The job once it has ended. Meanwhile stderr shows how far it is, on a terminal in a line that
    is redrawn, and reports failed attempts. A lost store or server is waited for. [LV5] Ctrl-C ends
    the command, and not the job. [LV8]"""
    with _until_ended([job.id]):
        store = serving.store
        shown = _ShownProgress(store)
        reading = Reconnecting(timeout=timeout, was_answered=True, make_room=shown.erase)
        told, failures = job.rev, job.failures
        while not job.status.is_terminal:
            if job.failures > failures:
                failures = job.failures
                events = reading.ask(partial(store.events.load, [job.id]))[job.id]
                now = reading.ask(store.now)
                shown.erase()
                for line in lost_attempts(events, after=told, now=now):
                    say(line)
                told = events[-1].seq
            if reading.is_too_late:
                shown.erase()
                why = why_waiting(store, job)
                reasons = "; ".join([*_failures(job), *([] if why is None else [why])])
                problem = f"job {job.id} is still {job.status}" + (reasons and f": {reasons}")
                give_up(problem, told=keep_running([job.id]))
            reading.ask(partial(shown.show, job))
            pause(WAIT_POLL_S)
            job = reading.ask(partial(load_job, serving, job.id))
        shown.erase()
        return job


@contextmanager
def _until_ended(ids: Sequence[JobId]) -> Iterator[None]:
    with following(interrupted=INTERRUPTED, told=keep_running(ids), output_closed=OUTPUT_CLOSED):
        yield


class _ShownProgress:
    """How far the job of a wait is, unless it ends soon: on a terminal in a line that is redrawn,
    elsewhere in a line for each change. [LV1]"""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._lines = LiveLines(err=True)
        self._reasons = WaitingReasons(store)
        self._next = time.monotonic() + FIRST_SHOWN_AFTER_S
        self.erase = self._lines.erase

    def show(self, job: Job) -> None:
        """Show it, unless it was shown a moment ago."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SHOWN_EVERY_S
        why = self._reasons.of(job)
        if self._lines.is_terminal:
            words = progress_words(job, why, now=self._store.now())
            self._lines.show([("", job.status, words)])
        else:
            self._lines.show([job_line(job, why, now=None)])


def show_end(cli: Invocation, job: Job) -> None:
    """Print the result, or the whole job; end the command if the job did not succeed."""
    if cli.as_json:
        print_json(job_record(job, now=cli.now, bodies=True))
    elif job.result is not None:
        click.echo(printable(job.result.decode()))
    elif job.status is JobStatus.SUCCEEDED:
        say("it succeeded; a token of the role viewer does not see its result")
    if job.status is not JobStatus.SUCCEEDED:
        detail = "" if job.error is None else f": {job.error.headline}"
        refuse(f"job {job.id} is {job.status}{detail}")
