"""The output of a job's handler: what is kept of it, and what is new since the last look."""

import re
import time
from collections.abc import Sequence
from functools import partial

import click
import msgspec

from tenure.cli.common import INTERRUPTED, find_job
from tenure.cli.following import POLL_S, Reconnecting, following, pause
from tenure.cli.output import print_json_line, printable, say
from tenure.cli.watching import going_on
from tenure.core.attempt_logs import AttemptLog
from tenure.core.counting import counted
from tenure.core.ids import JobId
from tenure.core.job import Job
from tenure.ports import Coordination, JobStore

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
    """Print output as it is written, until the job, or the one attempt, has ended. [LV4]"""
    reading = Reconnecting()
    view = _NewOutput(serving.store, job.id, attempt, as_json=as_json)
    with following(interrupted=INTERRUPTED, told=going_on([job.id])):
        reading.ask(view.show)
        while _may_write(job, attempt):
            pause(POLL_S)
            job = reading.ask(partial(find_job, serving, job.id))
            reading.ask(view.show)
    told = None if job.status.is_terminal else going_on([job.id])
    with following(interrupted=INTERRUPTED, told=told):
        ends_at = time.monotonic() + LAST_OUTPUT_S
        while time.monotonic() < ends_at:
            pause(POLL_S)
            reading.ask(view.show)
    if not view.has_shown:
        say(why_no_output(job, attempt))
    say(f"job {job.id} is {job.status}")


class _NewOutput:
    """Prints what a job, or one attempt of it, has written since the last look."""

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
        """Look once."""
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
        """Print a piece; its last line may go on with the next one."""
        if attempt != self._attempt:
            if self._is_within_line:
                click.echo()
            click.secho(f"attempt {attempt}", bold=True, err=True)
            self._attempt = attempt
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        click.echo("\n".join(map(printable, lines)), nl=False)
        self._is_within_line = lines[-1] != ""
