"""Whatever is enqueued arrives equal, or is refused: for values nobody thought of."""

import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure import InvalidInput, ValidationError
from tenure.core.validation import Limits, check_body
from tests.client.test_handlers import (
    Colour,
    Line,
    Node,
    Options,
    Parcel,
    Point,
    giving,
    taking,
)

pytestmark = pytest.mark.slow

HINTS: list[Any] = [
    str,
    int,
    float,
    bool,
    bytes,
    datetime,
    date,
    time,
    timedelta,
    UUID,
    Decimal,
    Colour,
    Line,
    Parcel,
    Point,
    Options,
    Node,
    list[int | str | None],
    dict[str, float],
    dict[int, tuple[Line, ...]],
    dict[UUID, date],
    set[date],
    frozenset[bytes],
    tuple[int, str, bool],
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    """Equal, and where equality does not see a difference, alike in writing too."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, Decimal) and isinstance(other, Decimal):
        return str(one) == str(other)  # as text it travels, NaN included
    return bool(one == other)


@given(st.data())
def test_a_value_of_any_hint_arrives_equal_or_is_refused(data: st.DataObject) -> None:
    hint = data.draw(st.sampled_from(HINTS))
    value = data.draw(st.from_type(hint))
    try:
        body = taking(hint).encode_arguments((value,), {})
        check_body("payload", body, Limits())
    except (ValidationError, InvalidInput):
        return

    assert same(taking(hint).decode_arguments(body)["value"], value)
    assert same(giving(hint).decode_result(giving(hint).encode_result(value)), value)


@given(json_values)
def test_any_json_arrives_equal_or_is_refused(value: Any) -> None:
    handler = taking(Any)
    try:
        body = handler.encode_arguments((value,), {})
        check_body("payload", body, Limits())
    except (ValidationError, InvalidInput):
        return

    assert handler.decode_arguments(body) == {"value": value}


@given(
    st.binary(max_size=40) | json_values.map(lambda value: str(value).encode("utf-8", "replace"))
)
def test_a_payload_of_any_bytes_is_read_or_refused(payload: bytes) -> None:
    for hint in (int, Line, dict[str, list[int]], Any):
        try:
            decoded = taking(hint).decode_arguments(payload)
        except ValidationError:
            continue
        assert set(decoded) == {"value"}


def test_ordinary_values_are_not_refused() -> None:
    for hint, value in ((float, 1.5), (Decimal, Decimal("1.5")), (str, "x"), (int, 7)):
        assert taking(hint).encode_arguments((value,), {})
    with pytest.raises(ValidationError):
        taking(float).encode_arguments((math.nan,), {})
