"""Rollups: bins of durations, and how events are added up."""

from hypothesis import given
from hypothesis import strategies as st

from tenure.core.ids import Kind, Namespace, QueueName
from tenure.core.instants import Instant, seconds
from tenure.core.views.overview import LATEST_FOLD, TimeRange, window_of
from tenure.core.views.rollups import (
    KEPT_FOR,
    MAX_SERIES,
    SHORTEST,
    CountedEvent,
    Rollup,
    bin_of,
    middle_of,
    percentile,
    roll_up,
    tally,
    touched,
)
from tenure.core.vocabulary import EventType
from tenure_conformance.spec import spec

HERE = Namespace("default")
NOW = Instant(1_700_000_000_123_456)
A_YEAR_US = 366 * 24 * 3600 * 10**6


def enqueued(queue: str, *, at: Instant = NOW, namespace: Namespace = HERE) -> CountedEvent:
    return CountedEvent(namespace, QueueName(queue), Kind("k"), EventType.ENQUEUED, at)


def folded(events: list[CountedEvent], *, page: int) -> dict[object, Rollup]:
    """All of these, a page at a time."""
    found: dict[object, Rollup] = {}
    for first in range(0, len(events), page):
        tallied = tally(events[first : first + page])
        before = {key: found[key] for key in touched(tallied, NOW) if key in found}
        found |= {each.key: each for each in roll_up(tallied, before, NOW)}
    return found


@spec("OB28")
@given(duration=st.integers(0, A_YEAR_US))
def test_a_bin_stands_for_durations_within_a_sixteenth(duration: int) -> None:
    assert abs(middle_of(bin_of(duration)) - duration) <= duration / 16


@spec("OB28")
@given(duration=st.integers(0, A_YEAR_US))
def test_a_longer_duration_is_in_no_earlier_bin(duration: int) -> None:
    assert bin_of(duration) <= bin_of(duration + 1) <= bin_of(duration) + 1


@spec("OB28")
def test_a_percentile_is_the_shortest_duration_that_covers_its_share() -> None:
    bins = {3: 50, 7: 45, 9: 5}

    assert (percentile(bins, 0.50), percentile(bins, 0.95), percentile(bins, 0.96)) == (3, 7, 9)
    assert percentile({}, 0.50) is None


@spec("OB33")
@given(
    ages_s=st.lists(st.integers(0, 9 * 24 * 3600), max_size=40),
    page=st.integers(1, 7),
)
def test_every_length_counts_every_event_once_whatever_the_pages(
    ages_s: list[int], page: int
) -> None:
    times = [Instant(NOW - seconds(age)) for age in ages_s]

    found = folded([enqueued("q", at=at) for at in times], page=page)

    for length, kept_for in KEPT_FOR.items():
        counted = sum(
            each.total.counts["enqueued"] for each in found.values() if each.key.length_us == length
        )
        assert counted == sum(at // SHORTEST * SHORTEST >= NOW - kept_for for at in times)


@spec("OB33")
def test_what_was_counted_before_is_not_changed_in_place() -> None:
    [first] = [each for each in roll_up(tally([enqueued("q")]), {}, NOW) if is_long(each)]

    [second] = [
        each for each in roll_up(tally([enqueued("q")]), {first.key: first}, NOW) if is_long(each)
    ]

    assert first.series[0].counts == {"enqueued": 1}
    assert second.series[0].counts == {"enqueued": 2}


def is_long(rollup: Rollup) -> bool:
    return rollup.key.length_us == max(KEPT_FOR)


@spec("OB35")
def test_those_that_come_first_are_told_apart_and_the_others_are_in_the_total() -> None:
    events = [enqueued(f"q{number}") for number in range(MAX_SERIES + 5)]

    found = folded([*events, *events], page=MAX_SERIES)

    for rollup in found.values():
        assert [series.queue for series in rollup.series] == [each.queue for each in events[:100]]
        assert all(series.counts == {"enqueued": 2} for series in rollup.series)
        assert rollup.total.counts == {"enqueued": 2 * (MAX_SERIES + 5)}


@spec("OB35")
def test_each_namespace_has_room_of_its_own() -> None:
    events = [
        enqueued(f"q{number}", namespace=Namespace(name))
        for name in ("a", "b")
        for number in range(MAX_SERIES)
    ]

    found = folded(events, page=1000)

    assert all(len(each.series) == MAX_SERIES for each in found.values())


@spec("OB34")
def test_a_range_is_made_of_rollups_that_are_kept_for_all_of_it() -> None:
    for range_ in TimeRange:
        window = window_of(range_, NOW)

        assert window.bucket_us % SHORTEST == 0
        assert KEPT_FOR[window.bucket_us] > window.until - window.since


@spec("OB34")
def test_a_picture_begins_later_only_if_folding_is_far_behind() -> None:
    window = window_of(TimeRange.HOUR, NOW)
    beyond = Instant(NOW - seconds(600))

    def begins(*, folded_until: int | None, skipped_until: Instant | None = None) -> Instant:
        return window.counted_from(
            NOW,
            skipped_until=skipped_until,
            folded_until=None if folded_until is None else Instant(folded_until),
            first_uncounted=beyond,
        )

    assert begins(folded_until=NOW - LATEST_FOLD) == window.since
    assert begins(folded_until=NOW - LATEST_FOLD - 1) == window.counted_since(beyond)
    assert begins(folded_until=None) == window.counted_since(beyond)
    skipped = Instant(NOW - seconds(1200))
    assert begins(folded_until=NOW, skipped_until=skipped) == window.counted_since(skipped)
