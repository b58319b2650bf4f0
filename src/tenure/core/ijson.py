"""I-JSON (RFC 7493): what a payload, checkpoint or result may be, checked without changing it.

Bodies are stored and hashed as the bytes that came; nothing here re-encodes them (ADR 0005).
Refuses what some language would read differently: duplicate keys, NaN, integers past 2^53,
lone surrogates, NUL.
"""

import json
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import NoReturn

import msgspec

from tenure.core.checks import MAX_EXACT_INTEGER


class NotIJson(ValueError):
    """Why a body is not acceptable, in a few words."""


def _refuse_constant(word: str) -> NoReturn:
    raise NotIJson(f"{word} is not JSON")


def _integer(digits: str) -> int:
    if len(digits) > 17 or abs(int(digits)) > MAX_EXACT_INTEGER:
        raise NotIJson(f"the integer {digits[:24]} is outside ±(2^53 - 1); send it as a string")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise NotIJson(f"the number {digits[:24]} is too large")
    return number


def _object(pairs: list[tuple[str, object]]) -> None:
    """Check an object. Returns nothing, so that the parser keeps no tree of objects."""
    if len(dict(pairs)) != len(pairs):
        raise NotIJson("an object has a duplicate key")


def _object_with_escapes(pairs: list[tuple[str, object]]) -> None:
    _object(pairs)
    _check_strings(pairs)


def _decoder_with(check_object: Callable[[list[tuple[str, object]]], None]) -> json.JSONDecoder:
    return json.JSONDecoder(
        object_pairs_hook=check_object,
        parse_int=_integer,
        parse_float=_float,
        parse_constant=_refuse_constant,
        strict=True,
    )


_decoder = _decoder_with(_object)
_decoder_of_escapes = _decoder_with(_object_with_escapes)


_EMPTY = (b"null", b"{}")


def check_ijson(body: bytes, *, max_bytes: int, max_depth: int) -> None:
    """Raise `NotIJson` unless `body` is one I-JSON text within the limits. [J1] [J2]"""
    if body in _EMPTY:
        return  # no arguments, no payload or no result: common, and needs no parser
    check_size(body, max_bytes=max_bytes, max_depth=max_depth)
    check_content(body)


def check_content(body: bytes) -> None:
    """Raise `NotIJson` unless `body`, whose size was checked, is I-JSON."""
    text = _text(body)
    if not _is_as_written_here(body):
        _check_text(text)


def parsed_bytes(body: bytes) -> int:
    """About how much memory checking the body takes besides its text, at most."""
    return PARSED_VALUE_BYTES * (body.count(b",") + body.count(b"[") + body.count(b"{"))


PARSED_VALUE_BYTES = 128
"""Memory of a value: 88 bytes for a list of one value, 232 for an object, which counts twice."""

_AS_ZERO = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_NUMBER, _EXPONENT = b"0" * 16, b"0e"
_decode, _encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
_check_syntax = msgspec.json.Decoder(msgspec.Raw).decode


def are_as_written_here(bodies: Sequence[bytes]) -> bool:
    """Whether all of them are I-JSON, of any depth: `_is_as_written_here` of many small bodies at a
    quarter of its cost. Each is compared with what msgspec writes, so that no two parts of a value
    pass for two bodies."""
    if sum(map(len, bodies)) > MOST_TOGETHER_BYTES:
        return False  # a copy of all of them could be a gigabyte
    whole = b"[" + b",".join(bodies) + b"]"
    if _has_doubtful(whole):
        return False
    try:
        return list(map(_encode, _decode(whole))) == bodies
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


MOST_TOGETHER_BYTES = 1024 * 1024


def _has_doubtful(body: bytes) -> bool:
    """Whether it may have escapes, long numbers or exponents."""
    zeros = body.translate(_AS_ZERO)  # a regular expression took longer than the parser
    return b"\\u" in body or _LONG_NUMBER in zeros or _EXPONENT in zeros


def _is_as_written_here(body: bytes) -> bool:
    """Fast check: the body has no escapes, long numbers or exponents (only the parser below knows
    which of them are allowed), and msgspec decodes and encodes it to the same bytes. Then it is
    I-JSON; with a duplicate key the bytes would differ. True for most of what the Python API sends.
    Lists without objects have no keys: only their syntax is checked, without a tree."""
    if _has_doubtful(body):
        return False
    try:
        if b"{" not in body:
            _check_syntax(body)
            return True
        return _encode(_decode(body)) == body
    except (msgspec.MsgspecError, RecursionError):
        return False


def check_size(body: bytes, *, max_bytes: int, max_depth: int) -> None:
    """Raise `NotIJson` if `body`, which was not parsed, is larger or deeper than allowed. [J2]"""
    size_bytes = len(body)
    if size_bytes > max_bytes:
        raise NotIJson(f"{size_bytes} bytes are over the limit of {max_bytes}")
    # Bytes, and then brackets, bound the depth without a parse: the parser itself recurses.
    if (
        size_bytes > max_depth
        and body.count(b"[") + body.count(b"{") > max_depth
        and _is_deeper(_text(body), max_depth)
    ):
        raise NotIJson(f"nested deeper than {max_depth}")


def _text(body: bytes) -> str:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as wrong:
        raise NotIJson(f"not UTF-8 at byte {wrong.start}") from wrong


def _check_text(text: str) -> None:
    has_escapes = "\\u" in text
    decoder = _decoder_of_escapes if has_escapes else _decoder
    try:
        value, end = decoder.raw_decode(text, len(text) - len(text.lstrip(" \t\r\n")))
    except json.JSONDecodeError as wrong:
        raise NotIJson(f"not JSON: {wrong.msg} at character {wrong.pos}") from wrong
    if text[end:].strip(" \t\r\n"):
        raise NotIJson(f"more than one JSON value: text after character {end}")
    if has_escapes:
        _check_strings(value)


_NOT_BRACKETS = re.compile(r'"(?:[^"\\]++|\\.)*+"|[^][{}"]++', re.DOTALL)
"""Strings, and what is between them and brackets. Possessive: it never tries a text twice."""
_STEPS = {"[": 1, "{": 1, "]": -1, "}": -1, '"': 0}
_BRACKETS_AT_ONCE = 4096


def _is_deeper(text: str, most: int) -> bool:
    """Whether brackets outside strings are nested deeper than `most`."""
    brackets = _NOT_BRACKETS.sub("", text)
    depth = 0
    for begin in range(0, len(brackets), _BRACKETS_AT_ONCE):
        steps = map(_STEPS.__getitem__, brackets[begin : begin + _BRACKETS_AT_ONCE])
        depths = list(accumulate(steps, initial=depth))
        if max(depths) > most:
            return True  # a megabyte of brackets is known after the first few
        depth = depths[-1]
    return False


def _check_strings(value: object) -> None:
    """Escapes can smuggle what raw UTF-8 cannot: lone surrogates and NUL."""
    if isinstance(value, str):
        if "\x00" in value:
            raise NotIJson("a string contains NUL")
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as wrong:
            raise NotIJson("a string contains a lone surrogate") from wrong
    elif isinstance(value, list | tuple):  # a list, the pairs of an object, or one of these
        for item in value:
            _check_strings(item)
