"""Calls that wait for the store, on threads of their own: the event loop waits for none of them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

_T = TypeVar("_T")


class Blocking:
    """A few threads. What does not fit waits its turn; slow reads cannot take every thread of the
    coordinator, because they are not its threads."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tenure-server")

    async def __call__(self, call: Callable[[], _T]) -> _T:
        """Run it and wait for what it returns. It belongs to the request's trace there, too."""
        loop, context = asyncio.get_running_loop(), copy_context()
        return await loop.run_in_executor(self._threads, context.run, call)

    def close(self) -> None:
        """Finish what was begun."""
        self._threads.shutdown(wait=True, cancel_futures=True)
