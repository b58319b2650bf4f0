"""Wakes a worker when a queue may have a ready job, so that it need not poll often.

Listens to the store's hints and keeps a timer for the next job that is due. It claims nothing, and
the worker still polls: a hint may be missing. [Z7]
"""

import logging
import threading
from collections.abc import Callable, Sequence

from tenure.core.ids import Namespace, QueueName
from tenure.core.instants import MICROSECONDS_PER_SECOND
from tenure.errors import TenureError
from tenure.ports import Hint, HintedChange, Store

NOT_WANTED_S = 0.01
"""While the worker does not wait for jobs: the pause before a hint is considered again."""

LONGEST_TIMER_S = 30.0
"""The timer is set again after this long at most: the store's clock may have been set."""

_log = logging.getLogger("tenure.coordinator")


class ReadyWatch:
    """Calls `wake` when there may be work in these queues. Start it once, and stop it."""

    def __init__(
        self,
        store: Store,
        namespace: Namespace,
        queues: Sequence[QueueName],
        *,
        wake: Callable[[], None],
        is_wanted: Callable[[], bool],
    ) -> None:
        """While `is_wanted` returns False, the store is not asked what a hint was about."""
        self._store = store
        self._namespace = namespace
        self._queues = tuple(queues)
        self._wake = wake
        self._is_wanted = is_wanted
        self._changed = threading.Event()
        self._paused = threading.Event()
        self._stopping = False
        self._hints_arrived = False
        self._thread = threading.Thread(target=self._run, name="tenure-ready", daemon=True)
        self._unwatch: Callable[[], None] | None = None

    def start(self) -> None:
        """Start to listen."""
        self._unwatch = self._store.watch(self._on_hint)
        self._hints_arrived = self._store.hints_arrive
        self._thread.start()

    def stop(self) -> None:
        """Stop listening, and wait for the thread."""
        if self._unwatch is not None:
            self._unwatch()
        self._stopping = True
        self._changed.set()
        self._paused.set()
        self._thread.join()

    def _on_hint(self, hint: Hint | None) -> None:
        if hint is None:
            self._changed.set()
            had_arrived, self._hints_arrived = self._hints_arrived, self._store.hints_arrive
            if had_arrived and not self._hints_arrived:
                self._wake()  # it ends a long pause, and polls often from now on [V5]
        elif hint.namespace == self._namespace and hint.queue in self._queues:
            if hint.change is HintedChange.READY:
                self._wake()  # at once: the store is not asked first
            elif hint.change is HintedChange.LATER:
                self._changed.set()

    def _run(self) -> None:
        pause_s = 0.0
        while True:
            self._changed.wait(pause_s)
            if self._stopping:
                return
            if not self._is_wanted():
                self._changed.set()  # kept for when the worker waits again
                self._paused.wait(NOT_WANTED_S)
                continue
            self._changed.clear()
            pause_s = self._check()

    def _check(self) -> float:
        """Wake the worker if a job is ready. Returns the seconds until the next one is due."""
        try:
            found = self._store.claims.next_ready(self._namespace, self._queues)
        except TenureError as failure:  # the worker's own polling will find out
            _log.debug("the next job is not known: %s", failure)
            return LONGEST_TIMER_S
        if found.is_ready:
            self._wake()
        if found.later_in_us is None:
            return LONGEST_TIMER_S
        return min(found.later_in_us / MICROSECONDS_PER_SECOND, LONGEST_TIMER_S)
