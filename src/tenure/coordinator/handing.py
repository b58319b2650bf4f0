"""Handing over: what a process without metrics of its own has counted goes to those that have some.

Producers, handlers that enqueue, workers nobody scrapes: all of them write events, and only the
numbers of some processes are ever looked at. So once a second, and when it ends, such a process
leaves its counts in the store, and a process with metrics takes what it finds there. [OB7] Neither
keeps anybody waiting: numbers are not worth that.
"""

import atexit
import logging
import os

from tenure.coordinator.periodic import Periodic
from tenure.core.instants import Duration, seconds
from tenure.errors import TenureError
from tenure.ports import Store
from tenure.telemetry.counts import Counts

INTERVAL = seconds(1)
LAST_WORDS_WITHIN_S = 1.0
"""How long the end of a process waits for its last counts to be written."""
PAGE = 1000

_log = logging.getLogger("tenure.handing")


class HandingOver:
    """Hands over the counts of this process: once, or from `start` to `stop`."""

    def __init__(
        self,
        store: Store,
        counts: Counts,
        *,
        interval_us: Duration = INTERVAL,
        last_words_within_s: float = LAST_WORDS_WITHIN_S,
    ) -> None:
        self._store = store
        self._counts = counts
        self._last_words_within_s = last_words_within_s
        self._periodic = Periodic(
            "handing-over", self._run, interval_us=interval_us, runs_at_end=True
        )
        self._pid = os.getpid()

    def start(self) -> None:
        """Begin; once. A program that ends without closing anything hands over what it has."""
        self._periodic.start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Hand over the rest and end."""
        if self._pid != os.getpid():
            return  # a forked child has its parent's counts and connections: neither is its own
        atexit.unregister(self.stop)
        if not self._periodic.stop(within_s=self._last_words_within_s):
            _log.warning("the last counts of this process are not handed over: no answer in time")

    def _run(self) -> bool:
        self.hand_over()
        return False

    def hand_over(self) -> None:
        """Leave in the store what was counted since the last time, if anything was."""
        counted = self._counts.take()
        if counted is None:
            return
        try:
            self._store.hand_over_counts(counted)
        except TenureError as failure:
            if failure.nothing_changed:
                self._counts.add(counted)
            raise


class TakingOver:
    """Adds what others have handed over to counts that are shown: once, or from `start` to
    `stop`."""

    def __init__(self, store: Store, counts: Counts, *, interval_us: Duration = INTERVAL) -> None:
        self._store = store
        self._counts = counts
        self._periodic = Periodic("taking-over", self.take_over, interval_us=interval_us)
        self.start, self.stop = self._periodic.start, self._periodic.stop

    def take_over(self) -> bool:
        """Take a page; whether there may be more."""
        handed = self._store.take_counts(limit=PAGE)
        for each in handed:
            self._counts.add(each)
        return len(handed) == PAGE
