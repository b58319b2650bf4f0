"""The store kit on every store of ours. Semantics are tested there and nowhere else."""

import pytest

from tenure.conformance.harness import StoreFactory
from tenure.conformance.store import all_tests
from tests.conformance.factories import MemoryFactory, PostgresFactory, SqliteFactory

globals().update(all_tests())


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def tenure_store_factory(request: pytest.FixtureRequest) -> StoreFactory:
    """The store a test of the kit runs on; the kit closes it."""
    match request.param:
        case "memory":
            return MemoryFactory()
        case "sqlite":
            return SqliteFactory()
        case _:
            # Asked for by name, so that the others start no server.
            server = request.getfixturevalue("postgres")
            return PostgresFactory(server, request.getfixturevalue("postgres_template"))
