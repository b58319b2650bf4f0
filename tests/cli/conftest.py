"""What the tests of commands share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenure.coordinator.service import Coordinator
from tenure.stores.sqlite.store import SqliteStore
from tests.cli.harness import Run, tenure
from tests.support.databases import write_empty_store


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """The SQLite file that commands use."""
    return tmp_path / "tenure.db"


@pytest.fixture
def serving(store_path: Path) -> Iterator[Coordinator]:
    """A coordinator over the same file, to play a worker."""
    write_empty_store(store_path)
    store = SqliteStore(store_path)
    coordinator = Coordinator(store)
    yield coordinator
    coordinator.close()
    store.close()


@pytest.fixture
def run(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs commands on a SQLite file of the test's own."""
    monkeypatch.setenv("TENURE_URL", f"sqlite:///{store_path}")
    return tenure
