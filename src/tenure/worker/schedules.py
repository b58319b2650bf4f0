"""What a worker that starts does about the schedules that its application declares.

It writes those whose name the store has never had, and says where the store has something else:
two versions of the code that run side by side must not overwrite each other. [SC10]
"""

import logging
from collections.abc import Mapping

from tenure.core.ids import Actor, Namespace, ScheduleName
from tenure.core.schedules import PutSchedule, Schedule, ScheduleSpec
from tenure.errors import RequestRefused
from tenure.ports import Coordination

_log = logging.getLogger("tenure.worker")


def declare_schedules(
    coordination: Coordination,
    declared: Mapping[ScheduleName, ScheduleSpec],
    *,
    namespace: Namespace,
    actor: Actor,
    app: str,
    overwrites: bool = False,
) -> None:
    """Write the new ones; log what became of each. A worker under development `overwrites` those
    that the store has otherwise."""
    for number, (name, spec) in enumerate(declared.items()):
        command = PutSchedule(
            namespace=namespace,
            name=name,
            actor=actor,
            spec=spec,
            declared_by=app,
            only_new=not overwrites,
        )
        try:
            reply = coordination.change_schedule(command)
        except RequestRefused as refusal:  # the token is limited: an operator may write it
            if refusal.is_about_all:
                names = ", ".join(list(declared)[number:])
                _log.warning("schedules not written: %s: %s", names, refusal)
                return
            _log.warning("schedule %s was not written: %s", name, refusal)
            continue
        assert reply.schedule is not None
        if reply.changed:
            _log.info("schedule %s: %s", name, "new" if reply.schedule.rev == 1 else "changed")
        else:
            _tell_difference(reply.schedule, spec, app)


def _tell_difference(stored: Schedule, spec: ScheduleSpec, app: str) -> None:
    if stored.removed_at is not None:
        _log.warning(
            "schedule %s was removed; `tenure schedules sync %s` writes it again", stored.name, app
        )
    elif stored.spec != spec:
        differs = [
            name.removesuffix("_us")
            for name in ScheduleSpec.__struct_fields__
            if getattr(stored.spec, name) != getattr(spec, name)
        ]
        _log.warning(
            "schedule %s: the store has another %s than this worker's code;"
            " `tenure schedules sync %s` writes the code's",
            stored.name,
            " and ".join(differs),
            app,
        )
