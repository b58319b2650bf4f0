"""Prepared statements are bounded, and those in use come back."""

import itertools

import pytest

from tenure.stores.postgres import wire as postgres_wire
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.postgres.wire import MOST_COUNTED, PREPARED_AFTER, PreparedStatements
from tenure.stores.sql.statements import MOST_COMPILED
from tests.stores.lives import enqueue, taken

PREPARED = "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'tenure_%'"


def test_a_connection_with_too_many_statements_begins_anew(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_wire, "MOST_PREPARED", 2)
    store = PostgresStore(postgres_url, migrate=True, pool_size=1)
    numbers = []
    for _ in range(3 * PREPARED_AFTER):
        enqueue(store)
        store.now()
        with taken(store) as wire:
            [(number,)] = wire.connection.execute(PREPARED).fetchall()
        numbers.append(number)

    rises = [later > before for before, later in itertools.pairwise(numbers)]
    falls = [later < before for before, later in itertools.pairwise(numbers)]
    assert any(rises[rises.index(True) + 1 :])  # prepared, forgotten, prepared again
    assert any(falls)
    assert store.database._prepares
    store.close()


def test_the_number_of_statements_whose_uses_are_counted_is_limited() -> None:
    prepared = PreparedStatements()

    for number in range(3 * MOST_COUNTED):
        prepared.new_name(f"SELECT {number}", ())

    assert len(prepared._uses) <= MOST_COUNTED


def test_the_number_of_kept_statements_is_limited(postgres_store: PostgresStore) -> None:
    statements = postgres_store.database.statements

    for number in range(MOST_COMPILED + 10):
        statements.shaped("candidates", (("kinds", f"AND j.kind <> '{number}'"),))

    assert statements.shaped.cache_info().currsize == MOST_COMPILED
