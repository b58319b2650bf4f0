"""Concurrency keys: how many jobs of one key may run at a time.

A key counts within its group: the jobs of one kind, or of all kinds that name the same group. What
is said here is about one namespace. Pure; the claim planner asks `room` before each grant.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from tenure.core.checks import check_integer
from tenure.core.ids import QueueName
from tenure.core.job import Job
from tenure.core.kind_settings import KindSettings

MAX_CONCURRENCY_LIMIT = 1_000_000
MAX_GRANTS_OF_KEY = 100
"""The most jobs of one key that a claim grants: it has to choose from this number. [CK11]"""

DEFAULT_CONCURRENCY_LIMIT = 1
"""How many jobs of one key may run at a time by default. [CK2]"""


def check_concurrency_limit(field: str, value: object) -> None:
    """Raise `InvalidInput` unless this is a number of jobs. [CK7]"""
    check_integer(field, value, low=1, high=MAX_CONCURRENCY_LIMIT)


def concurrency_limit_of(settings: KindSettings | None) -> int:
    """How many jobs of one key may run at a time, by what is set for their group. [CK2]"""
    if settings is None or settings.concurrency_limit is None:
        return DEFAULT_CONCURRENCY_LIMIT
    return settings.concurrency_limit


def is_fair(settings: KindSettings | None) -> bool:
    """Whether the keys of a group take turns, by what is set for the group. [CK8]"""
    return settings is not None and settings.fair


class ConcurrencyKey(msgspec.Struct, frozen=True):
    """The jobs of a namespace that exclude each other."""

    group: str
    key: str


class KeyState(msgspec.Struct, frozen=True, kw_only=True):
    """A key at the moment of a claim."""

    limit: int = DEFAULT_CONCURRENCY_LIMIT
    live: int = 0
    is_fair: bool = False
    served: int = 0
    """With fair keys, the number of its last grant within its group; 0 if it has none."""

    @property
    def room(self) -> int:
        """How many more leases its jobs may get from this claim. [CK3] [CK11] Of fair keys, each
        gets one at most: the others come first. [CK8]"""
        return min(max(0, self.limit - self.live), 1 if self.is_fair else MAX_GRANTS_OF_KEY)


def concurrency_key_of(job: Job) -> ConcurrencyKey | None:
    """The key that a job shares with others; None if it has none."""
    if job.concurrency_key is None:
        return None
    assert job.concurrency_group is not None
    return ConcurrencyKey(job.concurrency_group, job.concurrency_key)


def with_room(jobs: Sequence[Job], keys: Mapping[ConcurrencyKey, KeyState]) -> list[Job]:
    """From ready jobs in claim order, keep the first N of each (queue, key), N being the key's free
    capacity. [CK3] [CK4]

    By queue, because a queue may be paused or full: its first job must not block the jobs of the
    same key in another one. The planner grants no more than the key has room for in all queues.
    """
    taken: Counter[tuple[QueueName, ConcurrencyKey]] = Counter()
    found: list[Job] = []
    for job in jobs:
        key = concurrency_key_of(job)
        if key is not None:
            taken[job.queue, key] += 1
        if key is None or taken[job.queue, key] <= keys[key].room:
            found.append(job)
    return found
