"""Keys: which jobs that share one may be claimed next.

A job with a concurrency key or a rate key is parked when it is queued: claims do not see it. It is
admitted when its key has room, and then it is an ordinary candidate that keeps its place under the
key until it is claimed. The store marks a key dirty whenever this may have changed, and claims
admit the jobs of dirty keys first. This module decides which (docs/adr/0095). Pure.

The columns `lane` and `admitted_at` are no fields of `Job`: stores/sql/batches.py writes them when
a job is queued or claimed, stores/sql/admission.py when it is admitted or parked again. That module
also states why a dirty key can be deleted. A process that freezes in a claim keeps its locks until
PostgreSQL rolls the idle transaction back (`LONGEST_IDLE_MS`); on SQLite, until it runs again or
dies.

If the clock is set back, times that were stored before are in the future, and nothing may wait for
them. A rate state more than one burst ahead of now counts as one burst; a dirty key with `noted_at`
in the future is due now [RL3]; a place with `admitted_at` in the future counts as none. Delayed
jobs whose dirty keys are already deleted are found by their kind's watermark, the latest time at
which such keys were deleted, and marked dirty again. [CK10] Other comments refer to this paragraph.
"""

from collections.abc import Mapping, Sequence, Set
from enum import IntEnum

import msgspec

from tenure.core.checks import check_integer
from tenure.core.ids import JobId, Kind, QueueName
from tenure.core.instants import Instant, after, later, seconds
from tenure.core.job import AT_ONCE, Job
from tenure.core.kind_settings import KindSettings
from tenure.core.outcomes import Change
from tenure.core.rates import NOTHING_GRANTED, Meter, Rate, RateScope

MAX_CONCURRENCY_LIMIT = 1_000_000
MAX_ADMITTED = 100
"""How many jobs of one key are admitted and not yet claimed at most. [CK11]"""

ADMISSION_LAPSES_US = seconds(10)
"""An admitted job that is not claimed within this time loses its place to a job with the same key
in another queue. [CK12]"""

ASKED_AGAIN_US = seconds(1)
"""The shortest wait before such a key is decided about again."""

DEFAULT_CONCURRENCY_LIMIT = 1
"""How many jobs of one key may run at a time if nothing is set. [CK2]"""


def check_concurrency_limit(field: str, value: object) -> None:
    """Raise `InvalidInput` unless this is a number of jobs. [CK7]"""
    check_integer(field, value, low=1, high=MAX_CONCURRENCY_LIMIT)


def concurrency_limit_of(settings: KindSettings | None) -> int:
    """How many jobs of one key may run at a time, by what is set for their kind. [CK2]"""
    if settings is None or settings.concurrency_limit is None:
        return DEFAULT_CONCURRENCY_LIMIT
    return settings.concurrency_limit


class Lane(IntEnum):
    """Where a job that waits is. Claims read the first two; the others are parked. That of a
    running job means nothing: its claim parked it again."""

    OPEN = 0
    """Only the limits and rates of its queue and kind apply to it."""
    RATED = 1
    """It was admitted under the rate of its rate key. Apart from the open jobs of its kind, which
    count under another rate. [RL11]"""
    WAITS_FOR_KEY = 2
    """For room under its concurrency key."""
    WAITS_FOR_RATE = 3
    """For room under its rate key; it keeps its place under its concurrency key, if any. [RL14]"""


class Key(msgspec.Struct, frozen=True, order=True):
    """The jobs of a kind that share a concurrency key or a rate key."""

    kind: Kind
    is_rate: bool
    key: str

    @property
    def meter(self) -> Meter:
        """The meter that counts the grants of this rate key."""
        return Meter(RateScope.KIND, self.kind, self.key)


def dirtied_by(change: Change) -> set[tuple[Key, int]]:
    """The keys that this change may fill or free, each with the times at which to decide about it
    again: now, when a delayed job becomes due, and when a job expires and frees its place. [EX2]

    A new job is not under its rate key before it is admitted under its concurrency key."""
    job, keys = change.job, []
    if job.lease_id is not None:
        return set()
    if job.concurrency_key is not None:
        keys.append(Key(job.kind, False, job.concurrency_key))
    if job.rate_key is not None and not (keys and change.expected_rev == 0):
        keys.append(Key(job.kind, True, job.rate_key))
    if not keys:
        return set()
    due_at: int = job.not_before or AT_ONCE
    instants = {due_at} if change.expected_rev == 0 else {due_at, AT_ONCE}
    if job.not_before is not None and job.start_by is not None:
        instants.add(job.start_by)
    return {(key, at) for key in keys for at in instants}


def most_admitted(kinds: Mapping[Kind, KindSettings], key: Key) -> int:
    """How many of a key's jobs may be admitted at best. [CK11]"""
    settings = kinds.get(key.kind)
    if not key.is_rate:
        return min(concurrency_limit_of(settings), MAX_ADMITTED)
    if settings is None or settings.rate is None:
        return MAX_ADMITTED
    return min(settings.rate.burst, MAX_ADMITTED)


class KeyRules:
    """What is set for the kinds of keys: how many of their jobs may be admitted."""

    def __init__(self, kinds: Mapping[Kind, KindSettings], now: Instant) -> None:
        self._kinds = kinds
        self._now = now

    def rate(self, key: Key) -> Rate | None:
        """The rate of a rate key."""
        settings = self._kinds.get(key.kind)
        return None if settings is None or not key.is_rate else settings.rate

    def room(self, key: Key, uses: int | None) -> int:
        """How many may be admitted now. `uses` is the number of leases of a concurrency key, or the
        state of a rate key. [CK3] [RL8]"""
        rate = self.rate(key)
        if rate is not None:
            left = rate.room(Instant(uses or NOTHING_GRANTED), self._now)
        elif key.is_rate:
            left = MAX_ADMITTED
        else:
            left = concurrency_limit_of(self._kinds.get(key.kind)) - (uses or 0)
        return max(0, min(left, MAX_ADMITTED))

    def corrected(self, key: Key, uses: int | None) -> Instant | None:
        """The state to store instead of one more than a burst ahead of now, else None. [RL3]"""
        rate, tat = self.rate(key), Instant(uses or NOTHING_GRANTED)
        if rate is None or tat <= (least := rate.used(tat, self._now)):
            return None
        return least

    def lane_behind(self, key: Key, rate_key: str | None) -> "Lane":
        """The lane of a job that its key admits."""
        if not key.is_rate:
            return Lane.OPEN if rate_key is None else Lane.WAITS_FOR_RATE
        return Lane.OPEN if self.rate(key) is None else Lane.RATED

    def again_at(self, key: Key, uses: int | None, decided: "Admission") -> list[Instant]:
        """When to decide about a key again. If jobs still wait and no grant of an admitted job will
        mark this rate key dirty, also when the rate has room for one more."""
        rate, instants = self.rate(key), [decided.again_at] if decided.again_at else []
        if rate is not None and decided.has_more and decided.total < rate.burst:
            tat = Instant(uses or NOTHING_GRANTED)
            wait = rate.wait_us(tat, self._now, grants=decided.total + 1)
            instants.append(after(self._now, wait))
        return instants

    def dirtied_by_grant(
        self, job: Job, rate_states: Mapping[Meter, Instant]
    ) -> set[tuple[Key, int]]:
        """The keys under which more jobs could be admitted once this one is granted: its rate key,
        when the rate has room again, and a key with a very high limit."""
        found: set[tuple[Key, int]] = set()
        if job.rate_key is not None:
            key = Key(job.kind, True, job.rate_key)
            rate, tat = self.rate(key), rate_states.get(key.meter, NOTHING_GRANTED)
            wait = 0 if rate is None else rate.wait_us(tat, self._now)
            found.add((key, self._now + wait if wait else AT_ONCE))
        if job.concurrency_key is not None:
            key = Key(job.kind, False, job.concurrency_key)
            if concurrency_limit_of(self._kinds.get(job.kind)) > MAX_ADMITTED:
                found.add((key, AT_ONCE))
        return found


class KeyedJob(msgspec.Struct, frozen=True):
    """A job that waits, as far as its key needs it."""

    id: JobId
    queue: QueueName
    priority: int
    run_at: Instant
    not_before: Instant
    start_by: Instant | None
    admitted_at: Instant | None

    def is_ready(self, now: Instant) -> bool:
        """Whether its delay is over and it has not expired. [Z6] [EX2]"""
        return self.not_before <= now and (self.start_by is None or self.start_by > now)

    def place_since(self, now: Instant) -> Instant | None:
        """Since when it has a place under its key. A place in the future counts as none (the clock
        was set back): claims would not find the job before that instant. [CK10]"""
        since = self.admitted_at
        return None if since is None or since > now else since


class Admission(msgspec.Struct, frozen=True):
    """Which jobs of a key are to be admitted and which parked again, and when to decide again."""

    admitted: tuple[JobId, ...]
    parked: tuple[JobId, ...]
    total: int
    """How many are admitted then."""
    has_more: bool
    """Whether more jobs could be admitted if the key had room."""
    again_at: Instant | None
    """When a job of another queue may take a place."""


def admit(
    jobs: Sequence[KeyedJob], room: int, *, now: Instant, queues: Set[QueueName]
) -> Admission:
    """Give the places of a key to its first ready jobs, in claim order. [CK6]

    `jobs`: the first waiting jobs of the key and all of its admitted ones. `room`: how many of them
    may be admitted in total. `queues`: the queues that the claim asks for. Their jobs come first:
    another queue may be paused or have no workers. If a job of another queue waits for the place of
    an admitted job, this is decided again when the admission lapses, even if the claim asks for
    that queue: the claim may take other jobs, its worker may die, or the queue may be paused.
    [CK12]
    """
    ready = [job for job in jobs if job.is_ready(now)]
    ready.sort(
        key=lambda job: (
            job.queue not in queues
            and (job.place_since(now) is None or _lapses_at(job, now) <= now),
            -job.priority,
            job.run_at,
            job.id,
        )
    )
    chosen, rest = ready[:room], ready[room:]
    kept = {job.id for job in chosen if job.place_since(now) is not None}
    waiting = {job.queue for job in rest}
    lapses = [_lapses_at(job, now) for job in chosen if waiting - {job.queue}]
    return Admission(
        admitted=tuple(job.id for job in chosen if job.id not in kept),
        parked=tuple(job.id for job in jobs if job.admitted_at is not None and job.id not in kept),
        total=len(chosen),
        has_more=bool(rest),
        again_at=later(min(lapses), after(now, ASKED_AGAIN_US)) if lapses else None,
    )


def _lapses_at(job: KeyedJob, now: Instant) -> Instant:
    since = job.place_since(now)
    return after(now if since is None else since, ADMISSION_LAPSES_US)
