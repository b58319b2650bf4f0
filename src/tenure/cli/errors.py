"""How a command ends other than well: exit codes, and one line on stderr.

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
from tenure.errors import Conflict, RequestRefused, TenureError, UnknownJob, UnreadableRow
from tenure.protocol.replies import ProblemCode

DONE, REFUSED, COULD_NOT_RUN = 0, 1, 2
INTERRUPTED = 128 + signal.SIGINT
OUTPUT_CLOSED = 128 + signal.SIGPIPE


class CommandRefused(click.ClickException):
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


class CouldNotRun(CommandRefused):
    """The command could not do its work: exit code 2."""

    exit_code = COULD_NOT_RUN


class Interrupted(CommandRefused):
    """The user pressed Ctrl-C: exit code 130, as shells report it."""

    exit_code = INTERRUPTED


def refuse(message: str, details: Sequence[str] = ()) -> NoReturn:
    """End with exit code 1."""
    raise CommandRefused(message, details)


@contextmanager
def reported_errors(*, out_of_scope: type[CommandRefused] = CommandRefused) -> Iterator[None]:
    """Errors of Tenure end the command in one line with exit code 2; but what the token, or the
    status of a job or flow, does not allow is refused with 1."""
    try:
        yield
    except (Conflict, UnknownJob, UnreadableRow) as refused:
        raise CommandRefused(str(refused)) from refused
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
