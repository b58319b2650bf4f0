"""The public record of a job: what `job.refresh()`, `app.jobs(...)` and HTTP show of it.

The document is the protocol's own, so that it has one shape wherever it comes from; only the bodies
are decoded here. The fields are declared again for type checkers and editors, which cannot see the
ones that the protocol derives; a test keeps the two equal. [ADR 0035]
"""

from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from tenure.core.ids import (
    Actor,
    FlowId,
    JobId,
    Kind,
    Namespace,
    QueueName,
    ScheduleName,
    WorkerId,
)
from tenure.core.instants import Instant
from tenure.core.job import Job, Progress
from tenure.core.vocabulary import EventCause, JobStatus, ReasonCode, Stage
from tenure.ports import DeadLetter
from tenure.protocol.records import (
    DeadLetterJobRecord,
    ErrorRecord,
    PolicyRecord,
    Record,
    ResolutionRecord,
    dead_letter_record,
    job_record,
)

if TYPE_CHECKING:
    from tenure.protocol.records import Record as _JobRecord
else:
    from tenure.protocol.records import JobRecord as _JobRecord

BODIES = ("payload", "result", "checkpoint")


class JobRecord(_JobRecord, frozen=True, kw_only=True):
    """A job as it was when it was read. Times are aware datetimes in UTC.

    `payload`, `result` and `checkpoint` are decoded JSON; `msgspec.UNSET` where there is none,
    where this token may not see it, and in lists, which leave them out. `to_dict()` gives the
    document that HTTP and `--json` give.
    """

    id: JobId
    namespace: Namespace
    queue: QueueName
    kind: Kind
    priority: int
    payload: Any = msgspec.UNSET
    policy: PolicyRecord
    dedupe_key: str | None
    unique_for_s: float | None
    concurrency_key: str | None
    concurrency_group: str | None
    rate_key: str | None
    correlation_id: str
    trace_id: str | None
    origin_id: JobId | None
    origin_cause: EventCause | None
    flow_id: FlowId | None
    flow_step: str | None
    on_dead_letter: DeadLetterJobRecord | None
    start_by: datetime | None
    schedule: ScheduleName | None
    scheduled_for: datetime | None
    enqueued_at: datetime
    status: JobStatus
    rev: int
    updated_at: datetime
    run_at: datetime | None
    attempt: int = 0
    failures: int = 0
    releases: int = 0
    outage_credits: int = 0
    owner: WorkerId | None = None
    principal: Actor | None = None
    claimed_at: datetime | None = None
    lease_expires_at: datetime | None = None
    due_at: datetime | None = None
    hb_seq: int = 0
    renewals: int = 0
    started_at: datetime | None = None
    was_started: bool = False
    checkpoint: Any = msgspec.UNSET
    progress: Progress | None = None
    cancel_requested_at: datetime | None = None
    cancel_deadline: datetime | None = None
    cancel_reason: str | None = None
    stall_cause: EventCause | None = None
    last_owner: WorkerId | None = None
    last_lease_expires_at: datetime | None = None
    last_error: ErrorRecord | None = None
    result: Any = msgspec.UNSET
    error: ErrorRecord | None = None
    reason_code: ReasonCode | None = None
    stage: Stage | None = None
    finished_at: datetime | None = None
    suspect: bool
    duration_s: float | None = None
    compensates: JobId | None = None
    compensated_by: JobId | None = None


def record_of(job: Job, *, now: Instant, bodies: bool) -> JobRecord:
    """A job as it is shown at `now`."""
    shown = job_record(job, now=now, bodies=bodies)
    fields = {name: getattr(shown, name) for name in JobRecord.__struct_fields__}
    for name in BODIES:
        if fields[name] is not msgspec.UNSET:
            fields[name] = msgspec.json.decode(fields[name])
    return JobRecord(**fields)


class DeadLetterRecord(Record, frozen=True, kw_only=True):
    """A dead letter, and what became of it: None if nobody has decided yet."""

    id: JobId
    reason_code: ReasonCode | None
    stage: Stage | None
    last_error: ErrorRecord | None
    attempts: int
    last_owner: WorkerId | None
    last_lease_expires_at: datetime | None
    correlation_id: str
    job: JobRecord
    resolution: ResolutionRecord | None


def dead_letter_of(letter: DeadLetter) -> DeadLetterRecord:
    """A dead letter as it is listed, without its bodies."""
    now = letter.job.updated_at
    shown = dead_letter_record(letter.job, letter.resolution, now=now, bodies=False)
    fields = {name: getattr(shown, name) for name in DeadLetterRecord.__struct_fields__}
    return DeadLetterRecord(**fields | {"job": record_of(letter.job, now=now, bodies=False)})
