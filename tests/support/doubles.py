"""Stores whose calls a test counts, changes or refuses."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

from tenure.core.instants import Duration
from tenure.ports import Store

SUBJECTS = {name for name, each in vars(Store).items() if isinstance(each, property)} - {
    "parallelism"
}
"""The objects of a store."""

Around = Callable[..., Any]
"""Takes a place such as `jobs.load`, the method, and its arguments."""


class Intercepted:
    """A store that hands each call to `around`, which may make it."""

    def __init__(self, store: Any, around: Around, place: str = "") -> None:
        self._store = store
        self._around = around
        self._place = place

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not self._place and name in SUBJECTS:
            return Intercepted(found, self._around, f"{name}.")
        if not callable(found):
            return found

        def call(*arguments: Any, **named: Any) -> Any:
            return self._around(f"{self._place}{name}", found, *arguments, **named)

        return call


def instead(store: Any, place: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Have a store call `function` at a place such as `jobs.load`. Returns the store's own."""
    subject, _, name = place.partition(".")
    found = getattr(store, subject)
    own: Callable[..., Any] = getattr(found, name)
    setattr(found, name, function)
    return own


class ByHand:
    """Instead of a thread of `coordinator.periodic`: runs its work when the test says so."""

    def __init__(
        self,
        name: str,
        work: Callable[[], bool],
        *,
        interval_us: Duration,
        next_in: Callable[[], Duration | None] = lambda: None,
    ) -> None:
        self.name = name
        self.work = work
        self._interval_us = interval_us
        self._next_in = next_in

    @property
    def pause_us(self) -> Duration:
        """How long the thread would pause now."""
        next_in = self._next_in()
        return self._interval_us if next_in is None else next_in

    def start(self) -> None:
        pass

    def stop(self, *, within_s: float = 0.0) -> bool:
        return True


@contextmanager
def threads_by_hand(module: ModuleType) -> Iterator[list[ByHand]]:
    """What this module makes meanwhile has no threads of its own."""
    made: list[ByHand] = []

    def make(name: str, work: Callable[[], bool], **more: Any) -> ByHand:
        made.append(ByHand(name, work, **more))
        return made[-1]

    with patch.object(module, "Periodic", make):
        yield made
