"""Whatever is broken in a history is found, and the rule that was broken is named."""

import random
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from tenure.core.events import Facts
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Epoch,
    Kind,
    Namespace,
    QueueName,
    ScheduleName,
    operator_actor,
)
from tenure.core.instants import Instant, seconds
from tenure.core.outcomes import Moment
from tenure.core.schedules import PutSchedule, ScheduleSpec, decide_schedule, plan_firing
from tenure.core.vocabulary import EventCause, JobStatus
from tenure.ports import JobHistory, Unreadable
from tenure.verify import check_record
from tenure.verify.records import occurrences_have_one_job
from tenure_conformance.spec import spec
from tests.support.cases import Test, each_case
from tests.support.corruptions import CORRUPTIONS, STATUS_TABLE, with_job
from tests.support.histories import World

MOST = 60


@cache
def lawful() -> tuple[JobHistory, ...]:
    """The jobs of many lawful worlds, in an order that mixes them."""
    records = [record for seed in range(60) for record in World(seed).run(150).records()]
    random.Random(0).shuffle(records)
    return tuple(records)


def broken_rules(record: JobHistory) -> set[str]:
    return {violation.invariant for violation in check_record(record)}


def corrupted(name: str) -> list[JobHistory]:
    """Up to MOST records broken in this way."""
    _, corrupt = CORRUPTIONS[name]
    luck = random.Random(1)
    found = (corrupt(record, luck) for record in lawful())
    return list(islice((record for record in found if record is not None), MOST))


def names(*rules: str) -> Callable[[Test], Test]:
    """The corruptions that these rules have to notice."""
    return each_case("name", [name for name, (rule, _) in CORRUPTIONS.items() if rule in rules])


def assert_noticed(name: str) -> None:
    rule, _ = CORRUPTIONS[name]
    records = corrupted(name)

    missed = [record for record in records if rule not in broken_rules(record)]

    assert records, "no history has anything of the kind"
    assert not missed, missed[0]


@spec("I1", "I2")
@names("I1", "I2")
def test_a_log_that_is_not_complete_is_noticed(name: str) -> None:
    assert_noticed(name)


@spec("I3", "I4", "I5", "I6", "I7")
@names("I3", "I4", "I5", "I6", "I7")
def test_a_log_that_leaves_the_table_is_noticed(name: str) -> None:
    assert_noticed(name)


@spec("I9", "I10", "I11")
@names("I9", "I10", "I11")
def test_an_invalid_lease_is_noticed(name: str) -> None:
    assert_noticed(name)


@spec("I12")
@names("I12")
def test_a_row_that_does_not_match_its_log_is_noticed(name: str) -> None:
    assert_noticed(name)


@spec("I15", "I39")
@names("I15", "I39")
def test_an_undone_cancel_and_a_lost_attempt_that_cost_nothing_are_noticed(name: str) -> None:
    assert_noticed(name)


@spec("I19", "I20")
@names("I19", "I20")
def test_an_end_that_changed_or_lacks_something_is_noticed(name: str) -> None:
    assert_noticed(name)


NIGHTLY = ScheduleName("nightly")
NOMINAL = Instant(1_767_225_600_000_000)


def fired(**changes: Any) -> JobHistory:
    """A job of an occurrence; `changes` are of its first event, or of its facts."""
    hourly = ScheduleSpec(kind=Kind("k"), queue=QueueName("q"), every_us=seconds(3600))
    put = PutSchedule(
        namespace=DEFAULT_NAMESPACE, name=NIGHTLY, actor=operator_actor("o"), spec=hourly
    )
    before = Moment(now=Instant(NOMINAL - 1), epoch=Epoch(1), entropy=b"")
    schedule = decide_schedule(None, put, before).reply.schedule
    assert schedule is not None
    change = plan_firing(schedule, None, replace(before, now=NOMINAL)).change.job
    assert change is not None
    [event] = change.events
    facts = {name: value for name, value in changes.items() if name in Facts.__struct_fields__}
    others = {name: value for name, value in changes.items() if name not in facts}
    event = replace(event, payload=replace(event.payload, **facts), **others)
    return JobHistory(change.job.id, None, (event,))


@spec("I28")
def test_a_lawful_job_of_a_schedule_is_lawful() -> None:
    by_hand = {"actor": operator_actor("o"), "scheduled_for": Instant(NOMINAL + 7)}

    assert list(occurrences_have_one_job(fired())) == []
    assert list(occurrences_have_one_job(fired(**by_hand))) == []
    assert list(occurrences_have_one_job(fired(cause=EventCause.RERUN, ts=Instant(1)))) == []


@spec("I28")
@pytest.mark.parametrize(
    "changes",
    [
        {"scheduled_for": Instant(NOMINAL - 3_600_000_000)},
        {"schedule": ScheduleName("weekly")},
        {"namespace": Namespace("other")},
        {"ts": Instant(NOMINAL - 1)},
        {"scheduled_for": None},
        {"schedule": None},
        {"schedule": None, "scheduled_for": None},
        {"cause": EventCause.FOLLOW_UP},
        {"cause": None},
    ],
)
def test_a_job_that_is_not_of_its_occurrence_is_noticed(changes: dict[str, Any]) -> None:
    assert list(occurrences_have_one_job(fired(**changes)))
    assert "I28" in broken_rules(fired(**changes))


@spec("I34", "I36")
@names("I34", "I36")
def test_an_expired_job_that_starts_and_a_second_report_are_noticed(name: str) -> None:
    assert_noticed(name)


@spec("P1", "P2", "P3", "P4")
@names("P1", "P2", "P3", "P4")
def test_a_history_outside_a_document_is_noticed(name: str) -> None:
    assert_noticed(name)


@spec("I24")
def test_an_unreadable_job_is_reported_and_not_checked_further() -> None:
    record = next(record for record in lawful() if len(record.events) > 2)
    unread = Unreadable(2, "an event's type is 'vanished'")

    found = list(check_record(replace(record, events=record.events[:1], unreadable=(unread,))))

    assert [(each.invariant, each.job_id, each.seq) for each in found] == [
        ("I24", record.job_id, 2)
    ]


@spec("I8")
@each_case(
    ("status", "field"),
    [(status, field) for status in STATUS_TABLE for field in STATUS_TABLE[status]],
)
def test_a_row_that_does_not_fit_its_status_is_noticed(status: JobStatus, field: str) -> None:
    record = next(r for r in lawful() if r.job is not None and r.job.status is status)
    assert record.job is not None
    wrong = replace(record.job, **{field: STATUS_TABLE[status][field]})

    assert "I8" in broken_rules(with_job(record, wrong))


@given(
    seed=st.integers(min_value=0),
    chance=st.integers(min_value=0),
    name=st.sampled_from(sorted(CORRUPTIONS)),
)
def test_any_corruption_of_any_history_is_noticed(seed: int, chance: int, name: str) -> None:
    rule, corrupt = CORRUPTIONS[name]
    luck = random.Random(chance)
    broken = [
        wrong
        for record in World(seed).run(40).records()
        if (wrong := corrupt(record, luck)) is not None
    ]
    assume(broken)

    assert all(rule in broken_rules(record) for record in broken)


def test_a_violation_names_the_first_offending_seq() -> None:
    record = next(record for record in lawful() if len(record.events) > 4)
    events = list(record.events)
    events[2] = replace(events[2], from_status=JobStatus.FAILED)

    found = list(check_record(JobHistory(record.job_id, record.job, tuple(events))))

    assert (found[0].invariant, found[0].job_id, found[0].seq) == (
        "I3",
        record.job_id,
        events[2].seq,
    )


@names("I9", "I10", "P3")
def test_no_violation_shows_a_lease_id_that_could_be_used(name: str) -> None:
    for record in corrupted(name):
        told = "\n".join(violation.message for violation in check_record(record))
        leases = {event.lease_id for event in record.events if event.lease_id is not None}

        assert not [lease_id for lease_id in leases if lease_id in told]
