"""Waiting for what another thread, process or task does: look again and again.

Every test that waits in real time uses `until` or, in an event loop, `auntil`; nothing sleeps for
luck. One patience for all: it only ever runs out when a test fails, and the machine is shared.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 120.0
_PAUSE_S = 0.005

_T = TypeVar("_T")


def until(
    condition: Callable[[], _T],
    what: str,
    *,
    within_s: float = PATIENCE_S,
    seen: Callable[[], object] | None = None,
) -> _T:
    """Look until the condition is true, and return what it gave. Otherwise fail, with `what` and
    with what is `seen` instead."""
    ends_at = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() >= ends_at:
            instead = f", but there is {seen()}" if seen is not None else ""
            raise AssertionError(f"waited {within_s} s until {what}{instead}")
        time.sleep(_PAUSE_S)
    return found


async def auntil(
    condition: Callable[[], _T], what: str = "it is so", *, within_s: float = PATIENCE_S
) -> _T:
    """The same for a test that runs in an event loop, which goes on meanwhile."""
    ends_at = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < ends_at, f"waited {within_s} s until {what}"
        await asyncio.sleep(_PAUSE_S)
    return found
