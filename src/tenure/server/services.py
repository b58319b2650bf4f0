"""What all requests of a server share: coordinator, threads, tokens, quotas, waiting claims."""

from collections.abc import Callable

from tenure.clock import Monotonic, boot_now
from tenure.coordinator.service import Coordinator
from tenure.core.ids import Namespace
from tenure.core.instants import Instant, seconds
from tenure.core.overview import Overview, OverviewFilter
from tenure.server.authentication import Authenticator
from tenure.server.followers import Followers
from tenure.server.memory import MemoryLimit
from tenure.server.namespace_limits import NamespaceLimits
from tenure.server.quotas import Quotas
from tenure.server.settings import ServerSettings
from tenure.server.sharing import SharedAnswers
from tenure.server.threads import Blocking, SharedBlocking
from tenure.server.waiting_claims import WaitingClaims
from tenure.telemetry.security import SecurityLog

READ_CLOCK_EVERY = seconds(10)

METRICS_CALLS = 1
"""Threads for metrics: whoever watches a server sees it also while its lists are slow. [H61]"""

PARSING_CALLS = 1
"""Threads for large payloads. Parsing holds the interpreter, and takes a multiple of the text in
memory: one at a time bounds both. [H85]"""

OVERVIEW_FRESH_FOR = seconds(2)
"""How old an overview may be that a viewer gets, at least."""

OVERVIEW_FRESH_PER_COST = 20
"""How much longer than its making an overview is shown, so that looking never takes more than a
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
        """What a namespace is doing; those who ask for the same share the answer. [OB30]"""
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
