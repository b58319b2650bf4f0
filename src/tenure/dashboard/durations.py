"""Spans of time in words, from microseconds to weeks: two units at most, rounded down.

Refuses to guess: a span says nothing about when; exact times are shown beside it.
"""

from itertools import dropwhile, islice

_UNITS = (
    ("d", 86_400_000_000),
    ("h", 3_600_000_000),
    ("min", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1_000),
    ("µs", 1),
)
_DECIMALS_BELOW_US = 10_000_000
SHOWN_UNITS = 2


def duration_words(span_us: int) -> str:
    """`350 µs`, `5 ms`, `1.2 s`, `3 min 20 s`, `2 d 4 h`; a negative span counts as none."""
    span_us = max(0, span_us)
    if span_us == 0:
        return "0 s"
    if 1_000_000 <= span_us < _DECIMALS_BELOW_US:
        return f"{span_us // 100_000 / 10:g} s"
    if span_us < 60_000_000:
        unit, unit_us = next(each for each in _UNITS if span_us >= each[1])
        return f"{span_us // unit_us} {unit}"
    parts = []
    for unit, unit_us in _UNITS:
        amount, span_us = divmod(span_us, unit_us)
        parts.append((amount, unit))
    shown = islice(dropwhile(lambda part: part[0] == 0, parts), SHOWN_UNITS)
    return " ".join(f"{amount} {unit}" for amount, unit in shown if amount)
