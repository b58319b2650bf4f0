"""Backoff: how long a job waits before its next attempt. Randomness is an argument."""

from tenure.core.instants import Duration, Instant, seconds
from tenure.core.policy import Backoff

_BITS = 53  # as many as a float holds exactly: with all 64, the largest draws would round to 1
_SCALE = 1 << _BITS

LONGEST_SPREAD = seconds(60)
"""Long enough that a thousand jobs do not return in the same second. A job that lost nothing but
time must not wait as long as the cap of its backoff, which is a quarter of an hour by default."""


def unit(entropy: bytes) -> float:
    """A number in [0, 1) out of eight bytes of entropy."""
    return (int.from_bytes(entropy[8:16], "big") >> (64 - _BITS)) / _SCALE


def backoff_us(backoff: Backoff, *, failures: int, entropy: bytes) -> Duration:
    """A random wait between the floor and the exponential ceiling. [F6]

    The ceiling is computed by bounded doubling: `factor ** failures` overflows a float for a job
    that was released thousands of times.
    """
    ceiling = float(backoff.initial_us)
    for _ in range(max(0, failures - 1)):
        if ceiling >= backoff.cap_us:
            break
        ceiling *= backoff.factor
    ceiling = min(ceiling, float(backoff.cap_us))
    low = ceiling * backoff.floor
    return Duration(int(low + (ceiling - low) * unit(entropy)))


def spread(now: Instant, *, backoff: Backoff, entropy: bytes) -> Instant:
    """When a job that lost its lease in an outage is ready again: within the cap of its backoff,
    and within a minute. [W4]"""
    return Instant(now + int(min(backoff.cap_us, LONGEST_SPREAD) * unit(entropy)))
