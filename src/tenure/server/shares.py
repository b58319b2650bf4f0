"""Shares: how much of something limited one namespace may have, and one token of it. [H60]

Threads for lists, memory of large messages, and places of readers that wait are shared this way, so
that no tenant uses up what all of them need. Without a token there is nobody to tell apart.
"""

from collections import Counter
from typing import TypeVar

import msgspec

from tenure.core.ids import Namespace
from tenure.core.tokens import TokenId

OF_NAMESPACE = 3 / 4
"""Of everything that is shared, the most that one namespace may have."""

OF_TOKEN = 1 / 2
"""Of everything that is shared, the most that one token may have."""

_K = TypeVar("_K", Namespace, "Caller")


class Caller(msgspec.Struct, frozen=True):
    """For whom something is used."""

    namespace: Namespace
    token_id: TokenId


class Shares:
    """Counts what is used of a limited whole, in all, by namespace and by token. Only the event
    loop's thread uses it."""

    def __init__(self, whole: int) -> None:
        self._whole = whole
        self._of_namespace = max(1, int(whole * OF_NAMESPACE))
        self._of_token = max(1, int(whole * OF_TOKEN))
        self.used = 0
        self._by_namespace: Counter[Namespace] = Counter()
        self._by_token: Counter[Caller] = Counter()

    def has_room(self, caller: Caller | None, amount: int = 1) -> bool:
        """Whether this caller may use so much more."""
        if self.used + amount > self._whole:
            return False
        if caller is None:
            return True
        of_namespace, of_token = self.used_by(caller)
        return of_namespace + amount <= self._of_namespace and of_token + amount <= self._of_token

    def used_by(self, caller: Caller | None) -> tuple[int, int]:
        """How much the caller's namespace uses, and its token."""
        if caller is None:
            return 0, 0
        return self._by_namespace[caller.namespace], self._by_token[caller]

    def take(self, caller: Caller | None, amount: int = 1) -> None:
        """Count so much as used, whether or not there is room; a negative amount is given back."""
        self.used += amount
        if caller is not None:
            _add(self._by_namespace, caller.namespace, amount)
            _add(self._by_token, caller, amount)

    def give_back(self, caller: Caller | None, amount: int = 1) -> None:
        """Stop counting so much."""
        self.take(caller, -amount)


def _add(counts: Counter[_K], key: _K, amount: int) -> None:
    counts[key] += amount
    if not counts[key]:
        del counts[key]
