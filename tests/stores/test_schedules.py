"""Schedules in a database: the guards of their rows, and what a sweep without any costs."""

import re

import pytest

from tenure.core.ids import DEFAULT_NAMESPACE, Epoch, Kind, QueueName, ScheduleName, operator_actor
from tenure.core.instants import Instant, seconds
from tenure.core.outcomes import Moment
from tenure.core.schedules import PutSchedule, ScheduleSpec, decide_schedule, plan_firing
from tenure.stores.sql.statements import Query
from tenure_conformance.spec import spec
from tests.stores.hands import ForeignHand, PostgresHand, Refused, SqliteHand

HOUR = seconds(3600)
BEGINNING = Instant(1_700_000_000_000_000)


def fired(hand: ForeignHand) -> None:
    """A schedule that has fired once."""
    hourly = ScheduleSpec(kind=Kind("k"), queue=QueueName("q"), every_us=HOUR)
    put = PutSchedule(
        namespace=DEFAULT_NAMESPACE,
        name=ScheduleName("s"),
        actor=operator_actor("o"),
        spec=hourly,
    )
    made = decide_schedule(None, put, Moment(now=BEGINNING, epoch=Epoch(1), entropy=b""))
    assert made.change is not None
    later = Moment(now=Instant(BEGINNING + HOUR), epoch=Epoch(1), entropy=b"")
    firing = plan_firing(made.change.schedule, None, later)
    for change in (made.change, firing.change):
        assert hand.store.schedules.save(change, epoch=Epoch(1))


@spec("SC2")
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {t}schedule SET next_at = last_at, rev = rev + 1",
        "UPDATE {t}schedule SET last_at = last_at - 1, rev = rev + 1",
        "UPDATE {t}schedule SET next_at = next_at + 1",
        "UPDATE {t}schedule SET paused_at = 1, rev = rev + 1",
        "UPDATE {t}schedule SET fired = -1, rev = rev + 1",
    ],
)
def test_no_hand_sends_a_schedule_back_to_an_earlier_time(
    hand: ForeignHand, statement: str
) -> None:
    fired(hand)
    before = hand.store.schedules.page(DEFAULT_NAMESPACE)

    with pytest.raises(Refused):
        hand.run(statement)

    assert hand.store.schedules.page(DEFAULT_NAMESPACE) == before


def plan(hand: SqliteHand | PostgresHand, query: Query) -> str:
    explain = "EXPLAIN QUERY PLAN" if isinstance(hand, SqliteHand) else "EXPLAIN"
    text = re.sub(r"[$?]\d", "1", query.text.replace("tenure_clock()", "1"))
    return str(hand.run(f"{explain} {text}"))


@spec("SC25")
def test_a_sweep_looks_into_the_index_of_what_will_fire(hand: ForeignHand) -> None:
    assert isinstance(hand, SqliteHand | PostgresHand)
    store = hand.store
    fired(hand)
    if isinstance(hand, PostgresHand):
        hand.run("SET enable_seqscan = off")

    plans = [
        plan(hand, store.database.query("next_schedule")),  # type: ignore[attr-defined]  # of SQL stores
        plan(
            hand,
            store.database.query("due_schedules", until=1, latest_write=2, limit=1, reads=1),  # type: ignore[attr-defined]  # of SQL stores
        ),
        plan(hand, store.database.query("longest_due_schedules", reads=1)),  # type: ignore[attr-defined]  # of SQL stores
    ]

    assert all("schedule_next" in each for each in plans), plans
