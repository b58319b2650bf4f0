"""The plot: rates of buckets."""

from datetime import UTC, datetime, timedelta

from tenure.dashboard.pages.overview import counted, rates
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
