"""The guide to the command line: its shell examples run in order, on a store of their own."""

import re
from pathlib import Path

import pytest

from tenure.cli.many import PER_BATCH
from tenure.client.administration import MAX_IDS
from tenure.core.ids import SHORTEST_PREFIX
from tests.docs.commands import check_command, environment_with_tenure, run_shell

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "operating.md").read_text()
_FENCE = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_examples_run(tmp_path: Path) -> None:
    script = "\n".join(_FENCE.findall(PAGE))
    environment = environment_with_tenure(
        tmp_path, {"TENURE_URL": f"sqlite:///{tmp_path / 'guide.db'}"}
    )

    ran = run_shell(script, tmp_path, environment)

    assert ran.returncode == 0, ran
    assert ran.stdout.count(": cancelled\n") == 2


def test_the_commands_of_its_sentences_exist() -> None:
    commands = re.findall(r"`tenure ([a-z]+ [^`]+)`", PAGE)

    assert len(commands) >= 1
    for command in commands:
        check_command(command.split())


def test_its_numbers_are_those_of_the_code() -> None:
    text = " ".join(PAGE.split())

    assert f"in batches of {PER_BATCH}, and take at most {MAX_IDS:,} jobs" in text
    assert f"give at least {SHORTEST_PREFIX} characters" in text
