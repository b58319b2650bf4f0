"""What the demo shows: lines that stay and, on a terminal, a table below them that is redrawn.

Knows escape codes and columns, nothing of what happens. Elsewhere than on a terminal only the lines
are printed, so that a log of the demo reads well.
"""

import os
import shutil
import sys
from collections.abc import Sequence

import click

from tenure.cli.output import printable

BAR_CELLS = 12
FEWEST_ROWS = 24
_HIDE_CURSOR, _SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
_CLIP, _WRAP = "\x1b[?7l", "\x1b[?7h"  # a line too long for the terminal must not become two
_CLEAR_BELOW = "\x1b[J"


class Screen:
    """Where the demo speaks. `close` leaves the terminal as it was found."""

    def __init__(self) -> None:
        rows = shutil.get_terminal_size().lines
        is_terminal = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self.is_live = is_terminal and rows >= FEWEST_ROWS
        self._frame: list[str] = []
        if self.is_live:
            sys.stdout.write(_HIDE_CURSOR)

    def say(self, *lines: str) -> None:
        """Lines that stay."""
        if not self.is_live:
            click.echo("\n".join(lines))
            sys.stdout.flush()
            return
        self._write([*lines, *self._frame])

    def draw(self, frame: Sequence[str]) -> None:
        """What replaces the last frame, on a terminal."""
        if self.is_live and list(frame) != self._frame:
            self._write(list(frame), frame=list(frame))

    def keep(self, frame: Sequence[str]) -> None:
        """A last frame, which stays."""
        self.draw(())
        self.say(*frame)

    def close(self) -> None:
        """Give the terminal back."""
        if self.is_live:
            sys.stdout.write(_WRAP + _SHOW_CURSOR)
            sys.stdout.flush()

    def _write(self, lines: list[str], *, frame: list[str] | None = None) -> None:
        """Over the old frame, in one write: halves of a frame would flicker."""
        height = len(self._frame)
        above = f"\x1b[{height}F" if height else ""
        text = "".join(f"{line}\n" for line in lines)
        sys.stdout.write(above + _CLEAR_BELOW + _CLIP + text + _WRAP)
        sys.stdout.flush()
        if frame is not None:
            self._frame = frame


def bar(done: int, total: int | None) -> str:
    """Progress as people read it."""
    if not total:
        return f"step {done}"
    filled = min(BAR_CELLS, BAR_CELLS * done // total)
    return click.style("█" * filled, fg="cyan") + "░" * (BAR_CELLS - filled) + f" {done}/{total}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """Columns of fixed width, so that a redrawn table does not jump."""

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell + " " * max(0, width - len(click.unstyle(cell)))
            for cell, width in zip(cells, widths, strict=True)
        ]
        return ("  " + " ".join(padded)).rstrip()

    return [click.style(line(head), bold=True), *(line(row) for row in rows)]


def short(text: str, most: int = 60) -> str:
    """The beginning of somebody else's text, on one line and harmless."""
    first = printable(text.partition("\n")[0])
    return first if len(first) <= most else first[: most - 1] + "…"
