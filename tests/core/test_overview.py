"""The picture of a namespace: buckets, what is counted, percentiles."""

import pytest

from tenure.core.instants import Instant
from tenure.core.views.overview import MAX_DEPTH, TimeRange, depth_limit, window_of
from tenure_conformance.spec import spec

NOW = Instant(1_700_000_000_123_456)


@spec("OB28")
@pytest.mark.parametrize("range_", TimeRange)
def test_a_window_is_whole_buckets_that_end_with_the_one_of_now(range_: TimeRange) -> None:
    window = window_of(range_, NOW)

    assert window.since % window.bucket_us == 0
    assert window.position(NOW) == window.buckets - 1
    assert window.position(window.until) == window.buckets


@spec("OB28")
def test_events_are_counted_in_whole_buckets_unless_one_has_too_many() -> None:
    window = window_of(TimeRange.HOUR, NOW)
    within_third = Instant(window.since + 2 * window.bucket_us + 1)

    assert window.counted_since(None) == window.since
    assert window.counted_since(within_third) == window.since + 3 * window.bucket_us
    assert window.counted_since(NOW) == NOW + 1


@spec("OB28")
def test_many_queues_share_what_is_counted() -> None:
    assert depth_limit(1) == depth_limit(0) == MAX_DEPTH
    assert depth_limit(100) == MAX_DEPTH // 100
    assert depth_limit(10**6) == 1000
