"""Answers: verdicts, replies, grants and problems, and how a client reads them back.

A verdict is in the body; the status code is only about whether there is one. [H4] [H5]
"""

from collections import Counter
from datetime import datetime
from enum import StrEnum

import msgspec

from tenure.core.artifacts import AttemptLog, Staging
from tenure.core.claims import ClaimAnswer, RateLimited
from tenure.core.flow_rows import (
    FlowRedrive,
    FlowRow,
    FlowStep,
    FlowSummary,
    FlowView,
    ParentPage,
    ParentResult,
    without_replaced,
)
from tenure.core.ids import (
    FlowId,
    JobId,
    given_correlation_id,
)
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job
from tenure.core.policy import Policy
from tenure.core.verdicts import CancelDirective, Grant, Reply, Verdict
from tenure.core.views.event_counts import EventCount
from tenure.core.views.events import TailDelay
from tenure.core.vocabulary import Cause, JobStatus, LeaseNews, VerdictKind
from tenure.protocol.fields import in_seconds, instant
from tenure.protocol.records import (
    CORRELATED,
    ArtifactRecord,
    DeadLetterRecord,
    DerivedRecord,
    EventRecord,
    JobRecord,
    KindRecord,
    ObservationRecord,
    QueueRecord,
    Record,
    ResolutionRecord,
    ScheduleRecord,
    WorkerRecord,
    job_of,
    job_record,
    resolution_of,
)
from tenure.protocol.translation import derived, to_core, to_wire


class ProblemCode(StrEnum):
    """Why a request was refused before the coordinator was asked."""

    BUSY = "busy"
    HEAD_TOO_LARGE = "head_too_large"
    INTERNAL_ERROR = "internal_error"
    MALFORMED = "malformed"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    NOT_READY = "not_ready"
    OUT_OF_SCOPE = "out_of_scope"
    SHUTTING_DOWN = "shutting_down"
    TOO_LARGE = "too_large"
    TOO_MANY_CONNECTIONS = "too_many_connections"
    TOO_MANY_KINDS = "too_many_kinds"
    TOO_MANY_LEASES = "too_many_leases"
    TOO_MANY_POLLS = "too_many_polls"
    TOO_MANY_QUEUES = "too_many_queues"
    TOO_MANY_SCHEDULES = "too_many_schedules"
    TOO_MANY_WORKERS = "too_many_workers"
    TOO_SLOW = "too_slow"
    UNAUTHENTICATED = "unauthenticated"
    UNKNOWN_ARTIFACT = "unknown_artifact"
    UNKNOWN_ROUTE = "unknown_route"
    UNKNOWN_SCHEDULE = "unknown_schedule"
    UNKNOWN_WORKER = "unknown_worker"
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
    UNSUPPORTED_PROTOCOL = "unsupported_protocol"


# --- Verdicts ----------------------------------------------------------------------------------


@derived(CancelDirective)
class CancelRecord(DerivedRecord, frozen=True, kw_only=True):
    """Stop soon: why, and how long the handler still has."""


@derived(Verdict, names={"kind": "verdict", "ttl_us": "lease_ttl_s"})
class VerdictReply(DerivedRecord, frozen=True, kw_only=True):
    """The answer to a start, heartbeat, complete, fail or release.

    `lease_ttl_s` is the time that remains, counted from the decision: count it from when the
    request was sent. `settled` answers a heartbeat of an attempt whose report was accepted.
    """


class VerdictsReply(Record, frozen=True, kw_only=True):
    """Verdicts in the order of the reports they answer."""

    verdicts: tuple[VerdictReply, ...]


# --- Grants ------------------------------------------------------------------------------------


@derived(
    Grant,
    only="job_id namespace queue kind attempt fence lease_id ttl_us lease_us heartbeat_interval_us"
    " timeout_us grace_us hb_seq status rev priority failures max_attempts enqueued_at payload"
    " correlated_by checkpoint progress trace_id schedule scheduled_for meta",
    via=("job", "job.policy"),
    names={
        "ttl_us": "lease_ttl_s",
        "heartbeat_interval_us": "heartbeat_s",
        "status": "job_status",
        **CORRELATED,
    },
)
class GrantRecord(DerivedRecord, frozen=True):
    """One job handed to a worker: everything it needs to run it, durations only. [L8]

    `lease_ttl_s` is what remains of the lease, `lease_s` what a renewal gives. `hb_seq` is the
    highest heartbeat seen, not 0 when a repeated claim finds its lease in use.
    """

    payload: msgspec.Raw


class ClaimReply(Record, frozen=True, kw_only=True):
    """Grants, perhaps none; or REJECTED and why. `repeated`: these were granted before. [Q1]

    `waited_s`: how long the claim was kept open before these were granted; their leases count
    from the sending of the claim and that. [WP12]

    `held_s`: nothing was granted, because rates blocked jobs; the first of them has room after this
    time. With `all_held` nothing can be granted before that. [RL9]
    """

    verdict: VerdictKind
    grants: tuple[GrantRecord, ...] = ()
    cause: Cause | None = None
    repeated: bool = False
    waited_s: float = 0.0
    held_s: float | None = None
    all_held: bool = False


def grant_of(record: GrantRecord) -> Grant:
    """The grant that came. Its job is what a worker needs of one: no instants but its beginning."""
    policy = Policy(
        lease_us=seconds(record.lease_s),
        heartbeat_us=seconds(record.heartbeat_s),
        timeout_us=None if record.timeout_s is None else seconds(record.timeout_s),
        grace_us=seconds(record.grace_s),
        max_attempts=record.max_attempts,
    )
    return Grant(
        job_id=record.job_id,
        lease_id=record.lease_id,
        attempt=record.attempt,
        fence=record.fence,
        ttl_us=seconds(record.lease_ttl_s),
        job=to_core(
            Job,
            record,
            id=record.job_id,
            lease_id=None,
            updated_at=instant(record.enqueued_at),
            policy=policy,
            correlation_id=given_correlation_id(record.correlation_id, record.job_id),
        ),
    )


def claim_reply(answer: ClaimAnswer) -> ClaimReply:
    """The answer to a claim as it travels."""
    return ClaimReply(
        verdict=VerdictKind.OK if answer.cause is None else VerdictKind.REJECTED,
        grants=tuple([to_wire(GrantRecord, grant) for grant in answer.grants]),
        cause=answer.cause,
        repeated=answer.is_repeat,
        waited_s=in_seconds(answer.waited_us),
        held_s=None if answer.rate_limited is None else in_seconds(answer.rate_limited.wait_us),
        all_held=answer.rate_limited is not None and answer.rate_limited.is_all,
    )


def claim_answer(reply: ClaimReply) -> ClaimAnswer:
    """The answer to a claim that came."""
    return ClaimAnswer(
        grants=tuple(map(grant_of, reply.grants)),
        cause=reply.cause,
        is_repeat=reply.repeated,
        waited_us=seconds(reply.waited_s),
        rate_limited=None
        if reply.held_s is None
        else RateLimited(seconds(reply.held_s), reply.all_held),
    )


# --- Replies to clients and operators ----------------------------------------------------------


@derived(Reply, without=("redrive",))
class JobReply(DerivedRecord, frozen=True, kw_only=True):
    """The answer to a client or operator: the job, or why the request was refused."""


class JobsReply(Record, frozen=True, kw_only=True):
    """Replies in the order of the jobs they answer."""

    replies: tuple[JobReply, ...]


def job_reply(reply: Reply, *, now: Instant, bodies: bool) -> JobReply:
    """A reply as it travels."""
    job = None if reply.job is None else job_record(reply.job, now=now, bodies=bodies)
    return to_wire(JobReply, reply, job=job)


def reply_of(reply: JobReply) -> Reply:
    """The reply that came."""
    job = None if reply.job is None else job_of(reply.job)
    return to_core(Reply, reply, job=job, resolution=resolution_of(reply.resolution))


# --- Reads ------------------------------------------------------------------------------------


class JobPage(Record, frozen=True, kw_only=True):
    """Jobs, newest first. `next_before` is the `before` of the next page; null: the last one.

    `resolutions` is what became of the dead letters among them, where jobs were asked for by id
    or as `resolved`.
    `previews` has the beginnings of payloads, by job, where these were asked for. [H53]
    """

    jobs: tuple[JobRecord, ...]
    next_before: JobId | None = None
    resolutions: tuple[ResolutionRecord, ...] = ()
    previews: dict[JobId, str] = msgspec.field(default_factory=dict)


class DeadLetterPage(Record, frozen=True, kw_only=True):
    """Dead letters, newest first; `next_before` as in a page of jobs."""

    dead_letters: tuple[DeadLetterRecord, ...]
    next_before: JobId | None = None


class EventsReply(Record, frozen=True, kw_only=True):
    """A job's log in order of seq; `next_after_seq` asks for the next page, null at the end."""

    events: tuple[EventRecord, ...]
    next_after_seq: int | None = None


class ObservationsReply(Record, frozen=True, kw_only=True):
    """What is kept beside a job's log: the first 500, oldest first. [U3]"""

    observations: tuple[ObservationRecord, ...]


class LogReply(Record, frozen=True, kw_only=True):
    """Events of all jobs in the order of time. `next_after` is the `after` of the next page, null
    at the end. A page may have fewer events than were asked for and not be the last one. [E8]"""

    events: tuple[EventRecord, ...]
    next_after: str | None = None


class FollowedEvent(Record, frozen=True, kw_only=True):
    """An event and its position in the tail, after which a reader can continue. [E10]"""

    position: str
    event: EventRecord


@derived(TailDelay)
class TailDelayRecord(DerivedRecord, frozen=True, kw_only=True):
    """The open transaction because of which committed events are not visible yet. [E35]"""


class TailReply(Record, frozen=True, kw_only=True):
    """Events of all jobs in the order of the tail: on SQLite that of commits, on PostgreSQL that in
    which transactions started to write, and always each job's by `seq`. `next_after` is the `after`
    of the next page; there is always one. `is_end`: there were no more when it was read. [E10]
    `delayed_by`: what keeps events back, if there were none and the token may see it. [E35]"""

    events: tuple[FollowedEvent, ...]
    next_after: str
    is_end: bool
    delayed_by: TailDelayRecord | None = None


class ViolationRecord(Record, frozen=True, kw_only=True):
    """The seq of an event, or the row's rev, and what is wrong there."""

    seq: int
    message: str


class FindingRecord(Record, frozen=True, kw_only=True):
    """An invariant: whether it `holds`, is `violated` or was `not checked`, and why not; how many
    violations were found, and the first of them."""

    id: str
    title: str
    state: str
    why: str = ""
    violations: int = 0
    first: tuple[ViolationRecord, ...] = ()


class VerificationReply(Record, frozen=True, kw_only=True):
    """What was found when a job's row and log were checked against the invariants. [X4]"""

    job_id: JobId
    holds: bool
    events: int
    invariants: tuple[FindingRecord, ...]


class WaitReasonRecord(Record, frozen=True, kw_only=True):
    """Why a job waits: a word, a sentence, until when if that is known, and the jobs that it waits
    for. [OB32]"""

    why: str
    message: str
    until: datetime | None = None
    job_ids: tuple[JobId, ...] = ()

    @property
    def sentence(self) -> str:
        """The message with the jobs that it is about."""
        return f"{self.message}: {', '.join(self.job_ids)}" if self.job_ids else self.message


class WaitReasonsReply(Record, frozen=True, kw_only=True):
    """Why a job waits, the first reason first; none if it does not wait, or no reason is known.
    [OB32]"""

    reasons: tuple[WaitReasonRecord, ...]


class ArtifactsReply(Record, frozen=True, kw_only=True):
    """The artifacts of the attempt that succeeded, by name. [B8]"""

    artifacts: tuple[ArtifactRecord, ...]


class LogsReply(Record, frozen=True, kw_only=True):
    """The kept output of each attempt, in order."""

    logs: tuple[AttemptLog, ...]


class QueuesReply(Record, frozen=True, kw_only=True):
    """The queues that have jobs or settings, by name. `next_after` is the `after` of the
    next page, null at the end. [H86]"""

    queues: tuple[QueueRecord, ...]
    next_after: str | None = None


class KindsReply(Record, frozen=True, kw_only=True):
    """Every kind that something was set for, by name."""

    kinds: tuple[KindRecord, ...]


class WorkersReply(Record, frozen=True, kw_only=True):
    """The workers that sent a sign of life within a day, by name. `next_after` is the `after` of
    the next page, null at the end. [H86]"""

    workers: tuple[WorkerRecord, ...]
    next_after: str | None = None


class SchedulesReply(Record, frozen=True, kw_only=True):
    """The schedules, by name, without their payloads. `next_after` is the `after` of the
    next page, null at the end. [H86]"""

    schedules: tuple[ScheduleRecord, ...]
    next_after: str | None = None


class ScheduleReply(Record, frozen=True, kw_only=True):
    """A schedule and the next times at which it fires, unless it is paused. `changed` is whether
    the request changed it; `job_id` is the job that it made."""

    schedule: ScheduleRecord
    next_times: tuple[datetime, ...] = ()
    changed: bool = False
    job_id: JobId | None = None


class StatsReply(Record, frozen=True, kw_only=True):
    """How many events the log has from `since` until before `until`, by type, kind and queue. An
    `until` before the one that was asked for is the `since` of the next page. [OB25]"""

    since: datetime
    until: datetime
    counts: tuple[EventCount, ...]


class TimeReply(Record, frozen=True, kw_only=True):
    """The store's clock, for display and for making ids."""

    now: datetime


# --- Outside the log ---------------------------------------------------------------------------


@derived(Staging, names={"problem": "message"})
class StagingReply(DerivedRecord, frozen=True, kw_only=True):
    """The artifact that was taken, or why it was not. [B7] If a quota has no room for it, how many
    bytes are in use, how many the quota has, and what to do. [B28]"""

    verdict: VerdictKind
    message: str | None = None


class KeptReply(Record, frozen=True, kw_only=True):
    """Whether an attempt's output was kept, or why not. [B20]"""

    verdict: VerdictKind
    cause: Cause | None = None


# --- Flows -------------------------------------------------------------------------------------


@derived(FlowSummary, via=("flow",))
class FlowRecord(DerivedRecord, frozen=True):
    """Jobs that were made together; `is_live`: one of them has not ended. `statuses`
    counts them by status, without replaced ones; null where a list has too many. [FL15]
    """

    statuses: dict[JobStatus, int] | None = None

    @property
    def unsuccessful(self) -> int:
        """How many of its jobs are known to have ended without success."""
        counts = self.statuses or {}
        return sum(
            count
            for status, count in counts.items()
            if status.is_terminal and status is not JobStatus.SUCCEEDED
        )


@derived(FlowRedrive, without=("flow_id",))
class FlowRedriveRecord(DerivedRecord, frozen=True, kw_only=True):
    """A redrive of a flow: who asked for it, and how many jobs it made. [FL11]"""


class FlowRedriveReply(Record, frozen=True, kw_only=True):
    """The redrive of a flow, or why it was refused, and because of which job."""

    redrive: FlowRedriveRecord | None = None
    cause: Cause | None = None
    replayed: bool = False
    job_id: JobId | None = None


def flow_redrive_reply(reply: Reply) -> FlowRedriveReply:
    """The answer to the redrive of a flow as it travels."""
    refused_for = reply.job if reply.cause is not None else None
    return FlowRedriveReply(
        redrive=None if reply.redrive is None else to_wire(FlowRedriveRecord, reply.redrive),
        cause=reply.cause,
        replayed=reply.replayed,
        job_id=None if refused_for is None else refused_for.id,
    )


def flow_redrive_of(flow_id: FlowId, reply: FlowRedriveReply, job: Job | None) -> Reply:
    """The answer that came."""
    made = reply.redrive
    redrive = None if made is None else to_core(FlowRedrive, made, flow_id=flow_id)
    return Reply(job=job, cause=reply.cause, replayed=reply.replayed, redrive=redrive)


class HandlerFlowReply(Record, frozen=True, kw_only=True):
    """The id of the flow that a handler made, now or in an earlier attempt; or why it made none."""

    flow_id: FlowId | None = None
    cause: Cause | None = None
    replayed: bool = False


@derived(FlowStep, names={"step": "name"})
class FlowStepRecord(DerivedRecord, frozen=True):
    """A job of a flow, the names of the jobs that it waits for, and the job that it replaces since
    the flow was redriven."""


class FlowsReply(Record, frozen=True, kw_only=True):
    """Flows, newest first."""

    flows: tuple[FlowRecord, ...]


@derived(FlowView)
class FlowReply(DerivedRecord, frozen=True, kw_only=True):
    """A flow with its jobs, replaced ones too, and its redrives, oldest first. `hidden`
    of its jobs are out of the token's scope; `is_live` and `statuses` are about the others. [FL9]
    """

    flow: FlowRecord

    @property
    def current(self) -> tuple[FlowStepRecord, ...]:
        """Its jobs without replaced ones: one for each name."""
        return without_replaced(self.steps)


def flow_summary_record(listed: FlowSummary) -> FlowRecord:
    """The record of a listed flow."""
    return to_wire(FlowRecord, listed)


def flow_reply(view: FlowView) -> FlowReply:
    """The record of a flow with its jobs."""
    statuses = Counter(step.status for step in view.current)
    summary = FlowSummary(flow=view.flow, is_live=view.is_live, statuses=statuses)
    return to_wire(FlowReply, view, flow=to_wire(FlowRecord, summary))


def flow_view_of(reply: FlowReply) -> FlowView:
    """The flow behind a reply."""
    flow = to_core(FlowRow, reply.flow)
    redrives = tuple(to_core(FlowRedrive, each, flow_id=flow.id) for each in reply.redrives)
    return to_core(FlowView, reply, flow=flow, redrives=redrives)


@derived(ParentResult, names={"step": "name", "outcome": "status"})
class ParentRecord(DerivedRecord, frozen=True):
    """How a parent ended, and what it returned if it succeeded."""


@derived(ParentPage)
class ParentsReply(DerivedRecord, frozen=True, kw_only=True):
    """Some parents in order of position, and whether these are the last; or why the lease does not
    give them. [FL7]"""

    verdict: VerdictKind


# --- Workers -----------------------------------------------------------------------------------


class PeekLeasesReply(Record, frozen=True, kw_only=True):
    """For each lease `none`, or why to send a heartbeat now: `cancel` or `lost`. [C2]"""

    news: tuple[LeaseNews, ...]


class AliveReply(Record, frozen=True, kw_only=True):
    """Whether the worker has to drain: claim nothing more, finish its jobs and stop. [B12]"""

    drain: bool


class DrainReply(Record, frozen=True, kw_only=True):
    """The worker that was asked to stop."""

    worker: str
    draining: bool = True


# --- The server itself -------------------------------------------------------------------------


class HealthReply(Record, frozen=True, kw_only=True):
    """Whether the server is alive, or ready for work."""

    status: str


class Problem(Record, frozen=True, kw_only=True):
    """Every answer that is not a success: what happened, to which field, and what to do. [H8]

    `verdict` is REJECTED where the coordinator's word is final, and null where the request can be
    sent again unchanged (408, 425, 429 and 5xx). `nothing_changed` is true where it is certain that
    this one was not carried out, not even in part. `request_id` is that of the `X-Request-Id`
    header. `job_id` is the job whose row cannot be read, if that is the problem.
    """

    code: str
    message: str
    verdict: VerdictKind | None = None
    field: str | None = None
    hint: str = ""
    nothing_changed: bool = False
    request_id: str = ""
    job_id: JobId | None = None
