"""Events: one per accepted mutation, written in the same transaction as the row it produced.

An event carries every fact that folding needs; bodies (payload, checkpoint, result) are carried
by digest. It never carries a secret's text: payloads stay in the row.

A row or an event may have a word of a newer version, which this one does not know. It is kept and
shown unchanged. [Y4] It may change what the other fields mean, so nothing is decided about such a
job here: it is left to processes of the newer version. [Y5]
"""

import hashlib
from collections.abc import Iterator

import msgspec

from tenure.core.ids import (
    Actor,
    Fingerprint,
    FlowId,
    JobId,
    Kind,
    LeaseId,
    Namespace,
    QueueName,
    RequestId,
    ScheduleName,
    WorkerId,
    correlated_by,
    is_worker,
)
from tenure.core.instants import Duration, Instant
from tenure.core.job import Job, JobError, Progress
from tenure.core.policy import DeadLetterJob, Policy
from tenure.core.vocabulary import (
    CLASS_OF,
    ErrorClass,
    EventCause,
    EventClass,
    EventType,
    JobStatus,
    OnExhausted,
    OnLost,
    Operation,
    ReasonCode,
    Stage,
)

NAME_PREFIX = "job_"
COMPENSATED_NAME = "job_compensated"
"""The name of the event that ends a compensation well. [M2]"""

EVENT_VERSION = 1
MAX_DECISION_EVENTS = 10_000
"""How many events of a job's log a decision reads, besides the first one: the latest that are no
renewals. The first is what a repeated enqueue is compared with, and renewals must not push out the
claim of the lease that they renewed. [J8]"""


def digest(body: bytes) -> str:
    """The digest a body is folded by. [G1]"""
    return _NULL_DIGEST if body == _NULL else hashlib.sha256(body).hexdigest()


_NULL = b"null"  # no payload, or no result: most jobs have at least one of them
_NULL_DIGEST = hashlib.sha256(_NULL).hexdigest()


class Facts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An event's `payload`: what happened, beyond its columns. Absent fields do not apply.

    Unknown fields are ignored on reading: extensions only add optional ones. [Y2]
    """

    namespace: Namespace | None = None
    queue: QueueName | None = None
    kind: Kind | None = None
    priority: int | None = None
    policy: Policy | None = None
    dedupe_key: str | None = None
    unique_for_us: Duration | None = None
    concurrency_key: str | None = None
    rate_key: str | None = None
    origin_id: JobId | None = None
    flow_id: FlowId | None = None
    flow_step: str | None = None
    parents: int | None = None
    run_at: Instant | None = None
    start_by: Instant | None = None
    on_dead_letter: DeadLetterJob | None = None
    sha256: str | None = None
    checkpoint_sha256: str | None = None
    size: int | None = None
    hb_seq: int | None = None
    progress: Progress | None = None
    renewals: int | None = None
    failures: int | None = None
    releases: int | None = None
    outage_credits: int | None = None
    error: JobError | None = None
    reason_code: ReasonCode | None = None
    stage: Stage | None = None
    reason: str | None = None
    cancel_deadline: Instant | None = None
    schedule: ScheduleName | None = None
    scheduled_for: Instant | None = None


_SUMMARY = ("hb_seq", "renewals", "progress", "checkpoint_sha256")
"""What the end of an attempt keeps of its renewals. [G1]"""

FACTS_OF: dict[EventType, tuple[str, ...]] = {
    EventType.ENQUEUED: (
        "namespace",
        "queue",
        "kind",
        "priority",
        "policy",
        "dedupe_key",
        "unique_for_us",
        "concurrency_key",
        "rate_key",
        "origin_id",
        "flow_id",
        "flow_step",
        "parents",
        "run_at",
        "start_by",
        "on_dead_letter",
        "sha256",
        "size",
        "schedule",
        "scheduled_for",
    ),
    EventType.READY: ("run_at",),
    EventType.CLAIMED: (),
    EventType.STARTED: (),
    EventType.LEASE_RENEWED: ("hb_seq",),
    EventType.HEARTBEAT: ("hb_seq", "progress", "checkpoint_sha256", "size"),
    EventType.CANCEL_REQUESTED: ("reason", "cancel_deadline"),
    EventType.STALLED: (
        "error",
        "failures",
        "releases",
        "outage_credits",
        "run_at",
        *_SUMMARY,
    ),
    EventType.REQUEUED: ("run_at",),
    EventType.SUCCEEDED: ("sha256", "size", *_SUMMARY),
    EventType.FAILED: ("error", "failures", *_SUMMARY),
    EventType.CANCELLED: ("reason", "error", *_SUMMARY),
    EventType.DEAD_LETTERED: ("reason_code", "stage", "error", "failures", "reason", *_SUMMARY),
}
"""Which facts an event of each type may carry."""


class Event(msgspec.Struct, frozen=True, gc=False):
    """One row of `job_event`. Its id is (job_id, seq); seq is the rev it produced. [E1]

    Not keyword-only, for the row mapper: a row's columns are its arguments.
    """

    job_id: JobId
    seq: int
    type: EventType
    ts: Instant
    actor: Actor
    attempt: int
    from_status: JobStatus | None
    to_status: JobStatus
    request_id: RequestId
    lease_id: LeaseId | None = None
    owner: WorkerId | None = None
    lease_expires_at: Instant | None = None
    fingerprint: Fingerprint | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    cause: EventCause | None = None
    payload: Facts = Facts()
    version: int = EVENT_VERSION

    @property
    def name(self) -> str:
        """Its name in the older vocabulary. [E6]"""
        if self.type is EventType.SUCCEEDED and self.cause is EventCause.COMPENSATION:
            return COMPENSATED_NAME
        return f"{NAME_PREFIX}{self.type}"

    @property
    def shown_cause(self) -> EventCause | Operation:
        """Its cause as others see it: never None. Without a cause of its own, the operation that
        made it. [E7]"""
        if self.cause is not None:
            return self.cause
        if self.type is EventType.DEAD_LETTERED and self.from_status is JobStatus.RUNNING:
            return Operation.FAIL
        return self.type.operation

    @property
    def event_class(self) -> EventClass:
        """Whether it may be pruned after its attempt."""
        return CLASS_OF.get(self.type, EventClass.TRANSITION)

    @property
    def correlated_by(self) -> str:
        """The correlation id of its job as others see it. [OB26]"""
        return correlated_by(self.correlation_id, self.job_id)

    @property
    def is_by_worker(self) -> bool:
        """Whether a worker made it. An attempt is settled if a worker made its end, which is then
        the report of its owner; if another caller did, it is lost."""
        return is_worker(self.actor)


# --- Words of a newer version --------------------------------------------------------------------


# Looked up in sets: a claim asks this of every job, and calling `is_known` costs three times that.
_STATUSES = frozenset({None, *JobStatus})
_TYPES = frozenset(EventType)
_CAUSES = frozenset({None, *EventCause})
_REASONS = frozenset({None, *ReasonCode})
_STAGES = frozenset({None, *Stage})
_CLASSES = frozenset(ErrorClass)
_ON_EXHAUSTED = frozenset(OnExhausted)
_ON_LOST = frozenset(OnLost)


def has_unknown_word(job: Job) -> bool:
    """Whether a newer version wrote a word into the row that this one does not know. [Y5]"""
    policy = job.policy
    if (
        job.status not in _STATUSES
        or job.origin_cause not in _CAUSES
        or job.stall_cause not in _CAUSES
        or policy.on_lost not in _ON_LOST
        or policy.on_exhausted not in _ON_EXHAUSTED
    ):
        return True
    is_plain = policy.compensation is None and job.on_dead_letter is None
    if is_plain and job.last_error is None and job.reason_code is None:
        return False
    return bool(unknown_in_job(job))


def unknown_in_job(job: Job) -> list[str]:
    """Each of them, with its field: `status is 'napping'`."""
    return [
        *_unless(job.status in _STATUSES, "status", job.status),
        *_unless(job.origin_cause in _CAUSES, "origin_cause", job.origin_cause),
        *_unless(job.stall_cause in _CAUSES, "stall_cause", job.stall_cause),
        *_in_policy("policy", job.policy),
        *_in_dead_letter_job(job.on_dead_letter),
        *_in_error("last_error", job.last_error),
        *_in_error("error", job.error),
        *_unless(job.reason_code in _REASONS, "reason_code", job.reason_code),
        *_unless(job.stage in _STAGES, "stage", job.stage),
    ]


def unknown_in_event(event: Event) -> list[str]:
    """The same of an event."""
    facts = event.payload
    if (
        event.type in _TYPES
        and event.from_status in _STATUSES
        and event.to_status in _STATUSES
        and event.cause in _CAUSES
        and facts.policy is None
        and facts.error is None
        and facts.reason_code is None
        and facts.stage is None
    ):
        return []
    return [
        *_unless(event.type in _TYPES, "type", event.type),
        *_unless(event.from_status in _STATUSES, "from_status", event.from_status),
        *_unless(event.to_status in _STATUSES, "to_status", event.to_status),
        *_unless(event.cause in _CAUSES, "cause", event.cause),
        *(() if facts.policy is None else _in_policy("policy", facts.policy)),
        *_in_dead_letter_job(facts.on_dead_letter),
        *_in_error("error", facts.error),
        *_unless(facts.reason_code in _REASONS, "reason_code", facts.reason_code),
        *_unless(facts.stage in _STAGES, "stage", facts.stage),
    ]


def _unless(is_known: bool, field: str, word: str | None) -> tuple[str, ...]:
    return () if is_known else (f"{field} is {str(word)!a}",)


def _in_policy(field: str, policy: Policy) -> Iterator[str]:
    yield from _unless(policy.on_lost in _ON_LOST, f"{field}.on_lost", policy.on_lost)
    known = policy.on_exhausted in _ON_EXHAUSTED
    yield from _unless(known, f"{field}.on_exhausted", policy.on_exhausted)
    if policy.compensation is not None:
        yield from _in_policy(f"{field}.compensation.policy", policy.compensation.policy)


def _in_dead_letter_job(job: DeadLetterJob | None) -> Iterator[str]:
    if job is not None:
        yield from _in_policy("on_dead_letter.policy", job.policy)


def _in_error(field: str, error: JobError | None) -> Iterator[str]:
    if error is not None:
        yield from _unless(error.error_class in _CLASSES, f"{field}.class", error.error_class)
        yield from _unless(error.stage in _STAGES, f"{field}.stage", error.stage)
        yield from _unless(error.reason_code in _REASONS, f"{field}.reason_code", error.reason_code)
