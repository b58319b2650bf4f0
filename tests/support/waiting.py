"""Waiting for what another thread or process does: looking now and then, with a generous limit."""

import time
from collections.abc import Callable

PATIENCE_S = 30.0
_PAUSE_S = 0.005


def until(condition: Callable[[], object], what: str, *, within_s: float = PATIENCE_S) -> None:
    """Look until it is so; fail with `what` when patience ends."""
    ends_at = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends_at, f"waited {within_s} s until {what}"
        time.sleep(_PAUSE_S)
