"""Runs calls that wait for the store on threads, so that they do not block the event loop.

What is limited (threads for lists, memory of large messages, places of readers that wait) is shared
between namespaces, and between the tokens of each, so that no tenant uses up what all need. [H60]
Without a token there is one caller, who may have all of it.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

import msgspec

from tenure.core.ids import Namespace
from tenure.core.tokens import TokenId

OF_NAMESPACE = 3 / 4
"""Of everything that is shared, the most that one namespace may have."""

OF_TOKEN = 1 / 2
"""Of everything that is shared, the most that one token may have."""

_K = TypeVar("_K", Namespace, "Requester")


class Requester(msgspec.Struct, frozen=True):
    """For whom something is used."""

    namespace: Namespace
    token_id: TokenId


class Shares:
    """Counts what is used of a limited whole, in all, by namespace and by token. Only the event
    loop's thread uses it."""

    def __init__(self, whole: int) -> None:
        self._whole = whole
        self._of_namespace = max(1, int(whole * OF_NAMESPACE))
        self._of_token = max(1, int(whole * OF_TOKEN))
        self.used = 0
        self._by_namespace: Counter[Namespace] = Counter()
        self._by_token: Counter[Requester] = Counter()

    def has_room(self, caller: Requester | None, amount: int = 1) -> bool:
        """Whether this caller may use `amount` more."""
        if self.used + amount > self._whole:
            return False
        if caller is None:
            return True
        of_namespace, of_token = self.used_by(caller)
        return of_namespace + amount <= self._of_namespace and of_token + amount <= self._of_token

    def used_by(self, caller: Requester | None) -> tuple[int, int]:
        """How much the caller's namespace uses, and its token."""
        if caller is None:
            return 0, 0
        return self._by_namespace[caller.namespace], self._by_token[caller]

    def take(self, caller: Requester | None, amount: int = 1) -> None:
        """Count `amount` as used, whether or not there is room; a negative one is given back."""
        self.used += amount
        if caller is not None:
            _add(self._by_namespace, caller.namespace, amount)
            _add(self._by_token, caller, amount)

    def give_back(self, caller: Requester | None, amount: int = 1) -> None:
        """Stop counting `amount`."""
        self.take(caller, -amount)


def _add(counts: Counter[_K], key: _K, amount: int) -> None:
    counts[key] += amount
    if not counts[key]:
        del counts[key]


_T = TypeVar("_T")

_caller: ContextVar[Requester | None] = ContextVar("tenure_caller", default=None)


def call_for(caller: Requester | None) -> None:
    """Set whose calls this request makes from now on; None: no caller's in particular."""
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
        """Finish the calls that have started."""
        self._threads.shutdown(wait=True, cancel_futures=True)


class SharedBlocking(Blocking):
    """Threads that namespaces, and tokens within them, have shares of. A call waits while its
    share is in use; next is the waiting call whose namespace has the fewest threads, then
    the one whose token has. [H60] [H61]"""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self._shares = Shares(threads)
        self._waiting: dict[Requester | None, deque[asyncio.Future[None]]] = {}

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

    async def _wait(self, caller: Requester | None) -> None:
        """Wait for a thread, and take it."""
        if not self._waiting and self._shares.has_room(caller):
            self._shares.take(caller)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        self._next_turns()  # all waiting calls may be over their own shares
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(caller, turn)
            else:  # it has the thread already
                self._give_back(caller)
            raise

    def _next_turns(self) -> None:
        """Give free threads to waiting requests."""
        while ready := [each for each in self._waiting if self._shares.has_room(each)]:
            caller = min(ready, key=self._shares.used_by)
            turn = self._waiting[caller][0]
            self._leave(caller, turn)
            if caller in self._waiting:  # its next call comes after those of others
                self._waiting[caller] = self._waiting.pop(caller)
            self._shares.take(caller)
            turn.set_result(None)

    def _leave(self, caller: Requester | None, turn: "asyncio.Future[None]") -> None:
        self._waiting[caller].remove(turn)
        if not self._waiting[caller]:
            del self._waiting[caller]

    def _ended(self, loop: asyncio.AbstractEventLoop, caller: Requester | None) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(self._give_back, caller)

    def _give_back(self, caller: Requester | None) -> None:
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
