"""Arguments, results and checkpoints as JSON, checked against their annotations.

msgspec checks the types; pydantic checks its own models, where the user has it.
"""

import datetime
import decimal
import math
import re
import uuid
from typing import Any

import msgspec

from tenure.errors import ValidationError

# Python values that JSON carries as text. While arguments are still Python they are compared as
# what they are: a str is no bytes, although both would arrive as a JSON string.
_RICH_TYPES = (
    bytes,
    bytearray,
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    uuid.UUID,
    decimal.Decimal,
)
_FIELD = re.compile(r"^Object (?:missing required|contains unknown) field `(.+)`$")


def encode(value: Any, *, what: str) -> bytes:
    """The value as JSON bytes; `ValidationError` if JSON cannot express it."""
    try:
        body = msgspec.json.encode(value, enc_hook=_encode_foreign)
        # msgspec writes NaN and Infinity as null; a number must not silently become nothing.
        if b"null" in body and not isinstance(value, msgspec.Raw):
            _refuse_nan(msgspec.to_builtins(value, enc_hook=_encode_foreign), what)
    except (TypeError, ValueError, OverflowError, RecursionError) as wrong:
        raise ValidationError(f"the {what} cannot be encoded as JSON: {wrong}") from wrong
    return body


def decode(body: bytes, kind: Any, *, within: str = "") -> Any:
    """`body`, converted to the type of its annotation; `ValidationError` with the failing path."""
    try:
        return msgspec.json.decode(body, type=kind, dec_hook=_decode_foreign)
    except msgspec.ValidationError as wrong:
        raise _with_path(wrong, within) from wrong
    except (msgspec.DecodeError, RecursionError) as wrong:
        raise ValidationError(f"not JSON: {wrong}", path=within or "$") from wrong


def convert(value: Any, kind: Any, *, path: str, is_python: bool = False) -> Any:
    """`value`, converted to the type of its annotation; `ValidationError` with the failing path."""
    try:
        return msgspec.convert(
            value,
            kind,
            builtin_types=_RICH_TYPES if is_python else None,
            str_keys=not is_python,
            dec_hook=_decode_foreign,
        )
    except msgspec.ValidationError as wrong:
        raise _with_path(wrong, path) from wrong


def check_value(value: Any, kind: Any, *, within: str = "") -> None:
    """Raise `ValidationError` unless a Python value fits its annotation."""
    try:
        plain = msgspec.to_builtins(value, builtin_types=_RICH_TYPES, enc_hook=_encode_foreign)
    except (TypeError, ValueError, OverflowError, RecursionError) as wrong:
        raise ValidationError(str(wrong), path=within) from wrong
    convert(plain, kind, path=within, is_python=True)


def _refuse_nan(value: Any, what: str, path: str = "") -> None:
    if isinstance(value, float) and not math.isfinite(value):
        problem = f"JSON cannot carry the number {value} of the {what}"
        raise ValidationError(problem, path=path.removeprefix("."))
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_nan(item, what, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            _refuse_nan(item, what, f"{path}[{position}]")


def is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate_json")


def _encode_foreign(value: Any) -> Any:
    if is_pydantic(type(value)):
        return value.model_dump(mode="json")
    for plain in (str, int, float):  # subclasses, such as markup or numpy's float64
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(f"objects of type {type(value).__name__} have no JSON form")


def _decode_foreign(kind: Any, value: Any) -> Any:
    if not is_pydantic(kind):
        raise TypeError(f"values of type {kind!r} cannot be checked")
    if isinstance(value, kind):
        return value
    try:
        # As JSON, because that is what it is: a strict model then takes a date written as text.
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as wrong:
        raise ValueError(_first_pydantic_error(wrong)) from wrong


def _first_pydantic_error(wrong: Any) -> str:
    first = wrong.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{first['msg']}, in its {where}" if where else str(first["msg"])


def _with_path(wrong: msgspec.ValidationError, within: str) -> ValidationError:
    """msgspec says `… - at `$.order.lines[0]``; a job says `… at order.lines[0]`."""
    message, _, where = str(wrong).partition(" - at `")
    _, is_key, where = where.rpartition("key` in `")
    path = within + where.rstrip("`").removeprefix("$")
    field = _FIELD.search(message)
    if field is not None:  # a missing or unknown field is named, not pointed at
        path = f"{path}.{field[1]}"
    path = path.removeprefix(".") or "$"
    return ValidationError(f"{message} as a key" if is_key else message, path=path)
