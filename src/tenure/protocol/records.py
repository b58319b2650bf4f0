"""Records of jobs, events, dead letters, artifacts, workers and overviews, and how a client reads
them back.

One shape for each: a server's answers and `--json` of the commands show the same.
A lease id is the right to report: no record carries a usable one, only grants do. [H7] Bodies
(payload, result, checkpoint) are there when they were asked for and the reader may see them.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, overload

import msgspec
from msgspec import UnsetType

from tenure.core.artifacts import Artifact
from tenure.core.claims import QueueState
from tenure.core.events import Event, Facts
from tenure.core.ids import (
    LEASE_ID_PATTERN,
    Fingerprint,
    JobId,
    RequestId,
    given_correlation_id,
    short_lease,
)
from tenure.core.instants import Instant
from tenure.core.job import HIDDEN, Job, JobError, Progress, not_before
from tenure.core.kind_settings import KindSettings
from tenure.core.leases import is_suspect
from tenure.core.policy import Compensation, DeadLetterJob, Policy
from tenure.core.rates import Rate, parse_rate
from tenure.core.schedules import Schedule
from tenure.core.verdicts import Observation, Resolution
from tenure.core.views.dead_letter_groups import DeadLetterGroup, DeadLetterGroups
from tenure.core.views.overview import (
    Durations,
    OutcomeBucket,
    Overview,
)
from tenure.core.vocabulary import (
    Cause,
    ErrorClass,
    EventCause,
    EventClass,
    JobStatus,
    Operation,
    WorkerState,
)
from tenure.core.workers import ListedWorker
from tenure.protocol.fields import optional_instant
from tenure.protocol.translation import derived, sent_unchanged, to_core, to_wire


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The root of everything that is answered; unknown fields are ignored on reading. [H2]

    The methods make one a document of JSON, for users who pass it on: FastAPI can return it as it
    is, with and without an annotation.
    """

    def to_dict(self) -> dict[str, Any]:
        """The document that HTTP and `--json` give, ready for `json.dumps`."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """So that `dict(record)` works, as it does with pydantic's models."""
        return iter(self.to_dict().items())

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
        from pydantic_core import core_schema  # only pydantic calls this, so it is there

        to_dict = core_schema.plain_serializer_function_ser_schema(cls.to_dict)
        return core_schema.is_instance_schema(cls, serialization=to_dict)

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: Any, _handler: Any) -> dict[str, Any]:
        return {"type": "object", "title": cls.__name__}


if TYPE_CHECKING:
    from tenure.protocol.translation import AnyFields

    class DerivedRecord(AnyFields): ...
else:

    class DerivedRecord(Record, frozen=True, kw_only=True):
        """A record with the fields of a core struct, in the units of the wire."""


sent_unchanged(Progress)


@derived(Compensation)
class CompensationRecord(DerivedRecord, frozen=True, kw_only=True):
    """The job that undoes this one. [M1]"""

    policy: "PolicyRecord"


@derived(DeadLetterJob)
class DeadLetterJobRecord(DerivedRecord, frozen=True, kw_only=True):
    """The job that is enqueued if this one becomes a dead letter. [HK9]"""

    policy: "PolicyRecord"


@derived(Policy)
class PolicyRecord(DerivedRecord, frozen=True, kw_only=True):
    """A job's policy in an answer."""


@derived(JobError)
class ErrorRecord(DerivedRecord, frozen=True, kw_only=True):
    """What went wrong in an attempt."""

    error_class: ErrorClass = msgspec.field(name="class", default=ErrorClass.UNCLASSIFIED)


# --- Jobs --------------------------------------------------------------------------------------


CORRELATED = {"correlated_by": "correlation_id"}


@derived(Job, without=("lease_id", "claimed_run_at", "not_before", "delete_at"), names=CORRELATED)
class JobRecord(DerivedRecord, frozen=True, kw_only=True):
    """A job. `suspect`: its worker has been silent for two heartbeats. [L18]

    A job that finished while an attempt was running keeps that attempt's `started_at`, and
    `duration_s` is how long the attempt ran. [S10] A job that was given no `correlation_id` has
    its own id as one. [OB26] A job and its compensation name each other: `compensated_by` is the
    job that undoes this one, `compensates` the job that this one undoes. [M5]
    """

    correlation_id: str
    suspect: bool
    duration_s: float | None = None
    compensates: JobId | None = None
    compensated_by: JobId | None = None


BODIES = ("payload", "result", "checkpoint")
_HIDDEN_BODIES = dict.fromkeys(BODIES, msgspec.UNSET)


def job_record(job: Job, *, now: Instant, bodies: bool) -> JobRecord:
    """The record of a job at `now`; without bodies if they are hidden in the job already."""
    hidden = {} if bodies and job.payload != HIDDEN else _HIDDEN_BODIES
    return to_wire(JobRecord, job, suspect=is_suspect(job, now), **hidden)


def job_of(record: JobRecord) -> Job:
    """The job behind a record, without its lease's id and the place it was claimed from; without a
    payload in the record, its payload is hidden."""
    run_at, updated_at = optional_instant(record.run_at), optional_instant(record.updated_at)
    assert updated_at is not None
    return to_core(
        Job,
        record,
        payload=HIDDEN if record.payload is msgspec.UNSET else bytes(record.payload),
        not_before=not_before(run_at, queued_at=updated_at),
        correlation_id=given_correlation_id(record.correlation_id, record.id),
    )


# --- Events ------------------------------------------------------------------------------------


@derived(Facts)
class FactsRecord(DerivedRecord, frozen=True, kw_only=True, omit_defaults=True):
    """What happened in an event, beyond its columns. Fields that do not apply are left out."""


@derived(Event)
class EventRecord(DerivedRecord, frozen=True, kw_only=True):
    """One event of a job's log; its `id` is `job_id:seq`. [E1] `name` is its type in the older
    vocabulary. [E6] `cause` is what caused it, or else the operation that made it. [E7]"""

    id: str
    name: str
    cause: str
    event_class: EventClass = msgspec.field(name="class")
    correlation_id: str


_OPERATIONS = frozenset(Operation)


def event_of(record: EventRecord) -> Event:
    """The event behind a record; its lease id is only the public part."""
    return to_core(
        Event,
        record,
        cause=_cause_of(record),
        correlation_id=given_correlation_id(record.correlation_id, record.job_id),
    )


def _cause_of(record: EventRecord) -> EventCause | None:
    """What caused the event, if the record does not name its operation: that of a type which this
    version does not know has the type's name. [E7] [Y4]"""
    is_operation = record.cause in _OPERATIONS or record.cause == record.type
    return None if is_operation else EventCause(record.cause)


def event_record(event: Event, *, digests: bool = True) -> EventRecord:
    """The record of an event; without digests for a reader who may not see bodies, because a
    payload that is one of a few can be guessed from its digest. [H46]"""
    if not digests:
        facts = msgspec.structs.replace(event.payload, sha256=None, checkpoint_sha256=None)
        event = msgspec.structs.replace(event, fingerprint=None, payload=facts)
    return to_wire(
        EventRecord,
        event,
        id=f"{event.job_id}:{event.seq}",
        cause=event.cause_or_operation,
        correlation_id=event.correlated_by,
        lease_id=None if event.lease_id is None else short_lease(event.lease_id),
        request_id=_public_request_id(event.request_id),
    )


def _public_request_id(request_id: RequestId) -> RequestId:
    """Request ids are made of lease ids: a heartbeat's by rule [Q6], a report's by our own worker,
    and what follows from a report bears its request id, but no lease."""
    return RequestId(LEASE_ID_PATTERN.sub(lambda found: short_lease(found[0]), request_id))


# --- Outside the log ---------------------------------------------------------------------------


@derived(Observation)
class ObservationRecord(DerivedRecord, frozen=True, kw_only=True):
    """What is kept beside a job's log: a result that was refused, a report under another worker's
    lease, a compensation that succeeded. [U3]

    Of the body at most 4 KiB are kept, and included only where bodies are asked for; it is whatever
    the worker sent. `compensated_by` is the compensation.
    """

    sha256: str | None
    body: str | None
    compensated_by: JobId | None


def observation_record(
    observation: Observation, *, bodies: bool, digests: bool = True
) -> ObservationRecord:
    """The record of an observation; without its digest for a reader who may not see bodies.
    [H46]"""
    request_id = None if observation.compensated_by is not None else observation.request_id
    body = observation.body
    return to_wire(
        ObservationRecord,
        observation,
        lease_id=None if observation.lease_id is None else short_lease(observation.lease_id),
        request_id=None if request_id is None else _public_request_id(request_id),
        sha256=observation.sha256 if digests else None,
        body=body.decode(errors="replace") if bodies and body is not None else None,
    )


def observation_of(record: ObservationRecord) -> Observation:
    """The observation behind a record; its lease id is only the public part."""
    return to_core(
        Observation,
        record,
        request_id=record.compensated_by or record.request_id,
        body=None if record.body is None else record.body.encode(),
    )


@derived(Resolution, without=("fingerprint",))
class ResolutionRecord(DerivedRecord, frozen=True, kw_only=True):
    """What became of a dead letter. [B1]"""


@overload
def resolution_record(resolution: Resolution) -> ResolutionRecord: ...
@overload
def resolution_record(resolution: Resolution | None) -> ResolutionRecord | None: ...
def resolution_record(resolution: Resolution | None) -> ResolutionRecord | None:
    """The record of a resolution, without its fingerprint."""
    return None if resolution is None else to_wire(ResolutionRecord, resolution)


class JobOutcome(Record, frozen=True, kw_only=True):
    """What became of one of many jobs. With a `problem` it is unchanged: for this `cause`, because
    `held_by` has its key, or because its row cannot be read.

    `status` is that of the job now, if the request changed it; `pending` means that it was asked to
    stop and still runs. `resolution` says what had become of a refused dead letter before,
    `held_by` is the live job that holds the dedupe key.
    """

    job_id: JobId
    status: JobStatus | None = None
    pending: bool = False
    new_job_id: JobId | None = None
    cause: Cause | None = None
    resolution: ResolutionRecord | None = None
    held_by: JobId | None = None
    problem: str | None = None


@overload
def resolution_of(record: ResolutionRecord) -> Resolution: ...
@overload
def resolution_of(record: ResolutionRecord | None) -> Resolution | None: ...
def resolution_of(record: ResolutionRecord | None) -> Resolution | None:
    """The resolution behind a record."""
    if record is None:
        return None
    return to_core(Resolution, record, fingerprint=Fingerprint(""))


@derived(
    Job,
    only="id reason_code stage last_error attempt last_owner last_lease_expires_at correlated_by",
    names={"attempt": "attempts", **CORRELATED},
)
class DeadLetterRecord(DerivedRecord, frozen=True):
    """A dead letter, and what became of it: null while that is undecided. [F7]"""

    job: JobRecord
    resolution: ResolutionRecord | None


def dead_letter_record(
    job: Job, resolution: Resolution | None, *, now: Instant, bodies: bool
) -> DeadLetterRecord:
    """The record of a dead letter at `now`."""
    return to_wire(
        DeadLetterRecord,
        job,
        job=job_record(job, now=now, bodies=bodies),
        resolution=resolution_record(resolution),
    )


@derived(Artifact)
class ArtifactRecord(DerivedRecord, frozen=True, kw_only=True):
    """An artifact without its body."""

    sha256: str | None


def artifact_record(artifact: Artifact, *, digests: bool = True) -> ArtifactRecord:
    """The record of an artifact; without its digest for a reader who may not see bodies. [H46]"""
    return to_wire(ArtifactRecord, artifact, sha256=artifact.sha256 if digests else None)


@derived(ListedWorker)
class WorkerRecord(DerivedRecord, frozen=True, kw_only=True):
    """A worker process as it last described itself. [B13] It is `in_part` for a token that is
    not for all of its queues and kinds, and may not drain it. [H41]"""

    draining: bool
    state: WorkerState
    in_part: bool = False


def worker_record(worker: ListedWorker, *, now: Instant, in_part: bool = False) -> WorkerRecord:
    """The record of a worker at `now`."""
    if not worker.has_drain_request:  # the row keeps a request to an earlier process [B33]
        worker = msgspec.structs.replace(worker, drain_requested_at=None)
    return to_wire(WorkerRecord, worker, state=worker.state(now), in_part=in_part)


# --- Queues and kinds --------------------------------------------------------------------------


@derived(QueueState)
class QueueRecord(DerivedRecord, frozen=True):
    """A queue; `live` is the number of its leased jobs, `limit` the most that it may
    have. Of its `rate`, such as `100/m`, up to `burst` jobs may start at once. [RL4]"""

    rate: str | None = None
    burst: int | None = None


@derived(KindSettings, without=("limits_set",))
class KindRecord(DerivedRecord, frozen=True):
    """What is set for a kind: its rate, such as `100/m`, of which up to `burst` jobs may start at
    once, for each rate key alone; how many of its jobs may run at a time for each concurrency key;
    since when; and the policy of jobs that are enqueued without one, null if no worker declared it.
    [RL4] [F9]"""

    rate: str | None = None
    burst: int | None = None


def queue_record(state: QueueState) -> QueueRecord:
    """The record of a queue."""
    return to_wire(QueueRecord, state, **rate_fields(state.rate))


def queue_of(record: QueueRecord) -> QueueState:
    """A queue, as a client reads it back."""
    return to_core(QueueState, record, rate=_rate_of(record))


def kind_record(settings: KindSettings) -> KindRecord:
    """The record of what is set for a kind."""
    return to_wire(KindRecord, settings, **rate_fields(settings.rate))


def kind_of(record: KindRecord) -> KindSettings:
    """What is set for a kind, as a client reads it back."""
    return to_core(KindSettings, record, rate=_rate_of(record))


def rate_fields(rate: Rate | UnsetType | None) -> dict[str, Any]:
    """A rate, none or an unchanged one as the fields `rate` and `burst` of a message."""
    return {"rate": str(rate), "burst": rate.burst} if isinstance(rate, Rate) else {"rate": rate}


def _rate_of(record: QueueRecord | KindRecord) -> Rate | None:
    return None if record.rate is None else parse_rate("rate", record.rate, record.burst)


# --- Schedules ---------------------------------------------------------------------------------


@derived(Schedule, via=("spec",))
class ScheduleRecord(DerivedRecord, frozen=True, kw_only=True):
    """A schedule: when it fires, which job that makes, and what it has done so far.

    `next_at` and `last_at` are nominal times. `skipped` counts occurrences at which the run before
    had not ended, `missed` the ones that no process fired in time. `declared_by` is the application
    whose code declares it, null if it was made by hand. The payload is left out of lists. [SC13]
    """


def schedule_record(schedule: Schedule, *, bodies: bool) -> ScheduleRecord:
    """The record of a schedule."""
    return to_wire(ScheduleRecord, schedule, **({} if bodies else {"payload": msgspec.UNSET}))


# --- Overviews -----------------------------------------------------------------------------------


@derived(OutcomeBucket)
class OutcomeBucketRecord(DerivedRecord, frozen=True, kw_only=True):
    """The events of the bucket that starts at `at`."""


@derived(Durations)
class DurationsRecord(DerivedRecord, frozen=True, kw_only=True):
    """The median and the 95th percentile of durations, and how many jobs were read; null
    without any."""


@derived(DeadLetterGroup)
class DeadLetterGroupRecord(DerivedRecord, frozen=True, kw_only=True):
    """Dead letters of one kind with one error: how many, since when, until when, and how many in
    each bucket. `error` has # for numbers and ids; `headline` is that of the newest letter.
    `job_ids` are the newest ones: one, or up to 500 if the group was asked for by `key`. `in_flows`
    of the letters belong to flows and can only be redriven with them; `redrivable_ids` are the
    newest of the others. `flow_ids`, up to 20, are there if the group was asked for by `key`."""


@derived(DeadLetterGroups)
class DeadLetterGroupsReply(DerivedRecord, frozen=True, kw_only=True):
    """Groups of unresolved dead letters, the largest first, and how many letters they have. The
    buckets start at `since` and are `bucket_s` long. If it is not `complete`, there are older dead
    letters that were not read. [OB31]"""


@derived(Overview)
class OverviewReply(DerivedRecord, frozen=True, kw_only=True):
    """What a namespace is doing, at `now` and since `since`, in buckets of `bucket_s`. The last
    bucket is not over. `wait` is from ready to claimed, `run` from the start to the end of
    the attempt that succeeded. A number of jobs as large as its limit means "that many or more".
    [OB28]"""
