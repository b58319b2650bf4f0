"""Limits per token: leases and open long polls. [H26]

The store counts leases, for all servers that share it; each server counts its own polls. A count is
reused for a second while it is far from the limit, and for one claim only when it is near. So
several servers exceed the limit at most by what they grant at the same moment.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tenure.clock import Monotonic
from tenure.core.ids import Actor, Namespace
from tenure.core.instants import seconds
from tenure.core.tokens import TokenId
from tenure.ports import Store
from tenure.protocol.problem_codes import ProblemCode
from tenure.server.principals import Principal
from tenure.server.problems import too_many
from tenure.server.threads import Blocking

COUNT_EVERY = seconds(1)
NEAR = 0.5
"""From this part of the limit on, a principal's leases are counted for each claim."""

_PrincipalKey = tuple[Namespace, Actor]


class _Count:
    """An upper bound of one principal's leases: the store's count plus what this server granted
    since."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.counted_at: int | None = None
        self.leases = 0
        self.granted_since = 0
        self.in_flight = 0

    def at_most(self) -> int:
        """The upper bound."""
        return self.leases + self.granted_since + self.in_flight


class Quotas:
    """Counts per token. Only the event loop's thread uses it."""

    def __init__(self, store: Store, blocking: Blocking, monotonic: Monotonic) -> None:
        self._store = store
        self._blocking = blocking
        self._monotonic = monotonic
        self._polls: Counter[TokenId] = Counter()
        self._counts: dict[_PrincipalKey, _Count] = {}

    @contextmanager
    def polling(self, principal: Principal) -> Iterator[None]:
        """Hold one open claim. Raises a 429 problem when there are too many."""
        token = principal.token
        if token is None:
            yield
            return
        if self._polls[token.id] >= token.max_polls:
            raise too_many(
                ProblemCode.TOO_MANY_POLLS,
                f"this token already has {token.max_polls} open claims",
                hint="wait for one to end, or make a token with a higher --max-polls",
            )
        self._polls[token.id] += 1
        try:
            yield
        finally:
            self._polls[token.id] -= 1
            if not self._polls[token.id]:
                del self._polls[token.id]

    async def reserve(self, principal: Principal, leases: int) -> bool:
        """Reserve `leases` more leases. Returns False if they would exceed the token's limit."""
        token = principal.token
        if token is None:
            return True
        key = (token.namespace, token.actor)
        count = self._counts.setdefault(key, _Count())
        is_near = count.at_most() + leases > token.max_leases * NEAR
        await self._count(key, count, at_most_old=0 if is_near else COUNT_EVERY)
        if count.at_most() + leases > token.max_leases:
            return False
        count.in_flight += leases
        return True

    def settle(self, principal: Principal, reserved: int, granted: int) -> None:
        """Record how many of the reserved leases were granted."""
        token = principal.token
        if token is not None:
            count = self._counts[token.namespace, token.actor]
            count.in_flight -= reserved
            count.granted_since += granted

    async def _count(self, key: _PrincipalKey, count: _Count, *, at_most_old: int) -> None:
        asked_at = self._monotonic()
        async with count.lock:
            # If another claim counted while this one waited, its count is recent enough.
            if count.counted_at is None or asked_at - count.counted_at >= at_most_old:
                now = self._monotonic()
                before = count.granted_since
                count.leases = await self._blocking(lambda: self._store.tokens.count_leases(*key))
                # The store's count may or may not include what was granted while it counted.
                count.granted_since -= before
                count.counted_at = now
