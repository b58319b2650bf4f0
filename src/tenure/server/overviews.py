"""Overviews that many viewers share: each is made once in two seconds, however many look. [OB30]

Viewers of the same namespace, scope and range get the same answer; one that comes while it is being
made waits for it. One that took long to make is shown for longer, so that looking never takes more
than a twentieth of a thread. Keeps a bounded number of answers.
"""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from tenure.clock import Monotonic
from tenure.core.instants import Duration, seconds
from tenure.core.overview import Overview, OverviewFilter

FRESH_FOR = seconds(2)
"""How old an answer may be that a viewer gets, at least."""

FRESH_PER_COST = 20
"""How much longer than its making an answer is shown."""

MAX_KEPT = 64
"""Answers that are kept. Each is at most a few hundred kilobytes."""


class _Kept(msgspec.Struct):
    answer: "asyncio.Task[Overview]"
    viewers: int = 0
    """How many wait for it."""
    made_at: int | None = None
    cost_us: int = 0


class SharedOverviews:
    """The overviews of a server, on its event loop."""

    def __init__(
        self,
        make: Callable[[OverviewFilter], Awaitable[Overview]],
        monotonic: Monotonic,
        *,
        fresh_for: Duration = FRESH_FOR,
    ) -> None:
        self._make = make
        self._monotonic = monotonic
        self._fresh_for = fresh_for
        self._kept: dict[OverviewFilter, _Kept] = {}

    async def get(self, wanted: OverviewFilter) -> Overview:
        """The overview, two seconds old at most, or twenty times what it took to make. Fails for
        everybody who waits for it if it cannot be made; the next viewer tries again."""
        kept = self._kept.get(wanted)
        if kept is None or not self._is_usable(kept):
            self._forget()
            kept = self._kept[wanted] = _Kept(asyncio.create_task(self._make_one(wanted)))
        kept.viewers += 1
        try:
            # Shielded: the others still wait when one viewer has gone.
            return await asyncio.shield(kept.answer)
        finally:
            kept.viewers -= 1
            if not kept.viewers and not kept.answer.done():
                # Viewers who leave must not leave work behind.
                self._drop(wanted, kept)
                kept.answer.cancel()

    async def _make_one(self, wanted: OverviewFilter) -> Overview:
        kept, began = self._kept[wanted], self._monotonic()
        try:
            overview = await self._make(wanted)
        except BaseException:
            self._drop(wanted, kept)
            raise
        kept.made_at = self._monotonic()
        kept.cost_us = kept.made_at - began
        return overview

    def _drop(self, wanted: OverviewFilter, kept: _Kept) -> None:
        """Forget this one, unless another one has taken its place."""
        if self._kept.get(wanted) is kept:
            del self._kept[wanted]

    def _is_usable(self, kept: _Kept) -> bool:
        if kept.made_at is None:
            return True
        fresh_for = max(self._fresh_for, FRESH_PER_COST * kept.cost_us)
        return self._monotonic() - kept.made_at < fresh_for

    def _forget(self) -> None:
        """Drop answers that are too old, and the first ones if there are too many; those that are
        being made stay, or their viewers would start them twice."""
        made = [wanted for wanted, kept in self._kept.items() if kept.made_at is not None]
        old = [wanted for wanted in made if not self._is_usable(self._kept[wanted])]
        for wanted in old or made[: max(0, len(self._kept) - MAX_KEPT + 1)]:
            del self._kept[wanted]
