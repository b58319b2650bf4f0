"""`tenure raise-epoch` on a real store."""

from pathlib import Path

from tests.cli.harness import Run


def test_each_raise_begins_a_new_epoch(run: Run) -> None:
    run("migrate")

    assert run("raise-epoch", "--yes").stdout == "2\n"
    assert run("raise-epoch", typed="y\n").stdout == "3\n"
    assert ["epoch", "3", "ok"] in [line.split() for line in run("doctor").stdout.splitlines()]


def test_raise_epoch_does_nothing_without_a_yes(run: Run) -> None:
    run("migrate")

    refused = run("raise-epoch", typed="n\n")

    assert (refused.exit_code, refused.stdout) == (1, "")
    assert ["epoch", "1", "ok"] in [line.split() for line in run("doctor").stdout.splitlines()]


def test_raise_epoch_creates_no_store(run: Run, tmp_path: Path) -> None:
    assert run("raise-epoch", "--yes").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_raise_epoch_needs_the_store_itself(run: Run) -> None:
    refused = run("raise-epoch", "--yes", "--url", "http://127.0.0.1:1")

    assert refused.exit_code == 2
    assert "give the sqlite: or postgresql: URL of the store itself" in refused.stderr
