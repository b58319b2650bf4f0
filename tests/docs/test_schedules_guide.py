"""The guide to schedules: its commands work, one after the other."""

import re
from pathlib import Path

import pytest

from tests.docs.commands import environment_with_tenure, run_shell

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "schedules.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(blocks("python")[0])
    url = f"sqlite:///{tmp_path}/shop.db"
    environment = environment_with_tenure(tmp_path, {"TENURE_URL": url})
    sync, moved, by_hand = blocks("sh")

    synced = run_shell(sync, tmp_path, environment)
    renamed = blocks("python")[0].replace("weekly-full", "sundays")
    (tmp_path / "shop" / "tasks.py").write_text(renamed)
    taken_over = run_shell(moved, tmp_path, environment)
    done = run_shell(by_hand, tmp_path, environment)

    assert synced.stdout.splitlines() == ["ping: new", "report: new", "weekly-full: new"], synced
    assert taken_over.stdout.splitlines() == [
        *("ping: changed", "report: changed", "sundays: new"),
        "weekly-full: removed",
    ], taken_over
    assert done.returncode == 0, done
    assert "nightly: fires next at" in done.stdout
    assert "nightly: removed" in done.stdout
