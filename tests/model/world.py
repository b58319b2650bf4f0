"""The world around one job: what can be asked, what a store does with it, who believes what.

States are values and every step is a function from a state to the next one. Every decision is the
real `tenure.core` at work; this module only chooses who asks what and when, and remembers, beside
the core and without asking it, what callers were told (`Grip`). What must hold is in
`properties.py`; the search is in `checker.py`.
"""

import hashlib
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from tenure.core import claims, lifecycle
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
    start_request_id,
)
from tenure.core.events import Event
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
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    operator_actor,
    worker_actor,
)
from tenure.core.instants import Duration, Instant
from tenure.core.job import Job, JobError, Progress
from tenure.core.outcomes import (
    Applied,
    Change,
    DecisionContext,
    NeedsHistory,
    Outcome,
    Session,
    SessionKey,
)
from tenure.core.policy import Backoff, Compensation, Policy
from tenure.core.verdicts import Grant, Verdict
from tenure.core.vocabulary import (
    RENEWALS,
    CancelMode,
    Cause,
    ErrorClass,
    EventType,
    JobStatus,
    OnExhausted,
    OnLost,
    ReasonCode,
    ReleaseKind,
    Stage,
)
from tools.driver import last_session

BIRTH = Instant(1000)  # any positive instant; one tick is one microsecond
JOB_ID = JobId("00000000-0000-7000-8000-000000000001")
PARENT_ID = JobId("00000000-0000-7000-8000-000000000002")
WORKERS = (worker_actor("ann"), worker_actor("bob"))
CLIENT = client_actor("carl")
OPERATOR = operator_actor("olga")

SETTLES = (
    "complete",
    "complete again",
    "fail",
    "fail for good",
    "invalid",
    "bury",
    "release",
    "snooze",
)
START_AS_CLAIMED = "start as claimed"
STARTS = ("start", "start again", START_AS_CLAIMED)
RENEWS = ("heartbeat 1", "heartbeat 2")
ASKED = ("soft cancel", "hard cancel", "dead-letter", "requeue 1", "requeue 2")
PEOPLE = frozenset((*ASKED, "stall"))


def tiny_policy(
    *,
    on_lost: OnLost = OnLost.REQUEUE,
    on_exhausted: OnExhausted = OnExhausted.DEAD_LETTER,
    max_releases: int = 0,
    compensated: bool = False,
) -> Policy:
    """A policy whose every deadline is a few ticks away, and each can be the first to pass."""
    policy = Policy(
        lease_us=Duration(2),
        max_attempts=2,
        max_releases=max_releases,
        backoff=Backoff(initial_us=Duration(1), factor=1.0, cap_us=Duration(1), floor=1.0),
        timeout_us=Duration(3),
        start_within_us=Duration(1),
        grace_us=Duration(1),
        on_exhausted=on_exhausted,
        on_lost=on_lost,
    )
    if not compensated:
        return policy
    undo = Compensation(kind=Kind("undo"), queue=QueueName("undo"), policy=policy)
    return replace(policy, compensation=undo)


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration of the model: what may happen, and how often."""

    name: str
    policy: Policy = tiny_policy()
    reports: tuple[str, ...] = SETTLES[:-1]
    starts: tuple[str, ...] = STARTS[:2]
    renews: tuple[str, ...] = RENEWS
    asked: tuple[str, ...] = ("soft cancel", "hard cancel", "dead-letter")
    snoozes: int = 0
    undelivered: int = 0
    outages: int = 0
    epochs: int = 1
    is_racy: bool = False
    in_flight: int | None = None  # None: every request ever sendable may arrive, at any time
    crashes: int = 0
    is_compensation: bool = False
    claims_start: bool = False
    expires: int | None = None
    waits: bool = False  # for a parent, which ends somehow at any time

    @property
    def is_bounded(self) -> bool:
        """Whether messages are counted one by one."""
        return self.in_flight is not None


class Grip(msgspec.Struct, frozen=True, kw_only=True):
    """What the outside knows of one lease: whose it is, how it ended, what was answered."""

    number: int
    id: LeaseId
    principal: Actor
    owner: WorkerId
    epoch: int
    started_by: str = ""
    is_settled: bool = False
    lost_by: Cause | None = None
    report: str | None = None
    answer: Verdict | None = None
    heard_cancelled: bool = False


class Belief(msgspec.Struct, frozen=True, array_like=True):
    """What a worker process has in its memory. A crash leaves only the next generation."""

    generation: int = 1
    claim_seq: int = 1
    lease: int = 0
    phase: str = "idle"  # idle, held, running, reporting
    report: str = ""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was decided but has not reached the store yet."""

    action: str
    number: int
    decided_at: Instant
    epoch: int
    outcome: Applied
    command: Command


class Message(NamedTuple):
    """A request on its way: from which worker process, about which lease, saying what."""

    worker: int
    generation: int
    number: int  # the lease's, or the claim_seq of a claim
    action: str


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Everything. `log` leaves out renewals: decisions must not need them. [G1]"""

    now: Instant
    epoch: int
    job: Job
    log: tuple[Event, ...]
    log_key: bytes
    grips: tuple[Grip, ...] = ()
    cancel_heard: str = ""
    asked: tuple[str, ...] = ()  # accepted requests of people, which may be repeated for ever
    snoozes: int = 0
    undelivered: int = 0
    outages: int = 0
    crashes: int = 0
    beliefs: tuple[Belief, ...] = ()
    flying: tuple[Message, ...] = ()
    sessions: tuple[tuple[SessionKey, Session], ...] = ()
    proposal: Proposal | None = None


_encode = msgspec.msgpack.Encoder().encode


def _left(until: int | None, now: int) -> int | None:
    """What is left of a deadline. One that has passed stays passed, so the rest is forgotten."""
    return None if until is None else max(0, until - now)


def key_of(state: State) -> bytes:
    """The state up to what no decision can depend on: absolute time, rev and message texts."""
    job, now, policy = state.job, state.now, state.job.policy
    start_limit = timeout = None
    if job.claimed_at is not None:
        timeout = _left((job.started_at or job.claimed_at) + (policy.timeout_us or 0), now)
        if job.started_at is None and not job.renewals:
            start_limit = _left(job.claimed_at + policy.start_within_us, now)
    proposal = state.proposal
    body = (
        job.status,
        job.attempt,
        job.failures,
        job.releases,
        job.outage_credits,
        job.lease_id,
        job.owner,
        job.hb_seq,
        job.was_started,
        job.cancel_requested_at is None,
        job.stall_cause,
        job.reason_code,
        job.last_error is None,
        _left(job.not_before, now),
        _left(job.start_by, now),
        _left(job.lease_expires_at, now),
        _left(job.cancel_deadline, now),
        start_limit,
        timeout,
        state.log_key,
        state.epoch,
        state.cancel_heard,
        state.asked,
        state.snoozes,
        state.undelivered,
        state.outages,
        state.crashes,
        state.beliefs,
        state.flying,
        [
            (grip.is_settled, grip.report, grip.lost_by, grip.heard_cancelled, grip.started_by)
            for grip in state.grips
        ],
        [(key.worker, last.claim_seq) for key, last in state.sessions],
        None if proposal is None else _proposed(proposal, now),
    )
    return hashlib.blake2b(_encode(body), digest_size=16).digest()


def _proposed(proposal: Proposal, now: int) -> Any:
    # Which deadlines had passed when it was decided cannot be told from what has passed by now.
    causes = [event.cause for event in proposal.outcome.change.events]
    return proposal.action, proposal.number, proposal.epoch, now - proposal.decided_at, causes


def extended(log: tuple[Event, ...], key: bytes, news: tuple[Event, ...]) -> tuple[Any, bytes]:
    """The log with `news`, and the key of what decisions can read in it: no seq, no instant."""
    kept = tuple(event for event in news if event.type not in RENEWALS)
    if not kept:
        return log, key
    told = [
        (
            event.type,
            event.lease_id,
            event.actor,
            None if event.actor == SYSTEM else event.request_id,
            event.cause,
            event.fingerprint,
        )
        for event in kept
    ]
    return log + kept, hashlib.blake2b(key + _encode(told), digest_size=16).digest()


def moment(state: State) -> DecisionContext:
    """Now. The only luck there is is the next lease's id, which tells its attempt."""
    entropy = (state.job.attempt + 1).to_bytes(ENTROPY_BYTES, "big")
    return DecisionContext(
        now=state.now,
        epoch=Epoch(state.epoch),
        entropy=entropy,
        job=state.job,
        session=last_session(state.log),
    )


def ask(state: State, command: Command) -> Outcome:
    """What the core says, asked the way the coordinator asks: the log only when it is needed."""
    at = moment(state)
    outcome = lifecycle.decide(command, at)
    if isinstance(outcome, NeedsHistory):
        outcome = lifecycle.decide(command, replace(at, history=state.log))
    return outcome


def birth(bounds: Bounds) -> tuple[State, Applied]:
    """The job just enqueued, or the compensation that a failed one spawned."""
    enqueue: Command = Enqueue(
        job_id=JOB_ID,
        namespace=DEFAULT_NAMESPACE,
        queue=QueueName("main"),
        kind=Kind("work"),
        actor=CLIENT,
        policy=bounds.policy,
        expires_us=None if bounds.expires is None else Duration(bounds.expires),
    )
    if bounds.waits:
        enqueue = _flow(bounds)
    at = DecisionContext(now=BIRTH, epoch=Epoch(1), entropy=bytes(ENTROPY_BYTES))
    outcome = lifecycle.decide(enqueue, at)
    assert isinstance(outcome, Applied)
    born = outcome.change
    if bounds.is_compensation:
        born = _undone(born.job, at)
    log, log_key = extended((), b"", born.events)
    workers = (Belief(), Belief()) if bounds.is_bounded else ()
    return State(
        now=BIRTH, epoch=1, job=born.job, log=log, log_key=log_key, beliefs=workers
    ), outcome


def _flow(bounds: Bounds) -> EnqueueFlow:
    """The job, which waits for another one."""
    job, parent = (
        Enqueue(
            job_id=job_id,
            namespace=DEFAULT_NAMESPACE,
            queue=QueueName("main"),
            kind=Kind("work"),
            actor=CLIENT,
            policy=bounds.policy,
        )
        for job_id in (JOB_ID, PARENT_ID)
    )
    after = (Parent(job_id=PARENT_ID, step="first"),)
    members = (
        FlowMember(job=job, step="second", after=after),
        FlowMember(job=parent, step="first"),
    )
    return EnqueueFlow(flow_id=FlowId(JOB_ID), name="flow", members=members)


def _undone(job: Job, at: DecisionContext) -> Change:
    """The compensation that appears when `job` was started and then cancelled."""
    claim = Claim(
        job_id=job.id,
        actor=WORKERS[0],
        owner=WorkerId("ann"),
        request_id=RequestId("claim"),
        fingerprint=Fingerprint(""),
    )
    steps: list[Command] = [
        claim,
        Start(job_id=job.id, lease_id=_lease_id(1, 0), actor=WORKERS[0], request_id=_id("start")),
        asking("hard cancel", job.id),
    ]
    change, history = None, list[Event]()
    for command in steps:
        outcome = lifecycle.decide(command, replace(at, job=job, history=history))
        assert isinstance(outcome, Applied)
        change, job = outcome.change, outcome.change.job
        history.extend(change.events)
    assert change is not None
    return change.spawned[0]


def _id(text: str) -> RequestId:
    return RequestId(text)


def _lease_id(epoch: int, attempt: int) -> LeaseId:
    return LeaseId(f"{epoch}-{attempt.to_bytes(ENTROPY_BYTES, 'big').hex()}")


_ERRORS = {
    "fail": JobError(error_class=ErrorClass.TRANSIENT, type="Flaky"),
    "fail for good": JobError(error_class=ErrorClass.PERMANENT, type="Broken"),
    "invalid": JobError(error_class=ErrorClass.VALIDATION, type="Bad", stage=Stage.INPUT),
    "bury": JobError(type="DeadLetter", reason_code=ReasonCode.POLICY_VIOLATION),
}


@cache
def saying(action: str, job_id: JobId, lease: LeaseId, actor: Actor) -> Command:
    """A worker's request about a lease.

    Request ids are the same under every lease: an id means something within its lease only [R23].
    All reports but `complete again` share one, so that each is also the others' reused id.
    """
    who: dict[str, Any] = {"job_id": job_id, "lease_id": lease, "actor": actor}
    match action:
        case "start" | "start again":
            return Start(**who, request_id=_id(action))
        case "start as claimed":
            return Start(**who, request_id=start_request_id(lease))
        case "heartbeat 1":
            return Heartbeat(**who, hb_seq=1)
        case "heartbeat 2":
            return Heartbeat(**who, hb_seq=2, progress=Progress(done=1), checkpoint=b"2")
        case "complete":
            return Complete(**who, request_id=_id("report"))
        case "complete again":
            return Complete(**who, request_id=_id("report again"))
        case "fail" | "fail for good" | "invalid" | "bury":
            return Fail(**who, request_id=_id("report"), error=_ERRORS[action])
        case "release":
            return Release(**who, request_id=_id("report"))
        case "snooze":
            return Release(**who, request_id=_id("report"), kind=ReleaseKind.SNOOZE)
        case "take back":
            return Release(**who, request_id=_id("back"), kind=ReleaseKind.UNDELIVERED)
        case _:
            raise ValueError(action)


@cache
def asking(action: str, job_id: JobId) -> Command:
    """A client's or an operator's request, or the system's."""
    match action:
        case "soft cancel":
            return Cancel(job_id=job_id, actor=CLIENT, request_id=_id("report"), reason="s")
        case "hard cancel":
            return Cancel(job_id=job_id, actor=CLIENT, request_id=_id("hard"), mode=CancelMode.HARD)
        case "dead-letter":
            return DeadLetter(
                job_id=job_id,
                actor=OPERATOR,
                request_id=_id("dead"),
                reason_code=ReasonCode.POLICY_VIOLATION,
            )
        case "stall":
            return Stall(job_id=job_id, actor=OPERATOR, request_id=_id("stall"))
        case "requeue 1" | "requeue 2":
            return Requeue(job_id=job_id, actor=OPERATOR, request_id=_id(action))
        case "redrive":
            return Redrive(job_id=job_id, actor=OPERATOR, request_id=_id("again"))
        case "parent succeeds":
            return Unblock(job_id=job_id)
        case "parent fails":
            ended = ParentEnd(job_id=PARENT_ID, status=JobStatus.FAILED)
            return Unblock(job_id=job_id, ended_otherwise=ended)
        case "sweep":
            return Sweep(job_id=job_id)
        case "sweep after an outage":
            # It covers every lease, so that no decision depends on when it was.
            return Sweep(job_id=job_id, outages=(Outage(Instant(0), Instant(10**9)),))
        case "sweep after a jump":
            jump = Outage(Instant(0), Instant(10**9), is_jump=True)
            return Sweep(job_id=job_id, outages=(jump,))
        case _:
            raise ValueError(action)


def claim_request(
    actor: Actor, worker: WorkerId, claim_seq: int, *, start: bool = False
) -> claims.ClaimRequest:
    """One worker session asks for one job."""
    return claims.ClaimRequest(
        namespace=DEFAULT_NAMESPACE,
        worker=worker,
        actor=actor,
        queues=(QueueName("main"), QueueName("undo")),
        limit=1,
        claim_seq=claim_seq,
        request_id=_id(f"claim {claim_seq}"),
        start=start,
    )


def plan(state: State, request: claims.ClaimRequest) -> claims.ClaimPlan:
    """What the claim planner makes of a claim. The job is offered whether it is ready or not."""
    view = claims.ClaimView(
        now=state.now,
        epoch=Epoch(state.epoch),
        sessions=dict(state.sessions),
        queues={},
        candidates=[state.job],
    )
    return claims.plan_claims([request], view, [moment(state).entropy])


def repeated_grant(state: State, request: claims.ClaimRequest) -> Grant | None:
    """What a repeated claim gets: its own grant, if that lease still has authority. [Q1]"""
    job = state.job
    if job.lease is None or not job.lease.is_live(state.now):
        return None
    mine = [
        event
        for event in state.log
        if event.type is EventType.CLAIMED
        and event.lease_id == job.lease_id
        and event.owner == request.worker
        and event.actor == request.actor
        and event.request_id == request.request_id
    ]
    is_of_now = state.grips[-1].epoch == state.epoch
    return lifecycle.grant_of(job, moment(state)) if mine and is_of_now else None
