"""A driver: one job led through the pure core in virtual time, with everything it left behind.

It stands where a coordinator and a store would stand, without being either: it keeps the row and
the log, moves the clock only when told, and draws "random" bytes from a counter, so that the same
calls give the same history. After every change it asserts what must hold of any history.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from tenure.core.commands import (
    Cancel,
    Claim,
    Command,
    Complete,
    DeadLetter,
    Enqueue,
    EnqueueFlow,
    Fail,
    FlowMember,
    Heartbeat,
    Outage,
    Parent,
    ParentEnd,
    Redrive,
    Release,
    Requeue,
    Stall,
    Start,
    Sweep,
    Unblock,
)
from tenure.core.events import Event
from tenure.core.evolution import digested, fold
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    ENTROPY_BYTES,
    SYSTEM,
    Actor,
    Epoch,
    Fingerprint,
    FlowId,
    JobId,
    Kind,
    LeaseId,
    Namespace,
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    new_job_id,
    operator_actor,
    worker_actor,
)
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job, JobError, Progress, row_violations
from tenure.core.lifecycle import decide
from tenure.core.outcomes import (
    Applied,
    Change,
    DecisionContext,
    Moment,
    NeedsHistory,
    Outcome,
    Session,
    SessionKey,
)
from tenure.core.policy import Policy
from tenure.core.transitions import allows
from tenure.core.verdicts import Observation
from tenure.core.vocabulary import (
    CancelMode,
    ErrorClass,
    EventCause,
    EventClass,
    EventType,
    JobStatus,
    ReasonCode,
    ReleaseKind,
    Stage,
)

BEGINNING = Instant(1_700_000_000_000_000)
WORKER = worker_actor("ada")
OTHER_WORKER = worker_actor("bob")
CLIENT = client_actor("shop")
OPERATOR = operator_actor("olga")
KIND = Kind("invoice")
QUEUE = QueueName("billing")
OWNER = WorkerId("ada-1")
OTHER_OWNER = WorkerId("bob-1")

TRANSIENT = JobError(error_class=ErrorClass.TRANSIENT, type="Timeout", message="no answer")
PERMANENT = JobError(error_class=ErrorClass.PERMANENT, type="NoSuchUser", message="gone")
FORBIDDEN = JobError(
    error_class=ErrorClass.PERMANENT,
    type="DeadLetter",
    message="may not leave the EU",
    stage=Stage.EXEC,
    reason_code=ReasonCode.POLICY_VIOLATION,
)


def entropy(number: int) -> bytes:
    """The bytes a driver takes for its `number`-th draw."""
    return hashlib.sha256(f"entropy {number}".encode()).digest()[:ENTROPY_BYTES]


JOB_ID = new_job_id(BEGINNING, entropy(0))
PARENT_ID = JobId("01977420-dc00-7000-8000-0000000000aa")
FLOW_ID = FlowId("01977420-dc00-7000-8000-0000000000f1")


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """What a driver was told, and when: enough to repeat it in another language."""

    at: Moment
    command: Command


class Prune(msgspec.Struct, frozen=True):
    """The renewals of ended attempts were deleted. [G1]"""


class Purge(msgspec.Struct, frozen=True):
    """The job was deleted with everything of its own. [T26]"""


def last_session(events: Sequence[Event]) -> Session | None:
    """What a store remembers of the session that was granted the last attempt of this log."""
    granted = [event for event in events if event.type is EventType.CLAIMED]
    if not granted:
        return None
    last = granted[-1]
    assert last.owner is not None
    return Session(
        key=SessionKey(namespace=DEFAULT_NAMESPACE, actor=last.actor, worker=last.owner),
        claim_seq=1,
        request_id=last.request_id,
        fingerprint=last.fingerprint or Fingerprint(""),
        claimed_at=last.ts,
    )


class Driver:
    """One job, its log, and the clock."""

    def __init__(self, *, policy: Policy | None = None, now: Instant = BEGINNING) -> None:
        self.policy = policy or Policy()
        self.now = now
        self.epoch = Epoch(1)
        self.job_or_none: Job | None = None
        self.events: list[Event] = []
        self.observations: list[Observation] = []
        self.spawned: list[Change] = []
        self.script: list[Step | Prune | Purge] = []
        self.rules: list[str] = []
        self.draws = 0
        self.last_lease_id: LeaseId | None = None

    # --- The world ---------------------------------------------------------------------------

    @property
    def job(self) -> Job:
        """The row; there must be one."""
        assert self.job_or_none is not None
        return self.job_or_none

    @property
    def lease_id(self) -> LeaseId:
        """The lease of the latest attempt, live or not; a made-up one before the first."""
        return self.last_lease_id or LeaseId(f"{self.epoch}-{'0' * 32}")

    def advance(self, amount_s: float) -> None:
        """Let virtual time pass; a negative amount is a clock that steps back."""
        self.now = Instant(self.now + seconds(amount_s))

    def at(self) -> Moment:
        """The moment of the next decision."""
        return Moment(now=self.now, epoch=self.epoch, entropy=entropy(self.draws))

    def context(self, **read: Any) -> DecisionContext:
        """The moment of the next decision, the row, the session that claimed last, and what else is
        `read`."""
        found = {"job": self.job_or_none, "session": last_session(self.events)}
        return DecisionContext(**(asdict(self.at()) | found | read))

    def raise_epoch(self) -> None:
        """Begin a new epoch: every unsettled lease is lost. [A5]"""
        self.epoch = Epoch(self.epoch + 1)

    def prune_renewals(self) -> None:
        """Delete the renewals of ended attempts from the log. [G1]"""
        live = self.job.lease_id
        self.events = [
            event
            for event in self.events
            if event.event_class is EventClass.TRANSITION or event.lease_id == live
        ]
        self.script.append(Prune())

    def purge(self) -> None:
        """Delete the job. [T26]"""
        self.job_or_none, self.events = None, []
        self.script.append(Purge())

    def ask(self, command: Command, **read: Any) -> Outcome:
        """What the core would say now, if that is `read` too; nothing is kept."""
        outcome = decide(command, self.context(**read))
        if isinstance(outcome, NeedsHistory):
            outcome = decide(command, self.context(history=self.events, **read))
        assert not isinstance(outcome, NeedsHistory), "asked again with all there is"
        return outcome

    def do(self, command: Command) -> Outcome:
        """What the core says now; what it says must be written is kept."""
        outcome = self.ask(command)
        self.script.append(Step(at=self.at(), command=command))
        self.draws += 1
        if isinstance(outcome, Applied):
            self._keep(outcome, command)
        return outcome

    def _keep(self, outcome: Applied, command: Command) -> None:
        change, before = outcome.change, self.job_or_none
        self.rules.append(outcome.rule)
        if isinstance(command, Redrive):
            self.spawned.append(change)
            return
        path = tuple((event.type, event.to_status) for event in change.events)
        assert allows(outcome.rule, before.status if before else None, path)
        assert change.expected_rev == (before.rev if before else 0)
        assert not row_violations(change.job), row_violations(change.job)
        self.events.extend(change.events)
        assert fold(self.events) == digested(change.job)
        self.job_or_none = change.job
        self.last_lease_id = change.job.lease_id or self.last_lease_id
        self.observations.extend(change.observations)
        self.spawned.extend(change.spawned)

    def follow(self, change: Change) -> "Driver":
        """A driver for a job that this one spawned."""
        other = Driver(policy=change.job.policy, now=self.now)
        other.epoch, other.draws = self.epoch, self.draws + 1000
        other.job_or_none, other.events = change.job, list(change.events)
        return other

    # --- Commands, with defaults -------------------------------------------------------------

    def _request(self, verb: str, request_id: str | None) -> RequestId:
        return RequestId(request_id or f"{verb}-{self.draws}")

    def enqueue(
        self,
        *,
        payload: bytes = b'{"order":7}',
        priority: int = 0,
        delay_s: float = 0,
        dedupe_key: str | None = None,
        correlation_id: str | None = "order-7",
        trace_id: str | None = None,
        job_id: JobId = JOB_ID,
        run_at: Instant | None = None,
        kind: Kind = KIND,
        queue: QueueName = QUEUE,
        namespace: Namespace = DEFAULT_NAMESPACE,
    ) -> Enqueue:
        """An enqueue under the driver's policy."""
        return Enqueue(
            job_id=job_id,
            namespace=namespace,
            queue=queue,
            kind=kind,
            actor=CLIENT,
            payload=payload,
            priority=priority,
            delay_us=seconds(delay_s),
            run_at=run_at,
            dedupe_key=dedupe_key,
            correlation_id=correlation_id,
            trace_id=trace_id,
            policy=self.policy,
        )

    def flow(self, *, payload: bytes = b'{"order":7}') -> EnqueueFlow:
        """A flow of two: the driver's job, which waits for the other one."""
        other = self.enqueue(job_id=PARENT_ID)
        after = (Parent(job_id=PARENT_ID, step="first"),)
        return EnqueueFlow(
            flow_id=FLOW_ID,
            name="orders",
            members=(
                FlowMember(job=self.enqueue(payload=payload), step="second", after=after),
                FlowMember(job=other, step="first"),
            ),
        )

    def unblock(self, ended: JobStatus | None = None) -> Unblock:
        """The parent has succeeded, or has ended so."""
        otherwise = None if ended is None else ParentEnd(job_id=PARENT_ID, status=ended)
        return Unblock(job_id=self._id, ended_otherwise=otherwise)

    def claim(
        self,
        *,
        actor: Actor = WORKER,
        owner: WorkerId = OWNER,
        request_id: str | None = None,
        start: bool = False,
    ) -> Claim:
        """A grant as the planner asks for it."""
        return Claim(
            job_id=self._id,
            actor=actor,
            owner=owner,
            request_id=self._request("claim", request_id),
            fingerprint=Fingerprint("f" * 32),
            start=start,
        )

    @property
    def _id(self) -> JobId:
        return self.job_or_none.id if self.job_or_none else JOB_ID

    def start(
        self,
        *,
        request_id: str | None = None,
        lease_id: LeaseId | None = None,
        actor: Actor = WORKER,
    ) -> Start:
        """The latest lease's owner begins."""
        return Start(
            job_id=self._id,
            lease_id=lease_id or self.lease_id,
            actor=actor,
            request_id=self._request("start", request_id),
        )

    def heartbeat(
        self,
        *,
        hb_seq: int | None = None,
        progress: Progress | None = None,
        checkpoint: bytes | None = None,
        lease_id: LeaseId | None = None,
        actor: Actor = WORKER,
    ) -> Heartbeat:
        """The next heartbeat of the latest lease, or the one with this number."""
        next_seq = self.job_or_none.hb_seq + 1 if self.job_or_none else 1
        return Heartbeat(
            job_id=self._id,
            lease_id=lease_id or self.lease_id,
            actor=actor,
            hb_seq=next_seq if hb_seq is None else hb_seq,
            progress=progress,
            checkpoint=checkpoint,
        )

    def complete(
        self,
        *,
        result: bytes = b'"done"',
        request_id: str | None = None,
        lease_id: LeaseId | None = None,
        actor: Actor = WORKER,
    ) -> Complete:
        """The latest lease's owner reports success."""
        return Complete(
            job_id=self._id,
            lease_id=lease_id or self.lease_id,
            actor=actor,
            request_id=self._request("complete", request_id),
            result=result,
        )

    def fail(
        self,
        error: JobError = TRANSIENT,
        *,
        retry_after_s: float = 0,
        request_id: str | None = None,
        lease_id: LeaseId | None = None,
        actor: Actor = WORKER,
    ) -> Fail:
        """The latest lease's owner reports a failure."""
        return Fail(
            job_id=self._id,
            lease_id=lease_id or self.lease_id,
            actor=actor,
            request_id=self._request("fail", request_id),
            error=error,
            retry_after_us=seconds(retry_after_s),
        )

    def release(
        self,
        kind: ReleaseKind = ReleaseKind.DEPLOY,
        *,
        delay_s: float = 0,
        request_id: str | None = None,
        lease_id: LeaseId | None = None,
        actor: Actor = WORKER,
    ) -> Release:
        """The latest lease's owner hands the job back."""
        return Release(
            job_id=self._id,
            lease_id=lease_id or self.lease_id,
            actor=actor,
            request_id=self._request("release", request_id),
            kind=kind,
            delay_us=seconds(delay_s),
        )

    def undelivered(self, *, request_id: str | None = None) -> Release:
        """The coordinator takes back a grant that never reached its worker."""
        return self.release(ReleaseKind.UNDELIVERED, request_id=request_id, actor=SYSTEM)

    def sweep(self, *outages: Outage) -> Sweep:
        """The system records what time has decided."""
        return Sweep(job_id=self._id, outages=outages)

    def cancel(
        self,
        mode: CancelMode = CancelMode.SOFT,
        *,
        reason: str = "changed my mind",
        request_id: str | None = None,
        actor: Actor = CLIENT,
        expected_rev: int | None = None,
        expected_status: JobStatus | None = None,
    ) -> Cancel:
        """A client cancels."""
        return Cancel(
            job_id=self._id,
            actor=actor,
            request_id=self._request("cancel", request_id),
            mode=mode,
            reason=reason,
            expected_rev=expected_rev,
            expected_status=expected_status,
        )

    def stall(
        self,
        *,
        request_id: str | None = None,
        expected_rev: int | None = None,
        expected_status: JobStatus | None = None,
    ) -> Stall:
        """An operator takes the job from its worker."""
        return Stall(
            job_id=self._id,
            actor=OPERATOR,
            request_id=self._request("stall", request_id),
            expected_rev=expected_rev,
            expected_status=expected_status,
        )

    def requeue(
        self,
        *,
        request_id: str | None = None,
        expected_rev: int | None = None,
        expected_status: JobStatus | None = None,
    ) -> Requeue:
        """An operator lets a held job go."""
        return Requeue(
            job_id=self._id,
            actor=OPERATOR,
            request_id=self._request("requeue", request_id),
            expected_rev=expected_rev,
            expected_status=expected_status,
        )

    def dead_letter(
        self,
        reason_code: ReasonCode = ReasonCode.POLICY_VIOLATION,
        *,
        message: str = "not allowed",
        request_id: str | None = None,
        expected_rev: int | None = None,
        expected_status: JobStatus | None = None,
    ) -> DeadLetter:
        """An operator takes the job out of circulation."""
        return DeadLetter(
            job_id=self._id,
            actor=OPERATOR,
            request_id=self._request("dead-letter", request_id),
            reason_code=reason_code,
            message=message,
            expected_rev=expected_rev,
            expected_status=expected_status,
        )

    def redrive(
        self,
        cause: EventCause = EventCause.REDRIVE,
        *,
        payload: bytes | None = None,
        request_id: str | None = None,
        expected_rev: int | None = None,
        expected_status: JobStatus | None = None,
    ) -> Redrive:
        """An operator makes a new job out of this one."""
        return Redrive(
            job_id=self._id,
            actor=OPERATOR,
            request_id=self._request("redrive", request_id),
            cause=cause,
            payload=payload,
            expected_rev=expected_rev,
            expected_status=expected_status,
        )
