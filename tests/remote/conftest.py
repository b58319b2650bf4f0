"""The kit over HTTP, on each database."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tenure.conformance.harness import StoreFactory
from tenure.errors import Closed
from tests.conformance.factories import PostgresFactory, SqliteFactory, make_template
from tests.remote.over_http import RemoteKit
from tests.remote.serving import ThreadedServer
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres_template(postgres: PostgresServer) -> str:
    """A migrated database on virtual time, to be copied."""
    return make_template(postgres)


@pytest.fixture(params=["sqlite", "postgres"])
def tenure_store_factory(request: pytest.FixtureRequest) -> StoreFactory:
    """Each database in turn; whoever opens it closes it."""
    if request.param == "sqlite":
        return SqliteFactory()
    server = request.getfixturevalue("postgres")
    return PostgresFactory(server, request.getfixturevalue("postgres_template"))


@pytest.fixture(scope="session")
def server() -> Iterator[ThreadedServer]:
    """A socket to be served behind; each test mounts its own coordinator."""
    server = ThreadedServer()
    yield server
    server.close()


@pytest.fixture
def kit(
    tenure_store_factory: StoreFactory, server: ThreadedServer, tmp_path: Path
) -> Iterator[RemoteKit]:
    """The kit, far from its coordinator; the history that a test leaves behind is verified."""
    made = RemoteKit(tenure_store_factory, server)
    try:
        yield made
        with suppress(Closed):
            made.verify(tmp_path)
    finally:
        made.close()
