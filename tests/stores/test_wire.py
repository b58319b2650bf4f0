"""What is sent in one round trip is one transaction, and what comes afterwards is another."""

import threading
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from tenure.deadlines import deadline
from tenure.stores.postgres.notifications import channel_of
from tenure.stores.postgres.schema import connect
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.postgres.wire import RoundTrip, Wire
from tenure.stores.sql.statements import Query
from tenure_conformance.spec import spec
from tests.stores.lives import enqueue

COUNT = Query("SELECT count(*) FROM seen", ())


@pytest.fixture
def wire(postgres_url: str) -> Iterator[Wire]:
    with closing(Wire(connect(postgres_url, until=deadline(10)))) as opened:
        _round_trip(
            opened,
            "CREATE TABLE seen (n integer)",
            "CREATE TABLE late (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)",
        )
        yield opened


def _round_trip(wire: Wire, *texts: str, afterwards: str = "") -> RoundTrip:
    trip = RoundTrip(wire, until=deadline(10), prepares=False)
    trip.send([Query(text, ()) for text in texts])
    trip.finish([Query(afterwards, ())] if afterwards else ())
    return trip


def _seen(wire: Wire) -> object:
    trip = RoundTrip(wire, until=deadline(10), prepares=False)
    trip.send([COUNT])
    [[(number,)]] = trip.finish()
    return number


@spec("K1")
def test_without_begin_all_statements_of_a_round_trip_are_one_transaction(
    wire: Wire,
) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        _round_trip(wire, "INSERT INTO seen VALUES (1)", "SELECT 1 / 0")

    assert _seen(wire) == 0


@spec("K1")
def test_an_error_of_the_commit_itself_is_raised(
    wire: Wire,
) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        _round_trip(wire, "INSERT INTO seen VALUES (1)", "INSERT INTO late VALUES (1), (1)")

    assert _seen(wire) == 0


def test_what_comes_afterwards_cannot_undo_what_was_committed(
    wire: Wire,
) -> None:
    trip = _round_trip(wire, "INSERT INTO seen VALUES (1)", afterwards="SELECT 1 / 0")

    assert not trip.was_done_afterwards
    assert _seen(wire) == 1


def test_what_comes_afterwards_is_done_also_if_the_statements_before_failed(
    wire: Wire,
) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        _round_trip(wire, "SELECT 1 / 0", afterwards="SELECT 1")

    assert _seen(wire) == 0  # the connection is as good as before


@spec("Z7")
def test_a_new_job_is_hinted_at_right_after_its_commit_without_another_thread(
    postgres_url: str,
) -> None:
    before = {thread.name for thread in threading.enumerate()}
    with (
        closing(PostgresStore(postgres_url, migrate=True)) as store,
        psycopg.connect(postgres_url, autocommit=True) as listener,
    ):
        listener.execute(f'LISTEN "{channel_of("tenure")}"'.encode())

        enqueue(store, 1)

        heard = next(listener.notifies(timeout=60, stop_after=1), None)
        assert heard is not None
        assert "tenure-notify" not in {thread.name for thread in threading.enumerate()} - before
