"""Backoff: how long a job waits before its next attempt. Randomness is an argument."""

from tenure.core.instants import Duration, Instant
from tenure.core.policy import Backoff

_BITS = 53  # as many as a float holds exactly: with all 64, the largest draws would round to 1
_SCALE = 1 << _BITS


def unit(entropy: bytes) -> float:
    """A number in [0, 1) out of eight bytes of entropy."""
    return (int.from_bytes(entropy[8:16], "big") >> (64 - _BITS)) / _SCALE


def backoff_us(backoff: Backoff, *, failures: int, entropy: bytes) -> Duration:
    """Full jitter between the floor and the exponential ceiling. [F1]

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


def spread(now: Instant, *, over_us: Duration, entropy: bytes) -> Instant:
    """A random instant within `over_us` from now: a thousand leases that expired in one outage
    must not come back in the same second. [W3]"""
    return Instant(now + int(over_us * unit(entropy)))
