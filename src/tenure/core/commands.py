"""Commands: everything anybody may ask about one job, as plain values.

A command says who asks (`actor`, the authenticated principal), under which request id, and what.
It decides nothing. A worker's command carries durations, never instants. [L8] `validation.py`
bounds every field.
"""

import hashlib
from typing import TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from tenure.core.events import Event
from tenure.core.flow_rows import Edge, FlowView
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
    traceparent_of,
)
from tenure.core.instants import Duration, Instant
from tenure.core.job import Job, JobError, Progress
from tenure.core.policy import DeadLetterJob, Policy
from tenure.core.resolutions import Resolution
from tenure.core.vocabulary import CancelMode, EventCause, JobStatus, ReasonCode, ReleaseKind, Stage


class ParentAttempt(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The attempt whose handler enqueues a job, and at which step of its work. [D8] [D10]"""

    job_id: JobId
    lease_id: LeaseId
    step: str = ""
    job: Job | None = None  # the parent's row, as the service found it
    history: tuple[Event, ...] | None = None  # its events, if the row alone cannot tell [R24]


class Enqueue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Make a job. The caller makes the id, so a repeated enqueue is one job. [D3]"""

    job_id: JobId
    namespace: Namespace
    queue: QueueName
    kind: Kind
    actor: Actor
    payload: bytes = b"null"
    priority: int = 0
    delay_us: Duration = Duration(0)
    run_at: Instant | None = None
    expires_us: Duration | None = None
    on_dead_letter: DeadLetterJob | None = None
    dedupe_key: str | None = None
    unique_for_us: Duration | None = None
    concurrency_key: str | None = None
    concurrency_group: str | None = None
    rate_key: str | None = None
    correlation_id: str | None = None
    trace_id: str | None = None
    policy: Policy | None = None
    """None: the policy that workers declare for the kind. [F9]"""


class FollowUp(Enqueue, frozen=True, kw_only=True, gc=False):
    """Make a job out of another job's handler. Its id follows from the parent, the kind and the
    step, so that an attempt that is repeated makes it once. [D8]"""

    parent: ParentAttempt


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


class EnqueueFlow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Make jobs that wait for each other, all of them or none. [FL3]"""

    flow_id: FlowId
    name: str
    members: tuple[FlowMember, ...]
    outside: dict[JobId, Job] | None = None  # parents that are no members, as the service found
    handler: ParentAttempt | None = None  # the attempt that makes it, and at which step [FL13]
    exists: bool = False  # whether the service found a flow of this id; only for a handler's

    @property
    def job_id(self) -> JobId:
        """The first job: where it is, all of them are, unless a handler made the flow."""
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


class FlowToRedrive(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the service found of a flow that is to be redriven."""

    view: FlowView
    jobs: dict[JobId, Job] = {}  # those that did not succeed and that no other job replaces
    edges: tuple[Edge, ...] = ()  # of these
    compensations: dict[JobId, Job] = {}  # of these, by the job that they compensate
    present: frozenset[JobId] = frozenset()  # parents of these that exist


class RedriveFlow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Replace the jobs of a flow that did not succeed, all of them or none. [FL10]"""

    flow_id: FlowId
    namespace: Namespace
    actor: Actor
    request_id: RequestId
    found: FlowToRedrive | None = None  # as the service found it; None: there is no such flow

    @property
    def job_id(self) -> JobId:
        """Commands of one id are decided one after the other: those about one flow are."""
        return JobId(self.flow_id)


NewJobs: TypeAlias = Enqueue | EnqueueFlow
"""What makes jobs that were not there."""


class ParentEnd(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """How a parent ended."""

    job_id: JobId
    status: JobStatus


class Unblock(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Let a job that waited go on: its parents have ended. [T28] [T29]

    Edges never change once they are marked, so what the store found stays true until this is
    decided."""

    job_id: JobId
    ended_otherwise: ParentEnd | None = None  # a parent that did not end as the job needs it
    actor: Actor = SYSTEM


class ScheduledEnqueue(Enqueue, frozen=True, kw_only=True, gc=False):
    """Make the job of an occurrence of a schedule. Made by the planner of schedules, never by a
    caller. [SC1]"""

    schedule: ScheduleName
    scheduled_for: Instant


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Grant one ready job to a worker, which starts it at once if it said so. Made by the claim
    planner, never by a caller."""

    job_id: JobId
    actor: Actor
    owner: WorkerId
    request_id: RequestId
    fingerprint: Fingerprint
    start: bool = False


class Start(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The owner begins to execute."""

    job_id: JobId
    lease_id: LeaseId
    actor: Actor
    request_id: RequestId
    expected_rev: int | None = None


def start_request_id(lease_id: LeaseId) -> RequestId:
    """Under which id a lease is started by its claim, so that a `start` that is sent all the same
    under this id hears OK. [R18] [N4]"""
    return RequestId(f"{lease_id}:start")


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The owner renews its lease; newer `hb_seq` only, so a delayed one extends nothing. [T4]"""

    job_id: JobId
    lease_id: LeaseId
    actor: Actor
    hb_seq: int
    progress: Progress | None = None
    checkpoint: bytes | None = None
    expected_rev: int | None = None

    @property
    def request_id(self) -> RequestId:
        """A heartbeat's request id follows from its lease and number."""
        return RequestId(f"{self.lease_id}:{self.hb_seq}")


class Complete(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The owner reports success."""

    job_id: JobId
    lease_id: LeaseId
    actor: Actor
    request_id: RequestId
    result: bytes = b"null"
    expected_rev: int | None = None


class Fail(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The owner reports that the attempt failed; the core decides what follows."""

    job_id: JobId
    lease_id: LeaseId
    actor: Actor
    request_id: RequestId
    error: JobError
    retry_after_us: Duration = Duration(0)
    expected_rev: int | None = None


class Release(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The owner hands the job back unharmed (deploy, snooze), or the coordinator takes back a
    grant that never reached its worker (`undelivered`). [T11]"""

    job_id: JobId
    lease_id: LeaseId
    actor: Actor
    request_id: RequestId
    kind: ReleaseKind = ReleaseKind.DEPLOY
    delay_us: Duration = Duration(0)
    expected_rev: int | None = None


class Outage(msgspec.Struct, frozen=True):
    """A time in which a process saw the store fail [O5], or over which it saw the store's clock
    jump ahead. [O11]"""

    began_at: Instant
    ended_at: Instant
    is_jump: bool = False

    def overlaps(self, since: Instant, until: Instant) -> bool:
        """Whether any of it lies between these two instants."""
        return self.began_at < until and since < self.ended_at


class Sweep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Record what time has already revoked: grace over, timed out, or expired."""

    job_id: JobId
    outages: tuple[Outage, ...] = ()
    actor: Actor = SYSTEM


class Cancel(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Stop a job, softly with a grace or at once. [T17] [T18] [T19] [T20]"""

    job_id: JobId
    actor: Actor
    request_id: RequestId
    mode: CancelMode = CancelMode.SOFT
    reason: str = ""
    expected_rev: int | None = None
    expected_status: JobStatus | None = None


class Requeue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An operator lets a held job go back to its queue. [T14]"""

    job_id: JobId
    actor: Actor
    request_id: RequestId
    expected_rev: int | None = None
    expected_status: JobStatus | None = None


class Stall(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An operator takes a job from its worker and leaves it stalled. [T33]"""

    job_id: JobId
    actor: Actor
    request_id: RequestId
    expected_rev: int | None = None
    expected_status: JobStatus | None = None


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Take a live job out of circulation: policy violation, corrupt payload, infrastructure.
    [T21]"""

    job_id: JobId
    actor: Actor
    request_id: RequestId
    reason_code: ReasonCode
    stage: Stage | None = None
    message: str = ""
    expected_rev: int | None = None
    expected_status: JobStatus | None = None


class Redrive(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Make a new job out of a finished one, with another payload if one is given; the old one stays
    as it is. A dead letter that was redriven or discarded before is refused unless `again` asks for
    another job. [T27] [B18]"""

    job_id: JobId
    actor: Actor
    request_id: RequestId
    cause: EventCause = EventCause.REDRIVE
    payload: bytes | None = None
    again: bool = False
    compensation: Job | None = None  # the finished job's compensation, as the service found it
    resolution: Resolution | None = None  # the job's resolution, as the service found it
    key_holder: Job | None = None  # whom the new job takes the key from, as the service found it
    expected_rev: int | None = None
    expected_status: JobStatus | None = None


class Discard(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Resolve a dead letter that nobody will redrive; the job stays as it is. [B3]"""

    job_id: JobId
    actor: Actor
    request_id: RequestId
    note: str = ""
    resolution: Resolution | None = None  # the job's resolution, as the service found it
    expected_rev: int | None = None
    expected_status: JobStatus | None = None


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

_encode = msgspec.msgpack.Encoder().encode
_NAMES: dict[type[Command], bytes] = {kind: kind.__name__.encode() for kind in get_args(Command)}


def fingerprint(command: Command) -> Fingerprint:
    """A digest of what was asked: a replay must ask the same, or the id was reused. [R15] [Q4]

    The request id is part of it, so that one function serves all commands. What
    the service loads for the decision (a redrive's compensation, a resolution) is not, because the
    caller did not send it. Nor is a traceparent: a repeat is sent in another span. [OB3] Nor
    is a follow-up's parent: nobody compares such a job with what was asked. [D9]
    """
    kind = type(command)
    if isinstance(command, Enqueue):
        return _digest(kind, _without_context(command))
    if isinstance(command, EnqueueFlow):
        return _digest(kind, _flow_as_asked(command))
    if isinstance(command, Redrive):
        command = replace(command, compensation=None, resolution=None, key_holder=None)
    elif isinstance(command, Discard):
        command = replace(command, resolution=None)
    elif isinstance(command, RedriveFlow):
        command = replace(command, found=None)
    return _digest(kind, command)


def _digest(kind: type[Command], asked: Command | dict[str, object]) -> Fingerprint:
    body = _NAMES[kind] + _encode(asked)
    return Fingerprint(hashlib.blake2b(body, digest_size=16).hexdigest())


def _flow_as_asked(command: EnqueueFlow) -> dict[str, object]:
    """Each job as an enqueue of its own would be compared."""
    return {
        "flow_id": command.flow_id,
        "name": command.name,
        "members": [
            (_without_context(member.job), member.step, member.after) for member in command.members
        ],
    }


def _without_context(command: Enqueue) -> Enqueue:
    if isinstance(command, FollowUp):
        parent = ParentAttempt(job_id=command.parent.job_id, lease_id=LeaseId(""))
        command = replace(command, parent=parent)
    if traceparent_of(command.trace_id) is not None:
        command = replace(command, trace_id=None)
    return command
