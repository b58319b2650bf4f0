"""What users write about schedules, and the specs that follow from it.

Every mistake is an `InvalidInput` that names the option; it is found when the schedule is declared.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

from tenure.core.checks import check_name
from tenure.core.ids import ScheduleName
from tenure.core.instants import Duration
from tenure.core.schedules import ScheduleSpec, check_schedule_spec, job_fields
from tenure.core.vocabulary import CatchUp, Overlap, Word
from tenure.errors import InvalidInput
from tenure.handlers.calls import Call, JobSpec
from tenure.handlers.options import OPTION_NAMES, Span, check_known, duration, plain

CatchUpWord: TypeAlias = Literal["latest", "all", "none"] | CatchUp
OverlapWord: TypeAlias = Literal["skip", "allow", "cancel"] | Overlap

_W = TypeVar("_W", bound=Word)


class ScheduleOptions(TypedDict, total=False):
    """When a schedule fires, and what it does about late and overlapping runs."""

    cron: str | None
    tz: str
    every: Span | None
    catch_up: CatchUpWord
    overlap: OverlapWord
    jitter: Span


SCHEDULE_OPTION_NAMES = frozenset(ScheduleOptions.__annotations__)


def schedule_name(value: object) -> ScheduleName:
    """A checked name of a schedule."""
    value = plain(value)
    check_name("schedule", value)
    return ScheduleName(str(value))


def schedule_spec(job: JobSpec, options: ScheduleOptions) -> ScheduleSpec:
    """The schedule that makes this job."""
    for field, name in _NOT_FOR_SCHEDULES.items():
        if getattr(job, field):
            raise InvalidInput(name, "is not an option of a schedule's job", hint=_INSTEAD[name])
    every = options.get("every")
    with naming_schedule_options():
        spec = ScheduleSpec(
            **job_fields(job),
            cron=plain(options.get("cron")),
            tz=plain(options.get("tz", "UTC")),
            every_us=None if every is None else duration("every", every),
            catch_up=_word("catch_up", CatchUp, options.get("catch_up", CatchUp.LATEST)),
            overlap=_word("overlap", Overlap, options.get("overlap", Overlap.SKIP)),
            jitter_us=duration("jitter", options.get("jitter", Duration(0))),
        )
        check_schedule_spec(spec)
    return spec


def called_schedule(call: object, options: ScheduleOptions, *, of: str) -> ScheduleSpec:
    """The schedule that makes the job of a call; `of` names the function that takes them."""
    check_known(dict(options), SCHEDULE_OPTION_NAMES, of=of, elsewhere=OPTION_NAMES)
    return schedule_spec(called(call), options)


def called(call: object) -> JobSpec:
    """The job of a call, which has no id of its own."""
    if not isinstance(call, Call):
        raise InvalidInput(
            "call",
            f"{type(call).__name__} is not a call",
            hint="write function.call(…), or app.call(kind, payload)",
        )
    if call.has_chosen_id:
        raise InvalidInput("job_id", "follows from the schedule", hint="leave it out")
    spec: JobSpec = call.spec
    return spec


_NOT_FOR_SCHEDULES = {
    "dedupe_key": "key",
    "unique_for_us": "unique_for",
    "delay_us": "delay",
    "run_at": "run_at",
    "correlation_id": "correlation_id",
}
_INSTEAD = {
    "key": 'overlap="skip" makes no second job while one has not ended',
    "unique_for": "an occurrence makes one job, and has no key",
    "delay": "cron= or every= say when it runs, jitter= spreads it",
    "run_at": "cron= or every= say when it runs",
    "correlation_id": "list its jobs by the schedule's name",
}


def _word(field: str, words: type[_W], value: Any) -> _W:
    try:
        return words.known(str(value))
    except ValueError as wrong:
        raise InvalidInput(
            field, f"{str(value)[:40]!a} is not one of {', '.join(words)}"
        ) from wrong


@contextmanager
def naming_schedule_options() -> Iterator[None]:
    """Within the block, errors name the options as users write them: `every`, not `every_us`."""
    try:
        yield
    except InvalidInput as wrong:
        if not wrong.field.endswith("_us"):
            raise
        raise InvalidInput(
            wrong.field.removesuffix("_us"), wrong.problem, hint=wrong.hint
        ) from wrong
