"""`tenure backup` on a store that is in use."""

import stat
from pathlib import Path

from tenure_conformance.spec import spec
from tests.cli.harness import Run, enqueued


@spec("B40")
def test_a_backup_is_a_store_that_only_its_owner_can_read(run: Run, tmp_path: Path) -> None:
    enqueued(run, "mail")
    target = tmp_path / "copy.db"

    made = run("backup", str(target))
    restored = run("jobs", "ls", "--url", f"sqlite:///{target}")
    again = run("backup", str(target))

    assert made.exit_code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert "mail" in restored.stdout
    assert again.exit_code == 2
    assert "exists" in again.stderr


@spec("B40")
def test_a_backup_of_nothing_leaves_no_file(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "copy.db"

    refused = run("backup", str(target))

    assert (refused.exit_code, target.exists()) == (2, False)
    assert "there is no store" in refused.stderr


@spec("B40")
def test_for_postgres_the_command_to_run_is_said(run: Run, tmp_path: Path) -> None:
    url = "postgresql://jobs:geheim@127.0.0.1:1/jobs"

    refused = run("backup", str(tmp_path / "copy.dump"), "--url", url)

    assert refused.exit_code == 2
    assert "pg_dump --format=custom --schema=tenure" in refused.stderr
    assert "geheim" not in refused.stderr
