"""The order of a log: numbers without gaps, only transitions of the table, one end.

One function per invariant. Each reads the whole record and yields what is wrong; none of them
assumes that another one holds.
"""

from collections.abc import Iterator

from tenure.core.counting import counted
from tenure.core.transitions import is_lawful
from tenure.core.vocabulary import ATTEMPT_ENDS, RENEWALS, EventCause, EventType, JobStatus
from tenure.ports import Record
from tenure.verify.violations import Violation, broken, rev_of

RANK = {
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


def seqs_are_complete(record: Record) -> Iterator[Violation]:
    """The seqs of a job's events and of its pruned renewals together are 1 to rev. [I1]

    Only the renewals of an ended attempt are pruned, and its last event says how many it had.
    """
    expected = 1
    is_open, seen, missing, first_missing = False, 0, 0, 0
    for event in record.events:
        if event.seq < expected:
            yield broken("I1", record, event.seq, f"seq {event.seq} comes twice or out of order")
            continue
        gap = event.seq - expected
        if gap and not is_open:
            what = f"{gap} missing before {event.type} at seq {event.seq}"
            yield broken("I1", record, expected, what)
        elif gap:
            first_missing = first_missing or expected
            missing += gap
        if event.type is EventType.CLAIMED:
            if missing:
                yield broken("I1", record, first_missing, f"{missing} missing in a live attempt")
            is_open, seen, missing, first_missing = True, 0, 0, 0
        elif event.type in RENEWALS:
            seen += 1
        elif event.type in ATTEMPT_ENDS and is_open:
            stated = event.payload.renewals or 0
            if stated != seen + missing:
                found = f"{counted(seen, 'renewal')} and {counted(missing, 'missing seq')}"
                what = f"{found}, the attempt's end says {stated}"
                yield broken("I1", record, first_missing or event.seq, what)
            is_open, missing = False, 0
        expected = event.seq + 1
    if missing:
        yield broken("I1", record, first_missing, f"{missing} missing in a live attempt")
    if record.job is not None and record.job.rev != expected - 1:
        what = f"the row's rev is {record.job.rev}, the log ends at {expected - 1}"
        yield broken("I1", record, min(record.job.rev + 1, expected), what)


def first_is_enqueued(record: Record) -> Iterator[Violation]:
    """The first event is enqueued, from nothing to queued, or to waiting for other jobs. [I2]"""
    if not record.events:
        yield broken("I2", record, 1, "the job has no events")
        return
    first = record.events[0]
    is_first = first.type is EventType.ENQUEUED and first.from_status is None
    if not is_first or first.to_status not in (JobStatus.QUEUED, JobStatus.WAITING):
        what = f"begins with {first.type} from {first.from_status} to {first.to_status}"
        yield broken("I2", record, first.seq, what)


def statuses_connect(record: Record) -> Iterator[Violation]:
    """Each from_status is the previous to_status; the last one is the row's status. [I3]"""
    here: JobStatus | None = None
    for event in record.events:
        if event.from_status is not here:
            what = f"{event.type} comes from {event.from_status}, the job was {here}"
            yield broken("I3", record, event.seq, what)
        here = event.to_status
    if record.job is None:
        yield broken("I3", record, rev_of(record), f"the log leads to {here}, there is no row")
    elif record.job.status is not here:
        what = f"the log leads to {here}, the row is {record.job.status}"
        yield broken("I3", record, rev_of(record), what)


def edges_are_lawful(record: Record) -> Iterator[Violation]:
    """Every (from, type, to) is one of the table. [I4]"""
    for event in record.events:
        if not is_lawful(event.from_status, event.type, event.to_status):
            what = f"no transition leads from {event.from_status} by {event.type}"
            yield broken("I4", record, event.seq, f"{what} to {event.to_status}")


def ends_once(record: Record) -> Iterator[Violation]:
    """At most one terminal event, and nothing follows it. [I5]"""
    end: JobStatus | None = None
    for event in record.events:
        if end is not None:
            yield broken("I5", record, event.seq, f"{event.type} follows the end as {end}")
        if event.to_status.is_terminal:
            end = event.to_status


def rank_rises(record: Record) -> Iterator[Violation]:
    """The status rank falls only on requeued or on a reclaim. [I6]"""
    here: JobStatus | None = None
    for event in record.events:
        if here is not None and RANK[event.to_status] < RANK[here]:
            is_reclaim = event.type is EventType.CLAIMED and event.cause is EventCause.RECLAIM
            if event.type is not EventType.REQUEUED and not is_reclaim:
                what = f"{event.type} leads back from {here} to {event.to_status}"
                yield broken("I6", record, event.seq, what)
        here = event.to_status


def attempts_are_counted(record: Record) -> Iterator[Violation]:
    """`attempt` counts the claimed events. [I7]"""
    claims = 0
    for event in record.events:
        claims += event.type is EventType.CLAIMED
        if event.attempt != claims:
            what = f"{event.type} says attempt {event.attempt}, it is attempt {claims}"
            yield broken("I7", record, event.seq, what)
    if record.job is not None and record.job.attempt != claims:
        what = f"the row says attempt {record.job.attempt}, the log has {claims} claims"
        yield broken("I7", record, rev_of(record), what)


def cancel_requests_stay(record: Record) -> Iterator[Violation]:
    """A job with a cancel request is never queued again. [I15]"""
    was_requested = False
    for event in record.events:
        was_requested = was_requested or event.type is EventType.CANCEL_REQUESTED
        if was_requested and event.to_status is JobStatus.QUEUED:
            yield broken("I15", record, event.seq, f"{event.type} after its cancel request")
    job = record.job
    if job is not None and job.status is JobStatus.QUEUED and job.cancel_requested_at is not None:
        yield broken("I15", record, rev_of(record), "the row is queued with a cancel request")
