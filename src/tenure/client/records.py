"""The public record of a job: what `job.refresh()`, `app.jobs.ls(...)` and HTTP show of it.

The document is the protocol's own, so that it has one shape wherever it comes from; only the bodies
are decoded here. [ADR 0035]
"""

from datetime import datetime
from typing import Any

import msgspec

from tenure.core.ids import JobId, WorkerId
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.verdicts import Resolution
from tenure.core.vocabulary import ReasonCode, Stage
from tenure.protocol import records
from tenure.protocol.records import (
    ErrorRecord,
    Record,
    ResolutionRecord,
    dead_letter_record,
    job_record,
)

BODIES = ("payload", "result", "checkpoint")


class JobRecord(records.JobRecord, frozen=True, kw_only=True):
    """A job as it was when it was read. Times are aware datetimes in UTC.

    `payload`, `result` and `checkpoint` are decoded JSON; `msgspec.UNSET` where there is none,
    where this token may not see it, and in lists, which leave them out. `to_dict()` gives the
    document that HTTP and `--json` give.
    """

    payload: Any = msgspec.UNSET
    checkpoint: Any = msgspec.UNSET
    result: Any = msgspec.UNSET


def record_of(job: Job, *, now: Instant, bodies: bool) -> JobRecord:
    """A job as it is shown at `now`."""
    shown = job_record(job, now=now, bodies=bodies)
    fields = {name: getattr(shown, name) for name in JobRecord.__struct_fields__}
    for name in BODIES:
        if fields[name] is not msgspec.UNSET:
            fields[name] = msgspec.json.decode(fields[name])
    return JobRecord(**fields)


class DeadLetterRecord(Record, frozen=True, kw_only=True):
    """A dead letter, and what became of it: None before that is decided."""

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


def dead_letter_of(job: Job, resolution: Resolution | None) -> DeadLetterRecord:
    """A dead letter as it is listed, without its bodies."""
    now = job.updated_at
    shown = dead_letter_record(job, resolution, now=now, bodies=False)
    fields = {name: getattr(shown, name) for name in DeadLetterRecord.__struct_fields__}
    return DeadLetterRecord(**fields | {"job": record_of(job, now=now, bodies=False)})
