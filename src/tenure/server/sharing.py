"""Answers that many viewers share: each is made once in a while, however many look. [OB30] [DB15]

Viewers who ask for the same get the same answer; one that comes while it is being made waits for
it. One that took long to make may be shown for longer. Keeps a bounded number of answers. Who may
share is the caller's business: it puts everything that an answer depends on into the key.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from tenure.clock import Monotonic
from tenure.core.instants import Duration

MAX_KEPT = 64
"""Answers that are kept. Each is at most a few hundred kilobytes."""

_Key = TypeVar("_Key", bound=Hashable)
_Answer = TypeVar("_Answer")


class _Kept(msgspec.Struct, Generic[_Answer]):
    answer: "asyncio.Task[_Answer]"
    viewers: int = 0
    """How many wait for it."""
    made_at: int | None = None
    cost_us: int = 0


class SharedAnswers(Generic[_Key, _Answer]):
    """The answers of one sort, on the event loop of a server. An answer is shown for `fresh_for`,
    or for `fresh_per_cost` times as long as it took to make."""

    def __init__(
        self, monotonic: Monotonic, *, fresh_for: Duration, fresh_per_cost: int = 0
    ) -> None:
        self._monotonic = monotonic
        self._fresh_for = fresh_for
        self._fresh_per_cost = fresh_per_cost
        self._kept: dict[_Key, _Kept[_Answer]] = {}

    async def get(self, key: _Key, make: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """The answer. Fails for everybody who waits for it if it cannot be made; the next viewer
        tries again."""
        kept = self._kept.get(key)
        if kept is None or not self._is_usable(kept):
            self._forget()
            kept = self._kept[key] = _Kept(asyncio.create_task(self._make_one(key, make)))
        kept.viewers += 1
        try:
            # Shielded: the others still wait when one viewer has gone.
            return await asyncio.shield(kept.answer)
        finally:
            kept.viewers -= 1
            if not kept.viewers and not kept.answer.done():
                # Viewers who leave must not leave work behind.
                self._drop(key, kept)
                kept.answer.cancel()

    async def _make_one(self, key: _Key, make: Callable[[], Awaitable[_Answer]]) -> _Answer:
        kept, began = self._kept[key], self._monotonic()
        try:
            answer = await make()
        except BaseException:
            self._drop(key, kept)
            raise
        kept.made_at = self._monotonic()
        kept.cost_us = kept.made_at - began
        return answer

    def _drop(self, key: _Key, kept: _Kept[_Answer]) -> None:
        """Forget this one, unless another one has taken its place."""
        if self._kept.get(key) is kept:
            del self._kept[key]

    def _is_usable(self, kept: _Kept[_Answer]) -> bool:
        if kept.made_at is None:
            return True
        fresh_for = max(self._fresh_for, self._fresh_per_cost * kept.cost_us)
        return self._monotonic() - kept.made_at < fresh_for

    def _forget(self) -> None:
        """Drop answers that are too old, and the first ones if there are too many; those that are
        being made stay, or their viewers would start them twice."""
        made = [key for key, kept in self._kept.items() if kept.made_at is not None]
        old = [key for key in made if not self._is_usable(self._kept[key])]
        for key in old or made[: max(0, len(self._kept) - MAX_KEPT + 1)]:
            del self._kept[key]
