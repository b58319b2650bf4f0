"""Pauses of those who wait for a job, which end early when a job may have ended.

The store's hints shorten the wait; whoever waits still reads the job, and reads it again after
every pause. [Z7] A hint says that some job ended, not which. Where jobs end all the time, many that
wait would read all the time, so nobody reads again before a tenth of the time that it has waited is
over, or a tenth of a second.
"""

import asyncio
import threading
from contextlib import suppress

from tenure.client.channel import Link, pausing
from tenure.client.shells import Wait
from tenure.core.ids import Namespace
from tenure.ports import Hint, HintedChange

LONGEST_DEAF_S = 0.1
DEAF_SHARE = 0.1
"""How long no hint is heard after a read: this share of the time that was waited."""


class EndHints:
    """Hears the hints of one link while somebody waits. Close it."""

    def __init__(self, link: Link, namespace: Namespace) -> None:
        self._link = link
        self._namespace = namespace
        self._began_s = link.monotonic()
        self._has_heard = threading.Event()
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._stop = None if link.watch is None else link.watch(self._hear)

    def close(self) -> None:
        """Stop listening."""
        if self._stop is not None:
            self._stop()

    def pausing(self, pause_s: float) -> Wait:
        """A pause, until a job may have ended or the time is over."""
        if self._stop is None:
            return pausing(self._link, pause_s)
        waited_s = self._link.monotonic() - self._began_s
        deaf_s = min(DEAF_SHARE * waited_s, LONGEST_DEAF_S, pause_s)
        return Wait(
            lambda: self._pause(deaf_s, pause_s - deaf_s),
            lambda: self._apause(deaf_s, pause_s - deaf_s),
        )

    def _hear(self, hint: Hint | None) -> None:
        if hint is not None:
            is_mine = hint.change is HintedChange.ENDED and hint.namespace == self._namespace
            if not is_mine:
                return
        self._has_heard.set()
        waiting = self._waiting
        if waiting is not None:
            with suppress(RuntimeError):  # the loop has ended
                waiting[0].call_soon_threadsafe(waiting[1].set)

    def _pause(self, deaf_s: float, pause_s: float) -> None:
        self._link.pause(deaf_s)
        self._has_heard.wait(pause_s)
        self._has_heard.clear()

    async def _apause(self, deaf_s: float, pause_s: float) -> None:
        await self._link.apause(deaf_s)
        event = asyncio.Event()
        self._waiting = (asyncio.get_running_loop(), event)
        if not self._has_heard.is_set():  # else the hint came before there was an event
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await event.wait()
        self._waiting = None
        self._has_heard.clear()
