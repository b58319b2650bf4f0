"""When something has to be looked at again: a heap of instants, so that nothing is walked through.

Knows numbers and instants, nothing else. One instant per number. An entry that was replaced or
dropped stays in the heap until it surfaces or until such entries outnumber the valid ones.
"""

from heapq import heapify, heappop, heappush

from tenure.clock import NEVER, Boot

SPARE_ENTRIES = 64
"""A small heap is not worth tidying up."""


class Timers:
    """For each number the instant by which it is due."""

    def __init__(self) -> None:
        self._at: dict[int, Boot] = {}
        self._heap: list[tuple[Boot, int]] = []
        self.visits = 0  # entries that were looked at, for tests of the cost

    def __len__(self) -> int:
        return len(self._at)

    def by(self, number: int, at: Boot) -> None:
        """It is due by then, or sooner if that was said before."""
        planned = self._at.get(number)
        if planned is None or at < planned:
            self.put(number, at)

    def put(self, number: int, at: Boot) -> None:
        """It is due then, whatever was said before."""
        self._at[number] = at
        heappush(self._heap, (at, number))
        if len(self._heap) > 2 * len(self._at) + SPARE_ENTRIES:
            self.visits += len(self._at)
            self._heap = [(each_at, each) for each, each_at in self._at.items()]
            heapify(self._heap)

    def drop(self, number: int) -> None:
        """It is never due."""
        self._at.pop(number, None)

    def first(self) -> int | None:
        """The number that is due first."""
        while self._heap:
            at, number = self._heap[0]
            if self._at.get(number) == at:
                return number
            self.visits += 1
            heappop(self._heap)
        return None

    @property
    def next_at(self) -> Boot:
        """When the first one is due."""
        first = self.first()
        return NEVER if first is None else self._at[first]

    def due(self, now: Boot) -> list[int]:
        """Those that are due now; they are forgotten."""
        numbers: list[int] = []
        while (first := self.first()) is not None and self._at[first] <= now:
            self.visits += 1
            heappop(self._heap)
            del self._at[first]
            numbers.append(first)
        return numbers
