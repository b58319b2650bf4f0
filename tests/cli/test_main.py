"""The root command: quick, and honest about what it has."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tenure.cli.main import COMMANDS, main
from tests.support.waiting import PATIENCE_S

HEAVY = ("psycopg", "starlette", "sqlite3", "tenure.coordinator", "rich", "hypothesis")


@pytest.mark.process
def test_help_imports_no_driver_and_no_coordinator() -> None:
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from tenure.cli.main import main\n"
        "assert CliRunner().invoke(main, ['--help']).exit_code == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )

    printed = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )

    assert printed.stdout.strip() == "[]"


OF_OTHERS = (
    "asyncio",
    "hypothesis",
    "prometheus_client",
    "psycopg",
    "rich",
    "ssl",
    "starlette",
    "tenure.app",
    "tenure.client",
    "tenure.handlers",
    "tenure.own_transaction",
    "tenure.remote",
    "tenure.server",
    "tenure.stores.postgres",
    "tenure.telemetry.logs",
    "tenure.telemetry.metrics",
    "tenure.verify",
    "tenure.worker.supervisor.worker",
    "tomllib",
    "urllib3",
)
"""What only applications, workers, servers, other stores or changes of settings need."""

OPERATORS_COMMANDS = (
    "enqueue work",
    "jobs ls",
    "jobs ls --status failed",
    "queues ls",
    "workers ls",
    "dlq ls",
    "events",
    "stats",
)


@pytest.mark.process
def test_a_command_on_a_sqlite_file_imports_nothing_that_only_others_need(tmp_path: Path) -> None:
    """Imports are most of what a command costs: 0.15 of 0.24 s before this was watched."""
    program = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from tenure.cli.main import main\n"
        f"for command in {OPERATORS_COMMANDS!r}:\n"
        "    result = CliRunner().invoke(main, command.split())\n"
        "    assert result.exit_code == 0, (command, result.output)\n"
        f"    found = [name for name in {OF_OTHERS!r} if name in sys.modules]\n"
        "    if found:\n"
        "        sys.exit(f'{command} imports {found}')\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"TENURE_URL": f"sqlite:///{tmp_path / 'tenure.db'}"},
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_every_listed_command_exists_and_has_help() -> None:
    for name in COMMANDS:
        result = CliRunner().invoke(main, [name, "--help"])

        assert result.exit_code == 0, name
        assert result.output.startswith("Usage:")


@pytest.mark.process
@pytest.mark.parametrize(
    "words", [["--help"], ["jobs", "ls"], ["jobs", "ls", "--json"], ["queues", "ls"]]
)
def test_output_that_cannot_be_written_is_one_clear_line(words: list[str], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tenure.db'}"
    assert CliRunner().invoke(main, ["enqueue", "work", "--url", url]).exit_code == 0
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"}

    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tenure", *words],
            env=environment | {"TENURE_URL": url},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    said = "tenure: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_an_error_of_the_system_is_not_called_output(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(click.Group, "main", refuse)

    done = CliRunner().invoke(main, ["jobs", "ls"])

    assert done.exit_code == 2
    assert done.stderr == "tenure: the operating system refused: Too many open files\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["veryfi"], "Did you mean 'verify'?"),
        (["jobs", "shwo", "x"], "Did you mean 'show'?"),
        (["dlq", "redriv"], "Did you mean 'redrive'?"),
        (["jobs", "ls", "--jsn"], "--json"),
        (["jobs", "ls", "-s", "quued"], "one of waiting, queued, claimed"),
        (["worker"], "MODULE:APP"),
        (["enqueue"], "KIND"),
    ],
)
def test_a_wrong_command_or_argument_says_what_was_meant(words: list[str], meant: str) -> None:
    result = CliRunner().invoke(main, words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert meant in result.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("package", "words", "extra"),
    [
        ("psycopg", ["jobs", "ls", "--url", "postgresql:///jobs"], "postgres"),
        ("urllib3", ["jobs", "ls", "--url", "http://localhost:1"], "http"),
        ("starlette", ["serve"], "server"),
        ("jinja2", ["serve"], "server"),
    ],
)
def test_a_missing_extra_is_named_with_the_way_to_install_it(
    tmp_path: Path, package: str, words: list[str], extra: str
) -> None:
    without = f"import sys; sys.modules[{package!r}] = None; import runpy; "
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            without + "runpy.run_module('tenure', run_name='__main__', alter_sys=True)",
            *words,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )

    assert ran.returncode == 2
    assert f"needs the extra {extra}; install Tenure again with it" in ran.stderr
    assert f"`pip install 'path/to/the/clone[{extra}]'`" in ran.stderr
