"""Compares rows with their logs, and with the table that says which fields a status has.

One function per invariant. A report names fields, and shows their contents only if they are
counters or statuses: it must not contain payloads or texts of errors.
"""

from collections.abc import Iterator

import msgspec

from tenure.core.evolution import digested, fold_step
from tenure.core.job import Job, row_violations
from tenure.core.unknown_words import unknown_in_event, unknown_in_job
from tenure.core.vocabulary import EventType, JobStatus, ReasonCode, Stage
from tenure.ports import Record
from tenure.verify.violations import Violation, broken, rev_of

FIELDS = tuple(field.name for field in msgspec.structs.fields(Job))


def row_fits_its_status(record: Record) -> Iterator[Violation]:
    """The row satisfies the table of docs/spec/states.md. [I8]"""
    if record.job is None:
        return
    for what in row_violations(record.job):
        yield broken("I8", record, rev_of(record), what)
    if record.job.status is JobStatus.STALLED:
        for name in ("last_owner", "last_lease_expires_at"):
            if getattr(record.job, name) is None:
                yield broken("I8", record, rev_of(record), f"{name} is absent while stalled")


def everything_can_be_read(record: Record) -> Iterator[Violation]:
    """This version knows every word, and every document has the shape of its column. [I24]"""
    for each in record.unreadable:
        yield broken("I24", record, each.seq, each.problem)
    for problem in [] if record.job is None else unknown_in_job(record.job):
        yield broken("I24", record, rev_of(record), problem)
    for event in record.events:
        for problem in unknown_in_event(event):
            yield broken("I24", record, event.seq, f"an event's {problem}")
    for seen in record.observations:
        if not seen.type.is_known:
            yield broken("I24", record, 1, f"an observation's type is {seen.type.value!a}")


def fold_gives_the_row(record: Record) -> Iterator[Violation]:
    """Folding the log through the pure core reproduces the row. [I12]"""
    folded: Job | None = None
    for event in record.events:
        try:
            folded = fold_step(folded, event)
        except (ArithmeticError, AssertionError, AttributeError, TypeError, ValueError):
            # `evolve` checks nothing: it raises these for a log that is not the history of a job.
            yield broken("I12", record, event.seq, f"{event.type} cannot be folded here")
            return
    if record.job is None:
        yield broken("I12", record, rev_of(record), "events without a row")
    elif folded is None:
        yield broken("I12", record, rev_of(record), "a row without events")
    else:
        row = digested(record.job)
        if row != folded:
            differing = [name for name in FIELDS if getattr(row, name) != getattr(folded, name)]
            what = f"the fold differs from the row in {', '.join(differing)}"
            yield broken("I12", record, rev_of(record), what)


def terminal_rows_never_change(record: Record) -> Iterator[Violation]:
    """A terminal row has the rev and the finished_at of its terminal event. [I19]"""
    job = record.job
    if job is None or not job.status.is_terminal:
        return
    end = next((event for event in record.events if event.to_status.is_terminal), None)
    if end is None:
        yield broken("I19", record, rev_of(record), f"the row is {job.status}, no event says so")
    elif (job.rev, job.finished_at) != (end.seq, end.ts):
        what = (
            f"the row has rev {job.rev} and finished_at {job.finished_at}, "
            f"its end has {end.seq} and {end.ts}"
        )
        yield broken("I19", record, end.seq, what)


def dead_letters_are_complete(record: Record) -> Iterator[Violation]:
    """A dead letter has its seven keys, with words of the closed sets. [I20]

    A key without a possible value is null: a job that nobody claimed has no last owner.
    """
    job = record.job
    if job is None or job.status is not JobStatus.DEAD_LETTERED:
        return
    wrong: list[str] = []
    if job.reason_code not in tuple(ReasonCode):
        wrong.append("reason_code")
    if job.stage not in (None, *Stage):
        wrong.append("stage")
    if job.last_error is None:
        wrong.append("last_error")
    claims = sum(event.type is EventType.CLAIMED for event in record.events)
    if job.attempt != claims:
        wrong.append("attempts")
    if claims:
        wrong += [n for n in ("last_owner", "last_lease_expires_at") if getattr(job, n) is None]
    if any(event.correlation_id != job.correlation_id for event in record.events):
        wrong.append("correlation_id")
    for event in record.events:
        if event.type is EventType.DEAD_LETTERED:
            facts = event.payload
            wrong += ["reason_code"] * (facts.reason_code is not job.reason_code)
            wrong += ["stage"] * (facts.stage is not job.stage)
    if wrong:
        what = f"missing or wrong: {', '.join(dict.fromkeys(wrong))}"
        yield broken("I20", record, rev_of(record), what)
