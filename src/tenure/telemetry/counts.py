"""Counts: what the coordinator of this process committed, ready to be read as metrics.

The coordinator calls `saved` once per transaction with everything in it, because a drain commits
ten thousand jobs a second: one lock for all of them, a dictionary entry for each event. Only
committed events are counted [I23]. Users choose the names that become labels: their number is
bounded [OB10].
"""

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TypeVar

import msgspec
from msgspec import field

from tenure.core.claims import ClaimConflict
from tenure.core.commands import Command
from tenure.core.events import Event
from tenure.core.ids import JobId, Kind, Namespace
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, later, seconds
from tenure.core.job import Job
from tenure.core.outcomes import Change
from tenure.core.schedules import Firing, Schedule
from tenure.core.verdicts import Observation
from tenure.core.vocabulary import (
    ATTEMPT_ENDS,
    ErrorClass,
    EventCause,
    EventType,
    JobStatus,
    ObservationType,
    ReasonCode,
    Stage,
)

OTHER = "(other)"
"""The label that later names share. It is not a legal name, so no token's scope has it. [OB2]"""
MAX_KINDS = 200
MAX_NAMESPACES = 20

BOUNDS_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    *(30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14400.0),
)
"""The upper bounds of the histograms' buckets: from 5 ms to four hours."""

_BOUNDS_US = tuple(seconds(bound) for bound in BOUNDS_S)

RELEASES = frozenset({EventCause.RELEASED, EventCause.SNOOZED, EventCause.UNDELIVERED})
EXPIRIES = frozenset(
    {
        EventCause.LEASE_EXPIRED,
        EventCause.OUTAGE,
        EventCause.TIMEOUT,
        EventCause.START_TIMEOUT,
    }
)

_K = TypeVar("_K")


_BUCKETS = len(BOUNDS_S) + 1  # the last one has no upper end


class Histogram(msgspec.Struct):
    """How many durations fell between two bounds, and their sum."""

    buckets: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    sum_us: int = 0

    def observe(self, duration_us: int) -> None:
        """Count a duration; a negative one, after the store's clock was set back, adds no time."""
        self.buckets[bisect_left(_BOUNDS_US, duration_us)] += 1
        self.sum_us += max(0, duration_us)

    @property
    def sum_s(self) -> float:
        """The sum in seconds."""
        return self.sum_us / MICROSECONDS_PER_SECOND


# Bound once: looking up a member of an enumeration costs more than counting it.
_CLAIMED, _STARTED, _STALLED = EventType.CLAIMED, EventType.STARTED, EventType.STALLED
_REQUEUED, _FAILED, _DEAD = EventType.REQUEUED, EventType.FAILED, EventType.DEAD_LETTERED
_RUNNING, _RECLAIM = JobStatus.RUNNING, EventCause.RECLAIM
_ERRORS = frozenset({_STALLED, _FAILED, _DEAD})


class KindTally(msgspec.Struct):
    """What happened to the jobs of one kind."""

    events: dict[tuple[EventType, EventCause | None], int] = field(default_factory=dict)
    retries: dict[EventCause | None, int] = field(default_factory=dict)
    failures: dict[ErrorClass, int] = field(default_factory=dict)
    dead_letters: dict[tuple[ReasonCode | None, Stage | None], int] = field(default_factory=dict)
    observations: dict[ObservationType, int] = field(default_factory=dict)
    waits: Histogram = field(default_factory=Histogram)
    runs: Histogram = field(default_factory=Histogram)
    occurrences: dict[str, int] = field(default_factory=dict)
    lateness: Histogram = field(default_factory=Histogram)

    def count(self, change: Change, before: Job | None) -> None:
        """Count the events of a change that was made to the row `before`."""
        events = self.events
        for each in change.observations:  # a compensation succeeded
            _add(self.observations, each.type)
        started_at = None if before is None else before.started_at
        stalled_by = None if before is None else before.stall_cause
        for event in change.events:
            kind = event.type
            key = (kind, event.cause)
            events[key] = events.get(key, 0) + 1
            if kind is _CLAIMED:
                if before is not None and before.run_at is not None:
                    # A released job has its old `run_at`, but waits since it was released. [Z5]
                    self.waits.observe(event.ts - later(before.run_at, before.updated_at))
                if event.cause is _RECLAIM:
                    _add(self.retries, stalled_by)
            elif kind is _STARTED:
                started_at = event.ts
            elif kind in ATTEMPT_ENDS:
                if started_at is not None and event.from_status is _RUNNING:
                    self.runs.observe(event.ts - started_at)
                stalled_by = event.cause
                if kind in _ERRORS:
                    self._count_error(event)
            elif kind is _REQUEUED and stalled_by not in RELEASES:
                _add(self.retries, stalled_by)

    def _count_error(self, event: Event) -> None:
        """Count failures that workers reported, and dead letters whatever made them."""
        facts = event.payload
        if event.type is _DEAD:
            _add(self.dead_letters, (facts.reason_code, facts.stage))
        if facts.error is not None and event.is_by_worker:
            _add(self.failures, facts.error.error_class)


def _add(counts: dict[_K, int], key: _K, number: int = 1) -> None:
    counts[key] = counts.get(key, 0) + number


class KindTallies:
    """One tally for each of the first kinds; later kinds share one, and so do all kinds of later
    namespaces. [OB10]"""

    def __init__(self, *, kinds: int, namespaces: int) -> None:
        self._most_kinds = kinds
        self._most_namespaces = namespaces
        self._namespaces: set[str] = set()
        self.by_label: dict[tuple[str, str], KindTally] = {}  # of namespace and kind

    def of(self, namespace: Namespace, kind: Kind) -> KindTally:
        """The tally that jobs of this kind are counted in."""
        known = self.by_label.get((namespace, kind))
        if known is not None:
            return known
        has_room = namespace in self._namespaces or len(self._namespaces) < self._most_namespaces
        if not has_room:
            return self.by_label.setdefault((OTHER, OTHER), KindTally())
        self._namespaces.add(namespace)
        is_full = len(self.by_label) >= self._most_kinds
        return self.by_label.setdefault((namespace, OTHER if is_full else kind), KindTally())


def _operation(command: type) -> str:
    return command.__name__.lower()


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All counts at one moment."""

    tallies: dict[tuple[str, str], KindTally]
    """By namespace and kind."""
    misses: dict[str, int]
    conflicts: dict[ClaimConflict, int]
    sweeper_lag_s: float | None


class Counts:
    """`tenure.ports.Observer` that counts. Thread-safe."""

    def __init__(
        self,
        *,
        sweep_interval_s: float = 0.0,
        kinds: int = MAX_KINDS,
        namespaces: int = MAX_NAMESPACES,
    ) -> None:
        self._sweep_interval_s = sweep_interval_s
        self._kinds = kinds
        self._namespaces = namespaces
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._last_sweep: tuple[float, Duration] | None = None
        self._tallies = KindTallies(kinds=self._kinds, namespaces=self._namespaces)
        self._misses: dict[str, int] = {}
        self._conflicts = dict.fromkeys(ClaimConflict, 0)

    def _locked(self) -> threading.Lock:
        """The lock. A forked child starts at zero, because its parent counts what the parent
        committed, and with a new lock: a thread that was not copied may hold the old one."""
        if self._pid != os.getpid():
            self._begin()
        return self._lock

    def saved(self, changes: Sequence[Change], before: Mapping[JobId, Job | None]) -> None:
        """Count the events of what was committed."""
        with self._locked():
            for change in changes:
                job = change.job
                self._tallies.of(job.namespace, job.kind).count(change, before.get(job.id))
                for spawned in change.spawned:
                    self._tallies.of(spawned.job.namespace, spawned.job.kind).count(spawned, None)

    def observed(self, observations: Sequence[Observation], jobs: Mapping[JobId, Job]) -> None:
        """Count what was kept of refused reports."""
        with self._locked():
            for each in observations:
                job = jobs[each.job_id]
                _add(self._tallies.of(job.namespace, job.kind).observations, each.type)

    def missed(self, commands: Sequence[Command]) -> None:
        """Count commands that lost their compare-and-swap, by operation."""
        with self._locked():
            for command in commands:
                _add(self._misses, _operation(type(command)))

    def contended(self, conflict: ClaimConflict, number: int) -> None:
        """Count conflicts of claims."""
        with self._locked():
            _add(self._conflicts, conflict, number)

    def scheduled(self, before: Schedule, firing: Firing) -> None:
        """Count what became of the occurrences of a schedule that were due."""
        after = firing.change.schedule
        with self._locked():
            tally = self._tallies.of(after.namespace, after.spec.kind)
            for outcome, number in (
                ("fired", after.fired - before.fired),
                ("skipped", after.skipped - before.skipped),
                ("missed", after.missed - before.missed),
            ):
                if number:
                    _add(tally.occurrences, outcome, number)
            if firing.late_us is not None:
                tally.lateness.observe(firing.late_us)

    def swept(self, overdue_us: Duration) -> None:
        """Remember how late the sweeper was, and when."""
        with self._locked():
            self._last_sweep = (time.monotonic(), overdue_us)

    def snapshot(self) -> Snapshot:
        """All counts now."""
        with self._locked():
            return Snapshot(
                tallies=deepcopy(self._tallies.by_label),
                misses=dict(self._misses),
                conflicts=dict(self._conflicts),
                sweeper_lag_s=self._sweeper_lag_s(),
            )

    def _sweeper_lag_s(self) -> float | None:
        """How late the sweeper is: what its last pass found, or the delay of its next pass."""
        if self._last_sweep is None:
            return None
        at, overdue_us = self._last_sweep
        late_s = time.monotonic() - at - self._sweep_interval_s
        return max(overdue_us / MICROSECONDS_PER_SECOND, late_s, 0.0)
