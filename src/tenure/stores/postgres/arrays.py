"""PostgreSQL array literals, built as text: the driver takes a microsecond per element for lists.

Elements are quoted whenever they are text, so that `NULL`, braces, commas and blanks mean
themselves; only the quote and the backslash need an escape.
"""

from collections.abc import Sequence

_TRUTHS = {True: "t", False: "f"}


def integers(values: Sequence[int | None]) -> str:
    """`{1,NULL,3}`"""
    if None in values:
        return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"
    return "{" + ",".join(map(str, values)) + "}"


def truths(values: Sequence[bool]) -> str:
    """`{t,f}`"""
    return "{" + ",".join(map(_TRUTHS.__getitem__, values)) + "}"


def texts(values: Sequence[str | None]) -> str:
    """`{"a",NULL,"b\\"c"}`; the common case, nothing to escape, is one join and two searches."""
    if not values:
        return "{}"
    if None not in values:
        joined = '","'.join(values)  # type: ignore[arg-type]  # narrowed by the line above
        if "\\" not in joined and joined.count('"') == 2 * (len(values) - 1):
            return '{"' + joined + '"}'
    return "{" + ",".join(map(_quoted, values)) + "}"


def _quoted(value: str | None) -> str:
    if value is None:
        return "NULL"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
