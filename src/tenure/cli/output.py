"""How commands print: tables that fit the terminal, JSON for programs, times, and how far long work
is.

Colours only on a terminal (click sees to that). Every cell is escaped, so that a job's data cannot
move the cursor, change a colour or reorder a line.
"""

import os
import shutil
import sys
import time
import unicodedata
from collections.abc import Sequence
from itertools import accumulate

import click
import msgspec

from tenure.core.ids import ELLIPSIS, SHORT_ID
from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant
from tenure.protocol.fields import iso

COLOURS = {
    "waiting": "blue",
    "queued": "blue",
    "claimed": "cyan",
    "running": "cyan",
    "stalled": "yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "dead_lettered": "red",
}
GAP = "  "
SHORTEST_CELL = 16
SHORTEST_ID = SHORT_ID + len(ELLIPSIS)
SHORTEST_ERROR = 32
SHORTEST_PROGRESS = 24
"""With these widths a table is readable. Of an error it is the type and the first words, of
progress the bar and the numbers."""

_SHORTEST = {
    "ID": SHORTEST_ID,
    "JOB": SHORTEST_ID,
    "ERROR": SHORTEST_ERROR,
    "PROGRESS": SHORTEST_PROGRESS,
}


def printable(text: str) -> str:
    """`text` without a character that could move a cursor, change a colour or reorder a line."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def coloured(status: str) -> str:
    """A status in its colour."""
    return click.style(status, fg=COLOURS.get(status))


def say(message: str) -> None:
    """A remark for the user, on stderr."""
    click.echo(f"tenure: {printable(message)}", err=True)


# --- JSON ----------------------------------------------------------------------------------------


def print_json(value: object) -> None:
    """One JSON document on stdout; what a terminal must not see is escaped, as JSON allows."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    click.echo("".join(c if c.isprintable() or c == "\n" else _json_escape(c) for c in text))


def print_json_line(value: object) -> None:
    """One JSON document on one line of stdout, escaped in the same way."""
    text = msgspec.json.encode(value).decode()
    click.echo("".join(c if c.isprintable() else _json_escape(c) for c in text))


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


# --- Tables --------------------------------------------------------------------------------------


def print_table(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    optional: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> None:
    """Aligned columns; None is shown as a dash. On a terminal every row is one line: `optional`
    columns are left out, the last one first, until the rest can fit; then the widest cells are cut,
    those of `whole` columns last. Elsewhere nothing is left out or cut."""
    available = terminal_columns()
    titles, *lines = table_lines(head, rows, available, optional=optional, whole=whole)
    click.secho(titles, bold=True)
    for line in lines:
        click.echo(line)


def table_lines(
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    available: int | None,
    *,
    optional: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> list[str]:
    """The lines of such a table for a terminal of this width, its titles first. Statuses are
    coloured."""
    columns = [[title, *(_cell(row[at]) for row in rows)] for at, title in enumerate(head)]
    widths = [max(map(display_width, column)) for column in columns]
    if available is not None:
        shortest = [
            width if title in whole else min(width, _shortest(title))
            for title, width in zip(head, widths, strict=True)
        ]
        for title in reversed(optional):
            if _total(shortest) > available:
                at = [column[0] for column in columns].index(title)
                del columns[at], widths[at], shortest[at]
        widths = fit(widths, shortest, available)
    return [
        GAP.join(_padded(*pair) for pair in zip(cells, widths, strict=True)).rstrip()
        for cells in zip(*columns, strict=True)
    ]


def terminal_columns() -> int | None:
    """How wide the terminal is that reads stdout; None if it is a file or another program."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _stderr_columns() -> int:
    """How wide the terminal is that reads stderr: stdout may be a file, whose width is a guess."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):  # an object of a test, without a file
        return shutil.get_terminal_size().columns


def fit(widths: Sequence[int], shortest: Sequence[int], available: int) -> list[int]:
    """These widths, the widest ones made narrower until a row fits; not below `shortest` unless
    there is no other way."""
    fitted = [min(width, available) for width in widths]
    for floors in (shortest, [1] * len(fitted)):
        while _total(fitted) > available:
            can_shrink = [at for at, width in enumerate(fitted) if width > floors[at]]
            if not can_shrink:
                break
            fitted[max(can_shrink, key=lambda at: fitted[at])] -= 1
    return fitted


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _shortest(title: str) -> int:
    return _SHORTEST.get(title, SHORTEST_CELL)


def display_width(text: str) -> int:
    """How many columns of a terminal a text takes: some characters take two, some none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def shortened(text: str, width: int) -> str:
    """`text`, or as much of it as fits with an ellipsis."""
    if display_width(text) <= width:
        return text
    # Forwards: an error of 60,000 characters, cut one by one from its end, took minutes.
    widths = accumulate(map(display_width, text))
    fits = next(at for at, taken in enumerate(widths) if taken >= width)
    return text[:fits] + ELLIPSIS


def _padded(cell: str, width: int) -> str:
    shown = shortened(cell, width)
    padding = " " * (width - display_width(shown))
    return (coloured(shown) if shown in COLOURS else shown) + padding


def _cell(value: object) -> str:
    return "-" if value is None else printable(str(value))


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Names and values below each other; what is absent is left out."""
    present = [(name, value) for name, value in facts if value is not None and value != ""]
    width = max(len(name) for name, _ in present)
    for name, value in present:
        cell = _cell(value)
        shown = coloured(cell) if cell in COLOURS else cell
        click.echo(f"{click.style(name.ljust(width), bold=True)}{GAP}{shown}")


# --- Times ---------------------------------------------------------------------------------------


def in_words(span_s: float) -> str:
    """A span of time in its largest unit: 0.4 s, 12 s, 3 min, 5 h, 2 d."""
    for unit, unit_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if span_s >= unit_s:
            return f"{span_s / unit_s:.0f} {unit}"
    return f"{span_s:.0f} s" if span_s >= 10 else f"{span_s:.1f} s"


def duration(span_s: float | None) -> str | None:
    """How long jobs waited or ran, for a table: most wait for milliseconds."""
    if span_s is None:
        return None
    return f"{span_s * 1000:.0f} ms" if span_s < 1 else in_words(span_s)


def ago(instant: Instant | None, now: Instant) -> str | None:
    """When something was or will be, for a table: `3 min ago`, `in 2 h`."""
    if instant is None:
        return None
    span_s = abs(now - instant) / MICROSECONDS_PER_SECOND
    if span_s < 1:
        return "now"
    words = in_words(span_s) if span_s >= 10 else f"{span_s:.0f} s"
    return f"{words} ago" if instant < now else f"in {words}"


def exact_and_ago(instant: Instant | None, now: Instant) -> str | None:
    """The exact time, and how long ago that is."""
    return None if instant is None else f"{iso(instant)} ({ago(instant, now)})"


# --- Lines that change ---------------------------------------------------------------------------

_HOME, _ERASE_LINE, _ERASE_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"


def clipped(line: str, columns: int) -> str:
    """The line, without its styles if it has to be cut."""
    plain = click.unstyle(line)
    return line if display_width(plain) <= columns else shortened(plain, columns)


def redraw(lines: Sequence[str]) -> None:
    """Draw these lines, which fit the terminal, from its first line on."""
    drawn = "".join(f"{line}{_ERASE_LINE}\n" for line in lines)
    click.echo(f"{_HOME}{drawn}{_ERASE_BELOW}", nl=False)


class ProgressLine:
    """Shows on stderr how far long work is: on a terminal in one line that is redrawn, elsewhere in
    a new line if it differs, and at most one in `log_every_s`."""

    FIRST_AFTER_S = 1.0
    TERMINAL_EVERY_S = 0.5

    def __init__(self, *, log_every_s: float = 30.0) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._every_s = self.TERMINAL_EVERY_S if self._is_terminal else log_every_s
        self._next = time.monotonic() + max(self.FIRST_AFTER_S, self._every_s)
        self._shown = ""

    @property
    def is_due(self) -> bool:
        """Whether the last line was shown long enough ago."""
        return time.monotonic() >= self._next

    def show(self, text: str) -> None:
        """Show this, unless something was shown a moment ago."""
        if not self.is_due:
            return
        self._next = time.monotonic() + self._every_s
        if self._is_terminal:
            columns = _stderr_columns() - 1
            cut = shortened(printable(text), columns)
            click.echo(f"\r{cut}{_ERASE_LINE}", nl=False, err=True)
        elif text != self._shown:
            click.echo(printable(text), err=True)
        self._shown = text

    def erase(self) -> None:
        """Take the line off a terminal, so that something else can be printed."""
        if self._is_terminal and self._shown:
            click.echo(f"\r{_ERASE_LINE}", nl=False, err=True)
