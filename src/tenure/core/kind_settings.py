"""What is set for a kind in the store: it holds for all of its jobs, whoever enqueued them.

A worker that starts writes the settings of kinds that the store has never seen; after that, only
`tenure kinds sync` and `tenure kinds limit` change them, so that two versions of the code that run
side by side do not overwrite each other's settings. [RL6]
"""

import msgspec

from tenure.core.ids import Kind
from tenure.core.instants import Instant
from tenure.core.rates import Rate


class KindSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one kind. `rate_since` is when its rate was set last; a store sets it."""

    kind: Kind
    rate: Rate | None = None
    rate_since: Instant | None = None

    def __str__(self) -> str:
        """For people, such as "rate 10/s, burst 5"."""
        if self.rate is None:
            return "no rate"
        return f"rate {self.rate}, burst {self.rate.burst}"

    def is_declared_as(self, other: "KindSettings") -> bool:
        """Whether both say the same, whenever they were set."""
        return msgspec.structs.replace(self, rate_since=other.rate_since) == other


def put_over(before: KindSettings | None, wanted: KindSettings, now: Instant) -> KindSettings:
    """`wanted` as it is stored over `before`: a rate that stays the same keeps its instant, because
    `verify` checks the rate from there on. [RL5]"""
    if wanted.rate is None:
        since = None
    elif before is not None and before.rate == wanted.rate:
        since = before.rate_since
    else:
        since = now
    return msgspec.structs.replace(wanted, rate_since=since)
