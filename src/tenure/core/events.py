"""Events: one per accepted mutation, written in the same transaction as the row it produced.

An event carries every fact that folding needs; bodies (payload, checkpoint, result) are carried
by digest. It never carries a secret's text: payloads stay in the row.

A row or an event may have a value of a newer version, which this one does not know. It is kept and
rendered unchanged. [Y4] It may change what the other fields mean, so nothing is decided about such
a job here: it is left to processes of the newer version. [Y5]
"""

import hashlib
from collections.abc import Iterator
from functools import cache
from typing import get_args, get_type_hints

import msgspec
from msgspec.structs import replace

from tenure.core.checks import MAX_INSTANT
from tenure.core.commands import Enqueue
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
from tenure.core.instants import Duration, Instant, later
from tenure.core.job import Job, JobError, Progress
from tenure.core.policy import DeadLetterJob, Policy
from tenure.core.vocabulary import (
    RENEWALS,
    EventCause,
    EventClass,
    EventType,
    JobStatus,
    OnExhausted,
    OnLost,
    OpenEnum,
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
    meta: dict[str, str] | None = None


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
        "meta",
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


def enqueued_facts(
    command: Enqueue, *, now: Instant, policy: Policy, origin_id: JobId | None
) -> Facts:
    """What the `enqueued` event of a job states about it."""
    run_at = Instant(now + command.delay_us) if command.run_at is None else command.run_at
    # Fifteen keywords: with one more CPython makes a dictionary of them.
    facts = Facts(
        namespace=command.namespace,
        queue=command.queue,
        kind=command.kind,
        priority=command.priority or None,
        policy=policy,
        dedupe_key=command.dedupe_key,
        unique_for_us=command.unique_for_us,
        concurrency_key=command.concurrency_key,
        rate_key=command.rate_key,
        run_at=run_at,
        on_dead_letter=command.on_dead_letter,
        start_by=None if command.expires_us is None else _start_by(command.expires_us, now, run_at),
        sha256=digest(command.payload),
        size=len(command.payload),
        meta=command.meta or None,
    )
    return facts if origin_id is None else replace(facts, origin_id=origin_id)


def _start_by(expires_us: Duration, now: Instant, run_at: Instant) -> Instant:
    """From when on a job that was not started is expired. It counts from the time that the
    job could have been started: a delay longer than this is no mistake. [EX1]"""
    return Instant(min(later(now, run_at) + expires_us, MAX_INSTANT))


def facts_of_another(job: Job, payload: bytes, now: Instant) -> Facts:
    """The facts of a new job that is like this one."""
    return Facts(
        namespace=job.namespace,
        queue=job.queue,
        kind=job.kind,
        priority=job.priority or None,
        policy=job.policy,
        dedupe_key=job.dedupe_key,
        unique_for_us=job.unique_for_us,
        concurrency_key=job.concurrency_key,
        rate_key=job.rate_key,
        origin_id=job.id,
        on_dead_letter=job.on_dead_letter,
        run_at=now,
        sha256=digest(payload),
        size=len(payload),
        schedule=job.schedule,
        scheduled_for=job.scheduled_for,
        meta=job.meta,
    )


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
    def cause_or_operation(self) -> EventCause | Operation:
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
        return EventClass.RENEWAL if self.type in RENEWALS else EventClass.TRANSITION

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
_CAUSES = frozenset({None, *EventCause})
_ON_EXHAUSTED = frozenset(OnExhausted)
_ON_LOST = frozenset(OnLost)


def has_unknown_value(job: Job) -> bool:
    """Whether a newer version wrote a value into the row that this one does not know. [Y5]"""
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
    return any(unknown_values(job))


def unknown_values(value: msgspec.Struct, prefix: str = "") -> Iterator[str]:
    """Each value that this version does not know, with its field: `status is 'napping'`. Structs
    within `value` are searched too."""
    for field, words in _fields_with_enums(type(value)):
        found = getattr(value, field)
        if found is None or (words and found in words):
            continue
        if isinstance(found, msgspec.Struct):
            yield from unknown_values(found, f"{prefix}{field}.")
        else:
            yield f"{prefix}{field} is {str(found)!a}"


@cache
def _fields_with_enums(kind: type[msgspec.Struct]) -> list[tuple[str, frozenset[OpenEnum]]]:
    """The fields with a word, each with the known words; and the fields with a struct."""
    found: list[tuple[str, frozenset[OpenEnum]]] = []
    for field, hint in get_type_hints(kind).items():
        type_ = (get_args(hint) or (hint,))[0]
        if isinstance(type_, type) and issubclass(type_, OpenEnum):
            found.append((field, frozenset(type_)))
        elif isinstance(type_, type) and issubclass(type_, msgspec.Struct):
            found.append((field, frozenset()))
    return found
