"""While a rate has no room, a claim of other jobs does not wait for those who use the rate."""

import psycopg
import pytest
from msgspec.structs import replace

from tenure.conformance.spec import spec
from tenure.core.claims import kind_meter
from tenure.core.ids import DEFAULT_NAMESPACE, Kind
from tenure.core.instants import Instant
from tenure.core.kind_settings import KindChange
from tenure.core.rates import parse_rate
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sql.held_meters import HeldMeters
from tests.stores.lives import QUEUE, claim_request, enqueue, enqueue_changes, planner, save

SEND, OTHER = Kind("send"), Kind("other")
RATE = parse_rate("rate", "1/d", 1)
METER = kind_meter(SEND)


def claimed_kinds(store: PostgresStore, seq: int, *, limit: int = 5) -> list[Kind]:
    """The kinds of the jobs that a claim of both kinds receives."""
    request = replace(claim_request(limit, seq=seq), kinds=(SEND, OTHER))
    planned = store.claim(request.scope, [request.session], limit, planner(request))
    return [change.job.kind for change in planned.changes]


def enqueue_other(store: PostgresStore) -> None:
    [made] = enqueue_changes(store, 1)
    [event] = made.events
    job = replace(made.job, kind=OTHER)
    save(store, [replace(made, job=job, events=(event,))])


@spec("RL8")
@pytest.mark.parametrize("lock", ["kind", "queue"])
def test_a_claim_leaves_a_rate_without_room_out_and_needs_no_lock_for_it(
    postgres_store: PostgresStore, postgres_url: str, lock: str
) -> None:
    store = postgres_store
    enqueue(store, 3)
    if lock == "kind":
        store.put_kind(DEFAULT_NAMESPACE, KindChange(kind=SEND, rate=RATE))
    else:
        store.put_queue(DEFAULT_NAMESPACE, QUEUE, paused=None, limit=None, rate=RATE)
    assert claimed_kinds(store, 1) == [SEND]
    enqueue_other(store)

    with psycopg.connect(postgres_url) as other:
        if lock == "kind":  # another process is claiming the kind
            key = store._key("kind", DEFAULT_NAMESPACE, SEND)
            other.execute("SELECT pg_advisory_xact_lock(%s)", [key])
        else:  # a claim that would lock the queue for itself would wait for this one
            key = store._key("queue", DEFAULT_NAMESPACE, QUEUE)
            other.execute("SELECT pg_advisory_xact_lock_shared(%s)", [key])

        received = claimed_kinds(store, 2)

    assert received == ([OTHER] if lock == "kind" else [])


def test_what_is_remembered_of_a_rate_holds_until_its_instant_and_for_this_rate_only() -> None:
    now, since = Instant(1_767_225_600_000_000), Instant(1)
    held = HeldMeters()
    held.remember(DEFAULT_NAMESPACE, {METER: (RATE, since)}, {METER: RATE.after(now, now)}, now)

    found = held.get(DEFAULT_NAMESPACE, METER, RATE, since)

    assert found is not None
    assert found.holds_at(now)
    assert found.holds_at(Instant(found.until - 1))
    assert not found.holds_at(found.until)
    assert not found.holds_at(Instant(now - 1)), "the clock was set back"
    assert held.get(DEFAULT_NAMESPACE, METER, RATE, Instant(2)) is None, "set again since"
    assert held.get(DEFAULT_NAMESPACE, kind_meter(OTHER), RATE, since) is None
    held.forget(DEFAULT_NAMESPACE, {METER: found})
    assert held.get(DEFAULT_NAMESPACE, METER, RATE, since) is None


def test_a_rate_with_room_is_not_remembered_and_one_that_has_some_by_now_is_not_given() -> None:
    now, fast = Instant(1_767_225_600_000_000), parse_rate("rate", "10000/s", 1)
    held = HeldMeters()
    held.remember(DEFAULT_NAMESPACE, {METER: (RATE, None)}, {}, now)
    assert held.get(DEFAULT_NAMESPACE, METER, RATE, None) is None

    held.remember(DEFAULT_NAMESPACE, {METER: (fast, None)}, {METER: fast.after(now, now)}, now)
    while held.get(DEFAULT_NAMESPACE, METER, fast, None) is not None:
        pass  # for 100 µs
