"""Waiting for what another thread, process or task does: look again and again.

Every test that waits in real time uses `until` or, in an event loop, `auntil`; nothing sleeps for
luck. `answer_of` and `joined` are for calls without a limit of their own, such as reading a pipe.
One patience for all: it only ever runs out when a test fails, and the machine is shared.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
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


def answer_of(call: Callable[[], _T], what: str) -> _T:
    """What a call returns that may block for ever. If it does not return in time, fail with `what`;
    its thread is left behind."""
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as problem:  # the caller raises it
            answer.set_exception(problem)

    threading.Thread(target=run, daemon=True).start()
    try:
        return answer.result(PATIENCE_S)
    except TimeoutError as late:
        raise AssertionError(f"waited {PATIENCE_S} s until {what}") from late


def threads_named(name: str) -> set[threading.Thread]:
    """The threads of this process that have this name and run."""
    return {thread for thread in threading.enumerate() if thread.name == name}


def joined(thread: threading.Thread, what: str) -> None:
    """Wait for the end of a thread. If it does not end in time, fail with `what` it was to do."""
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), f"waited {PATIENCE_S} s until {what}"


async def auntil(
    condition: Callable[[], _T], what: str = "it is so", *, within_s: float = PATIENCE_S
) -> _T:
    """The same for a test that runs in an event loop, which goes on meanwhile."""
    ends_at = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < ends_at, f"waited {within_s} s until {what}"
        await asyncio.sleep(_PAUSE_S)
    return found
