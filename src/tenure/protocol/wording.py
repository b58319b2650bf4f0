"""What is wrong with a field, in words: msgspec's messages name types and regular expressions.

What is expected is said as people would write it, with the words that are allowed where there are
few. Texts that are not known here are passed on as they are.
"""

import re
from enum import Enum
from typing import Any

from msgspec import inspect

from tenure.errors import InvalidInput
from tenure.protocol.fields import PATTERNS_IN_WORDS

_LENGTH = re.compile(r"Expected `(str|array)` of length (<=|>=) (\d+)")
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
    """What msgspec says of a field of a message of this kind, in words."""
    if "matching regex" in problem:
        for pattern, words in PATTERNS_IN_WORDS.items():
            if pattern in problem or repr(pattern)[1:-1] in problem:
                return f"expected {words}"
    if found := _LENGTH.match(problem):
        what = "characters" if found[1] == "str" else "elements"
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
        allowed = _words_at(kind, field)
        if allowed:
            return f"{found[1][:40]!a} is none of {', '.join(sorted(allowed))}"
    return problem


def _at_least_or_most(sign: str) -> str:
    return "at least" if sign == ">=" else "at most"


def _words_at(kind: Any, field: str) -> list[str]:
    """The words that a field may be, if it is of a closed set."""
    found = [inspect.type_info(kind)]
    for step in _STEP.finditer(field):
        found = [part for each in found for part in _inside(each, step[1])]
    words: list[str] = []
    for each in found:
        if isinstance(each, inspect.EnumType):
            words += [str(member.value) for member in each.cls if isinstance(member, Enum)]
        elif isinstance(each, inspect.LiteralType):
            words += [str(value) for value in each.values]
    return words


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
