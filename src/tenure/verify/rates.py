"""Checks that no rate was exceeded, by the grants that the log has, in the order of their commits.

A leaky bucket for each rate: a grant adds one, time drains it at the rate, and it never holds more
than the burst. That is the same as to say that no window of length T has more than burst + rate·T
grants. [RL1] It begins when the rate was set last, and anew after each backward step of the clock.
"""

from collections.abc import Iterator

from tenure.core.ids import Namespace
from tenure.core.instants import Instant
from tenure.core.rates import Meter, Rate
from tenure.ports import GrantMade, RateInForce, Record, RecordSource
from tenure.verify.violations import Violation, broken


def rates_are_kept(store: RecordSource) -> Iterator[Violation]:
    """No window has more grants than its rate allows. [I30]"""
    rates = {(each.namespace, each.meter): each for each in store.rates_in_force()}
    if not rates:
        return
    buckets: dict[tuple[Namespace, Meter], _Bucket] = {}
    for grant in store.grants(since=min(each.since for each in rates.values())):
        for meter in grant.meters:
            rate = rates.get((grant.namespace, meter))
            # Not at the instant at which it was set: such a grant may have come before that.
            if rate is None or grant.ts <= rate.since:
                continue
            bucket = buckets.setdefault((grant.namespace, meter), _Bucket(rate.rate))
            if bucket.overflows(grant.ts):
                yield _exceeded(grant, rate)


def _exceeded(grant: GrantMade, rate: RateInForce) -> Violation:
    meter = rate.meter
    what = (
        f"the grant at {grant.ts} exceeds the rate {rate.rate} with burst {rate.rate.burst}"
        f" of {meter.scope.value} {grant.namespace}/{meter.name}"
    )
    return broken("I30", Record(grant.job_id, None, ()), grant.seq, what)


class _Bucket:
    """What is left of the grants so far, in microseconds times grants: integers are exact."""

    def __init__(self, rate: Rate) -> None:
        self._rate = rate
        self._level = 0
        self._ts = Instant(0)

    def overflows(self, ts: Instant) -> bool:
        """Add a grant. Returns whether it is one too many; such a one is left out."""
        if ts < self._ts:
            self._level = 0  # the clock was set back: windows with the step are not checked
        else:
            self._level = max(0, self._level - (ts - self._ts) * self._rate.grants)
        self._ts = ts
        if self._level + self._rate.period_us > self._rate.burst * self._rate.period_us:
            return True
        self._level += self._rate.period_us
        return False
