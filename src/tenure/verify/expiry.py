"""Checks from the log that a job whose time to be started is over never starts.

The row loses its `start_by` when a started attempt ends, so what counts is what the enqueue said.
"""

from collections.abc import Iterator

from tenure.core.ids import SYSTEM
from tenure.core.vocabulary import EventCause, EventType
from tenure.ports import Record
from tenure.verify.violations import Violation, broken


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
