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
    """The settings of one kind, or of a group of concurrency keys, which has only a limit.
    `..._since` is when something was set last; a store sets it."""

    kind: Kind
    rate: Rate | None = None
    rate_since: Instant | None = None
    concurrency_limit: int | None = None
    """How many of its jobs may run at a time for each concurrency key; None is 1. [CK2]"""
    concurrency_since: Instant | None = None

    def __str__(self) -> str:
        """For people, such as "rate 10/s, burst 5, 2 per key"."""
        said = "no rate" if self.rate is None else f"rate {self.rate}, burst {self.rate.burst}"
        if self.concurrency_limit is None:
            return said
        per_key = f"{self.concurrency_limit} per key"
        return per_key if self.rate is None else f"{said}, {per_key}"

    def is_declared_as(self, other: "KindSettings") -> bool:
        """Whether both say the same, whenever they were set."""
        dated = {"rate_since": other.rate_since, "concurrency_since": other.concurrency_since}
        return msgspec.structs.replace(self, **dated) == other


def put_over(before: KindSettings | None, wanted: KindSettings, now: Instant) -> KindSettings:
    """`wanted` as it is stored over `before`: a rate that stays the same keeps its instant, because
    `verify` checks the rate from there on. [RL5]"""
    if wanted.rate is None:
        since = None
    elif before is not None and before.rate == wanted.rate:
        since = before.rate_since
    else:
        since = now
    return msgspec.structs.replace(
        wanted, rate_since=since, concurrency_since=_limited_since(before, wanted, now)
    )


def _limited_since(
    before: KindSettings | None, wanted: KindSettings, now: Instant
) -> Instant | None:
    """From when on `verify` holds claims against this limit; also one that was removed. [CK7]"""
    known = None if before is None else before.concurrency_limit
    if known != wanted.concurrency_limit:
        return now
    return None if before is None else before.concurrency_since
