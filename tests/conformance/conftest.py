"""Fixtures of the conformance tests: our stores, ready for the kit."""

import pytest

from tenure_conformance.harness import StoreFactory
from tests.conformance.factories import (
    MemoryFactory,
    PostgresFactory,
    SqliteFactory,
    make_template,
)
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """A migrated database on virtual time, to be copied."""
    return make_template(postgres)


# The quick tests run the kit on the reference store; SQLite adds a third of their time.
@pytest.fixture(params=["memory", pytest.param("sqlite", marks=pytest.mark.slow), "postgres"])
def tenure_store_factory(request: pytest.FixtureRequest) -> StoreFactory:
    """Each store of ours in turn; whoever opens it closes it."""
    match request.param:
        case "memory":
            return MemoryFactory()
        case "sqlite":
            return SqliteFactory()
        case _:
            # Asked for by name, so that the others start no server.
            server = request.getfixturevalue("postgres")
            return PostgresFactory(server, request.getfixturevalue("postgres_template"))
