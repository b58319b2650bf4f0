"""Handlers of the routes about jobs, for clients and operators."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeVar, cast

import msgspec
from starlette.responses import Response

from tenure.core.checks import check_job_id_prefix
from tenure.core.commands import Cancel, Enqueue, EnqueueFlow, Redrive, RedriveFlow
from tenure.core.flow_rows import FlowStep
from tenure.core.ids import ENTROPY_BYTES, FlowId, JobId, Namespace, QueueName, new_job_id
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.verdicts import Reply
from tenure.core.views.events import EventFilter, EventKey
from tenure.core.views.job_search import FoundJobs, JobFilter
from tenure.core.vocabulary import Cause, JobStatus
from tenure.errors import InvalidInput, OutcomeUnknown, TenureError, UnknownJob
from tenure.protocol import records, replies, requests
from tenure.protocol.routes import ROUTES
from tenure.protocol.translation import to_core, to_wire
from tenure.server.calls import (
    Handler,
    ResponseInPieces,
    ServerCall,
    answer,
)
from tenure.server.problems import RefusedRequest, out_of_scope
from tenure.server.worker_routes import hidden_jobs
from tenure.telemetry.tracing import TraceContext
from tenure.telemetry.unclaimed import WaitReason, reasons_to_wait
from tenure.verify import verify_job

_Id = TypeVar("_Id", bound=str)

# --- Enqueueing jobs ---------------------------------------------------------------------------


DOWNLOAD_TYPE = "application/octet-stream"
"""Of every artifact: the type that its worker chose is in the list of artifacts, for readers."""
DOWNLOADS = frozenset({None, "document", "empty"})
"""What browsers send in `Sec-Fetch-Dest` of a link that is followed and of a request by `fetch`."""

MAX_DECIDED_BYTES = 8 << 20
"""The limit of the bodies of jobs that `cancel-many` cancels in one transaction: deciding reads
whole rows. [H90]"""


async def enqueue(call: ServerCall) -> Response:
    """Make a job: 201, or 200 with the job that exists already."""
    message, traced = call.message(requests.EnqueueMessage), call.span.traced
    command = _enqueue_of(call, message, await call.services.now(), traced=traced)
    [reply] = await _enqueued(call, [command])
    return await _replied(call, reply)


async def enqueue_many(call: ServerCall) -> Response:
    """Make jobs, all of them or, where a field is wrong, none."""
    messages = call.message(requests.EnqueueManyMessage).jobs
    came_at = await call.services.now()
    traced = call.span.traced
    commands = await call.work(
        lambda: [_enqueue_of(call, each, came_at, traced=traced) for each in messages]
    )
    return await _all_replied(call, await _enqueued(call, commands, within="jobs"))


async def _replied(call: ServerCall, reply: Reply) -> Response:
    """The answer to a request about one job. It has no bodies: reads have them."""
    reply = _visible(call, reply)
    message = replies.job_reply(reply, now=await call.services.now(), bodies=False)
    return answer(message, _status(call, reply))


async def _all_replied(call: ServerCall, received: Sequence[Reply]) -> Response:
    now = await call.services.now()
    return await call.answer_about(
        lambda: replies.JobsReply(
            replies=tuple(
                replies.job_reply(_visible(call, each), now=now, bodies=False) for each in received
            )
        ),
        jobs=len(received),
    )


async def flow(call: ServerCall) -> Response:
    """Make jobs that wait for each other, all of them or none: 201, or 200 if they exist."""
    message = call.message(requests.FlowMessage)
    if any(member.job.job_id is None for member in message.jobs):
        raise InvalidInput("jobs.job.job_id", "is missing", hint="give each job an id")
    jobs = await _members_of(call, message.jobs, traced=call.span.traced)
    reply = await _made(call, requests.flow_command(message, jobs))
    return await _replied(call, reply)


async def handler_flow(call: ServerCall) -> Response:
    """Make a flow from a job's handler: 201, or 200 if an earlier attempt made it."""
    message = call.message(requests.HandlerFlowMessage)
    if any(member.job.job_id is not None for member in message.jobs):
        raise InvalidInput("jobs.job.job_id", "follows from the name", hint="leave it out")
    jobs = await _members_of(call, message.jobs, traced=call.span.named)
    if await hidden_jobs(call, [call.job_id]):
        raise UnknownJob(call.job_id)
    command = requests.handler_flow_command(message, jobs, parent=call.job_id)
    reply = await _made(call, command)
    if reply.cause is Cause.UNKNOWN_JOB:
        raise UnknownJob(call.job_id)
    made = replies.HandlerFlowReply(
        flow_id=command.flow_id if reply.is_ok else None,
        cause=reply.cause,
        replayed=reply.replayed,
    )
    return answer(made, _status(call, reply))


async def _members_of(
    call: ServerCall, members: Sequence[requests.FlowMemberMessage], *, traced: TraceContext
) -> list[Enqueue]:
    now = await call.services.now()
    return await call.work(
        lambda: [_enqueue_of(call, each.job, now, traced=traced) for each in members]
    )


async def _made(call: ServerCall, command: EnqueueFlow) -> Reply:
    """The reply to a request for a flow. Parents that the caller may not see are refused as if they
    did not exist. [H41]"""
    jobs = [member.job for member in command.members]
    await _check_limits(call, jobs)
    outside = command.outside_ids
    if outside:
        found = await call.services.blocking(lambda: call.store.jobs.read(outside, bodies=False))
        for job_id in outside:
            parent = found.get(job_id)
            if parent is None or not call.principal.sees(parent):
                raise InvalidInput("after", f"there is no job {job_id} here")
    [reply] = await call.decide([command])
    assert isinstance(reply, Reply)
    if reply.is_ok:
        call.services.waiting_claims.enqueued(jobs[0].namespace, {job.queue for job in jobs})
    return reply


async def flows(call: ServerCall) -> Response:
    """List flows. They have no queue and no kind, so no limited token may ask. [FL9]"""
    query, namespace = call.query(requests.FlowsQuery), call.namespace()
    before = None if query.before is None else FlowId(query.before.lower())
    prefix = None if query.id_prefix is None else query.id_prefix.lower()
    if prefix is not None:
        check_job_id_prefix("id_prefix", prefix)
    found = await call.services.listing(
        lambda: call.store.flows.page(namespace, before=before, limit=query.limit, id_prefix=prefix)
    )
    return await call.list_answer(replies.FlowsReply, replies.flow_summary_record, found)


async def show_flow(call: ServerCall) -> Response:
    """Read a flow with the jobs of it that are within the caller's scope."""
    flow_id, namespace = FlowId(call.path["flow_id"].lower()), call.namespace()
    view = await call.services.listing(lambda: call.store.flows.load(namespace, flow_id))
    steps = () if view is None else _visible_steps(call, view.steps)
    if view is None or not steps:
        raise UnknownJob(flow_id, noun="flow")
    visible = msgspec.structs.replace(view, steps=steps)
    hidden = len(view.current) - len(visible.current)
    visible = msgspec.structs.replace(visible, hidden=hidden)
    return await call.large_answer(lambda: replies.flow_reply(visible))


def _visible_steps(call: ServerCall, steps: tuple[FlowStep, ...]) -> tuple[FlowStep, ...]:
    """The jobs of a flow that the caller may see; they name no others. [H41]"""
    if not call.principal.is_limited:
        return steps
    seen = [step for step in steps if call.principal.sees_work(step.queue, step.kind)]
    names = {step.step for step in seen}
    return tuple(
        msgspec.structs.replace(step, after=tuple(name for name in step.after if name in names))
        for step in seen
    )


async def redrive_flow(call: ServerCall) -> Response:
    """Redrive a flow: 201, or 200 if this request was carried out before. A token of some queues or
    kinds redrives only flows all of whose jobs, and all jobs that their ends make, are in these."""
    flow_id, namespace = FlowId(call.path["flow_id"].lower()), call.namespace()
    view = await call.services.listing(lambda: call.store.flows.load(namespace, flow_id))
    steps = () if view is None else view.steps
    if not any(call.principal.sees_work(step.queue, step.kind) for step in steps):
        raise UnknownJob(flow_id, noun="flow")
    if call.principal.is_limited:
        if len(_visible_steps(call, steps)) < len(steps):
            raise out_of_scope("the flow has jobs that this token is not for", field="flow_id")
        ids = [step.job_id for step in steps]
        jobs = await call.services.blocking(lambda: call.store.jobs.read(ids, bodies=False))
        for job in jobs.values():
            call.principal.check_job_ends(job.policy, job.on_dead_letter)
    message = call.message(requests.RedriveFlowMessage)
    command = to_core(RedriveFlow, message, flow_id=flow_id, actor=call.actor, namespace=namespace)
    [reply] = await call.decide([command])
    assert isinstance(reply, Reply)
    if reply.cause is Cause.UNKNOWN_JOB:
        raise UnknownJob(flow_id, noun="flow")
    if reply.is_ok:
        queues = {step.queue for step in steps}
        call.services.waiting_claims.enqueued(namespace, queues)
    return answer(replies.flow_redrive_reply(reply), _status(call, reply))


async def follow_up(call: ServerCall) -> Response:
    """Make a job from another job's handler: 201, or 200 with the job that exists already."""
    message = call.message(requests.FollowUpMessage)
    if message.job.job_id is not None:
        raise InvalidInput("job.job_id", "follows from the parent", hint="leave it out")
    now = await call.services.now()
    enqueue = _enqueue_of(call, message.job, now, traced=call.span.named)
    if await hidden_jobs(call, [call.job_id]):
        raise UnknownJob(call.job_id)
    command = requests.follow_up_command(enqueue, message, parent=call.job_id)
    [reply] = await _enqueued(call, [command])
    if reply.cause is Cause.UNKNOWN_JOB:
        raise UnknownJob(call.job_id)
    return await _replied(call, reply)


def _lower(job_id: _Id | None) -> _Id | None:
    """A job id as the core writes it. [H48]"""
    return None if job_id is None else cast(_Id, job_id.lower())


def _enqueue_of(
    call: ServerCall, message: requests.EnqueueMessage, now: Instant, *, traced: TraceContext
) -> Enqueue:
    call.principal.check_queues([message.queue])
    call.principal.check_kinds([message.kind])
    call.principal.check_job_ends(message.policy, message.on_dead_letter)
    job_id = _lower(message.job_id)
    if job_id is None:
        job_id = new_job_id(now, os.urandom(ENTROPY_BYTES))
    namespace = call.principal.namespace(message.namespace)
    message = _labelled(message, traced)
    return to_core(Enqueue, message, job_id=job_id, actor=call.actor, namespace=namespace)


def _labelled(message: requests.EnqueueMessage, traced: TraceContext) -> requests.EnqueueMessage:
    """The message, with the request's trace and correlation ids where it has none [OB3]; and an
    empty meta is none. [J13]"""
    trace_id, correlation_id = message.trace_id, message.correlation_id
    return msgspec.structs.replace(
        message,
        trace_id=traced.traceparent if trace_id is None else trace_id,
        correlation_id=traced.correlation_id if correlation_id is None else correlation_id,
        meta=message.meta or None,
    )


async def _enqueued(
    call: ServerCall, commands: Sequence[Enqueue], *, within: str = ""
) -> list[Reply]:
    await _check_limits(call, commands)
    answers = await call.decide(commands, within=within)
    received = [reply for reply in answers if isinstance(reply, Reply)]
    assert len(received) == len(commands)
    made: dict[Namespace, set[QueueName]] = {}
    for command in commands:
        made.setdefault(command.namespace, set()).add(command.queue)
    for namespace, queues in made.items():
        call.services.waiting_claims.enqueued(namespace, queues)
    return received


async def _check_limits(call: ServerCall, jobs: Sequence[Enqueue]) -> None:
    """Refuse jobs that need a queue too many. [H77]"""
    for namespace in {job.namespace for job in jobs}:
        of_namespace = [job for job in jobs if job.namespace == namespace]
        await call.services.namespace_limits.check_jobs(namespace, of_namespace)


def _visible(call: ServerCall, reply: Reply) -> Reply:
    """The reply without a job that the caller may not see: one of another namespace with the same
    id, or the holder of a dedupe key, of which the caller only learns that it exists. [D6]"""
    if reply.job is None or call.principal.sees(reply.job):
        return reply
    if reply.deduplicated:
        return Reply(job=None, cause=Cause.DEDUPE_KEY_HELD)
    return msgspec.structs.replace(reply, job=None)


def _status(call: ServerCall, reply: Reply) -> int:
    """[H5]"""
    if reply.cause is not None:
        return 409
    return 200 if reply.deduplicated or reply.replayed else call.route.success


# --- Deciding about jobs -----------------------------------------------------------------------


async def decide(call: ServerCall) -> Response:
    """Carry out the route's command about one job."""
    job = await call.job()
    if call.route.command is Redrive:
        call.principal.check_job_ends(job.policy, job.on_dead_letter)
    assert call.route.command is not None
    given = {"job_id": call.job_id, "actor": call.actor, **call.route.sets}
    command = to_core(call.route.command, call.body, **given)
    [reply] = await call.decide([command])
    assert isinstance(reply, Reply)
    if reply.cause is Cause.UNKNOWN_JOB:
        raise UnknownJob(call.job_id)
    if reply.job is not None and reply.job.status is JobStatus.QUEUED:
        call.services.waiting_claims.enqueued(reply.job.namespace, [reply.job.queue])
    # The reply may be about another job than the path: the one that a redrive made. [H41]
    return await _replied(call, reply)


async def cancel_many(call: ServerCall) -> Response:
    """Stop jobs, in groups whose bodies fit into memory. Those out of the caller's scope are
    unknown. [H90]"""
    commands = requests.cancel_commands(call.message(requests.CancelManyMessage), call.actor)
    ids = list(dict.fromkeys(command.job_id for command in commands))
    seen = {job.id for job in await call.jobs(ids, bodies=False)}
    decided = [command for command in commands if command.job_id in seen]
    sizes = await call.services.blocking(lambda: call.store.jobs.body_sizes(list(seen)))
    received = iter(await _decide_in_groups(call, decided, sizes))
    unknown = Reply(job=None, cause=Cause.UNKNOWN_JOB)
    answers = [next(received) if each.job_id in seen else unknown for each in commands]
    call.audit.done = sum(each.is_ok for each in answers)
    return await _all_replied(call, answers)


async def _decide_in_groups(
    call: ServerCall, commands: Sequence[Cancel], sizes: Mapping[JobId, int]
) -> list[Reply]:
    """The replies without bodies. Only one group's rows are in memory at a time. [H90]"""
    received: list[Reply] = []
    for group in _groups(commands, sizes):
        try:
            decided = await call.decide(group)
        except TenureError as error:
            if not received or not error.nothing_changed:
                raise
            raise OutcomeUnknown(
                f"a part of the call was carried out, then: {error}",
                hint="send the same request again: its ids show what became of it",
            ) from error
        received += [_without_bodies(each) for each in decided if isinstance(each, Reply)]
    return received


def _groups(commands: Sequence[Cancel], sizes: Mapping[JobId, int]) -> list[list[Cancel]]:
    """The commands in their order, in groups of jobs whose bodies have at most
    `MAX_DECIDED_BYTES`, or of one job."""
    groups: list[list[Cancel]] = []
    room = 0
    for command in commands:
        size = sizes.get(command.job_id, 0)
        if not groups or size > room:
            groups.append([])
            room = MAX_DECIDED_BYTES
        groups[-1].append(command)
        room -= size
    return groups


def _without_bodies(reply: Reply) -> Reply:
    return (
        reply if reply.job is None else msgspec.structs.replace(reply, job=reply.job.without_bodies)
    )


# --- Reading jobs ------------------------------------------------------------------------------


async def job(call: ServerCall) -> Response:
    """Read a job."""
    bodies = call.check_bodies_wanted()
    found = await call.job(bodies=bodies)
    resolution = None
    if found.status is JobStatus.DEAD_LETTERED:
        ids = [found.id]
        resolutions = await call.services.blocking(lambda: call.store.jobs.resolutions(ids))
        resolution = resolutions.get(found.id)
    reply = Reply(job=found, resolution=resolution)
    return answer(replies.job_reply(reply, now=await call.services.now(), bodies=bodies))


async def lookup(call: ServerCall) -> Response:
    """Read several jobs; omits those out of the caller's scope."""
    ids = list(
        dict.fromkeys(JobId(each.lower()) for each in call.message(requests.LookupMessage).job_ids)
    )
    bodies = call.check_with_bodies("job_ids", len(ids))
    seen = await call.jobs(ids, bodies=bodies)
    now = await call.services.now()
    dead = [job.id for job in seen if job.status is JobStatus.DEAD_LETTERED]
    resolutions = {}
    if dead:
        resolutions = await call.services.blocking(lambda: call.store.jobs.resolutions(dead))
    return await call.list_answer(
        replies.JobPage,
        partial(records.job_record, now=now, bodies=bodies),
        seen,
        resolutions=tuple(map(records.resolution_record, resolutions.values())),
    )


async def jobs(call: ServerCall) -> Response:
    """List jobs."""
    query = call.query(requests.JobsQuery)
    call.principal.check_bodies(wanted=query.previews, field="previews")
    found = await _listed(call, query, statuses=query.status)
    record = partial(records.job_record, now=await call.services.now(), bodies=query.bodies)
    return await call.list_answer(
        replies.JobPage,
        record,
        found.jobs,
        next_before=found.next_before,
        resolutions=tuple(map(records.resolution_record, found.resolutions.values())),
        previews=found.previews,
    )


async def dead_letters(call: ServerCall) -> Response:
    """List dead letters."""
    query = call.query(requests.DeadLettersQuery)
    found = await _listed(call, query, statuses=(JobStatus.DEAD_LETTERED,))
    now = await call.services.now()

    def record(job: Job) -> records.DeadLetterRecord:
        resolution = found.resolutions.get(job.id)
        return records.dead_letter_record(job, resolution, now=now, bodies=query.bodies)

    return await call.list_answer(
        replies.DeadLetterPage, record, found.jobs, next_before=found.next_before
    )


async def _listed(
    call: ServerCall, query: requests.JobListQuery, *, statuses: tuple[JobStatus, ...]
) -> FoundJobs:
    call.check_with_bodies("limit", query.limit)
    wanted = to_core(
        JobFilter,
        query,
        namespace=call.namespace(),
        statuses=statuses,
        queue=call.principal.listed_queue(query.queue),
        kind=call.principal.listed_kind(query.kind),
        flow_id=_lower(query.flow_id),
        id_prefix=_lower(query.id_prefix),
    )
    return await call.listed_jobs(wanted)


async def events(call: ServerCall) -> Response:
    """Read a job's log."""
    job = await call.job()
    query = call.query(requests.EventsQuery)
    wanted = EventFilter(
        namespace=job.namespace,
        job_id=job.id,
        after=EventKey(job.enqueued_at, job.id, query.after_seq),
        limit=query.limit,
    )
    found = await call.events(wanted)
    next_seq = None if found.next is None else found.next.seq
    return await call.list_answer(
        replies.EventsReply, call.event_record, found.events, next_after_seq=next_seq
    )


async def observations(call: ServerCall) -> Response:
    """Read what is kept beside a job's log."""
    bodies = call.check_bodies_wanted()
    await call.job()
    found = await call.services.blocking(lambda: call.store.jobs.observations(call.job_id))
    call.memory.read(sum(len(seen.body or b"") for seen in found))
    digests = call.principal.sees_bodies
    record = partial(records.observation_record, bodies=bodies, digests=digests)
    return await call.list_answer(replies.ObservationsReply, record, found)


async def verify_one(call: ServerCall) -> Response:
    """Check a job's row and log. [X4]"""
    job = await call.job()
    report = await call.services.listing(lambda: verify_job(call.store, job.id))
    if report is None:
        raise UnknownJob(job.id)
    invariants = msgspec.convert(
        report.findings, tuple[replies.FindingRecord, ...], from_attributes=True, strict=False
    )
    return answer(
        replies.VerificationReply(
            job_id=job.id, holds=report.holds, events=report.events, invariants=invariants
        )
    )


async def wait_reasons(call: ServerCall) -> Response:
    """Why a job waits, and which jobs it waits for, as far as the caller may see them. [OB32]"""
    job = await call.job()
    found = await call.services.listing(lambda: reasons_to_wait(call.store, job))
    named = list(dict.fromkeys(job_id for each in found for job_id in each.job_ids))
    # The caller did not name these jobs, so that a hidden one is no violation of its scope.
    seen = {each.id for each in await call.jobs(named, bodies=False, are_named=False)}

    def record(found: WaitReason) -> replies.WaitReasonRecord:
        job_ids = tuple(job_id for job_id in found.job_ids if job_id in seen)
        return to_wire(replies.WaitReasonRecord, found, why=found.why.value, job_ids=job_ids)

    return answer(replies.WaitReasonsReply(reasons=tuple(map(record, found))))


async def logs(call: ServerCall) -> Response:
    """Read the output of a job's attempts."""
    await call.job()
    found = await call.services.blocking(lambda: call.store.artifacts.logs(call.job_id))
    call.memory.read(sum(len(log.text) for log in found))
    return await call.large_answer(lambda: replies.LogsReply(logs=tuple(found)))


async def artifacts(call: ServerCall) -> Response:
    """List a job's artifacts."""
    await call.job()
    found = await call.services.blocking(lambda: call.store.artifacts.of_job(call.job_id))
    record = partial(records.artifact_record, digests=call.principal.sees_bodies)
    return await call.list_answer(replies.ArtifactsReply, record, found)


async def artifact(call: ServerCall) -> Response:
    """Download an artifact. It is untrusted: the headers keep browsers from running it. [H71]"""
    wanted_as = call.http.headers.get("sec-fetch-dest")
    if wanted_as not in DOWNLOADS:
        raise RefusedRequest(
            403,
            replies.ProblemCode.OUT_OF_SCOPE,
            "an artifact is a download: no page may use it as a script, a style or a frame",
        )
    await call.job()
    name = call.path["name"]
    found = await call.services.blocking(lambda: call.store.artifacts.load(call.job_id, name))
    if found is None:
        raise RefusedRequest(
            404, replies.ProblemCode.UNKNOWN_ARTIFACT, f"job {call.job_id} has no artifact {name}"
        )
    headers = {
        "Content-Disposition": f'attachment; filename="{name.rpartition("/")[2] or "artifact"}"',
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "ETag": f'"{found.artifact.sha256}"',
    }
    return ResponseInPieces(found.body, 200, headers, media_type=DOWNLOAD_TYPE)


HANDLERS: dict[str, Handler] = {
    "enqueue": enqueue,
    "enqueue-many": enqueue_many,
    "flow": flow,
    "flows": flows,
    "show-flow": show_flow,
    "redrive-flow": redrive_flow,
    "follow-up": follow_up,
    "handler-flow": handler_flow,
    "cancel-many": cancel_many,
    "lookup": lookup,
    "jobs": jobs,
    "job": job,
    "events": events,
    "observations": observations,
    "verify-job": verify_one,
    "wait-reasons": wait_reasons,
    "logs": logs,
    "artifacts": artifacts,
    "artifact": artifact,
    "dead-letters": dead_letters,
    **{route.name: decide for route in ROUTES if route.command is not None},
}
