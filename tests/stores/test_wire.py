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
from tenure.stores.postgres.wire import RoundTrip
from tenure.stores.sql.statements import Query
from tenure_conformance.spec import spec
from tests.stores.lives import enqueue

COUNT = Query("SELECT count(*) FROM seen", ())


@pytest.fixture
def connection(postgres_url: str) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    with closing(connect(postgres_url, until=deadline(10))) as opened:
        _round_trip(
            opened,
            "CREATE TABLE seen (n integer)",
            "CREATE TABLE late (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)",
        )
        yield opened


def _round_trip(
    connection: "psycopg.Connection[tuple[object, ...]]", *texts: str, afterwards: str = ""
) -> RoundTrip:
    trip = RoundTrip(connection, None, until=deadline(10))
    trip.send([Query(text, ()) for text in texts])
    trip.finish([Query(afterwards, ())] if afterwards else ())
    return trip


def _seen(connection: "psycopg.Connection[tuple[object, ...]]") -> object:
    trip = RoundTrip(connection, None, until=deadline(10))
    trip.send([COUNT])
    [[(number,)]] = trip.finish()
    return number


@spec("K1")
def test_without_begin_all_statements_of_a_round_trip_are_one_transaction(
    connection: "psycopg.Connection[tuple[object, ...]]",
) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        _round_trip(connection, "INSERT INTO seen VALUES (1)", "SELECT 1 / 0")

    assert _seen(connection) == 0


@spec("K1")
def test_an_error_of_the_commit_itself_is_raised(
    connection: "psycopg.Connection[tuple[object, ...]]",
) -> None:
    with pytest.raises(psycopg.errors.UniqueViolation):
        _round_trip(connection, "INSERT INTO seen VALUES (1)", "INSERT INTO late VALUES (1), (1)")

    assert _seen(connection) == 0


def test_what_comes_afterwards_cannot_undo_what_was_committed(
    connection: "psycopg.Connection[tuple[object, ...]]",
) -> None:
    trip = _round_trip(connection, "INSERT INTO seen VALUES (1)", afterwards="SELECT 1 / 0")

    assert not trip.was_done_afterwards
    assert _seen(connection) == 1


def test_what_comes_afterwards_is_done_also_if_the_statements_before_failed(
    connection: "psycopg.Connection[tuple[object, ...]]",
) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        _round_trip(connection, "SELECT 1 / 0", afterwards="SELECT 1")

    assert _seen(connection) == 0  # the connection is as good as before


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
