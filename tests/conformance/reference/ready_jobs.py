"""Which ready jobs a claim may consider, written without a database."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tenure.core.claims import GrantRoom, claim_order, rate_key_turns
from tenure.core.concurrency import ConcurrencyKey, KeyState, concurrency_key_of, with_room
from tenure.core.ids import Kind, QueueName
from tenure.core.job import Job


def eligible(
    ready: Iterable[Job], room: GrantRoom, keys: Mapping[ConcurrencyKey, KeyState]
) -> list[Job]:
    """Of all ready jobs those that neither a limit nor a rate nor an earlier job of their key holds
    back, in any order.."""
    chosen: list[Job] = []
    taken: dict[tuple[QueueName, Kind, str], int] = {}
    for job in heads(sorted(ready, key=claim_order), keys):
        if not room.has_room_for(job):
            continue
        if job.rate_key is not None:
            place = (job.queue, job.kind, job.rate_key)
            taken[place] = taken.get(place, 0) + 1
            most = rate_key_turns(room, job.kind, job.rate_key)
            if taken[place] > most:
                continue
        chosen.append(job)
    return with_room(chosen, keys)


def heads(jobs: Sequence[Job], keys: Mapping[ConcurrencyKey, KeyState]) -> list[Job]:
    """Of ready jobs in claim order those that are first in their queue, kind and key: as many of
    each as the key has room for. One that waits for a rate holds up those behind it. [CK6]"""
    taken: Counter[tuple[QueueName, Kind, ConcurrencyKey]] = Counter()
    found: list[Job] = []
    for job in jobs:
        key = concurrency_key_of(job)
        if key is not None:
            taken[job.queue, job.kind, key] += 1
        if key is None or taken[job.queue, job.kind, key] <= keys[key].room:
            found.append(job)
    return found
