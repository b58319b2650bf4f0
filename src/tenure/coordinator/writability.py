"""Whether the store can be written, as far as this process knows without asking.

Judged from the sweeper's passes, of which there is one every second: whoever wants to know costs
the store nothing. [H32]
"""

from tenure.clock import Monotonic
from tenure.core.instants import Duration, seconds

MARGIN = seconds(5)
"""For a sweep that takes long, beyond the time that one of its calls may take."""


class Writability:
    """What became of the sweeper's last pass. A store that was just opened counts as writable."""

    def __init__(self, monotonic: Monotonic, *, timeout_s: float) -> None:
        self._monotonic = monotonic
        self._oldest_us = Duration(seconds(timeout_s) + MARGIN)
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
