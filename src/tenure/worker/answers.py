"""Waiting, in a handler's thread, for what the supervisor answers to one request at a time."""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from tenure.errors import Cancelled

LOOK_AGAIN_S = 0.1


class Numbered(Protocol):
    """An answer that says which request it is about."""

    @property
    def number(self) -> int:
        """The request's."""


_A = TypeVar("_A", bound=Numbered)


class Answers(Generic[_A]):
    """The answers to one attempt's requests of one sort. Callers take turns by a lock of theirs."""

    def __init__(self, still_mine: Callable[[], bool]) -> None:
        self._still_mine = still_mine
        self._last_number = 0
        self._heard: SimpleQueue[_A] = SimpleQueue()

    def next_number(self) -> int:
        """The number of the next request."""
        self._last_number += 1
        return self._last_number

    def wait_for(self, number: int) -> _A:
        """The answer to this request; `Cancelled` if the lease is lost before it comes."""
        while True:
            try:
                answer = self._heard.get(timeout=LOOK_AGAIN_S)
            except Empty:
                if not self._still_mine():
                    raise Cancelled("the lease is lost") from None
                continue
            if answer.number == number:  # else it is about a request that was given up
                return answer

    def put(self, answer: _A) -> None:
        """The supervisor's answer. Any thread."""
        self._heard.put(answer)
