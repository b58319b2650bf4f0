"""What callers send. Unknown fields are refused, so that a misspelt one is never ignored. [H2]

No message says who asks: the principal is the token's, and so is the namespace; where a message
may name a namespace, it only says which one the caller believes to be in. [H21]
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from tenure.core.attempt_logs import MAX_ATTEMPT_LOG_BYTES, MAX_OUTPUT_PARTS
from tenure.core.checks import MAX_INSTANT, MAX_NAME
from tenure.core.instants import MICROSECONDS_PER_SECOND
from tenure.core.vocabulary import (
    CancelMode,
    ErrorClass,
    JobStatus,
    ReasonCode,
    Stage,
)
from tenure.protocol.fields import (
    Count,
    Exact,
    JobIdField,
    KindField,
    Label,
    LeaseIdField,
    LongText,
    Moment,
    NamespaceField,
    Positive,
    Priority,
    QueueField,
    RequestIdField,
    Seconds,
    Sequence,
    ShortText,
    StepField,
    Text,
    WorkerField,
)
from tenure.protocol.policies import PolicyMessage

MAX_BATCH = 1000
"""Reports, heartbeats or jobs in one request."""

MAX_PAGE = 500
MAX_WITH_BODIES = 50
"""Jobs in one answer when their bodies are wanted: each can have three MiB of them."""

MAX_CLAIM = 100
"""Grants in one answer."""

LONGEST_WAIT_S = 60.0
LONGEST_UPTIME_S = MAX_INSTANT / MICROSECONDS_PER_SECOND


class Request(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The root of every request."""


# --- Workers -----------------------------------------------------------------------------------


class ClaimMessage(Request, frozen=True, kw_only=True):
    """Ask for up to `limit` jobs; wait up to `wait_s` for the first one. [Q1] [H10]"""

    worker: WorkerField
    queues: Annotated[tuple[QueueField, ...], Meta(min_length=1)]
    limit: Annotated[int, Meta(ge=1, le=MAX_CLAIM)] = 1
    claim_seq: Sequence
    request_id: RequestIdField
    kinds: tuple[KindField, ...] | None = None
    wait_s: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)] = 0.0
    namespace: NamespaceField | None = None


class StartMessage(Request, frozen=True, kw_only=True):
    """Begin to execute. [T3]"""

    job_id: JobIdField
    lease_id: LeaseIdField
    request_id: RequestIdField


class CompleteMessage(Request, frozen=True, kw_only=True):
    """Report success. [T5]"""

    job_id: JobIdField
    lease_id: LeaseIdField
    request_id: RequestIdField
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class ErrorMessage(Request, frozen=True, kw_only=True):
    """What went wrong, in the words of whoever saw it."""

    error_class: ErrorClass = msgspec.field(name="class", default=ErrorClass.UNCLASSIFIED)
    type: ShortText = ""
    message: LongText = ""
    traceback: LongText = ""


class FailMessage(Request, frozen=True, kw_only=True):
    """Report that the attempt failed; the coordinator decides what follows. [T7] [T8] [T9]"""

    job_id: JobIdField
    lease_id: LeaseIdField
    request_id: RequestIdField
    error: ErrorMessage
    stage: Stage | None = None
    reason_code: ReasonCode | None = None
    retry_after_s: Seconds = 0.0


class ReleaseMessage(Request, frozen=True, kw_only=True):
    """Hand the job back unharmed, to be taken up again after `delay_s`. [T11]"""

    job_id: JobIdField
    lease_id: LeaseIdField
    request_id: RequestIdField
    kind: Literal["deploy", "snooze"] = "deploy"
    delay_s: Seconds = 0.0


class ProgressMessage(Request, frozen=True, kw_only=True):
    """How far a handler says it is."""

    done: Exact
    total: Exact | None = None
    note: Text = ""


class HeartbeatMessage(Request, frozen=True, kw_only=True):
    """Renew one lease; a higher `hb_seq` than before, or nothing is extended. [T4]"""

    job_id: JobIdField
    lease_id: LeaseIdField
    hb_seq: Sequence
    progress: ProgressMessage | None = None
    checkpoint: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class HeartbeatsMessage(Request, frozen=True, kw_only=True):
    """Renew leases; verdicts come back in this order."""

    leases: Annotated[tuple[HeartbeatMessage, ...], Meta(min_length=1, max_length=MAX_BATCH)]


class LeaseMessage(Request, frozen=True, kw_only=True):
    """A lease that a worker holds."""

    job_id: JobIdField
    lease_id: LeaseIdField


class LookMessage(Request, frozen=True, kw_only=True):
    """Look at leases between two heartbeats; the news come back in this order. [C2]"""

    leases: Annotated[tuple[LeaseMessage, ...], Meta(min_length=1, max_length=MAX_BATCH)]


class StartReport(StartMessage, frozen=True, kw_only=True, tag_field="op", tag="start"):
    """A start within a batch."""


class CompleteReport(CompleteMessage, frozen=True, kw_only=True, tag_field="op", tag="complete"):
    """A success within a batch."""


class FailReport(FailMessage, frozen=True, kw_only=True, tag_field="op", tag="fail"):
    """A failure within a batch."""


class ReleaseReport(ReleaseMessage, frozen=True, kw_only=True, tag_field="op", tag="release"):
    """A release within a batch."""


class HeartbeatReport(HeartbeatMessage, frozen=True, kw_only=True, tag_field="op", tag="heartbeat"):
    """A heartbeat within a batch."""


Report: TypeAlias = StartReport | CompleteReport | FailReport | ReleaseReport | HeartbeatReport


class ReportsMessage(Request, frozen=True, kw_only=True):
    """Any of a worker's reports together; `op` says which each is. Verdicts in this order. [H42]"""

    reports: Annotated[tuple[Report, ...], Meta(min_length=1, max_length=MAX_BATCH)]


class OutputMessage(Request, frozen=True, kw_only=True):
    """What a handler wrote to its standard streams, under its lease. [B20]"""

    job_id: JobIdField
    lease_id: LeaseIdField
    text: Annotated[str, Meta(max_length=MAX_ATTEMPT_LOG_BYTES)]
    left_out_bytes: Exact = 0
    part: Annotated[int, Meta(ge=0, le=MAX_OUTPUT_PARTS)] = 0


class AliveMessage(Request, frozen=True, kw_only=True):
    """A worker's sign of life, every ten seconds or so; the last one says that it ends. [B12]"""

    host: Annotated[str, Meta(min_length=1, max_length=256)]
    pid: Count
    queues: Annotated[tuple[QueueField, ...], Meta(min_length=1)]
    concurrency: Count
    version: Annotated[str, Meta(min_length=1, max_length=128)]
    uptime_s: Annotated[float, Meta(ge=0, le=LONGEST_UPTIME_S)]
    kinds: tuple[KindField, ...] = ()
    namespace: NamespaceField | None = None
    ending: bool = False
    instance: Annotated[str, Meta(max_length=MAX_NAME)] = ""


# --- Clients and operators ---------------------------------------------------------------------


class EnqueueMessage(Request, frozen=True, kw_only=True):
    """Make a job. With a `job_id` of the caller's making the request can be repeated; without one
    it cannot, and each copy that arrives is a job. [D3]"""

    queue: QueueField
    kind: KindField
    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    job_id: JobIdField | None = None
    priority: Priority = 0
    delay_s: Seconds = 0.0
    run_at: Moment | None = None
    dedupe_key: Label | None = None
    correlation_id: Label | None = None
    trace_id: Label | None = None
    policy: PolicyMessage = PolicyMessage()
    namespace: NamespaceField | None = None


class EnqueueManyMessage(Request, frozen=True, kw_only=True):
    """Make jobs; replies come back in this order."""

    jobs: Annotated[tuple[EnqueueMessage, ...], Meta(min_length=1, max_length=MAX_BATCH)]


class FollowUpMessage(Request, frozen=True, kw_only=True):
    """Make a job out of the handler of another one, under its lease. The id follows from the job in
    the path, the new job's kind and `step`, so `job` names none, and every copy of the request is
    one job. [D8] [D10]"""

    lease_id: LeaseIdField
    job: EnqueueMessage
    step: StepField = ""


class LookupMessage(Request, frozen=True, kw_only=True):
    """Ask for several jobs at once; unknown ones are left out of the answer."""

    job_ids: Annotated[tuple[JobIdField, ...], Meta(min_length=1, max_length=MAX_PAGE)]


class Guarded(Request, frozen=True, kw_only=True):
    """A request about a job that may insist on how it found the job. [K5]"""

    request_id: RequestIdField
    expected_rev: Positive | None = None
    expected_status: JobStatus | None = None


class CancelMessage(Guarded, frozen=True, kw_only=True):
    """Stop a job, softly with a grace or at once. [T17] [T18] [T19] [T20]"""

    mode: CancelMode = CancelMode.SOFT
    reason: Text = ""


class RequeueMessage(Guarded, frozen=True, kw_only=True):
    """Let a held job go back to its queue. [T14]"""


class DeadLetterMessage(Guarded, frozen=True, kw_only=True):
    """Take a live job out of circulation. [T21]"""

    reason_code: ReasonCode
    stage: Stage | None = None
    message: Text = ""


class RedriveMessage(Guarded, frozen=True, kw_only=True):
    """Make a new job out of a finished one, with another payload if one is given. A dead letter
    that was redriven or discarded before is refused unless `again` asks for another job. [T27]"""

    payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    again: bool = False


class DiscardMessage(Guarded, frozen=True, kw_only=True):
    """Close the file on a dead letter. [B3]"""

    note: Text = ""


class LimitMessage(Request, frozen=True, kw_only=True):
    """How many leases a queue may have at a time; 0 means no limit. [Z3]"""

    limit: Annotated[int, Meta(ge=0, le=1_000_000)]


# --- Queries -----------------------------------------------------------------------------------


class BodiesQuery(Request, frozen=True, kw_only=True):
    """Whether payload, result and checkpoint are wanted: they may hold secrets. [H46]"""

    bodies: bool = False


class NamespaceQuery(Request, frozen=True, kw_only=True):
    """The namespace the caller believes to be in. [H21]"""

    namespace: NamespaceField | None = None


class EventsQuery(Request, frozen=True, kw_only=True):
    """Which part of a log is shown; `after_seq` is the last seq of the previous page. [H43]"""

    after_seq: Exact = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = MAX_PAGE


class JobsQuery(Request, frozen=True, kw_only=True):
    """Which jobs a listing shows, newest first; `before` is the last id of the previous page.
    `id_prefix`: only jobs whose id begins with it."""

    status: tuple[JobStatus, ...] = ()
    queue: QueueField | None = None
    kind: KindField | None = None
    correlation_id: Label | None = None
    id_prefix: Annotated[str, Meta(min_length=1, max_length=36)] | None = None
    before: JobIdField | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 50
    bodies: bool = False
    namespace: NamespaceField | None = None


class DeadLettersQuery(Request, frozen=True, kw_only=True):
    """Which dead letters a listing shows, newest first."""

    queue: QueueField | None = None
    kind: KindField | None = None
    reason_code: ReasonCode | None = None
    stage: Stage | None = None
    resolved: bool = False
    before: JobIdField | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 50
    bodies: bool = False
    namespace: NamespaceField | None = None
