"""Schedules: when they fire, what each occurrence does, and what requests change."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    SYSTEM,
    Epoch,
    Kind,
    QueueName,
    ScheduleName,
    new_job_id,
    occurrence_job_id,
    operator_actor,
)
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.job import Job
from tenure.core.outcomes import Moment
from tenure.core.policy import Policy
from tenure.core.schedules import (
    LATE,
    MAX_CATCH_UP,
    Firing,
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    Schedule,
    ScheduleCommand,
    ScheduleOutcome,
    ScheduleSpec,
    check_schedule_command,
    decide_schedule,
    due_times,
    jitter_of,
    next_after,
    next_times,
    plan_firing,
)
from tenure.core.validation import Limits
from tenure.core.vocabulary import CatchUp, Cause, EventCause, JobStatus, Overlap
from tenure.errors import InvalidInput
from tenure_conformance.spec import spec
from tests.support.cases import each_case

HOUR = seconds(3600)
OPERATOR = operator_actor("tests")
NIGHTLY = ScheduleName("nightly")
MIDNIGHT = Instant(1_767_225_600_000_000)  # the first instant of 2026, UTC


def instant(text: str) -> Instant:
    return Instant((datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)) // MICRO)


MICRO = timedelta(microseconds=1)


BLANK = ScheduleSpec(kind=Kind("report"), queue=QueueName("q"))


def cron(expression: str, tz: str = "UTC", **fields: Any) -> ScheduleSpec:
    return replace(BLANK, cron=expression, tz=tz, **fields)


def every(span: Duration, **fields: Any) -> ScheduleSpec:
    return replace(BLANK, **({"every_us": span} | fields))


def at(now: Instant) -> Moment:
    return Moment(now=now, epoch=Epoch(1), entropy=b"")


def put(schedule: ScheduleSpec, **fields: Any) -> PutSchedule:
    command = PutSchedule(namespace=DEFAULT_NAMESPACE, name=NIGHTLY, actor=OPERATOR, spec=schedule)
    return replace(command, **fields)


def made(schedule: ScheduleSpec, now: Instant = MIDNIGHT) -> Schedule:
    reply = decide_schedule(None, put(schedule), at(now)).reply
    assert reply.schedule is not None
    return reply.schedule


def asked(schedule: Schedule | None, command: ScheduleCommand, now: Instant) -> ScheduleOutcome:
    return decide_schedule(schedule, command, at(now)).reply


def job_of(firing: Firing) -> Job:
    assert firing.change.job is not None
    return firing.change.job.job


# --- Times ---------------------------------------------------------------------------------------

# Written by hand: after `begin`, local time with its offset, the expression fires at these times.
# Berlin: clocks go from 02:00 to 03:00 on 29 March 2026, from 03:00 back to 02:00 on 25 October.
# New York: from 02:00 to 03:00 on 8 March 2026, from 02:00 back to 01:00 on 1 November.
DST = [
    ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00+01:00",
     ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
    ("0 2 * * *", "Europe/Berlin", "2026-03-28T12:00+01:00",
     ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00"]),
    ("0,30 2 * * *", "Europe/Berlin", "2026-03-29T00:00+01:00",
     ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00", "2026-03-30T02:30+02:00"]),
    ("30 * * * *", "Europe/Berlin", "2026-03-29T01:00+01:00",
     ["2026-03-29T01:30+01:00", "2026-03-29T03:30+02:00", "2026-03-29T04:30+02:00"]),
    ("*/30 2 * * *", "Europe/Berlin", "2026-03-29T00:00+01:00",
     ["2026-03-30T02:00+02:00", "2026-03-30T02:30+02:00"]),
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00+02:00",
     ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
    ("30 2 * * *", "Europe/Berlin", "2026-10-25T02:30+02:00",  # fired in the first pass
     ["2026-10-26T02:30+01:00"]),
    ("30 2 * * *", "Europe/Berlin", "2026-10-25T02:10+01:00",  # begun in the second pass
     ["2026-10-26T02:30+01:00"]),
    ("30 * * * *", "Europe/Berlin", "2026-10-25T01:00+02:00",
     ["2026-10-25T01:30+02:00", "2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00",
      "2026-10-25T03:30+01:00"]),
    ("15 2 * * *", "America/New_York", "2026-03-07T12:00-05:00",
     ["2026-03-08T03:00-04:00", "2026-03-09T02:15-04:00"]),
    ("15 * * * *", "America/New_York", "2026-03-08T01:00-05:00",
     ["2026-03-08T01:15-05:00", "2026-03-08T03:15-04:00"]),
    ("45 1 * * *", "America/New_York", "2026-10-31T12:00-04:00",
     ["2026-11-01T01:45-04:00", "2026-11-02T01:45-05:00"]),
    ("45 1 * * *", "America/New_York", "2026-11-01T01:45-04:00", ["2026-11-02T01:45-05:00"]),
    ("45 * * * *", "America/New_York", "2026-11-01T00:50-04:00",
     ["2026-11-01T01:45-04:00", "2026-11-01T01:45-05:00", "2026-11-01T02:45-05:00"]),
]  # fmt: skip


@spec("SC4")
@each_case(("expression", "tz", "begin", "expected"), DST)
def test_cron_on_the_days_when_clocks_are_set(
    expression: str, tz: str, begin: str, expected: list[str]
) -> None:
    found = next_times(cron(expression, tz), instant(begin), number=len(expected))

    assert found == [instant(text) for text in expected]


@spec("SC4")
def test_cron_knows_names_steps_and_the_last_day_of_a_month() -> None:
    found = next_times(cron("0 9 L * *"), instant("2026-01-30T00:00Z"), number=2)

    assert found == [instant("2026-01-31T09:00Z"), instant("2026-02-28T09:00Z")]
    assert next_after(cron("0 9 * * MON"), MIDNIGHT) == instant("2026-01-05T09:00Z")


@spec("SC5")
@pytest.mark.parametrize("begin_s", [0, 1, 599.999999, 600, 86_399])
def test_an_interval_counts_from_1970_whenever_it_is_asked(begin_s: float) -> None:
    ten_minutes = every(seconds(600))

    found = next_after(ten_minutes, Instant(MIDNIGHT + seconds(begin_s)))

    assert found is not None
    assert found % seconds(600) == 0
    assert 0 < found - (MIDNIGHT + seconds(begin_s)) <= seconds(600)


@spec("SC8")
def test_what_is_due_after_a_long_stop_is_bounded_and_the_latest() -> None:
    minutes, now = cron("* * * * *"), Instant(MIDNIGHT + 400 * 24 * HOUR)

    by_cron = due_times(minutes, MIDNIGHT, now)
    by_interval = due_times(every(seconds(60)), MIDNIGHT, now)

    assert len(by_cron.times) == MAX_CATCH_UP
    assert by_cron.times == by_interval.times
    assert by_cron.times[-1] == now
    assert by_cron.older == 5000
    assert by_interval.older == 400 * 24 * 60 + 1 - MAX_CATCH_UP


@spec("SC8")
@pytest.mark.parametrize("expression", ["0 * * * *", "0 3 * * *"])
def test_rare_occurrences_are_found_after_years(expression: str) -> None:
    first = next_after(cron(expression), Instant(0))
    assert first is not None

    due = due_times(cron(expression), first, MIDNIGHT)

    assert len(due.times) == MAX_CATCH_UP
    assert list(due.times) == sorted(set(due.times))
    following = next_after(cron(expression), due.times[-1])
    assert following is not None
    assert due.times[-1] <= MIDNIGHT < following


# --- Firing --------------------------------------------------------------------------------------


@spec("SC1")
def test_an_occurrence_makes_a_job_whose_id_follows_from_it() -> None:
    schedule = made(every(HOUR))
    nominal = Instant(MIDNIGHT + HOUR)

    job = job_of(plan_firing(schedule, None, at(Instant(nominal + 1))))
    again = job_of(plan_firing(schedule, None, at(Instant(nominal + seconds(5)))))

    assert job.id == again.id == occurrence_job_id(DEFAULT_NAMESPACE, NIGHTLY, nominal)
    assert (job.schedule, job.scheduled_for, job.run_at) == (NIGHTLY, nominal, nominal)
    assert (job.origin_cause, job.status) == (EventCause.SCHEDULE, JobStatus.QUEUED)
    others = {
        occurrence_job_id(DEFAULT_NAMESPACE, ScheduleName("nightlyx"), nominal),
        occurrence_job_id(DEFAULT_NAMESPACE, NIGHTLY, Instant(nominal + 1)),
    }
    assert job.id not in others


@spec("SC1")
def test_the_log_says_that_a_schedule_made_the_job() -> None:
    firing = plan_firing(made(every(HOUR)), None, at(Instant(MIDNIGHT + HOUR)))

    assert firing.change.job is not None
    [event] = firing.change.job.events
    assert (event.actor, event.cause) == (SYSTEM, EventCause.SCHEDULE)
    assert (event.payload.schedule, event.payload.scheduled_for) == (NIGHTLY, MIDNIGHT + HOUR)


@spec("SC2")
def test_a_fired_schedule_goes_on_to_the_next_time() -> None:
    schedule = made(every(HOUR))

    after = plan_firing(schedule, None, at(Instant(MIDNIGHT + HOUR))).change.schedule

    assert (after.rev, after.fired) == (schedule.rev + 1, 1)
    assert (after.last_at, after.next_at) == (MIDNIGHT + HOUR, MIDNIGHT + 2 * HOUR)
    assert after.last_job_id is not None


@spec("SC2", "SC9")
def test_a_clock_that_was_set_back_repeats_no_occurrence() -> None:
    fired = plan_firing(made(every(HOUR)), None, at(Instant(MIDNIGHT + HOUR))).change.schedule
    before = Instant(MIDNIGHT - 10 * HOUR)

    paused = asked(fired, PauseSchedule(**key()), before).schedule
    resumed = asked(paused, ResumeSchedule(**key()), before).schedule
    changed = asked(fired, put(cron("0 * * * *")), before).schedule

    assert resumed is not None
    assert changed is not None
    assert resumed.next_at == changed.next_at == MIDNIGHT + 2 * HOUR


@spec("SC25")
def test_jitter_follows_from_the_id_and_is_bounded() -> None:
    spread = made(every(HOUR, jitter_us=seconds(60)))

    firings = []
    for hour in range(1, 50):
        firings.append(plan_firing(spread, None, at(Instant(MIDNIGHT + hour * HOUR))))
        spread = firings[-1].change.schedule

    jobs = [job_of(firing) for firing in firings]
    late = [(job.run_at or 0) - (job.scheduled_for or 0) for job in jobs]
    assert late == [jitter_of(job.id, seconds(60)) for job in jobs]
    assert all(0 <= each <= seconds(60) for each in late)
    assert len(set(late)) > 40


@spec("SC7")
@each_case("status", list(JobStatus))
@each_case("overlap", list(Overlap))
def test_what_an_occurrence_does_about_the_run_before(status: JobStatus, overlap: Overlap) -> None:
    first = plan_firing(made(every(HOUR, overlap=overlap)), None, at(Instant(MIDNIGHT + HOUR)))
    previous = replace(job_of(first), status=status)

    second = plan_firing(first.change.schedule, previous, at(Instant(MIDNIGHT + 2 * HOUR)))

    is_live = not status.is_terminal
    is_skipped = is_live and overlap is Overlap.SKIP
    assert (second.change.job is None) is is_skipped
    assert second.change.schedule.skipped == int(is_skipped)
    assert second.change.schedule.fired == 2 - int(is_skipped)
    is_cancelled = is_live and overlap is Overlap.CANCEL
    assert second.cancels == (previous.id if is_cancelled else None)


@spec("SC7")
def test_a_run_that_was_purged_is_over() -> None:
    first = plan_firing(made(every(HOUR)), None, at(Instant(MIDNIGHT + HOUR))).change.schedule

    second = plan_firing(first, None, at(Instant(MIDNIGHT + 2 * HOUR)))

    assert second.change.schedule.fired == 2


@spec("SC8")
@each_case("timing", [every(HOUR), cron("0 * * * *")])
@each_case(
    ("catch_up", "late", "fired", "missed"),
    [
        (CatchUp.LATEST, Duration(0), [3], 2),
        (CatchUp.LATEST, HOUR - 1, [3], 2),
        (CatchUp.NONE, LATE, [3], 2),
        (CatchUp.NONE, LATE + 1, [], 3),
        (CatchUp.ALL, Duration(0), [1, 2, 3], 0),
    ],
)
def test_what_is_caught_up_after_a_stop_of_three_hours(
    timing: ScheduleSpec, catch_up: CatchUp, late: Duration, fired: list[int], missed: int
) -> None:
    schedule = made(replace(timing, catch_up=catch_up, overlap=Overlap.ALLOW))
    now = Instant(MIDNIGHT + 3 * HOUR + late)

    times = []
    while schedule.next_at is not None and schedule.next_at <= now:
        firing = plan_firing(schedule, None, at(now))
        schedule = firing.change.schedule
        if firing.change.job is not None:
            times.append(job_of(firing).scheduled_for)

    assert times == [MIDNIGHT + hour * HOUR for hour in fired]
    assert (schedule.fired, schedule.missed) == (len(fired), missed)
    assert schedule.next_at == MIDNIGHT + 4 * HOUR


@spec("SC8")
def test_all_catches_up_with_the_latest_hundred() -> None:
    schedule = made(every(HOUR, catch_up=CatchUp.ALL, overlap=Overlap.ALLOW))
    now = Instant(MIDNIGHT + 150 * HOUR)

    first = plan_firing(schedule, None, at(now))

    assert job_of(first).scheduled_for == MIDNIGHT + 51 * HOUR
    assert first.change.schedule.missed == 50


# --- Requests ------------------------------------------------------------------------------------


def key() -> dict[str, Any]:
    return {"namespace": DEFAULT_NAMESPACE, "name": NIGHTLY, "actor": OPERATOR}


@spec("SC9")
def test_paused_time_is_neither_caught_up_nor_counted() -> None:
    schedule = made(every(HOUR, catch_up=CatchUp.ALL, overlap=Overlap.ALLOW))

    paused = asked(schedule, PauseSchedule(**key()), Instant(MIDNIGHT + 1)).schedule
    resumed = asked(paused, ResumeSchedule(**key()), Instant(MIDNIGHT + 5 * HOUR + 1)).schedule

    assert paused is not None
    assert resumed is not None
    assert (paused.next_at, paused.paused_at) == (None, MIDNIGHT + 1)
    assert (resumed.next_at, resumed.paused_at) == (MIDNIGHT + 6 * HOUR, None)
    assert resumed.missed == 0


@spec("SC9")
def test_pausing_twice_and_resuming_an_active_one_change_nothing() -> None:
    schedule = made(every(HOUR))
    paused = asked(schedule, PauseSchedule(**key()), MIDNIGHT).schedule

    assert asked(paused, PauseSchedule(**key()), MIDNIGHT).changed is False
    assert asked(schedule, ResumeSchedule(**key()), MIDNIGHT).changed is False


@spec("SC9", "SC10")
def test_a_deploy_changes_a_paused_schedule_and_does_not_resume_it() -> None:
    paused = asked(made(every(HOUR)), PauseSchedule(**key()), MIDNIGHT).schedule

    changed = asked(paused, put(cron("0 3 * * *"), declared_by="shop:app"), MIDNIGHT).schedule

    assert changed is not None
    assert (changed.spec.cron, changed.paused_at) == ("0 3 * * *", MIDNIGHT)
    assert changed.next_at is None


@spec("SC10")
def test_a_worker_writes_only_names_that_the_store_never_had() -> None:
    worker = put(cron("0 3 * * *"), only_new=True)
    schedule = made(every(HOUR))
    removed = asked(schedule, RemoveSchedule(**key()), MIDNIGHT).schedule

    assert asked(None, worker, MIDNIGHT).changed
    assert asked(schedule, worker, MIDNIGHT) == ScheduleOutcome(schedule=schedule)
    assert asked(removed, worker, MIDNIGHT) == ScheduleOutcome(schedule=removed)


@spec("SC10", "SC2")
def test_a_removed_schedule_is_unknown_until_it_is_made_again() -> None:
    fired = plan_firing(made(every(HOUR)), None, at(Instant(MIDNIGHT + HOUR))).change.schedule
    removed = asked(fired, RemoveSchedule(**key()), Instant(MIDNIGHT + HOUR)).schedule

    again = asked(removed, put(every(HOUR)), Instant(MIDNIGHT + 5 * HOUR)).schedule

    assert removed is not None
    assert (removed.next_at, removed.removed_at) == (None, MIDNIGHT + HOUR)
    assert asked(removed, PauseSchedule(**key()), MIDNIGHT).schedule is None
    assert asked(None, PauseSchedule(**key()), MIDNIGHT).schedule is None
    assert again is not None
    assert (again.removed_at, again.next_at) == (None, MIDNIGHT + 6 * HOUR)
    assert again.rev == removed.rev + 1


@spec("SC2")
def test_a_change_of_the_payload_keeps_what_is_due() -> None:
    schedule = made(every(HOUR))
    late = Instant(MIDNIGHT + 3 * HOUR)

    changed = asked(schedule, put(every(HOUR, payload=b"1")), late).schedule
    moved = asked(schedule, put(every(Duration(2 * HOUR))), late).schedule

    assert changed is not None
    assert moved is not None
    assert changed.next_at == schedule.next_at
    assert moved.next_at == MIDNIGHT + 4 * HOUR
    assert asked(schedule, put(every(HOUR)), late).changed is False


@spec("SC11")
def test_a_run_by_hand_makes_a_job_now_also_while_paused() -> None:
    paused = asked(made(every(HOUR)), PauseSchedule(**key()), MIDNIGHT).schedule
    run = RunSchedule(**key(), job_id=new_job_id(MIDNIGHT, bytes(16)))

    decided = decide_schedule(paused, run, at(Instant(MIDNIGHT + 7)))

    assert decided.change is not None
    assert decided.change.job is not None
    job = decided.change.job.job
    assert (job.id, job.schedule, job.scheduled_for) == (run.job_id, NIGHTLY, MIDNIGHT + 7)
    assert decided.change.job.events[0].actor == OPERATOR
    after = decided.change.schedule
    assert (after.last_job_id, after.fired, after.next_at) == (run.job_id, 1, None)


@spec("SC11")
def test_a_repeated_run_is_one_job_and_another_jobs_id_is_refused() -> None:
    schedule = made(every(HOUR))
    run = RunSchedule(**key(), job_id=new_job_id(MIDNIGHT, bytes(16)))
    first = decide_schedule(schedule, run, at(MIDNIGHT))
    assert first.change is not None
    assert first.change.job is not None
    job = first.change.job.job

    again = decide_schedule(schedule, run, at(MIDNIGHT), job)
    other = decide_schedule(schedule, run, at(MIDNIGHT), replace(job, schedule=None))

    assert (again.change, again.reply.cause) == (None, None)
    assert (other.change, other.reply.cause) == (None, Cause.IDEMPOTENCY_KEY_REUSE)


# --- Limits --------------------------------------------------------------------------------------

BAD: list[tuple[PutSchedule, str]] = [
    (put(cron("0 0 30 2 *")), "cron"),
    (put(cron("* * */20 * 1L")), "cron"),
    (put(cron("61 * * * *")), "cron"),
    (put(cron("* * * *")), "cron"),
    (put(cron("* * * * * *")), "cron"),
    (put(cron("* * * * MON#1/2")), "cron"),
    (put(cron("@daily")), "cron"),
    (put(cron("* * * * * " + "*" * 300)), "cron"),
    (put(cron("")), "cron"),
    (put(cron("0 0 * * *", every_us=HOUR)), "cron"),
    (put(every(HOUR, every_us=None)), "cron"),
    (put(cron("0 0 * * *", tz="Nowhere/Land")), "tz"),
    (put(cron("0 0 * * *", tz="../../etc/passwd")), "tz"),
    (put(cron("0 0 * * *", tz="Europe")), "tz"),
    (put(cron("0 0 * * *", tz="")), "tz"),
    (put(every(HOUR, tz="Europe/Berlin")), "tz"),
    (put(every(seconds(0.5))), "every_us"),
    (put(every(Duration(0))), "every_us"),
    (put(every(seconds(400 * 86400))), "every_us"),
    (put(every(HOUR, jitter_us=Duration(-1))), "jitter_us"),
    (put(every(HOUR, catch_up=CatchUp.ALL)), "catch_up"),
    (put(every(HOUR, catch_up=CatchUp("future"))), "catch_up"),
    (put(every(HOUR, overlap=Overlap("queue"))), "overlap"),
    (put(every(HOUR), name="x" * 129), "schedule"),
    (put(every(HOUR), name="two words"), "schedule"),
    (put(every(HOUR), declared_by="x" * 300), "declared_by"),
    (put(every(HOUR, payload=b"{")), "payload"),
    (put(every(HOUR, queue="")), "queue"),
    (put(every(HOUR, priority=10**6)), "priority"),
    (put(every(HOUR, policy=Policy(lease_us=seconds(1)))), "policy.lease_us"),
]


@spec("SC12")
@each_case(("command", "field"), BAD)
def test_a_request_that_breaks_a_limit_is_refused(command: PutSchedule, field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_schedule_command(command, Limits())

    assert refused.value.field == field


@spec("SC12")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (cron("61 3 * * *"), "'61 3 * * *': bad minute (0 to 59)"),
        (cron("0 24 * * *"), "'0 24 * * *': bad hour (0 to 23)"),
        (cron("0 0 32 2 *"), "bad day-of-month (1 to 31, or L for the last)"),
        (cron("0 0 1 13 *"), "bad month (1 to 12, or JAN to DEC)"),
        (cron("0 0 30 2 *"), "'0 0 30 2 *' never happens; check day and month"),
        (cron("@daily"), "'@daily' does not have five fields; write 0 0 * * *"),
        (cron("0 0 * *"), "does not have five fields; minute, hour, day of the month"),
        (cron("0 0 * * *", tz="Europe/Viena"), "machine knows; did you mean Europe/Vienna?"),
        (cron("0 0 * * *", tz="zzz"), "machine knows; write a name such as Europe/Berlin"),
    ],
    ids=str,
)
def test_a_mistake_is_told_with_what_may_be_meant(wrong: ScheduleSpec, said: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(said)):
        check_schedule_command(put(wrong), Limits())


@spec("SC12")
def test_a_machine_without_time_zones_is_told_how_to_get_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tenure.core.schedules.available_timezones", set)

    with pytest.raises(InvalidInput, match="`pip install tzdata` adds them"):
        check_schedule_command(put(cron("0 0 * * *", tz="Europe/Viena")), Limits())


@spec("SC12")
def test_lawful_requests_are_accepted() -> None:
    run = RunSchedule(**key(), job_id=new_job_id(MIDNIGHT, bytes(16)))

    for command in (put(cron("0 0 29 2 *", tz="Europe/Berlin")), put(every(seconds(1))), run):
        check_schedule_command(command, Limits())
    derived = occurrence_job_id(DEFAULT_NAMESPACE, NIGHTLY, MIDNIGHT)
    with pytest.raises(InvalidInput, match="version 8"):
        check_schedule_command(replace(run, job_id=derived), Limits())
