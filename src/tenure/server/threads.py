"""Runs calls that wait for the store on threads, so that they do not block the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

_T = TypeVar("_T")


class Blocking:
    """A few threads; further calls wait. They are not the coordinator's threads, so slow reads
    cannot use up those."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tenure-server")

    async def __call__(self, call: Callable[[], _T]) -> _T:
        """Run the call on a thread, in the request's trace, and wait for its result."""
        loop, context = asyncio.get_running_loop(), copy_context()
        return await loop.run_in_executor(self._threads, context.run, call)

    def close(self) -> None:
        """Finish the calls that have begun."""
        self._threads.shutdown(wait=True, cancel_futures=True)
