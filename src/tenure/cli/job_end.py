"""Waits for a job to finish: reports attempts that fail meanwhile, and how the job ended."""

import time
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

import click

from tenure.cli.common import INTERRUPTED, OUTPUT_CLOSED, refuse
from tenure.cli.following import Reconnecting, following, give_up, pause
from tenure.cli.live_lines import LiveLines
from tenure.cli.output import in_words, print_json, printable, say
from tenure.cli.watching import WaitingReasons, going_on, job_line, progress_words
from tenure.core.counting import counted
from tenure.core.events import Event
from tenure.core.ids import JobId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant
from tenure.core.job import Job
from tenure.core.vocabulary import EventCause, EventType, JobStatus
from tenure.errors import UnknownJob
from tenure.ports import Coordination, JobStore
from tenure.protocol.records import job_record
from tenure.telemetry.unclaimed import why_waiting

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
    told = going_on([job.id])
    with following(interrupted=INTERRUPTED, told=told, output_closed=OUTPUT_CLOSED):
        return _ended(serving, job, timeout)


def _ended(serving: Coordination, job: Job, timeout: Duration | None) -> Job:
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
            _give_up(serving, job)
        reading.ask(partial(shown.show, job))
        pause(WAIT_POLL_S)
        job = reading.ask(partial(_reloaded, serving, job.id))
    shown.erase()
    return job


def _reloaded(serving: Coordination, job_id: JobId) -> Job:
    """The job as it is now; ends the command if it was purged."""
    job = serving.store.jobs.read([job_id]).get(job_id)
    if job is None:
        refuse(str(UnknownJob(job_id)))
    return job


class _ShownProgress:
    """How far a job is that somebody waits for, unless it ends soon: on a terminal in a line that
    is redrawn, elsewhere in a line for each change. [LV1]"""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._lines = LiveLines(err=True)
        self._reasons = WaitingReasons(store)
        self._next = time.monotonic() + FIRST_SHOWN_AFTER_S

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

    def erase(self) -> None:
        """Make room for something else."""
        self._lines.erase()


def _give_up(serving: Coordination, job: Job) -> NoReturn:
    reasons = []
    if job.failures and job.last_error is not None:
        spent = f"{job.failures} of {counted(job.policy.max_attempts, 'attempt')} failed"
        reasons.append(f"{spent}, the last with {job.last_error.headline}")
    why = why_waiting(serving.store, job)
    reasons += [] if why is None else [why]
    problem = f"job {job.id} is still {job.status}" + ": " * bool(reasons) + "; ".join(reasons)
    give_up(problem, told=going_on([job.id]))


def show_end(serving: Coordination, job: Job, *, as_json: bool) -> None:
    """Print the result, or the whole job; end the command if the job did not succeed."""
    if as_json:
        print_json(job_record(job, now=serving.store.now(), bodies=True))
    elif job.result is not None:
        click.echo(printable(job.result.decode()))
    elif job.status is JobStatus.SUCCEEDED:
        say("it succeeded; a token of the role viewer does not see its result")
    if job.status is not JobStatus.SUCCEEDED:
        detail = "" if job.error is None else f": {job.error.headline}"
        refuse(f"job {job.id} is {job.status}{detail}")
