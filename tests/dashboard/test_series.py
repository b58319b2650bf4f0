"""Plots: rates of buckets, and how many jobs waited."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tenure.dashboard.pages.overview import backlog, counted, rates
from tenure.protocol.records import OutcomeBucketRecord
from tenure_conformance.spec import spec

START = datetime(2026, 1, 1, tzinfo=UTC)


def bucket(place: int, **counts: int) -> OutcomeBucketRecord:
    names = ("enqueued", "claimed", "requeued", "succeeded", "failed", "cancelled", "dead_lettered")
    return OutcomeBucketRecord(
        at=START + timedelta(minutes=place), **{name: counts.get(name, 0) for name in names}
    )


def test_a_rate_is_per_second_of_its_bucket() -> None:
    rows = rates([bucket(0, enqueued=60, succeeded=30)], 60.0, START + timedelta(minutes=5))

    assert [(row.at, row.values) for row in rows] == [(START, (1.0, 0.5, 0.0, 0.0, 0.0, 0.0))]


def test_the_last_bucket_counts_for_as_long_as_it_has_gone_on() -> None:
    buckets = [bucket(0), bucket(1, enqueued=30)]

    half = rates(buckets, 60.0, START + timedelta(seconds=90))
    begun = rates(buckets, 60.0, START + timedelta(seconds=61))

    assert half[-1].values[0] == 1.0
    assert len(begun) == 1


@spec("OB28")
def test_buckets_that_were_not_counted_have_no_rate() -> None:
    buckets = [bucket(0), bucket(1, enqueued=60), bucket(2, enqueued=15)]
    now = START + timedelta(seconds=150)

    whole = rates(counted(buckets, START + timedelta(minutes=1)), 60.0, now)
    part = rates(counted(buckets, START + timedelta(seconds=135)), 60.0, now)

    assert [row.values[0] for row in whole] == [1.0, 0.5]
    assert [row.values[0] for row in part] == [1.0]


def test_jobs_that_waited_are_reckoned_back_from_now() -> None:
    buckets = [bucket(0, enqueued=10), bucket(1, claimed=4, requeued=1), bucket(2, claimed=3)]

    rows = backlog(buckets, START + timedelta(minutes=3), 4)

    assert [row.values for row in rows] == [(0.0,), (10.0,), (7.0,), (4.0,)]
    assert [row.at for row in rows][-1] == START + timedelta(minutes=3)


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)), max_size=90),
    st.integers(0, 10_000),
)
def test_nobody_waits_less_than_nothing(counts: list[tuple[int, int, int]], waiting: int) -> None:
    buckets = [
        bucket(place, enqueued=came, claimed=went, requeued=again)
        for place, (came, went, again) in enumerate(counts)
    ]

    rows = backlog(buckets, START + timedelta(days=1), waiting)

    assert len(rows) == len(buckets) + 1
    assert all(row.values[0] >= 0 for row in rows)
    assert rows[-1].values[0] == waiting
    assert [row.at for row in rows] == sorted(row.at for row in rows)
