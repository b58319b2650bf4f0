"""The README: its program runs, its commands exist, its links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tenure.cli.main import main

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


@pytest.mark.parametrize("line", commands())
def test_every_command_in_the_readme_exists(line: str) -> None:
    words = line.split()[1:]
    path = [words[0]]
    if words[0] in ("jobs", "queues"):
        path.append(words[1])

    shown = CliRunner().invoke(main, [*path, "--help"])

    assert shown.exit_code == 0
    for option in re.findall(r"(?<!\S)\[?(--?[a-z-]+)", line):
        assert option in shown.output


def test_make_targets_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()

    for target in re.findall(r"^make ([a-z-]+)", README, flags=re.MULTILINE):
        assert f"\n{target}:" in makefile


@pytest.mark.parametrize(
    "page", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/spec/index.md"]
)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    path = ROOT / page

    for target in re.findall(r"\]\(([^)#]+)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target
