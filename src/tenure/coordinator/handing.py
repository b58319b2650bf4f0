"""Handing over: what a process without metrics of its own has counted goes to those that have some.

Producers, handlers that enqueue, workers nobody scrapes: all of them write events, and only the
numbers of some processes are ever looked at. So once a second, and when it ends, such a process
leaves its counts in the store, where the next reading of another's metrics finds them. [OB7]
"""

import atexit
import logging
import os

from tenure.coordinator.periodic import Periodic
from tenure.core.instants import Duration, seconds
from tenure.errors import TenureError
from tenure.observing.counts import Counts
from tenure.ports import Store

INTERVAL = seconds(1)
PAGE = 1000

_log = logging.getLogger("tenure.handing")


class HandingOver:
    """Hands over the counts of this process: once, or from `start` to `stop`."""

    def __init__(self, store: Store, counts: Counts, *, interval_us: Duration = INTERVAL) -> None:
        self._store = store
        self._counts = counts
        self._periodic = Periodic("handing-over", self._run, interval_us=interval_us)
        self._is_failing = False
        self._pid = os.getpid()

    def start(self) -> None:
        """Begin; once. A program that ends without closing anything hands over what it has."""
        self._periodic.start()
        atexit.register(self._end)

    def stop(self) -> None:
        """Hand over the rest and end."""
        atexit.unregister(self._end)
        self._periodic.stop()
        self._end()

    def _end(self) -> None:
        # A forked child has its parent's counts and connections, and neither is its own. Nobody
        # waits for a store that did not answer a second ago: the numbers are not worth that.
        if self._is_failing or self._pid != os.getpid():
            return
        try:
            self.hand_over()
        except TenureError as failure:
            _log.warning("the last counts of this process are not handed over: %s", failure)

    def _run(self) -> bool:
        self.hand_over()
        return False

    def hand_over(self) -> None:
        """Leave in the store what was counted since the last time, if anything was."""
        counted = self._counts.take()
        if counted is None:
            return
        self._is_failing = True
        try:
            self._store.hand_over_counts(counted)
        except TenureError as failure:
            if failure.nothing_changed:
                self._counts.add(counted)
            raise
        self._is_failing = False


def take_over(store: Store, counts: Counts) -> None:
    """Add what others have handed over."""
    while True:
        handed = store.take_counts(limit=PAGE)
        for each in handed:
            counts.add(each)
        if len(handed) < PAGE:
            return
