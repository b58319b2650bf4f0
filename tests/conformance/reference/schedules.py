"""Schedules in the reference store."""

from abc import abstractmethod
from collections.abc import Sequence

from tenure.core.ids import Epoch, Namespace, ScheduleName
from tenure.core.instants import Duration
from tenure.core.outcomes import Change
from tenure.core.schedules import Schedule, ScheduleChange, in_turns, is_due
from tenure.ports import NO_LIMIT, DueSchedules, LoadedSchedule, Saved
from tests.conformance.reference.part import MemoryPart


class MemorySchedules(MemoryPart):
    """The part of `tenure.ports.Store` about schedules."""

    def __init__(self) -> None:
        super().__init__()
        self._schedules: dict[tuple[Namespace, ScheduleName], Schedule] = {}

    @abstractmethod
    def _save(self, changes: Sequence[Change], epoch: Epoch) -> Saved:
        """Apply the changes of jobs that still match."""

    def list_schedules(
        self, namespace: Namespace, *, after: str = "", limit: int = NO_LIMIT
    ) -> list[Schedule]:
        """The schedules of a namespace that were not removed, by name."""
        with self._lock:
            self._open()
            found = [each for each in self._schedules.values() if each.namespace == namespace]
        shown = [each.without_payload for each in found if each.removed_at is None]
        return [each for each in sorted(shown, key=_name) if each.name > after][:limit]

    def load_schedule(self, namespace: Namespace, name: ScheduleName) -> LoadedSchedule:
        """A schedule, also a removed one."""
        with self._lock:
            self._open()
            found = self._schedules.get((namespace, name))
            return LoadedSchedule(self._clock(), self._epoch, found)

    def due_schedules(self, *, limit: int) -> DueSchedules:
        """The schedules whose next time has come, and how long until the next one's has."""
        with self._lock:
            self._open()
            now = self._clock()
            times = sorted(
                (each.next_at, each.namespace, each.name)
                for each in self._schedules.values()
                if each.next_at is not None
            )
            found = [self._schedules[namespace, name] for _, namespace, name in times]
            due = [
                each.without_payload
                for each in in_turns(each for each in found if is_due(each, now))[:limit]
            ]
            next_in = Duration(max(0, times[0][0] - now)) if times else None
            return DueSchedules(now, self._epoch, tuple(due), next_in)

    def save_schedule(self, change: ScheduleChange, *, epoch: Epoch) -> bool:
        """Write the schedule and its job, if the rev and the epoch are still these."""
        with self._lock:
            self._open()
            after = change.schedule
            key = (after.namespace, after.name)
            before = self._schedules.get(key)
            rev = 0 if before is None else before.rev
            if epoch != self._epoch or rev != change.expected_rev:
                return False
            if change.job is not None:
                self._save([change.job], epoch)  # a job of this id stays as it is
            self._schedules[key] = after
            return True


def _name(schedule: Schedule) -> str:
    return schedule.name
