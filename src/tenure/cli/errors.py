"""How a command ends other than well: exit codes, one line on stderr, and why a job was refused.

Exit codes: 0 done, 1 refused or not successful, 2 could not run (usage, store, schema), 130 Ctrl-C
while jobs were changed or watched, 141 the output of a command that waits for jobs has no
reader.
"""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from tenure.cli.output import printable, say
from tenure.core.commands import Command, Redrive
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import Cause, JobStatus, counted
from tenure.errors import Conflict, RequestRefused, TenureError, UnknownJob, UnreadableRow
from tenure.protocol.fields import iso
from tenure.protocol.replies import ProblemCode

DONE, REFUSED, COULD_NOT_RUN = 0, 1, 2
INTERRUPTED = 128 + signal.SIGINT
OUTPUT_CLOSED = 128 + signal.SIGPIPE


class Refusal(click.ClickException):
    """The request was understood and refused: exit code 1."""

    exit_code = REFUSED

    def __init__(self, message: str, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self._details = details

    def show(self, file: Any = None) -> None:
        """`tenure: what happened; what to do` on stderr, and the details below it."""
        say(self.message)
        for line in self._details:
            click.echo(printable(line), err=True)


class CouldNotRun(Refusal):
    """The command could not do its work: exit code 2."""

    exit_code = COULD_NOT_RUN


class Interrupted(Refusal):
    """The user pressed Ctrl-C: exit code 130, as shells report it."""

    exit_code = INTERRUPTED


def refuse(message: str, details: Sequence[str] = ()) -> NoReturn:
    """End with exit code 1."""
    raise Refusal(message, details)


@contextmanager
def reported_errors(*, out_of_scope: type[Refusal] = Refusal) -> Iterator[None]:
    """Errors of Tenure end the command in one line with exit code 2; but what the token, or the
    status of a job or flow, does not allow is refused with 1."""
    try:
        yield
    except (Conflict, UnknownJob, UnreadableRow) as refused:
        raise Refusal(str(refused)) from refused
    except RequestRefused as refused:
        is_refusal = refused.reason == ProblemCode.OUT_OF_SCOPE
        raise (out_of_scope if is_refusal else CouldNotRun)(str(refused)) from refused
    except TenureError as problem:
        raise CouldNotRun(str(problem)) from problem


def discard_output() -> None:
    """Send what is still buffered to /dev/null: Python would try to write it once more at exit, and
    report that with a message and an exit code of its own."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())


# --- Refused jobs --------------------------------------------------------------------------------

_WORDS = {
    Cause.COMPENSATION_PROTECTED: "it compensates another job and cannot be cancelled",
    Cause.COMPENSATION_PENDING: "its compensation has not ended yet; wait for that",
    Cause.IDEMPOTENCY_KEY_REUSE: "this request id was used for a different request",
    Cause.PART_OF_FLOW: "it is a job of a flow",
    Cause.DEDUPE_KEY_HELD: "its dedupe key is held by a job out of this token's scope",  # [D6]
}
_STATUS_WORDS = {
    Cause.JOB_FINISHED: "it is {} already",
    Cause.NOT_FINISHED: "it is {} and has not finished",
    Cause.NOT_HELD: "it is {}, not stalled",
    Cause.NOT_LEASED: "it is {}: no worker has it",
    Cause.NOT_DEAD_LETTERED: "it is {}, not a dead letter",
    Cause.REVISION_MISMATCH: "it is {} and has rev {} now",
}


def refusal(command: Command, reply: Reply) -> str | None:
    """Which job was refused and why, with the code of the cause in brackets; None if the command
    was accepted."""
    if reply.cause is Cause.UNKNOWN_JOB:
        return str(UnknownJob(command.job_id))
    if reply.cause is not None:
        why = _cause_in_words(reply, reply.cause)
        if isinstance(command, Redrive) and reply.cause is Cause.ALREADY_RESOLVED:
            why += "; --again makes another job of it"
        return f"job {command.job_id}: {why} ({reply.cause.value})"
    if isinstance(command, Redrive) and reply.deduplicated:
        assert reply.job is not None
        return f"job {command.job_id}: its dedupe key is held by job {reply.job.id}"
    return None


def _cause_in_words(reply: Reply, cause: Cause) -> str:
    job = reply.job
    if reply.resolution is not None:
        resolution = reply.resolution
        new = "" if resolution.new_job_id is None else f" as job {resolution.new_job_id}"
        return f"it was {resolution.kind}{new} by {resolution.actor} at {iso(resolution.ts)}"
    if job is not None and cause is Cause.NOT_HELD and job.status is JobStatus.QUEUED:
        return "it is queued already"
    if job is not None and cause is Cause.NOT_HELD and job.status is JobStatus.WAITING:
        flow = f"; see `tenure flows show {job.flow_id}`" if job.flow_id else ""
        return f"it waits for other jobs of its flow{flow}"
    if job is not None and cause is Cause.PART_OF_FLOW:
        flow = job.flow_id or ""
        return f"it is a job of flow {flow}; `tenure flows redrive {flow}` runs what failed"
    if job is not None and cause in _STATUS_WORDS:
        return _STATUS_WORDS[cause].format(job.status, job.rev)
    return _WORDS.get(cause, "the coordinator refused it")


def how_to_continue(what: str, *, answered: int, jobs: int, request_id: str) -> str:
    """The message of a command that stopped on the way."""
    return (
        f"{what}; answered: {answered:,} of {counted(jobs, 'job')}. Run the same command"
        f" again with --request-id {request_id}: what is done is not done twice"
    )
