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
