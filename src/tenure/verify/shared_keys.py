"""Checks that no two jobs share a live lease or a live dedupe key, in constant memory.

The store may read a stream page by page, so two equal neighbours can be a job that has just ended
and the one that took its key. Both rows are therefore read again, together, before anything is
reported.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import TypeVar

from tenure.core.ids import JobId, shown_lease
from tenure.core.job import Job
from tenure.ports import DedupeKey, Record, RecordSource
from tenure.verify.violations import Violation, broken

_K = TypeVar("_K")


def leases_are_not_shared(store: RecordSource) -> Iterator[Violation]:
    """No two jobs share a live lease. [I9]"""
    for lease_id, one, other in _shared(store, store.lease_holders(), lambda job: job.lease_id):
        what = f"lease {shown_lease(lease_id)} is also held by job {one.id}"
        yield broken("I9", Record(other.id, other, ()), other.rev, what)


def dedupe_keys_are_not_shared(store: RecordSource) -> Iterator[Violation]:
    """At most one live job has a given (namespace, kind, dedupe key). [I17]"""
    for key, one, other in _shared(store, store.live_keys(), _live_key):
        what = f"dedupe key {key.key} of {key.namespace}/{key.kind} is also held by job {one.id}"
        yield broken("I17", Record(other.id, other, ()), other.rev, what)


def _live_key(job: Job) -> DedupeKey | None:
    if job.dedupe_key is None or job.status.is_terminal:
        return None
    return DedupeKey(job.namespace, job.kind, job.dedupe_key)


def _shared(
    store: RecordSource, holders: Iterable[tuple[_K, JobId]], held: Callable[[Job], object]
) -> Iterator[tuple[_K, Job, Job]]:
    for (key, one), (other_key, other) in pairwise(holders):
        if key == other_key and one != other:
            jobs = store.load([one, other]).jobs
            both = [jobs[job_id] for job_id in (one, other) if job_id in jobs]
            if len(both) == 2 and all(held(job) == key for job in both):
                yield key, both[0], both[1]
