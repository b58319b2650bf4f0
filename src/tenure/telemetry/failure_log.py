"""Which lines about something that keeps failing reach the log: its beginning, a reminder every
half minute, and its end. A failure that comes and goes is logged at most twice in half a minute.

Pure: callers give the time and find the words.
"""

import msgspec

from tenure.clock import Boot
from tenure.core.instants import Duration, seconds

REMIND_EVERY = seconds(30)


class FailureLine(msgspec.Struct, frozen=True):
    """A line to be logged."""

    is_reminder: bool
    lasts_us: Duration


class FailureLog:
    """The lines of one thing that can fail."""

    def __init__(self) -> None:
        self.is_reported = False  # it fails, and the log says so
        self._failing_since: Boot | None = None
        self._beginning_logged_at: Boot | None = None  # of this failure, or of the one before
        self._logged_at: Boot | None = None

    def failed(self, now: Boot) -> FailureLine | None:
        """It failed; the line to be logged, if any."""
        if self._failing_since is None:
            self._failing_since = now
        if self._logged_at is not None and now < self._logged_at + REMIND_EVERY:
            return None
        is_reminder, self.is_reported, self._logged_at = self.is_reported, True, now
        if not is_reminder:
            self._beginning_logged_at = now
        return FailureLine(is_reminder, Duration(now - self._failing_since))

    def succeeded(self, now: Boot) -> Duration | None:
        """It works; how long it did not, if that is to be logged."""
        since, was_reported = self._failing_since, self.is_reported
        self._failing_since, self.is_reported = None, False
        self._logged_at = self._beginning_logged_at
        return Duration(now - since) if since is not None and was_reported else None
