"""What is set for a kind in the store: its limits hold for all of its jobs, whatever enqueued them;
its policy is that of jobs whose enqueue brings none.

A worker that starts writes the settings of kinds that the store does not know yet; after that, only
`tenure kinds sync` and `tenure kinds limit` change them, so that two versions of the code that run
side by side do not overwrite each other's settings. [RL6]
"""

import msgspec
from msgspec import UNSET, UnsetType

from tenure.core.ids import Kind
from tenure.core.instants import Instant
from tenure.core.policy import Policy, policy_in_words
from tenure.core.rates import Rate


class KindSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one kind. `..._since` is when something was set last; a store sets it."""

    kind: Kind
    rate: Rate | None = None
    rate_since: Instant | None = None
    concurrency_limit: int | None = None
    """How many of its jobs may run at a time for each concurrency key; None is 1. [CK2]"""
    concurrency_since: Instant | None = None
    limits_set: bool = True
    """Whether a rate or a limit was ever set, even if none is now."""
    policy: Policy | None = None
    """The policy of jobs whose enqueue brings none; None if no worker declared the kind. [F9]"""

    def __str__(self) -> str:
        """For people, such as "rate 10/s, burst 5, 2 per key, 1 attempt, lease 1m, …"."""
        if self.policy is None:
            return self.limits_in_words
        policy = policy_in_words(self.policy)
        return f"{self.limits_in_words}, {policy}" if self.has_limits else policy

    @property
    def _limits(self) -> tuple[Rate | None, int | None]:
        return self.rate, self.concurrency_limit

    @property
    def has_limits(self) -> bool:
        """Whether a rate or a limit is set."""
        return self._limits != _NO_LIMITS

    def has_limits_of(self, other: "KindSettings") -> bool:
        """Whether both have the same limits, whenever they were set."""
        return self._limits == other._limits

    @property
    def limits_in_words(self) -> str:
        """For people, such as "rate 10/s, burst 5, 2 per key"."""
        parts = [] if self.rate is None else [f"rate {self.rate}, burst {self.rate.burst}"]
        if self.concurrency_limit is not None:
            parts.append(f"{self.concurrency_limit} per key")
        return ", ".join(parts) or "no rate"

    def is_declared_as(self, declared: "KindSettings") -> bool:
        """Whether this has what is declared, whenever it was set. A declaration without any limit
        states nothing about limits."""
        if declared.has_limits and not self.has_limits_of(declared):
            return False
        return declared.policy is None or self.policy == declared.policy

    def as_change(self) -> "KindChange":
        """The change after which this declaration is in force."""
        policy = UNSET if self.policy is None else self.policy
        if not self.has_limits:
            return KindChange(kind=self.kind, policy=policy)
        return KindChange(
            kind=self.kind,
            rate=self.rate,
            concurrency_limit=self.concurrency_limit,
            policy=policy,
        )


_NO_LIMITS = (None, None)


class KindChange(msgspec.Struct, frozen=True, kw_only=True):
    """What to set for a kind. UNSET stays unchanged: a caller that sets one of them may not have
    read what another has just set for the other. None removes it. [RL5]"""

    kind: Kind
    rate: Rate | UnsetType | None = UNSET
    concurrency_limit: int | UnsetType | None = UNSET
    policy: Policy | UnsetType | None = UNSET

    @property
    def sets_limits(self) -> bool:
        """Whether it states a rate or a limit."""
        return any(each is not UNSET for each in (self.rate, self.concurrency_limit))


def changes_limits(before: KindSettings | None, after: KindSettings) -> bool:
    """Whether claims have to notice a change; they do not use a kind's policy."""
    known = before or KindSettings(kind=after.kind, limits_set=False)
    return msgspec.structs.replace(known, policy=after.policy) != after


def put_over(
    before: KindSettings | None, wanted: KindChange, now: Instant, *, only_new: bool = False
) -> KindSettings:
    """What is stored after this change of `before`; `before` itself if nothing is to be written.
    What stays the same keeps its instant, because `verify` checks rates and limits from there on;
    so does a limit that was removed. [RL5] [CK7]

    `only_new` is what a worker asks for: it sets limits where none were ever set, and a policy
    where there is none. [RL6] [F10]
    """
    if before is not None and only_new:
        wanted = _unknown_of(wanted, before)
        if wanted == KindChange(kind=before.kind):
            return before
    known = before or KindSettings(kind=wanted.kind, limits_set=False)
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
        limits_set=known.limits_set or wanted.sets_limits,
        policy=known.policy if wanted.policy is UNSET else wanted.policy,
    )


def _unknown_of(wanted: KindChange, before: KindSettings) -> KindChange:
    """The part of a worker's declaration that the store has never had."""
    policy = wanted.policy if before.policy is None else UNSET
    if before.limits_set:
        return KindChange(kind=wanted.kind, policy=policy)
    return msgspec.structs.replace(wanted, policy=policy)
