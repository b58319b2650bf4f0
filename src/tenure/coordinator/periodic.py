"""A thread that runs something periodically, and continues after a run that failed."""

import logging
import threading
from collections.abc import Callable

from tenure.clock import boot_now
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, seconds
from tenure.errors import Closed, TenureError
from tenure.telemetry.log_lines import FailureLog

_log = logging.getLogger("tenure.periodic")


BEHIND_INTERVAL = seconds(0.1)
"""The pause while there is more to do: it leaves the store to others in between."""


STOP_WITHIN_S = 5.0


SHORTEST_PAUSE_S = 0.005


class Periodic:
    """Runs `work` every interval until it is stopped or what it works on is closed; sooner after
    a run that returns that there is more to do, and after `next_in` if it returns a time."""

    def __init__(
        self,
        name: str,
        work: Callable[[], bool],
        *,
        interval_us: Duration,
        next_in: Callable[[], Duration | None] = lambda: None,
    ) -> None:
        self._name = name
        self._work = work
        self._next_in = next_in
        self._interval_s = interval_us / MICROSECONDS_PER_SECOND
        self._behind_s = min(interval_us, BEHIND_INTERVAL) / MICROSECONDS_PER_SECOND
        self._failure_log = FailureLog()  # a sweeper fails twice a second without its store
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tenure-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread. Call it once."""
        self._thread.start()

    def stop(self, *, within_s: float = STOP_WITHIN_S) -> bool:
        """End after the run under way, if any. Returns whether it has ended. A run that hangs with
        its store is left behind: it ends with the process."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(within_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                is_behind = self._run_once()
            except Closed:
                return
            self._stop.wait(self._behind_s if is_behind else self._pause_s())

    def _pause_s(self) -> float:
        next_in = self._next_in()
        if next_in is None:
            return self._interval_s
        return max(SHORTEST_PAUSE_S, next_in / MICROSECONDS_PER_SECOND)

    def _run_once(self) -> bool:
        try:
            is_behind = self._work()
        except Closed:
            raise
        except TenureError as failure:
            if self._failure_log.failed(boot_now()) is not None:
                _log.warning("%s failed, will try again: %s", self._name, failure)
            return False
        except Exception:
            # A bug of ours, or a row that cannot be read: it must not end all sweeping. [V1]
            _log.exception("%s failed unexpectedly, will try again", self._name)
            return False
        failed_us = self._failure_log.succeeded(boot_now())
        if failed_us is not None:
            failed_s = failed_us / MICROSECONDS_PER_SECOND
            _log.info("%s works again, after %.1f s", self._name, failed_s)
        return is_behind
