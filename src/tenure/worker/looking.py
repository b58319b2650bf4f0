"""When a worker looks at its leases between two heartbeats, and what it makes of what it sees.

A heartbeat is how a worker hears of a cancel, and a write: often enough for a lease, every fifteen
seconds or so, is too seldom for somebody who waits for a job to stop. A look is a read. It decides
nothing: where there is news, the next heartbeat is due at once, and brings the verdict. [C2]
"""

from collections.abc import Iterable

from tenure.core.beside import HeldLease
from tenure.core.instants import seconds
from tenure.telemetry.tracing import concerning
from tenure.worker.attempts import Attempt, Phase
from tenure.worker.clock import NEVER, Boot
from tenure.worker.messages import Look, Looked

LOOK_INTERVAL = seconds(1)
"""Also the age from which on an attempt is looked at: a worker of quick jobs never looks."""

AFTER_A_FAILURE = seconds(15)
FOUND_WITHIN = seconds(20)


class Looker:
    """Keeps the time of the looks of one session; one is under way at most."""

    def __init__(self) -> None:
        self._next_at = Boot(0)

    def look(self, attempts: Iterable[Attempt], now: Boot) -> Look | None:
        """What to look at now, if anything."""
        seen = [each for each in attempts if _looks_at(each) <= now]
        if not seen or now < self._next_at:
            return None
        self._next_at = Boot(now + FOUND_WITHIN)
        leases = {each.run: HeldLease(each.grant.job_id, each.grant.lease_id) for each in seen}
        return Look(leases, concerning(each.grant.job for each in seen))

    def next_at(self, attempts: Iterable[Attempt]) -> Boot:
        """When there will be something to look at."""
        first_at = min((_looks_at(each) for each in attempts), default=NEVER)
        return Boot(max(first_at, self._next_at))

    def looked(self, found: Looked, now: Boot) -> None:
        """A look came back."""
        self._next_at = Boot(now + (AFTER_A_FAILURE if found.news is None else LOOK_INTERVAL))


def _looks_at(attempt: Attempt) -> Boot:
    if attempt.phase is not Phase.RUNNING or not attempt.is_open or attempt.start_sent_at is None:
        return NEVER
    return Boot(attempt.start_sent_at + LOOK_INTERVAL)
