"""Backoff: how long a job waits before its next attempt, and a request before it is sent again.

Pure: readings of a clock and randomness are arguments.
"""

from collections.abc import Callable

from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant, seconds
from tenure.core.policy import Backoff

Random = Callable[[], float]
"""Evenly from [0, 1)."""

_BITS = 53  # as many as a float holds exactly: with all 64, the largest draws would round to 1
_SCALE = 1 << _BITS

LONGEST_SPREAD = seconds(60)
"""Long enough that a thousand jobs do not return in the same second. A job that lost nothing but
time must not wait as long as the cap of its backoff, which is a quarter of an hour by default."""


def unit(entropy: bytes) -> float:
    """A number in [0, 1) out of eight bytes of entropy."""
    return (int.from_bytes(entropy[8:16], "big") >> (64 - _BITS)) / _SCALE


def backoff_us(backoff: Backoff, *, failures: int, entropy: bytes) -> Duration:
    """How long a job waits after its latest failure. [F6]"""
    return delay_us(backoff, failures=failures, fraction=unit(entropy))


def delay_us(backoff: Backoff, *, failures: int, fraction: float) -> Duration:
    """A wait between the floor and the exponential ceiling; `fraction`, in [0, 1), is random.

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
    return Duration(int(low + (ceiling - low) * fraction))


class Retries:
    """The pauses between the tries of one request, and when to give up: after a time, not after a
    number of tries, because a connection that is refused at once takes no time at all. Jitter keeps
    clients that lost a store together from coming back together."""

    def __init__(
        self, backoff: Backoff, *, began_s: float, within_s: float, random: Random
    ) -> None:
        self._backoff = backoff
        self._ends_at_s = began_s + within_s
        self._random = random
        self._tries = 0

    def pause_s(self, now_s: float, *, at_least_s: float = 0.0) -> float | None:
        """How long to wait after another failed try; None: give up. A server's `Retry-After`, in
        `at_least_s`, comes on top."""
        self._tries += 1
        delay = delay_us(self._backoff, failures=self._tries, fraction=self._random())
        pause_s = at_least_s + delay / MICROSECONDS_PER_SECOND
        return pause_s if now_s + pause_s < self._ends_at_s else None


def spread(now: Instant, *, backoff: Backoff, entropy: bytes) -> Instant:
    """When a job that lost its lease in an outage is ready again: within the cap of its backoff,
    and within a minute. [W4]"""
    return Instant(now + int(min(backoff.cap_us, LONGEST_SPREAD) * unit(entropy)))
