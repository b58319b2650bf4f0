"""The arithmetic of rates, against a reference that counts grants window by window."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.instants import Instant
from tenure.core.rates import NOTHING_GRANTED, Rate, RateUnit, parse_rate
from tenure.errors import InvalidInput
from tenure_conformance.spec import spec
from tests.support.cases import each_case

NOW = Instant(1_767_225_600_000_000)

rates = st.builds(
    Rate,
    grants=st.integers(1, 10_000),
    per=st.sampled_from(list(RateUnit)),
    burst=st.integers(1, 50),
)


def most_in_any_window(rate: Rate, granted: list[int]) -> Fraction:
    """By how much the busiest window exceeds what the rate allows: compares every two grants."""
    per_us = Fraction(rate.grants, rate.period_us)
    worst = Fraction(-1)
    for first, begin in enumerate(granted):
        for last in range(first, len(granted)):
            allowed = rate.burst + per_us * (granted[last] - begin)
            worst = max(worst, last - first + 1 - allowed)
    return worst


def grant_greedily(rate: Rate, steps: list[int], tat: Instant = NOTHING_GRANTED) -> list[int]:
    """Everything that may be granted, each time the clock has moved on."""
    now, granted = NOW, list[int]()
    for step in steps:
        now = Instant(now + step)
        for _ in range(rate.room(tat, now)):
            tat = rate.after(tat, now)
            granted.append(now)
        assert rate.room(tat, now) == 0
    return granted


@spec("RL1")
@given(rate=rates, units=st.lists(st.fractions(0, 5, max_denominator=7), max_size=20))
def test_no_window_has_more_than_burst_and_rate_allow(rate: Rate, units: list[Fraction]) -> None:
    steps = [int(unit * rate.period_us / rate.grants) for unit in units]

    granted = grant_greedily(rate, steps)

    assert most_in_any_window(rate, granted) <= 0


@spec("RL1")
@given(rate=rates)
def test_a_rate_can_be_used_in_full(rate: Rate) -> None:
    granted = grant_greedily(rate, [0, *[rate.interval_us] * 20])

    assert len(granted) == rate.burst + 20


@spec("RL3")
@given(rate=rates, back_us=st.integers(1, 10**12))
def test_after_a_backward_step_the_state_is_at_most_a_burst_ahead(rate: Rate, back_us: int) -> None:
    tat = Instant(NOW + rate.burst * rate.interval_us)
    earlier = Instant(NOW - back_us)

    assert rate.used(tat, earlier) == earlier + rate.burst * rate.interval_us
    assert rate.room(tat, earlier) == 0
    assert rate.wait_us(tat, earlier) <= rate.interval_us


@spec("RL1")
@given(rate=rates, ahead_us=st.integers(0, 10**9))
def test_there_is_room_exactly_from_the_instant_that_is_foretold(rate: Rate, ahead_us: int) -> None:
    tat = rate.used(Instant(NOW + ahead_us), NOW)
    wait_us = rate.wait_us(tat, NOW)

    assert rate.room(tat, Instant(NOW + wait_us)) >= 1
    assert wait_us == 0 or rate.room(tat, Instant(NOW + wait_us - 1)) == 0


@spec("RL4")
def test_a_rate_is_read_as_people_write_it() -> None:
    assert parse_rate("rate", "100/m", 20) == Rate(grants=100, per=RateUnit.MINUTE, burst=20)
    assert parse_rate("rate", " 10/s ") == Rate(grants=10, per=RateUnit.SECOND, burst=1)
    assert parse_rate("rate", "5/h").burst == 1
    assert parse_rate("rate", "2000/s").burst == 200
    assert str(parse_rate("rate", "1000/d")) == "1000/d"


@spec("RL4")
@each_case(
    ("text", "burst", "field", "said"),
    [
        ("0/s", None, "rate", "0/s is not from 1 to 1,000,000 jobs"),
        ("0.5/s", None, "rate", "'0.5/s' is not a rate; write it in whole numbers: 30/m"),
        ("0.0000001/s", None, "rate", "is not a rate; write 10/s"),
        ("-1/s", None, "rate", "is not a rate"),
        ("10/w", None, "rate", "is not a rate"),
        ("10", None, "rate", "is not a rate"),
        ("ten/s", None, "rate", "is not a rate"),
        ("1.5/s", None, "rate", "is not a rate"),
        (10, None, "rate", "is not a rate"),
        ("10001/s", None, "rate", "more than 10,000 jobs a second"),
        ("1000001/d", None, "rate", "is not from 1"),
        ("10/s", 0, "burst", "0 is not from 1"),
        ("10/s", -3, "burst", "-3 is not from 1"),
        ("10/s", 1_000_001, "burst", "is not from 1"),
        ("10/s", "4", "burst", "str is not an integer"),
    ],
)
def test_what_is_no_rate_is_refused(text: object, burst: object, field: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_rate("rate", text, burst)

    assert refused.value.field == field
    assert said in str(refused.value)
