"""A site on each database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.workers import Site


@pytest.fixture(params=["sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'e2e.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    site = Site(url)
    yield site
    site.close()
