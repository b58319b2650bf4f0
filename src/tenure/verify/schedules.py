"""Compares the jobs that schedules made with their occurrences."""

from collections.abc import Iterator

from tenure.core.ids import SYSTEM, occurrence_job_id
from tenure.core.vocabulary import EventCause, EventType
from tenure.ports import Record
from tenure.verify.violations import Violation, broken

_KEEPS_SCHEDULE = frozenset({EventCause.SCHEDULE, EventCause.REDRIVE, EventCause.RERUN})


def occurrences_have_one_job(record: Record) -> Iterator[Violation]:
    """The job that the system made of an occurrence has the id of this occurrence, so that no other
    job can be of the same one, and it was not made before its time. [I28]"""
    if not record.events or record.events[0].type is not EventType.ENQUEUED:
        return  # broken otherwise [I2]
    first = record.events[0]
    facts = first.payload
    if facts.schedule is None and facts.scheduled_for is None:
        if first.cause is EventCause.SCHEDULE:
            yield broken("I28", record, first.seq, "made by a schedule that is not named")
        return
    if facts.schedule is None or facts.scheduled_for is None or facts.namespace is None:
        yield broken("I28", record, first.seq, "schedule and scheduled_for are not both there")
        return
    if first.cause not in _KEEPS_SCHEDULE:
        yield broken("I28", record, first.seq, f"of a schedule, but made by {first.shown_cause}")
    if first.cause is not EventCause.SCHEDULE or first.actor != SYSTEM:
        return  # redriven, or run by hand: ids of their own
    if record.job_id != occurrence_job_id(facts.namespace, facts.schedule, facts.scheduled_for):
        yield broken("I28", record, first.seq, "its id is not that of its occurrence")
    if first.ts < facts.scheduled_for:
        yield broken("I28", record, first.seq, "made before its nominal time")
