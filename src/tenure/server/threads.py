"""Runs calls that wait for the store on threads, so that they do not block the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import TypeVar

from tenure.core.tokens import TokenId

_T = TypeVar("_T")

_caller: ContextVar[TokenId | None] = ContextVar("tenure_caller", default=None)


def call_for(token_id: TokenId | None) -> None:
    """Say whose calls this request makes from now on; None: nobody's in particular."""
    _caller.set(token_id)


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


class SharedBlocking(Blocking):
    """Threads of which the calls for one token have some at a time, so that no token keeps those
    of others waiting. [H34]"""

    def __init__(self, threads: int, *, per_token: int) -> None:
        super().__init__(threads)
        self._per_token = per_token
        self._shares: dict[TokenId, _Share] = {}

    async def __call__(self, call: Callable[[], _T]) -> _T:
        """Run the call on a thread once its token has a place."""
        caller = _caller.get()
        if caller is None:
            return await super().__call__(call)
        share = self._shares.setdefault(caller, _Share(self._per_token))
        share.calls += 1
        try:
            await share.places.acquire()
        except asyncio.CancelledError:
            self._leave(caller)
            raise
        loop = asyncio.get_running_loop()
        running = self._threads.submit(copy_context().run, call)
        # Not when its request has given up: the thread is still busy with it.
        running.add_done_callback(lambda _: self._ended(loop, caller))
        return await asyncio.wrap_future(running)

    def _ended(self, loop: asyncio.AbstractEventLoop, caller: TokenId) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._give_back, caller)

    def _give_back(self, caller: TokenId) -> None:
        self._shares[caller].places.release()
        self._leave(caller)

    def _leave(self, caller: TokenId) -> None:
        share = self._shares[caller]
        share.calls -= 1
        if not share.calls:
            del self._shares[caller]


class _Share:
    """The places of one token, and how many of its calls have or want one."""

    def __init__(self, places: int) -> None:
        self.places = asyncio.Semaphore(places)
        self.calls = 0
