"""Rates: how many grants a queue, a kind or a key may get per unit of time.

Pure, and exact: integers of microseconds. The state of a rate is one instant, the theoretical
arrival time of GCRA (the generic cell rate algorithm): when all that was granted so far would have
been granted at a steady rate. A grant moves it by one interval, and it may be at most `burst`
intervals ahead of now. So no window of length T has more than burst + rate·T grants. [RL1]

Every grant counts, also one whose job is released. [RL2] Rule ids such as [RL1] refer to sentences
of docs/spec/rates.md.
"""

import re
from enum import StrEnum

import msgspec

from tenure.core.ids import JobId, Kind, Namespace, QueueName
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant
from tenure.errors import InvalidInput

MAX_GRANTS = 1_000_000
MAX_PER_SECOND = 10_000
"""A faster rate would be no limit: no store grants more."""

MAX_BURST = 1_000_000
NOTHING_GRANTED = Instant(0)
"""The state of a rate that nothing was granted under, or nothing lately."""

_RATE_PATTERN = re.compile(r"([0-9]{1,12})/(s|m|h|d)")
_FRACTION_PATTERN = re.compile(r"([0-9]{0,6})[.,]([0-9]{1,6})/(s|m|h|d)")


class RateUnit(StrEnum):
    """What a rate is per."""

    SECOND = "s"
    MINUTE = "m"
    HOUR = "h"
    DAY = "d"


_LENGTH_US = {
    RateUnit.SECOND: MICROSECONDS_PER_SECOND,
    RateUnit.MINUTE: 60 * MICROSECONDS_PER_SECOND,
    RateUnit.HOUR: 3600 * MICROSECONDS_PER_SECOND,
    RateUnit.DAY: 86400 * MICROSECONDS_PER_SECOND,
}


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """A number of grants per second, minute, hour or day, and how many at once after a pause."""

    grants: int
    per: RateUnit
    burst: int

    def __str__(self) -> str:
        return f"{self.grants}/{self.per.value}"

    @property
    def period_us(self) -> int:
        """The length of the unit."""
        return _LENGTH_US[self.per]

    @property
    def interval_us(self) -> int:
        """From one grant to the next; rounded up, so that the rate is never exceeded."""
        return -(-self.period_us // self.grants)

    def used(self, tat: Instant, now: Instant) -> Instant:
        """The state as it counts now: never before now, and never further ahead than a whole burst.
        It is further ahead only after the clock was set back or the rate was changed. [RL3]"""
        return Instant(min(max(tat, now), now + self.burst * self.interval_us))

    def room(self, tat: Instant, now: Instant) -> int:
        """How many grants there are now."""
        return self.burst - -(-(self.used(tat, now) - now) // self.interval_us)

    def after(self, tat: Instant, now: Instant) -> Instant:
        """The state after one more grant."""
        return Instant(self.used(tat, now) + self.interval_us)

    def wait_us(self, tat: Instant, now: Instant, *, grants: int = 1) -> Duration:
        """How long until there is room for this many grants; 0 if there is."""
        latest = now + (self.burst - grants) * self.interval_us
        return Duration(max(0, self.used(tat, now) - latest))


class RateScope(StrEnum):
    """What a rate is for."""

    QUEUE = "queue"
    KIND = "kind"


class Meter(msgspec.Struct, frozen=True):
    """What the grants under one rate are counted for: a queue, a kind, or one key of a kind."""

    scope: RateScope
    name: str
    key: str = ""


class RateWait(msgspec.Struct, frozen=True, kw_only=True):
    """A rate that jobs are under, and how long until it has room for the next one."""

    meter: Meter
    rate: Rate
    wait_us: Duration


def queue_meter(name: QueueName) -> Meter:
    """The meter of a queue's grants."""
    return Meter(RateScope.QUEUE, name)


def kind_meter(kind: Kind, rate_key: str | None = None) -> Meter:
    """The meter of a kind's grants: one for each rate key, and one for all jobs without a rate key.
    [RL11]"""
    return Meter(RateScope.KIND, kind, rate_key or "")


def parse_rate(field: str, text: object, burst: object = None) -> Rate:
    """`"100/m"` as a rate; `InvalidInput` names the field that is wrong. [RL4]"""
    found = _RATE_PATTERN.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        raise InvalidInput(
            field,
            f"{str(text)[:40]!a} is not a rate",
            hint=_whole_rate(text) or "write 10/s, 100/m, 5/h or 1000/d, or none for no rate",
        )
    grants, per = int(found[1]), RateUnit(found[2])
    rate = Rate(grants=grants, per=per, burst=_usual_burst(grants, per))
    if burst is not None:
        if type(burst) is not int:
            raise InvalidInput("burst", f"{type(burst).__name__} is not an integer")
        rate = msgspec.structs.replace(rate, burst=burst)
    check_rate(field, rate)
    return rate


def _whole_rate(text: object) -> str:
    """How to write a rate such as 0.5/s in whole numbers; nothing if there is no such way."""
    found = _FRACTION_PATTERN.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        return ""
    whole = int(found[1] or 0) * 10 ** len(found[2]) + int(found[2])
    for unit in RateUnit:
        numerator = whole * _LENGTH_US[unit]
        denominator = 10 ** len(found[2]) * _LENGTH_US[RateUnit(found[3])]
        if numerator >= denominator and numerator % denominator == 0:
            return f"write it in whole numbers: {numerator // denominator}/{unit.value}"
    return ""


def _usual_burst(grants: int, per: RateUnit) -> int:
    """The grants of the rate in a tenth of a second, and 1 at least: a claim that is granted one
    job at a time could not keep up with a high rate."""
    return max(1, grants * MICROSECONDS_PER_SECOND // (10 * _LENGTH_US[per]))


def check_rate(field: str, rate: Rate) -> None:
    """Refuse what is no rate, or could not be stored exactly. [RL4]"""
    if not 1 <= rate.grants <= MAX_GRANTS:
        stopping = "to stop a queue, pause it; to remove a rate, set none"
        raise InvalidInput(
            field,
            f"{rate} is not from 1 to {MAX_GRANTS:,} jobs",
            hint=stopping if rate.grants < 1 else "to remove a rate, set none",
        )
    if rate.grants * MICROSECONDS_PER_SECOND > MAX_PER_SECOND * rate.period_us:
        raise InvalidInput(field, f"{rate} is more than {MAX_PER_SECOND:,} jobs a second")
    if not 1 <= rate.burst <= MAX_BURST:
        raise InvalidInput(
            "burst",
            f"{rate.burst} is not from 1 to {MAX_BURST:,}",
            hint="1 lets no two jobs begin together",
        )


# --- What `verify` compares; claims keep accounts of their own [I30] -----------------------------


class RateInForce(msgspec.Struct, frozen=True, kw_only=True):
    """A rate that is set, and since when."""

    namespace: Namespace
    meter: Meter
    rate: Rate
    since: Instant


class GrantMade(msgspec.Struct, frozen=True, kw_only=True):
    """A grant as the log has it, and what it counts for."""

    job_id: JobId
    seq: int
    ts: Instant
    namespace: Namespace
    queue: QueueName
    kind: Kind
    rate_key: str | None = None
    before_ts: Instant | None = None
    """The time of the job's event before it."""

    @property
    def may_be_later_than_the_clock(self) -> bool:
        """Whether its timestamp may be too late. After the clock is set back, events repeat the
        previous event's timestamp until the clock has caught up."""
        return self.ts == self.before_ts

    @property
    def meters(self) -> tuple[Meter, ...]:
        """What it was counted for, if that has a rate."""
        return (queue_meter(self.queue), kind_meter(self.kind, self.rate_key))
