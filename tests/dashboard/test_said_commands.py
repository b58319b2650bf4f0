"""The commands that empty pages tell people to type exist, with these options."""

import re
import shlex
from pathlib import Path

import pytest

import tenure.dashboard
from tests.docs.commands import check_command

TEMPLATES = sorted((Path(tenure.dashboard.__file__).parent / "templates").glob("*.html"))


def commands(template: Path) -> list[str]:
    found = re.findall(r'"tenure ([a-z][^"]*)"|<code>tenure ([a-z][^<]*)<', template.read_text())
    return [re.sub(r"\{\{.*?\}\}", "X", first or second) for first, second in found]


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_commands_exist(template: Path) -> None:
    for command in commands(template):
        check_command(shlex.split(command))


def test_there_are_some() -> None:
    assert sum(len(commands(template)) for template in TEMPLATES) >= 8
