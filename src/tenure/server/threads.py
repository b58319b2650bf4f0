"""Runs calls that wait for the store on threads, so that they do not block the event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from tenure.server.shares import Caller, Shares

_T = TypeVar("_T")

_caller: ContextVar[Caller | None] = ContextVar("tenure_caller", default=None)


def call_for(caller: Caller | None) -> None:
    """Say whose calls this request makes from now on; None: nobody's in particular."""
    _caller.set(caller)


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
    """Threads that namespaces, and tokens within them, have shares of. A call waits while its
    share is in use; of those that wait, the one whose namespace has the fewest threads is next,
    then the one whose token has. [H60] [H61]"""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self._shares = Shares(threads)
        self._waiting: dict[Caller | None, deque[asyncio.Future[None]]] = {}

    async def __call__(self, call: Callable[[], _T]) -> _T:
        """Run the call on a thread once it is its turn."""
        async with self.turn() as run:
            return await run(call)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator["_Turn"]:
        """Wait for a thread; it makes the calls of the block, one after the other."""
        caller = _caller.get()
        await self._wait(caller)
        turn = _Turn(self._threads)
        try:
            yield turn
        finally:
            if turn.running is None or turn.running.done():
                self._give_back(caller)
            else:  # its request has given up, and the thread is still busy with it
                loop = asyncio.get_running_loop()
                turn.running.add_done_callback(lambda _: self._ended(loop, caller))

    async def _wait(self, caller: Caller | None) -> None:
        """Wait for a thread, and take it."""
        if not self._waiting and self._shares.has_room(caller):
            self._shares.take(caller)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        self._next_turns()  # those that wait may all be over their own shares
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(caller, turn)
            else:  # it has the thread already
                self._give_back(caller)
            raise

    def _next_turns(self) -> None:
        """Give the threads that are free to those that wait."""
        while ready := [each for each in self._waiting if self._shares.has_room(each)]:
            caller = min(ready, key=self._shares.used_by)
            turn = self._waiting[caller][0]
            self._leave(caller, turn)
            if caller in self._waiting:  # its next call comes after those of others
                self._waiting[caller] = self._waiting.pop(caller)
            self._shares.take(caller)
            turn.set_result(None)

    def _leave(self, caller: Caller | None, turn: "asyncio.Future[None]") -> None:
        self._waiting[caller].remove(turn)
        if not self._waiting[caller]:
            del self._waiting[caller]

    def _ended(self, loop: asyncio.AbstractEventLoop, caller: Caller | None) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._give_back, caller)

    def _give_back(self, caller: Caller | None) -> None:
        self._shares.give_back(caller)
        self._next_turns()


class _Turn:
    """A thread that its holder has until the end of a block."""

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self.running: Future[Any] | None = None

    async def __call__(self, call: Callable[[], _T]) -> _T:
        """Run the call on the thread, in the request's trace, and wait for its result."""
        running = self.running = self._threads.submit(copy_context().run, call)
        return await asyncio.wrap_future(running)
