"""What all requests of a server share: coordinator, threads, tokens, quotas, waiting claims, and
answers that many viewers get: each is made once in a while, however many ask. [OB30] [DB15]
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import msgspec

from tenure.clock import Monotonic, boot_now
from tenure.coordinator.service import Coordinator
from tenure.core.ids import Namespace
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.views.overview import Overview, OverviewFilter
from tenure.server.limits import MemoryLimit, NamespaceLimits, Quotas, ServerSettings
from tenure.server.principals import Authenticator
from tenure.server.threads import Blocking, SharedBlocking
from tenure.server.waiting import Followers, WaitingClaims
from tenure.telemetry.security import SecurityLog

MAX_KEPT = 64
"""Answers that are kept. Each is at most a few hundred kilobytes."""

_Key = TypeVar("_Key", bound=Hashable)
_Answer = TypeVar("_Answer")


class _Kept(msgspec.Struct, Generic[_Answer]):
    answer: "asyncio.Task[_Answer]"
    viewers: int = 0
    """How many wait for it."""
    usable_until: int | None = None
    """By the monotonic clock; None while it is being made."""


class SharedAnswers(Generic[_Key, _Answer]):
    """The answers of one sort, on the event loop of a server. An answer is used for `fresh_for`,
    or for `fresh_per_cost` times as long as it took to make."""

    def __init__(
        self, monotonic: Monotonic, *, fresh_for: Duration, fresh_per_cost: int = 0
    ) -> None:
        self._monotonic = monotonic
        self._fresh_for = fresh_for
        self._fresh_per_cost = fresh_per_cost
        self._kept: dict[_Key, _Kept[_Answer]] = {}

    async def get(self, key: _Key, make: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """The answer. Fails for every caller that waits for it if it cannot be made; the next
        viewer tries again."""
        self._make_room(key)
        kept = self._kept.get(key)
        if kept is None:
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
        now = self._monotonic()
        fresh_for = max(self._fresh_for, self._fresh_per_cost * (now - began))
        kept.usable_until = now + fresh_for
        return answer

    def _drop(self, key: _Key, kept: _Kept[_Answer]) -> None:
        """Forget this one, unless another one has taken its place."""
        if self._kept.get(key) is kept:
            del self._kept[key]

    def _make_room(self, wanted: _Key) -> None:
        """Drop answers that are too old, the wanted one too. If there is still no room for it, drop
        the first one. Those that are being made stay, or their viewers would start them twice."""
        now = self._monotonic()
        made = [key for key, kept in self._kept.items() if kept.usable_until is not None]
        dropped = [key for key in made if now >= (self._kept[key].usable_until or 0)]
        if not dropped and wanted not in self._kept and len(self._kept) >= MAX_KEPT:
            dropped = made[:1]
        for key in dropped:
            del self._kept[key]


READ_CLOCK_EVERY = seconds(10)

METRICS_CALLS = 1
"""Threads for metrics: they answer also while the server's lists are slow. [H61]"""

PARSING_CALLS = 1
"""Threads for large payloads. Parsing holds the interpreter, and takes a multiple of the text in
memory: one at a time bounds both. [H89]"""

OVERVIEW_FRESH_FOR = seconds(2)
"""How old an overview may be that a viewer gets, at least."""

OVERVIEW_FRESH_PER_COST = 20
"""How much longer than its making an overview is used, so that reading it never takes more than a
twentieth of a thread."""


def no_metrics(namespace: Namespace | None) -> bytes:
    """The metrics of a server that measures nothing."""
    return b""


class Services:
    """Made once per server, on its event loop."""

    def __init__(
        self,
        coordinator: Coordinator,
        settings: ServerSettings,
        *,
        metrics: Callable[[Namespace | None], bytes] = no_metrics,
        security: SecurityLog | None = None,
        monotonic: Monotonic = boot_now,
    ) -> None:
        self.coordinator = coordinator
        self.settings = settings
        self.metrics = metrics
        self.security = security or SecurityLog()
        self.blocking = Blocking(settings.blocking_calls)
        self.listing = SharedBlocking(settings.listing_calls)
        self.measuring = SharedBlocking(METRICS_CALLS)
        self.parsing = SharedBlocking(PARSING_CALLS)
        self.authenticator = Authenticator(coordinator.store, settings, self.blocking)
        self.namespace_limits = NamespaceLimits(coordinator.store, settings, self.blocking)
        self.quotas = Quotas(coordinator.store, self.blocking, monotonic)
        self._overviews = SharedAnswers[OverviewFilter, Overview](
            monotonic,
            fresh_for=OVERVIEW_FRESH_FOR,
            fresh_per_cost=OVERVIEW_FRESH_PER_COST,
        )
        self.waiting_claims = WaitingClaims(coordinator, settings)
        self.followers = Followers(settings, self.listing, self.authenticator)
        self.memory = MemoryLimit(settings.max_memory_bytes)
        self.is_stopping = False
        self.monotonic = monotonic
        self._reading: tuple[Instant, int] | None = None

    async def now(self) -> Instant:
        """The store's clock, accurate enough for display and for ids."""
        if self._reading is None or self.monotonic() - self._reading[1] > READ_CLOCK_EVERY:
            read = await self.blocking(self.coordinator.store.now)
            self._reading = (read, self.monotonic())
        at, read_at = self._reading
        return Instant(at + self.monotonic() - read_at)

    async def overview(self, wanted: OverviewFilter) -> Overview:
        """What a namespace is doing; callers that ask for the same share the answer. [OB30]"""
        return await self._overviews.get(
            wanted, lambda: self.listing(lambda: self.coordinator.store.views.overview(wanted))
        )

    def stop(self) -> None:
        """Begin to shut down: waiting claims are answered, nothing new is granted."""
        self.is_stopping = True
        self.waiting_claims.stop()
        self.followers.stop()

    def close(self) -> None:
        """Stop the threads."""
        self.blocking.close()
        self.listing.close()
        self.measuring.close()
        self.parsing.close()
