"""A thread that does something again and again, and survives whatever goes wrong in one run."""

import logging
import threading
from collections.abc import Callable

from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, seconds
from tenure.errors import Closed, TenureError

_log = logging.getLogger("tenure.periodic")


BEHIND_INTERVAL = seconds(0.1)
"""The pause while there is more to do: it leaves the store to others in between."""


class Periodic:
    """Runs `work` every interval until it is stopped or what it works on is closed; sooner after
    a run that says there is more to do."""

    def __init__(self, name: str, work: Callable[[], bool], *, interval_us: Duration) -> None:
        self._name = name
        self._work = work
        self._interval_s = interval_us / MICROSECONDS_PER_SECOND
        self._behind_s = min(interval_us, BEHIND_INTERVAL) / MICROSECONDS_PER_SECOND
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tenure-{name}", daemon=True)

    def start(self) -> None:
        """Begin; once."""
        self._thread.start()

    def stop(self) -> None:
        """End after the run under way, if any."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            is_behind = False
            try:
                is_behind = self._work()
            except Closed:
                return
            except TenureError as failure:
                _log.warning("%s failed, will try again: %s", self._name, failure)
            except Exception:
                # A bug of ours, or a row that cannot be read: it must not end all sweeping. [V1]
                _log.exception("%s failed unexpectedly, will try again", self._name)
            self._stop.wait(self._behind_s if is_behind else self._interval_s)
