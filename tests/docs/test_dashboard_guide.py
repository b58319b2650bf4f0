"""The guide to the dashboard: its commands exist, and those that make and revoke tokens run."""

import re
import shlex
from pathlib import Path

from click.testing import CliRunner

from tenure.cli.main import main
from tenure.dashboard.pages import PAGES
from tests.docs.commands import check_command

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "dashboard.md").read_text()
COMMANDS = [
    line.removeprefix("tenure ")
    for block in re.findall(r"^```\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]


def test_commands_exist_with_their_options() -> None:
    assert len(COMMANDS) >= 5
    for command in COMMANDS:
        check_command(shlex.split(command))


def test_tokens_are_made_and_revoked(tmp_path: Path) -> None:
    environment = {"TENURE_URL": f"sqlite:///{tmp_path / 'guide.db'}"}
    makes = [command for command in COMMANDS if command.startswith("tokens create")]
    [revoke] = [command for command in COMMANDS if command.startswith("tokens revoke")]

    runner = CliRunner(env=environment)
    made = [runner.invoke(main, shlex.split(command)) for command in makes]
    token_id = made[0].stdout.split("_")[1]
    revoked = runner.invoke(main, shlex.split(revoke.replace("ID", token_id)))

    assert [each.exit_code for each in (*made, revoked)] == [0, 0, 0], (made, revoked)


def test_the_pages_of_the_menu_are_described() -> None:
    for page in PAGES:
        assert page.menu in PAGE, page.menu
