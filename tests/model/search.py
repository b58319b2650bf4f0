"""Visits every state that a small model can reach, breadth first: a way there is a shortest one."""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S")


class Step(NamedTuple, Generic[S]):
    """Something that can happen, and the state after it."""

    label: str
    state: S


def reachable(
    first: S, steps: Callable[[S], Iterable[Step[S]]], wrong: Callable[[S], str | None]
) -> list[S]:
    """Every state that can be reached. Raises for one that must not be, with the way there."""
    seen: dict[S, tuple[S, str] | None] = {first: None}
    todo = deque([first])
    while todo:
        here = todo.popleft()
        for step in steps(here):
            if step.state in seen:
                continue
            seen[step.state] = (here, step.label)
            problem = wrong(step.state)
            assert problem is None, f"{problem}: {_way_to(step.state, seen)}"
            todo.append(step.state)
    return list(seen)


def _way_to(state: S, seen: dict[S, tuple[S, str] | None]) -> list[str]:
    labels: list[str] = []
    before = seen[state]
    while before is not None:
        state, label = before
        labels.append(label)
        before = seen[state]
    return labels[::-1]
