"""When to ask again: a few times within a minute, at random within a growing span. Pure.

Full jitter, so that callers whom one outage stopped do not come back in step. A server's
`Retry-After` is the least that is waited.
"""

from collections.abc import Callable

from tenure.remote.settings import Patience

Random = Callable[[], float]
"""Evenly from [0, 1)."""


class Retries:
    """The tries of one request."""

    def __init__(self, patience: Patience, *, began_s: float, random: Random) -> None:
        self._patience = patience
        self._ends_at_s = began_s + patience.within_s
        self._random = random
        self._tries = 0

    def pause_s(self, now_s: float, *, at_least_s: float = 0.0) -> float | None:
        """How long to wait before the next try, after one more that failed; None: no more."""
        self._tries += 1
        if self._tries >= self._patience.tries:
            return None
        grown_s = self._patience.first_pause_s * float(2 ** (self._tries - 1))
        pause_s = at_least_s + self._random() * min(grown_s, self._patience.longest_pause_s)
        return pause_s if now_s + pause_s < self._ends_at_s else None
