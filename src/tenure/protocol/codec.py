"""Encodes and decodes messages; one that cannot be read is an error that names the field. [H8]

Requests are read strictly, answers leniently; that is a property of their types. [H2] What msgspec
reports of a field names types and regular expressions; here it is put in plain words. Payloads,
results and checkpoints are checked one by one: a parser that reads a whole large request would keep
a tree of it, and 16 MiB of empty lists took 800 MB and kept the interpreter busy for seconds. [H89]
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache, partial
from typing import Any, TypeVar, cast, get_args, get_type_hints

import msgspec
from msgspec import inspect

from tenure.core.ijson import NotIJson, check_content, check_size, parsed_bytes
from tenure.core.validation import Limits
from tenure.core.vocabulary import OpenEnum
from tenure.errors import InvalidInput, MalformedBody
from tenure.protocol.fields import PATTERNS_IN_WORDS, Moment

# --- What is wrong with a field, in words --------------------------------------------------------


_T = TypeVar("_T")

_LENGTH = re.compile(r"Expected `(str|array|object)` of length (<=|>=) (\d+)")
_BOUND = re.compile(r"Expected `(?:int|float)` (<=|>=) (\S+)")
_TYPE = re.compile(r"Expected `([^`]+)`, got `(\w+)`")
_TIME_ZONE = re.compile(r"Expected `datetime` with a timezone component|Invalid RFC3339.*")
_WORD = re.compile(r"Invalid (?:enum )?value '?([^']*)'?")
_MISSING = re.compile(r"Object missing required field `[^`]*`")
_UNKNOWN = re.compile(r"Object contains unknown field `[^`]*`")
_STEP = re.compile(r"([^.\[\]]+)|\[[^\]]*\]")

_INSTANT = "an instant with its timezone, such as 2030-01-31T12:00:00Z"
_TYPES = {
    "array": "a list",
    "bool": "true or false",
    "datetime": _INSTANT,
    "float": "a number",
    "int": "an integer",
    "null": "null",
    "object": "an object",
    "str": "text",
}


class InvalidMessage(InvalidInput):
    """A field of a message breaks a rule of the message's type. `field` is its name on the wire,
    as the sender wrote it."""


def in_words(problem: str, kind: Any, field: str) -> str:
    """msgspec's error about a field of a message of this kind, in plain words."""
    if "matching regex" in problem:
        for pattern, words in PATTERNS_IN_WORDS.items():
            if pattern in problem or repr(pattern)[1:-1] in problem:
                return f"expected {words}"
    if found := _LENGTH.match(problem):
        what = {"str": "characters", "array": "elements", "object": "entries"}[found[1]]
        return f"expected {_at_least_or_most(found[2])} {found[3]} {what}"
    if found := _BOUND.match(problem):
        return f"expected {_at_least_or_most(found[1])} {found[2]}"
    if found := _TYPE.match(problem):
        expected = [_TYPES.get(each, each) for each in found[1].split(" | ")]
        return f"expected {' or '.join(expected)}, not {_TYPES.get(found[2], found[2])}"
    if _TIME_ZONE.match(problem):
        return f"expected {_INSTANT}"
    if _MISSING.match(problem):
        return "is missing"
    if _UNKNOWN.match(problem):
        return (
            "unknown field: this message has none of this name; correct or leave it out, or upgrade"
            " the server if a newer version has it"
        )
    if found := _WORD.match(problem):
        allowed = _values_at(kind, field)
        if allowed:
            return f"{found[1][:40]!a} is none of {', '.join(sorted(allowed))}"
    return problem


def _at_least_or_most(sign: str) -> str:
    return "at least" if sign == ">=" else "at most"


def _values_at(kind: Any, field: str) -> list[str]:
    """The values that a field may have, if they are a closed set."""
    found = [inspect.type_info(kind)]
    for step in _STEP.finditer(field):
        found = [part for each in found for part in _inside(each, step[1])]
    values: list[str] = []
    for each in found:
        if isinstance(each, inspect.EnumType):
            values += [str(member.value) for member in each.cls if isinstance(member, Enum)]
        elif isinstance(each, inspect.LiteralType):
            values += [str(value) for value in each.values]
    return values


def _inside(kind: inspect.Type, name: str | None) -> list[inspect.Type]:
    """What may be in a field of this name, or at any place of a list (None)."""
    match kind:
        case inspect.Metadata():
            return _inside(kind.type, name)
        case inspect.UnionType():
            return [part for each in kind.types for part in _inside(each, name)]
        case inspect.StructType() if name is not None:
            if name == kind.tag_field and kind.tag is not None:
                return [inspect.LiteralType((str(kind.tag),))]
            parts = [field.type for field in kind.fields if field.encode_name == name]
            return [each for part in parts for each in _unwrapped(part)]
        case inspect.VarTupleType() | inspect.ListType() if name is None:
            return _unwrapped(kind.item_type)
        case _:
            return []


def _unwrapped(kind: inspect.Type) -> list[inspect.Type]:
    if isinstance(kind, inspect.Metadata):
        return _unwrapped(kind.type)
    if isinstance(kind, inspect.UnionType):
        return [each for part in kind.types for each in _unwrapped(part)]
    return [kind]


# --- Parts of a message ------------------------------------------------------------------------


def _parts(value: object, wanted: type[_T], place: str = "$") -> Iterator[tuple[str, _T]]:
    """The values of this type in a message, and where they are."""
    if isinstance(value, wanted):
        yield place, value
    elif isinstance(value, msgspec.Struct):
        for name, on_wire in _fields_with(type(value), cast(Hashable, wanted)):
            yield from _parts(getattr(value, name), wanted, f"{place}.{on_wire}")
    elif isinstance(value, tuple):
        for number, each in enumerate(value):
            yield from _parts(each, wanted, f"{place}[{number}]")


@cache
def _fields_with(kind: type[msgspec.Struct], wanted: Any) -> tuple[tuple[str, str], ...]:
    """The fields of a struct that can have such values, with their names on the wire."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return tuple(
        (each.name, each.encode_name)
        for each in info.fields
        if _may_hold(each.type, wanted, {kind})
    )


def _may_hold(info: inspect.Type, wanted: type, outer: set[type]) -> bool:
    match info:
        case inspect.RawType():
            return wanted is msgspec.Raw
        case inspect.EnumType():
            return issubclass(info.cls, wanted)
        case inspect.Metadata():
            return _may_hold(info.type, wanted, outer)
        case inspect.UnionType():
            return any(_may_hold(each, wanted, outer) for each in info.types)
        case inspect.VarTupleType():
            return _may_hold(info.item_type, wanted, outer)
        case inspect.StructType() if info.cls not in outer:
            inside = {*outer, info.cls}
            return any(_may_hold(each.type, wanted, inside) for each in info.fields)
        case _:
            return False


class EmbeddedBodies:
    """The payloads, results and checkpoints of a message. Raises `InvalidMessage` if one is too
    large or too deep, without parsing any. [J2] [H89]"""

    def __init__(self, message: msgspec.Struct, limits: Limits) -> None:
        self._found = [(at[2:], bytes(body)) for at, body in _parts(message, msgspec.Raw)]
        self._each(partial(check_size, max_bytes=limits.body_bytes, max_depth=limits.depth))
        self.parsing_bytes = max((parsed_bytes(body) for _, body in self._found), default=0)
        """About how much memory `check` takes: that of one body."""

    def check(self) -> None:
        """Raise `InvalidMessage` if a body is not I-JSON. [J1]"""
        self._each(check_content)

    def _each(self, check: Callable[[bytes], object]) -> None:
        for field, body in self._found:
            try:
                check(body)
            except NotIJson as wrong:
                raise InvalidMessage(field, str(wrong)) from wrong


# --- Fields that are given twice -----------------------------------------------------------------


MAX_NESTED = 32
"""Objects and lists of a message within each other; bodies not counted."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements = msgspec.json.Decoder(list[msgspec.Raw])


def _check_fields_once(value: object, text: bytes, place: str = "", depth: int = 0) -> None:
    """Refuse an object in which a field is given twice: it has more text than the fields that were
    read from it. Some reader between here and the sender may have taken the other one. [H2] Bodies
    are neither parsed nor kept. The text is known to be that of `value`, but for such fields."""
    if depth > MAX_NESTED:
        raise InvalidMessage("body", "is nested too deeply")
    if isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct | tuple):
        for number, (each, part) in enumerate(zip(value, _elements.decode(text), strict=True)):
            _check_fields_once(each, bytes(part), f"{place}[{number}]", depth + 1)
    elif isinstance(value, msgspec.Struct | dict):
        found = _fields.decode(text)
        once = _encoder.encode(found)
        if len(once) != len(text) and _dense_bytes(once) != _dense_bytes(text):
            raise _twice(text, found, place)
        attributes = _attributes(type(value)) if isinstance(value, msgspec.Struct) else {}
        for name, part in found.items():
            inner = getattr(value, attributes.get(name, ""), None)
            if isinstance(inner, msgspec.Struct | tuple | dict):
                inside = f"{place}.{name}" if place else name
                _check_fields_once(inner, bytes(part), inside, depth + 1)


def _dense_bytes(text: bytes) -> int:
    """The length of a text without white space."""
    return len(text) - sum(map(text.count, (b" ", b"\t", b"\r", b"\n")))


@cache
def _attributes(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The attributes of a message by their names on the wire."""
    return dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))


def _twice(text: bytes, found: Mapping[str, msgspec.Raw], place: str) -> InvalidMessage:
    """The error that names the field: the one whose name is in the text outside the values that
    were read more than once."""
    values = [bytes(each) for each in found.values()]
    for name in found:
        named = re.compile(rf'"{re.escape(name)}"[ \t\r\n]*:'.encode())
        times = [len(named.findall(each)) for each in (text, *values)]
        if times[0] > 1 + sum(times[1:]):
            return InvalidMessage(f"{place}.{name}" if place else name, "is given twice")
    return InvalidMessage(place or "body", "has a field whose name is given twice or has escapes")


# --- Messages ------------------------------------------------------------------------------------


_encoder = msgspec.json.Encoder()
_AT = " - at `"
_ROOT = re.compile(r"(?:key` in `)?\$?\.?")
_NAMED = re.compile(r"field `([^`]*)`")


def encode(message: object) -> bytes:
    """A message as JSON."""
    return _encoder.encode(message)


def decode(kind: type[_T], body: bytes) -> _T:
    """The message that `body` is. Raises `MalformedBody` or `InvalidMessage`."""
    try:
        decoded: _T = _decoder(cast(Hashable, kind)).decode(body)
    except msgspec.ValidationError as wrong:
        raise _invalid(str(wrong), kind) from wrong
    except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
        raise MalformedBody(f"is not JSON: {wrong}") from wrong
    except RecursionError as wrong:
        raise InvalidMessage("body", "is nested too deeply") from wrong
    return decoded


def decode_request(kind: type[_T], body: bytes) -> _T:
    """The message that a request's `body` is. Its payloads, results and checkpoints are not checked
    here: the core does it, or, where they are large, `EmbeddedBodies` before."""
    message = decode(kind, body)
    _check_values(message, kind)
    _check_fields_once(message, body)
    return message


@cache
def _decoder(kind: Hashable) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


def convert_text(kind: Any, field: str, text: str) -> Any:
    """A part of a path as its type. Raises `InvalidMessage` that names `field`."""
    try:
        return msgspec.convert(text, kind)
    except msgspec.ValidationError as wrong:
        problem, _ = _without_place(str(wrong))
        raise InvalidMessage(field, in_words(problem, kind, "")) from wrong


def decode_query(kind: type[_T], pairs: Iterable[tuple[str, str]]) -> _T:
    """The query that the part of a URL after `?` is. Raises `InvalidMessage`."""
    found: dict[str, Any] = {}
    lists, moments = _list_fields(cast(Hashable, kind)), _moment_fields(cast(Hashable, kind))
    for name, text in pairs:
        if name in moments:
            convert_text(Moment, name, text)  # below, 2026 would be half an hour after 1970
        if name in lists:
            found.setdefault(name, []).append(text)
        elif name in found:
            raise InvalidMessage(name[:40], "is given twice")
        else:
            found[name] = text
    try:
        query = msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as wrong:
        raise _invalid(str(wrong), kind) from wrong
    _check_values(query, kind)
    return query


def _check_values(request: object, kind: Any) -> None:
    """Refuse a value that this version does not know: only answers may have one. [Y6]"""
    for place, word in _parts(request, OpenEnum):
        if not word.is_known:
            raise _invalid(f"Invalid enum value '{word}' - at `{place}`", kind)


def encode_query(query: msgspec.Struct) -> list[tuple[str, str]]:
    """A query as the names and values of a URL; defaults are left out."""
    pairs = []
    for name, value in msgspec.to_builtins(query).items():
        for each in value if isinstance(value, list | tuple) else [value]:
            pairs.append((name, _query_text(each)))
    return pairs


def _query_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@cache
def _list_fields(kind: Hashable) -> frozenset[str]:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    return frozenset(
        field.encode_name for field in info.fields if isinstance(field.type, inspect.VarTupleType)
    )


@cache
def _moment_fields(kind: Hashable) -> frozenset[str]:
    hints = get_type_hints(kind, include_extras=True)
    return frozenset(name for name, hint in hints.items() if Moment in (hint, *get_args(hint)))


def _without_place(text: str) -> tuple[str, str]:
    """msgspec's error in two parts: what is wrong, and where, if it names a place."""
    problem, marker, place = text.rpartition(_AT)
    if not marker or not place.endswith("`"):
        return text, ""
    return problem, _ROOT.sub("", place[:-1], count=1)


def _invalid(text: str, kind: Any) -> InvalidMessage:
    """msgspec's error, `what - at `$.path``, as one of ours."""
    problem, place = _without_place(text)
    named = _NAMED.search(problem)
    parts = [place] if place else []
    if named is not None:
        parts.append(named[1])
    field = ".".join(parts)
    return InvalidMessage(ascii(field[:200])[1:-1] or "body", in_words(problem, kind, field)[:300])
