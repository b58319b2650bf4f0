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
from tenure.server.overviews import SharedOverviews
from tenure.server.quotas import Quotas
from tenure.server.settings import ServerSettings
from tenure.server.threads import Blocking
from tenure.server.waiting_claims import WaitingClaims
from tenure.telemetry.security import SecurityLog

READ_CLOCK_EVERY = seconds(10)


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
        self.listing = Blocking(settings.listing_calls)
        self.authenticator = Authenticator(coordinator.store, settings, self.blocking)
        self.quotas = Quotas(coordinator.store, self.blocking, monotonic)
        self.overviews = SharedOverviews(self._overview, monotonic)
        self.waiting_claims = WaitingClaims(coordinator, settings)
        self.followers = Followers(settings, self.listing, self.authenticator)
        self.memory = MemoryLimit(settings.max_memory_bytes)
        self.is_stopping = False
        self._monotonic = monotonic
        self._reading: tuple[Instant, int] | None = None

    async def now(self) -> Instant:
        """The store's clock, accurate enough for display and for ids."""
        if self._reading is None or self._monotonic() - self._reading[1] > READ_CLOCK_EVERY:
            read = await self.blocking(self.coordinator.store.now)
            self._reading = (read, self._monotonic())
        at, read_at = self._reading
        return Instant(at + self._monotonic() - read_at)

    async def _overview(self, wanted: OverviewFilter) -> Overview:
        return await self.listing(lambda: self.coordinator.store.overview(wanted))

    def stop(self) -> None:
        """Begin to shut down: waiting claims are answered, nothing new is granted."""
        self.is_stopping = True
        self.waiting_claims.stop()
        self.followers.stop()

    def close(self) -> None:
        """Stop the threads."""
        self.blocking.close()
        self.listing.close()
