"""What the tests of commands share."""

from pathlib import Path

import pytest

from tests.cli.harness import Run, tenure


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """The SQLite file that commands use."""
    return tmp_path / "tenure.db"


@pytest.fixture
def run(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs commands on a SQLite file of the test's own."""
    monkeypatch.setenv("TENURE_URL", f"sqlite:///{store_path}")
    return tenure
