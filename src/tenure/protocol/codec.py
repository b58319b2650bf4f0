"""Encodes and decodes messages; one that cannot be read is an error that names the field. [H8]

Requests are read strictly, answers leniently; that is a property of their types. [H2]
"""

import json
import re
from collections.abc import Hashable, Iterable, Iterator
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar, cast, get_args, get_type_hints

import msgspec

from tenure.core.ijson import is_ijson
from tenure.core.vocabulary import Word
from tenure.errors import MalformedBody
from tenure.protocol.embedded import is_parsed_whole
from tenure.protocol.fields import Moment
from tenure.protocol.wording import InvalidMessage, in_words

_T = TypeVar("_T")

_encoder = msgspec.json.Encoder()
_AT = " - at `"
_ROOT = re.compile(r"(?:key in )?\$?\.?")
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


class Decoded(NamedTuple, Generic[_T]):
    """A request that was read, and whether every payload, result and checkpoint in it is I-JSON;
    where one is not, the core finds it and names its field."""

    message: _T
    is_ijson: bool
    is_unchecked: bool = False
    """Whether the request is large, and `embedded` has yet to check it."""


def decode_request(kind: type[_T], body: bytes) -> Decoded[_T]:
    """The message that a request's `body` is. What says a thing twice is refused too: some reader
    between here and its author may have taken the other one. [H2]

    One pass finds both duplicates and what is not I-JSON, so that nobody parses a payload again. It
    holds the interpreter and keeps the lists that it parses, so a request with large payloads is
    left to `embedded`. [H85]
    """
    message = decode(kind, body)
    _check_words(message, kind)
    if not is_parsed_whole(message, len(body)):
        return Decoded(message, is_ijson=False, is_unchecked=True)
    try:
        if is_ijson(body):
            return Decoded(message, is_ijson=True)
        _duplicate_finder.decode(body.decode("utf-8", "replace"))
    except json.JSONDecodeError as wrong:
        raise MalformedBody(f"is not JSON: {wrong}") from wrong
    except RecursionError as wrong:
        raise InvalidMessage("body", "is nested too deeply") from wrong
    return Decoded(message, is_ijson=False)


def _check_once(pairs: list[tuple[str, object]]) -> None:
    """One pass: the sender of the body chooses how many keys there are."""
    seen = set()
    for name, _ in pairs:
        if name in seen:
            raise InvalidMessage(ascii(name[:40])[1:-1], "is given twice")
        seen.add(name)


def _unread(digits: str) -> None:
    """Skips a number, however long."""


_duplicate_finder = json.JSONDecoder(
    object_pairs_hook=_check_once, parse_int=_unread, parse_float=_unread, strict=False
)


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
    _check_words(query, kind)
    return query


def _check_words(request: object, kind: Any) -> None:
    """Refuse a word that this version does not know: only answers may have one. [Y6]"""
    for place, word in _unknown_words(request, "$"):
        raise _invalid(f"Invalid enum value '{word}' - at `{place}`", kind)


def _unknown_words(value: object, place: str) -> Iterator[tuple[str, Word]]:
    if isinstance(value, Word):
        if not value.is_known:
            yield place, value
    elif isinstance(value, msgspec.Struct):
        for name, on_wire in _with_words(type(value)):
            yield from _unknown_words(getattr(value, name), f"{place}.{on_wire}")
    elif isinstance(value, tuple):
        for number, each in enumerate(value):
            yield from _unknown_words(each, f"{place}[{number}]")


@cache
def _with_words(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """The fields of a struct that can hold words, with their names on the wire."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return tuple(
        (each.name, each.encode_name) for each in info.fields if _may_hold_words(each.type, {kind})
    )


def _may_hold_words(info: msgspec.inspect.Type, seen: set[type]) -> bool:
    match info:
        case msgspec.inspect.Metadata():
            return _may_hold_words(info.type, seen)
        case msgspec.inspect.UnionType():
            return any(_may_hold_words(each, seen) for each in info.types)
        case msgspec.inspect.VarTupleType():
            return _may_hold_words(info.item_type, seen)
        case msgspec.inspect.EnumType():
            return issubclass(info.cls, Word)
        case msgspec.inspect.StructType() if info.cls not in seen:
            inside = {*seen, info.cls}
            return any(_may_hold_words(each.type, inside) for each in info.fields)
        case _:
            return False


def encode_query(query: msgspec.Struct) -> list[tuple[str, str]]:
    """A query as the names and values of a URL; defaults are left out."""
    pairs = []
    for name, value in msgspec.to_builtins(query).items():
        for each in value if isinstance(value, list | tuple) else [value]:
            pairs.append((name, _word(each)))
    return pairs


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@cache
def _list_fields(kind: Hashable) -> frozenset[str]:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return frozenset(
        field.encode_name
        for field in info.fields
        if isinstance(field.type, msgspec.inspect.VarTupleType)
    )


@cache
def _moment_fields(kind: Hashable) -> frozenset[str]:
    hints = get_type_hints(kind, include_extras=True)
    return frozenset(name for name, hint in hints.items() if Moment in (hint, *get_args(hint)))


def _without_place(text: str) -> tuple[str, str]:
    """msgspec's words in two: what is wrong, and where if they say so."""
    problem, marker, place = text.rpartition(_AT)
    if not marker or not place.endswith("`"):
        return text, ""
    return problem, _ROOT.sub("", place[:-1], count=1)


def _invalid(text: str, kind: Any) -> InvalidMessage:
    """msgspec's words, `what - at `$.path``, as an error of ours."""
    problem, place = _without_place(text)
    named = _NAMED.search(problem)
    parts = [place] if place else []
    if named is not None:
        parts.append(named[1])
    field = ".".join(parts)
    return InvalidMessage(ascii(field[:200])[1:-1] or "body", in_words(problem, kind, field)[:300])
