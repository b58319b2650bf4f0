"""Flows: jobs that wait for other jobs.

Decides how a flow is made, and what becomes of a job when its parents have ended. Refuses what
could never end: a cycle, a parent that does not exist. How a store finds the jobs that can go on is
its own business: an edge is marked once, so that what was found stays true. [FL4]
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from tenure.core.changes import Draft, Origin, apply
from tenure.core.commands import EnqueueFlow, FlowMember, ParentEnd, Unblock, fingerprint
from tenure.core.events import Facts
from tenure.core.flow_rows import Edge, Flow
from tenure.core.ids import Fingerprint, JobId, RequestId
from tenure.core.instants import later
from tenure.core.job import Job
from tenure.core.outcomes import (
    Applied,
    Change,
    History,
    Moment,
    NeedsHistory,
    Outcome,
    Refused,
    Replayed,
)
from tenure.core.requests import enqueued_facts
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import Cause, EventCause, EventType, JobStatus
from tenure.errors import InvalidInput

MAX_FLOW_JOBS = 10_000
MAX_FLOW_EDGES = 50_000


def enqueue_flow(
    job: Job | None, command: EnqueueFlow, at: Moment, history: History | None
) -> Outcome:
    """Make every job of a flow, or find that they were made before. [FL3]"""
    if job is not None:
        if not history:
            return NeedsHistory(job_id=job.id)
        if history[0].fingerprint == fingerprint(command):
            return Replayed(answer=Reply(job=job, replayed=True))
        return Refused(answer=Reply(job=None, cause=Cause.IDEMPOTENCY_KEY_REUSE))
    _check_outside(command)
    asked = fingerprint(command)
    first, *others = [_member(member, command, at, asked) for member in command.members]
    change = replace(
        first.change,
        spawned=tuple(applied.change for applied in others),
        flow=Flow(
            id=command.flow_id,
            namespace=first.change.job.namespace,
            name=command.name,
            made_at=at.now,
            jobs=len(command.members),
        ),
        edges=tuple(_edges(command)),
    )
    return Applied(rule="T1", change=change, answer=Reply(job=change.job))


def _member(member: FlowMember, flow: EnqueueFlow, at: Moment, asked: Fingerprint) -> Applied:
    command = member.job
    waits = bool(member.after)
    facts = replace(
        enqueued_facts(command, at),
        flow_id=flow.flow_id,
        flow_step=member.step,
        parents=len(member.after) or None,
    )
    if waits:
        facts = replace(facts, run_at=None)
    draft = Draft(
        type=EventType.ENQUEUED,
        to=JobStatus.WAITING if waits else JobStatus.QUEUED,
        facts=facts,
        body=command.payload,
    )
    return apply(
        "T1",
        None,
        [draft],
        origin=Origin(actor=command.actor, request_id=RequestId(command.job_id), fingerprint=asked),
        at=at,
        answer=lambda enqueued, _: Reply(job=enqueued),
        job_id=command.job_id,
        correlation_id=command.correlation_id,
        trace_id=command.trace_id,
    )


def _edges(command: EnqueueFlow) -> Iterator[Edge]:
    outside = set(command.outside_ids)
    for member in command.members:
        for position, parent in enumerate(member.after):
            yield Edge(
                member.job.job_id,
                position,
                parent.job_id,
                parent.step,
                parent.needs,
                parent.job_id in outside,
            )


def _check_outside(command: EnqueueFlow) -> None:
    """Refuse a parent that does not exist. One of another namespace does not exist here. [FL3]"""
    namespace = command.members[0].job.namespace
    for job_id in command.outside_ids:
        parent = (command.outside or {}).get(job_id)
        if parent is None or parent.namespace != namespace:
            raise InvalidInput(
                "after",
                f"there is no job {job_id} in namespace {namespace}",
                hint="name jobs of this flow, or jobs that exist",
            )


def unblock(job: Job | None, command: Unblock, at: Moment, _: History | None) -> Outcome:
    """Queue a job whose parents have ended as it needs them, cancel it if one has not. [T28] [T29]
    A job that no longer waits stays as it is: whoever was first has done it."""
    if job is None or job.status is not JobStatus.WAITING:
        return Replayed(answer=Reply(job=job))
    ended = command.ended_otherwise
    rule, draft = ("T28", _ready(job, at)) if ended is None else ("T29", _given_up(ended))
    return apply(
        rule,
        job,
        [draft],
        origin=Origin(actor=command.actor, request_id=None),
        at=at,
        answer=lambda after, _: Reply(job=after),
    )


def _ready(job: Job, at: Moment) -> Draft:
    run_at = later(at.now, job.updated_at)
    return Draft(type=EventType.READY, to=JobStatus.QUEUED, facts=Facts(run_at=run_at))


def _given_up(ended: ParentEnd) -> Draft:
    return Draft(
        type=EventType.CANCELLED,
        to=JobStatus.CANCELLED,
        cause=EventCause.PARENT_ENDED,
        facts=Facts(reason=f"its parent {ended.job_id} ended as {ended.status}"),
    )


def check_acyclic(members: Sequence[FlowMember]) -> None:
    """Refuse jobs that wait for themselves, along any number of others. [FL3]"""
    waits_for: dict[JobId, set[JobId]] = {
        member.job.job_id: {parent.job_id for parent in member.after} for member in members
    }
    children: dict[JobId, list[JobId]] = {job_id: [] for job_id in waits_for}
    unmet: dict[JobId, int] = {}
    for job_id, parents in waits_for.items():
        inside = [parent for parent in parents if parent in children]
        unmet[job_id] = len(inside)
        for parent in inside:
            children[parent].append(job_id)
    free = [job_id for job_id, number in unmet.items() if not number]
    while free:
        done = free.pop()
        del unmet[done]
        for child in children[done]:
            unmet[child] -= 1
            if not unmet[child]:
                free.append(child)
    if unmet:
        steps = {member.job.job_id: member.step for member in members}
        alone = sorted(steps[job_id] for job_id in unmet if job_id in waits_for[job_id])
        if alone:
            raise InvalidInput("after", f"{alone[0]} waits for itself")
        named = ", ".join(sorted(steps[job_id] for job_id in unmet)[:3])
        raise InvalidInput(
            "after", f"{len(unmet)} jobs wait for each other in a cycle, {named} among them"
        )


def parents_to_check(changes: Sequence[Change]) -> list[JobId]:
    """The jobs after whose change somebody may be able to go on. [FL5]"""
    return [job_id for change in changes for job_id in change.may_unblock]
