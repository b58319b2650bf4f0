"""Readers of the tail that wait for events. [E10]

A reader that is at the end polls the store until there is an event, its time is over or the server
stops. The more readers wait, the less often each of them polls: all of them together cost the store
a bounded number of reads per second.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from tenure.core.event_tail import TailedEvent, TailFilter, TailPage
from tenure.core.events import Event
from tenure.ports import JobStore
from tenure.server.authentication import Authenticator
from tenure.server.principals import Principal
from tenure.server.settings import ServerSettings
from tenure.server.shares import Shares
from tenure.server.threads import Blocking

READS_PER_S = 40
"""How often all waiting readers together poll the store."""

EVENTS_AT_ONCE = 100
"""How many events are read before their memory is counted. [H45]"""

CountMemory = Callable[[Sequence[Event]], None]
"""Counts the memory of events that were read; raises a 503 problem if it has no room."""


class Followers:
    """Reads the tail for callers. Only the event loop's thread uses it."""

    def __init__(
        self, settings: ServerSettings, listing: Blocking, authenticator: Authenticator
    ) -> None:
        self._settings = settings
        self._listing = listing
        self._authenticator = authenticator
        self._stopping = asyncio.Event()
        self._places = Shares(settings.max_followers)

    @property
    def waiting(self) -> int:
        """How many readers wait."""
        return self._places.used

    def stop(self) -> None:
        """Answer every reader that waits, now."""
        self._stopping.set()

    async def follow(
        self,
        store: JobStore,
        wanted: TailFilter,
        *,
        principal: Principal,
        count_memory: CountMemory,
        wait_s: float,
    ) -> TailPage:
        """The next events, after at most `wait_s` if there are none yet, or at once if too many
        readers wait already, of this token, of its namespace or of all. [E20]"""
        page = await self._page(store, wanted, count_memory)
        if page.events or not self._places.has_room(principal.caller):
            return page
        until_s = asyncio.get_running_loop().time() + wait_s
        self._places.take(principal.caller)
        try:
            while not page.events and await self._paused(until_s, is_behind=not page.is_end):
                await self._authenticator.check_still_valid(principal)  # [H25]
                after = msgspec.structs.replace(wanted, after=page.next, newest=None)
                page = await self._page(store, after, count_memory)
        finally:
            self._places.give_back(principal.caller)
        return page

    async def _paused(self, until_s: float, *, is_behind: bool) -> bool:
        """Wait for the next poll. Returns whether there is time for one."""
        left_s = until_s - asyncio.get_running_loop().time()
        if left_s <= 0 or self._stopping.is_set():
            return False
        every_s = max(self._settings.poll_every_s, self.waiting / READS_PER_S)
        if is_behind:  # the next page is there already
            return True
        try:
            async with asyncio.timeout(min(left_s, every_s)):
                await self._stopping.wait()
        except TimeoutError:
            return True
        return False

    async def _page(
        self, store: JobStore, wanted: TailFilter, count_memory: CountMemory
    ) -> TailPage:
        """A page, read a few events at a time. [H45]"""
        events: list[TailedEvent] = []
        part = wanted
        while True:
            limit = min(EVENTS_AT_ONCE, wanted.limit - len(events))
            part = msgspec.structs.replace(part, limit=limit)
            page = await self._listing(partial(store.events.follow, part))
            count_memory([each.event for each in page.events])
            events += page.events
            part = msgspec.structs.replace(part, after=page.next, newest=None)
            if page.is_end or len(page.events) < limit or len(events) >= wanted.limit:
                return msgspec.structs.replace(page, events=tuple(events))
