"""Applying: turns the steps of a decision into events, the next row and a change to save.

`decide` says which row of THE table it follows; `apply` refuses a path that the row does not
have. That is the whole of its judgement.
"""

from collections.abc import Callable, Sequence

import msgspec

from tenure.core.commands import (
    Claim,
    Command,
    Enqueue,
    Heartbeat,
    Start,
    Sweep,
    fingerprint,
)
from tenure.core.events import Event, Facts, Observation, digest
from tenure.core.evolution import evolve
from tenure.core.ids import (
    SYSTEM,
    Actor,
    Fingerprint,
    JobId,
    LeaseId,
    RequestId,
    WorkerId,
    derived_job_id,
    role_of,
)
from tenure.core.instants import Instant, later
from tenure.core.job import Job
from tenure.core.outcomes import Applied, Change, Moment
from tenure.core.transitions import BY_ID, is_lawful
from tenure.core.verdicts import Answer
from tenure.core.vocabulary import EventCause, EventType, JobStatus, ObservationType

COMPENSATED_ENDS = frozenset({JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.DEAD_LETTERED})


class Draft(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event before it has a place in the log."""

    type: EventType
    to: JobStatus
    cause: EventCause | None = None
    facts: Facts = Facts()
    body: bytes | None = None
    expires_at: Instant | None = None
    lease_id: LeaseId | None = None
    owner: WorkerId | None = None


class Origin(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Who asked, under which id: the columns every event of one decision shares."""

    actor: Actor
    request_id: RequestId | None  # None: a system transition, named job_id:rev
    fingerprint: Fingerprint | None = None


_WITHOUT_FINGERPRINT = (Start, Heartbeat)


def origin_of(command: Command) -> Origin:
    """The origin a command gives to its events.

    A fingerprint is kept where a repeat is compared with it: not for start and heartbeat, which
    are judged anew, nor for a sweep, which nobody asked for.
    """
    if isinstance(command, _WITHOUT_FINGERPRINT):
        return Origin(actor=command.actor, request_id=command.request_id)
    if isinstance(command, Sweep):
        return Origin(actor=command.actor, request_id=None)
    if isinstance(command, Claim):
        asked_by = command.fingerprint
    else:
        asked_by = fingerprint(command)
    request_id: RequestId | None
    if isinstance(command, Enqueue):
        request_id = RequestId(command.job_id)
    elif command.actor == SYSTEM:
        request_id = None  # what the system does is named by where it stands in the log [Q6]
    else:
        request_id = command.request_id
    return Origin(actor=command.actor, request_id=request_id, fingerprint=asked_by)


def apply(
    rule: str,
    job: Job | None,
    drafts: Sequence[Draft],
    *,
    origin: Origin,
    at: Moment,
    answer: Callable[[Job, tuple[Event, ...]], Answer],
    job_id: JobId | None = None,
    not_after: Instant | None = None,
    correlation_id: str | None = None,
    trace_id: str | None = None,
) -> Applied:
    """The change that `drafts` make of `job` under the row `rule` of the table."""
    source = job.status if job is not None else None
    path = tuple([(draft.type, draft.to) for draft in drafts])
    assert is_lawful(rule, source, path), f"{rule} does not lead from {source} along {path}"
    assert role_of(origin.actor) in BY_ID[rule].actors, f"{rule} is not for {origin.actor}"
    expected_rev = job.rev if job is not None else 0
    events: list[Event] = []
    current = job
    for draft in drafts:
        event = _event(draft, current, origin, at.now, job_id, correlation_id, trace_id)
        events.append(event)
        current = evolve(current, event, draft.body)
    assert current is not None
    return Applied(
        rule=rule,
        change=Change(
            job=current,
            expected_rev=expected_rev,
            events=tuple(events),
            not_after=not_after,
            spawned=_compensation(current) if needs_compensation(current) else (),
            observations=() if current.origin_id is None else _compensated(current, at.now),
        ),
        answer=answer(current, tuple(events)),
    )


def _event(
    draft: Draft,
    job: Job | None,
    origin: Origin,
    now: Instant,
    job_id: JobId | None,
    correlation_id: str | None,
    trace_id: str | None,
) -> Event:
    if job is None:
        assert job_id is not None
        return Event(
            job_id=job_id,
            seq=1,
            type=draft.type,
            ts=now,
            actor=origin.actor,
            attempt=0,
            from_status=None,
            to_status=draft.to,
            request_id=origin.request_id or RequestId(f"{job_id}:1"),
            fingerprint=origin.fingerprint,
            correlation_id=correlation_id,
            trace_id=trace_id,
            cause=draft.cause,
            payload=draft.facts,
        )
    seq = job.rev + 1
    return Event(
        job_id=job.id,
        seq=seq,
        type=draft.type,
        ts=later(now, job.updated_at),
        actor=origin.actor,
        attempt=job.attempt + 1 if draft.type is EventType.CLAIMED else job.attempt,
        from_status=job.status,
        to_status=draft.to,
        request_id=origin.request_id or RequestId(f"{job.id}:{seq}"),
        lease_id=draft.lease_id or job.lease_id,
        owner=draft.owner or job.owner,
        lease_expires_at=draft.expires_at or job.lease_expires_at,
        fingerprint=origin.fingerprint,
        correlation_id=job.correlation_id,
        trace_id=job.trace_id,
        cause=draft.cause,
        payload=draft.facts,
    )


def attempt_summary(job: Job, facts: Facts) -> Facts:
    """`facts` plus what the end of an attempt keeps of its renewals, which may be pruned. [G1]"""
    if not job.renewals:
        return facts
    return msgspec.structs.replace(
        facts,
        renewals=job.renewals,
        hb_seq=job.hb_seq,
        progress=job.progress,
        checkpoint_sha256=None if job.checkpoint is None else digest(job.checkpoint),
    )


def needs_compensation(job: Job) -> bool:
    """Whether a finished job is one that a compensation was enqueued for. [M1]"""
    return (
        job.status in COMPENSATED_ENDS
        and job.was_started
        and job.policy.compensation is not None
        and job.compensates is None
    )


def compensation_id(job_id: JobId) -> JobId:
    """The id of the job that compensates `job_id`."""
    return derived_job_id(job_id, purpose="compensation")


def _compensation(job: Job) -> tuple[Change, ...]:
    """The compensation that a bad end enqueues, in the same transaction. [M1]"""
    spec = job.policy.compensation
    assert spec is not None
    payload = (
        f'{{"job_id":"{job.id}","kind":"{job.kind}","status":"{job.status}","payload":'.encode()
        + job.payload
        + b"}"
    )
    draft = Draft(
        type=EventType.ENQUEUED,
        to=JobStatus.QUEUED,
        cause=EventCause.COMPENSATION,
        facts=Facts(
            namespace=job.namespace,
            queue=spec.queue,
            kind=spec.kind,
            priority=job.priority or None,
            policy=spec.policy,
            origin_id=job.id,
            run_at=job.updated_at,
            sha256=digest(payload),
            size=len(payload),
        ),
        body=payload,
    )
    origin = Origin(actor=SYSTEM, request_id=None)
    event = _event(
        draft,
        None,
        origin,
        job.updated_at,
        compensation_id(job.id),
        job.correlation_id,
        job.trace_id,
    )
    return (Change(job=evolve(None, event, payload), expected_rev=0, events=(event,)),)


def _compensated(job: Job, now: Instant) -> tuple[Observation, ...]:
    """A compensation that succeeded is observed on the job it undid. [T24]"""
    if job.compensates is None or job.status is not JobStatus.SUCCEEDED:
        return ()
    return (
        Observation(
            job_id=job.compensates,
            type=ObservationType.COMPENSATED,
            ts=now,
            actor=SYSTEM,
            request_id=RequestId(job.id),
        ),
    )
