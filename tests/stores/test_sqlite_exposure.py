"""A SQLite file that others can change is refused or warned about, and `tenure doctor` tells."""

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from tenure.cli.main import main
from tenure.core.vocabulary import HealthState
from tenure.errors import StoreError
from tenure.stores.sqlite.exposure import exposure
from tenure.wiring import open_store
from tenure_conformance.spec import spec


def opened(path: Path) -> None:
    open_store(f"sqlite:///{path}").close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A store of nobody else's."""
    path = tmp_path / "jobs.db"
    opened(path)
    return path


@spec("B29")
def test_a_file_that_everybody_can_write_is_refused(file: Path) -> None:
    file.chmod(0o666)
    before = file.read_bytes()

    with pytest.raises(StoreError, match=r"every user can write the file .*chmod o-w"):
        opened(file)

    assert file.read_bytes() == before
    file.chmod(0o660)
    opened(file)


@spec("B29")
def test_a_folder_that_everybody_can_write_is_refused_before_a_file_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)

    with pytest.raises(StoreError, match=r"every user can write in the folder .*chmod o-w"):
        opened(folder / "jobs.db")

    assert list(folder.iterdir()) == []


@spec("B29")
def test_a_folder_such_as_tmp_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "sticky"
    folder.mkdir()
    folder.chmod(0o1777)

    opened(folder / "jobs.db")

    [line] = [each for each in caplog.records if each.name == "tenure.stores"]
    assert line.levelno == logging.WARNING
    assert "use a folder of your own" in line.getMessage()


@spec("B30")
def test_a_link_is_followed_and_logged(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(file)

    opened(link)

    assert [each.getMessage() for each in caplog.records if each.name == "tenure.stores"] == [
        f"{link}: a link to {file}; name the file itself"
    ]


@spec("B30")
def test_a_link_of_another_user_or_to_nowhere_is_refused(file: Path, tmp_path: Path) -> None:
    link, loose = tmp_path / "link.db", tmp_path / "loose.db"
    link.symlink_to(file)
    loose.symlink_to(tmp_path / "missing.db")

    with pytest.raises(StoreError, match="does not exist"):
        opened(loose)

    assert not (tmp_path / "missing.db").exists()
    stranger = exposure(link, trusted=frozenset({file.lstat().st_uid + 1}))[0]
    assert stranger.state is HealthState.BAD
    assert "a link of another user" in str(stranger.value)


@spec("B29", "B30")
def test_a_link_does_not_bypass_the_check_of_the_files_folder(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    file = folder / "jobs.db"
    opened(file)
    folder.chmod(0o777)
    link = tmp_path / "link.db"
    link.symlink_to(file)

    with pytest.raises(StoreError, match="every user can write in the folder"):
        opened(link)


@spec("B29", "B30", "B14")
def test_doctor_reports_file_modes_and_links(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(file)

    linked = CliRunner().invoke(main, ["doctor", "--url", f"sqlite:///{link}"])
    file.chmod(0o666)
    exposed = CliRunner().invoke(main, ["doctor", "--url", f"sqlite:///{file}"])

    assert linked.exit_code == 0
    assert "link: name the file itself" in linked.stdout
    assert "file_mode" in linked.stdout
    assert exposed.exit_code == 2
    assert "every user can write the file" in exposed.stderr
