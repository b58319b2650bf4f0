"""The time axis: monotone, within its bounds, linear between cuts, labels apart from each other."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.core.instants import Instant
from tenure.dashboard.rendering import duration_words
from tenure.dashboard.time_axis import (
    CUTS_WIDTH,
    LABEL_GAP,
    WIDTH,
    WORK_SHARE,
    Gap,
    TimeAxis,
    time_axis,
)
from tests.support.cases import each_case

BEGINNING = 1_700_000_000_000_000
MINUTE, HOUR, DAY = 60_000_000, 3_600_000_000, 86_400_000_000
TOLERANCE = 1e-6


@st.composite
def axes(draw: st.DrawFn) -> tuple[TimeAxis, list[Gap]]:
    """Work and idle gaps in turn, from microseconds to weeks."""
    lengths = draw(st.lists(st.integers(0, 30 * DAY), min_size=1, max_size=60))
    here, gaps = BEGINNING, []
    for number, length in enumerate(lengths):
        if number % 2:
            gaps.append((Instant(here), Instant(here + length)))
        here += length
    return time_axis(Instant(BEGINNING), Instant(here), idle=gaps), gaps


@given(axes(), st.lists(st.integers(-DAY, 1000 * DAY), min_size=2, max_size=20))
def test_later_instants_are_never_further_left_and_all_are_on_the_axis(
    drawn: tuple[TimeAxis, list[Gap]], offsets: list[int]
) -> None:
    axis, _ = drawn

    found = [axis.position(Instant(BEGINNING + offset)) for offset in sorted(offsets)]

    assert found == sorted(found)
    assert all(0 <= x <= WIDTH for x in found)


@given(axes())
def test_stretches_follow_each_other_and_fill_the_width(
    drawn: tuple[TimeAxis, list[Gap]],
) -> None:
    stretches = drawn[0].stretches

    assert stretches[0].left == 0
    assert stretches[-1].right == pytest.approx(WIDTH)
    for one, other in pairwise(stretches):
        assert (one.end, one.right) == (other.start, other.left)
    assert all(each.start < each.end and each.left <= each.right for each in stretches)


@given(axes())
def test_only_idle_gaps_are_cut_and_the_rest_has_one_scale(
    drawn: tuple[TimeAxis, list[Gap]],
) -> None:
    axis, gaps = drawn
    linear = [each for each in axis.stretches if not each.is_cut]
    scale = sum(each.right - each.left for each in linear) / sum(each.length_us for each in linear)

    assert {(cut.start, cut.end) for cut in axis.cuts} <= set(gaps)
    assert sum(cut.right - cut.left for cut in axis.cuts) <= CUTS_WIDTH + TOLERANCE
    for each in linear:
        assert each.right - each.left == pytest.approx(each.length_us * scale, abs=TOLERANCE)


@given(axes())
def test_work_fills_its_share_of_what_is_drawn(drawn: tuple[TimeAxis, list[Gap]]) -> None:
    axis, gaps = drawn
    work_us = axis.end - axis.start - sum(to - since for since, to in gaps)
    linear_us = sum(each.length_us for each in axis.stretches if not each.is_cut)

    assert work_us <= 0 or linear_us <= WORK_SHARE * work_us


@given(axes())
def test_labels_do_not_overlap_and_stay_within_the_picture(
    drawn: tuple[TimeAxis, list[Gap]],
) -> None:
    ticks = drawn[0].ticks()

    assert ticks
    for one, other in pairwise(ticks):
        assert one.right + LABEL_GAP <= other.left + TOLERANCE
        assert one.x <= other.x
    assert ticks[0].left >= -TOLERANCE
    assert ticks[-1].right <= WIDTH + TOLERANCE


def test_a_long_wait_before_a_short_run_is_cut() -> None:
    claimed_at = Instant(BEGINNING + 3 * DAY)

    axis = time_axis(
        Instant(BEGINNING), Instant(claimed_at + 5_000), idle=[(Instant(BEGINNING), claimed_at)]
    )

    assert [cut.length_us for cut in axis.cuts] == [3 * DAY]
    assert axis.position(claimed_at) < 10
    assert axis.ticks()[0].label == "⋯ 3 d ⋯"


def test_a_job_that_only_waits_has_a_plain_axis() -> None:
    now = Instant(BEGINNING + 2 * HOUR)

    axis = time_axis(Instant(BEGINNING), now, idle=[(Instant(BEGINNING), now)])

    assert not axis.cuts
    assert [tick.label for tick in axis.ticks()] == ["0 s", "30 min", "1 h", "1 h 30 min", "2 h"]


def test_an_axis_of_no_time_has_a_length() -> None:
    axis = time_axis(Instant(BEGINNING), Instant(BEGINNING), idle=[])

    assert axis.end > axis.start
    assert axis.ticks()[0].label == "0 s"


@each_case(
    ("span_us", "words"),
    [
        (-5, "0 s"),
        (0, "0 s"),
        (350, "350 µs"),
        (5_400, "5 ms"),
        (1_000_000, "1 s"),
        (1_250_000, "1.2 s"),
        (59_900_000, "59 s"),
        (3 * MINUTE + 20_000_000, "3 min 20 s"),
        (2 * HOUR, "2 h"),
        (2 * DAY + 4 * HOUR + MINUTE, "2 d 4 h"),
        (2 * DAY + MINUTE, "2 d"),
    ],
)
def test_durations_have_at_most_two_units(span_us: int, words: str) -> None:
    assert duration_words(span_us) == words
