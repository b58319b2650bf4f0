"""Checks that no rate was exceeded, by the grants that the log has, in the order of their commits.

A leaky bucket for each rate, and for each rate key: a grant adds one, time drains it at the rate,
and it never holds more than the burst. That is the same as to say that no window of length T has
more than burst + rate·T grants. [RL1] It begins when the rate was set last, and anew where the
clock may have been set back.
"""

from collections.abc import Iterator, Mapping

from tenure.core.ids import Namespace
from tenure.core.instants import Instant
from tenure.core.rate_evidence import GrantMade, RateInForce
from tenure.core.rates import Meter, Rate
from tenure.ports import Record, RecordSource
from tenure.verify.clock_steps import times_shown_twice
from tenure.verify.violations import Violation, broken

MAX_BUCKETS = 10_000
"""When there are so many, those that are empty are forgotten."""


def rates_are_kept(store: RecordSource) -> Iterator[Violation]:
    """No window has more grants than its rate allows. [I30]"""
    rates = {(each.namespace, each.meter): each for each in store.rates_in_force()}
    shown_twice: list[tuple[int, int]] | None = None
    for grant, rate in _suspected(store, rates) if rates else ():
        if shown_twice is None:  # only now: reading the whole log takes a while
            shown_twice = times_shown_twice(store)
        reaches_back_to = grant.ts - rate.rate.burst * rate.rate.interval_us
        if not any(first <= grant.ts and reaches_back_to <= last for first, last in shown_twice):
            yield _exceeded(grant, rate)


def _suspected(
    store: RecordSource, rates: Mapping[tuple[Namespace, Meter], RateInForce]
) -> Iterator[tuple[GrantMade, RateInForce]]:
    """The grants that seem to exceed a rate."""
    buckets: dict[tuple[Namespace, Meter], _Bucket] = {}
    for grant in store.grants(since=min(each.since for each in rates.values())):
        if len(buckets) > MAX_BUCKETS:
            buckets = {key: each for key, each in buckets.items() if not each.is_empty(grant.ts)}
        for meter in grant.meters:
            rate = rates.get((grant.namespace, Meter(meter.scope, meter.name)))
            # Not at the instant at which it was set: such a grant may have come before that.
            if rate is None or grant.ts <= rate.since:
                continue
            bucket = buckets.setdefault((grant.namespace, meter), _Bucket(rate.rate))
            if grant.may_be_later_than_the_clock:
                bucket.empty(grant.ts)
            elif bucket.overflows(grant.ts):
                yield grant, rate


def _exceeded(grant: GrantMade, rate: RateInForce) -> Violation:
    meter = rate.meter
    key = "" if grant.rate_key is None else f" for the rate key {grant.rate_key}"
    what = (
        f"the grant at {grant.ts} exceeds the rate {rate.rate} with burst {rate.rate.burst}"
        f" of {meter.scope.value} {grant.namespace}/{meter.name}{key}"
    )
    return broken("I30", Record(grant.job_id, None, ()), grant.seq, what)


class _Bucket:
    """What is left of the grants so far, in microseconds times grants: integers are exact."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._level = 0
        self._ts = Instant(0)

    def is_empty(self, ts: Instant) -> bool:
        """Whether nothing is left by then."""
        return self._level <= (ts - self._ts) * self._rate.grants

    def empty(self, ts: Instant) -> None:
        """The clock may have been set back: windows with the step are not checked."""
        self._level, self._ts = 0, ts

    def overflows(self, ts: Instant) -> bool:
        """Add a grant. Returns whether it is one too many; such a one is left out."""
        if ts < self._ts:
            self.empty(ts)
        self._level = max(0, self._level - (ts - self._ts) * self._rate.grants)
        self._ts = ts
        if self._level + self._rate.period_us > self._rate.burst * self._rate.period_us:
            return True
        self._level += self._rate.period_us
        return False
