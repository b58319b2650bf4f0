"""Stores of both dialects, and a raw hand on what is under them."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore
from tests.stores.hands import ForeignHand, PostgresHand, SqliteHand
from tests.support.databases import write_empty_store


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "tenure.db"


@pytest.fixture
def sqlite_store(sqlite_path: Path) -> Iterator[SqliteStore]:
    """A new SQLite store."""
    write_empty_store(sqlite_path)
    store = SqliteStore(sqlite_path)
    yield store
    store.close()


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[PostgresStore]:
    """A new PostgreSQL store."""
    store = PostgresStore(postgres_url, migrate=True)
    yield store
    store.close()


@pytest.fixture
def sqlite_hand(sqlite_store: SqliteStore, sqlite_path: Path) -> SqliteHand:
    """A SQLite store and somebody with SQL beside it."""
    return SqliteHand(sqlite_store, sqlite_path)


@pytest.fixture
def postgres_hand(postgres_store: PostgresStore, postgres_url: str) -> Iterator[PostgresHand]:
    """A PostgreSQL store and somebody with SQL beside it."""
    with psycopg.connect(postgres_url, autocommit=True) as raw:
        yield PostgresHand(postgres_store, raw)


@pytest.fixture(params=["sqlite_hand", "postgres_hand"])
def hand(request: pytest.FixtureRequest) -> ForeignHand:
    """A store of either dialect and somebody with SQL beside it."""
    found: ForeignHand = request.getfixturevalue(request.param)
    return found
