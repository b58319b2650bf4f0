"""The job row: what is stored, field by field, and what it must look like in each status.

One flat struct whose field names are the column names, so that one row mapper serves every store.
It decides nothing; `row_violations` only lists breaks of the table of docs/spec/states.md.
"""

from collections.abc import Mapping

import msgspec

from tenure.core.ids import (
    Actor,
    FlowId,
    JobId,
    Kind,
    LeaseId,
    Namespace,
    QueueName,
    ScheduleName,
    WorkerId,
    correlated_by,
    derived_job_id,
)
from tenure.core.instants import NEVER, Duration, Instant
from tenure.core.policy import DeadLetterJob, Policy
from tenure.core.vocabulary import (
    ErrorClass,
    EventCause,
    JobStatus,
    OnLost,
    ReasonCode,
    Stage,
)

NO_BODY = b"null"
HIDDEN = b""
"""Replaces a payload that this reader may not see: no JSON is empty. [H46]"""


class JobError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What went wrong in an attempt, as its worker reported it. Strings only, never classes."""

    error_class: ErrorClass = ErrorClass.UNCLASSIFIED
    type: str = ""
    message: str = ""
    traceback: str = ""
    stage: Stage | None = None
    reason_code: ReasonCode | None = None

    @property
    def headline(self) -> str:
        """The type and the first line of the message."""
        first = self.message.partition("\n")[0]
        return f"{self.type}: {first}" if first else self.type


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How far a handler reports to be."""

    done: int
    total: int | None = None
    note: str = ""


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The authority of one attempt, read out of a job row."""

    id: LeaseId
    owner: WorkerId
    principal: Actor
    claimed_at: Instant
    expires_at: Instant
    due_at: Instant

    def is_live(self, now: Instant) -> bool:
        """Whether it still carries authority: at the instant of expiry it is already gone. [L9]"""
        return now < self.due_at


class Job(msgspec.Struct, frozen=True, gc=False):
    """One row of the `job` table.

    Not keyword-only, for the row mapper: a row's columns are its arguments.
    """

    id: JobId
    namespace: Namespace
    queue: QueueName
    kind: Kind
    priority: int
    payload: bytes
    policy: Policy
    dedupe_key: str | None
    unique_for_us: Duration | None  # how long its key stays taken after its end [D13]
    concurrency_key: str | None
    rate_key: str | None  # which jobs of its kind share the kind's rate with it [RL11]
    correlation_id: str | None
    trace_id: str | None
    meta: dict[str, str] | None  # its user's labels: rendered, never interpreted [J13]
    origin_id: JobId | None
    origin_cause: EventCause | None
    flow_id: FlowId | None
    flow_step: str | None  # its name within its flow
    on_dead_letter: DeadLetterJob | None
    start_by: Instant | None  # it is not granted from then on; None once an attempt has started
    schedule: ScheduleName | None
    scheduled_for: Instant | None
    enqueued_at: Instant

    status: JobStatus
    rev: int
    updated_at: Instant
    run_at: Instant | None
    not_before: Instant | None  # what the clock must show before a claim; `AT_ONCE`: anything
    attempt: int = 0
    failures: int = 0
    releases: int = 0
    outage_credits: int = 0

    lease_id: LeaseId | None = None
    owner: WorkerId | None = None
    principal: Actor | None = None
    claimed_at: Instant | None = None
    lease_expires_at: Instant | None = None
    due_at: Instant | None = None
    claimed_run_at: Instant | None = None  # the `run_at` it was claimed with: its place [Z5]
    hb_seq: int = 0
    renewals: int = 0
    started_at: Instant | None = None
    was_started: bool = False

    checkpoint: bytes | None = None
    progress: Progress | None = None

    cancel_requested_at: Instant | None = None
    cancel_deadline: Instant | None = None
    cancel_reason: str | None = None

    stall_cause: EventCause | None = None
    last_owner: WorkerId | None = None
    last_lease_expires_at: Instant | None = None
    last_error: JobError | None = None

    result: bytes | None = None
    error: JobError | None = None
    reason_code: ReasonCode | None = None
    stage: Stage | None = None
    finished_at: Instant | None = None
    delete_at: Instant | None = None  # by its own policy: see `Policy.delete_at`

    @property
    def without_bodies(self) -> "Job":
        """The row with a null payload, and without checkpoint and result."""
        return msgspec.structs.replace(self, payload=NO_BODY, checkpoint=None, result=None)

    @property
    def lease(self) -> Lease | None:
        """The live attempt's lease, if the job has one."""
        if self.lease_id is None:
            return None
        assert self.owner is not None
        assert self.principal is not None
        assert self.claimed_at is not None
        assert self.lease_expires_at is not None
        assert self.due_at is not None
        return Lease(
            id=self.lease_id,
            owner=self.owner,
            principal=self.principal,
            claimed_at=self.claimed_at,
            expires_at=self.lease_expires_at,
            due_at=self.due_at,
        )

    @property
    def duration_us(self) -> Duration | None:
        """How long the last attempt ran, if the job finished while it was running. [S10]"""
        if self.started_at is None or self.finished_at is None:
            return None
        return Duration(self.finished_at - self.started_at)

    @property
    def key_free_at(self) -> Instant | None:
        """From when on its key is free, if the job has ended and its key stays taken. [D13]"""
        if self.unique_for_us is None or self.finished_at is None:
            return None
        return Instant(self.finished_at + self.unique_for_us)

    @property
    def is_exhausted(self) -> bool:
        """Whether the retry budget is spent. [A13]"""
        return self.failures >= self.policy.max_attempts

    @property
    def correlated_by(self) -> str:
        """Its correlation id as others see it: never None. [OB26]"""
        return correlated_by(self.correlation_id, self.id)

    @property
    def compensates(self) -> JobId | None:
        """The job this one undoes, if it is a compensation. [M1]"""
        return self.origin_id if self.origin_cause is EventCause.COMPENSATION else None

    @property
    def compensated_by(self) -> JobId | None:
        """The job that undoes this one, if one was enqueued. [M1]"""
        return compensation_id(self.id) if needs_compensation(self) else None

    @property
    def reported_by(self) -> JobId | None:
        """The job that was enqueued because this one is a dead letter, if one was. [HK9]"""
        return dead_letter_job_id(self.id) if needs_dead_letter_job(self) else None


MADE_BY_AN_END = frozenset({EventCause.COMPENSATION, EventCause.DEAD_LETTER})
"""The causes of jobs that the end of another job enqueued."""

COMPENSATED_ENDS = frozenset({JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.DEAD_LETTERED})


def needs_compensation(job: Job) -> bool:
    """Whether a finished job is one that a compensation was enqueued for. [M1]"""
    return (
        job.status in COMPENSATED_ENDS
        and job.was_started
        and job.policy.compensation is not None
        and job.compensates is None
    )


def compensation_id(job_id: JobId) -> JobId:
    """The id of the job that compensates `job_id`."""
    return derived_job_id(job_id, purpose="compensation")


def needs_dead_letter_job(job: Job) -> bool:
    """Whether this finished job is a dead letter for which an `on_dead_letter` job is enqueued.
    [HK9]

    A job that was enqueued for one has no such job itself, so that there is no loop. [HK10]
    """
    return job.status is JobStatus.DEAD_LETTERED and job.on_dead_letter is not None


def dead_letter_job_id(job_id: JobId) -> JobId:
    """The id of the job that is enqueued because `job_id` is a dead letter."""
    return derived_job_id(job_id, purpose="dead_letter")


AT_ONCE = Instant(0)


def not_before(run_at: Instant | None, *, queued_at: Instant) -> Instant | None:
    """Until when the clock delays a job that was queued at `queued_at`. One that was ready
    then stays ready, also if the clock is set back afterwards. [Z6]"""
    return run_at if run_at is None or run_at > queued_at else AT_ONCE


def time_limit(
    *, policy: Policy, claimed_at: Instant, started_at: Instant | None, renewals: int
) -> tuple[Instant, Instant]:
    """The start and the end of an attempt's time-out, or of its wait for a start. [L9]

    A worker that sends heartbeats works, whether it sends `start` or not: from its first heartbeat
    on the attempt has its timeout, and `start_within` is over.
    """
    if started_at is None and not renewals:
        return claimed_at, Instant(claimed_at + policy.start_within_us)
    began_at = claimed_at if started_at is None else started_at
    timeout_us = policy.timeout_us
    return began_at, NEVER if timeout_us is None else Instant(began_at + timeout_us)


def due_at(
    *,
    policy: Policy,
    claimed_at: Instant,
    started_at: Instant | None,
    lease_expires_at: Instant,
    cancel_deadline: Instant | None,
    renewals: int,
) -> Instant:
    """The instant a lease's authority ends: the earliest of all its bounds. [L9]"""
    _, over_at = time_limit(
        policy=policy, claimed_at=claimed_at, started_at=started_at, renewals=renewals
    )
    end = min(lease_expires_at, over_at)
    return end if cancel_deadline is None else min(end, cancel_deadline)


def remaining(until: Instant, now: Instant) -> Duration:
    """How long from `now` to `until`, never negative: durations travel, instants do not. [L8]"""
    return Duration(max(0, until - now))


LEASE_FIELDS = (
    "lease_id",
    "owner",
    "principal",
    "claimed_at",
    "lease_expires_at",
    "due_at",
    "claimed_run_at",
)


class RowRule(msgspec.Struct, frozen=True, kw_only=True):
    """What a row of one status has and lacks. A field in neither list may be there or not."""

    id: str
    present: tuple[str, ...]
    absent: tuple[str, ...]


_CONDITIONAL = (
    *LEASE_FIELDS,
    "started_at",
    "run_at",
    "stall_cause",
    "result",
    "error",
    "reason_code",
    "stage",
    "finished_at",
)
"""The fields that a row has in some statuses only."""


def _row(id_: str, *present: str, optional: tuple[str, ...] = ()) -> RowRule:
    absent = tuple(name for name in _CONDITIONAL if name not in (*present, *optional))
    return RowRule(id=id_, present=present, absent=absent)


_STARTED_AT = ("started_at",)  # a job that ended while an attempt was running keeps it [S10]

ROW_TABLE: dict[JobStatus, RowRule] = {
    JobStatus.WAITING: _row("S11"),
    JobStatus.QUEUED: _row("S1", "run_at"),
    JobStatus.CLAIMED: _row("S2", *LEASE_FIELDS),
    JobStatus.RUNNING: _row("S3", *LEASE_FIELDS, "started_at"),
    JobStatus.STALLED: _row("S4", "stall_cause", optional=("run_at",)),
    JobStatus.SUCCEEDED: _row("S5", "result", "finished_at", optional=_STARTED_AT),
    JobStatus.FAILED: _row("S6", "error", "finished_at", optional=_STARTED_AT),
    JobStatus.CANCELLED: _row("S7", "cancel_reason", "finished_at", optional=_STARTED_AT),
    JobStatus.DEAD_LETTERED: _row(
        "S8", "error", "reason_code", "finished_at", optional=("stage", *_STARTED_AT)
    ),
}
"""The table of docs/spec/states.md. [I8]"""


def field_violations(status: JobStatus, fields: Mapping[str, object]) -> list[str]:
    """Where these fields break the table; None means absent. A field that is not among them is
    not checked, so that rows of other queues can be checked too."""
    rule = ROW_TABLE[status]
    wrong = {name: "absent" for name in rule.present if name in fields and fields[name] is None}
    wrong |= {name: "present" for name in rule.absent if fields.get(name) is not None}
    return [f"{name} is {what} while {status}" for name, what in wrong.items()]


def counter_violations(*, attempt: int, rev: int, failures: int) -> list[str]:
    """What no history can lead to: each failure is one of an attempt. [A1] [A2] [A13]"""
    if attempt >= 0 and rev >= 1 and failures <= attempt:
        return []
    return [f"counters: attempt {attempt}, rev {rev}, failures {failures}"]


_NEVER_ASKED_TO_STOP = frozenset({JobStatus.WAITING, JobStatus.QUEUED})
"""A cancel ends these at once."""


def row_violations(job: Job) -> list[str]:
    """Every way in which a row breaks the per-status table. Empty if it breaks none. [I8]"""
    found = field_violations(job.status, msgspec.structs.asdict(job))
    if not found:
        found = _due_at_violations(job)
    waits_for_reclaim = job.status is JobStatus.STALLED and job.policy.on_lost is OnLost.RECLAIM
    if job.status is JobStatus.STALLED and waits_for_reclaim != (job.run_at is not None):
        found.append(f"run_at is {job.run_at} while {job.status}")
    if job.not_before != not_before(job.run_at, queued_at=job.updated_at):
        found.append(f"not_before is {job.not_before}, run_at {job.run_at}")
    finished_at = job.finished_at
    delete_at = None if finished_at is None else job.policy.delete_at(finished_at)
    if job.delete_at != delete_at:
        found.append(f"delete_at is {job.delete_at}, not {delete_at}")
    if job.cancel_requested_at is not None and job.status in _NEVER_ASKED_TO_STOP:
        found.append(f"{job.status} although its cancellation was requested")
    if job.status is JobStatus.WAITING and (job.attempt or job.flow_id is None):
        found.append(f"waiting with attempt {job.attempt} and flow {job.flow_id}")
    if (job.cancel_requested_at is None) != (job.cancel_deadline is None):
        found.append("cancel_requested_at and cancel_deadline disagree")
    found += counter_violations(attempt=job.attempt, rev=job.rev, failures=job.failures)
    return found


def _due_at_violations(job: Job) -> list[str]:
    if job.lease is None:
        return []
    expected = due_at(
        policy=job.policy,
        claimed_at=job.lease.claimed_at,
        started_at=job.started_at,
        lease_expires_at=job.lease.expires_at,
        cancel_deadline=job.cancel_deadline,
        renewals=job.renewals,
    )
    if expected == job.due_at:
        return []
    return [f"due_at is {job.due_at}, its bounds give {expected}"]
