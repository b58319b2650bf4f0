"""A job's own policy, fixed at enqueue: the coordinator needs none of the user's code. [F5]

Written as an array that has every field: field order is the schema. Append fields, never move or
remove one. A default may change: stores leave out what equals an array of their own, which never
changes, so that a job's policy means tomorrow what it meant at enqueue. Also what follows from a
policy: backoff, and the spread after an outage.
"""

from collections.abc import Callable

import msgspec

from tenure.core.ids import Kind, QueueName
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant, seconds, written
from tenure.core.vocabulary import OnExhausted, OnLost, counted

SHORTEST_RETENTION = seconds(24 * 3600)
"""A history that vanishes before it is read proves nothing. [G6]"""

SHORTEST_KEEP = seconds(60)
"""The shortest for one kind or job, whose owner declares that its history is not needed. [G7]"""

MAX_HEARTBEAT = seconds(30)
"""Unless a policy sets another interval. [L17]"""


class Backoff(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """How long a failed job waits for its next attempt: exponential, with jitter between `floor`
    times the delay and all of it. [F6]"""

    initial_us: Duration = seconds(2)
    factor: float = 2.0
    cap_us: Duration = seconds(15 * 60)
    floor: float = 0.5


class _EndJob(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    kind: Kind
    queue: QueueName
    policy: "Policy"


class Compensation(_EndJob, frozen=True, kw_only=True, array_like=True, gc=False):
    """The job that undoes this one: its kind, where it runs and under which policy. [M1]"""


class DeadLetterJob(_EndJob, frozen=True, kw_only=True, array_like=True, gc=False):
    """The job that is enqueued if this one becomes a dead letter: its kind, where it runs and under
    which policy. [HK9]"""


class Policy(msgspec.Struct, frozen=True, kw_only=True, array_like=True, gc=False):
    """Leases, budgets and time-outs of one job. `timeout_us` is None only when asked for.

    With these defaults the last attempt starts 46 to 92 minutes after the first failure, so that
    a job survives an outage of what it depends on that lasts about an hour. [F6]
    """

    lease_us: Duration = seconds(60)
    max_attempts: int = 15
    max_releases: int = 20
    backoff: Backoff = Backoff()
    timeout_us: Duration | None = seconds(3600)
    start_within_us: Duration = seconds(600)
    grace_us: Duration = seconds(30)
    on_exhausted: OnExhausted = OnExhausted.DEAD_LETTER
    on_lost: OnLost = OnLost.REQUEUE
    compensation: Compensation | None = None
    heartbeat_us: Duration | None = None
    """From a quarter to half of the lease; None: see `heartbeat_interval_us`. [L17]"""
    keep_us: Duration | None = None
    """How long the job is kept once it has finished; None: for the store's retention. [G7]"""

    @property
    def heartbeat_interval_us(self) -> Duration:
        """How often a worker renews: by default after half of the ttl, at most 30 s. [L17]"""
        if self.heartbeat_us is not None:
            return self.heartbeat_us
        return Duration(min(self.lease_us // 2, MAX_HEARTBEAT))

    def delete_at(self, finished_at: Instant) -> Instant | None:
        """After which instant retention deletes the job; None: the store's decides. [G7]"""
        return None if self.keep_us is None else Instant(finished_at + self.keep_us)

    @property
    def kept_at_least_us(self) -> Duration:
        """For how long after a change of the job retention cannot have deleted it. [A8]"""
        return SHORTEST_RETENTION if self.keep_us is None else min(self.keep_us, SHORTEST_RETENTION)

    def with_lease(self, lease_us: Duration) -> "Policy":
        """The policy with this lease. Its own heartbeat becomes the nearest one that is allowed."""
        heartbeat_us = self.heartbeat_us
        if heartbeat_us is not None:
            heartbeat_us = Duration(min(max(heartbeat_us, lease_us // 4), lease_us // 2))
        return msgspec.structs.replace(self, lease_us=lease_us, heartbeat_us=heartbeat_us)


def policy_in_words(policy: Policy) -> str:
    """For people, such as "1 attempt, lease 1m, timeout 1h, on_lost hold": what else is not the
    default is named too."""
    timeout_us, usual = policy.timeout_us, Policy()
    parts = [
        counted(policy.max_attempts, "attempt"),
        f"lease {written(policy.lease_us)}",
        "no timeout" if timeout_us is None else f"timeout {written(timeout_us)}",
    ]
    if policy.backoff != usual.backoff:
        first_us, cap_us = policy.backoff.initial_us, policy.backoff.cap_us
        growth = f"times {policy.backoff.factor:g} up to {written(cap_us)}"
        parts.append(f"backoff {written(first_us)} {growth}")
    for name in ("heartbeat", "start_within", "grace", "keep"):
        span_us = getattr(policy, f"{name}_us")
        if span_us != getattr(usual, f"{name}_us"):
            parts.append(f"{name} {written(span_us)}")
    for name in ("max_releases", "on_exhausted", "on_lost"):
        value = getattr(policy, name)
        if value != getattr(usual, name):
            parts.append(f"{name} {value}")
    return ", ".join(parts)


class LeaseBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The ttl a coordinator accepts; a setting, so that tests and the demo can go lower. [L2]"""

    shortest_us: Duration = seconds(30)
    longest_us: Duration = seconds(120)

    def applied_to(self, policy: Policy) -> Policy:
        """The policy with the nearest lease that is accepted: a declared policy may come from a
        coordinator with other bounds. [F9]"""
        lease_us = min(max(policy.lease_us, self.shortest_us), self.longest_us)
        return policy if lease_us == policy.lease_us else policy.with_lease(lease_us)


# --- Backoff -------------------------------------------------------------------------------------


Random = Callable[[], float]
"""Evenly from [0, 1)."""

_BITS = 53  # a float holds 53 exactly: with all 64, the largest draws would round to 1
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
