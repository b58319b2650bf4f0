"""Outages: what this process saw of a store that failed or hung; and the store's clock between two
readings of it.

Commands, claims, the sweeper and readers of jobs call the store through `OutageWatch.call`. An
outage starts when the first unanswered call was sent, because a lease that ends while its holder
waits for an answer ended in the outage. [O5] Records nothing itself: the sweeper does, before it
expires a lease. [O6]
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import ParamSpec, TypeVar

from tenure.clock import Monotonic
from tenure.core.commands import Outage
from tenure.core.ids import Epoch
from tenure.core.instants import Duration, Instant, seconds
from tenure.errors import StoreUnavailable
from tenure.ports import Loaded, Saved, Tick

SHORTEST_OUTAGE = seconds(5)

LONGEST_PAUSE = seconds(60)
"""A failure this long after the last one starts another outage: a running sweeper would have ended
the first one. Only a process without one, which sweeps when it reads, can have such a gap."""

SWEEP_MARGIN = seconds(5)
"""For a sweep that takes long, beyond the time that one of its calls may take."""

OLDEST_READING = seconds(30)

LATEST_READING = seconds(1)
"""How long an answer may have been on its way. The estimated clock is late by up to this, and so is
the end of a lease that is granted by it: less than the margin of a worker, which counts from its
own request. [L8]"""

ESTIMATE_ERROR = seconds(2)
"""By how much the store's clock may differ from its estimate when a decision is written. If it
differs by more, the clock was set or the write waited: the decision is made again. [K11]"""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class OutageWatch:
    """Times calls to the store: since when it fails this process's calls, by the store's clock, and
    the time of that clock now. Thread-safe."""

    def __init__(self, monotonic: Monotonic, *, shortest_us: Duration = SHORTEST_OUTAGE) -> None:
        self.monotonic = self._monotonic = monotonic  # read it before a call
        self._shortest_us = shortest_us
        self._lock = Lock()
        # The store's clock, when it came, and the epoch if it came too. One tuple, assigned at
        # once: threads read it without the lock.
        self._reading: tuple[Instant, int, Epoch | None] | None = None
        self._failing: tuple[int, int] | None = None  # first call sent, last failure received

    def call(self, method: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
        """Call a method of the store. A failure may start an outage; the clock of an answer is
        read."""
        sent_us = self._monotonic()
        try:
            answer = method(*arguments, **named)
        except StoreUnavailable:
            self.failed(sent_us=sent_us)
            raise
        if isinstance(answer, Loaded):
            self.read_clock(answer.now, sent_us=sent_us, epoch=answer.epoch)
        elif isinstance(answer, (Saved, Tick)):
            self.read_clock(answer.now, sent_us=sent_us)
        return answer

    def is_late(self, sent_us: int) -> bool:
        """Whether a call sent then has waited longer than the shortest outage."""
        return self._monotonic() - sent_us > self._shortest_us

    @property
    def is_out(self) -> bool:
        """Whether there is an outage that no write has ended yet."""
        with self._lock:
            return self._failing is not None and self.is_late(self._failing[0])

    @property
    def is_failing(self) -> bool:
        """Whether a call failed that no write of the sweeper has followed yet."""
        return self._failing is not None

    def failed(self, *, sent_us: int) -> None:
        """The store did not answer a call."""
        received_us = self._monotonic()
        with self._lock:
            if self._failing is None or sent_us - self._failing[1] > LONGEST_PAUSE:
                self._failing = (sent_us, received_us)
            else:
                self._failing = (min(sent_us, self._failing[0]), received_us)

    def read_clock(self, now: Instant, *, sent_us: int, epoch: Epoch | None = None) -> None:
        """The store answered a call, and read its clock for it. Without an epoch that of the last
        reading is kept: it is checked at every write anyway."""
        received_us = self._monotonic()
        is_late = received_us - sent_us > self._shortest_us
        if is_late and now - self._instant(sent_us, now) > self._shortest_us:
            # A store that read its clock at once is well, even if its answer came late: then
            # this process was suspended.
            self.failed(sent_us=sent_us)
        if received_us - sent_us <= LATEST_READING:  # else this process or the store was suspended
            if epoch is None and self._reading is not None:
                epoch = self._reading[2]
            self._reading = (now, received_us, epoch)

    def estimate(self) -> tuple[Instant, Epoch] | None:
        """The store's clock and epoch as they should be by now; None without a recent reading,
        since the clock may have been set in the meantime."""
        if self._reading is None:
            return None
        now, read_at, epoch = self._reading
        elapsed = self._monotonic() - read_at
        if epoch is None or elapsed > OLDEST_READING:
            return None
        return Instant(now + elapsed), epoch

    def wrote(self, now: Instant, *, is_regular: bool = True) -> Outage | None:
        """The sweeper's write succeeded when the store's clock showed `now`; the outage that this
        ended, if it was long enough. Reads end none: SQLite reads while a lock keeps writers
        out. A process that sweeps only when it reads, and not regularly, may write long after its
        last failure: for all it knows, the outage ended with that failure."""
        with self._lock:
            failing, self._failing = self._failing, None
            if failing is None:
                return None
            since_us, until_us = failing
            if is_regular or not self.is_late(until_us):
                until_us, ended_at = self._monotonic(), now
            else:
                ended_at = self._instant(until_us, now)
            if until_us - since_us <= self._shortest_us:
                return None
            began_at = self._instant(since_us, now)
            return Outage(began_at, max(ended_at, began_at))

    def _instant(self, at_us: int, now: Instant) -> Instant:
        """What the store's clock showed at `at_us`: by an earlier reading, else counted back from
        the present one."""
        read_at, received_us, _ = self._reading or (now, self._monotonic(), None)
        return Instant(read_at + at_us - received_us)


class Writability:
    """Whether the store can be written, as far as this process knows without asking it: by the
    sweeper's passes, of which there is one every second. A store that was just opened counts as
    writable. [H88]"""

    def __init__(self, monotonic: Monotonic, *, timeout_s: float) -> None:
        self._monotonic = monotonic
        self._oldest_us = Duration(seconds(timeout_s) + SWEEP_MARGIN)
        self._has_failed = False
        self._written_us = monotonic()

    def wrote(self) -> None:
        """The sweeper has ticked and read the jobs that are due."""
        self._has_failed, self._written_us = False, self._monotonic()

    @contextmanager
    def judged(self) -> Iterator[None]:
        """A call that shows by its failure that the store cannot be written: the tick, which
        writes, and the search for jobs that are due, which needs their table. A single job that
        cannot be swept, because a caller's own transaction has locked its row, proves nothing."""
        try:
            yield
        except Exception:
            self._has_failed = True
            raise

    @property
    def is_writable(self) -> bool:
        """Whether the last pass succeeded, and was not too long ago."""
        return not self._has_failed and self._monotonic() - self._written_us <= self._oldest_us
