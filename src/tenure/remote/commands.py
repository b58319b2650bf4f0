"""Sends commands as requests, each by its route.

Returns answers in the order of the commands. Sends a worker's reports, new jobs and cancels in
batches below the server's limits, and every other command in a request of its own.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar, cast

import msgspec
from msgspec.structs import replace

from tenure.core.commands import (
    Cancel,
    Claim,
    Command,
    Complete,
    Enqueue,
    EnqueueFlow,
    Fail,
    FollowUp,
    Heartbeat,
    ParentAttempt,
    RedriveFlow,
    Release,
    Start,
    Sweep,
    Unblock,
    WorkerCommand,
)
from tenure.core.ids import JobId
from tenure.core.job import HIDDEN, Job
from tenure.core.verdicts import Answer, Reply, Verdict
from tenure.core.vocabulary import Cause, ReleaseKind
from tenure.errors import InvalidInput, OutcomeUnknown, RequestRefused
from tenure.protocol.codec import encode
from tenure.protocol.records import job_of
from tenure.protocol.replies import (
    FlowRedriveReply,
    HandlerFlowReply,
    JobPage,
    JobReply,
    JobsReply,
    VerdictsReply,
    flow_redrive_of,
    reply_of,
    verdict_of,
)
from tenure.protocol.requests import (
    MAX_BATCH,
    MAX_CANCELLED,
    MAX_WITH_BODIES,
    BodiesQuery,
    EnqueueManyMessage,
    LookupMessage,
    ReportsMessage,
    cancel_many_message,
    enqueue_message,
    flow_message,
    follow_up_message,
    handler_flow_message,
    redrive_flow_message,
    report_of,
)
from tenure.protocol.routes import MAX_BATCH_BYTES, route_of
from tenure.remote.caller import Call, Caller, NotFound

ROOM_BYTES = MAX_BATCH_BYTES - 1024
"""Room for the messages of a batch; the rest of the limit is for what surrounds them."""

_T = TypeVar("_T", bound=msgspec.Struct)

_REPORTS = (Start, Heartbeat, Complete, Fail, Release)


def check_sendable(commands: Sequence[Command]) -> None:
    """Raise for commands that only a coordinator itself may give."""
    for command in commands:
        is_own = isinstance(command, Claim | Sweep | Unblock)
        if is_own or (isinstance(command, Release) and command.kind is ReleaseKind.UNDELIVERED):
            problem = f"only the coordinator itself may {type(command).__name__.lower()} like this"
            raise InvalidInput("command", problem)


def _follow_up(caller: Caller, command: FollowUp) -> Reply:
    call = Call(
        name="follow-up",
        parts={"job_id": command.parent.job_id},
        message=follow_up_message(command),
    )
    try:
        return reply_of(caller.ask(call, JobReply))
    except NotFound:
        return Reply(job=None, cause=Cause.UNKNOWN_JOB)


def _handler_flow(caller: Caller, command: EnqueueFlow, handler: ParentAttempt) -> Reply:
    call = Call(
        name="handler-flow",
        parts={"job_id": handler.job_id},
        message=handler_flow_message(command),
    )
    try:
        reply = caller.ask(call, HandlerFlowReply)
    except NotFound:
        return Reply(job=None, cause=Cause.UNKNOWN_JOB)
    return Reply(job=None, cause=reply.cause, replayed=reply.replayed)


def _flow(caller: Caller, command: EnqueueFlow) -> Reply:
    if command.handler is not None:
        return _handler_flow(caller, command, command.handler)
    return reply_of(caller.ask(Call(name="flow", message=flow_message(command)), JobReply))


def _redrive_flow(caller: Caller, command: RedriveFlow) -> Reply:
    call = Call(
        name="redrive-flow",
        parts={"flow_id": command.flow_id},
        message=redrive_flow_message(command),
    )
    try:
        reply = caller.ask(call, FlowRedriveReply)
    except NotFound:
        return Reply(job=None, cause=Cause.UNKNOWN_JOB)
    jobs = {} if reply.job_id is None else load_jobs(caller, [reply.job_id])
    return flow_redrive_of(command.flow_id, reply, next(iter(jobs.values()), None))


def send(caller: Caller, commands: Sequence[Command]) -> list[Answer]:
    """Send these in order. Returns their answers."""
    answers: list[Answer] = []
    for sort, alike in groupby(commands, key=_sort):
        if sort == "report":
            answers += _report(caller, cast(list[WorkerCommand], list(alike)))
        elif sort == "follow-up":
            answers += [_follow_up(caller, cast(FollowUp, each)) for each in alike]
        elif sort == "flow":
            answers += [_flow(caller, cast(EnqueueFlow, each)) for each in alike]
        elif sort == "redrive-flow":
            answers += [_redrive_flow(caller, cast(RedriveFlow, each)) for each in alike]
        elif sort == "enqueue":
            answers += _enqueue(caller, cast(list[Enqueue], list(alike)))
        elif sort == "cancel":
            answers += _cancel(caller, cast(list[Cancel], list(alike)))
        else:
            answers += [_decide(caller, each) for each in alike]
    return answers


def _sort(command: Command) -> str:
    if isinstance(command, _REPORTS):
        return "report"
    if isinstance(command, FollowUp):
        return "follow-up"
    if isinstance(command, EnqueueFlow):
        return "flow"
    if isinstance(command, RedriveFlow):
        return "redrive-flow"
    if isinstance(command, Cancel):
        return "cancel"
    return "enqueue" if isinstance(command, Enqueue) else "decide"


def _report(caller: Caller, commands: Sequence[WorkerCommand]) -> Iterator[Verdict]:
    """Send reports once: a worker retries them by its own rules."""
    for batch in _batches(report_of(command) for command in commands):
        call = Call(name="report", message=ReportsMessage(reports=batch))
        heard = caller.ask_once(call, VerdictsReply).verdicts
        _check_count(len(heard), len(batch))
        yield from (verdict_of(verdict) for verdict in heard)


def _enqueue(caller: Caller, commands: Sequence[Enqueue]) -> Iterator[Reply]:
    sent = iter(commands)
    for batch in _batches(enqueue_message(command) for command in commands):
        call = Call(name="enqueue-many", message=EnqueueManyMessage(jobs=batch))
        heard = caller.ask(call, JobsReply).replies
        _check_count(len(heard), len(batch))
        yield from _with_bodies(caller, [_made(next(sent), reply_of(reply)) for reply in heard])


def _cancel(caller: Caller, commands: Sequence[Cancel]) -> Iterator[Reply]:
    """Send those together that differ only in their job. The jobs of their answers have no bodies;
    that of a lone command has. [H66]"""
    for _, group in groupby(commands, key=lambda each: replace(each, job_id=JobId(""))):
        alike = list(group)
        if len(alike) == 1 or _expects_something(alike[0]):
            yield from (_decide(caller, each) for each in alike)
            continue
        for start in range(0, len(alike), MAX_CANCELLED):
            batch = alike[start : start + MAX_CANCELLED]
            call = Call(name="cancel-many", message=cancel_many_message(batch))
            heard = caller.ask(call, JobsReply).replies
            _check_count(len(heard), len(batch))
            yield from (_without_bodies(reply_of(reply)) for reply in heard)


def _expects_something(command: Cancel) -> bool:
    return command.expected_rev is not None or command.expected_status is not None


def _without_bodies(reply: Reply) -> Reply:
    job = reply.job
    return reply if job is None else replace(reply, job=replace(job, payload=HIDDEN))


class _EnqueueReply(NamedTuple):
    """A reply to an enqueue, and whether its job shows all the bodies it has."""

    reply: Reply
    is_whole: bool


def _made(command: Enqueue, reply: Reply) -> _EnqueueReply:
    """Fill in the payload, which for a new job or a repeated request is the one that was sent.
    Other bodies exist only if attempts have added them. [D5]"""
    job = reply.job
    if job is None:
        return _EnqueueReply(reply, is_whole=True)
    if reply.deduplicated or reply.cause:
        return _EnqueueReply(reply, is_whole=False)
    sent = replace(reply, job=replace(job, payload=command.payload))
    return _EnqueueReply(sent, is_whole=job.attempt == 0)


def _with_bodies(caller: Caller, made: Sequence[_EnqueueReply]) -> Iterator[Reply]:
    """The replies with all bodies. Loads missing ones together: a lost answer to a thousand jobs
    would otherwise cost a thousand requests."""
    wanted = {each.reply.job.id for each in made if each.reply.job and not each.is_whole}
    found = load_jobs(caller, sorted(wanted))
    for reply, _ in made:
        job = None if reply.job is None else found.get(reply.job.id, reply.job)
        yield replace(reply, job=job)


def _decide(caller: Caller, command: Command) -> Reply:
    route = route_of(command)
    assert route.to_message is not None
    call = Call(
        name=route.name,
        parts={"job_id": command.job_id},
        message=route.to_message(command),
        query=BodiesQuery(bodies=True),
    )
    try:
        return reply_of(caller.ask(call, JobReply))
    except NotFound:
        return Reply(job=None, cause=Cause.UNKNOWN_JOB)


def load_jobs(caller: Caller, ids: Sequence[JobId]) -> dict[JobId, Job]:
    """These jobs, with their bodies if the caller may see them."""
    found: dict[JobId, Job] = {}
    for start in range(0, len(ids), MAX_WITH_BODIES):
        message = LookupMessage(job_ids=tuple(ids[start : start + MAX_WITH_BODIES]))
        found |= {job.id: job for job in _look_up(caller, message)}
    return found


def _look_up(caller: Caller, message: LookupMessage) -> list[Job]:
    try:
        call = Call(name="lookup", message=message, query=BodiesQuery(bodies=True))
        return [job_of(record) for record in caller.ask(call, JobPage).jobs]
    except RequestRefused as refused:
        if refused.field != "bodies":
            raise
    page = caller.ask(Call(name="lookup", message=message), JobPage)
    return [replace(job_of(record), payload=HIDDEN) for record in page.jobs]


def _batches(messages: Iterable[_T]) -> Iterator[tuple[_T, ...]]:
    """Split into as few batches as possible, each within the server's limits. The messages of a
    batch are JSON already: they were encoded to know their size."""
    batch: list[msgspec.Raw] = []
    size_bytes = 0
    for message in messages:
        encoded = msgspec.Raw(encode(message))
        if batch and (len(batch) == MAX_BATCH or size_bytes + len(encoded) >= ROOM_BYTES):
            yield cast(tuple[_T, ...], tuple(batch))
            batch, size_bytes = [], 0
        batch.append(encoded)
        size_bytes += len(encoded) + 1
    if batch:
        yield cast(tuple[_T, ...], tuple(batch))


def _check_count(heard: int, asked: int) -> None:
    if heard != asked:
        raise OutcomeUnknown(f"the answer has {heard} parts, but the request has {asked}")
