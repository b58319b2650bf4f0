"""The commands that empty pages tell people to type exist, with these options."""

import re
import shlex
from pathlib import Path

import tenure.dashboard
from tests.docs.commands import check_command
from tests.support.cases import each_case

TEMPLATES = sorted((Path(tenure.dashboard.__file__).parent / "templates").glob("*.html"))


def commands(template: Path) -> list[str]:
    found = re.findall(r'"tenure ([a-z][^"]*)"|<code>tenure ([a-z][^<]*)<', template.read_text())
    return [re.sub(r"\{\{.*?\}\}", "X", first or second) for first, second in found]


@each_case("template", TEMPLATES)
def test_commands_exist(template: Path) -> None:
    for command in commands(template):
        check_command(shlex.split(command))


def test_there_are_some() -> None:
    assert sum(len(commands(template)) for template in TEMPLATES) >= 8
