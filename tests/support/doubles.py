"""Stores whose calls a test counts, changes or refuses."""

from collections.abc import Callable
from typing import Any

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
