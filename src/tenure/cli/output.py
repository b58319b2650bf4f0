"""Output: tables for people, JSON for programs, and nothing a payload could smuggle in.

Colours only on a terminal (click sees to that). Every cell is escaped: a job's data must not move
a cursor, change a colour or reorder a line.
"""

from collections.abc import Sequence

import click
import msgspec

from tenure.core.job import Job

COLOURS = {
    "queued": "blue",
    "claimed": "cyan",
    "running": "cyan",
    "stalled": "yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
    "dead_lettered": "red",
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


def print_json(value: object) -> None:
    """One JSON document on stdout; what a terminal must not see is escaped, as JSON allows."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    click.echo("".join(c if c.isprintable() or c == "\n" else _json_escape(c) for c in text))


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Aligned columns; None is shown as a dash."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [
        max([len(title), *(len(click.unstyle(row[column])) for row in cells)])
        for column, title in enumerate(head)
    ]
    click.secho(
        "  ".join(t.ljust(w) for t, w in zip(head, widths, strict=True)).rstrip(), bold=True
    )
    for row in cells:
        padded = [
            cell + " " * (width - len(click.unstyle(cell)))
            for cell, width in zip(row, widths, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def _cell(value: object) -> str:
    if value is None:
        return "-"
    text = str(value)
    return coloured(text) if text in COLOURS else printable(text)


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """Names and values below each other; what is absent is left out."""
    present = [(name, value) for name, value in facts if value is not None and value != ""]
    width = max(len(name) for name, _ in present)
    for name, value in present:
        click.echo(f"{click.style(name.ljust(width), bold=True)}  {_cell(value)}")


def in_words(span_s: float) -> str:
    """A span of time as people say it, in its largest unit: 0.4 s, 12 s, 3 min, 5 h, 2 d."""
    for unit, unit_s in (("d", 86400), ("h", 3600), ("min", 60)):
        if span_s >= unit_s:
            return f"{span_s / unit_s:.0f} {unit}"
    return f"{span_s:.0f} s" if span_s >= 10 else f"{span_s:.1f} s"


def print_traceback(job: Job) -> None:
    """The rest of the last error's message, and its traceback, line by line."""
    error = job.error or job.last_error
    if error is None:
        return
    for text in (error.message.partition("\n")[2].strip("\n"), error.traceback):
        if text:
            click.echo()
            for line in text.splitlines():
                click.echo(printable(line))
