"""The root command: quick, and honest about what it has."""

import subprocess
import sys

from click.testing import CliRunner

from tenure.cli.main import COMMANDS, main

HEAVY = ("psycopg", "starlette", "sqlite3", "tenure.coordinator", "rich", "hypothesis")


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


def test_every_listed_command_exists_and_has_help() -> None:
    for name in COMMANDS:
        result = CliRunner().invoke(main, [name, "--help"])

        assert result.exit_code == 0, name
        assert result.output.startswith("Usage:")


def test_a_wrong_command_says_what_was_meant() -> None:
    result = CliRunner().invoke(main, ["veryfi"])

    assert result.exit_code == 2
    assert "Did you mean 'verify'?" in result.output
