"""Commands within sentences of the guides: all of them exist, and those that are complete run."""

import re
import shlex
from pathlib import Path

import pytest

from tests.docs.commands import check_command, environment_with_tenure, run_shell
from tests.support.cases import each_case

GUIDES = Path(__file__).parents[2] / "docs" / "guide"
PAGES = sorted(GUIDES.rglob("*.md"))


def inline_commands(page: Path) -> list[str]:
    """What stands in backticks after `tenure`, in one line each."""
    sentences = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"`tenure ([a-z][^`]*)`", sentences)
    return [" ".join(words.split()) for words in found]


@each_case("page", PAGES)
def test_the_commands_of_a_page_exist_with_their_options(page: Path) -> None:
    for command in inline_commands(page):
        check_command(shlex.split(command))


@pytest.mark.process
def test_whole_enqueue_commands_run(tmp_path: Path) -> None:
    page = GUIDES / "jobs.md"
    commands = [
        f"tenure {command}"
        for command in inline_commands(page)
        if re.match("enqueue [a-z]", command) and "…" not in command
    ]
    functions = re.findall(r"^@app\.job.*\n(?:def .*: \.\.\.)$", page.read_text(), re.MULTILINE)
    (tmp_path / "myapp").mkdir()
    (tmp_path / "myapp" / "jobs.py").write_text(
        "\n\n".join(["from tenure import Tenure", "app = Tenure()", *functions])
    )
    environment = environment_with_tenure(
        tmp_path, {"TENURE_URL": f"sqlite:///{tmp_path / 'guide.db'}"}
    )

    ran = run_shell("\n".join(commands), tmp_path, environment)

    assert ran.returncode == 0, ran
    assert len(commands) >= 2
    assert len(ran.stdout.split()) == len(commands), "each prints the id of a new job"
