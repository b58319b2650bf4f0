"""Commands: everything that a caller may ask about one job, as plain values.

A command names who asks (`actor`, the authenticated principal), under which request id, and what.
It decides nothing. A worker's command carries durations, never instants. [L8] `validation.py`
bounds every field.
"""

import hashlib
from typing import TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from tenure.core.ids import (
    SYSTEM,
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
    derived_job_id,
    traceparent_of,
)
from tenure.core.instants import Duration, Instant
from tenure.core.job import JobError, Progress, compensation_id
from tenure.core.policy import DeadLetterJob, Policy
from tenure.core.vocabulary import CancelMode, EventCause, JobStatus, ReasonCode, ReleaseKind, Stage


class Needs(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a decision reads besides the row and the log of the command's own job."""

    jobs: tuple[JobId, ...] = ()  # the rows of these jobs
    policies: tuple[tuple[Namespace, Kind], ...] = ()  # what workers declared for these kinds
    resolution: bool = False  # of the job
    session: bool = False  # the worker session that has the job's lease, locked with the job
    made_flow: FlowId | None = None  # whether this flow exists
    flow: tuple[Namespace, FlowId] | None = None  # all that a redrive of this flow replaces


NOTHING = Needs()


class _Command(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    # Without defaults, a new optional field changes no fingerprint of a command that lacks it.

    def needs(self) -> Needs:
        """What the decision reads besides the row and the log of the command's own job."""
        return NOTHING


class _LeaseCommand(_Command, frozen=True, kw_only=True, gc=False):
    job_id: JobId
    lease_id: LeaseId
    actor: Actor
    expected_rev: int | None = None


class _Report(_LeaseCommand, frozen=True, kw_only=True, gc=False):
    request_id: RequestId


class _Request(_Command, frozen=True, kw_only=True, gc=False):
    job_id: JobId
    actor: Actor
    request_id: RequestId
    expected_rev: int | None = None
    expected_status: JobStatus | None = None


class ParentAttempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The attempt whose handler enqueues a job, and at which step of its work. [D8] [D10]"""

    job_id: JobId
    lease_id: LeaseId
    step: str = ""


class JobSpec(_Command, frozen=True, kw_only=True, gc=False):
    """Everything that an enqueue states about a job, except where it is and who asks."""

    kind: Kind
    queue: QueueName
    payload: bytes = b"null"
    priority: int = 0
    delay_us: Duration = Duration(0)
    run_at: Instant | None = None
    expires_us: Duration | None = None
    on_dead_letter: DeadLetterJob | None = None
    dedupe_key: str | None = None
    unique_for_us: Duration | None = None
    concurrency_key: str | None = None
    rate_key: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    meta: dict[str, str] | None = None
    policy: Policy | None = None
    """None: the policy that workers declare for the kind. [F9]"""


class Enqueue(JobSpec, frozen=True, kw_only=True, gc=False):
    """Make a job. The caller makes the id, so a repeated enqueue is one job. [D3]"""

    job_id: JobId
    namespace: Namespace
    actor: Actor

    def needs(self) -> Needs:
        """The policy that workers declared, if it brings none."""
        if self.policy is not None:
            return NOTHING
        return Needs(policies=((self.namespace, self.kind),))


class FollowUp(Enqueue, frozen=True, kw_only=True, gc=False):
    """Make a job out of another job's handler. Its id follows from the parent, the kind and the
    step, so that an attempt that is repeated makes it once. [D8]"""

    parent: ParentAttempt

    def needs(self) -> Needs:
        """Its parent's row too."""
        return replace(super().needs(), jobs=(self.parent.job_id,))


class Parent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that another one waits for: under which name its result is found, and how it has to
    end. [FL1]"""

    job_id: JobId
    step: str
    needs: JobStatus | None = JobStatus.SUCCEEDED  # None: any end will do


class FlowMember(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job of a flow, its name there, and the jobs that it waits for."""

    job: Enqueue
    step: str
    after: tuple[Parent, ...] = ()


class EnqueueFlow(_Command, frozen=True, kw_only=True, gc=False):
    """Make jobs that wait for each other, all of them or none. [FL3]"""

    flow_id: FlowId
    name: str
    members: tuple[FlowMember, ...]
    handler: ParentAttempt | None = None  # the attempt that makes it, and at which step [FL13]

    @property
    def job_id(self) -> JobId:
        """The first job's id. If it exists, all jobs of the flow do, unless a handler made the
        flow."""
        return self.members[0].job.job_id

    @property
    def actor(self) -> Actor:
        """Who asks: the same for all jobs."""
        return self.members[0].job.actor

    @property
    def outside_ids(self) -> list[JobId]:
        """The parents that are no members."""
        inside = {member.job.job_id for member in self.members}
        named = (parent.job_id for member in self.members for parent in member.after)
        return [job_id for job_id in dict.fromkeys(named) if job_id not in inside]

    def needs(self) -> Needs:
        """The parents outside the flow. For a flow that a handler makes also the handler's job, and
        whether an earlier attempt made the flow."""
        members = (member.job for member in self.members)
        undeclared = dict.fromkeys((job.namespace, job.kind) for job in members if not job.policy)
        handler = self.handler
        if handler is None:
            return Needs(jobs=tuple(self.outside_ids), policies=tuple(undeclared))
        return Needs(
            jobs=(*self.outside_ids, handler.job_id),
            policies=tuple(undeclared),
            made_flow=self.flow_id,
        )


class RedriveFlow(_Command, frozen=True, kw_only=True, gc=False):
    """Replace the jobs of a flow that did not succeed, all of them or none. [FL10]"""

    flow_id: FlowId
    namespace: Namespace
    actor: Actor
    request_id: RequestId

    @property
    def job_id(self) -> JobId:
        """Commands of one id are decided one after the other, and so are commands about one
        flow."""
        return JobId(self.flow_id)

    def needs(self) -> Needs:
        """The flow."""
        return Needs(flow=(self.namespace, self.flow_id))


NewJobs: TypeAlias = Enqueue | EnqueueFlow
"""What makes jobs that were not there."""


class ParentEnd(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a parent ended."""

    job_id: JobId
    status: JobStatus


class Unblock(_Command, frozen=True, kw_only=True, gc=False):
    """Queue a job that waited: its parents have ended. [T28] [T29]

    Edges never change once they have an outcome, so what the store found stays true until this is
    decided.
    """

    job_id: JobId
    ended_otherwise: ParentEnd | None = None  # a parent that did not end as the job needs it
    actor: Actor = SYSTEM


class ScheduledEnqueue(Enqueue, frozen=True, kw_only=True, gc=False):
    """Make the job of an occurrence of a schedule. Made by the planner of schedules, never by a
    caller. [SC1]"""

    schedule: ScheduleName
    scheduled_for: Instant


class Claim(_Command, frozen=True, kw_only=True, gc=False):
    """Grant one ready job to a worker, which starts it at once if the claim asks for that. Made by
    the claim planner, never by a caller."""

    job_id: JobId
    actor: Actor
    owner: WorkerId
    request_id: RequestId
    fingerprint: Fingerprint
    start: bool = False


class Start(_Report, frozen=True, kw_only=True, gc=False):
    """The owner starts to execute."""


def start_request_id(lease_id: LeaseId) -> RequestId:
    """The request id under which a claim starts a lease, so that a `start` that is sent anyway
    under this id is answered OK. [R18] [N4]"""
    return RequestId(f"{lease_id}:start")


class Heartbeat(_LeaseCommand, frozen=True, kw_only=True, gc=False):
    """The owner renews its lease; newer `hb_seq` only, so a delayed one extends nothing. [T4]"""

    hb_seq: int
    progress: Progress | None = None
    checkpoint: bytes | None = None

    @property
    def request_id(self) -> RequestId:
        """A heartbeat's request id follows from its lease and number."""
        return RequestId(f"{self.lease_id}:{self.hb_seq}")


class Complete(_Report, frozen=True, kw_only=True, gc=False):
    """The owner reports success."""

    result: bytes = b"null"


class Fail(_Report, frozen=True, kw_only=True, gc=False):
    """The owner reports that the attempt failed; the core decides what follows."""

    error: JobError
    retry_after_us: Duration = Duration(0)


class Release(_Report, frozen=True, kw_only=True, gc=False):
    """The owner hands the job back unharmed (deploy, snooze), or the coordinator takes back a
    grant that never reached its worker (`undelivered`). [T11]"""

    kind: ReleaseKind = ReleaseKind.DEPLOY
    delay_us: Duration = Duration(0)

    def needs(self) -> Needs:
        """The session, if the coordinator takes back a grant that did not reach it. [Q8]"""
        is_taken_back = self.actor == SYSTEM and self.kind is ReleaseKind.UNDELIVERED
        return _SESSION if is_taken_back else NOTHING


_SESSION = Needs(session=True)


class Outage(msgspec.Struct, frozen=True):
    """A time in which a process saw the store fail [O5], or over which it saw the store's clock
    jump ahead. [O11]"""

    began_at: Instant
    ended_at: Instant
    is_jump: bool = False

    def overlaps(self, since: Instant, until: Instant) -> bool:
        """Whether any of it lies between these two instants."""
        return self.began_at < until and since < self.ended_at


class Sweep(_Command, frozen=True, kw_only=True, gc=False):
    """Record what time has already revoked: grace over, timed out, or expired."""

    job_id: JobId
    outages: tuple[Outage, ...] = ()
    actor: Actor = SYSTEM


class Cancel(_Request, frozen=True, kw_only=True, gc=False):
    """Stop a job, softly with a grace or at once. [T17] [T18] [T19] [T20]"""

    mode: CancelMode = CancelMode.SOFT
    reason: str = ""


class Requeue(_Request, frozen=True, kw_only=True, gc=False):
    """An operator sends a job that is on hold back to its queue. [T14]"""


class Stall(_Request, frozen=True, kw_only=True, gc=False):
    """An operator takes a job from its worker and leaves it stalled. [T33]"""


class DeadLetter(_Request, frozen=True, kw_only=True, gc=False):
    """Take a live job out of circulation: policy violation, corrupt payload, infrastructure.
    [T21]"""

    reason_code: ReasonCode
    stage: Stage | None = None
    message: str = ""


class Redrive(_Request, frozen=True, kw_only=True, gc=False):
    """Make a new job out of a finished one, with another payload if one is given; the old one stays
    unchanged. A dead letter that was redriven or discarded before is refused unless `again` asks
    for another job. [T27] [B18]"""

    cause: EventCause = EventCause.REDRIVE
    payload: bytes | None = None
    again: bool = False

    def needs(self) -> Needs:
        """The job's compensation, the job that this request made before, and the resolution."""
        return Needs(jobs=(compensation_id(self.job_id), redriven_id(self)), resolution=True)


def redriven_id(command: Redrive) -> JobId:
    """The id of the job a redrive makes: repeated, it makes the same one. [T27]"""
    return derived_job_id(command.job_id, purpose=f"redrive:{command.request_id}")


class Discard(_Request, frozen=True, kw_only=True, gc=False):
    """Resolve a dead letter that will not be redriven; the job stays unchanged. [B3]"""

    note: str = ""

    def needs(self) -> Needs:
        """What became of the dead letter before."""
        return Needs(resolution=True)


Settle: TypeAlias = Complete | Fail | Release
WorkerCommand: TypeAlias = Start | Heartbeat | Complete | Fail | Release
OperatorCommand: TypeAlias = Cancel | Stall | Requeue | DeadLetter | Redrive
Command: TypeAlias = (
    Enqueue
    | FollowUp
    | ScheduledEnqueue
    | EnqueueFlow
    | RedriveFlow
    | Claim
    | WorkerCommand
    | Sweep
    | Unblock
    | OperatorCommand
    | Discard
)

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_NAMES: dict[type[Command], bytes] = {kind: kind.__name__.encode() for kind in get_args(Command)}


def fingerprint(command: Command) -> Fingerprint:
    """A digest of what was asked: a replay must ask the same, or the id was reused. [R15] [Q4]

    The request id is part of it, so that one function serves all commands. A traceparent is not: a
    repeat is sent in another span. [OB3] Nor is a follow-up's parent: such a job is not compared
    with what was asked. [D9]
    """
    asked: Command | dict[str, object] = command
    if isinstance(command, Enqueue):
        if command.trace_id is not None or isinstance(command, FollowUp):
            asked = _without_context(command)
    elif isinstance(command, EnqueueFlow):
        # Each job as an enqueue of its own would be compared.
        asked = {
            "flow_id": command.flow_id,
            "name": command.name,
            "members": [
                (_without_context(member.job), member.step, member.after)
                for member in command.members
            ],
        }
    body = _NAMES[type(command)] + _encode(asked)
    return Fingerprint(hashlib.blake2b(body, digest_size=16).hexdigest())


def _without_context(command: Enqueue) -> Enqueue:
    if isinstance(command, FollowUp):
        parent = ParentAttempt(job_id=command.parent.job_id, lease_id=LeaseId(""))
        command = replace(command, parent=parent)
    if command.trace_id is not None and traceparent_of(command.trace_id) is not None:
        command = replace(command, trace_id=None)
    return command
