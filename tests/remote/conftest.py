"""The kit over HTTP."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tenure.errors import Closed
from tenure_conformance.harness import StoreFactory
from tests.conformance.factories import MemoryFactory
from tests.remote.over_http import RemoteKit
from tests.remote.serving import ThreadedServer


@pytest.fixture
def tenure_store_factory() -> StoreFactory:
    """In memory: what HTTP adds does not depend on the store, and the kit runs on each of them
    without HTTP. Whoever opens it closes it."""
    return MemoryFactory()


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
