"""What the handlers of a real `tenure worker` see of its environment."""

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.e2e.workers import Site

pytestmark = pytest.mark.process

SETTINGS = """
import os

from tenure import Tenure

app = Tenure()
DATABASE = os.environ.get("DATABASE_URL", "sqlite:///dev.db")


@app.job()
def settings() -> list[str]:
    return [DATABASE, *sorted(name for name in os.environ if "TOKEN" in name)]
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    (tmp_path / "settings_app.py").write_text(SETTINGS)
    monkeypatch.syspath_prepend(tmp_path)
    settings = {
        "DATABASE_URL": "postgresql://app:app@db/app",
        "TENURE_TOKEN": "tenure_x",
        "SHOP_TOKEN": "y",
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
    }
    site = Site(f"sqlite:///{tmp_path / 'e2e.db'}", settings=settings)
    site.deploy("settings_app:app")
    yield site
    site.close()


def test_a_module_reads_the_same_settings_in_a_worker_as_elsewhere(site: Site) -> None:
    site.start("usual")

    job = site.until_ended(site.enqueue("settings"))

    assert job.result is not None
    assert msgspec.json.decode(job.result) == ["postgresql://app:app@db/app", "SHOP_TOKEN"]


def test_in_the_strict_mode_a_handler_sees_what_is_named(site: Site) -> None:
    site.start("strict", "--only-env", "SHOP_*", "--only-env", "TENURE_TOKEN")

    job = site.until_ended(site.enqueue("settings"))

    assert job.result is not None
    assert msgspec.json.decode(job.result) == ["sqlite:///dev.db", "SHOP_TOKEN"]
