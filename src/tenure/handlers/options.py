"""Options: what users write about a job, and the policy and command fields that follow from it.

Durations are `"90s"`, a timedelta or a number of seconds. Every mistake is an `InvalidInput` that
names the option.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

import msgspec

from tenure.core.checks import MAX_DURATION, check_duration, check_meta, check_name
from tenure.core.commands import JobSpec
from tenure.core.ids import QueueName, ScheduleName
from tenure.core.instants import Duration, Instant, parse_duration, seconds
from tenure.core.policy import Backoff, LeaseBounds, Policy
from tenure.core.schedules import ScheduleSpec, check_schedule_spec, job_fields
from tenure.core.validation import check_policy
from tenure.core.vocabulary import CatchUp, OnExhausted, OnLost, OpenEnum, Overlap, did_you_mean
from tenure.errors import InvalidInput
from tenure.handlers.calls import Call

Span: TypeAlias = str | timedelta | float
"""A duration: `"250ms"`, `"90s"`, `"2h"`, a timedelta, or a number of seconds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST_INSTANT = 10**14  # microseconds: the year 1973; as seconds it would be the year 3170843
_ANY_LEASE = LeaseBounds(shortest_us=Duration(1), longest_us=MAX_DURATION)

_W = TypeVar("_W", bound=StrEnum)


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how soon a failed job is tried again, and where it goes in the end. [F6]"""

    max_attempts: int = 15
    initial: Span = "2s"
    factor: float = 2.0
    cap: Span = "15m"
    on_exhausted: Literal["dead_letter", "fail"] | OnExhausted = OnExhausted.DEAD_LETTER
    max_releases: int = 20


class PolicyOptions(TypedDict, total=False):
    """What `@app.job` fixes for a kind and a single call may override."""

    queue: str
    priority: int
    lease: Span
    heartbeat: Span
    timeout: Span | None
    start_within: Span
    grace: Span
    retry: Retry
    on_lost: Literal["requeue", "hold", "reclaim"] | OnLost
    expires: Span | None
    keep: Span | None
    meta: Mapping[str, str]


class EnqueueOptions(PolicyOptions, total=False):
    """What `using(...)` takes."""

    key: str | None
    unique_for: Span | None
    concurrency_key: str | int | None
    rate_key: str | int | None
    delay: Span
    run_at: datetime | Instant | None
    correlation_id: str | None
    trace_id: str | None
    job_id: str | None
    connection: Any
    notify: bool


OPTION_NAMES = frozenset(EnqueueOptions.__annotations__)


def duration(field: str, value: object) -> Duration:
    """A duration of any accepted form, without limits."""
    try:
        match value:
            case str():
                return parse_duration(value)
            case timedelta():
                return Duration(value // timedelta(microseconds=1))
            case bool():
                pass
            case int() | float() if math.isfinite(value):
                return seconds(value)
            case _:
                pass
    except (ValueError, OverflowError) as wrong:
        raise InvalidInput(field, str(wrong)) from wrong
    raise InvalidInput(
        field,
        f"{type(value).__name__} is not a duration",
        hint='write "90s", a timedelta or a number of seconds',
    )


def bounded_duration(field: str, value: object) -> Duration:
    """A duration within the limits of policies and commands."""
    found = duration(field, value)
    check_duration(field, found)
    return found


def positive_duration(field: str, value: object) -> Duration:
    """A duration that is not zero, within the limits of policies and commands."""
    found = bounded_duration(field, value)
    if found == 0:
        raise InvalidInput(field, "is 0", hint=f"omit {field}, or give a time such as 10m")
    return found


def instant(field: str, value: object) -> Instant:
    """An aware datetime, or an instant in microseconds, as an instant."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidInput(
                field,
                "a datetime without a time zone is ambiguous",
                hint="use datetime.now(UTC) or .astimezone()",
            )
        return Instant((value - _EPOCH) // timedelta(microseconds=1))
    if type(value) is not int:
        raise InvalidInput(
            field, f"{type(value).__name__} is not an instant", hint="give an aware datetime"
        )
    if value < _EARLIEST_INSTANT:
        raise InvalidInput(
            field,
            f"{value} is before 1973",
            hint="instants are microseconds; give an aware datetime, or delay= for a duration",
        )
    return Instant(value)


def word(field: str, kind: type[_W], value: object) -> _W:
    """A word of a set, as far as this version knows it."""
    try:
        return kind.known(str(value)) if issubclass(kind, OpenEnum) else kind(str(value))
    except ValueError as wrong:
        allowed = ", ".join(kind)
        raise InvalidInput(field, f"{str(value)[:40]!a} is not one of {allowed}") from wrong


_OTHER_NAMES = {
    "countdown": "Tenure calls it delay",
    "eta": "Tenure calls it run_at",
    "task_id": "Tenure calls it job_id",
    "time_limit": "Tenure calls it timeout",
    "soft_time_limit": "Tenure has timeout, and grace for the end of a soft cancel",
    "retries": "write retry=Retry(max_attempts=…), where the first attempt counts too",
    "max_retries": "write retry=Retry(max_attempts=…), where the first attempt counts too",
    "max_attempts": "write retry=Retry(max_attempts=…)",
    "rate_limit": "Tenure calls it rate",
    "cron": "@app.job calls it schedule",
}
"""Names that other queues, or other places of Tenure, have for options."""


def check_known(
    options: dict[str, Any],
    allowed: frozenset[str],
    *,
    of: str,
    elsewhere: frozenset[str] = frozenset(),
) -> None:
    """Refuse a misspelt option: ignoring it would change what a job does. `of` is what was called,
    such as `using()`; options `elsewhere` are those that `using` takes."""
    unknown = sorted(set(options) - allowed)
    if unknown:
        name = unknown[0]
        if name in elsewhere:
            with_key = "key=…, " if name == "unique_for" else ""
            hint = f"it belongs to using({with_key}{name}=…)"
        else:
            hint = _option_hint(name, options[name], allowed)
        raise InvalidInput(name, f"is not an option of {of}", hint=hint)


def _option_hint(name: str, value: object, allowed: frozenset[str]) -> str:
    if name in ("max_retries", "retries") and type(value) is int and "retry" in allowed:
        return f"write retry=Retry(max_attempts={value + 1}): the first attempt counts too"
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    return did_you_mean(name, allowed, f"options are {', '.join(sorted(allowed))}")


def plain(value: Any) -> Any:
    """A `StrEnum`, `Markup` or other subclass of `str` as `str`; other values unchanged."""
    return str.__str__(value) if isinstance(value, str) else value


def queue_name(field: str, value: object) -> QueueName:
    """A checked queue name."""
    value = plain(value)
    check_name(field, value)
    return QueueName(str(value))


def job_key(option: str, value: object) -> str | None:
    """What a job's arguments or options say its key is, as the store keeps it. [CK5] [RL12]"""
    value = plain(value)
    if value is None or type(value) is str:
        return value
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return str(value)
    raise InvalidInput(
        option,
        f"{type(value).__name__} is neither text nor a number",
        hint="give a str or an int, for example str(value)",
    )


def meta_from(option: str, value: object) -> dict[str, str] | None:
    """What users note about a job; None without entries. [J13]"""
    if not isinstance(value, Mapping):
        raise InvalidInput(
            option, f"{type(value).__name__} is not a mapping", hint='write {"tenant": "acme"}'
        )
    found = {plain(key): plain(text) for key, text in value.items()}
    check_meta(option, found)
    return found or None


def policy_from(options: EnqueueOptions | PolicyOptions, base: Policy) -> Policy:
    """`base` with what the options change. Checks everything but the bounds of the lease, which the
    coordinator sets. [F5] [L2]"""
    given: Mapping[str, Any] = options
    if "lease" in given:
        base = base.with_lease(bounded_duration("lease", given["lease"]))
    changed = _fields(given, _POLICY_OPTIONS)
    if "retry" in given:
        changed |= _retry_fields(given["retry"])
    if not changed and "lease" not in given:
        return base
    policy = msgspec.structs.replace(base, **changed)
    # Checked already here: the error points at the declaration, not at the first enqueue.
    check_policy("policy", policy, _ANY_LEASE)
    return policy


def _retry_fields(retry: object) -> dict[str, Any]:
    if not isinstance(retry, Retry):
        raise InvalidInput(
            "retry", f"{type(retry).__name__} is not a Retry", hint="write Retry(max_attempts=…)"
        )
    return {
        "max_attempts": retry.max_attempts,
        "backoff": Backoff(
            initial_us=bounded_duration("retry.initial", retry.initial),
            factor=retry.factor,
            cap_us=bounded_duration("retry.cap", retry.cap),
        ),
        "on_exhausted": word("retry.on_exhausted", OnExhausted, retry.on_exhausted),
        "max_releases": retry.max_releases,
    }


_Parse: TypeAlias = Callable[[str, Any], Any]
"""Makes the value of a field from an option's name and what was given for it."""


def _unchanged(_: str, value: Any) -> Any:
    """A number, which the core checks, or a text."""
    return plain(value)


def _optional(parse: _Parse) -> _Parse:
    return lambda name, value: None if value is None else parse(name, value)


def _one_of(kind: type[StrEnum]) -> _Parse:
    return lambda name, value: word(name, kind, value)


# Each option, the field that it sets, and how the field's value is made.

_POLICY_OPTIONS: dict[str, tuple[str, _Parse]] = {
    "heartbeat": ("heartbeat_us", bounded_duration),
    "start_within": ("start_within_us", bounded_duration),
    "grace": ("grace_us", bounded_duration),
    "timeout": ("timeout_us", _optional(bounded_duration)),
    "keep": ("keep_us", _optional(bounded_duration)),
    "on_lost": ("on_lost", _one_of(OnLost)),
}
_JOB_OPTIONS: dict[str, tuple[str, _Parse]] = {
    "queue": ("queue", queue_name),
    "priority": ("priority", _unchanged),
    "key": ("dedupe_key", _unchanged),
    "unique_for": ("unique_for_us", positive_duration),
    "concurrency_key": ("concurrency_key", job_key),
    "rate_key": ("rate_key", job_key),
    "delay": ("delay_us", bounded_duration),
    "run_at": ("run_at", instant),
    "expires": ("expires_us", positive_duration),
    "correlation_id": ("correlation_id", _unchanged),
    "trace_id": ("trace_id", _unchanged),
    "meta": ("meta", meta_from),
}
"""Options of one call that are not policy: they set fields of `JobSpec`."""
_SCHEDULE_OPTIONS: dict[str, tuple[str, _Parse]] = {
    "cron": ("cron", _unchanged),
    "tz": ("tz", _unchanged),
    "every": ("every_us", _optional(duration)),
    "catch_up": ("catch_up", _one_of(CatchUp)),
    "overlap": ("overlap", _one_of(Overlap)),
    "jitter": ("jitter_us", duration),
}


def _fields(options: Mapping[str, Any], table: Mapping[str, tuple[str, _Parse]]) -> dict[str, Any]:
    """The fields that these options set."""
    return {
        field: parse(name, options[name])
        for name, (field, parse) in table.items()
        if name in options
    }


def overrides_from(options: EnqueueOptions) -> dict[str, Any]:
    """The fields of `JobSpec` that the options of one call set; None is "as the kind says"."""
    given = {name: value for name, value in options.items() if value is not None}
    return _fields(given, _JOB_OPTIONS)


# --- names in error messages ---------------------------------------------------------------------

_OPTION_OF = {field: name for name, (field, _) in _JOB_OPTIONS.items()} | {
    "policy.max_attempts": "retry.max_attempts",
    "policy.max_releases": "retry.max_releases",
    "policy.on_exhausted": "retry.on_exhausted",
    "policy.backoff.initial": "retry.initial",
    "policy.backoff.factor": "retry.factor",
    "policy.backoff.cap": "retry.cap",
}
"""Options whose fields have other names in commands and in the messages of a server."""
_POSITION = re.compile(r"^jobs\[[0-9]+\]\.|^job\.")
_UNIT = re.compile(r"_u?s$")
_COMPENSATION = "policy.compensation."


def as_option(wrong: InvalidInput) -> InvalidInput:
    """The error with the option's name instead of the field's: `lease=…`, not `policy.lease_us`. An
    error about something else is returned unchanged."""
    field = _POSITION.sub("", wrong.field)
    whose = " of the compensation" if field.startswith(_COMPENSATION) else ""
    field = _UNIT.sub("", field.removeprefix(_COMPENSATION))
    option = _OPTION_OF.get(field, field.removeprefix("policy."))
    name, _, part = option.partition(".")
    if name not in OPTION_NAMES or type(wrong) is not InvalidInput:
        return wrong
    written = f"Retry({part}=…)" if part else f"{name}=…"
    return InvalidInput(option, wrong.problem, hint=wrong.hint, written=written + whose)


@contextmanager
def naming_options() -> Iterator[None]:
    """Within the block, errors name the options as the user wrote them: `lease=…`."""
    try:
        yield
    except InvalidInput as wrong:
        raise as_option(wrong) from wrong


# --- schedules -----------------------------------------------------------------------------------


CatchUpWord: TypeAlias = Literal["latest", "all", "none"] | CatchUp
OverlapWord: TypeAlias = Literal["skip", "allow", "cancel"] | Overlap


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
    for name, instead in _NOT_FOR_SCHEDULES.items():
        if getattr(job, _JOB_OPTIONS[name][0]):
            raise InvalidInput(name, "is not an option of a schedule's job", hint=instead)
    try:
        spec = ScheduleSpec(**job_fields(job), **_fields(options, _SCHEDULE_OPTIONS))
        check_schedule_spec(spec)
    except InvalidInput as wrong:
        option = wrong.field.removesuffix("_us")  # as users write it
        raise InvalidInput(option, wrong.problem, hint=wrong.hint) from wrong
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
    "key": 'overlap="skip" makes no second job while one has not ended',
    "unique_for": "an occurrence makes one job, and has no key",
    "delay": "cron= or every= say when it runs, jitter= spreads it",
    "run_at": "cron= or every= say when it runs",
    "correlation_id": "list its jobs by the schedule's name",
}
"""Options of a call, and what a schedule has in their place."""
