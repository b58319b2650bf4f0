"""Checks a history against the four documents that Tenure combines (docs/spec/your-document.md).

Each document (A, B, C, D) has its own states and transitions; the sets below are copied from it. A
function per document translates the history into the document's words, and checks that it allows
every step. [P1] to [P4] in docs/spec/invariants.md define the translations.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec.structs import replace

from tenure.core.events import Event
from tenure.core.ids import short_lease
from tenure.core.vocabulary import ATTEMPT_ENDS, EventCause, EventType, JobStatus
from tenure.ports import JobHistory
from tenure.verify.checking import Problems, rev_of


def as_documents_see_it(events: Sequence[Event]) -> Sequence[Event]:
    """The history from where the job is queued: none of the documents knows jobs that wait for
    others. `ready` is their enqueue; a job that ended before it has an empty history. [P5]"""
    if not events or events[0].to_status is not JobStatus.WAITING:
        return events
    left = [place for place, event in enumerate(events) if event.to_status is not JobStatus.WAITING]
    since = events[left[0] :] if left else ()
    if since and since[0].type is EventType.READY:
        enqueued = replace(since[0], type=EventType.ENQUEUED, from_status=None)
        return [enqueued, *since[1:]]
    return since if len(since) > 1 else ()  # an end with something after it is checked


# --- A, the invariants: who owns a job -----------------------------------------------------------


class AState(StrEnum):
    """A's states."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


A_STATE = {
    JobStatus.WAITING: AState.QUEUED,  # only in a broken log: see `as_documents_see_it`
    JobStatus.QUEUED: AState.QUEUED,
    JobStatus.STALLED: AState.QUEUED,
    JobStatus.CLAIMED: AState.RUNNING,
    JobStatus.RUNNING: AState.RUNNING,
    JobStatus.SUCCEEDED: AState.SUCCEEDED,
    JobStatus.FAILED: AState.FAILED,
    JobStatus.DEAD_LETTERED: AState.FAILED,
    JobStatus.CANCELLED: AState.CANCELLED,
}
A_TERMINAL = frozenset({AState.SUCCEEDED, AState.FAILED, AState.CANCELLED})


def running_has_one_owner(record: JobHistory) -> Problems:
    """A RUNNING job has one owner, a job cancelled while QUEUED never runs, and no job leaves a
    terminal state. [P1]"""
    here: AState | None = None
    owner: str | None = None
    cancelled_while_queued = False
    for event in as_documents_see_it(record.events):
        there = A_STATE[event.to_status]
        if there is AState.RUNNING:
            if cancelled_while_queued:
                yield event.seq, "runs after it was cancelled while QUEUED"
            if event.owner is None:
                yield event.seq, "RUNNING without an owner"
            elif here is AState.RUNNING and event.owner != owner:
                yield event.seq, f"RUNNING with the owners {owner} and {event.owner}"
            owner = event.owner
        if here in A_TERMINAL:
            yield event.seq, f"goes from {here}, which is terminal, to {there}"
        if there is AState.CANCELLED and here is AState.QUEUED:
            cancelled_while_queued = True
        here = there
    job = record.job
    if job is None:
        return
    if A_STATE[job.status] is AState.RUNNING and job.owner is None:
        yield rev_of(record), "the row is RUNNING without an owner"
    if here in A_TERMINAL and A_STATE[job.status] is not here:
        yield rev_of(record), f"the log ends in {here}, the row is {A_STATE[job.status]}"


# --- B, the state machine: how an attempt moves forward ------------------------------------------


class BState(StrEnum):
    """B's states; B2 has no dead_lettered."""

    QUEUED = "queued"
    ASSIGNED = "assigned"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD_LETTERED = "dead_lettered"


_Q, _A, _R, _S, _F, _C, _D = BState
B1_TRANSITIONS = frozenset(
    {(_Q, _A), (_A, _R), (_R, _S), (_R, _F), (_R, _C), (_Q, _D), (_A, _D), (_R, _D)}
)
B2_TRANSITIONS = frozenset({(_Q, _A), (_A, _R), (_R, _S), (_R, _F), (_Q, _C), (_A, _C), (_R, _C)})
B_TRANSITIONS = B1_TRANSITIONS | B2_TRANSITIONS
"""Each leads from a lower rank to a higher one."""
B_EVENTS = {
    "job_claimed": _A,
    "job_started": _R,
    "job_succeeded": _S,
    "job_failed": _F,
    "job_cancelled": _C,
    "job_dead_lettered": _D,
}
"""The events that change B's state, and the state they lead to."""

_B_STATE = {JobStatus(state): state for state in BState}  # `assigned` is an alias of `claimed`


def attempts_move_forward(record: JobHistory) -> Problems:
    """Within an attempt every transition is one of B1 or B2, the rank rises with each, and each
    change has one event. [P2]

    In B a stall does not change the state: it marks the job as orphaned. Only an orphaned job gets
    another attempt, which starts queued; a reclaim claims it with the same event.
    """
    here: BState | None = None
    is_orphaned = False
    for event in as_documents_see_it(record.events):
        if event.type is EventType.ENQUEUED:
            if here is not None:
                yield event.seq, f"{here} is enqueued a second time"
            here = BState.QUEUED
            continue
        is_reclaim = event.type is EventType.CLAIMED and event.cause is EventCause.RECLAIM
        if is_reclaim or event.type is EventType.REQUEUED:
            if not is_orphaned:
                yield event.seq, f"{here} goes back to queued and is not orphaned"
            here = BState.QUEUED
        is_orphaned = event.type is EventType.STALLED
        name = f"job_{event.type}"
        there = _B_STATE.get(event.to_status, here)
        if here is None or there is None:
            yield event.seq, f"{name} of a job that was never queued"
        elif B_EVENTS.get(name, here) is not there:
            yield event.seq, f"{here} becomes {there} by {name}"
        elif name in B_EVENTS and (here, there) not in B_TRANSITIONS:
            yield event.seq, f"{name} leads from {here} to {there}"
        here = there


# --- C, the worker contract: how a lease ends ----------------------------------------------------


class CState(StrEnum):
    """C's states of one attempt."""

    LEASED = "LEASED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    LOST = "LOST"


C_TRANSITIONS = frozenset({(CState.LEASED, state) for state in CState})


def _c_state(event: Event) -> CState:
    """The state of an attempt after an event. An end that its worker did not report is a loss."""
    if event.type not in ATTEMPT_ENDS:
        return CState.LEASED
    if not event.is_by_worker:
        return CState.LOST
    return CState.COMPLETED if event.type is EventType.SUCCEEDED else CState.FAILED


def attempts_end_once(record: JobHistory) -> Problems:
    """Each attempt ends once, and each report has one decision. [P3]"""
    attempts: dict[str, CState] = {}
    decided: set[tuple[str, str]] = set()
    leased: str | None = None
    for event in as_documents_see_it(record.events):
        lease_id = event.lease_id
        if lease_id is None:
            continue
        if event.type is EventType.CLAIMED:
            if leased is not None:
                what = f"lease {short_lease(lease_id)} is granted, lease {short_lease(leased)} has"
                yield event.seq, f"{what} not ended"
            if lease_id in attempts:
                yield event.seq, f"lease {short_lease(lease_id)} is granted twice"
            attempts[lease_id] = CState.LEASED
            leased = lease_id
            continue
        here, there = attempts.get(lease_id), _c_state(event)
        if here is None or (here, there) not in C_TRANSITIONS:
            yield event.seq, f"{event.type} makes a {here or 'never granted'} attempt {there}"
        attempts[lease_id] = there
        if there is not CState.LEASED:
            leased = None
        if there in (CState.COMPLETED, CState.FAILED):
            if (lease_id, event.request_id) in decided:
                yield event.seq, f"report {event.request_id} was decided twice"
            decided.add((lease_id, event.request_id))
    if record.job is not None and (leased is not None) != record.job.status.is_leased:
        what = f"the row is {record.job.status}, the log's last attempt "
        what += "has ended" if leased is None else "has not ended"
        yield rev_of(record), what


# --- D, the lifecycle plan: in which order operations happen -------------------------------------

D_TRANSITIONS: frozenset[tuple[JobStatus | None, str, JobStatus]] = frozenset(
    {
        (None, "enqueue", JobStatus.QUEUED),
        (JobStatus.QUEUED, "claimNext", JobStatus.CLAIMED),
        (JobStatus.STALLED, "claimNext", JobStatus.CLAIMED),
        (JobStatus.CLAIMED, "start", JobStatus.RUNNING),
        (JobStatus.CLAIMED, "heartbeat", JobStatus.CLAIMED),
        (JobStatus.RUNNING, "heartbeat", JobStatus.RUNNING),
        (JobStatus.RUNNING, "complete", JobStatus.SUCCEEDED),
        (JobStatus.RUNNING, "fail", JobStatus.FAILED),
        (JobStatus.CLAIMED, "stall", JobStatus.STALLED),
        (JobStatus.RUNNING, "stall", JobStatus.STALLED),
        (JobStatus.STALLED, "requeueStalled", JobStatus.QUEUED),
    }
)
D_OPERATION = {
    EventType.ENQUEUED: "enqueue",
    EventType.CLAIMED: "claimNext",
    EventType.STARTED: "start",
    EventType.LEASE_RENEWED: "heartbeat",
    EventType.HEARTBEAT: "heartbeat",
    EventType.SUCCEEDED: "complete",
    EventType.FAILED: "fail",
    EventType.STALLED: "stall",
    EventType.REQUEUED: "requeueStalled",
}
D_UNKNOWN = frozenset({JobStatus.CANCELLED, JobStatus.DEAD_LETTERED})


def steps_are_in_order(record: JobHistory) -> Problems:
    """Every transition is one of D's, up to a cancel or a dead letter: D has neither. [P4]"""
    here: JobStatus | None = None
    for event in as_documents_see_it(record.events):
        if event.to_status in D_UNKNOWN:
            return
        if event.type is EventType.CANCEL_REQUESTED and event.to_status is here:
            continue
        operation = D_OPERATION.get(event.type)
        if operation is None or (here, operation, event.to_status) not in D_TRANSITIONS:
            yield event.seq, f"{operation or event.type} leads from {here} to {event.to_status}"
        here = event.to_status
