"""Cron on days when clocks are set, compared with a table made minute by minute."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest

from tenure.core.ids import DEFAULT_QUEUE, Kind
from tenure.core.instants import Instant
from tenure.core.schedules import ScheduleSpec, next_after
from tenure_conformance.spec import spec
from tests.support.cases import each_case

MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

EXPRESSIONS = [
    "* * * * *",
    "*/5 * * * *",
    "*/7 * * * *",
    "0 * * * *",
    "15 * * * *",
    "30 * * * *",
    "45 * * * *",
    "50 * * * *",
    "0,20,40 * * * *",
    "10-20 * * * *",
    "* 0 * * *",
    "* 1 * * *",
    "* 2 * * *",
    "* 3 * * *",
    "* 4 * * *",
    "*/20 1,2,3 * * *",
    "*/10 0-3 * * *",
    "0 */2 * * *",
    "15 */3 * * *",
    "50 */2 * * *",
    "0 0 * * *",
    "15 1 * * *",
    "45 1 * * *",
    "0 2 * * *",
    "10,40 2 * * *",
    "50 2 * * *",
    "0,30 2,3 * * *",
    "50 3 * * *",
]

CHANGES = [
    ("Australia/Lord_Howe", date(2026, 4, 5)),  # from 02:00 back to 01:30
    ("Australia/Lord_Howe", date(2026, 10, 4)),  # from 02:00 to 02:30
    ("Pacific/Chatham", date(2026, 4, 5)),  # from 03:45 back to 02:45
    ("Pacific/Chatham", date(2026, 9, 27)),  # from 02:45 to 03:45
    ("Europe/Berlin", date(2026, 3, 29)),
    ("Europe/Berlin", date(2026, 10, 25)),
    ("America/New_York", date(2026, 3, 8)),
    ("America/New_York", date(2026, 11, 1)),
    ("America/Sao_Paulo", date(2018, 11, 4)),  # there was no midnight
    ("America/Sao_Paulo", date(2018, 2, 18)),  # back over midnight
    ("Asia/Pyongyang", date(2015, 8, 15)),  # back by half an hour over midnight
    ("Asia/Pyongyang", date(2018, 5, 5)),  # ahead by half an hour over midnight
    ("Antarctica/Troll", date(2026, 3, 29)),  # ahead by two hours
    ("Antarctica/Troll", date(2026, 10, 25)),  # back by two hours
    ("Asia/Kathmandu", date(1986, 1, 1)),  # ahead by a quarter of an hour
    ("Pacific/Apia", date(2011, 12, 30)),  # there was no such day
]


def says(field: str, number: int) -> bool:
    if field.startswith("*/"):
        return number % int(field[2:]) == 0
    if field == "*":
        return True
    return any(
        int(part.split("-")[0]) <= number <= int(part.split("-")[-1]) for part in field.split(",")
    )


def table(cron: str, minutes: list[tuple[datetime, datetime]]) -> Iterator[datetime]:
    """The times among these minutes but the first that the rules name. It looks at each minute."""
    fields = cron.split()[:2]
    meant_minutes = {each for each in range(60) if says(fields[0], each)}
    meant_hours = {each for each in range(24) if says(fields[1], each)}

    def is_meant(shown: datetime) -> bool:
        return shown.minute in meant_minutes and shown.hour in meant_hours

    follows_elapsed_time = any(field.startswith("*") for field in fields)
    highest = minutes[0][1]  # what clocks have shown so far
    for at, shown in minutes[1:]:
        if follows_elapsed_time:
            if is_meant(shown):
                yield at
            continue
        passed = []  # this minute and those that are skipped before it; none that is repeated
        while highest < shown:
            highest += MINUTE
            passed.append(highest)
        if any(map(is_meant, passed)):
            yield at


def minutes_between(begin: datetime, end: datetime, tz: str) -> list[tuple[datetime, datetime]]:
    """Each minute from `begin` on and before `end`, and what clocks show then."""
    times = [begin + number * MINUTE for number in range((end - begin) // MINUTE)]
    zone = ZoneInfo(tz)
    return [(at, at.astimezone(zone).replace(tzinfo=None)) for at in times]


def instant(at: datetime) -> Instant:
    return Instant((at - EPOCH) // timedelta(microseconds=1))


def fired(of: ScheduleSpec, begin: datetime) -> Iterator[datetime]:
    """One after the other, as a schedule goes on: each follows from the one before."""
    at: Instant | None = instant(begin)
    while at is not None:
        at = next_after(of, at)
        if at is not None:
            yield EPOCH + timedelta(microseconds=at)


@spec("SC4")
@each_case(("tz", "day"), CHANGES)
@pytest.mark.slow
def test_no_time_is_lost_and_none_is_added_where_clocks_are_set(tz: str, day: date) -> None:
    midnight = datetime(day.year, day.month, day.day, tzinfo=UTC)
    begin, end = midnight - timedelta(hours=36), midnight + timedelta(hours=36)

    minutes = minutes_between(begin, end, tz)
    wrong = {}
    for cron in EXPRESSIONS:
        each = ScheduleSpec(kind=Kind("k"), queue=DEFAULT_QUEUE, cron=cron, tz=tz)
        found = set(takewhile(lambda at: at < end, fired(each, begin)))
        expected = set(table(cron, minutes))
        if found != expected:
            wrong[cron] = {"lost": expected - found, "added": found - expected}

    assert wrong == {}


@spec("SC4")
@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("*/30 1 29 2 *", "2027-10-01T00:00Z 2028-02-28T14:00Z 2028-02-28T14:30Z"),
        ("45 * 5 4 *", "2026-03-01T00:00Z 2026-04-04T13:45Z 2026-04-04T14:45Z 2026-04-04T15:15Z"),
        ("0 */12 1 1 *", "2026-01-02T00:00Z 2026-12-31T13:00Z 2027-01-01T01:00Z"),
    ],
)
def test_a_time_that_is_far_away_is_found(cron: str, expected: str) -> None:
    begin, *times = map(datetime.fromisoformat, expected.split())
    each = ScheduleSpec(kind=Kind("k"), queue=DEFAULT_QUEUE, cron=cron, tz="Australia/Lord_Howe")
    found = fired(each, begin)

    assert [next(found) for _ in times] == times
