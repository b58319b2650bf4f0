"""The payloads, results and checkpoints inside a large request: found and checked one by one.

A parser that reads the whole request would keep a tree of it: 16 MiB of empty lists took 800 MB and
held the interpreter for seconds. So the request's own fields are walked beside the message that was
decoded from them, and what a sender embeds is skipped, then checked by itself. [H85]
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from tenure.core.ijson import NotIJson, check_content, check_size, parsed_bytes
from tenure.core.validation import Limits
from tenure.protocol.wording import InvalidMessage

SMALL_BYTES = 64 << 10
"""A request, or a body in it, up to this size is parsed with the rest: 3 ms, 3 MB."""

WHOLE_BYTES = 1 << 20
"""A larger request is never parsed as a whole."""

FIELDS_BYTES = 1 << 10
"""The other fields of a job or report take no more than this, or the request is not parsed as a
whole: a field that is given twice can hide anything."""


class EmbeddedBodies:
    """The payloads, results and checkpoints of a request. None is too large or too deep."""

    def __init__(self, found: Sequence[tuple[str, bytes]]) -> None:
        self._found = found
        self.parsing_bytes = max((parsed_bytes(body) for _, body in found), default=0)
        """About how much memory `check` takes: that of one body."""

    def check(self) -> None:
        """Raise `InvalidMessage` if a body is not I-JSON. [J1]"""
        for field, body in self._found:
            try:
                check_content(body)
            except NotIJson as wrong:
                raise InvalidMessage(field, str(wrong)) from wrong


def is_parsed_whole(message: object, size_bytes: int) -> bool:
    """Whether a request of this size has no large body, so that parsing all of it at once takes
    little time and memory."""
    if size_bytes <= SMALL_BYTES:
        return True
    if size_bytes > WHOLE_BYTES:
        return False
    sizes = [memoryview(each).nbytes for each in _bodies(message)]
    fields_bytes = size_bytes - sum(sizes)
    largest_bytes = max(sizes, default=0)
    most_fields_bytes = SMALL_BYTES + FIELDS_BYTES * len(sizes)
    return largest_bytes <= SMALL_BYTES and fields_bytes <= most_fields_bytes


def find_embedded(message: msgspec.Struct, request: bytes, limits: Limits) -> EmbeddedBodies:
    """The bodies in a request from which `message` was decoded. Raises `InvalidMessage` if a field
    is given twice, or if a body is too large or too deep, without parsing any. [H2] [J2]"""
    walk = _Walk(request)
    walk.value(walk.after_space(0), message, "")
    for field, body in walk.found:
        try:
            check_size(body, max_bytes=limits.body_bytes, max_depth=limits.depth)
        except NotIJson as wrong:
            raise InvalidMessage(field, str(wrong)) from wrong
    return EmbeddedBodies(walk.found)


def _bodies(value: object) -> Iterator[msgspec.Raw]:
    if isinstance(value, msgspec.Raw):
        yield value
    elif isinstance(value, msgspec.Struct):
        for name in _with_bodies(type(value)):
            yield from _bodies(getattr(value, name))
    elif isinstance(value, tuple):
        for each in value:
            yield from _bodies(each)


@cache
def _with_bodies(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a message that can hold bodies."""
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return tuple(each.name for each in info.fields if _may_hold_bodies(each.type, {kind}))


def _may_hold_bodies(info: msgspec.inspect.Type, seen: set[type]) -> bool:
    match info:
        case msgspec.inspect.RawType():
            return True
        case msgspec.inspect.Metadata():
            return _may_hold_bodies(info.type, seen)
        case msgspec.inspect.UnionType():
            return any(_may_hold_bodies(each, seen) for each in info.types)
        case msgspec.inspect.VarTupleType():
            return _may_hold_bodies(info.item_type, seen)
        case msgspec.inspect.StructType() if info.cls not in seen:
            inside = {*seen, info.cls}
            return any(_may_hold_bodies(each.type, inside) for each in info.fields)
        case _:
            return False


# Possessive: a text is never tried twice.
_SPACE = re.compile(rb"[ \t\r\n]*+")
_KEY = re.compile(rb'[ \t\r\n]*+("(?:[^"\\]++|\\.)*+")[ \t\r\n]*+:[ \t\r\n]*+', re.DOTALL)
_SCALAR = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[^][{}",: \t\r\n]++', re.DOTALL)
_NEXT = re.compile(rb"[ \t\r\n]*+(?:(,)[ \t\r\n]*+|[]}])")
_NOTHING = re.compile(rb"[ \t\r\n]*+[]}]")


class _Walk:
    """Walks the fields of a request. It is known to be JSON, and to be the message except for
    fields that are given twice: of those the message has the last."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.found: list[tuple[str, bytes]] = []

    def after_space(self, at: int) -> int:
        """Where the value after this white space begins."""
        space = _SPACE.match(self._request, at)
        assert space is not None  # it matches nothing, too
        return space.end()

    def value(self, at: int, value: object, field: str) -> int:
        """Where the value that begins here ends."""
        request = self._request
        if isinstance(value, msgspec.Raw):
            body = bytes(value)
            # No JSON value is the beginning of another, except numbers, and `_end` notices these.
            if not request.startswith(body, at):
                raise _twice(field)
            self.found.append((field, body))
            return at + len(body)
        first = request[at : at + 1]
        if first == b"{" and isinstance(value, msgspec.Struct):
            return self._object(at + 1, value, field)
        if first == b"[" and isinstance(value, tuple):
            return self._list(at + 1, value, field)
        scalar = _SCALAR.match(request, at)
        if scalar is None:
            raise _twice(field)
        return scalar.end()

    def _object(self, at: int, value: msgspec.Struct, field: str) -> int:
        nothing = _NOTHING.match(self._request, at)
        if nothing is not None:
            return nothing.end()
        attributes = _attributes(type(value))
        seen = set()
        while True:
            key = _KEY.match(self._request, at)
            if key is None:
                raise _twice(field)
            name = msgspec.json.decode(key[1], type=str)
            inside = f"{field}.{name}" if field else name
            if name in seen:
                raise _twice(inside)
            seen.add(name)
            attribute = attributes.get(name)
            held = None if attribute is None else getattr(value, attribute)
            is_last, at = self._end(self.value(key.end(), held, inside), inside)
            if is_last:
                return at

    def _list(self, at: int, values: tuple[object, ...], field: str) -> int:
        nothing = _NOTHING.match(self._request, at)
        if nothing is not None:
            return nothing.end()
        at = self.after_space(at)
        for number, each in enumerate(values):
            is_last, at = self._end(self.value(at, each, f"{field}[{number}]"), field)
            if is_last:
                return at
        raise _twice(field)

    def _end(self, at: int, field: str) -> tuple[bool, int]:
        """Whether the value that ends here is the last one, and where the next begins."""
        then = _NEXT.match(self._request, at)
        if then is None:
            raise _twice(field)
        return then[1] is None, then.end()


@cache
def _attributes(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The attributes of a message by their names on the wire."""
    return dict(zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True))


def _twice(field: str) -> InvalidMessage:
    return InvalidMessage(ascii(field[:200])[1:-1] or "body", "is given twice")
