"""Flows: jobs that wait for other jobs.

Decides how a flow is made, what becomes of a job when its parents have ended, and how a flow that
has ended is redriven. Refuses what could never end: a cycle, a parent that does not exist. How a
store finds the jobs whose wait is over is its own business: the outcome of the parent is written on
an edge once, so that what was found stays true. [FL4]
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

from msgspec.structs import replace

from tenure.core.changes import Draft, Origin, apply, ending, new_job
from tenure.core.commands import (
    EnqueueFlow,
    FlowMember,
    ParentAttempt,
    RedriveFlow,
    Unblock,
    fingerprint,
)
from tenure.core.events import Facts, enqueued_facts, facts_of_another
from tenure.core.flow_rows import Edge, FlowRedrive, FlowRow, parents_first
from tenure.core.ids import Fingerprint, JobId, RequestId, replacement_id
from tenure.core.instants import later
from tenure.core.job import Job
from tenure.core.outcomes import (
    Applied,
    Change,
    DecisionContext,
    FlowToRedrive,
    Moment,
    NeedsHistory,
    Outcome,
    Refused,
    Replayed,
)
from tenure.core.requests import (
    inherited_ids,
    is_being_compensated,
    is_undeclared,
    policy_of,
    redriven,
    why_no_parent,
)
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import Cause, EventCause, EventType, JobStatus
from tenure.errors import InvalidInput

MAX_FLOW_JOBS = 10_000
MAX_FLOW_EDGES = 50_000
MAX_FLOW_PAYLOAD_BYTES = 64 << 20
"""The size of all jobs together: a flow is made, and redriven, in one transaction and so in
memory."""

MAX_REDRIVES = 100
"""How often one flow can be redriven: it is read as a whole, with all jobs that were replaced."""


def enqueue_flow(command: EnqueueFlow, at: DecisionContext) -> Outcome:
    """Make every job of a flow, or find that they were made before. [FL3]"""
    if command.handler is not None:
        known = _known_to_handler(command.handler, command, at)
    else:
        known = _known_to_client(command, at)
    if known is not None:
        return known
    _check_outside(command, at)
    asked = fingerprint(command)
    first, *others = [_member(member, command, at, asked) for member in command.members]
    change = replace(
        first.change,
        spawned=tuple(applied.change for applied in others),
        flow=FlowRow(
            id=command.flow_id,
            namespace=first.change.job.namespace,
            name=command.name,
            made_at=at.now,
            jobs=len(command.members),
        ),
        edges=tuple(_edges(command)),
    )
    undeclared = any(is_undeclared(member.job, at) for member in command.members)
    return Applied(rule="T1", change=change, answer=Reply(job=change.job, undeclared=undeclared))


def _known_to_handler(
    handler: ParentAttempt, command: EnqueueFlow, at: DecisionContext
) -> Outcome | None:
    """The answer to an attempt that may make no flow, or whose flow exists; None: make it."""
    refused = why_no_parent(handler, command.members[0].job, at)
    if refused is not None:
        return refused
    if at.flow_exists:
        # An earlier attempt of the same job made it, perhaps with other jobs. [FL13]
        return Replayed(answer=Reply(job=None, replayed=True))
    return None


def _known_to_client(command: EnqueueFlow, at: DecisionContext) -> Outcome | None:
    """The answer if a client's flow, or a job with one of its ids, exists; None: make it. [FL3]"""
    if at.job is not None:
        if not at.history:
            return NeedsHistory(job_id=at.job.id)
        if at.history[0].fingerprint == fingerprint(command):
            return Replayed(answer=Reply(job=at.job, replayed=True))
    if at.job is not None or at.flow_exists:
        return Refused(answer=Reply(job=None, cause=Cause.IDEMPOTENCY_KEY_REUSE))
    return None


def _member(
    member: FlowMember, flow: EnqueueFlow, at: DecisionContext, asked: Fingerprint
) -> Applied:
    command = member.job
    handler = None if flow.handler is None else at.others.get(flow.handler.job_id)
    facts = replace(
        enqueued_facts(
            command,
            now=at.now,
            policy=policy_of(command, at),
            origin_id=None if handler is None else handler.id,
        ),
        flow_id=flow.flow_id,
        flow_step=member.step,
        parents=len(member.after) or None,
    )
    return new_job(
        command.job_id,
        replace(facts, run_at=None) if member.after else facts,
        command.payload,
        origin=Origin(actor=command.actor, request_id=RequestId(command.job_id), fingerprint=asked),
        at=at,
        cause=None if handler is None else EventCause.FOLLOW_UP,
        ids=inherited_ids(command, handler),
        not_after=None if handler is None else handler.due_at,
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


def _check_outside(command: EnqueueFlow, at: DecisionContext) -> None:
    """Refuse a parent that does not exist. One of another namespace does not exist here. [FL3]"""
    namespace = command.members[0].job.namespace
    for job_id in command.outside_ids:
        parent = at.others.get(job_id)
        if parent is None or parent.namespace != namespace:
            raise InvalidInput(
                "after",
                f"there is no job {job_id} in namespace {namespace}",
                hint="name jobs of this flow, or jobs that exist",
            )


# --- cycles --------------------------------------------------------------------------------------


def check_acyclic(members: Sequence[FlowMember]) -> None:
    """Refuse jobs that wait for themselves, along any number of others. [FL3]"""
    waits_for: dict[JobId, set[JobId]] = {
        member.job.job_id: {parent.job_id for parent in member.after} for member in members
    }
    left = waits_for.keys() - set(parents_first(waits_for))
    if not left:
        return
    steps = {member.job.job_id: member.step for member in members}
    alone = sorted(steps[job_id] for job_id in left if job_id in waits_for[job_id])
    if alone:
        raise InvalidInput("after", f"{alone[0]} waits for itself", hint="leave it out of after")
    cycle = _a_cycle({job_id: waits_for[job_id] & left for job_id in left})
    named = ", ".join(sorted(steps[job_id] for job_id in cycle)[:3])
    raise InvalidInput(
        "after",
        f"{len(cycle)} jobs wait for each other in a cycle, {named} among them",
        hint="leave one of them out of the after of another",
    )


def _a_cycle(waits_for: Mapping[JobId, Set[JobId]]) -> list[JobId]:
    """The jobs of one cycle, if each of these waits for another of them. Some may be in no cycle,
    and only wait for one."""
    path: dict[JobId, None] = {}
    at = min(waits_for)
    while at not in path:
        path[at] = None
        at = min(waits_for[at])
    jobs = list(path)
    return jobs[jobs.index(at) :]


# --- redriving -----------------------------------------------------------------------------------


def redrive_flow(command: RedriveFlow, at: DecisionContext) -> Outcome:
    """Replace the jobs of a flow that did not succeed by new ones, which wait for the same parents
    or for what replaces these. [FL10]"""
    found = at.flow
    if found is None:
        return Refused(answer=Reply(job=None, cause=Cause.UNKNOWN_JOB))
    asked = (command.actor, command.request_id)
    for known in found.view.redrives:
        if (known.actor, known.request_id) == asked:
            return Replayed(answer=Reply(job=None, redrive=known, replayed=True))
    refused = _why_not_redriven(found)
    if refused is not None:
        return Refused(answer=refused)
    replaced = [found.jobs[job_id] for job_id in found.view.to_replace]
    parents = Counter(edge.child_id for edge in found.edges)
    first, *others = [_replacement(job, command, at, parents[job.id]) for job in replaced]
    record = FlowRedrive(
        flow_id=command.flow_id,
        number=len(found.view.redrives) + 1,
        ts=at.now,
        actor=command.actor,
        request_id=command.request_id,
        jobs=len(replaced),
    )
    change = replace(
        first,
        spawned=tuple(others),
        edges=tuple(_edge_of_replacement(edge, found) for edge in found.edges),
        redrive=record,
        resolutions=tuple(
            redriven(job.id, made.events[0], fingerprint(command))
            for job, made in zip(replaced, (first, *others), strict=True)
            if job.status is JobStatus.DEAD_LETTERED
        ),
    )
    return Applied(rule="T27", change=change, answer=Reply(job=change.job, redrive=record))


def _why_not_redriven(found: FlowToRedrive) -> Reply | None:
    """Why a flow cannot be redriven now; None if it can. [FL11]"""
    view = found.view
    if view.is_live:
        return Reply(job=None, cause=Cause.NOT_FINISHED)
    wanted = set(view.to_replace)
    parents = {edge.parent_id for edge in found.edges}
    has_all = len(view.current) >= view.flow.jobs and wanted <= found.jobs.keys()
    if not has_all or not parents <= found.jobs.keys() | found.present:
        return Reply(job=None, cause=Cause.JOBS_PURGED)
    if not wanted:
        return Reply(job=None, cause=Cause.NOTHING_TO_REDRIVE)
    for job in found.jobs.values():
        if is_being_compensated(job, found.compensations.get(job.id)):
            return Reply(job=job, cause=Cause.COMPENSATION_PENDING)
    if len(view.redrives) >= MAX_REDRIVES:
        what = f"{view.flow.id} was redriven {MAX_REDRIVES} times, which is the limit"
        raise InvalidInput("flow_id", what, hint="make a new flow")
    return None


def _replacement(job: Job, command: RedriveFlow, at: Moment, parents: int) -> Change:
    facts = replace(
        facts_of_another(job, job.payload, at.now),
        flow_id=job.flow_id,
        flow_step=job.flow_step,
        parents=parents or None,
    )
    return new_job(
        replacement_id(job.id),
        replace(facts, run_at=None) if parents else facts,
        job.payload,
        origin=Origin(
            actor=command.actor, request_id=command.request_id, fingerprint=fingerprint(command)
        ),
        at=at,
        cause=EventCause.REDRIVE,
        ids=(job.correlated_by, job.trace_id),
    ).change


def _edge_of_replacement(edge: Edge, found: FlowToRedrive) -> Edge:
    """The same edge between the new jobs, or from a parent that stays."""
    is_replaced = edge.parent_id in found.jobs
    return Edge(
        replacement_id(edge.child_id),
        edge.position,
        replacement_id(edge.parent_id) if is_replaced else edge.parent_id,
        edge.step,
        edge.needs,
        not is_replaced,
    )


# --- when parents have ended ---------------------------------------------------------------------


def unblock(command: Unblock, at: DecisionContext) -> Outcome:
    """Queue a job whose parents have ended as it needs them, cancel it if one has not. [T28] [T29]
    A job that no longer waits is left unchanged: another process decided about it first."""
    job = at.job
    if job is None or job.status is not JobStatus.WAITING:
        return Replayed(answer=Reply(job=job))
    ended = command.ended_otherwise
    if ended is None:
        facts = Facts(run_at=later(at.now, job.updated_at))
        rule, draft = "T28", Draft(type=EventType.READY, to=JobStatus.QUEUED, facts=facts)
    else:
        facts = Facts(reason=f"its parent {ended.job_id} ended as {ended.status}")
        cause = EventCause.PARENT_ENDED
        rule, draft = "T29", ending(job, EventType.CANCELLED, facts, cause=cause)
    return apply(
        rule,
        job,
        [draft],
        origin=Origin(actor=command.actor, request_id=None),
        at=at,
        answer=lambda after, _: Reply(job=after),
    )
