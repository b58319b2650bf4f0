"""What an event or observation says, in plain words: what happened, and why.

Words only: times, links and escaping are the templates' business. A value that this version does
not know is shown unchanged. [Y4]
"""

from tenure.core.events import Event
from tenure.core.job import Progress
from tenure.core.verdicts import Observation
from tenure.core.vocabulary import EventCause, EventType, ObservationType
from tenure.dashboard.rendering import duration_words

_WHAT = {
    EventType.ENQUEUED: "Enqueued",
    EventType.READY: "Ready: its parents have ended",
    EventType.CLAIMED: "Claimed",
    EventType.STARTED: "Started",
    EventType.LEASE_RENEWED: "Lease renewed",
    EventType.HEARTBEAT: "Heartbeat",
    EventType.CANCEL_REQUESTED: "Cancellation requested",
    EventType.STALLED: "Attempt ended",
    EventType.REQUEUED: "Requeued",
    EventType.SUCCEEDED: "Succeeded",
    EventType.FAILED: "Failed",
    EventType.CANCELLED: "Cancelled",
    EventType.DEAD_LETTERED: "Dead-lettered",
}

_STALLED = {
    EventCause.ATTEMPT_FAILED: "Attempt failed",
    EventCause.RELEASED: "Released by its worker",
    EventCause.SNOOZED: "Snoozed by its handler",
    EventCause.UNDELIVERED: "Grant never reached its worker",
    EventCause.LEASE_EXPIRED: "Lease expired",
    EventCause.OUTAGE: "Lease lost in an outage of the store",
    EventCause.TIMEOUT: "Timed out",
    EventCause.START_TIMEOUT: "Not started in time",
    EventCause.GRACE_OVER: "Did not stop in time",
    EventCause.OPERATOR: "Taken from its worker by an operator",
}

_CAUSES = {
    EventCause.REDRIVE: "redrives a dead letter",
    EventCause.RERUN: "run again",
    EventCause.COMPENSATION: "undoes another job",
    EventCause.FOLLOW_UP: "enqueued by a handler",
    EventCause.PARENT_ENDED: "a parent did not end as needed",
    EventCause.SCHEDULE: "by a schedule",
    EventCause.RECLAIM: "reclaimed after its worker was lost",
    EventCause.IMPLICIT: "implied by the report",
    EventCause.ATTEMPT_FAILED: "after a failed attempt",
    EventCause.RELEASED: "released by its worker",
    EventCause.SNOOZED: "snoozed by its handler",
    EventCause.UNDELIVERED: "the grant never reached its worker",
    EventCause.LEASE_EXPIRED: "the lease expired",
    EventCause.OUTAGE: "the store was out of reach; costs no attempt",
    EventCause.TIMEOUT: "the attempt took longer than its timeout",
    EventCause.START_TIMEOUT: "the worker did not start in time",
    EventCause.GRACE_OVER: "the handler did not stop within the grace period",
    EventCause.HARD: "hard: at once",
    EventCause.SOFT: "soft: the handler may finish first",
    EventCause.ACKNOWLEDGED: "the handler stopped as asked",
    EventCause.OPERATOR: "by an operator",
    EventCause.EXPIRED: "not started before it expired",
    EventCause.DEAD_LETTER: "because another job is a dead letter",
}

_OBSERVED = {
    ObservationType.RESULT_DISCARDED: "Late result refused",
    ObservationType.FOREIGN_LEASE: "Report under another worker's lease refused",
    ObservationType.COMPENSATED: "Compensated",
}


def what_happened(event: Event | Observation) -> str:
    """The event or observation in a few words."""
    if isinstance(event, Observation):
        return _OBSERVED.get(event.type, str(event.type))
    if event.type is EventType.STALLED and event.cause is not None:
        return _STALLED.get(event.cause, str(event.cause))
    if event.type is EventType.HEARTBEAT and has_checkpoint(event):
        return "Checkpoint saved"
    if event.type is EventType.HEARTBEAT and event.payload.progress is not None:
        return "Progress reported"
    return _WHAT.get(event.type, str(event.type))


def why_it_happened(event: Event | Observation) -> str:
    """Its cause, the reason that was given and the error; each only if there is one."""
    if isinstance(event, Observation):
        return _why_it_was_observed(event)
    facts = event.payload
    parts = []
    if event.cause is not None and event.type is not EventType.STALLED:
        parts.append(_cause_words(event, event.cause))
    if facts.reason_code is not None:
        parts.append(str(facts.reason_code).replace("_", " "))
    if facts.reason:
        parts.append(facts.reason)
    if facts.error is not None and facts.error.headline:
        parts.append(facts.error.headline)
    if event.type is EventType.REQUEUED and facts.run_at is not None and facts.run_at > event.ts:
        parts.append(f"waits {duration_words(facts.run_at - event.ts)}")
    if facts.progress is not None and event.type is EventType.HEARTBEAT:
        parts.append(progress_words(facts.progress))
    return "; ".join(parts)


def _why_it_was_observed(seen: Observation) -> str:
    if seen.compensated_by is not None:
        return f"by job {seen.compensated_by}"
    return "" if seen.cause is None else str(seen.cause).replace("_", " ")


def _cause_words(event: Event, cause: EventCause) -> str:
    if cause is EventCause.REDRIVE and event.payload.flow_id is not None:
        return "redrive of its flow: replaces a job that did not succeed"
    return _CAUSES.get(cause, str(cause))


def has_checkpoint(event: Event) -> bool:
    """Whether a heartbeat saved one. A viewer sees its size, not its digest. [H46]"""
    return event.payload.checkpoint_sha256 is not None or event.payload.size is not None


def progress_words(progress: Progress) -> str:
    """`3 of 10, resizing`."""
    of = "" if progress.total is None else f" of {progress.total}"
    return f"{progress.done}{of}" + (f", {progress.note}" if progress.note else "")
