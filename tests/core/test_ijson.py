"""I-JSON: everything JSON allows except what some language would read differently."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tenure.core.checks import MAX_EXACT_INTEGER
from tenure.core.ijson import NotIJson, are_as_written_here, check_ijson
from tenure_conformance.spec import spec
from tests.support.cases import each_case

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-MAX_EXACT_INTEGER, MAX_EXACT_INTEGER)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
)


def check(body: bytes, *, max_bytes: int = 1 << 20, max_depth: int = 64) -> None:
    check_ijson(body, max_bytes=max_bytes, max_depth=max_depth)


def refusal(body: bytes, *, max_depth: int = 64) -> str:
    with pytest.raises(NotIJson) as caught:
        check(body, max_depth=max_depth)
    return str(caught.value)


@spec("J1")
@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_what_json_writes_is_accepted(value: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)

    check(text.encode(), max_depth=10_000)


def reads_alike(body: bytes) -> bool:
    """Whether Python's own reader takes it and none of the listed refusals applies."""

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in found}) != len(found):
            raise ValueError
        return dict(found)

    def integer(digits: str) -> int:
        if abs(int(digits)) > MAX_EXACT_INTEGER:
            raise ValueError
        return int(digits)

    def number(digits: str) -> float:
        if abs(float(digits)) == float("inf"):
            raise ValueError
        return float(digits)

    def constant(word: str) -> None:
        raise ValueError(word)

    def strings(value: object) -> bool:
        match value:
            case str():
                value.encode()
                return "\x00" not in value
            case list():
                return all(strings(each) for each in value)
            case dict():
                return all(strings(key) and strings(each) for key, each in value.items())
            case _:
                return True

    try:
        text = body.decode()
        if text.startswith("\ufeff"):
            return False
        value = json.loads(
            text,
            object_pairs_hook=pairs,
            parse_int=integer,
            parse_float=number,
            parse_constant=constant,
        )
        return strings(value)
    except ValueError:
        return False


ESCAPES = ("\\u0000", "\\ud800", "\\udc00")
PIECES = st.sampled_from(
    [*'[]{},:"a\\u01-.e+ \n', "9" * 17, "null", "true", "NaN", "Infinity", '"a":', "ü", *ESCAPES]
)


@spec("J1")
@given(st.lists(PIECES, max_size=12).map("".join))
def test_any_text_is_judged_as_the_listed_rules_say(text: str) -> None:
    body = text.encode()

    try:
        check(body, max_depth=1000)
        accepted = True
    except NotIJson:
        accepted = False

    assert accepted == reads_alike(body)


@spec("J1")
@given(st.binary(max_size=40))
def test_any_bytes_are_judged_without_another_error(body: bytes) -> None:
    try:
        check(body)
        accepted = True
    except NotIJson:
        accepted = False

    assert accepted == reads_alike(body)


@spec("J1")
@each_case(
    ("body", "word"),
    [
        (b"NaN", "NaN"),
        (b"[Infinity]", "Infinity"),
        (b'{"a":-Infinity}', "-Infinity"),
        (b'{"a":1,"a":1}', "duplicate key"),
        (b'{"a":1,"\\u0061":2}', "duplicate key"),
        (b'[{"b":{"x":1,"x":2}}]', "duplicate key"),
        (b"9007199254740992", "2^53"),
        (b"-9007199254740992", "2^53"),
        (b"[" + b"9" * 5000 + b"]", "2^53"),
        (b"1e400", "too large"),
        (b"-1e400", "too large"),
        (b'"\\ud800"', "surrogate"),
        (b'"\\udc00\\ud800"', "surrogate"),
        (b'{"\\ud800":1}', "surrogate"),
        (b'[["\\udfff"]]', "surrogate"),
        (b'"\\u0000"', "NUL"),
        (b'{"a\\u0000b":1}', "NUL"),
        (b'"\x00"', "not JSON"),
        (b"\x00", "not JSON"),
        (b'"\n"', "not JSON"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        (b'"\xff"', "UTF-8 at byte 1"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"", "not JSON"),
        (b"  ", "not JSON"),
        (b"{", "not JSON"),
        (b"[1,]", "not JSON"),
        (b"'a'", "not JSON"),
        (b"01", "more than one"),
        (b"-01", "more than one"),
        (b"1 2", "more than one"),
        (b"{} x", "more than one"),
        (b"null\x00", "more than one"),
        (b"+1", "not JSON"),
        (b".5", "not JSON"),
        (b"1.", "more than one"),
        (b"0x1", "more than one"),
        (b"1_000", "more than one"),
    ],
)
def test_each_refusal_says_why(body: bytes, word: str) -> None:
    assert word in refusal(body)


@spec("J1")
@each_case(
    "body",
    [
        b"-0",
        b"-0.0",
        b"1E5",
        b"1e+5",
        b"1e-400",
        b"9007199254740991",
        b"-9007199254740991",
        b"9007199254740993.0",
        b"1.7976931348623157e308",
        b'"\\ud83d\\ude00"',
        '"\N{GRINNING FACE}"'.encode(),
        b'"\\\\u0000"',
        b'"\x7f"',
        b" \t\r\n null \n",
        b'{"":{"":[]}}',
        b'"NaN"',
    ],
)
def test_what_looks_odd_but_is_i_json_is_accepted(body: bytes) -> None:
    check(body)


@spec("J2")
@pytest.mark.parametrize("depth", [1, 2, 63, 64, 65, 100])
def test_nesting_is_counted_over_arrays_and_objects(depth: int) -> None:
    mixed = "".join("[" if level % 2 else '{"a":' for level in range(depth))
    closing = "".join("]" if level % 2 else "}" for level in reversed(range(depth)))
    bodies = [
        ("[" * depth + "]" * depth).encode(),
        (mixed + "1" + closing).encode(),
        ("[[]," * (depth - 1) + "[]" + "]" * (depth - 1)).encode(),
    ]

    for body in bodies:
        if depth <= 64:
            check(body)
        else:
            assert "deeper than 64" in refusal(body)


@spec("J2")
def test_brackets_in_strings_and_side_by_side_are_not_nesting() -> None:
    check(json.dumps(["[" * 1000 + '"{' * 1000, "\\", '\\"[', {"[" * 100: "]"}]).encode())
    check(b"[" + b"[]," * 1000 + b"[]]")


@spec("J2")
def test_a_body_may_be_as_large_as_the_limit_and_no_larger() -> None:
    body = b'"' + b"x" * 1022 + b'"'

    check(body, max_bytes=1024)
    with pytest.raises(NotIJson, match="1024 bytes are over the limit of 1023"):
        check(body, max_bytes=1023)


@spec("J2")
@pytest.mark.parametrize("opening", [b"[", b'{"a":', b"[{", b'"[', b"\\["])
def test_a_hostile_megabyte_does_not_overflow_the_stack(opening: bytes) -> None:
    body = (opening * (1 << 20))[: 1 << 20]

    refusal(body)


def test_a_long_number_does_not_take_long() -> None:
    assert "2^53" in refusal(b"1" * (1 << 20))
    check(b"0." + b"1" * 100_000)


DOUBTFUL = SCALARS | st.integers() | st.sampled_from(["\x00", "\ud800", "1e5", "9" * 16, 1e300])
DOUBTFUL_VALUES = st.recursive(
    DOUBTFUL, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4)
)


@spec("J1")
@given(DOUBTFUL_VALUES)
def test_what_is_written_without_spaces_is_judged_as_the_listed_rules_say(value: object) -> None:
    """Such bodies need no parser of ours if nothing in them is doubtful."""
    body = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")

    try:
        check(body, max_depth=1000)
        accepted = True
    except NotIJson:
        accepted = False

    assert accepted == reads_alike(body)


@spec("J1")
@pytest.mark.parametrize(
    "body", [b'{"a":1,"a":1}', b'{"a":{"b":1,"b":2}}', b'{"a":9007199254740992}', b"[1e999]"]
)
def test_a_body_without_spaces_that_is_not_i_json_is_refused(body: bytes) -> None:
    assert refusal(body)


@spec("J1")
@given(st.lists(PIECES.map(str.encode) | st.binary(max_size=8), max_size=4))
@example([b'"', b"\x80", b'"'])
def test_bodies_that_are_judged_together_are_judged_as_each_alone(bodies: list[bytes]) -> None:
    if are_as_written_here(bodies):
        for body in bodies:
            check(body)


@spec("J1")
def test_parts_of_a_value_do_not_pass_for_bodies() -> None:
    assert are_as_written_here([b'{"a":1}', b"[1,2]"])
    assert not are_as_written_here([b"[1", b"2],3"])
    assert not are_as_written_here([b'{"a":1},{"a":2}'])
    assert not are_as_written_here([b'{"a":1,"a":2}'])
