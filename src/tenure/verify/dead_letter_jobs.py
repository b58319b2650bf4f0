"""Checks that a dead letter is reported by one job at most."""

from collections.abc import Iterator

from tenure.core.ids import SYSTEM
from tenure.core.job import dead_letter_job_id
from tenure.core.vocabulary import EventCause
from tenure.ports import Record
from tenure.verify.violations import Violation, broken


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
