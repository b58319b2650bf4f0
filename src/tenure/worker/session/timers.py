"""When something is due again: a heap of instants, so that nothing is walked through.

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

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, number: int) -> bool:
        return number in self._at

    @property
    def next_at(self) -> Boot:
        """When the first number is due."""
        while self._heap:
            at, number = self._heap[0]
            if self._at.get(number) == at:
                return at
            heappop(self._heap)
        return NEVER

    def by(self, number: int, at: Boot) -> None:
        """Make it due by then, or sooner if an earlier call set an earlier time."""
        planned = self._at.get(number)
        if planned is None or at < planned:
            self.put(number, at)

    def put(self, number: int, at: Boot) -> None:
        """Make it due then, whatever earlier calls set."""
        self._at[number] = at
        heappush(self._heap, (at, number))
        if len(self._heap) > 2 * len(self._at) + SPARE_ENTRIES:
            self._heap = [(each_at, each) for each, each_at in self._at.items()]
            heapify(self._heap)

    def drop(self, number: int) -> None:
        """It is never due."""
        self._at.pop(number, None)

    def first(self) -> int | None:
        """The number that is due first."""
        return None if self.next_at == NEVER else self._heap[0][1]

    def due(self, now: Boot) -> list[int]:
        """Remove and return the numbers that are due now."""
        numbers: list[int] = []
        while self.next_at <= now:
            numbers.append(self._heap[0][1])
            self.drop(numbers[-1])
        return numbers


class LatestOf:
    """For each number an instant; knows the latest of them."""

    def __init__(self) -> None:
        self._negated = Timers()

    def put(self, number: int, at: Boot) -> None:
        """The instant of this number, in place of the one before."""
        self._negated.put(number, Boot(-at))

    def drop(self, number: int) -> None:
        """It has none any more."""
        self._negated.drop(number)

    @property
    def latest(self) -> Boot | None:
        """The latest instant; None if there is none."""
        negated = self._negated.next_at
        return None if negated == NEVER else Boot(-negated)
