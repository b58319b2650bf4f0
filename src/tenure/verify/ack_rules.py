"""Rules that compare the answers that callers received with the log. Each takes a record and its
acks.

What was accepted must be in the log, a request without an answer may be there, and what was refused
must not. A missing job is a violation unless it is old enough to have been purged, see
`may_be_purged`.
"""

from collections.abc import Sequence

from tenure.core.events import Event
from tenure.core.ids import JobId, LeaseId
from tenure.core.instants import Duration, Instant
from tenure.core.vocabulary import ATTEMPT_ENDS, EventType, VerdictKind
from tenure.ports import JobHistory
from tenure.verify.acks import SETTLING, Ack, AckOp
from tenure.verify.checking import Problems, attempts_of, lease_ends, policy_of, rev_of

Acks = Sequence[Ack]


def commits_are_settled_once(record: JobHistory, acks: Acks) -> Problems:
    """Every COMMITTED has exactly one settle event, dated before its lease's end. [I13]"""
    for ack in acks:
        if ack.op not in SETTLING or ack.answer is not VerdictKind.COMMITTED:
            continue
        settled = _settle_events(record, ack)
        if len(settled) != 1:
            what = f"{ack.op} {ack.request_id} was COMMITTED, its lease has {len(settled)}"
            seq = settled[1].seq if settled else rev_of(record)
            yield seq, f"{what} settle events of that request"
        elif _is_late(record, settled[0]):
            yield settled[0].seq, f"{ack.op} {ack.request_id} was COMMITTED after its lease's end"


def _settle_events(record: JobHistory, ack: Ack) -> list[Event]:
    return [
        event
        for event in record.events
        if event.type in ATTEMPT_ENDS
        and event.lease_id == ack.lease_id
        and event.request_id == ack.request_id
    ]


def _is_late(record: JobHistory, settled: Event) -> bool:
    policy = policy_of(record)
    if policy is None:
        return False
    return any(
        event is settled and event.ts >= end
        for attempt in attempts_of(record.events)
        for event, end in lease_ends(attempt, policy)
    )


def cancels_hold(record: JobHistory, acks: Acks) -> Problems:
    """No grant follows an acknowledged cancel of a job that was not yet running. [I14]

    A pending answer means that the job was running.
    """
    for ack in acks:
        if ack.op is not AckOp.CANCEL or not ack.is_accepted or ack.pending:
            continue
        since = _cancelled_at(record, ack)
        if since is None:
            continue
        for event in record.events:
            if event.type is EventType.CLAIMED and event.seq > since:
                what = f"granted after cancel {ack.request_id} was acknowledged at rev {since}"
                yield event.seq, what
                break


def _cancelled_at(record: JobHistory, ack: Ack) -> int | None:
    """The rev at which the cancel was acknowledged: the answer's, or that of its event."""
    if ack.rev is not None:
        return ack.rev
    ends = [event for event in record.events if event.type is EventType.CANCELLED]
    own = [event for event in ends if event.request_id == ack.request_id]
    return next((event.seq for event in own or ends), None)


def enqueues_happen_once(record: JobHistory, acks: Acks) -> Problems:
    """An acknowledged enqueue exists exactly once, any other at most once. [I16]"""
    enqueued = [event for event in record.events if event.type is EventType.ENQUEUED]
    asked = [ack for ack in acks if ack.op in (AckOp.ENQUEUE, AckOp.REDRIVE)]
    if not any(record.job_id in (ack.job_id, ack.target) for ack in asked):
        return
    if len(enqueued) > 1:
        yield enqueued[1].seq, f"enqueued {len(enqueued)} times"
    is_promised = any(ack.is_accepted and ack.target == record.job_id for ack in asked)
    if is_promised and (record.job is None or not enqueued):
        missing = "row" if record.job is None else "enqueued event"
        yield 1, f"its enqueue was acknowledged, it has no {missing}"


def acknowledged_is_kept(record: JobHistory, acks: Acks) -> Problems:
    """No acknowledged mutation is missing. [I21]"""
    for ack in acks:
        if not ack.is_accepted or ack.target != record.job_id:
            continue
        if not _is_kept(record, ack):
            request = ack.request_id or ack.lease_id or ack.job_id
            yield rev_of(record), f"{ack.op} {request} was acknowledged, the log does not have it"
        elif ack.rev is not None and rev_of(record) < ack.rev:
            what = f"{ack.op} was answered at rev {ack.rev}, the job is back at {rev_of(record)}"
            yield rev_of(record), what


_OWN_EVENT = {
    AckOp.START: EventType.STARTED,
    AckOp.REQUEUE: EventType.REQUEUED,
    AckOp.DEAD_LETTER: EventType.DEAD_LETTERED,
}


def _is_kept(record: JobHistory, ack: Ack) -> bool:
    match ack.op:
        case AckOp.ENQUEUE | AckOp.REDRIVE:
            return record.job is not None and _has(record, EventType.ENQUEUED)
        case AckOp.CLAIM:
            return _has(record, EventType.CLAIMED, lease_id=ack.lease_id)
        case AckOp.START | AckOp.REQUEUE | AckOp.DEAD_LETTER:
            return any(
                event.type is _OWN_EVENT[ack.op]
                and event.request_id == ack.request_id
                and ack.lease_id in (None, event.lease_id)
                for event in record.events
            )
        case AckOp.HEARTBEAT:
            if not _has(record, EventType.CLAIMED, lease_id=ack.lease_id):
                return False  # a lease that was never granted cannot have been renewed
            if ack.settled or ack.replayed or ack.hb_seq is None:
                return True
            return ack.hb_seq <= _last_hb_seq(record, ack)
        case AckOp.COMPLETE | AckOp.FAIL | AckOp.RELEASE:
            return bool(_settle_events(record, ack))
        case AckOp.CANCEL:
            return _is_cancel_kept(record, ack)
        case AckOp.STALL:
            # Stalling a stalled job has no event of its own: another stall's will do. [N5]
            return _has(record, EventType.STALLED)


def _is_cancel_kept(record: JobHistory, ack: Ack) -> bool:
    """Whether the log has its event. A cancel of a cancelled job and a second soft cancel have none
    of their own: another cancel's will do. [Q5]"""
    cancels = [
        event
        for event in record.events
        if event.type in (EventType.CANCELLED, EventType.CANCEL_REQUESTED)
    ]
    return any(
        event.request_id == ack.request_id or ack.pending or event.type is EventType.CANCELLED
        for event in cancels
    )


def _has(record: JobHistory, wanted: EventType, *, lease_id: LeaseId | None = None) -> bool:
    return any(
        event.type is wanted and lease_id in (None, event.lease_id) for event in record.events
    )


def _last_hb_seq(record: JobHistory, ack: Ack) -> int:
    """The highest hb_seq of a lease in the log; the attempt's last event keeps that of pruned
    renewals. [G1]"""
    return max(
        (event.payload.hb_seq or 0 for event in record.events if event.lease_id == ack.lease_id),
        default=0,
    )


def refusals_changed_nothing(record: JobHistory, acks: Acks) -> Problems:
    """A worker's report that was answered CANCELLED changed nothing. [P3]"""
    for ack in acks:
        if ack.op in SETTLING and ack.answer is VerdictKind.CANCELLED:
            for event in _settle_events(record, ack):
                if event.is_by_worker:
                    what = f"{ack.op} {ack.request_id} was answered CANCELLED, and was applied"
                    yield event.seq, what


def must_exist(acks: Acks, job_id: JobId) -> bool:
    """Whether a job must exist because its enqueue was acknowledged."""
    return any(ack.is_accepted and ack.target == job_id for ack in acks)


def may_be_purged(acks: Acks, now: Instant, retention_us: Duration) -> bool:
    """Whether a missing job may have been purged: the retention has passed since the first line
    about it. Retention starts later, at the job's end, so a younger job was certainly lost."""
    return now >= min(ack.at for ack in acks) + retention_us
