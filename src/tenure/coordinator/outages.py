"""Outages: what this process saw of a store that failed or hung; and the store's clock between two
readings of it.

Every call to the store is timed by `watched`, whatever makes it: commands, claims and reads as well
as the sweeper. An outage starts when the first unanswered call was sent, because a lease that ends
while its holder waits for an answer ended in the outage. [O5] Records nothing itself: the sweeper
does, before it expires a lease. [O6]
"""

from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any, cast

from tenure.clock import Monotonic
from tenure.core.claims import ClaimPlan, ClaimView
from tenure.core.commands import Outage
from tenure.core.ids import Epoch, JobId
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.job import Job
from tenure.errors import StoreUnavailable
from tenure.ports import SUBJECTS, Loaded, Saved, Store

SHORTEST_OUTAGE = seconds(5)

LONGEST_PAUSE = seconds(60)
"""A failure so long after the last one is another outage: a sweeper that runs would have ended the
first one. Only a process that sweeps when it reads can be that late."""

SWEEP_MARGIN = seconds(5)
"""For a sweep that takes long, beyond the time that one of its calls may take."""

_UNWATCHED_SUBJECTS = frozenset({"views", "audit"})  # slow on a large store, even a healthy one

_UNWATCHED = frozenset(
    {
        *("events.page", "events.follow", "events.delay", "events.count"),
        *("workers.page", "flows.page", "flows.load", "settings.queues", "settings.kinds"),
        "upkeep.delete",
        *("upkeep.fold_progress", "upkeep.unfolded", "upkeep.save_fold", "flows.edges"),
    }
)


class OutageWatch:
    """Tracks since when the store fails this process's calls, by the store's clock. Thread-safe."""

    def __init__(self, monotonic: Monotonic, *, shortest_us: Duration = SHORTEST_OUTAGE) -> None:
        self.monotonic = self._monotonic = monotonic  # read it before a call
        self._shortest_us = shortest_us
        self._lock = Lock()
        self._reading: tuple[Instant, int] | None = None  # the store's clock, and when it came
        self._failing: tuple[int, int] | None = None  # first call sent, last failure received

    def is_late(self, sent_us: int) -> bool:
        """Whether a call sent then has waited longer than the shortest outage."""
        return self._monotonic() - sent_us > self._shortest_us

    @property
    def is_out(self) -> bool:
        """Whether an outage was seen that no write has ended yet."""
        with self._lock:
            return self._failing is not None and self.is_late(self._failing[0])

    @property
    def is_failing(self) -> bool:
        """Whether a call failed that no write of the sweeper has followed yet."""
        return self._failing is not None

    def failed(self, *, sent_us: int) -> None:
        """The store did not answer a call."""
        with self._lock:
            self._fail(sent_us)

    def read_clock(self, now: Instant, *, sent_us: int) -> None:
        """The store answered a call, and read its clock for it."""
        received_us = self._monotonic()
        with self._lock:
            is_late = received_us - sent_us > self._shortest_us
            if is_late and now - self._instant(sent_us, now) > self._shortest_us:
                # A store that read its clock at once is well, even if its answer came late: then
                # this process was suspended.
                self._fail(sent_us)
            if received_us - sent_us <= LATEST_READING:
                self._reading = (now, received_us)

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

    def _fail(self, sent_us: int) -> None:
        received_us = self._monotonic()
        if self._failing is None or sent_us - self._failing[1] > LONGEST_PAUSE:
            self._failing = (sent_us, received_us)
        else:
            self._failing = (min(sent_us, self._failing[0]), received_us)

    def _instant(self, at_us: int, now: Instant) -> Instant:
        """What the store's clock showed at `at_us`: by an earlier reading, else counted back from
        the present one."""
        read_at, received_us = self._reading or (now, self._monotonic())
        return Instant(read_at + at_us - received_us)


class Writability:
    """Whether the store can be written, as far as this process knows without asking it: by the
    sweeper's passes, of which there is one every second. A store that was just opened counts as
    writable. [H32]"""

    def __init__(self, monotonic: Monotonic, *, timeout_s: float) -> None:
        self._monotonic = monotonic
        self._oldest_us = Duration(seconds(timeout_s) + SWEEP_MARGIN)
        self._has_failed = False
        self._written_us = monotonic()

    def wrote(self) -> None:
        """The sweeper has ticked and read the jobs that are due."""
        self._has_failed, self._written_us = False, self._monotonic()

    def failed(self) -> None:
        """The sweeper could not tick, or not read the jobs that are due."""
        self._has_failed = True

    @property
    def is_writable(self) -> bool:
        """Whether the last pass succeeded, and was not too long ago."""
        return not self._has_failed and self._monotonic() - self._written_us <= self._oldest_us


def watched(store: Store, watch: OutageWatch) -> Store:
    """The store with every call timed, except calls that may take long by themselves."""
    return cast(Store, _Watched(store, watch))


class _WatchedSubject:
    """One subject of a store, with its calls timed."""

    def __init__(self, name: str, subject: Any, watched: "_Watched") -> None:
        self._name = name
        self._subject = subject
        self._watched = watched

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._subject, name)
        place = f"{self._name}.{name}"
        return found if place in _UNWATCHED else partial(self._watched.how(place), found)


class _Watched:
    def __init__(self, store: Store, watch: OutageWatch) -> None:
        self._store = store
        self._watch = watch
        self._timed: dict[str, Callable[..., Any]] = {
            "jobs.read": self._read,
            "claims.claim": self._claim,
            "upkeep.tick": self._tick,
        }

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name not in SUBJECTS or name in _UNWATCHED_SUBJECTS:
            return found
        subject = _WatchedSubject(name, found, self)
        setattr(self, name, subject)
        return subject

    def how(self, place: str) -> Callable[..., Any]:
        """How the method at this place is called."""
        return self._timed.get(place, self._call)

    def _read(
        self,
        method: Callable[..., dict[JobId, Job]],
        ids: Sequence[JobId],
        *,
        bodies: bool = True,
    ) -> dict[JobId, Job]:
        """By `load`, whose answer has the store's clock: it shows whether the store was late or
        this process was suspended."""
        if not bodies:
            return cast(dict[JobId, Job], self._call(method, ids, bodies=False))
        loaded: Loaded = self._call(self._store.jobs.load, ids)
        return loaded.jobs

    def _call(self, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        sent_us = self._watch.monotonic()
        try:
            answer = method(*arguments, **named)
        except StoreUnavailable:
            self._watch.failed(sent_us=sent_us)
            raise
        if isinstance(answer, Loaded | Saved):
            self._watch.read_clock(answer.now, sent_us=sent_us)
        return answer

    def _tick(self, method: Callable[[], tuple[Instant | None, Instant]]) -> Any:
        sent_us = self._watch.monotonic()
        last_tick, now = self._call(method)
        self._watch.read_clock(now, sent_us=sent_us)
        return last_tick, now

    def _claim(self, method: Callable[..., Any], *arguments: Any) -> Any:
        *others, plan = arguments
        sent_us = self._watch.monotonic()

        def timed(view: ClaimView) -> ClaimPlan:
            self._watch.read_clock(view.now, sent_us=sent_us)
            return cast(ClaimPlan, plan(view))

        return self._call(method, *others, timed)


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
        self.monotonic = self._monotonic = monotonic  # read it before a call, for `update`
        self._reading: tuple[Instant, int, Epoch] | None = None

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
