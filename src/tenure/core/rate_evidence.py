"""What `verify` compares to learn whether rates were kept: the rates that are set, and the grants.

Pure. Claims decide with `core.rates` and keep accounts of their own; nothing here decides. [I30]
"""

import msgspec

from tenure.core.claims import QueueState, kind_meter, queue_meter
from tenure.core.ids import JobId, Kind, Namespace, QueueName
from tenure.core.instants import Instant
from tenure.core.kind_settings import KindSettings
from tenure.core.rates import Meter, Rate


class RateInForce(msgspec.Struct, frozen=True, kw_only=True):
    """A rate that is set, and since when."""

    namespace: Namespace
    meter: Meter
    rate: Rate
    since: Instant


def in_force(
    namespace: Namespace, meter: Meter, settings: QueueState | KindSettings
) -> RateInForce | None:
    """The rate that is set for a queue or a kind, if one is."""
    if settings.rate is None or settings.rate_since is None:
        return None
    return RateInForce(
        namespace=namespace, meter=meter, rate=settings.rate, since=settings.rate_since
    )


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
