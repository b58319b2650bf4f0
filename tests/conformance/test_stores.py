"""The store kit on every store of ours. Semantics are tested there and nowhere else."""

from collections.abc import Iterator

import pytest

from tenure.conformance.harness import StoreFactory
from tenure.conformance.store import all_tests
from tests.conformance.factories import MemoryFactory, SqliteFactory

globals().update(all_tests())


@pytest.fixture(params=["memory", "sqlite"])
def tenure_store_factory(request: pytest.FixtureRequest) -> Iterator[StoreFactory]:
    """The store a test of the kit runs on."""
    match request.param:
        case "memory":
            yield MemoryFactory()
        case _:
            yield SqliteFactory()
