"""Instants and durations: integers of microseconds, so that every store agrees. See ADR 0003.

Refuses floats past this module's edge: seconds enter through `seconds()` and never come back.
"""

from typing import NewType

Instant = NewType("Instant", int)  # microseconds since the Unix epoch, on the store's clock
Duration = NewType("Duration", int)  # microseconds

MICROSECONDS_PER_SECOND = 1_000_000


def seconds(amount: float) -> Duration:
    """A duration of `amount` seconds, rounded to the microsecond."""
    return Duration(round(amount * MICROSECONDS_PER_SECOND))


def after(instant: Instant, duration: Duration) -> Instant:
    """The instant `duration` later."""
    return Instant(instant + duration)


def later(one: Instant, other: Instant) -> Instant:
    """The later of two instants; events use it so that `ts` never runs backwards. [E2]"""
    return one if one >= other else other
