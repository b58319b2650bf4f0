"""When to claim jobs, and which: polling with backoff, weights, and limits per kind.

Pure. One claim at a time; a claim without an answer is repeated under the same id, because the
grants it may have received would otherwise lie idle for a whole lease. [Q1] After a bounded number
of tries a new claim takes its place. [WP20]
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tenure.clock import Boot
from tenure.core.claims import ClaimRequest, RateLimited
from tenure.core.ids import Actor, Kind, Namespace, QueueName, RequestId, WorkerId
from tenure.core.instants import Duration, seconds
from tenure.core.policy import Backoff, Random, delay_us
from tenure.handlers.registry import Isolation

AT_ONCE = Duration(0)
MAX_PER_CLAIM = 200
MAX_CLAIM_TRIES = 20
"""How often one claim is sent. With the pauses of `RETRY` that takes most of a minute at least: a
usual lease is over by then, and its jobs are in other hands or ready again. [WP20]"""

LONGEST_HOLD = seconds(30)
"""How long a worker waits at most for a rate before it asks again: the rate may have been changed,
and the hint about that may be missing."""

HINTED_POLL_FACTOR = 8
"""How many times longer the pauses of an idle worker grow while hints are known to reach it: about
one claim in four seconds, for hints that were lost. [V5]"""

RETRY = Backoff(initial_us=seconds(0.2), cap_us=seconds(5), floor=0.0)
"""Between two tries of a request that got no answer: claims, starts and reports."""


class ClaimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, where, for what and how often."""

    namespace: Namespace
    worker: WorkerId
    actor: Actor
    queues: Mapping[QueueName, int]
    kinds: Mapping[Kind, int | None]
    lanes: Mapping[Kind, Isolation]
    first_claim_seq: int = 1
    shortest_poll_us: Duration = seconds(0.05)
    longest_poll_us: Duration = seconds(0.5)
    wait_us: Duration = seconds(10)


class KindGroup:
    """Kinds that are claimed together. Each group has its own backlog and order of queues: an idle
    kind proves nothing about a busy one."""

    def __init__(self, kinds: tuple[Kind, ...], weights: Mapping[QueueName, int]) -> None:
        self.kinds = kinds
        self.is_backlogged = False
        self._weights = weights
        self._credits = dict.fromkeys(weights, 0)

    def queues(self) -> tuple[QueueName, ...]:
        """All queues, oldest job first; under a backlog one queue at a time, by weight.

        Smooth weighted round-robin: for the weights 3 and 1 the pattern is a a b a.
        """
        weights = self._weights
        if not self.is_backlogged or len(set(weights.values())) == 1:
            return tuple(weights)
        for queue, weight in weights.items():
            self._credits[queue] += weight
        chosen = max(weights, key=lambda queue: self._credits[queue])
        self._credits[chosen] -= sum(weights.values())
        return (chosen,)


class ClaimPlanner:
    """Decides on the next claim. Groups of kinds take turns: the unlimited ones together, each
    limited kind alone, because one claim has one limit."""

    def __init__(self, settings: ClaimSettings, random: Random) -> None:
        unlimited = tuple(kind for kind, limit in settings.kinds.items() if limit is None)
        together = [unlimited] if unlimited else []
        together += [(kind,) for kind, limit in settings.kinds.items() if limit is not None]
        self._settings = settings
        self._random = random
        self._groups = [KindGroup(kinds, settings.queues) for kinds in together]
        self._turn = 0
        self._empty_in_a_row = 0
        self._idle_us = settings.shortest_poll_us
        self._seq = settings.first_claim_seq - 1
        self._not_before = Boot(0)  # as the last Retry-After asks
        self.tries = 0  # in a row without an answer
        self._sent = 0  # how often the unanswered claim was sent
        self.next_at = Boot(0)
        self.unanswered: ClaimRequest | None = None
        self._is_whole = True  # whether the last claim was for all kinds of its group
        self._was_woken = False  # while a claim was unanswered: it may have come too early
        self._held: list[RateLimited | None] = []  # the rates in the empty answers in a row
        self.hints_arrive: Callable[[], bool] = lambda: False

    # --- asking --------------------------------------------------------------------------------

    def ask(
        self, *, free: int, running: Counter[Kind], ready: Callable[[Isolation], int]
    ) -> ClaimRequest | None:
        """The claim to send now: the unanswered one again, or a new one for kinds of which `ready`
        attempts could start at once, each in its lane; None without room. It starts what it is
        granted. [N4]"""
        if self.unanswered is not None:
            self._sent += 1
            return self.unanswered
        lanes = self._settings.lanes
        for _ in self._groups:
            group = self._group()
            room = min(free, MAX_PER_CLAIM, self._room(group.kinds, running))
            can_begin = {lane: ready(lane) for lane in {lanes[kind] for kind in group.kinds}}
            kinds = tuple([kind for kind in group.kinds if can_begin[lanes[kind]]])
            if kinds and room > 0:
                limit = min(room, *(can_begin[lanes[kind]] for kind in kinds))
                self.unanswered = self._request(group.queues(), kinds, limit)
                self._is_whole = kinds == group.kinds
                self._sent = 1
                return self.unanswered
            self._turn += 1
        return None

    @property
    def wait_us(self) -> Duration:
        """How long the claim may be kept open while there is no work: not at all while another
        group of kinds comes next, or only some kinds or the favoured queue were asked."""
        asked = self.unanswered
        is_whole = self._is_whole and asked is not None and self._is_of_all_queues(asked)
        return self._settings.wait_us if is_whole and len(self._groups) == 1 else AT_ONCE

    def _room(self, kinds: tuple[Kind, ...], running: Counter[Kind]) -> int:
        limit = self._settings.kinds[kinds[0]]
        return MAX_PER_CLAIM if limit is None else limit - running[kinds[0]]

    def _group(self) -> KindGroup:
        """The group to claim for now."""
        return self._groups[self._turn % len(self._groups)]

    def _is_of_all_queues(self, asked: ClaimRequest) -> bool:
        return asked.queues == tuple(self._settings.queues)

    def _request(
        self, queues: tuple[QueueName, ...], kinds: tuple[Kind, ...], limit: int
    ) -> ClaimRequest:
        self._seq += 1
        settings = self._settings
        return ClaimRequest(
            namespace=settings.namespace,
            worker=settings.worker,
            actor=settings.actor,
            queues=queues,
            limit=limit,
            claim_seq=self._seq,
            request_id=RequestId(f"claim-{self._seq}"),
            kinds=kinds,
            start=True,
        )

    # --- answers -------------------------------------------------------------------------------

    def answered(
        self, granted: int, now: Boot, *, waited_us: int = 0, held: RateLimited | None = None
    ) -> None:
        """An answer came. Ask again at once unless everything was empty in a row; if the
        coordinator waited for work in our place, that was the pause. Where jobs are rate-limited,
        ask again when the rate has room. [RL9]"""
        has_waited = 0 < self.wait_us <= 2 * waited_us
        asked, self.unanswered = self.unanswered, None
        assert asked is not None
        self.tries = 0
        self._group().is_backlogged = granted >= asked.limit
        self._turn += 1
        if granted:
            self.wake(now)
            return
        if self._was_woken:
            self.wake(now)
            return
        if not self._is_of_all_queues(asked):
            self.next_at = now  # only the favoured queue was empty: claim from all of them
            return
        self._empty_in_a_row += 1
        self._held.append(held)
        if self._empty_in_a_row < len(self._groups):
            self.next_at = now
            return
        holds, self._held = self._held, []
        self._empty_in_a_row = 0
        if has_waited:
            self.next_at = now
            return
        self.next_at = Boot(now + self._pause_us(holds))
        self._idle_us = Duration(2 * self._idle_us)

    def _pause_us(self, holds: Sequence[RateLimited | None]) -> int:
        """Until the next claim after one of everything that received nothing. If all that could be
        granted is rate-limited, nothing is asked before the first rate has room."""
        longest_us = self._settings.longest_poll_us
        if self.hints_arrive():
            longest_us = Duration(HINTED_POLL_FACTOR * longest_us)
        self._idle_us = min(self._idle_us, longest_us)
        # With jitter, so that workers do not claim in step.
        pause_us = self._idle_us // 2 + int(self._idle_us * self._random())
        waits = [held.wait_us for held in holds if held is not None]
        if not waits:
            return pause_us
        if all(held is not None and held.is_all for held in holds):
            return min(min(waits), LONGEST_HOLD)
        return min(pause_us, min(waits))

    def failed(self, now: Boot, *, retry_after_us: Duration = AT_ONCE) -> None:
        """No answer came. After the last try the claim is abandoned; the next one keeps its
        pace."""
        self.tries += 1
        if self._sent >= MAX_CLAIM_TRIES:
            self.unanswered = None
        self._not_before = Boot(now + retry_after_us)
        self.next_at = Boot(
            self._not_before + delay_us(RETRY, failures=self.tries, fraction=self._random())
        )

    def hurry(self, now: Boot) -> None:
        """Repeat the unanswered claim now, and soon again: the pauses start over, except one that
        the coordinator asked for."""
        self.tries = 0
        self.next_at = max(now, self._not_before)

    def room_was_made(self, now: Boot) -> None:
        """Attempts can start that could not before: jobs may wait for a lane that was full."""
        if not self._is_whole:
            self.wake(now)

    def wake(self, now: Boot) -> None:
        """There may be work: ask now, and often for a while."""
        self._was_woken = self.unanswered is not None
        if self._was_woken or self.tries:
            return  # what got no answer has its own pace
        self._idle_us = self._settings.shortest_poll_us
        self._empty_in_a_row = 0
        self._held = []
        self.next_at = now
