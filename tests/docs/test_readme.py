"""The README: its program runs, its commands exist, its links lead somewhere."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.docs.commands import check_command
from tests.support.cases import each_case

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The fenced blocks of one language, in order."""
    fences = README.split("```")[1::2]
    return [text.partition("\n")[2] for text in fences if text.partition("\n")[0] == language]


def test_the_program_in_the_readme_runs(tmp_path: Path) -> None:
    (program,) = blocks("python")
    (tmp_path / "app.py").write_text(program)

    ran = subprocess.run(
        [sys.executable, "app.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith(" queued\n")


def commands() -> list[str]:
    lines = [line for block in blocks("") for line in block.splitlines()]
    return [line.partition("#")[0].strip() for line in lines if line.startswith("tenure ")]


@each_case("line", commands())
def test_every_command_in_the_readme_exists(line: str) -> None:
    check_command(line.split()[1:])


def test_the_extras_in_the_readme_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"^\| .*`tenure\[(\w+)\]`", README, flags=re.MULTILINE)

    assert set(named) == {"postgres", "server", "metrics", "http", "otel"}
    assert set(named) <= set(project["optional-dependencies"])


def test_make_targets_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()

    for target in re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile


def pages() -> list[str]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def anchors(path: Path) -> set[str]:
    """What the headings of a page are called in links."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@each_case("page", pages())
def test_links_between_pages_lead_somewhere(page: str) -> None:
    path = ROOT / page

    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]+))?\)", path.read_text()):
        if "://" not in target:
            linked = path.parent / target if target else path
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"
