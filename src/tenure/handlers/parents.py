"""What a job's parents returned, loaded when it is asked for. [FL7]"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from tenure.core.flow_rows import ParentPage, ParentResult
from tenure.core.vocabulary import JobStatus

LoadParents = Callable[[int], ParentPage]
"""Given a position, the parents after it, or the first of them."""

FIRST = -1


class Parents(Mapping[str, Any]):
    """The results of the parents that succeeded, by name, in the order of `after`.

    Nothing is loaded before it is asked for, and then page by page: `ctx.parents["fetch-1"]` reads
    up to that one, a loop all of them. `statuses` has the parents that did not succeed, too.
    """

    def __init__(self, load: LoadParents) -> None:
        self._load = load
        self._found: dict[str, ParentResult] = {}
        self._last = FIRST
        self._is_whole = False

    def _more(self) -> bool:
        """Load the next page. Returns whether there was one."""
        if self._is_whole:
            return False
        page = self._load(self._last)
        self._found.update((parent.step, parent) for parent in page.parents)
        self._last = page.parents[-1].position if page.parents else self._last
        self._is_whole = page.is_last
        return True

    def _whole(self) -> dict[str, ParentResult]:
        while self._more():
            pass
        return self._found

    def __getitem__(self, name: str) -> Any:
        while name not in self._found and self._more():
            pass
        parent = self._found.get(name)
        if parent is None:
            known = ", ".join(list(self._found)[:5]) or "it has none"
            raise KeyError(f"this job has no parent {name!a}; its parents: {known}")
        if parent.result is None:
            raise KeyError(f"the parent {name!a} has no result: it ended as {parent.outcome}")
        return msgspec.json.decode(parent.result)

    def __iter__(self) -> Iterator[str]:
        return (name for name, each in self._whole().items() if each.result is not None)

    def __len__(self) -> int:
        return sum(each.result is not None for each in self._whole().values())

    def __repr__(self) -> str:
        return f"<Parents {', '.join(self._found)}>"

    @property
    def statuses(self) -> dict[str, JobStatus]:
        """How each parent ended, by name."""
        return {
            name: each.outcome for name, each in self._whole().items() if each.outcome is not None
        }
