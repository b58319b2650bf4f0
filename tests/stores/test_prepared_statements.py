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
    store.close()


def test_uses_of_a_statement_are_forgotten_after_many_others() -> None:
    """The number of statements whose uses are counted is limited."""

    def is_prepared(others: int) -> bool:
        prepared = PreparedStatements()
        for _ in range(PREPARED_AFTER):
            assert prepared.new_name("SELECT 1", ()) is None
        for number in range(others):
            prepared.new_name(f"SELECT {number}, 2", ())
        return prepared.new_name("SELECT 1", ()) is not None

    assert is_prepared(MOST_COUNTED // 2)
    assert not is_prepared(MOST_COUNTED)


def test_the_number_of_kept_statements_is_limited(postgres_store: PostgresStore) -> None:
    statements = postgres_store.database.statements

    for number in range(MOST_COMPILED + 10):
        statements.shaped("candidates", (("kinds", f"AND j.kind <> '{number}'"),))

    assert statements.shaped.cache_info().currsize == MOST_COMPILED
