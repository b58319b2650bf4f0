"""Commands that follow a store: pauses between two reads, lost connections, early ends; and how one
waits for a job.

Such a command runs until what it follows has ended, its time is over, the user presses Ctrl-C, or
its output has no reader any more.
"""

import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NoReturn, TypeVar

import click

from tenure.cli.errors import DONE, INTERRUPTED, OUTPUT_CLOSED, discard_output, refuse
from tenure.cli.invocation import Invocation, load_job
from tenure.cli.output import GAP, ProgressLine, print_json, printable, say
from tenure.core.ids import JobId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration
from tenure.core.job import Job
from tenure.core.vocabulary import JobStatus, counted
from tenure.deadlines import retrying_for
from tenure.errors import StoreUnavailable
from tenure.ports import Coordination
from tenure.protocol.records import job_record

POLL_S = 0.5
"""How often a store in this process is asked for news."""

FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 5.0

RETRY_FOR_S = 5.0
"""Before the user reads that the connection is lost; from then on this module sends again."""

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
    reached, or until the timeout is over, and reports each outage once; `line` is taken off the
    terminal before that."""

    def __init__(
        self,
        *,
        timeout: Duration | None = None,
        was_answered: bool = False,
        line: ProgressLine | None = None,
    ) -> None:
        self._give_up_at = None
        if timeout is not None:
            self._give_up_at = time.monotonic() + timeout / MICROSECONDS_PER_SECOND
        self._was_answered = was_answered
        self._line = line or ProgressLine()

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
                    self._line.erase()
                    say(f"lost the connection: {problem.message}; trying again until it is back")
                is_lost = True
                pause(retry_s)
                retry_s = min(2 * retry_s, LONGEST_RETRY_S)
                continue
            if is_lost:
                self._line.erase()
                say("connected again; continues where it was")
            self._was_answered = True
            return answer


@contextmanager
def following(
    *, interrupted: int, remark: str | None = None, output_closed: int = DONE
) -> Iterator[None]:
    """End the command with the exit code `output_closed` when its output has no reader any more
    [LV9]; with `interrupted` when the user presses Ctrl-C, after a line with this `remark`."""
    try:
        yield
    except (OutputClosed, BrokenPipeError):
        discard_output()
        sys.exit(output_closed)
    except KeyboardInterrupt:
        click.echo(err=True)  # the terminal shows ^C in a line of its own
        if remark is not None:
            say(remark)
        sys.exit(interrupted)


def keeps_running(what: str, *, shown_by: str) -> str:
    """What a command says whose user stops waiting: that stops no job. [LV8]"""
    return f"{what} keeps running; `tenure {shown_by}` shows it"


def give_up(problem: str, *, remark: str) -> NoReturn:
    """End the command because its time is over, after a line with this `remark`."""
    say(problem)
    refuse(remark)


# --- A job until its end -------------------------------------------------------------------------

WAIT_POLL_S = 0.1
LINE_EVERY_S = 0.5
ASK_WHY_EVERY_S = 5.0
"""Why an unchanged job waits is asked again after this long: each answer takes several reads."""


def progress_words(job: Job, why: str | None) -> str:
    """How far a job is: its status, its progress, its attempt, its failures, or why it waits."""
    parts = [str(job.status)]
    if job.progress is not None:
        done, total, note = job.progress.done, job.progress.total, job.progress.note
        parts += [f"{done}/{total}" if total else f"{done} done", *([note] if note else [])]
    if job.owner is not None:
        parts.append(f"attempt {job.attempt} on {job.owner}")
    return GAP.join([*parts, *_failures(job), *([] if why is None else [why])])


def _failures(job: Job) -> list[str]:
    if not job.failures or job.last_error is None:
        return []
    spent = f"{job.failures} of {counted(job.policy.max_attempts, 'attempt')} failed"
    return [f"{spent}, the last with {job.last_error.headline}"]


def wait_for_end(serving: Coordination, job_id: JobId, timeout: Duration | None) -> Job:
    """The job once it has ended. Meanwhile stderr shows how far it is. [LV1] A lost store or server
    is waited for. [LV5] Ctrl-C ends the command, and not the job. [LV8]"""
    job = load_job(serving, job_id)
    remark = keeps_running(f"job {job_id}", shown_by=f"jobs wait {job_id}")
    line = ProgressLine(log_every_s=LINE_EVERY_S)
    reading = Reconnecting(timeout=timeout, was_answered=True, line=line)
    why, asked_rev, ask_again_s = None, -1, 0.0
    with following(interrupted=INTERRUPTED, remark=remark, output_closed=OUTPUT_CLOSED):
        while not job.status.is_terminal:
            if reading.is_too_late:
                line.erase()
                why = serving.why_waiting(job)
                reasons = "; ".join([*_failures(job), *([] if why is None else [why])])
                problem = f"job {job.id} is still {job.status}" + (reasons and f": {reasons}")
                give_up(problem, remark=remark)
            if line.is_due:
                if job.rev != asked_rev or time.monotonic() >= ask_again_s:
                    why = reading.ask(partial(serving.why_waiting, job))
                    asked_rev, ask_again_s = job.rev, time.monotonic() + ASK_WHY_EVERY_S
                line.show(f"{job.id}{GAP}{progress_words(job, why)}")
            pause(WAIT_POLL_S)
            job = reading.ask(partial(load_job, serving, job.id))
        line.erase()
        return job


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
