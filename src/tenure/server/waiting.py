"""Claims that wait for work, and readers of the tail that wait for events. [H10] [H35] [E10]

Claims of one scope wait in a line, and only the first in line asks the store: a thousand idle
workers cost as much as one. A claim that receives a job lets the next one ask at once. The line
polls the store; an enqueue through this server wakes it earlier. All lines together poll a limited
number of times per second; namespaces have equal shares of these, and in each its tokens. [H63]

A reader that is at the end polls the store until there is an event, its time is over or the server
stops. The more readers wait, the less often each of them polls: all of them together cost the store
a bounded number of reads per second.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Protocol

import msgspec

from tenure.core.claims import ClaimAnswer, ClaimRequest, ClaimScope, RateLimited
from tenure.core.commands import Release
from tenure.core.events import Event
from tenure.core.ids import SYSTEM, Namespace, QueueName, RequestId
from tenure.core.instants import MICROSECONDS_PER_SECOND, seconds
from tenure.core.tokens import TokenId
from tenure.core.verdicts import Answer, Grant
from tenure.core.views.events import TailedEvent, TailFilter, TailPage
from tenure.core.vocabulary import ReleaseKind, counted
from tenure.errors import TenureError
from tenure.ports import Coordination, Hint, HintedChange, JobStore
from tenure.server.limits import ServerSettings
from tenure.server.principals import Authenticator, Principal
from tenure.server.problems import shutting_down
from tenure.server.threads import Blocking, Shares

_log = logging.getLogger("tenure.server")

LONGEST_BLOCK_S = 30.0
"""A rate may be changed through another process: after this time the store is asked anyway."""

LINES_HINTED_PER_S = 100_000
"""SQLite hints at every commit that any line may have work: this many lines are woken for it each
second."""


class Waiter:
    """One waiting claim: whose it is, what may end its wait, whether its caller has gone, and
    whether a byte of the answer was written. Made on the event loop when the claim arrives."""

    def __init__(self, token_id: TokenId | None = None) -> None:
        self.token_id = token_id
        self.wake = asyncio.Event()
        self.is_gone = False
        self.is_answered = False
        self.came_at = asyncio.get_running_loop().time()

    @property
    def waited_s(self) -> float:
        """How long the claim has waited."""
        return asyncio.get_running_loop().time() - self.came_at

    def leave(self) -> None:
        """The caller hung up."""
        self.is_gone = True
        self.wake.set()

    def write(self) -> None:
        """The answer is about to be written; nothing is written to a caller that has gone."""
        self.is_answered = not self.is_gone


class Claimer(Protocol):
    """The caller of a waiting claim."""

    async def check_token(self) -> None:
        """Raise a 401 problem once the caller's token is no longer valid. [H25]"""

    async def reserve(self, leases: int) -> bool:
        """Reserve `leases` more leases. Returns False if they would exceed the limit. [H26]"""

    def settle(self, reserved: int, granted: int) -> None:
        """Record how many of the reserved leases were granted."""

    async def without_room(self, request: ClaimRequest) -> ClaimAnswer:
        """The answer to a claim over the limit: what an equal claim received, or a 429."""


class _PollShares:
    """How many lines each token of each namespace waits in, and how often one of them may poll."""

    def __init__(self, polls_per_s: int) -> None:
        self._polls_per_s = polls_per_s
        self._lines: dict[Namespace, Counter[TokenId | None]] = {}

    def enter(self, namespace: Namespace, token_id: TokenId | None) -> None:
        """A token has its first claim in a line."""
        self._lines.setdefault(namespace, Counter())[token_id] += 1

    def leave(self, namespace: Namespace, token_id: TokenId | None) -> None:
        """A token has no claim in a line any more."""
        lines = self._lines[namespace]
        lines[token_id] -= 1
        if not lines[token_id]:
            del lines[token_id]
        if not lines:
            del self._lines[namespace]

    def every_s(self, namespace: Namespace, tokens: Iterable[TokenId | None]) -> float:
        """How long a line of these tokens waits between two polls: as the one does that has the
        fewest lines."""
        lines = self._lines[namespace]
        fewest = min(lines[each] for each in tokens)
        return len(self._lines) * len(lines) * fewest / self._polls_per_s


class _Line:
    """The claims of one scope that wait, first come first."""

    def __init__(self, namespace: Namespace, shares: _PollShares, poll_every_s: float) -> None:
        self._namespace = namespace
        self._shares = shares
        self._poll_every_s = poll_every_s
        self._tokens: Counter[TokenId | None] = Counter()
        self._next_hint_at = 0.0
        self._waiters: deque[Waiter] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._blocked_until = 0.0  # by the loop's clock: until then polling finds nothing
        self._release: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    def join(self, waiter: Waiter) -> None:
        self._waiters.append(waiter)
        self._tokens[waiter.token_id] += 1
        if self._tokens[waiter.token_id] == 1:
            self._shares.enter(self._namespace, waiter.token_id)
        if self._timer is None:
            self._tick()
        elif self._timer.when() - asyncio.get_running_loop().time() > self._every_s():
            self._timer.cancel()  # a token with fewer lines has joined
            self._start_timer()

    def step_back(self, waiter: Waiter) -> None:
        """Move a waiter to the end of the line; the next tick wakes another."""
        self._waiters.remove(waiter)
        self._waiters.append(waiter)

    def drop(self, waiter: Waiter, *, passes_on: bool) -> None:
        """Take a waiter out. Passes an unused wake-up on to the next waiter."""
        self._waiters.remove(waiter)
        self._tokens[waiter.token_id] -= 1
        if not self._tokens[waiter.token_id]:
            del self._tokens[waiter.token_id]
            self._shares.leave(self._namespace, waiter.token_id)
        if passes_on or waiter.wake.is_set():
            self.nudge()
        if not self._waiters:
            for timer in (self._timer, self._release):
                if timer is not None:
                    timer.cancel()
            self._timer = self._release = None

    def nudge(self) -> None:
        """Let the first in line ask."""
        if self._waiters:
            self._waiters[0].wake.set()

    def hint(self) -> None:
        """There may be work: let the first in line ask, but no more often than it may poll beside
        others."""
        now = asyncio.get_running_loop().time()
        if now >= self._next_hint_at and self._waiters:
            self._next_hint_at = now + self._shares.every_s(self._namespace, self._tokens)
            self.nudge()

    def block(self, held: RateLimited) -> None:
        """Let the first in line ask when a rate has room again; no claim polls before that if rates
        block everything. [RL9]"""
        loop = asyncio.get_running_loop()
        wait_s = min(held.wait_us / MICROSECONDS_PER_SECOND, LONGEST_BLOCK_S)
        if held.is_all:  # and a tick more: its turn is the timer's, not the next poll's
            self._blocked_until = loop.time() + wait_s + self._every_s()
        if self._release is not None:
            self._release.cancel()
        self._release = loop.call_later(wait_s, self.nudge)

    def wake_all(self) -> None:
        for waiter in self._waiters:
            waiter.wake.set()

    def _tick(self) -> None:
        if asyncio.get_running_loop().time() >= self._blocked_until:
            self.nudge()
        self._start_timer()

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every_s(), self._tick)

    def _every_s(self) -> float:
        return max(self._poll_every_s, self._shares.every_s(self._namespace, self._tokens))


class WaitingClaims:
    """Serves claims. Only the event loop's thread uses it."""

    def __init__(self, coordination: Coordination, settings: ServerSettings) -> None:
        self._coordination = coordination
        self._settings = settings
        self._lines: dict[ClaimScope, _Line] = {}
        self._shares = _PollShares(settings.max_idle_claims_per_s)
        self._is_stopping = False
        self._next_vague_hint_at = 0.0

    def stop(self) -> None:
        """Answer every claim that waits, now; take no more. [H35]"""
        self._is_stopping = True
        for line in self._lines.values():
            line.wake_all()

    def enqueued(self, namespace: Namespace, queues: Iterable[QueueName]) -> None:
        """Wake the lines that wait for jobs of these queues."""
        names = set(queues)
        for scope, line in self._lines.items():
            if scope.namespace == namespace and not names.isdisjoint(scope.queues):
                line.nudge()

    def settings_changed(self, namespace: Namespace) -> None:
        """Wake every line of the namespace: a kind may have room now."""
        for scope, line in self._lines.items():
            if scope.namespace == namespace:
                line.nudge()

    def hinted(self, hint: Hint | None) -> None:
        """Wake the lines that a hint of the store is about. None may be about any: SQLite gives it
        at every commit, so it wakes each no more often than it may ask."""
        if hint is None:
            now = asyncio.get_running_loop().time()
            if now >= self._next_vague_hint_at:
                self._next_vague_hint_at = now + len(self._lines) / LINES_HINTED_PER_S
                for line in self._lines.values():
                    line.hint()
        elif hint.change is HintedChange.READY:
            self.enqueued(hint.namespace, [hint.queue])

    async def serve(
        self,
        request: ClaimRequest,
        waiter: Waiter,
        claimer: Claimer,
        *,
        wait_s: float,
    ) -> ClaimAnswer:
        """The answer to a claim, after at most `wait_s`, or later if the store is still answering.

        The caller has to call `finish` in any case.
        """
        if self._is_stopping:
            raise shutting_down()
        if not await claimer.reserve(request.limit):
            return await claimer.without_room(request)
        answer = await self._claim(request, waiter, claimer)
        if not _is_final(answer) and waiter.waited_s < wait_s:
            answer = await self._wait(request, waiter, claimer, wait_s)
        return answer

    def finish(self, waiter: Waiter, answer: ClaimAnswer) -> None:
        """End a claim. If its caller has gone, takes the grants back, unless the coordinator finds
        that they may have arrived. [H35] [Q8] A grant that its claim started stays with a caller
        that may have read a part of the answer: it may be running the job. [N4]"""
        if waiter.is_gone:
            grants = answer.grants
            if waiter.is_answered:
                grants = tuple(grant for grant in grants if not grant.is_started)
            self._take_back(grants)

    async def _wait(
        self,
        request: ClaimRequest,
        waiter: Waiter,
        claimer: Claimer,
        wait_s: float,
    ) -> ClaimAnswer:
        line = self._lines.get(request.scope)
        if line is None:
            line = _Line(request.scope.namespace, self._shares, self._settings.poll_every_s)
            self._lines[request.scope] = line
        line.join(waiter)
        answer = ClaimAnswer()
        was_woken = False
        try:
            while not self._is_over(waiter) and (left_s := wait_s - waiter.waited_s) > 0:
                was_woken = await _woken(waiter, min(left_s, self._settings.recheck_token_s))
                if self._is_over(waiter):
                    break
                await claimer.check_token()
                if not was_woken:
                    continue
                if not await claimer.reserve(request.limit):
                    line.step_back(waiter)
                    continue
                was_woken = False
                answer = await self._claim(request, waiter, claimer)
                if _is_final(answer):
                    break
                if answer.rate_limited is not None:
                    line.block(answer.rate_limited)
        finally:
            # There may be more jobs where one was found; an unused turn goes to the next waiter.
            line.drop(waiter, passes_on=bool(answer.grants) or was_woken)
            if not line and self._lines.get(request.scope) is line:
                del self._lines[request.scope]
        return answer

    def _is_over(self, waiter: Waiter) -> bool:
        return self._is_stopping or waiter.is_gone

    async def _claim(self, request: ClaimRequest, waiter: Waiter, claimer: Claimer) -> ClaimAnswer:
        granted = 0
        waited_us = seconds(waiter.waited_s)  # a lease may start from here on [WP12]
        try:
            future = self._coordination.submit_claim(request)
            answer = await self._answer_of(future)
            granted = len(answer.grants)
        finally:
            claimer.settle(request.limit, granted)
        return msgspec.structs.replace(answer, waited_us=waited_us)

    async def _answer_of(self, future: "Future[ClaimAnswer]") -> ClaimAnswer:
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            # The server abandons this request, but its claim may still be granted.
            future.add_done_callback(lambda done: self._take_back(_granted(done)))
            raise

    def _take_back(self, grants: Iterable[Grant]) -> None:
        commands = [
            Release(
                job_id=grant.job_id,
                lease_id=grant.lease_id,
                actor=SYSTEM,
                request_id=RequestId(f"undelivered:{grant.lease_id}"),
                kind=ReleaseKind.UNDELIVERED,
            )
            for grant in grants
        ]
        if not commands:
            return
        _log.info("taking back %s whose callers have gone", counted(len(commands), "grant"))
        try:
            self._coordination.submit_many(commands).add_done_callback(_note_failure)
        except TenureError as failure:  # closed meanwhile: the leases expire
            _log.warning("could not take grants back: %s", failure)


def _is_final(answer: ClaimAnswer) -> bool:
    return bool(answer.grants) or answer.cause is not None or answer.is_repeat


async def _woken(waiter: Waiter, within_s: float) -> bool:
    """Whether the waiter was woken within the time."""
    try:
        async with asyncio.timeout(within_s):
            await waiter.wake.wait()
    except TimeoutError:
        return False
    waiter.wake.clear()
    return True


def _granted(done: "Future[ClaimAnswer]") -> tuple[Grant, ...]:
    if done.cancelled() or done.exception() is not None:
        return ()
    return done.result().grants


def _note_failure(done: "Future[list[Answer]]") -> None:
    failure = done.exception()
    if failure is not None:
        _log.warning("could not take grants back, their leases will expire: %s", failure)


# --- Readers of the tail -------------------------------------------------------------------------


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
