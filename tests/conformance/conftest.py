"""Fixtures of the conformance tests: our stores, ready for the kit."""

import pytest

from tests.conformance.factories import make_template
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """A migrated database on virtual time, to be copied."""
    return make_template(postgres)
