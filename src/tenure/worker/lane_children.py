"""The children of one lane by what they can do, the attempts that wait for one, how many children
are missing, and how many attempts begin at once.

Pure bookkeeping, and every answer takes the same time however many children there are. Starts and
ends no process.
"""

from collections import deque
from typing import TYPE_CHECKING

from tenure.clock import NEVER, Boot
from tenure.core.instants import seconds
from tenure.handlers.registry import Isolation

if TYPE_CHECKING:
    from tenure.worker.children import Child

MOMENT = seconds(0.005)
"""An attempt that has not ended after so long is not short: nobody waits for its child any more."""


class RecentlyBegun:
    """The attempts that began a moment ago and have not ended. While there are a few, others wait.

    Of many short jobs that come at once each would wake a process of its own, whose memory is no
    longer in the processor's caches: a job that does nothing cost its child 300 µs of CPU in one of
    32 processes, 130 µs in one of 4 that took turns. So a few begin, and the next one where one has
    just ended. Jobs that have not ended after a moment are not short: then all begin.
    """

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._begun_at: dict[int, Boot] = {}  # by run, the oldest first

    def begun(self, run: int, now: Boot) -> None:
        """It begins."""
        self._begun_at[run] = now

    def ended(self, run: int) -> None:
        """It has ended, or never began."""
        self._begun_at.pop(run, None)

    def forget(self) -> None:
        """As if none of them had begun a moment ago."""
        self._begun_at.clear()

    def has_room(self, now: Boot) -> bool:
        """Whether another one may begin now."""
        while self._begun_at and now >= self.next_at:
            del self._begun_at[next(iter(self._begun_at))]
        return len(self._begun_at) < self._most

    @property
    def next_at(self) -> Boot:
        """When the oldest of them has run for more than a moment."""
        for begun_at in self._begun_at.values():
            return Boot(begun_at + MOMENT)
        return NEVER


class LaneChildren:
    """Children of one lane. One that may take no more work has left, even if it still runs."""

    def __init__(self, lane: Isolation, *, warm: int, most: int, most_starting: int) -> None:
        self._lane = lane
        self._warm = warm
        self._most = most
        self._most_starting = most_starting
        self._starting: set[Child] = set()
        self._serving: set[Child] = set()
        self._expiring: set[Child] = set()  # serve until their successor does, or are worn out
        self._free: deque[Child] = deque()  # the right end is taken first
        self.waiting: dict[int, None] = {}  # runs without a child, the oldest first

    @property
    def serving(self) -> int:
        """How many children can run attempts."""
        return len(self._serving)

    @property
    def has_free(self) -> bool:
        """Whether a child could take an attempt."""
        return bool(self._free)

    @property
    def missing(self) -> int:
        """How many children to start now: enough for all attempts, and the warm ones; for each that
        expires a successor. When all are taken, one more, because a claim asks for no more jobs
        than have a child. Only a few start at a time: until they are ready, others may have run
        the attempts that wait."""
        lasting = len(self._starting) + len(self._serving) - len(self._expiring)
        if self._lane is not Isolation.PROCESS:
            return 0 if lasting else 1
        attempts = len(self._serving) - len(self._free) + len(self.waiting)
        if attempts == len(self._serving) < self._most and not self._starting:
            attempts += 1
        wanted = max(self._warm, attempts) - lasting
        return max(0, min(wanted, self._most_starting - len(self._starting)))

    # --- children come and go ------------------------------------------------------------------

    def started(self, child: "Child") -> None:
        """Its process was started."""
        self._starting.add(child)

    def ready(self, child: "Child") -> list["Child"]:
        """It can run attempts. Returns those that it replaces in a shared lane."""
        self._starting.discard(child)
        self._serving.add(child)
        self._free.appendleft(child)  # the last choice: those before it are used up first
        return [] if self._lane is Isolation.PROCESS else list(self._expiring)

    def expire(self, child: "Child") -> None:
        """It will leave soon: its successor is started now."""
        if child in self._serving:
            self._expiring.add(child)

    def leave(self, child: "Child") -> None:
        """It takes no more work: it retires, was killed, or is gone."""
        self._starting.discard(child)
        self._expiring.discard(child)
        if child in self._serving:
            self._serving.discard(child)
            if child in self._free:
                self._free.remove(child)

    # --- attempts ------------------------------------------------------------------------------

    def take(self) -> "Child | None":
        """A child for one attempt; a process child is taken for it alone."""
        if not self._free:
            return None
        return self._free.pop() if self._lane is Isolation.PROCESS else self._free[-1]

    def give_back(self, child: "Child") -> None:
        """An attempt in it has ended."""
        if self._lane is Isolation.PROCESS and child in self._serving:
            self._free.append(child)
