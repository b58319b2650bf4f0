"""Lines that change while a command runs: redrawn on a terminal, printed again elsewhere.

Where the output is no terminal, nothing moves a cursor or has a colour: a line is printed when it
has changed.
"""

import sys
from collections.abc import Sequence

import click

from tenure.cli.output import COLOURS, GAP, printable, shortened, terminal_size

BAR_COLUMNS = 20
_FULL, _EMPTY = "█", "░"
_UP = "\x1b[{}A"
_ERASE_LINE = "\x1b[K"
_ERASE_BELOW = "\x1b[J"


def bar(done: int, total: int, columns: int = BAR_COLUMNS) -> str:
    """How much of a whole is done, as a bar and in percent."""
    share = min(1.0, max(0.0, done / total)) if total > 0 else 0.0
    full = int(share * columns)
    return f"{_FULL * full}{_EMPTY * (columns - full)} {share:4.0%}"


class LiveLines:
    """Some lines at the bottom of the output. Each is a status, which is coloured, between a text
    before it and one after it."""

    def __init__(self, *, err: bool = False) -> None:
        self._err = err
        self._stream = sys.stderr if err else sys.stdout
        self.is_terminal = self._stream.isatty()
        self._shown: list[tuple[str, str, str]] = []
        self._drawn = 0

    def show(self, lines: Sequence[tuple[str, str, str]]) -> None:
        """Show these lines instead of the last ones."""
        if not self.is_terminal:
            for line in lines:
                if line not in self._shown:
                    self._echo(_joined(line))
        elif list(lines) != self._shown or not self._drawn:
            self._redraw(lines)
        self._shown = list(lines)

    def erase(self) -> None:
        """Take the lines off the terminal, so that something else can be printed."""
        if self._drawn:
            click.echo(f"{_UP.format(self._drawn)}\r{_ERASE_BELOW}", nl=False, err=self._err)
        self._drawn = 0

    def _redraw(self, lines: Sequence[tuple[str, str, str]]) -> None:
        size = terminal_size(self._stream.fileno())
        fitting = lines[: max(1, size.lines - 1)]  # more could not be taken back
        drawn = [_fitted(line, size.columns) + _ERASE_LINE for line in fitting]
        start = _UP.format(self._drawn) + "\r" if self._drawn else ""
        click.echo(start + "\n".join(drawn) + "\n" + _ERASE_BELOW, nl=False, err=self._err)
        self._drawn = len(drawn)

    def _echo(self, text: str) -> None:
        click.echo(text, err=self._err)


def _joined(line: tuple[str, str, str]) -> str:
    return GAP.join(printable(part) for part in line if part)


def _fitted(line: tuple[str, str, str], columns: int) -> str:
    """The line, cut so that it does not wrap, its status in colour."""
    before, status, after = (printable(part) for part in line)
    start = before + GAP if before else ""
    whole = shortened(f"{start}{status}{GAP}{after}".rstrip(), columns - 1)
    if not whole.startswith(start + status):
        return whole
    coloured = click.style(status, fg=COLOURS.get(status))
    return start + coloured + whole[len(start + status) :]
