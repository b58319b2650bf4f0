"""What is set for a kind in the store: it holds for all of its jobs, whoever enqueued them.

A worker that starts writes the settings of kinds that the store has never seen; after that, only
`tenure kinds sync` and `tenure kinds limit` change them, so that two versions of the code that run
side by side do not overwrite each other's settings. [RL6]
"""

import msgspec
from msgspec import UNSET, UnsetType

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
    fair: bool = False
    """Whether its concurrency keys take turns. [CK8]"""

    def __str__(self) -> str:
        """For people, such as "rate 10/s, burst 5, 2 per key, fair"."""
        said = [] if self.rate is None else [f"rate {self.rate}, burst {self.rate.burst}"]
        if self.concurrency_limit is not None:
            said.append(f"{self.concurrency_limit} per key")
        if self.fair:
            said.append("fair")
        return ", ".join(said) or "no rate"

    def is_declared_as(self, other: "KindSettings") -> bool:
        """Whether both say the same, whenever they were set."""
        dated = {"rate_since": other.rate_since, "concurrency_since": other.concurrency_since}
        return msgspec.structs.replace(self, **dated) == other

    def as_change(self) -> "KindChange":
        """The change that leaves exactly this."""
        return KindChange(
            kind=self.kind,
            rate=self.rate,
            concurrency_limit=self.concurrency_limit,
            fair=self.fair,
        )


class KindChange(msgspec.Struct, frozen=True, kw_only=True):
    """What to set for a kind or a group. UNSET stays as it is: whoever sets one of them may not
    have seen what another has just set for the other. None removes it. [RL5]"""

    kind: Kind
    rate: Rate | UnsetType | None = UNSET
    concurrency_limit: int | UnsetType | None = UNSET
    fair: bool | UnsetType = UNSET


def put_over(before: KindSettings | None, wanted: KindChange, now: Instant) -> KindSettings:
    """What is stored after this change of `before`. What stays the same keeps its instant, because
    `verify` checks rates and limits from there on; so does a limit that was removed. [RL5] [CK7]"""
    known = before or KindSettings(kind=wanted.kind)
    rate = known.rate if wanted.rate is UNSET else wanted.rate
    limit = (
        known.concurrency_limit if wanted.concurrency_limit is UNSET else wanted.concurrency_limit
    )
    rate_since = known.rate_since if rate == known.rate else now
    return KindSettings(
        kind=wanted.kind,
        rate=rate,
        rate_since=None if rate is None else rate_since,
        concurrency_limit=limit,
        concurrency_since=known.concurrency_since if limit == known.concurrency_limit else now,
        fair=known.fair if wanted.fair is UNSET else wanted.fair,
    )
