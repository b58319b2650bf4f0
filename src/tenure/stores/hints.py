"""Hints: the watchers of a store, and the hints of a batch of changes.

Nothing here is durable or exact. A watcher that gets no hint polls. [Z7]
"""

import logging
import threading
from collections.abc import Callable, Iterable

from tenure.core.instants import Instant
from tenure.core.outcomes import Change
from tenure.ports import Hint, HintedChange, OnHint

_log = logging.getLogger("tenure.stores")

_READY, _LATER, _ENDED = HintedChange.READY, HintedChange.LATER, HintedChange.ENDED


class Watchers:
    """The functions that are called after changes. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.functions: dict[object, OnHint] = {}
        self.has_some = threading.Event()

    def add(self, on_hint: OnHint) -> Callable[[], None]:
        """Call this function with every hint, until the returned one is called."""
        key = object()
        with self._lock:
            self.functions[key] = on_hint
            self.has_some.set()

        def stop() -> None:
            with self._lock:
                self.functions.pop(key, None)
                if not self.functions:
                    self.has_some.clear()

        return stop

    def notify(self, hint: Hint | None) -> None:
        """Hand a hint to all of them."""
        with self._lock:
            functions = list(self.functions.values())
        for function in functions:
            try:
                function(hint)
            except Exception:  # a watcher's bug must not end the thread that calls the others
                _log.exception("a watcher failed")


def hints_of(changes: Iterable[Change], now: Instant) -> set[Hint]:
    """The hints of these committed changes."""
    found = set()
    for change in changes:
        for each in (change, *change.spawned) if change.spawned else (change,):
            job = each.job
            if job.not_before is not None:
                what = _READY if job.not_before <= now else _LATER
            elif job.finished_at is not None:
                what = _ENDED
            else:
                continue
            found.add((what, job.namespace, job.queue))
            if job.concurrency_key is not None:  # its next job may run; other queues poll [CK4]
                found.add((_READY, job.namespace, job.queue))
    return {Hint(*each) for each in found}
