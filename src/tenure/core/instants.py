"""Instants and durations: integers of microseconds, so that every store agrees. See ADR 0003.

Refuses floats past this module's edge: seconds enter through `seconds()` and never come back.
"""

import re
from typing import NewType

Instant = NewType("Instant", int)  # microseconds since the Unix epoch, on the store's clock
Duration = NewType("Duration", int)  # microseconds

MICROSECONDS_PER_SECOND = 1_000_000

NEVER = Instant(2**63 - 1)  # the last one that a store could hold


def seconds(amount: float) -> Duration:
    """A duration of `amount` seconds, rounded to the microsecond."""
    return Duration(round(amount * MICROSECONDS_PER_SECOND))


def after(instant: Instant, duration: Duration) -> Instant:
    """The instant `duration` later."""
    return Instant(instant + duration)


def later(one: Instant, other: Instant) -> Instant:
    """The later of two instants; events use it so that `ts` never runs backwards. [E13]"""
    return one if one >= other else other


_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION_PATTERN = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(ms|s|m|h|d)")


def parse_duration(text: str) -> Duration:
    """`"90s"`, `"1.5h"`, `"250ms"` as a duration; `ValueError` for anything else."""
    found = _DURATION_PATTERN.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:40]!a} is not a duration; write 250ms, 90s, 5m, 2h or 7d")
    return seconds(float(found[1]) * _UNITS[found[2]])


def written(duration: Duration) -> str:
    """A duration as `parse_duration` reads it, in the largest unit that gives a whole number."""
    for unit in ("d", "h", "m", "s", "ms"):
        unit_us = round(_UNITS[unit] * MICROSECONDS_PER_SECOND)
        if duration % unit_us == 0:
            return f"{duration // unit_us}{unit}"
    return f"{duration / MICROSECONDS_PER_SECOND:g}s"
