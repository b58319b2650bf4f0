"""Schedules from Python: `app.schedules`. The same requests as those of `tenure schedules`.

Declaring one is `app.schedule(…)` or `@app.job(schedule=…)`, which write nothing; `add` writes one
at once, for example one for each customer. Over HTTP the requests are within the permissions of the
token. Decides nothing itself.
"""

from typing import Any, Unpack

from tenure.client.channel import Channel
from tenure.client.functions import Sender
from tenure.client.jobs import Job
from tenure.client.shells import awaiting, stop_if_cancelled
from tenure.core.schedules import (
    PauseSchedule,
    PutSchedule,
    RemoveSchedule,
    ResumeSchedule,
    RunSchedule,
    Schedule,
    ScheduleCommand,
    unknown_schedule,
    upcoming_times,
)
from tenure.errors import InvalidInput
from tenure.handlers.calls import Call
from tenure.handlers.options import ScheduleOptions, called_schedule, schedule_name
from tenure.protocol.fields import moment
from tenure.protocol.records import ScheduleRecord, schedule_record
from tenure.protocol.replies import ScheduleReply


class Schedules:
    """List, show, make, pause, resume, run and remove schedules."""

    def __init__(self, channel: Channel, sender: Sender) -> None:
        self._channel = channel
        self._sender = sender

    def ls(self) -> list[ScheduleRecord]:
        """Every schedule of the application's namespace, by name, without payloads."""
        namespace = self._channel.namespace
        found = self._channel.ask(lambda store: store.schedules.page(namespace))
        return [schedule_record(each, bodies=False) for each in found]

    als = awaiting(ls)

    def show(self, schedule: str) -> ScheduleReply:
        """A schedule without its payload, and the next five times at which it fires."""
        name, namespace = schedule_name(schedule), self._channel.namespace
        found = self._channel.ask(lambda store: store.schedules.page(namespace))
        known = {each.name: each for each in found}
        if name not in known:
            raise unknown_schedule(name, list(known))
        return ScheduleReply(
            schedule=schedule_record(known[name], bodies=False),
            next_times=tuple(map(moment, upcoming_times(known[name]))),
        )

    ashow = awaiting(show)

    def add(
        self,
        schedule: str,
        call: Call[Any],
        /,
        *,
        replace: bool = False,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleRecord:
        """Make a schedule now: `add("report-ada", report.call("ada"), cron="15 3 * * *")`, with the
        options of `app.schedule`. One of a name that is in use is refused without `replace`."""
        command = PutSchedule(
            namespace=self._channel.namespace,
            name=schedule_name(schedule),
            actor=self._channel.operator,
            spec=called_schedule(call, options, of="app.schedules.add()"),
        )
        known = self.ls()
        if not replace and command.name in {each.name for each in known}:
            hint = "`replace` changes it"
            raise InvalidInput("schedule", f"there is a schedule {command.name} already", hint=hint)
        return schedule_record(self._change(command), bodies=False)

    aadd = awaiting(add)

    def pause(self, schedule: str) -> ScheduleRecord:
        """Fire it no more until it is resumed; what it would have fired is not caught up."""
        return self._decide(PauseSchedule, schedule)

    apause = awaiting(pause)

    def resume(self, schedule: str) -> ScheduleRecord:
        """Fire it again, from its next time on."""
        return self._decide(ResumeSchedule, schedule)

    aresume = awaiting(resume)

    def remove(self, schedule: str) -> ScheduleRecord:
        """End it; its jobs stay. A worker that starts does not write it again."""
        return self._decide(RemoveSchedule, schedule)

    aremove = awaiting(remove)

    def run(self, schedule: str) -> Job[object]:
        """Make a job of it now, whatever its times and its last run say."""
        self._channel.link()  # first: new ids are dated by the store's clock
        command = RunSchedule(
            namespace=self._channel.namespace,
            name=schedule_name(schedule),
            actor=self._channel.operator,
            job_id=self._channel.new_job_id(),
        )
        self._change(command)
        return Job(self._channel, command.job_id, decode=self._sender.decode)

    arun = awaiting(run)

    def _decide(
        self,
        kind: type[PauseSchedule] | type[ResumeSchedule] | type[RemoveSchedule],
        schedule: str,
    ) -> ScheduleRecord:
        name = schedule_name(schedule)
        command = kind(namespace=self._channel.namespace, name=name, actor=self._channel.operator)
        return schedule_record(self._change(command), bodies=False)

    def _change(self, command: ScheduleCommand) -> Schedule:
        stop_if_cancelled()
        reply = self._channel.link().coordination.change_schedule(command)
        if reply.schedule is None:
            raise unknown_schedule(command.name, [each.name for each in self.ls()])
        return reply.schedule
