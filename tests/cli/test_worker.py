"""`tenure worker`: what it is told is understood, or refused by name before anything is claimed."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tenure.cli import worker as command
from tenure.cli.main import main
from tenure.cli.options import size_value
from tenure.worker.supervisor.options import WorkerOptions

CONTEXT = click.Context(main)
OPTION = click.Option(["--memory-limit"])


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("1000", 1000),
        ("1k", 1024),
        ("512M", 512 * 2**20),
        ("512 MiB", 512 * 2**20),
        ("2GB", 2**31),
        ("1T", 2**40),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size_bytes: int) -> None:
    assert size_value(CONTEXT, OPTION, text) == size_bytes


@pytest.mark.parametrize("text", ["", "M", "-1M", "1.5G", "1e9", "much", "1X", "9" * 20])
def test_a_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a size"):
        size_value(CONTEXT, OPTION, text)


def test_limits_of_children_reach_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[WorkerOptions] = []

    def run(_url: str, _app: str, options: WorkerOptions, **_more: object) -> int:
        given.append(options)
        return 0

    monkeypatch.setattr(command, "run_worker", run)
    words = ["--memory-limit", "1G", "--recycle-above", "512M", "--recycle-after", "7"]
    result = CliRunner().invoke(main, ["worker", "tests.worker.sample:app", *words])

    assert result.exit_code == 0
    [options] = given
    limits = (options.child_memory_bytes, options.child_rss_bytes, options.jobs_per_child)
    assert limits == (2**30, 2**29, 7)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--memory-limit", "1M"], "memory limit: 1048576 bytes are less than"),
        (["--memory-limit", "lots"], "is not a size"),
        (["-q", "mail=0"], "weight"),
        (["-q", "mail=x"], "is not NAME or NAME=WEIGHT"),
        (["-q", "a b"], "is not NAME or NAME=WEIGHT"),
        (["--name", "a b"], "--name"),
        (["-c", "0"], "0 is not in the range"),
        (["--grace", "soon"], "soon"),
        (["--keep-finished", "1h"], "--keep-finished: finished jobs are kept for at least a day"),
        (["--url", "http://127.0.0.1:9", "--keep-finished", "2d"], "give it to `tenure serve`"),
        (["--url", "http://127.0.0.1:9", "--keep-renewals", "2d"], "--keep-renewals: the server"),
        (["--keep-refused", "long"], "--keep-refused: 'long' is not a duration"),
    ],
)
def test_an_invalid_option_is_refused_by_name(words: list[str], said: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tenure.db'}"

    result = CliRunner().invoke(main, ["worker", "tests.worker.sample:app", "--url", url, *words])

    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
