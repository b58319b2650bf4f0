"""Handlers of the routes about schedules.

A caller sees and changes the schedules whose job is within its scope: of its namespace, its queues
and its kinds. Others are unknown to it. [SC13]
"""

import os
from functools import partial

from starlette.responses import Response

from tenure.core.ids import ENTROPY_BYTES, JobId, ScheduleName, new_job_id
from tenure.core.schedules import (
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    Schedule,
    ScheduleCommand,
    ScheduleOutcome,
    upcoming_times,
)
from tenure.core.vocabulary import Role
from tenure.errors import InvalidInput
from tenure.protocol import requests
from tenure.protocol.fields import moment
from tenure.protocol.records import schedule_record
from tenure.protocol.replies import ProblemCode, ScheduleReply, SchedulesReply
from tenure.protocol.translation import to_core
from tenure.server.calls import Handler, ServerCall, answer
from tenure.server.problems import RefusedRequest, out_of_scope

ROW_BYTES = 2 << 10
"""About how much memory a schedule takes without its payload."""

ROWS_AT_ONCE = 500
"""Schedules that are read and counted at a time."""


async def schedules(call: ServerCall) -> Response:
    """List schedules within the caller's scope."""
    query, namespace = call.query(requests.SchedulesQuery), call.namespace()

    found, next_after = await call.page(
        lambda after, limit: call.store.schedules.page(namespace, after=after, limit=limit),
        str(query.after or ""),
        key=lambda each: each.name,
        limit=query.limit,
        at_once=ROWS_AT_ONCE,
        sees=lambda each: _sees(call, each),
        size_of=lambda each: ROW_BYTES,
    )
    record = partial(schedule_record, bodies=False)
    return await call.list_answer(SchedulesReply, record, found, next_after=next_after)


async def schedule(call: ServerCall) -> Response:
    """Read a schedule."""
    return await _answer(call, ScheduleOutcome(schedule=await _find(call)))


async def put_schedule(call: ServerCall) -> Response:
    """Make a schedule, or change it."""
    message, principal = call.message(requests.PutScheduleMessage), call.principal
    principal.check_queues([message.queue])
    principal.check_kinds([message.kind])
    principal.check_job_ends(message.policy, message.on_dead_letter)
    is_worker = principal.token is not None and principal.token.role is Role.WORKER
    if is_worker and not message.only_new:
        raise out_of_scope("a worker only makes schedules that are new", field="only_new")
    name, namespace = _name(call), call.namespace()
    loaded = await call.services.blocking(lambda: call.store.schedules.load(namespace, name))
    command = to_core(PutSchedule, message, namespace=namespace, name=name, actor=call.actor)
    _check_scope(call, command, loaded.schedule)
    await _check_limits(call, command, loaded.schedule)
    return await _decided(call, command)


async def _check_limits(call: ServerCall, command: PutSchedule, before: Schedule | None) -> None:
    """Refuse a schedule too many, or one whose jobs need a queue too many; an unchanged one
    passes. [H77]"""
    limits = call.services.namespace_limits
    is_new = before is None or before.removed_at is not None
    if is_new and not (before is not None and command.only_new):
        await limits.check_new_schedule(command.namespace, command.name)
    if before is None or before.spec != command.spec:
        policy = command.spec.policy
        undo = None if policy is None else policy.compensation
        ends = (undo, command.spec.on_dead_letter)
        made = [each.queue for each in ends if each is not None]
        await limits.check_queues(command.namespace, [command.spec.queue, *made])


_CHANGES: dict[str, type[PauseSchedule] | type[ResumeSchedule] | type[RemoveSchedule]] = {
    "pause-schedule": PauseSchedule,
    "resume-schedule": ResumeSchedule,
    "remove-schedule": RemoveSchedule,
}


async def change_schedule(call: ServerCall) -> Response:
    """Pause, resume or remove a schedule, by the route."""
    kind = _CHANGES[call.route.name]
    return await _decided(
        call, kind(namespace=call.namespace(), name=_name(call), actor=call.actor)
    )


async def run_schedule(call: ServerCall) -> Response:
    """Make a job of a schedule now."""
    job_id = call.message(requests.RunScheduleMessage).job_id
    if job_id is None:
        job_id = new_job_id(await call.services.now(), os.urandom(ENTROPY_BYTES))
    command = RunSchedule(
        namespace=call.namespace(),
        name=_name(call),
        actor=call.actor,
        job_id=JobId(job_id.lower()),
    )
    return await _decided(call, command, job_id=command.job_id)


async def _decided(
    call: ServerCall, command: ScheduleCommand, *, job_id: JobId | None = None
) -> Response:
    # A revocation pauses what the token scheduled; nothing may be added after it. [H79]
    is_lasting = isinstance(command, PutSchedule | ResumeSchedule)
    if is_lasting:
        await call.services.authenticator.check_still_valid(call.principal, ask=True)
    reply = await call.services.blocking(
        lambda: call.coordinator.change_schedule(
            command, check=lambda found: _check_scope(call, command, found)
        )
    )
    if is_lasting:
        await _check_not_revoked_meanwhile(call)
    if reply.schedule is None:
        raise _unknown(command.name)
    if reply.cause is not None:
        raise InvalidInput("job_id", "another job has this id", hint="leave it out")
    if job_id is not None:
        queue = reply.schedule.spec.queue
        call.services.waiting_claims.enqueued(command.namespace, [queue])
    return await _answer(call, reply, job_id=job_id)


async def _check_not_revoked_meanwhile(call: ServerCall) -> None:
    """The write may have waited while the token was revoked. A revocation that is repeated pauses
    what was written since."""
    try:
        await call.services.authenticator.check_still_valid(call.principal, ask=True)
    except RefusedRequest:
        token = call.principal.token
        assert token is not None
        loaded = await call.services.blocking(lambda: call.store.tokens.load(token.id))
        if loaded.token is not None and loaded.token.revoked_at is not None:
            await call.services.blocking(lambda: call.store.tokens.revoke(token.id))
        raise


async def _answer(
    call: ServerCall, reply: ScheduleOutcome, *, job_id: JobId | None = None
) -> Response:
    found = reply.schedule
    assert found is not None
    message = ScheduleReply(
        schedule=schedule_record(found, bodies=call.principal.sees_bodies),
        next_times=tuple(map(moment, upcoming_times(found))),
        changed=reply.changed,
        job_id=job_id,
    )
    return answer(message)


async def _find(call: ServerCall) -> Schedule:
    """The schedule that the path names."""
    name, namespace = _name(call), call.namespace()
    loaded = await call.services.blocking(lambda: call.store.schedules.load(namespace, name))
    return _visible(call, name, loaded.schedule)


def _visible(call: ServerCall, name: ScheduleName, found: Schedule | None) -> Schedule:
    """The schedule, if it is there for this caller. [SC13]"""
    if found is None or found.removed_at is not None or not _sees(call, found):
        raise _unknown(name)
    return found


def _check_scope(call: ServerCall, command: ScheduleCommand, found: Schedule | None) -> None:
    """Raise unless the caller may change the schedule, and make its jobs and what follows from
    them if the command does. [SC13] [H70]"""
    if isinstance(command, PutSchedule):
        if found is not None and not _sees(call, found):
            problem = "a schedule of this name is out of this token's scope"
            raise out_of_scope(problem, field="schedule")
        return
    visible = _visible(call, command.name, found)
    if isinstance(command, ResumeSchedule | RunSchedule):
        call.principal.check_job_ends(visible.spec.policy, visible.spec.on_dead_letter)


def _name(call: ServerCall) -> ScheduleName:
    return ScheduleName(call.path["schedule"])


def _sees(call: ServerCall, found: Schedule) -> bool:
    return call.principal.sees_work(found.spec.queue, found.spec.kind)


def _unknown(name: ScheduleName) -> RefusedRequest:
    return RefusedRequest(404, ProblemCode.UNKNOWN_SCHEDULE, f"there is no schedule {name}")


HANDLERS: dict[str, Handler] = {
    "schedules": schedules,
    "schedule": schedule,
    "put-schedule": put_schedule,
    "pause-schedule": change_schedule,
    "resume-schedule": change_schedule,
    "remove-schedule": change_schedule,
    "run-schedule": run_schedule,
}
