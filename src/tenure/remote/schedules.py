"""Requests about schedules over HTTP: one route for each. The server decides."""

from typing import assert_never

from tenure.core.schedules import (
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    ScheduleCommand,
    ScheduleReply,
)
from tenure.protocol.records import schedule_of
from tenure.protocol.replies import ScheduleReply as ScheduleMessage
from tenure.protocol.requests import NamespaceQuery, RunScheduleMessage, put_schedule_message
from tenure.remote.caller import Call, Caller, NotFound


def send_schedule_command(caller: Caller, command: ScheduleCommand) -> ScheduleReply:
    """The server's answer to a request."""
    try:
        answer = caller.ask(_call(command), ScheduleMessage)
    except NotFound:
        return ScheduleReply(schedule=None)
    return ScheduleReply(schedule=schedule_of(answer.schedule), changed=answer.changed)


def _call(command: ScheduleCommand) -> Call:
    parts = {"schedule": str(command.name)}
    query = NamespaceQuery(namespace=command.namespace)
    match command:
        case PutSchedule():
            message = put_schedule_message(command)
            return Call(name="put-schedule", parts=parts, message=message)
        case PauseSchedule():
            return Call(name="pause-schedule", parts=parts, query=query)
        case ResumeSchedule():
            return Call(name="resume-schedule", parts=parts, query=query)
        case RemoveSchedule():
            return Call(name="remove-schedule", parts=parts, query=query)
        case RunSchedule():
            run = RunScheduleMessage(job_id=command.job_id)
            return Call(name="run-schedule", parts=parts, query=query, message=run)
        case _:
            assert_never(command)
