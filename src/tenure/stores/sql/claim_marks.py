"""Where a claim begins to read a queue: at its mark, or at the front. Only PostgreSQL needs marks.

While some transaction keeps an old snapshot, PostgreSQL cannot remove the index entries of jobs
that were claimed since, and whoever reads a queue from the front passes all of them. So a process
remembers up to where every job was claimed, by queue and kinds, and its next claim begins there. A
mark only saves reading: rows are locked and checked as ever. What a claim may miss because of it,
and for how long, is [Z8]. No I/O; thread-safe.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from tenure.core.claims import ClaimScope, claim_order
from tenure.core.ids import JobId, Kind, Namespace, QueueName
from tenure.core.job import Job
from tenure.core.outcomes import Change
from tenure.ports import Hint, HintedChange

LONGEST_USE_S = 1.0
"""How long a mark is used after the queue was last read from the front. [Z8]"""

HINTED_SHARE = 20
"""After a hint from another process the front is read sooner, but for a twentieth of the time at
most: behind many dead entries reading it takes long."""

MAX_MARKED_KINDS = 32
"""A claim of more kinds, or of any kind, reads from the front."""

MAX_MARKED_QUEUES = 1_000
MAX_MARKS_OF_QUEUE = 16
"""Claims of so many different sets of kinds have marks; beyond both limits marks are forgotten."""

Place: TypeAlias = tuple[int, int, str]
"""Where a job is in the order of claims, see `claim_order`."""

FRONT: Place = (-(2**31), 0, "")
"""Before every job."""

_Kinds: TypeAlias = tuple[Kind, ...]
_Queue: TypeAlias = tuple[Namespace, QueueName]


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """When the queue was last read from the front, no job was left before this place. From it on,
    claims read jobs of its priority."""

    place: Place
    front_read_at_s: float
    front_read_s: float
    is_hinted: bool

    def is_usable(self, now_s: float) -> bool:
        """Whether a claim may begin here."""
        longest_s = LONGEST_USE_S
        if self.is_hinted:
            longest_s = min(longest_s, HINTED_SHARE * self.front_read_s)
        return self.place != FRONT and now_s - self.front_read_at_s < longest_s


def _lowered(place: Place, to: Place) -> Place:
    """The mark that misses neither; only within one priority is there such a place."""
    lower = min(place, to)
    return lower if lower[0] == place[0] else FRONT


class MarkedClaim:
    """One claim: where it begins to read, what it found, and what of that it granted."""

    def __init__(
        self,
        scope: ClaimScope,
        begins_at: Mapping[QueueName, Mark] | None = None,
        *,
        began_at_s: float = 0.0,
    ) -> None:
        self.namespace = scope.namespace
        self.queues = frozenset(scope.queues)
        self.kinds = scope.kinds
        self.begins_at = dict(begins_at or {})
        self.began_at_s = began_at_s
        self.short: set[QueueName] = set()
        self.found: dict[JobId, Job] = {}
        self.granted: Collection[JobId] = ()
        self.skipped_locked = False
        self.lowest: dict[QueueName, Place] = {}  # of what was made ready meanwhile
        self.hinted: set[QueueName] = set()

    def leave_out_kinds(self) -> None:
        """A kind may have no room, and is not read then. Its jobs would stay before the marks, so
        this claim begins at the front and moves no mark."""
        self.begins_at.clear()
        self.kinds = None

    def note_short(self, wanted: Mapping[QueueName, int], found: Mapping[QueueName, int]) -> None:
        """Note the queues that had fewer jobs than were wanted of them."""
        self.short = {name for name, most in wanted.items() if found.get(name, 0) < most}

    @property
    def must_read_again(self) -> bool:
        """Whether a queue that had too few jobs was read from its mark: only a claim that has read
        from the front may receive less than it wants. [Z8]"""
        return not self.begins_at.keys().isdisjoint(self.short)

    def begin_at_front(self) -> None:
        """Read all queues again, without their marks."""
        self.begins_at.clear()

    def note(self, jobs: Iterable[Job]) -> None:
        """These were read, and locked. Delayed jobs are not what marks are about."""
        self.found.update((job.id, job) for job in jobs if job.not_before == 0)

    def lower(self, queue: QueueName, place: Place) -> None:
        """A job here may have become ready after this claim has read."""
        self.lowest[queue] = min(place, self.lowest.get(queue, place))

    def concerns(self, namespace: Namespace, queue: QueueName) -> bool:
        """Whether it reads this queue."""
        return namespace == self.namespace and queue in self.queues


class ClaimMarks:
    """The marks of one process, on one store."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._marks: dict[_Queue, dict[_Kinds, Mark]] = {}
        self._under_way: set[MarkedClaim] = set()

    @contextmanager
    def claim(self, scope: ClaimScope) -> Iterator[MarkedClaim]:
        """A claim from its beginning until it is committed, or has failed."""
        claim = self._begin(scope)
        try:
            yield claim
        except BaseException:
            self._give_up(claim)
            raise
        self._settle(claim)

    def made_ready(self, changes: Iterable[Change]) -> None:
        """These changes of this process are committed: what is ready by them must be found."""
        with self._lock:  # a claim that ends moves its mark with the lock held
            if not self._marks and not self._under_way:
                return
        lowest: dict[tuple[Namespace, QueueName, Kind], Place] = {}
        for change in changes:
            for each in (change, *change.spawned) if change.spawned else (change,):
                job = each.job
                # Jobs with a concurrency key are found by their turns, not by their place.
                if job.not_before == 0 and job.concurrency_group is None:
                    where, place = (job.namespace, job.queue, job.kind), claim_order(job)
                    lowest[where] = min(place, lowest.get(where, place))
        if lowest:
            with self._lock:
                for (namespace, queue, kind), place in lowest.items():
                    self._lower(namespace, queue, kind, place)

    def forget(self) -> None:
        """This process may have committed something without knowing what: read from the front."""
        with self._lock:
            self._marks.clear()
            for claim in self._under_way:
                for queue in claim.queues:
                    claim.lower(queue, FRONT)

    def hear(self, hint: Hint | None) -> None:
        """Another process has changed something; None: perhaps several, anywhere."""
        if hint is not None and hint.change is not HintedChange.READY:
            return  # no job that ended, or is delayed, is before a mark
        with self._lock:
            for (namespace, queue), marks in self._marks.items():
                if hint is None or (hint.namespace, hint.queue) == (namespace, queue):
                    marks.update((k, replace(mark, is_hinted=True)) for k, mark in marks.items())
            for claim in self._under_way:
                if hint is None:
                    claim.hinted |= claim.queues
                elif claim.concerns(hint.namespace, hint.queue):
                    claim.hinted.add(hint.queue)

    def _begin(self, scope: ClaimScope) -> MarkedClaim:
        kinds = scope.kinds
        with self._lock:
            now_s = self._monotonic()
            found: dict[QueueName, Mark] = {}
            for name in scope.queues if self._marks else ():
                mark = self._marks.get((scope.namespace, name), {}).get(kinds or ())
                if mark is not None and mark.is_usable(now_s):
                    found[name] = mark
            claim = MarkedClaim(scope, found, began_at_s=now_s)
            self._under_way.add(claim)
        return claim

    def _settle(self, claim: MarkedClaim) -> None:
        """Move marks up to the first job that was not granted. Other claims that passed it, because
        this one held it locked, come back for it."""
        reached: dict[QueueName, Place] = {}
        left: dict[QueueName, Place] = {}
        for job in sorted(claim.found.values(), key=claim_order):
            if job.id not in claim.granted:
                left.setdefault(job.queue, claim_order(job))
            elif job.queue not in left:
                reached[job.queue] = claim_order(job)
        with self._lock:
            self._under_way.discard(claim)
            for queue, place in left.items():
                self._lower(claim.namespace, queue, None, place)
            if claim.kinds is not None and len(claim.kinds) <= MAX_MARKED_KINDS:
                for queue in claim.queues:
                    self._move(claim, queue, claim.kinds, reached.get(queue))

    def _give_up(self, claim: MarkedClaim) -> None:
        """What it held locked may be ready, and others may have passed it."""
        with self._lock:
            self._under_way.discard(claim)
            for queue in claim.queues:
                self._lower(claim.namespace, queue, None, FRONT)

    def _move(
        self, claim: MarkedClaim, queue: QueueName, kinds: _Kinds, reached: Place | None
    ) -> None:
        marks = self._marks.pop((claim.namespace, queue), {})
        mark = marks.pop(kinds, None)
        # A queue that has fewer jobs than are wanted is soon empty. With a mark every claim would
        # then read it twice.
        if queue not in claim.short:
            moved = self._moved(mark, claim, queue, reached)
            if moved is not None:
                marks[kinds] = moved
        if len(self._marks) >= MAX_MARKED_QUEUES:
            self._marks.clear()
        if 0 < len(marks) <= MAX_MARKS_OF_QUEUE:
            self._marks[claim.namespace, queue] = marks

    def _moved(
        self, mark: Mark | None, claim: MarkedClaim, queue: QueueName, reached: Place | None
    ) -> Mark | None:
        """The mark after a claim that granted everything up to `reached`."""
        if reached is None:
            return mark
        place = _lowered(reached, claim.lowest.get(queue, reached))
        began_at = claim.begins_at.get(queue)
        if began_at is None:
            if mark is not None and mark.front_read_at_s >= claim.began_at_s:
                return mark
            return Mark(
                place=place,
                front_read_at_s=claim.began_at_s,
                front_read_s=self._monotonic() - claim.began_at_s,
                is_hinted=queue in claim.hinted,
            )
        # If the front was read since, it may have found jobs before the place where this one began.
        is_same = mark is not None and mark.front_read_at_s == began_at.front_read_at_s
        if mark is None or not is_same or place <= mark.place:
            return mark
        return replace(mark, place=place)

    def _lower(
        self, namespace: Namespace, queue: QueueName, kind: Kind | None, place: Place
    ) -> None:
        """A job of this kind, or None: of any, may be ready at this place."""
        marks = self._marks.get((namespace, queue), {})
        for kinds, mark in marks.items():
            if place < mark.place and (kind is None or kind in kinds):
                marks[kinds] = replace(mark, place=_lowered(mark.place, place))
        for claim in self._under_way:
            is_of_kind = kind is None or kind in (claim.kinds or ())
            if is_of_kind and claim.concerns(namespace, queue):
                claim.lower(queue, place)
