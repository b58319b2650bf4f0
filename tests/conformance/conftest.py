"""Fixtures of the conformance tests: our stores, ready for the kit."""

from collections.abc import Iterator

import pytest

from tenure_conformance.harness import StoreFactory
from tests.conformance.factories import (
    MemoryFactory,
    PostgresDatabases,
    PostgresFactory,
    SqliteFactory,
)
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres_databases(postgres: PostgresServer) -> Iterator[PostgresDatabases]:
    """Migrated databases on virtual time, each of which serves one test after the other."""
    databases = PostgresDatabases(postgres)
    yield databases
    databases.close()


# SQLite in memory has the statements of a file: the whole kit runs on it with the long tests.
@pytest.fixture(params=[pytest.param("memory", marks=pytest.mark.proof), "sqlite", "postgres"])
def tenure_store_factory(request: pytest.FixtureRequest) -> StoreFactory:
    """Each store of ours in turn; whoever opens it closes it."""
    match request.param:
        case "memory":
            return MemoryFactory()
        case "sqlite":
            return SqliteFactory()
        case _:
            # Asked for by name, so that the others start no server.
            return PostgresFactory(request.getfixturevalue("postgres_databases"))
