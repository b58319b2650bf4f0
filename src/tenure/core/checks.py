"""Checks of single fields: names, ids, texts, numbers and durations.

`check_fields` checks every field of a struct: its type states what a value is, the two tables at
the end have the limits. `validation` and the structs of each subject use it, and check what
concerns several fields. Each violation is an `InvalidInput` that names the field and states what is
allowed. [J6]
"""

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache, partial
from itertools import compress
from operator import is_not
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta
from msgspec.structs import astuple

from tenure.core.ids import (
    JOB_ID_PATTERN,
    LEASE_ID_PATTERN,
    SYSTEM,
    Actor,
    FlowId,
    JobId,
    Kind,
    LeaseId,
    Namespace,
    QueueName,
    RequestId,
    ScheduleName,
    WorkerId,
    is_job_id_prefix,
    role_of,
)
from tenure.core.instants import MICROSECONDS_PER_SECOND, NEVER, Duration, Instant, seconds
from tenure.errors import InvalidInput

MAX_DURATION = seconds(366 * 24 * 3600)
MAX_INSTANT = 253_402_300_800 * MICROSECONDS_PER_SECOND  # the end of the year 9999
MAX_NAME = 128
MAX_DEDUPE_KEY = 200
MAX_TEXT = 4096
MAX_SEARCHED_TEXT = 200
MAX_COUNT = 2**31 - 1
PRIORITIES = (-32768, 32767)
MAX_EXACT_INTEGER = 2**53 - 1
"""The largest integer that every language reads exactly."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
MAX_META = 16
MAX_META_KEY = 64
MAX_META_VALUE = 256
META_KEY_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
ROLES = frozenset({"worker", "client", "operator"})


def check_name(field: str, value: object) -> None:
    """A queue, kind, namespace, worker id or request id. [J3]"""
    if type(value) is not str:
        raise InvalidInput(field, f"{type(value).__name__} is not a name, a plain str is")
    if len(value) > MAX_NAME:
        raise InvalidInput(field, f"{len(value)} characters are over the limit of {MAX_NAME}")
    if NAME_PATTERN.fullmatch(value) is None:
        raise InvalidInput(
            field,
            f"{quoted(value)} is not a name",
            hint="use ASCII letters, digits and . _ : / -, beginning with a letter or digit",
        )


def check_job_id(field: str, value: object) -> None:
    """A UUID in canonical lower-case form. [J3]"""
    if type(value) is not str or JOB_ID_PATTERN.fullmatch(value) is None:
        raise InvalidInput(
            field, f"{quoted(value)} is not a job id", hint="a lower-case UUID is expected"
        )


def check_job_id_prefix(field: str, value: object) -> None:
    """The first characters of a job id, or a whole one."""
    if type(value) is not str or not value or not is_job_id_prefix(value):
        raise InvalidInput(
            field,
            f"{quoted(value)} is not the beginning of a job id",
            hint="lower-case hexadecimal digits with dashes, as in a UUID, are expected",
        )


def check_lease_id(field: str, value: object) -> None:
    """An epoch and 128 random bits. [J5]"""
    if type(value) is not str or not LEASE_ID_PATTERN.fullmatch(value):
        raise InvalidInput(
            field, f"{quoted(value)} is not a lease id", hint="send back the lease_id of the grant"
        )


def check_actor(field: str, actor: object) -> None:
    """A worker, a client, an operator or the system."""
    if actor == SYSTEM:
        return
    if type(actor) is not str or role_of(actor) not in ROLES:  # type: ignore[arg-type]  # a str is what an Actor is
        raise InvalidInput(
            field, f"{quoted(actor)} is no principal", hint="use worker:NAME, client:NAME, …"
        )
    check_label(field, actor.partition(":")[2], most=MAX_NAME)


def check_correlation_id(field: str, value: object) -> None:
    """What the jobs of one undertaking have in common."""
    check_label(field, value, most=MAX_DEDUPE_KEY)


def check_names(field: str, values: Sequence[str], *, most: int, least: int) -> None:
    check_type(field, values, tuple)
    if not least <= len(values) <= most:
        raise InvalidInput(field, f"{len(values)} names given, {least} to {most} are allowed")
    for position, value in enumerate(values):
        check_name(f"{field}[{position}]", value)
    if len(set(values)) != len(values):
        raise InvalidInput(field, "a name is given twice")


def check_label(field: str, value: object, *, most: int) -> None:
    """Text that people use as a key: not empty, without control characters. [D4]"""
    check_text(field, value, most=most)
    assert isinstance(value, str)
    if not value or _CONTROL.search(value) is not None:
        raise InvalidInput(field, f"{quoted(value)} is empty or has control characters")


def check_text(field: str, value: object, *, most: int = MAX_TEXT) -> None:
    if type(value) is not str:
        raise InvalidInput(field, f"{type(value).__name__} is not text, a plain str is")
    if len(value) > most:
        raise InvalidInput(field, f"{len(value)} characters are over the limit of {most}")
    if "\x00" in value:
        raise InvalidInput(field, "contains NUL")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as wrong:
            raise InvalidInput(field, "contains a lone surrogate") from wrong


def check_meta(field: str, value: object) -> None:
    """A user's labels of a job: a few short texts, by key. [J13]"""
    check_type(field, value, dict)
    assert isinstance(value, dict)
    if len(value) > MAX_META:
        raise InvalidInput(field, f"{len(value)} entries are over the limit of {MAX_META}")
    for key, text in value.items():
        if type(key) is not str or len(key) > MAX_META_KEY or not META_KEY_PATTERN.fullmatch(key):
            raise InvalidInput(
                field,
                f"{quoted(key)} is not a key of meta",
                hint="use ASCII letters, digits and . _ -, beginning with a letter or digit, at"
                f" most {MAX_META_KEY} characters",
            )
        check_text(f"{field}[{key}]", text, most=MAX_META_VALUE)


def meta_entry(field: str, text: str) -> tuple[str, str]:
    """The entry that is written as `KEY=VALUE`."""
    check_text(field, text)
    key, equals, value = text.partition("=")
    if not equals:
        raise InvalidInput(field, f"{quoted(text)} is not KEY=VALUE", hint="write tenant=acme")
    check_meta(field, {key: value})
    return key, value


def check_integer(field: str, value: object, *, low: int, high: int) -> None:
    if type(value) is not int:
        raise InvalidInput(field, f"{type(value).__name__} is not an integer")
    if not low <= value <= high:
        raise InvalidInput(field, f"{quoted(value)} is outside {low} to {high}")


def check_instant(field: str, value: object) -> None:
    """Refuse what no store can represent."""
    if type(value) is not int:
        raise InvalidInput(field, f"{type(value).__name__} is not an instant")
    if not -NEVER <= value <= NEVER:
        raise InvalidInput(field, "no store holds such a time", hint="the years 1 to 9999 are fine")


def check_number(field: str, value: object, *, low: float, high: float) -> None:
    if type(value) not in (int, float):
        raise InvalidInput(field, f"{quoted(value)} is not a number")
    assert isinstance(value, int | float)
    if not low <= value <= high:  # also where it is NaN, which is not within anything
        raise InvalidInput(field, f"{quoted(value)} is outside {low:g} to {high:g}")


def check_duration(field: str, value: object) -> None:
    """A duration in microseconds, from nothing to 366 days. [J4]"""
    if type(value) is not int:
        raise InvalidInput(field, f"{type(value).__name__} is not a duration in microseconds")
    if not 0 <= value <= MAX_DURATION:
        raise InvalidInput(field, f"{_length(value)} is outside 0 to 366 days")


def _length(duration_us: int) -> str:
    """A duration that is out of bounds, in the units that people use."""
    if abs(duration_us) > 2**80:
        return "a huge integer"  # a float could not hold it
    length_s = duration_us / MICROSECONDS_PER_SECOND
    return f"{length_s / 86400:g} days" if length_s > 86400 else f"{length_s:g} s"


def check_enum(field: str, value: object, words: type[StrEnum]) -> None:
    """A value of an enumeration that this version knows. [J4] [Y5]"""
    if not isinstance(value, words) or value not in words.__members__.values():
        raise InvalidInput(
            field, f"{quoted(value)} is not allowed", hint=f"one of {', '.join(words)}"
        )


def check_type(field: str, value: object, wanted: type) -> None:
    """Exactly this type: a subclass may lie about its length, and no fingerprint can be made of
    it. [J6]"""
    if type(value) is not wanted:
        raise InvalidInput(field, f"{type(value).__name__} is not a {wanted.__name__}")


def quoted(value: object) -> str:
    """At most a line of a bad value, escaped, so that an error cannot carry control codes."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a huge integer"  # Python refuses to write out more than 4300 digits
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."


# --- Structs, field by field ---------------------------------------------------------------------

_FieldCheck = Callable[[str, Any], None]

_BY_TYPE: dict[object, _FieldCheck] = {
    Actor: check_actor,
    Duration: check_duration,
    FlowId: check_job_id,
    Instant: check_instant,
    JobId: check_job_id,
    Kind: check_name,
    LeaseId: check_lease_id,
    Namespace: check_name,
    QueueName: check_name,
    RequestId: check_name,
    ScheduleName: check_name,
    WorkerId: check_name,
    bool: partial(check_type, wanted=bool),
    dict[str, str]: check_meta,
}
"""What a field of this type may have. A `StrEnum` may have the values of its set."""

Label = Annotated[str, Meta(min_length=1, max_length=MAX_DEDUPE_KEY)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
Positive = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Exact = Annotated[int, Meta(ge=0, le=MAX_EXACT_INTEGER)]
Ordinal = Annotated[int, Meta(ge=1, le=MAX_EXACT_INTEGER)]
LIMITS_BY_NAME: dict[str, Any] = {
    "claim_seq": Ordinal,
    "concurrency_key": Label,
    "correlation_id": Label,
    "dedupe_key": Label,
    "done": Exact,
    "expected_rev": Positive,
    "factor": Annotated[float, Meta(ge=1.0, le=100.0)],
    "floor": Annotated[float, Meta(ge=0.0, le=1.0)],
    "hb_seq": Ordinal,
    "left_out_bytes": Exact,
    "max_attempts": Positive,
    "max_releases": Count,
    "note": Text,
    "pid": Count,
    "priority": Annotated[int, Meta(ge=PRIORITIES[0], le=PRIORITIES[1])],
    "rate_key": Label,
    "reason": Text,
    "total": Exact,
    "trace_id": Label,
}
"""What a field of this name may have, here and in requests, whatever its type allows."""


def _within(limited: object) -> _FieldCheck:
    """The check of such a field."""
    kind, limits = get_args(limited)
    if kind is str:
        check = check_label if limits.min_length else check_text
        return partial(check, most=limits.max_length)
    return partial(check_integer if kind is int else check_number, low=limits.ge, high=limits.le)


_BY_NAME: dict[str, _FieldCheck] = {
    **{name: _within(limited) for name, limited in LIMITS_BY_NAME.items()},
    "id_prefix": check_job_id_prefix,
    "run_at": partial(check_integer, low=0, high=MAX_INSTANT),
    "uptime_us": partial(check_integer, low=0, high=MAX_INSTANT),
}


_Row = tuple[int, str, _FieldCheck | None, object]
"""A field's place in its struct, its name, its check if it has one, and its default."""


@cache
def _rows_of(kind: type[msgspec.Struct]) -> tuple[list[_Row], list[object]]:
    """The fields of a type of structs, and their defaults alone."""
    hints = get_type_hints(kind)
    rows: list[_Row] = []
    for place, field in enumerate(msgspec.structs.fields(kind)):
        hint = hints[field.name]
        types = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        check = _BY_NAME.get(field.name) or _check_of(types[0])
        if check is not None and NoneType in types and field.default is not None:
            check = partial(_unless_none, check)
        rows.append((place, field.name, check, field.default))
    return rows, [default for *_, default in rows]


def _check_of(kind: object) -> _FieldCheck | None:
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return partial(check_enum, words=kind)
    return _BY_TYPE.get(kind)


def _unless_none(check: _FieldCheck, field: str, value: object) -> None:
    if value is not None:
        check(field, value)


def check_fields(
    value: msgspec.Struct, *, before: msgspec.Struct | None = None, prefix: str = ""
) -> None:
    """Check each field of a struct whose type or name has a limit, in their order.

    A default needs no check, nor does what `value` shares with a struct of its type that was
    checked `before`. By identity: equal values may differ in type, as 1 and True do. A batch
    repeats its names, actor and policy; that was half of its checks.
    """
    rows, defaults = _rows_of(type(value))
    given = astuple(value)
    known = astuple(before) if before is not None and type(before) is type(value) else defaults
    for place, name, check, default in compress(rows, map(is_not, given, known)):
        if check is not None and given[place] is not default:
            check(prefix + name if prefix else name, given[place])


def check_struct(field: str, value: msgspec.Struct, kind: type[msgspec.Struct]) -> None:
    """Exactly this type of struct, and each of its fields."""
    check_type(field, value, kind)
    check_fields(value, prefix=f"{field}.")
