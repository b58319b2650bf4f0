"""Whether the coordinator answers, in few words: a line when it falls silent, another every half
minute, and one when it is back.

For people only, and pure: what is sent again, and which lease is given up, is decided without it.
"""

from tenure.clock import Boot
from tenure.core.instants import MICROSECONDS_PER_SECOND, seconds
from tenure.worker.messages import Note

REMIND_EVERY = seconds(30)


class Silence:
    """One session's. A silence soon after another is said when half a minute has passed since the
    beginning of that one was, so that a line that comes and goes does not fill the log."""

    def __init__(self) -> None:
        self.is_said = False  # nobody answers, and people were told
        self._since: Boot | None = None  # the first failure after the last answer
        self._begin_said_at: Boot | None = None  # of this silence, or of the last one
        self._said_at: Boot | None = None

    def failed(self, what: str, why: str, now: Boot) -> list[Note]:
        """A request got no answer; what people should read about it."""
        if self._since is None:
            self._since = now
        if self._said_at is not None and now < self._said_at + REMIND_EVERY:
            return []
        is_reminder, self.is_said, self._said_at = self.is_said, True, now
        if is_reminder:
            return [Note(f"still no answer, for {_in_seconds(self._since, now):.0f} s now: {why}")]
        self._begin_said_at = now
        return [Note(f"{what} got no answer, will ask until there is one: {why}")]

    def ended(self, now: Boot) -> list[Note]:
        """An answer came; what people should read about it."""
        since, was_said = self._since, self.is_said
        self._since, self.is_said, self._said_at = None, False, self._begin_said_at
        if since is None or not was_said:
            return []
        return [Note(f"there are answers again, after {_in_seconds(since, now):.1f} s without")]


def _in_seconds(since: Boot, now: Boot) -> float:
    return (now - since) / MICROSECONDS_PER_SECOND
