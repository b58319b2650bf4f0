"""The output of a job's handler: what is kept of it, and what is new since the last look."""

import re
import time
from collections.abc import Sequence
from functools import partial

import click
import msgspec

from tenure.cli.common import find_job
from tenure.cli.following import POLL_S, Reconnecting, pause
from tenure.cli.output import print_json_line, printable, say
from tenure.core.attempt_logs import AttemptLog
from tenure.core.counting import counted
from tenure.core.job import Job
from tenure.ports import Coordination

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


# --- Following -----------------------------------------------------------------------------------


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


def follow_output(serving: Coordination, job: Job, attempt: int | None, *, as_json: bool) -> None:
    """Print output as it is written, until the job, or the one attempt, has ended."""
    reading = Reconnecting()
    seen: dict[int, AttemptLog] = {}
    show = _show_json if as_json else _TextShown().show
    ends_at: float | None = None
    while True:
        logs = reading.ask(partial(serving.store.load_attempt_logs, job.id))
        for log in logs:
            if attempt in (None, log.attempt):
                piece = unseen(seen.get(log.attempt), log)
                if piece:
                    show(log.attempt, piece)
                seen[log.attempt] = log
        if ends_at is not None and time.monotonic() >= ends_at:
            break
        job = reading.ask(partial(find_job, serving, job.id))
        if ends_at is None and not _may_write(job, attempt):
            ends_at = time.monotonic() + LAST_OUTPUT_S
        pause(POLL_S)
    if not seen:
        say(why_no_output(job, attempt))
    say(f"job {job.id} is {job.status}")


def _may_write(job: Job, attempt: int | None) -> bool:
    if job.status.is_terminal:
        return False
    return attempt is None or job.attempt < attempt or is_running(job, attempt)


def _show_json(attempt: int, text: str) -> None:
    print_json_line(OutputPiece(attempt=attempt, text=text))


class _TextShown:
    """Prints pieces as lines, each attempt's under a line on stderr that names it."""

    def __init__(self) -> None:
        self._attempt = 0
        self._is_within_line = False

    def show(self, attempt: int, text: str) -> None:
        """Print a piece; its last line may go on with the next one."""
        if attempt != self._attempt:
            if self._is_within_line:
                click.echo()
            click.secho(f"attempt {attempt}", bold=True, err=True)
            self._attempt = attempt
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        click.echo("\n".join(map(printable, lines)), nl=False)
        self._is_within_line = lines[-1] != ""
