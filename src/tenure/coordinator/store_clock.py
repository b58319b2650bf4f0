"""The store's clock between two readings of it.

The last reading plus monotonic time elapsed: good enough to decide by, because the store judges
`not_after` itself at the write. Never the host's wall clock.
"""

from tenure.clock import Monotonic
from tenure.core.ids import Epoch
from tenure.core.instants import Instant, seconds

OLDEST_READING = seconds(30)

LATEST_READING = seconds(1)
"""How long an answer may have been on its way. The clock is behind by as much, and so is the end of
a lease that is granted by it: less than the margin that a worker keeps, which counts from its own
request. [L8]"""

ESTIMATE_ERROR = seconds(2)
"""By how much the store's clock may differ from its estimate when a decision is written. If it
differs by more, the clock was set or the write waited: the decision is made again. [K11]"""


class StoreClock:
    """The last reading of the store's clock and epoch."""

    def __init__(self, monotonic: Monotonic) -> None:
        self._monotonic = monotonic
        self._reading: tuple[Instant, int, Epoch] | None = None

    def monotonic(self) -> int:
        """This process's monotonic time: read it before a call to the store, for `update`."""
        return self._monotonic()

    def update(self, now: Instant, epoch: Epoch, *, sent_at: int) -> None:
        """Take a fresh reading. A late one is ignored: this process or the store was suspended."""
        received_at = self._monotonic()
        if received_at - sent_at <= LATEST_READING:
            # One tuple, assigned at once: threads read it without a lock.
            self._reading = (now, received_at, epoch)

    def adjust(self, now: Instant, *, sent_at: int) -> None:
        """Take a reading of the clock alone; the epoch is checked at every write anyway."""
        if self._reading is not None:
            self.update(now, self._reading[2], sent_at=sent_at)

    def estimate(self) -> tuple[Instant, Epoch] | None:
        """The clock and the epoch as they should be by now; None without a recent reading, since
        the store's clock may have been set in the meantime."""
        if self._reading is None:
            return None
        now, read_at, epoch = self._reading
        elapsed = self._monotonic() - read_at
        return None if elapsed > OLDEST_READING else (Instant(now + elapsed), epoch)
