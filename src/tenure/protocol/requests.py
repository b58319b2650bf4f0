"""Requests. Unknown fields are refused, so that a misspelt one is never ignored. [H2]

No message says who asks: principal and namespace are the token's. A namespace in a message is
only the one that the caller expects; the server refuses another. [H21]
"""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tenure.core.artifacts import MAX_ATTEMPT_LOG_BYTES, MAX_OUTPUT_PARTS, AttemptOutput
from tenure.core.checks import (
    MAX_INSTANT,
    MAX_META_KEY,
    MAX_META_VALUE,
    MAX_NAME,
    MAX_SEARCHED_TEXT,
    Exact,
    Label,
)
from tenure.core.claims import ClaimRequest
from tenure.core.commands import (
    Cancel,
    Command,
    Complete,
    Enqueue,
    EnqueueFlow,
    Fail,
    FlowMember,
    FollowUp,
    Heartbeat,
    Parent,
    ParentAttempt,
    RedriveFlow,
    Release,
    Start,
    WorkerCommand,
)
from tenure.core.flows import MAX_FLOW_EDGES, MAX_FLOW_JOBS
from tenure.core.ids import (
    Actor,
    FlowId,
    JobId,
    follow_up_id,
    handler_flow_id,
    handler_member_id,
)
from tenure.core.instants import MICROSECONDS_PER_SECOND
from tenure.core.job import Job, JobError
from tenure.core.leases import LeaseRef
from tenure.core.policy import Compensation, DeadLetterJob, Policy
from tenure.core.schedules import PutSchedule
from tenure.core.verdicts import Resolution
from tenure.core.views.dead_letter_groups import DeadLetterGroupFilter
from tenure.core.views.events import MAX_NEWEST
from tenure.core.views.job_search import JobFilter
from tenure.core.views.overview import OverviewFilter
from tenure.core.vocabulary import ErrorClass, JobStatus, ReasonCode, Stage
from tenure.core.workers import MAX_WORKER_KEY, WorkerProcess
from tenure.errors import InvalidInput
from tenure.protocol.fields import (
    EventTypeField,
    JobIdField,
    LeaseIdField,
    LongText,
    Moment,
    NamespaceField,
    QueueField,
    ScheduleField,
    ShortText,
    StepField,
)
from tenure.protocol.translation import derived, to_core, to_wire

MAX_BATCH = 1000
"""Reports, heartbeats or jobs in one request."""

MAX_CANCELLED = 250
"""Jobs that one request cancels: their rows are read with their bodies, up to a MiB or two each."""

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


if TYPE_CHECKING:
    from tenure.protocol.translation import AnyFields

    class DerivedRequest(AnyFields): ...
else:

    class DerivedRequest(Request, frozen=True, kw_only=True):
        """A request with the fields of a core struct, in the units of the wire."""


# --- Workers -----------------------------------------------------------------------------------


@derived(ClaimRequest, without=("actor",))
class ClaimMessage(DerivedRequest, frozen=True, kw_only=True):
    """Ask for up to `limit` jobs; wait up to `wait_s` for the first one. [Q1] [H10]"""

    limit: Annotated[int, Meta(ge=1, le=MAX_CLAIM)] = 1
    wait_s: Annotated[float, Meta(ge=0, le=LONGEST_WAIT_S)] = 0.0
    namespace: NamespaceField | None = None


def claim_message(request: ClaimRequest, *, wait_s: float) -> ClaimMessage:
    """A claim as it travels; one that wants more than an answer can have asks for that much."""
    return to_wire(ClaimMessage, request, limit=min(request.limit, MAX_CLAIM), wait_s=wait_s)


@derived(Start, without=("actor",))
class StartMessage(DerivedRequest, frozen=True, kw_only=True):
    """Begin to execute. [T3]"""


@derived(Complete, without=("actor",))
class CompleteMessage(DerivedRequest, frozen=True, kw_only=True):
    """Report success. [T5]"""


@derived(JobError, without=("stage", "reason_code"))
class ErrorMessage(DerivedRequest, frozen=True, kw_only=True):
    """What went wrong, as the worker saw it."""

    error_class: ErrorClass = msgspec.field(name="class", default=ErrorClass.UNCLASSIFIED)
    type: ShortText = ""
    message: LongText = ""
    traceback: LongText = ""


ReportedReason: TypeAlias = Literal[
    "parse_error",
    "validation_failed",
    "dependency_unavailable",
    "policy_violation",
    "infrastructure_failure",
]


@derived(Fail, without=("actor",))
class FailMessage(DerivedRequest, frozen=True, kw_only=True):
    """Report that the attempt failed; the coordinator decides what follows. With the reason
    policy_violation or infrastructure_failure the job becomes a dead letter at once. [T7] [T8] [T9]
    [T34]"""

    stage: Stage | None = None
    reason_code: ReportedReason | None = None


@derived(Release, without=("actor",))
class ReleaseMessage(DerivedRequest, frozen=True, kw_only=True):
    """Hand the job back unharmed, to be taken up again after `delay_s`. [T11]"""

    kind: Literal["deploy", "snooze"] = "deploy"


@derived(Heartbeat, without=("actor",))
class HeartbeatMessage(DerivedRequest, frozen=True, kw_only=True):
    """Renew one lease; a higher `hb_seq` than before, or nothing is extended. [T4]"""


class HeartbeatsMessage(Request, frozen=True, kw_only=True):
    """Renew leases; verdicts come back in this order."""

    leases: Annotated[tuple[HeartbeatMessage, ...], Meta(min_length=1, max_length=MAX_BATCH)]


@derived(LeaseRef)
class LeaseMessage(DerivedRequest, frozen=True, kw_only=True):
    """A lease that a worker has."""


class PeekLeasesMessage(Request, frozen=True, kw_only=True):
    """Poll leases between two heartbeats. The answer is in this order and decides nothing. [C2]"""

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
WorkerMessage: TypeAlias = (
    StartMessage | CompleteMessage | FailMessage | ReleaseMessage | HeartbeatMessage
)

_COMMANDS: tuple[tuple[type[WorkerMessage], type[Report], type[WorkerCommand]], ...] = (
    (StartMessage, StartReport, Start),
    (CompleteMessage, CompleteReport, Complete),
    (FailMessage, FailReport, Fail),
    (ReleaseMessage, ReleaseReport, Release),
    (HeartbeatMessage, HeartbeatReport, Heartbeat),
)
_COMMAND_OF: dict[type, type[WorkerCommand]] = {
    kind: command for message, report, command in _COMMANDS for kind in (message, report)
}
_REPORT_OF = {command: report for _, report, command in _COMMANDS}


def worker_command(message: WorkerMessage, actor: Actor) -> WorkerCommand:
    """The command that a worker's report stands for."""
    if not isinstance(message, FailMessage):
        return to_core(_COMMAND_OF[type(message)], message, actor=actor)
    reason = None if message.reason_code is None else ReasonCode(message.reason_code)
    error = to_core(JobError, message.error, stage=message.stage, reason_code=reason)
    return to_core(Fail, message, actor=actor, error=error)


def report_of(command: WorkerCommand) -> Report:
    """A worker's command as part of a batch."""
    if isinstance(command, Fail):
        error = command.error
        return to_wire(FailReport, command, stage=error.stage, reason_code=error.reason_code)
    return to_wire(_REPORT_OF[type(command)], command)


class ReportsMessage(Request, frozen=True, kw_only=True):
    """Any of a worker's reports together; `op` names the kind of each. Verdicts in this order.
    [H42]"""

    reports: Annotated[tuple[Report, ...], Meta(min_length=1, max_length=MAX_BATCH)]


@derived(AttemptOutput, without=("actor",))
class OutputMessage(DerivedRequest, frozen=True, kw_only=True):
    """What a handler wrote to its standard streams, under its lease. [B20]"""

    text: Annotated[str, Meta(max_length=MAX_ATTEMPT_LOG_BYTES)]
    part: Annotated[int, Meta(ge=0, le=MAX_OUTPUT_PARTS)] = 0


class ParentsMessage(Request, frozen=True, kw_only=True):
    """Ask for the results of a leased job's parents, after a position; from the first with -1.
    [FL7]"""

    lease_id: LeaseIdField
    after: Annotated[int, Meta(ge=-1, le=MAX_FLOW_EDGES)] = -1


@derived(
    WorkerProcess,
    without=("worker", "actor"),
    names={"is_draining": "draining", "is_ending": "ending"},
)
class AliveMessage(DerivedRequest, frozen=True, kw_only=True):
    """A worker's sign of life, every ten seconds or so. It reports whether the worker is draining;
    the last one reports its end. [B12] [B33]"""

    host: Annotated[str, Meta(min_length=1, max_length=256)]
    version: Annotated[str, Meta(min_length=1, max_length=128)]
    uptime_s: Annotated[float, Meta(ge=0, le=LONGEST_UPTIME_S)]
    namespace: NamespaceField | None = None
    instance: Annotated[str, Meta(max_length=MAX_NAME)] = ""


# --- Clients and operators ---------------------------------------------------------------------


@derived(Compensation)
class CompensationMessage(DerivedRequest, frozen=True, kw_only=True, omit_defaults=False):
    """The job that undoes this one. [M1]"""

    policy: "PolicyMessage" = msgspec.field(default_factory=lambda: PolicyMessage())


@derived(DeadLetterJob)
class DeadLetterJobMessage(DerivedRequest, frozen=True, kw_only=True, omit_defaults=False):
    """The job that is enqueued if this one becomes a dead letter. [HK9]"""

    policy: "PolicyMessage" = msgspec.field(default_factory=lambda: PolicyMessage())


@derived(Policy)
class PolicyMessage(DerivedRequest, frozen=True, kw_only=True, omit_defaults=False):
    """Leases, budgets and time-outs of one job, fixed at enqueue; what is left out has its default.
    A `timeout_s` of null means that there is none. [F5]"""

    # Always sent in full: the server's defaults may be those of another version.


@derived(Enqueue, without=("actor",))
class EnqueueMessage(DerivedRequest, frozen=True, kw_only=True):
    """Enqueue a job. A request with a `job_id` can be repeated; without one, each copy that arrives
    becomes a job. [D3]"""

    job_id: JobIdField | None = None
    namespace: NamespaceField | None = None


class EnqueueManyMessage(Request, frozen=True, kw_only=True):
    """Enqueue jobs; replies come back in this order."""

    jobs: Annotated[tuple[EnqueueMessage, ...], Meta(min_length=1, max_length=MAX_BATCH)]


@derived(RedriveFlow, without=("flow_id", "actor", "found"))
class RedriveFlowMessage(DerivedRequest, frozen=True, kw_only=True):
    """Replace the jobs of a flow that did not succeed. [FL10]"""

    namespace: NamespaceField | None = None


class ParentMessage(Request, frozen=True, kw_only=True):
    """A job that another one waits for, its name there, and whether any end of it will do. Without
    a `job_id` it is the job of this name in the same flow."""

    name: StepField
    job_id: JobIdField | None = None
    ended: bool = False


class FlowMemberMessage(Request, frozen=True, kw_only=True):
    """A job of a flow, its name there, and the jobs that it waits for."""

    job: EnqueueMessage
    name: StepField
    after: Annotated[tuple[ParentMessage, ...], Meta(max_length=MAX_FLOW_JOBS)] = ()


FlowMembers = Annotated[tuple[FlowMemberMessage, ...], Meta(min_length=1, max_length=MAX_FLOW_JOBS)]


class FlowMessage(Request, frozen=True, kw_only=True):
    """Enqueue jobs that wait for each other, all of them or none. Each has a `job_id`, so that the
    request can be repeated. [FL3]"""

    flow_id: JobIdField
    name: StepField
    jobs: FlowMembers


class HandlerFlowMessage(Request, frozen=True, kw_only=True):
    """Make a flow from a job's handler, under its lease. Its id follows from the job in the path
    and `step`, those of its jobs also from their names: they are given none, and every copy of the
    request makes the same flow. [FL13]"""

    lease_id: LeaseIdField
    name: StepField
    jobs: FlowMembers
    step: StepField = ""


def flow_message(command: EnqueueFlow) -> FlowMessage | HandlerFlowMessage:
    """The message that asks for a flow; the handler's job, if it has one, is in the path."""
    jobs, attempt = _member_messages(command), command.handler
    if attempt is None:
        return FlowMessage(flow_id=JobId(command.flow_id), name=command.name, jobs=jobs)
    return HandlerFlowMessage(
        lease_id=attempt.lease_id, step=attempt.step, name=command.name, jobs=jobs
    )


def _member_messages(command: EnqueueFlow) -> tuple[FlowMemberMessage, ...]:
    """The jobs of a handler's flow are sent without ids: these follow from their names."""
    without_id = {} if command.handler is None else {"job_id": None}
    return tuple(
        FlowMemberMessage(
            job=to_wire(EnqueueMessage, member.job, **without_id),
            name=member.step,
            after=tuple(
                ParentMessage(job_id=each.job_id, name=each.step, ended=each.needs is None)
                for each in member.after
            ),
        )
        for member in command.members
    )


def flow_command(message: FlowMessage, jobs: Sequence[Enqueue]) -> EnqueueFlow:
    """The flow that a message asks for; `jobs` are those in it."""
    return EnqueueFlow(
        flow_id=FlowId(message.flow_id.lower()),
        name=message.name,
        members=_members(message.jobs, jobs, [job.job_id for job in jobs]),
    )


def handler_flow_command(
    message: HandlerFlowMessage, jobs: Sequence[Enqueue], *, parent: JobId
) -> EnqueueFlow:
    """The flow that a handler's message asks for; `jobs` are those in it, with ids of their own."""
    step = message.step
    ids = [handler_member_id(parent, step=step, name=each.name) for each in message.jobs]
    return EnqueueFlow(
        flow_id=handler_flow_id(parent, step=step),
        name=message.name,
        members=_members(message.jobs, jobs, ids),
        handler=ParentAttempt(job_id=parent, lease_id=message.lease_id, step=step),
    )


def _members(
    messages: Sequence[FlowMemberMessage], jobs: Sequence[Enqueue], ids: Sequence[JobId]
) -> tuple[FlowMember, ...]:
    """The members of a flow whose jobs have these ids."""
    by_name = {message.name: job_id for message, job_id in zip(messages, ids, strict=True)}

    def parent(each: ParentMessage) -> Parent:
        job_id = by_name.get(each.name) if each.job_id is None else JobId(each.job_id.lower())
        if job_id is None:
            raise InvalidInput("after", f"there is no job {each.name[:40]!a} in the flow")
        needs = None if each.ended else JobStatus.SUCCEEDED
        return Parent(job_id=job_id, step=each.name, needs=needs)

    return tuple(
        FlowMember(
            job=msgspec.structs.replace(job, job_id=job_id),
            step=message.name,
            after=tuple(map(parent, message.after)),
        )
        for message, job, job_id in zip(messages, jobs, ids, strict=True)
    )


class FollowUpMessage(Request, frozen=True, kw_only=True):
    """Enqueue a job from another job's handler, under its lease. The new job's id follows from the
    job in the path, the new job's kind and `step`: `job` has no id, and every copy of the request
    makes the same job. [D8] [D10]"""

    lease_id: LeaseIdField
    job: EnqueueMessage
    step: StepField = ""


def follow_up_command(enqueue: Enqueue, message: FollowUpMessage, *, parent: JobId) -> FollowUp:
    """The follow-up that a message asks for; `enqueue` is the job in it."""
    fields = msgspec.structs.asdict(enqueue)
    fields["job_id"] = follow_up_id(parent, kind=enqueue.kind, step=message.step)
    attempt = ParentAttempt(job_id=parent, lease_id=message.lease_id, step=message.step)
    return FollowUp(**fields, parent=attempt)


def follow_up_message(command: FollowUp) -> FollowUpMessage:
    """A follow-up as it travels; its parent is in the path."""
    return FollowUpMessage(
        lease_id=command.parent.lease_id,
        step=command.parent.step,
        job=to_wire(EnqueueMessage, command, job_id=None),
    )


class LookupMessage(Request, frozen=True, kw_only=True):
    """Ask for several jobs at once; unknown ones are left out of the answer."""

    job_ids: Annotated[tuple[JobIdField, ...], Meta(min_length=1, max_length=MAX_PAGE)]


class OperatorMessage(DerivedRequest, frozen=True, kw_only=True):
    """A request about one job; `expected_rev` and `expected_status` refuse a changed job. [K12]"""


@cache
def operator_message(
    command: type[Command], fixed: frozenset[str] = frozenset()
) -> type[OperatorMessage]:
    """The message of an operator's command: its fields but for the job, which the path names, the
    actor, who is the token's, what the route sets (`fixed`), and what the coordinator looks up."""
    looked_up = {
        name
        for name, kind in get_type_hints(command).items()
        if kind in (Job | None, Resolution | None)
    }
    message = type(f"{command.__name__}Message", (OperatorMessage,), {"__doc__": command.__doc__})
    return derived(command, without={"job_id", "actor", *fixed, *looked_up})(message)


@derived(Cancel, without=("job_id", "actor", "expected_rev", "expected_status"))
class CancelManyMessage(DerivedRequest, frozen=True, kw_only=True):
    """Stop jobs; replies come back in this order. [H90]"""

    job_ids: Annotated[tuple[JobIdField, ...], Meta(min_length=1, max_length=MAX_CANCELLED)]


def cancel_commands(message: CancelManyMessage, actor: Actor) -> list[Cancel]:
    """The commands that a message stands for."""
    return [
        to_core(Cancel, message, job_id=JobId(each.lower()), actor=actor)
        for each in message.job_ids
    ]


def cancel_many_message(commands: Sequence[Cancel]) -> CancelManyMessage:
    """These commands as one message. They differ in nothing but their job."""
    return to_wire(CancelManyMessage, commands[0], job_ids=tuple(each.job_id for each in commands))


class LimitMessage(Request, frozen=True, kw_only=True):
    """How many leases a queue may have at a time, 0 means no limit [Z3]; and its rate, such as
    `100/m`, null means none [RL4]. What is missing stays unchanged."""

    limit: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    rate: ShortText | UnsetType | None = UNSET
    burst: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None


class KindMessage(Request, frozen=True, kw_only=True):
    """What is set for a kind: its rate, such as `100/m`; null means none. [RL4] And how many of its
    jobs may run at a time for each concurrency key; null means 1. [CK7] `policy` is the policy
    of jobs that are enqueued without one; null means that there is none. [F9] What is missing stays
    unchanged."""

    rate: ShortText | UnsetType | None = UNSET
    burst: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    concurrency_limit: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType | None = UNSET
    policy: PolicyMessage | UnsetType | None = UNSET


@derived(PutSchedule, via=("spec",), without=("name", "actor"))
class PutScheduleMessage(DerivedRequest, frozen=True, kw_only=True, omit_defaults=False):
    """When a schedule fires, by `cron` and `tz` or by `every_s`, and which job that makes.
    `only_new`: only if the store never had a schedule of this name. `declared_by` is the
    application whose code declares it. [SC10]"""

    declared_by: Annotated[str, Meta(min_length=1, max_length=2 * MAX_NAME)] | None = None
    only_new: bool = False
    namespace: NamespaceField | None = None


class RunScheduleMessage(Request, frozen=True, kw_only=True):
    """Make a job of a schedule now. A request with a `job_id` can be repeated. [SC11]"""

    job_id: JobIdField | None = None


# --- Queries -----------------------------------------------------------------------------------


class BodiesQuery(Request, frozen=True, kw_only=True):
    """Whether payload, result and checkpoint are wanted: they may contain secrets. [H46]"""

    bodies: bool = False


class NamespaceQuery(Request, frozen=True, kw_only=True):
    """The namespace that the caller expects to be in. [H21]"""

    namespace: NamespaceField | None = None


class PageQuery(NamespaceQuery, frozen=True, kw_only=True):
    """How many rows a page of a list has at most."""

    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 50


class QueuesQuery(PageQuery, frozen=True, kw_only=True):
    """A page of queues, by name. `after` is the `next_after` of the previous page. [H86]"""

    after: QueueField | None = None


class SchedulesQuery(PageQuery, frozen=True, kw_only=True):
    """A page of schedules, by name. `after` is the `next_after` of the previous page. [H86]"""

    after: ScheduleField | None = None


class WorkersQuery(PageQuery, frozen=True, kw_only=True):
    """A page of workers, by name. `after` is the `next_after` of the previous page. [H86]"""

    after: Annotated[str, Meta(max_length=MAX_WORKER_KEY)] | None = None


class FlowsQuery(PageQuery, frozen=True, kw_only=True):
    """Which flows to list; `before` is the last id of the previous page. `id_prefix`: only flows
    whose id starts with it."""

    id_prefix: Annotated[str, Meta(min_length=1, max_length=36)] | None = None
    before: JobIdField | None = None


class StatsQuery(NamespaceQuery, frozen=True, kw_only=True):
    """The span of time whose events are counted, by default the last 24 hours."""

    since: Moment | None = None
    until: Moment | None = None


_SINGULAR = {"queues": "queue", "kinds": "kind"}


@derived(OverviewFilter, names=_SINGULAR)
class OverviewQuery(DerivedRequest, frozen=True, kw_only=True):
    """How far back an overview reads, and of which queues or kinds only. [OB28]"""

    namespace: NamespaceField | None = None


@derived(DeadLetterGroupFilter, names=_SINGULAR)
class DeadLetterGroupsQuery(DerivedRequest, frozen=True, kw_only=True):
    """How far back groups of dead letters are counted over time, and of which queues or kinds only.
    `key`: only this group, with the ids of its letters. [OB31]"""

    key: Annotated[str, Meta(min_length=16, max_length=16)] | None = None
    namespace: NamespaceField | None = None


class EventsQuery(Request, frozen=True, kw_only=True):
    """A part of a job's log; `after_seq` is the last seq of the previous page. [H43]"""

    after_seq: Exact = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = MAX_PAGE


class LogQuery(PageQuery, frozen=True, kw_only=True):
    """Which events of all jobs a list has, newest first unless `oldest_first`. A `type` is a type
    of events or a name, `claimed` or `job_claimed`; it may be repeated. `after` is the `next_after`
    of the previous page. [E6] [E8]"""

    type: tuple[EventTypeField, ...] = ()
    job_id: JobIdField | None = None
    correlation_id: Label | None = None
    since: Moment | None = None
    until: Moment | None = None
    oldest_first: bool = False
    after: Annotated[str, Meta(max_length=80)] | None = None


MAX_FOLLOW_WAIT_S = 10.0
"""How long a server keeps a reader of the tail waiting at most."""


class TailQuery(PageQuery, frozen=True, kw_only=True):
    """Which events a reader of the tail follows. `after` is the `next_after` of the previous page;
    without it the reader starts at the oldest event, or with `newest` at the end, with up to
    that many of the newest events. If there is no event yet, the answer comes after `wait_s`.
    [E10]"""

    type: tuple[EventTypeField, ...] = ()
    job_id: JobIdField | None = None
    correlation_id: Label | None = None
    after: Annotated[str, Meta(max_length=80)] | None = None
    newest: Annotated[int, Meta(ge=0, le=MAX_NEWEST)] | None = None
    wait_s: Annotated[float, Meta(ge=0, le=MAX_FOLLOW_WAIT_S)] = 0.0


@derived(
    JobFilter, without=("statuses", "resolved", "previews", "reads"), names={"statuses": "status"}
)
class JobListQuery(DerivedRequest, frozen=True, kw_only=True):
    """Which jobs a list has, newest first; `before` is the `next_before` of the previous page.
    `id_prefix`: only jobs whose id starts with it. By `worker`, by the time of their end and by
    text in the `error` jobs are searched, 10,000 for a page, and by an entry of their `meta`,
    written `tenant=acme`. [J12] `orphaned`: only jobs whose workers have been silent for two
    heartbeats. [L19]"""

    flow_id: JobIdField | None = None
    error: Annotated[str, Meta(min_length=1, max_length=MAX_SEARCHED_TEXT)] | None = None
    meta: Annotated[str, Meta(max_length=MAX_META_KEY + 1 + MAX_META_VALUE)] | None = None
    id_prefix: Annotated[str, Meta(min_length=1, max_length=36)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 50
    bodies: bool = False
    namespace: NamespaceField | None = None


class JobsQuery(JobListQuery, frozen=True, kw_only=True):
    """Which jobs a list has. `resolved`: only dead letters that were, or were not, resolved.
    `previews`: with the beginnings of payloads. [H53]"""

    status: tuple[JobStatus, ...] = ()
    resolved: bool | None = None
    previews: bool = False


class DeadLettersQuery(JobListQuery, frozen=True, kw_only=True):
    """Which dead letters a list has."""

    resolved: bool = False
