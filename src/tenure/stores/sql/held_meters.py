"""Which rates had no room when this process last looked, and until when.

A claim that may receive jobs of a rated kind or queue has to wait for the lock of the rate, and all
claims of it go one after the other. While a rate has no room, that would be for nothing: so a claim
leaves such kinds and queues out, without their lock. A state only moves ahead, so what was seen
stays true until the instant that was foretold, unless the rate is changed or the clock is set back;
a claim finds out both in its transaction, and then begins again (docs/adr/0053).
"""

import time
from collections.abc import Mapping

import msgspec

from tenure.core.ids import Namespace
from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant
from tenure.core.rates import NOTHING_GRANTED, Meter, Rate

MAX_REMEMBERED = 10_000


class HeldMeter(msgspec.Struct, frozen=True, kw_only=True):
    """A rate without room, as a committed claim left it."""

    rate: Rate
    since: Instant | None
    tat: Instant
    seen_at: Instant
    until: Instant
    seen_monotonic_s: float

    def is_over(self) -> bool:
        """Whether it has room by now, as far as this process can tell without the store."""
        elapsed_us = (time.monotonic() - self.seen_monotonic_s) * MICROSECONDS_PER_SECOND
        return self.seen_at + elapsed_us >= self.until

    def holds_at(self, now: Instant) -> bool:
        """Whether it has no room at this instant of the store's clock."""
        return self.seen_at <= now < self.until


class HeldMeters:
    """Remembers rates without room. Any thread."""

    def __init__(self) -> None:
        self._held: dict[tuple[Namespace, Meter], HeldMeter] = {}

    def get(
        self, namespace: Namespace, meter: Meter, rate: Rate | None, since: Instant | None
    ) -> HeldMeter | None:
        """What is known of this rate, if it has no room now."""
        held = self._held.get((namespace, meter))
        if held is None or (held.rate, held.since) != (rate, since) or held.is_over():
            return None
        return held

    def remember(
        self,
        namespace: Namespace,
        rates: Mapping[Meter, tuple[Rate, Instant | None]],
        states: Mapping[Meter, Instant],
        now: Instant,
    ) -> None:
        """Keep those of these rates that have no room. Called after the commit."""
        if len(self._held) > MAX_REMEMBERED:
            self._held.clear()
        for meter, (rate, since) in rates.items():
            tat = states.get(meter, NOTHING_GRANTED)
            wait_us = rate.wait_us(tat, now)
            if wait_us:
                self._held[namespace, meter] = HeldMeter(
                    rate=rate,
                    since=since,
                    tat=tat,
                    seen_at=now,
                    until=Instant(now + wait_us),
                    seen_monotonic_s=time.monotonic(),
                )

    def forget(self, namespace: Namespace, meters: Mapping[Meter, HeldMeter]) -> None:
        """These were wrong."""
        for meter in meters:
            self._held.pop((namespace, meter), None)
