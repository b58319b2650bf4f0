"""Rollups in dictionaries. A mixin of `ReferenceStore`, which owns the tail of the log."""

from collections.abc import Iterable

from msgspec.structs import replace

from tenure.core.events import Event
from tenure.core.instants import Duration, Instant
from tenure.core.views.events import EventPosition
from tenure.core.views.rollups import (
    COUNTED,
    KEPT_FOR,
    MAX_CATCH_UP,
    CountedEvent,
    Fold,
    FoldProgress,
    Rollup,
    RollupKey,
    UnfoldedPage,
    run_of,
    tally,
    touched,
    wait_of,
)
from tenure.core.vocabulary import EventType
from tenure.ports import PruneResult
from tests.conformance.reference.part import MemoryPart


class MemoryRollups(MemoryPart):
    """The part of `tenure.ports.Store` that keeps rollups."""

    _tail: dict[int, Event]

    def __init__(self) -> None:
        super().__init__()
        self._fold_progress = FoldProgress()
        self._rollups: dict[RollupKey, Rollup] = {}

    def fold_progress(self) -> tuple[FoldProgress, Instant]:
        """How far the log was folded, and now."""
        with self._lock:
            self._open()
            return self._fold_progress, self._clock()

    def load_unfolded(self, *, limit: int, catch_up: int = MAX_CATCH_UP) -> UnfoldedPage:
        """The next events to fold, and the rollups that they belong to. [OB33]"""
        with self._lock:
            self._open()
            now, progress = self._clock(), self._fold_progress
            unfolded, skipped_until = self._unfolded_events(), progress.skipped_until
            if progress.position is None and len(unfolded) > catch_up:
                skipped_until = unfolded[-catch_up - 1][1].ts
                unfolded = unfolded[-catch_up:]
            page = unfolded[:limit]
            tallied = self._tallied(page)
            return UnfoldedPage(
                now=now,
                progress=progress,
                skipped_until=skipped_until,
                end=EventPosition(str(page[-1][0])) if page else None,
                is_full=len(page) == limit,
                tallied=tallied,
                before={
                    key: self._rollups[key] for key in touched(tallied, now) & self._rollups.keys()
                },
            )

    def save_fold(self, fold: Fold) -> bool:
        """Keep the rollups if nobody has folded these events meanwhile. [OB33]"""
        with self._lock:
            self._open()
            if self._fold_progress.position != fold.expected:
                return False
            self._fold_progress = replace(fold.progress, folded_at=self._clock())
            self._rollups.update((each.key, each) for each in fold.rollups)
            return True

    def delete_rollups(self, *, limit: int) -> PruneResult:
        """Delete old rollups. [OB36]"""
        with self._lock:
            self._open()
            numbers = [self._delete_of(length, kept, limit) for length, kept in KEPT_FOR.items()]
            return PruneResult(sum(numbers), limit in numbers)

    def _delete_of(self, length_us: Duration, kept_for: Duration, limit: int) -> int:
        before = self._clock() - kept_for
        old = sorted(
            (key.at, key.namespace, key)
            for key in self._rollups
            if key.length_us == length_us and key.at < before
        )[:limit]
        for _, _, key in old:
            del self._rollups[key]
        return len(old)

    def _unfolded_events(self) -> list[tuple[int, Event]]:
        begin = int(self._fold_progress.position or 0)
        return [(at, event) for at, event in self._tail.items() if at > begin]

    def _tallied(self, page: Iterable[tuple[int, Event]]) -> list[Rollup]:
        return tally(self._counted(event) for _, event in page if event.type in COUNTED)

    def _counted(self, event: Event) -> CountedEvent:
        job, duration = self._jobs[event.job_id], None
        if event.type is EventType.CLAIMED:
            [before] = [each for each in self._events[job.id] if each.seq == event.seq - 1]
            duration = wait_of(event.ts, before.ts, before.payload.run_at)
        elif event.type is EventType.SUCCEEDED and job.started_at is not None:
            duration = run_of(job.started_at, event.ts)
        return CountedEvent(job.namespace, job.queue, job.kind, event.type, event.ts, duration)
