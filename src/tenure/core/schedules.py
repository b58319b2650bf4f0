"""Schedules: when they fire, which job each occurrence makes, and what happens to one that is late
or meets a run that has not ended.

Pure: callers pass the moment. An occurrence is one nominal time of a schedule. Its job's id follows
from namespace, schedule and nominal time, so that it is made once, in whatever process. [SC1]
`decide_schedule` is the only function that changes a schedule on request, `plan_firing` the only
one that fires it. Zones come from the system's database of time zones, or from the package tzdata.
"""

import hashlib
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import takewhile
from typing import Any, TypeAlias, assert_never
from zoneinfo import ZoneInfo, available_timezones

import msgspec
from cronsim import CronSim, CronSimError
from msgspec.structs import replace

from tenure.core.checks import (
    MAX_NAME,
    check_fields,
    check_label,
    check_name,
    check_type,
    quoted,
)
from tenure.core.commands import Enqueue, JobSpec, ScheduledEnqueue
from tenure.core.ids import (
    DERIVED_VERSION,
    SYSTEM,
    Actor,
    JobId,
    Kind,
    Namespace,
    QueueName,
    ScheduleName,
    new_job_id,
    occurrence_job_id,
)
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant, later, seconds
from tenure.core.job import Job
from tenure.core.lifecycle import decide
from tenure.core.outcomes import Applied, Change, DecisionContext, Moment
from tenure.core.policy import DeadLetterJob, Policy
from tenure.core.tokens import Token
from tenure.core.validation import Limits, check_command
from tenure.core.vocabulary import CatchUp, Cause, Overlap, did_you_mean
from tenure.errors import InvalidInput

UPCOMING_TIMES = 5
SHORTEST_EVERY = seconds(1)
MAX_CRON = 200
MAX_CATCH_UP = 100
"""How many occurrences `catch_up="all"` makes up for; older ones are missed. [SC8]"""
MAX_COUNTED = 5_000
"""How many missed occurrences of a cron expression are counted at a time: three days of minutes,
which take half a second."""
CLOCK_STEP = seconds(3600)
"""After the clock was set back by more than this, a schedule continues from now. After a smaller
step it waits until the clock has caught up, so that no occurrence is dealt with twice. [SC2]
[SC15]"""

LATE = seconds(60)
"""With `catch_up="none"` an occurrence that is later than this is missed. [SC8]"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DAY_US = 24 * 3600 * MICROSECONDS_PER_SECOND
_ZONES_REMEMBERED = 256


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is declared about a schedule: when it fires and which job that makes."""

    kind: Kind
    queue: QueueName
    payload: bytes = b"null"
    priority: int = 0
    policy: Policy | None = None
    """None: the policy that workers declare for the kind, whenever it fires. [F9]"""
    concurrency_key: str | None = None
    rate_key: str | None = None
    expires_us: Duration | None = None
    on_dead_letter: DeadLetterJob | None = None
    meta: dict[str, str] | None = None
    cron: str | None = None
    tz: str = "UTC"
    every_us: Duration | None = None
    catch_up: CatchUp = CatchUp.LATEST
    overlap: Overlap = Overlap.SKIP
    jitter_us: Duration = Duration(0)

    @property
    def timing(self) -> tuple[str | None, str, Duration | None]:
        """What its nominal times follow from."""
        return self.cron, self.tz, self.every_us


_OF_ITS_JOB = [name for name in ScheduleSpec.__struct_fields__ if name in JobSpec.__struct_fields__]
"""What a spec states about the job: fields of an enqueue, of the same names."""


def job_fields(source: Any) -> dict[str, Any]:
    """What a spec or a call states about the job of a schedule."""
    return {name: getattr(source, name) for name in _OF_ITS_JOB}


class Schedule(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One row of the `schedule` table.

    `next_at` is the nominal time of the next occurrence; None while it is paused, after it was
    removed, and if there is none. A removed schedule keeps its row, so that a worker that starts
    does not declare it again. [SC10] It keeps no payload. [SC21]
    """

    namespace: Namespace
    name: ScheduleName
    spec: ScheduleSpec
    rev: int
    created_at: Instant
    created_by: Actor
    # By a request: firing it and running it by hand leave these two unchanged. [SC23]
    changed_at: Instant
    changed_by: Actor
    updated_at: Instant  # when the row was last written
    declared_by: str | None = None  # the application that declares it; None: made by hand
    next_at: Instant | None = None
    paused_at: Instant | None = None
    pause_reason: str | None = None  # None: not paused, or by a caller's request [SC24]
    removed_at: Instant | None = None
    last_at: Instant | None = None  # the nominal time of the last occurrence that was dealt with
    last_job_id: JobId | None = None
    fired: int = 0
    skipped: int = 0  # because the run before had not ended
    missed: int = 0  # because they were not fired in time

    @property
    def without_payload(self) -> "Schedule":
        """As lists have it: a payload may be a megabyte."""
        return replace(self, spec=replace(self.spec, payload=b"null"))


class ScheduleChange(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule's next row, and the job that goes with it. A store writes both, or neither: it
    writes iff the row's rev is still `expected_rev` (0: there is no such row). [SC3]"""

    schedule: Schedule
    expected_rev: int
    job: Change | None = None


def fair_order(
    due: Iterable[Schedule], served: Mapping[Namespace, int] | None = None
) -> list[Schedule]:
    """Schedules that are due, longest first, in the order in which they are fired: of each
    namespace one, then of each the second, and so on, so that no namespace waits for all schedules
    of another. Namespaces that were `served` less lately come first. [SC20]"""
    last = served or {}
    turns: Counter[Namespace] = Counter()
    order: list[tuple[tuple[int, int], Schedule]] = []
    for each in due:
        turns[each.namespace] += 1
        order.append(((turns[each.namespace], last.get(each.namespace, 0)), each))
    return [each for _, each in sorted(order, key=lambda turn: turn[0])]


# --- Times -------------------------------------------------------------------------------------


def next_after(spec: ScheduleSpec, after: Instant) -> Instant | None:
    """The first nominal time after `after`; None: there is none in fifty years. [SC4] [SC5]"""
    if spec.every_us is not None:
        return Instant((after // spec.every_us + 1) * spec.every_us)
    return next(_cron_times(spec, after), None)


def next_times(spec: ScheduleSpec, after: Instant, *, number: int) -> list[Instant]:
    """The next nominal times."""
    found: list[Instant] = []
    while len(found) < number:
        at = next_after(spec, found[-1] if found else after)
        if at is None:
            break
        found.append(at)
    return found


def upcoming_times(schedule: Schedule) -> list[Instant]:
    """Its next times, up to `UPCOMING_TIMES`; none while it is paused."""
    if schedule.next_at is None:
        return []
    times_after = next_times(schedule.spec, schedule.next_at, number=UPCOMING_TIMES - 1)
    return [schedule.next_at, *times_after]


def _cron_times(spec: ScheduleSpec, after: Instant) -> Iterator[Instant]:
    """The nominal times after `after`, rising. [SC4]"""
    assert spec.cron is not None
    if any(field.startswith("*") for field in spec.cron.split()[:2]):
        return _times_that_clocks_show(spec.cron, _zone(spec.tz), after)
    return _fixed_times(spec.cron, _zone(spec.tz), after)


def _fixed_times(cron: str, zone: tzinfo, after: Instant) -> Iterator[Instant]:
    """CronSim may start before `after` where the clocks repeat times, and it may give one time
    twice where they skip some."""
    last = after
    for at in CronSim(cron, _datetime(after).astimezone(zone)):
        instant = _instant(at.astimezone(UTC))
        if instant > last:
            yield instant
            last = instant


def _times_that_clocks_show(cron: str, zone: tzinfo, after: Instant) -> Iterator[Instant]:
    """Every time at which clocks of the zone match the expression. CronSim is called with times as
    if they were UTC, once per period without a clock change: around a change of less than an hour
    it skips times that exist (docs/upstream/cronsim.md)."""
    last, offset_us = after, _offset_us(zone, after)
    while True:
        for shown_at in CronSim(cron, _datetime(last + offset_us)):
            at = Instant(_instant(shown_at) - offset_us)
            looked_at = Instant(min(at, last + _DAY_US))
            if _offset_us(zone, looked_at) != offset_us:
                changed_at = _clock_change(zone, last, looked_at)
                last, offset_us = Instant(changed_at - 1), _offset_us(zone, changed_at)
                break
            if looked_at < at:  # nothing happens until shortly before it, in any offset
                last = later(looked_at, Instant(at - 2 * _DAY_US))
                offset_us = _offset_us(zone, last)
                break
            yield at
            last = at
        else:
            return


def _clock_change(zone: tzinfo, before: Instant, after: Instant) -> Instant:
    """When the clocks were set, which is at a whole second; once between these two."""
    offset_us, begin = _offset_us(zone, before), before // MICROSECONDS_PER_SECOND
    later_seconds = bisect_left(
        range(begin, after // MICROSECONDS_PER_SECOND),
        True,
        key=lambda second: _offset_us(zone, second * MICROSECONDS_PER_SECOND) != offset_us,
    )
    return Instant((begin + later_seconds) * MICROSECONDS_PER_SECOND)


def _offset_us(zone: tzinfo, at: int) -> int:
    """By how much clocks of the zone are ahead of UTC."""
    offset = _datetime(at).astimezone(zone).utcoffset()
    assert offset is not None
    return offset // _MICROSECOND


def _datetime(at: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at)


def _instant(at: datetime) -> Instant:
    return Instant((at - _EPOCH) // _MICROSECOND)


@lru_cache(maxsize=_ZONES_REMEMBERED)
def _zone(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


class DueTimes(msgspec.Struct, frozen=True):
    """The latest occurrences that are due, in order, and how many came before them."""

    times: tuple[Instant, ...]
    older: int


def due_times(spec: ScheduleSpec, first: Instant, now: Instant) -> DueTimes:
    """The occurrences from `first` until `now`: the latest, and the number of the others. After a
    very long stop of a cron schedule there are more than that number. [SC8]"""
    if spec.every_us is not None:
        number = (now - first) // spec.every_us + 1
        kept = min(number, MAX_CATCH_UP)
        begin = first + (number - kept) * spec.every_us
        times = tuple(Instant(begin + nth * spec.every_us) for nth in range(kept))
        return DueTimes(times, number - kept)
    latest: deque[Instant] = deque([first], maxlen=MAX_CATCH_UP)
    number = 1
    for at in _cron_times(spec, first):
        if at > now:
            break
        if number == MAX_COUNTED:
            return DueTimes(tuple(_latest(spec, latest[-1], now)), number)
        latest.append(at)
        number += 1
    return DueTimes(tuple(latest), number - len(latest))


def _latest(spec: ScheduleSpec, after: Instant, now: Instant) -> deque[Instant]:
    """The latest occurrences until `now`, without going through all of them: doubles the span that
    it searches until it has enough. The caller guarantees one after `after`."""
    back_us = MAX_CATCH_UP * 60 * MICROSECONDS_PER_SECOND  # cron fires once a minute at most
    while True:
        begin = later(Instant(now - back_us), after)
        latest: deque[Instant] = deque(maxlen=MAX_CATCH_UP)
        latest.extend(takewhile(lambda at: at <= now, _cron_times(spec, begin)))
        if len(latest) == MAX_CATCH_UP or begin == after:
            return latest
        back_us *= 2


def jitter_of(job_id: JobId, most: Duration) -> Duration:
    """How long after its nominal time this occurrence's job is ready: the same in every process."""
    drawn = int.from_bytes(hashlib.sha256(job_id.encode()).digest()[:8], "big")
    return Duration(drawn % (most + 1))


# --- Firing ------------------------------------------------------------------------------------


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """What firing a schedule does: cancel this job first, then write this change."""

    change: ScheduleChange
    cancels: JobId | None = None

    @property
    def late_us(self) -> Duration | None:
        """How late the job was made; None if none was."""
        job = self.change.job
        if job is None or job.job.scheduled_for is None:
            return None
        return Duration(max(0, job.job.enqueued_at - job.job.scheduled_for))


def plan_firing(schedule: Schedule, previous: Job | None, at: Moment) -> Firing:
    """Deal with the next occurrence of a schedule that is due: make its job, skip it or miss it.
    `previous` is the job of the run before, if it still exists. [SC25] [SC7] [SC8]

    One occurrence at a time: with `catch_up="all"` the next one is due at once.
    """
    if clock_was_set_back(schedule, at.now):
        return _after_the_clock_was_set_back(schedule, at)
    spec, first = schedule.spec, schedule.next_at
    assert first is not None
    assert first <= at.now, "it is not due"
    due = due_times(spec, first, at.now)
    chosen, missed = _chosen(spec.catch_up, due, at.now)
    dealt_with = due.times[-1] if chosen is None else chosen
    next_row: dict[str, Any] = {
        "next_at": next_after(spec, dealt_with),
        "last_at": dealt_with,
        "missed": schedule.missed + missed,
    }
    if chosen is None:
        return Firing(change=_written(schedule, at, **next_row))
    is_live = previous is not None and not previous.status.is_terminal
    if is_live and spec.overlap is Overlap.SKIP:
        return Firing(change=_written(schedule, at, skipped=schedule.skipped + 1, **next_row))
    job_id = occurrence_job_id(schedule.namespace, schedule.name, chosen)
    made = _job(schedule, job_id, at, nominal=chosen, actor=SYSTEM)
    next_row |= {"fired": schedule.fired + 1, "last_job_id": job_id}
    return Firing(
        change=_written(schedule, at, job=made, **next_row),
        cancels=schedule.last_job_id if is_live and spec.overlap is Overlap.CANCEL else None,
    )


def latest_plausible_write(now: Instant) -> Instant:
    """The latest write time that the current clock can explain. A schedule that was written after
    it was written before the clock was set back: its next time may be far away. [SC15]"""
    return Instant(now + CLOCK_STEP)


def clock_was_set_back(schedule: Schedule, now: Instant) -> bool:
    """Whether the clock was set back far since the schedule was written last. [SC15]"""
    return schedule.updated_at > latest_plausible_write(now)


def is_due(schedule: Schedule, now: Instant) -> bool:
    """Whether `plan_firing` has something to do: the schedule's time has come, or the clock was set
    back far. [SC25] [SC15]"""
    if schedule.next_at is None:
        return False
    return schedule.next_at <= now or clock_was_set_back(schedule, now)


def _after_the_clock_was_set_back(schedule: Schedule, at: Moment) -> Firing:
    """Continue with the first nominal time from now on. What was fired while the clock was ahead
    has its job, whose id no second one can have. [SC15]"""
    is_passed = schedule.last_at is None or schedule.last_at <= at.now
    change = _written(
        schedule,
        at,
        next_at=next_after(schedule.spec, at.now),
        last_at=schedule.last_at if is_passed else None,
    )
    return Firing(change=change)


def _written(
    schedule: Schedule, at: Moment, *, job: Change | None = None, **fields: Any
) -> ScheduleChange:
    """The change that writes these fields, and the job that goes with it."""
    after = replace(schedule, rev=schedule.rev + 1, updated_at=at.now, **fields)
    return ScheduleChange(schedule=after, expected_rev=schedule.rev, job=job)


def _chosen(catch_up: CatchUp, due: DueTimes, now: Instant) -> tuple[Instant | None, int]:
    """The occurrence to fire, and how many before it are missed. [SC8]"""
    if catch_up is CatchUp.ALL:
        return due.times[0], due.older
    missed = due.older + len(due.times) - 1
    if catch_up is CatchUp.NONE and now - due.times[-1] > LATE:
        return None, missed + 1
    return due.times[-1], missed


def _job(
    schedule: Schedule, job_id: JobId, at: Moment, *, nominal: Instant, actor: Actor
) -> Change:
    spec = schedule.spec
    command = ScheduledEnqueue(
        job_id=job_id,
        namespace=schedule.namespace,
        actor=actor,
        run_at=Instant(nominal + jitter_of(job_id, spec.jitter_us)),
        schedule=schedule.name,
        scheduled_for=nominal,
        **job_fields(spec),
    )
    context = DecisionContext(now=at.now, epoch=at.epoch, entropy=at.entropy, shared=at.shared)
    outcome = decide(command, context)
    assert isinstance(outcome, Applied)
    return outcome.change


# --- Requests ----------------------------------------------------------------------------------


class _ScheduleRequest(msgspec.Struct, frozen=True, kw_only=True):
    namespace: Namespace
    name: ScheduleName
    actor: Actor


class PutSchedule(_ScheduleRequest, frozen=True, kw_only=True):
    """Declare a schedule, or change it. With `only_new` only a name that the store has never had is
    written: what a worker that starts asks for. [SC10]"""

    spec: ScheduleSpec
    declared_by: str | None = None
    only_new: bool = False


class PauseSchedule(_ScheduleRequest, frozen=True, kw_only=True):
    """Fire it no more until it is resumed. [SC9]"""


class ResumeSchedule(_ScheduleRequest, frozen=True, kw_only=True):
    """Fire a paused schedule again; what it would have fired meanwhile is not caught up. [SC9]"""


class RemoveSchedule(_ScheduleRequest, frozen=True, kw_only=True):
    """End a schedule; its jobs stay. [SC10]"""


class RunSchedule(_ScheduleRequest, frozen=True, kw_only=True):
    """Make a job of it now, whatever its times and its last run are. The caller makes the id, so a
    repeated request is one job. [SC11]"""

    job_id: JobId


ScheduleCommand: TypeAlias = (
    PutSchedule | PauseSchedule | ResumeSchedule | RemoveSchedule | RunSchedule
)


class ScheduleOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The schedule now; None if there is none of this name. `changed` is whether the request
    changed it."""

    schedule: Schedule | None
    changed: bool = False
    cause: Cause | None = None


class ScheduleDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Write this change, if there is one, and then give this answer."""

    reply: ScheduleOutcome
    change: ScheduleChange | None = None


def decide_schedule(
    schedule: Schedule | None, command: ScheduleCommand, at: Moment, existing: Job | None = None
) -> ScheduleDecision:
    """What a request does to a schedule. `existing` is the job that has the id of a
    `RunSchedule` already, if there is one."""
    if isinstance(command, PutSchedule):
        return _put(schedule, command, at)
    if schedule is None or schedule.removed_at is not None:
        return ScheduleDecision(reply=ScheduleOutcome(schedule=None))
    match command:
        case PauseSchedule():
            if schedule.paused_at is not None:
                return _unchanged(schedule)
            return _changed(schedule, command, at, next_at=None, paused_at=at.now)
        case ResumeSchedule():
            if schedule.paused_at is None:
                return _unchanged(schedule)
            next_at = _first_after(schedule.spec, schedule, at)
            return _changed(schedule, command, at, next_at=next_at, **_NOT_PAUSED)
        case RemoveSchedule():
            kept = schedule.without_payload  # names are kept for ever, payloads are not [SC21]
            return _changed(kept, command, at, next_at=None, removed_at=at.now, **_NOT_PAUSED)
        case RunSchedule():
            return _run(schedule, command, at, existing)
        case _:
            assert_never(command)


_NOT_PAUSED: dict[str, Any] = {"paused_at": None, "pause_reason": None}


def _put(schedule: Schedule | None, command: PutSchedule, at: Moment) -> ScheduleDecision:
    spec, declared = command.spec, {"spec": command.spec, "declared_by": command.declared_by}
    if schedule is None:
        return _new(command, at)
    if command.only_new:
        return _unchanged(schedule)
    is_removed = schedule.removed_at is not None
    if not is_removed and (schedule.spec, schedule.declared_by) == (spec, command.declared_by):
        return _unchanged(schedule)
    keeps_times = not is_removed and schedule.spec.timing == spec.timing
    next_at = schedule.next_at
    if not keeps_times and schedule.paused_at is None:
        next_at = _first_after(spec, schedule, at)
    return _changed(schedule, command, at, next_at=next_at, removed_at=None, **declared)


def _new(command: PutSchedule, at: Moment) -> ScheduleDecision:
    made = Schedule(
        namespace=command.namespace,
        name=command.name,
        spec=command.spec,
        rev=1,
        created_at=at.now,
        created_by=command.actor,
        changed_at=at.now,
        changed_by=command.actor,
        updated_at=at.now,
        declared_by=command.declared_by,
        next_at=next_after(command.spec, at.now),
    )
    return _decided(ScheduleChange(schedule=made, expected_rev=0))


def _first_after(spec: ScheduleSpec, schedule: Schedule, at: Moment) -> Instant | None:
    """The first occurrence to come. Never one that was dealt with: the clock may have been set
    back since. [SC2]"""
    return next_after(spec, at.now if schedule.last_at is None else later(at.now, schedule.last_at))


def _run(
    schedule: Schedule, command: RunSchedule, at: Moment, existing: Job | None
) -> ScheduleDecision:
    if existing is not None:
        is_its_own = (existing.namespace, existing.schedule) == (schedule.namespace, schedule.name)
        cause = None if is_its_own else Cause.IDEMPOTENCY_KEY_REUSE
        return ScheduleDecision(reply=ScheduleOutcome(schedule=schedule, cause=cause))
    made = _job(schedule, command.job_id, at, nominal=at.now, actor=command.actor)
    fired = schedule.fired + 1
    return _decided(_written(schedule, at, job=made, last_job_id=command.job_id, fired=fired))


def pauses_after_revocation(
    token: Token, same_name: Iterable[Token], schedules: Iterable[Schedule], at: Moment
) -> list[ScheduleChange]:
    """What the revocation of a token does to schedules that fire: each that its holder changed last
    is paused, unless the holder has another valid token, as in a rotation. [SC24]"""
    valid = (each for each in same_name if each.id != token.id and each.is_valid(at.now))
    if any(each.actor == token.actor for each in valid):
        return []
    reason = f"last token of {token.actor} revoked"
    pause: dict[str, Any] = {"next_at": None, "paused_at": at.now, "pause_reason": reason}
    return [
        _written(each, at, changed_at=at.now, changed_by=SYSTEM, **pause)
        for each in schedules
        if (each.namespace, each.changed_by) == (token.namespace, token.actor)
        and each.next_at is not None
    ]


def _unchanged(schedule: Schedule) -> ScheduleDecision:
    return ScheduleDecision(reply=ScheduleOutcome(schedule=schedule))


def _changed(
    schedule: Schedule, command: ScheduleCommand, at: Moment, **fields: Any
) -> ScheduleDecision:
    return _decided(_written(schedule, at, changed_at=at.now, changed_by=command.actor, **fields))


def _decided(change: ScheduleChange) -> ScheduleDecision:
    return ScheduleDecision(
        reply=ScheduleOutcome(schedule=change.schedule, changed=True), change=change
    )


# --- Limits ------------------------------------------------------------------------------------

_ANY_TIME = Instant(1_700_000_000_000_000)

_CRON_VALUES = {
    "minute": " (0 to 59)",
    "hour": " (0 to 23)",
    "day-of-month": " (1 to 31, or L for the last)",
    "month": " (1 to 12, or JAN to DEC)",
    "day-of-week": " (0 to 7, or SUN to SAT; 0 and 7 are Sunday)",
}
_CRON_NAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""What other crons have names for."""


def check_schedule_command(command: ScheduleCommand, limits: Limits) -> None:
    """Raise `InvalidInput` unless every field of the request is within its limits. [SC12]"""
    check_name("schedule", command.name)
    check_fields(command)
    if isinstance(command, RunSchedule) and command.job_id[14] == DERIVED_VERSION:
        raise InvalidInput("job_id", "is a UUID of version 8: such ids follow from other jobs")
    if isinstance(command, PutSchedule):
        if command.declared_by is not None:
            check_label("declared_by", command.declared_by, most=2 * MAX_NAME)
        check_schedule_spec(command.spec)
        _check_job(command, limits)


def _check_job(command: PutSchedule, limits: Limits) -> None:
    """The job that it makes, by the rules of any other enqueue."""
    job = Enqueue(
        job_id=new_job_id(_ANY_TIME, bytes(16)),
        namespace=command.namespace,
        actor=command.actor,
        **job_fields(command.spec),
    )
    check_command(job, limits)


def check_schedule_spec(spec: ScheduleSpec) -> None:
    """When it fires, and what it does about late and overlapping runs. [SC12]"""
    check_type("spec", spec, ScheduleSpec)
    check_fields(spec)
    if spec.catch_up is CatchUp.ALL and spec.overlap is Overlap.SKIP:
        raise InvalidInput(
            "catch_up",
            "all would make every missed job, and overlap skip would then skip all but the first",
            hint='use overlap="allow" or "cancel", or catch_up="latest"',
        )
    if (spec.cron is None) == (spec.every_us is None):
        given = "neither is given" if spec.cron is None else "both are given"
        raise InvalidInput("cron", f"a schedule has cron or every, {given}", hint="give one")
    _check_zone(spec)
    if spec.every_us is not None:
        if spec.every_us < SHORTEST_EVERY:
            raise InvalidInput("every_us", "is less than a second", hint="write 1s or more")
    else:
        _check_cron(spec)


def _check_zone(spec: ScheduleSpec) -> None:
    check_label("tz", spec.tz, most=MAX_NAME)
    if spec.every_us is not None and spec.tz != "UTC":
        raise InvalidInput("tz", "is for cron; every counts from 1970 UTC", hint="leave it out")
    try:
        _zone(spec.tz)
    except (LookupError, ValueError, OSError) as wrong:  # OSError: the name of a directory
        raise InvalidInput(
            "tz",
            f"{quoted(spec.tz)} is no time zone that this machine knows",
            hint=_zone_hint(spec.tz),
        ) from wrong


def _zone_hint(tz: str) -> str:
    known = available_timezones()
    if not known:
        return "it knows none at all; `pip install tzdata` adds them"
    return did_you_mean(tz, known, "write a name such as Europe/Berlin")


def unknown_schedule(name: ScheduleName, known: list[ScheduleName]) -> InvalidInput:
    """The error for a name that no schedule has."""
    hint = did_you_mean(name, known, "`tenure schedules ls` lists them")
    return InvalidInput("schedule", f"there is no schedule {name}", hint=hint)


def _check_cron(spec: ScheduleSpec) -> None:
    assert spec.cron is not None
    check_label("cron", spec.cron, most=MAX_CRON)
    if len(spec.cron.split()) != 5:
        raise InvalidInput(
            "cron",
            f"{quoted(spec.cron)} does not have five fields",
            hint=_five_fields(spec.cron),
        )
    try:
        first = next_after(spec, _ANY_TIME)
    except (CronSimError, AssertionError, ValueError) as wrong:  # it asserts in some of its cases
        if _has_day_of_another_month(spec):
            raise _never(spec.cron) from wrong
        what = str(wrong).lower() or "not a cron expression"
        allowed = _CRON_VALUES.get(what.removeprefix("bad "), "")
        raise InvalidInput("cron", f"{quoted(spec.cron)}: {what}{allowed}") from wrong
    if first is None:
        raise _never(spec.cron)


def _five_fields(cron: str) -> str:
    meant = _CRON_NAMES.get(cron.strip().lower())
    if meant is not None:
        return f"write {meant}"
    return "minute, hour, day of the month, month, day of the week, as in 15 3 * * *"


def _has_day_of_another_month(spec: ScheduleSpec) -> bool:
    """Whether only the month is wrong: cronsim calls the 30th of February a bad day."""
    assert spec.cron is not None
    fields = spec.cron.split()
    any_month = replace(spec, cron=" ".join([*fields[:3], "*", fields[4]]))
    only_month = replace(spec, cron=" ".join(["0", "0", "*", fields[3], "*"]))
    try:
        return None not in (next_after(any_month, _ANY_TIME), next_after(only_month, _ANY_TIME))
    except (CronSimError, AssertionError, ValueError):
        return False


def _never(cron: str) -> InvalidInput:
    return InvalidInput("cron", f"{quoted(cron)} never happens", hint="check day and month")
