"""What the commands share that follow a store: pauses between two looks, lost connections, and the
ends that come too early.

Such a command runs until what it follows has ended, its time is over, the user presses Ctrl-C, or
nobody reads its output any more.
"""

import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import click

from tenure.cli.common import DONE, refuse
from tenure.cli.discarding import discard_output
from tenure.cli.output import say
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration
from tenure.deadlines import retrying_for
from tenure.errors import StoreUnavailable

POLL_S = 0.5
"""How often a store in this process is asked for news."""

FIRST_RETRY_S = 0.5
LONGEST_RETRY_S = 5.0

RETRY_FOR_S = 5.0
"""Before it is said that the connection is lost; from then on this module sends again."""

_T = TypeVar("_T")


class OutputClosed(Exception):
    """Nobody reads stdout any more: there is nothing left to do, and nothing to say."""


def pause(span_s: float) -> None:
    """Wait so long. Raises `OutputClosed` if the reader of stdout goes away meanwhile: `tenure
    events -f | head` would otherwise end at the next event only."""
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
                say("connected again; goes on where it was")
            self._was_answered = True
            return answer


# --- Early ends ----------------------------------------------------------------------------------


def goes_on(what: str, *, shown_by: str) -> str:
    """What somebody is told who stops waiting: that stops no job. [LV8]"""
    return f"{what} goes on; `tenure {shown_by}` shows it"


def give_up(problem: str, *, told: str) -> NoReturn:
    """End the command because its time is over, after a line that says `told`."""
    say(problem)
    refuse(told)


@contextmanager
def following(
    *, interrupted: int, told: str | None = None, output_closed: int = DONE
) -> Iterator[None]:
    """End the command with the exit code `output_closed` when nobody reads its output any more
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
