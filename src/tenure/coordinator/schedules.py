"""Schedules in a coordinator: requests about them, and firing due schedules.

The core decides and the store compares and swaps, so that any number of processes may fire the same
schedules: each occurrence is dealt with once. [SC2] The sweeper also fires, and only when it may
sweep: not on a clock that jumped until a second reading confirms it. [SC25]
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from tenure.clock import Monotonic, boot_now
from tenure.coordinator.batches import PolicyCache
from tenure.core.commands import Cancel, Command
from tenure.core.ids import SYSTEM, JobId, Namespace, RequestId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration
from tenure.core.job import Job
from tenure.core.outcomes import NO_POLICIES, DeclaredPolicies, Moment, Shared
from tenure.core.schedules import (
    Firing,
    RunSchedule,
    Schedule,
    ScheduleChange,
    ScheduleCommand,
    ScheduleOutcome,
    clock_was_set_back,
    decide_schedule,
    fair_order,
    plan_firing,
)
from tenure.core.verdicts import Answer
from tenure.core.vocabulary import Overlap, counted
from tenure.errors import Closed, StoreUnavailable
from tenure.ports import DueSchedules, Observer, Store
from tenure.telemetry.log_lines import FailureLog

MAX_TRIES = 8
PAGE = 100
ROUNDS = 150
"""How often one pass asks for schedules that are due: one may have a hundred occurrences to catch
up with, one in each round."""

_log = logging.getLogger("tenure.schedules")


CheckSchedule: TypeAlias = Callable[[Schedule | None], None]
"""Raises if the caller may not change this schedule."""


def allow_any(_: Schedule | None) -> None:
    """The caller may change every schedule."""


def change_schedule(
    store: Store,
    command: ScheduleCommand,
    observer: Observer | None,
    policies: PolicyCache,
    check: CheckSchedule,
) -> ScheduleOutcome:
    """Decide about a request that was checked, and write what was decided."""
    for _ in range(MAX_TRIES):
        loaded = store.schedules.load(command.namespace, command.name)
        check(loaded.schedule)
        existing = None
        if isinstance(command, RunSchedule):
            existing = store.jobs.load([command.job_id]).jobs.get(command.job_id)
        declared = NO_POLICIES
        if isinstance(command, RunSchedule) and loaded.schedule is not None:
            declared = _policies_for([loaded.schedule], policies)
        at = Moment(now=loaded.now, epoch=loaded.epoch, entropy=b"", shared=Shared(declared))
        decided = decide_schedule(loaded.schedule, command, at, existing)
        if decided.change is None:
            return decided.reply
        if store.schedules.save(decided.change, epoch=loaded.epoch):
            _observe(observer, decided.change)
            return decided.reply
    raise StoreUnavailable(
        f"schedule {command.name} changed under this request {MAX_TRIES} times in a row",
        hint="nothing was written; send the same request again",
    )


def _policies_for(schedules: Sequence[Schedule], policies: PolicyCache) -> DeclaredPolicies:
    """What workers declared for the kinds of schedules that bring no policy. [F9]"""
    wanted = {(each.namespace, each.spec.kind) for each in schedules if each.spec.policy is None}
    return policies.of_kinds(wanted) if wanted else NO_POLICIES


def _observe(observer: Observer | None, change: ScheduleChange) -> None:
    if observer is not None and change.job is not None:
        observer.saved([change.job], {})


class Executes(Protocol):
    """What firing needs of a coordinator."""

    store: Store
    observer: Observer | None
    policies: PolicyCache

    def execute(self, command: Command) -> Answer:
        """Submit one command and wait."""


class FiringReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one pass did."""

    fired: int = 0
    next_in_us: Duration | None = None
    """How long until a schedule is due, 0 if one is still; None if none will be, or if one could
    not be fired."""


class Firer:
    """Fires the schedules of one store."""

    def __init__(self, coordinator: Executes, *, monotonic: Monotonic = boot_now) -> None:
        self._coordinator = coordinator
        self._store = coordinator.store
        self._observer = coordinator.observer
        self._monotonic = monotonic
        self._failure_log = FailureLog()  # each pass would fail again
        self._number = 0
        self._served: dict[Namespace, int] = {}  # when each one due last was served

    def fire_due(self, *, within_us: Duration | None = None) -> FiringReport:
        """Deal with every occurrence that is due, but start none after this time. Raises what the
        store raises."""
        fired = 0
        until_us = math.inf if within_us is None else self._monotonic() + within_us
        for _ in range(ROUNDS):
            due = self._store.schedules.due(limit=PAGE)
            if not due.schedules:
                return FiringReport(fired=fired, next_in_us=due.next_in_us)
            # The runs before, where a schedule needs to know about them.
            ids = [
                each.last_job_id
                for each in due.schedules
                if each.last_job_id is not None and each.spec.overlap is not Overlap.ALLOW
            ]
            previous = self._store.jobs.read(ids, bodies=False) if ids else {}
            shared = Shared(_policies_for(due.schedules, self._coordinator.policies))
            has_moved = False
            for each in self._in_turns(due):
                firing = self._fire(each, due, previous, shared)
                has_moved |= firing is not None
                fired += firing is not None and firing.change.job is not None
                if self._monotonic() >= until_us:
                    return FiringReport(fired=fired, next_in_us=Duration(0) if has_moved else None)
            if not has_moved:
                return FiringReport(fired=fired)  # another process was faster, or none can be fired
        return FiringReport(fired=fired, next_in_us=Duration(0))

    def _in_turns(self, due: DueSchedules) -> Iterator[Schedule]:
        """The schedules, starting with the namespaces that were served longest ago: a pass may end
        before all were served. [SC20]"""
        order = fair_order(due.schedules, self._served)
        here = {each.namespace for each in order}
        self._served = {name: at for name, at in self._served.items() if name in here}
        for each in order:
            self._number += 1
            self._served[each.namespace] = self._number
            yield each

    def _fire(
        self, schedule: Schedule, due: DueSchedules, previous: Mapping[JobId, Job], shared: Shared
    ) -> Firing | None:
        """Deal with an occurrence; None if another process did, or it cannot be done now."""
        if not (schedule.spec.catch_up.is_known and schedule.spec.overlap.is_known):
            return None  # left to processes of the version that wrote it [Y5]
        last = None if schedule.last_job_id is None else previous.get(schedule.last_job_id)
        at = Moment(now=due.now, epoch=due.epoch, entropy=b"", shared=shared)
        try:
            # One payload at a time: each may be a megabyte.
            whole = self._store.schedules.load(schedule.namespace, schedule.name).schedule
            if whole is None or whole.rev != schedule.rev:
                return None
            firing = plan_firing(whole, last, at)
            if firing.cancels is not None:
                self._cancel(schedule, firing.cancels, firing)
            if not self._store.schedules.save(firing.change, epoch=due.epoch):
                return None
        except (StoreUnavailable, Closed):
            raise
        except Exception:  # one schedule that cannot be fired must not stop the others
            if self._failure_log.failed(boot_now()) is not None:
                _log.exception("schedule %s could not be fired, will try again", schedule.name)
            return None
        _observe(self._observer, firing.change)
        if self._observer is not None:
            self._observer.scheduled(schedule, firing)
        _log_firing(schedule, firing)
        return firing

    def _cancel(self, schedule: Schedule, job_id: JobId, firing: Firing) -> None:
        """Ask the run before to stop. First: if this process dies now, the occurrence is still due,
        and the next sweeper fires it again, which changes nothing. [SC7]"""
        made = firing.change.job
        assert made is not None
        self._coordinator.execute(
            Cancel(
                job_id=job_id,
                actor=SYSTEM,
                request_id=RequestId(f"schedule:{made.job.id}"),
                reason=f"the schedule {schedule.name} fired again",
            )
        )


def _log_firing(before: Schedule, firing: Firing) -> None:
    after = firing.change.schedule
    if clock_was_set_back(before, after.updated_at):
        _log.warning(
            "schedule %s continues from now: it was written while the clock was ahead", after.name
        )
    if after.missed > before.missed:
        missed = counted(after.missed - before.missed, "occurrence")
        _log.warning("schedule %s: %s missed", after.name, missed)
    if after.skipped > before.skipped:
        _log.info("schedule %s: skipped, because its last run has not ended", after.name)
    if firing.late_us is not None:
        late_s = firing.late_us / MICROSECONDS_PER_SECOND
        _log.debug("schedule %s: job %s, %.1f s late", after.name, after.last_job_id, late_s)
