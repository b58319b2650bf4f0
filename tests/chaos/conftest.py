"""Where chaos happens: a SQLite file, or a PostgreSQL server that keeps what it acknowledged."""

from pathlib import Path

import pytest

from tests.support.postgres import PostgresCluster


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new store."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'chaos.db'}"
    server: PostgresCluster = request.getfixturevalue("durable_postgres")
    return server.create_database()
