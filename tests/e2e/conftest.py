"""A site of real workers, on SQLite unless a test asks for each database.

What a worker does with signals, output and files does not depend on the database, and the store kit
compares the databases themselves. Leases and transactions between processes are tested on both.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.workers import Site


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if getattr(request, "param", "sqlite") == "sqlite":
        url = f"sqlite:///{tmp_path / 'e2e.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    site = Site(url)
    yield site
    site.close()


@pytest.fixture(scope="module")
def staffed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site whose worker all tests of a file share: for those that neither stop it nor choose its
    options."""
    site = Site(f"sqlite:///{tmp_path_factory.mktemp('staffed') / 'e2e.db'}")
    site.start("worker", concurrency=3)
    yield site
    site.close()
