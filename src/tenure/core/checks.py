"""Checks of single fields: names, ids, texts, numbers and durations.

`validation` and the structs of each subject use them. Each violation is an
`InvalidInput` that names the field and says what is allowed. [J6]
"""

import re
from collections.abc import Sequence
from enum import StrEnum

from tenure.core.ids import JOB_ID_PATTERN, LEASE_ID_PATTERN, SYSTEM, is_job_id_prefix, role_of
from tenure.core.instants import MICROSECONDS_PER_SECOND, NEVER, seconds
from tenure.errors import InvalidInput

MAX_DURATION = seconds(366 * 24 * 3600)


MAX_INSTANT = 253_402_300_800 * MICROSECONDS_PER_SECOND  # the end of the year 9999


MAX_NAME = 128


MAX_DEDUPE_KEY = 200


MAX_TEXT = 4096
MAX_SEARCHED_TEXT = 200


MAX_COUNT = 2**31 - 1


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


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
            f"{shown(value)} is not a name",
            hint="use ASCII letters, digits and . _ : / -, beginning with a letter or digit",
        )


def check_job_id(field: str, value: object) -> None:
    """A UUID in canonical lower-case form. [J3]"""
    if type(value) is not str or JOB_ID_PATTERN.fullmatch(value) is None:
        raise InvalidInput(
            field, f"{shown(value)} is not a job id", hint="a lower-case UUID is expected"
        )


def check_job_id_prefix(field: str, value: object) -> None:
    """The first characters of a job id, or a whole one."""
    if type(value) is not str or not value or not is_job_id_prefix(value):
        raise InvalidInput(
            field,
            f"{shown(value)} is not the beginning of a job id",
            hint="lower-case hexadecimal digits with dashes, as in a UUID, are expected",
        )


def check_lease_id(field: str, value: object) -> None:
    """An epoch and 128 random bits. [J5]"""
    if type(value) is not str or not LEASE_ID_PATTERN.fullmatch(value):
        raise InvalidInput(
            field, f"{shown(value)} is not a lease id", hint="send back the lease_id of the grant"
        )


def check_actor(actor: object) -> None:
    if actor == SYSTEM:
        return
    if type(actor) is not str or role_of(actor) not in ROLES:  # type: ignore[arg-type]  # a str is what an Actor is
        raise InvalidInput(
            "actor", f"{shown(actor)} is no principal", hint="use worker:NAME, client:NAME, …"
        )
    check_label("actor", actor.partition(":")[2], most=MAX_NAME)


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
        raise InvalidInput(field, f"{shown(value)} is empty or has control characters")


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


def check_integer(field: str, value: object, *, low: int, high: int) -> None:
    if type(value) is not int:
        raise InvalidInput(field, f"{type(value).__name__} is not an integer")
    if not low <= value <= high:
        raise InvalidInput(field, f"{shown(value)} is outside {low} to {high}")


def check_instant(field: str, value: object) -> None:
    """Refuse what no store can hold."""
    if type(value) is not int:
        raise InvalidInput(field, f"{type(value).__name__} is not an instant")
    if not -NEVER <= value <= NEVER:
        raise InvalidInput(field, "no store holds such a time", hint="the years 1 to 9999 are fine")


def check_number(field: str, value: object, *, low: float, high: float) -> None:
    if type(value) not in (int, float):
        raise InvalidInput(field, f"{shown(value)} is not a number")
    assert isinstance(value, int | float)
    if not low <= value <= high:  # also where it is NaN, which is not within anything
        raise InvalidInput(field, f"{shown(value)} is outside {low:g} to {high:g}")


def check_duration(field: str, value: object) -> None:
    """A duration in microseconds, from nothing to 366 days. [J4]"""
    if type(value) is not int:
        raise InvalidInput(field, f"{type(value).__name__} is not a duration in microseconds")
    if not 0 <= value <= MAX_DURATION:
        raise InvalidInput(field, f"{_length(value)} is outside 0 to 366 days")


def _length(duration_us: int) -> str:
    """A duration that is out of bounds, as people say it."""
    if abs(duration_us) > 2**80:
        return "a huge integer"  # a float could not hold it
    length_s = duration_us / MICROSECONDS_PER_SECOND
    return f"{length_s / 86400:g} days" if length_s > 86400 else f"{length_s:g} s"


def check_word(field: str, value: object, words: type[StrEnum]) -> None:
    """A word that this version knows. [J4] [Y5]"""
    if not isinstance(value, words) or value not in words.__members__.values():
        raise InvalidInput(
            field, f"{shown(value)} is not allowed", hint=f"one of {', '.join(words)}"
        )


def check_type(field: str, value: object, wanted: type) -> None:
    """Exactly this type: a subclass may lie about its length, and no fingerprint can be made of
    it. [J6]"""
    if type(value) is not wanted:
        raise InvalidInput(field, f"{type(value).__name__} is not a {wanted.__name__}")


def shown(value: object) -> str:
    """At most a line of a bad value, escaped, so that an error cannot carry control codes."""
    if isinstance(value, int) and value.bit_length() > 200:
        return "a huge integer"  # Python refuses to write out more than 4300 digits
    text = ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
