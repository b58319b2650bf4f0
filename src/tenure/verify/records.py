"""Checks of one job: the order of its log, its row, and how it was enqueued.

One function per invariant. Each reads the whole record; none assumes that another one holds. A
message names fields, with their contents only if they are counters or statuses: it must not
contain payloads or texts of errors.
"""

import msgspec

from tenure.core.events import unknown_values
from tenure.core.evolution import digested, fold_step
from tenure.core.ids import SYSTEM, occurrence_job_id
from tenure.core.job import Job, dead_letter_job_id, row_violations
from tenure.core.transitions import is_allowed
from tenure.core.vocabulary import (
    ATTEMPT_ENDS,
    RENEWALS,
    EventCause,
    EventType,
    JobStatus,
    ReasonCode,
    Stage,
    counted,
)
from tenure.ports import JobHistory
from tenure.verify.checking import Problems, rev_of

_RANK = {
    JobStatus.WAITING: -1,
    JobStatus.QUEUED: 0,
    JobStatus.CLAIMED: 1,
    JobStatus.RUNNING: 2,
    JobStatus.STALLED: 3,
    JobStatus.SUCCEEDED: 4,
    JobStatus.FAILED: 4,
    JobStatus.CANCELLED: 4,
    JobStatus.DEAD_LETTERED: 4,
}
_FIELDS = tuple(field.name for field in msgspec.structs.fields(Job))
_KEEPS_SCHEDULE = frozenset({EventCause.SCHEDULE, EventCause.REDRIVE, EventCause.RERUN})


# --- the order of the log


def seqs_are_complete(record: JobHistory) -> Problems:
    """The seqs of a job's events and of its pruned renewals together are 1 to rev. [I1]

    Only the renewals of an ended attempt are pruned, and its last event has their number.
    """
    expected = 1
    is_open, renewals, missing, first_missing = False, 0, 0, 0
    for event in record.events:
        if event.seq < expected:
            yield event.seq, f"seq {event.seq} comes twice or out of order"
            continue
        gap = event.seq - expected
        if gap and not is_open:
            yield expected, f"{gap} missing before {event.type} at seq {event.seq}"
        elif gap:
            first_missing = first_missing or expected
            missing += gap
        if event.type is EventType.CLAIMED:
            if missing:
                yield first_missing, f"{missing} missing in a live attempt"
            is_open, renewals, missing, first_missing = True, 0, 0, 0
        elif event.type in RENEWALS:
            renewals += 1
        elif event.type in ATTEMPT_ENDS and is_open:
            stated = event.payload.renewals or 0
            if stated != renewals + missing:
                found = f"{counted(renewals, 'renewal')} and {counted(missing, 'missing seq')}"
                yield first_missing or event.seq, f"{found}, the attempt's end states {stated}"
            is_open, missing = False, 0
        expected = event.seq + 1
    if missing:
        yield first_missing, f"{missing} missing in a live attempt"
    if record.job is not None and record.job.rev != expected - 1:
        what = f"the row's rev is {record.job.rev}, the log ends at {expected - 1}"
        yield min(record.job.rev + 1, expected), what


def first_is_enqueued(record: JobHistory) -> Problems:
    """The first event is enqueued, from nothing to queued, or to waiting for other jobs. [I2]"""
    if not record.events:
        yield 1, "the job has no events"
        return
    first = record.events[0]
    is_first = first.type is EventType.ENQUEUED and first.from_status is None
    if not is_first or first.to_status not in (JobStatus.QUEUED, JobStatus.WAITING):
        yield first.seq, f"begins with {first.type} from {first.from_status} to {first.to_status}"


def statuses_connect(record: JobHistory) -> Problems:
    """Each from_status is the previous to_status; the last one is the row's status. [I3]"""
    here: JobStatus | None = None
    for event in record.events:
        if event.from_status is not here:
            yield event.seq, f"{event.type} comes from {event.from_status}, the job was {here}"
        here = event.to_status
    if record.job is None:
        yield rev_of(record), f"the log leads to {here}, there is no row"
    elif record.job.status is not here:
        yield rev_of(record), f"the log leads to {here}, the row is {record.job.status}"


def edges_are_allowed(record: JobHistory) -> Problems:
    """Every (from, type, to) is one of the table. [I4]"""
    for event in record.events:
        if not is_allowed(event.from_status, event.type, event.to_status):
            what = f"no transition leads from {event.from_status} by {event.type}"
            yield event.seq, f"{what} to {event.to_status}"


def ends_once(record: JobHistory) -> Problems:
    """At most one terminal event, and nothing follows it. [I5]"""
    end: JobStatus | None = None
    for event in record.events:
        if end is not None:
            yield event.seq, f"{event.type} follows the end as {end}"
        if event.to_status.is_terminal:
            end = event.to_status


def rank_rises(record: JobHistory) -> Problems:
    """The status rank falls only on requeued or on a reclaim. [I6]"""
    here: JobStatus | None = None
    for event in record.events:
        if here is not None and _RANK[event.to_status] < _RANK[here]:
            is_reclaim = event.type is EventType.CLAIMED and event.cause is EventCause.RECLAIM
            if event.type is not EventType.REQUEUED and not is_reclaim:
                yield event.seq, f"{event.type} leads back from {here} to {event.to_status}"
        here = event.to_status


def attempts_are_counted(record: JobHistory) -> Problems:
    """`attempt` counts the claimed events. [I7]"""
    claims = 0
    for event in record.events:
        claims += event.type is EventType.CLAIMED
        if event.attempt != claims:
            yield event.seq, f"{event.type} states attempt {event.attempt}, it is attempt {claims}"
    if record.job is not None and record.job.attempt != claims:
        what = f"the row states attempt {record.job.attempt}, the log has {claims} claims"
        yield rev_of(record), what


def cancel_requests_stay(record: JobHistory) -> Problems:
    """A job with a cancel request is never queued again. [I15]"""
    was_requested = False
    for event in record.events:
        was_requested = was_requested or event.type is EventType.CANCEL_REQUESTED
        if was_requested and event.to_status is JobStatus.QUEUED:
            yield event.seq, f"{event.type} after its cancel request"
    job = record.job
    if job is not None and job.status is JobStatus.QUEUED and job.cancel_requested_at is not None:
        yield rev_of(record), "the row is queued with a cancel request"


# --- the row


def row_fits_its_status(record: JobHistory) -> Problems:
    """The row satisfies the table of docs/spec/states.md. [I8]"""
    if record.job is None:
        return
    for what in row_violations(record.job):
        yield rev_of(record), what
    if record.job.status is JobStatus.STALLED:
        for name in ("last_owner", "last_lease_expires_at"):
            if getattr(record.job, name) is None:
                yield rev_of(record), f"{name} is absent while stalled"


def everything_can_be_read(record: JobHistory) -> Problems:
    """This version knows every word, and every document has the shape of its column. [I24]"""
    for each in record.unreadable:
        yield each.seq, each.problem
    for problem in () if record.job is None else unknown_values(record.job):
        yield rev_of(record), problem
    for event in record.events:
        for problem in unknown_values(event):
            yield event.seq, f"an event's {problem}"
    for observation in record.observations:
        if not observation.type.is_known:
            yield 1, f"an observation's type is {observation.type.value!a}"


def fold_gives_the_row(record: JobHistory) -> Problems:
    """Folding the log through the pure core reproduces the row. [I12]"""
    folded: Job | None = None
    for event in record.events:
        try:
            folded = fold_step(folded, event)
        except (ArithmeticError, AssertionError, AttributeError, TypeError, ValueError):
            # `evolve` checks nothing: it raises these for a log that is not the history of a job.
            yield event.seq, f"{event.type} cannot be folded here"
            return
    if record.job is None:
        yield rev_of(record), "events without a row"
    elif folded is None:
        yield rev_of(record), "a row without events"
    else:
        row = digested(record.job)
        if row != folded:
            differing = [name for name in _FIELDS if getattr(row, name) != getattr(folded, name)]
            yield rev_of(record), f"the fold differs from the row in {', '.join(differing)}"


def terminal_rows_never_change(record: JobHistory) -> Problems:
    """A terminal row has the rev and the finished_at of its terminal event. [I19]"""
    job = record.job
    if job is None or not job.status.is_terminal:
        return
    end = next((event for event in record.events if event.to_status.is_terminal), None)
    if end is None:
        yield rev_of(record), f"the row is {job.status}, no event is its end"
    elif (job.rev, job.finished_at) != (end.seq, end.ts):
        what = (
            f"the row has rev {job.rev} and finished_at {job.finished_at}, "
            f"its end has {end.seq} and {end.ts}"
        )
        yield end.seq, what


def dead_letters_are_complete(record: JobHistory) -> Problems:
    """A dead letter has its seven keys, with words of the closed sets. [I20]

    A key without a possible value is null: a job that was never claimed has no last owner.
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
        yield rev_of(record), f"missing or wrong: {', '.join(dict.fromkeys(wrong))}"


# --- the enqueue


def occurrences_have_one_job(record: JobHistory) -> Problems:
    """The job that the system made of an occurrence has the id of this occurrence, so that no other
    job can be of the same one, and it was not made before its time. [I28]"""
    if not record.events or record.events[0].type is not EventType.ENQUEUED:
        return  # broken otherwise [I2]
    first = record.events[0]
    facts = first.payload
    if facts.schedule is None and facts.scheduled_for is None:
        if first.cause is EventCause.SCHEDULE:
            yield first.seq, "made by a schedule that is not named"
        return
    if facts.schedule is None or facts.scheduled_for is None or facts.namespace is None:
        yield first.seq, "schedule and scheduled_for are not both there"
        return
    if first.cause not in _KEEPS_SCHEDULE:
        yield first.seq, f"of a schedule, but made by {first.cause_or_operation}"
    if first.cause is not EventCause.SCHEDULE or first.actor != SYSTEM:
        return  # redriven, or run by hand: ids of their own
    if record.job_id != occurrence_job_id(facts.namespace, facts.schedule, facts.scheduled_for):
        yield first.seq, "its id is not that of its occurrence"
    if first.ts < facts.scheduled_for:
        yield first.seq, "made before its nominal time"


def expired_jobs_never_start(record: JobHistory) -> Problems:
    """No first start is granted after `start_by`, and nothing else expires. [I34]"""
    start_by = record.events[0].payload.start_by if record.events else None
    was_started = False
    for event in record.events:
        if event.type is EventType.STARTED:
            was_started = True
        is_over = start_by is not None and event.ts >= start_by and not was_started
        if event.type is EventType.CLAIMED and is_over:
            yield event.seq, f"granted at {event.ts}, it should have been started before {start_by}"
        if event.cause is EventCause.EXPIRED and not (is_over and event.actor == SYSTEM):
            yield event.seq, "expired without a reason"


def dead_letters_are_reported_once(record: JobHistory) -> Problems:
    """A job that was enqueued for a dead letter has the id that follows from that one. [I36]"""
    first = record.events[0] if record.events else None
    if first is None or first.cause is not EventCause.DEAD_LETTER:
        return
    origin_id = first.payload.origin_id
    if first.actor != SYSTEM:
        yield first.seq, f"enqueued for a dead letter by {first.actor}"
    if origin_id is None or record.job_id != dead_letter_job_id(origin_id):
        yield first.seq, f"its id does not follow from the dead letter {origin_id}"
