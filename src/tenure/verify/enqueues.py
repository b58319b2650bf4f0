"""Checks what a log says about how its job came to be: for an occurrence of a schedule, for a dead
letter, and by when it had to be started.

A row loses its `start_by` when a started attempt ends, so what counts is what the enqueue said.
"""

from collections.abc import Iterator

from tenure.core.ids import SYSTEM, occurrence_job_id
from tenure.core.job import dead_letter_job_id
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


def expired_jobs_never_start(record: Record) -> Iterator[Violation]:
    """No first start is granted after `start_by`, and nothing else expires. [I34]"""
    start_by = record.events[0].payload.start_by if record.events else None
    was_started = False
    for event in record.events:
        if event.type is EventType.STARTED:
            was_started = True
        is_over = start_by is not None and event.ts >= start_by and not was_started
        if event.type is EventType.CLAIMED and is_over:
            what = f"granted at {event.ts}, it should have been started before {start_by}"
            yield broken("I34", record, event.seq, what)
        if event.cause is EventCause.EXPIRED and not (is_over and event.actor == SYSTEM):
            yield broken("I34", record, event.seq, "expired without a reason")


def dead_letters_are_reported_once(record: Record) -> Iterator[Violation]:
    """A job that was enqueued for a dead letter has the id that follows from that one. [I36]"""
    first = record.events[0] if record.events else None
    if first is None or first.cause is not EventCause.DEAD_LETTER:
        return
    origin_id = first.payload.origin_id
    if first.actor != SYSTEM:
        yield broken("I36", record, first.seq, f"enqueued for a dead letter by {first.actor}")
    if origin_id is None or record.job_id != dead_letter_job_id(origin_id):
        what = f"its id does not follow from the dead letter {origin_id}"
        yield broken("I36", record, first.seq, what)
