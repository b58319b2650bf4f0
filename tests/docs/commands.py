"""What tests of documents need of the command line: that a command exists, and a way to type it."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from click.testing import CliRunner

from tenure.cli.main import main
from tests.support.waiting import PATIENCE_S


def check_command(words: Sequence[str]) -> None:
    """Whether `tenure WORDS` is a command that has all the options among them."""
    found = main.get_command(click.Context(main), words[0])
    path = words[:2] if isinstance(found, click.Group) else words[:1]

    shown = CliRunner().invoke(main, [*path, "--help"])

    assert shown.exit_code == 0, words
    for word in words:
        if re.fullmatch(r"\[?--?[a-z][a-z-]*\]?", word):
            assert word.strip("[]") in shown.output, word


def environment_with_tenure(directory: Path, more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a shell that finds `tenure`."""
    program = directory / "bin" / "tenure"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tenure "$@"\n')
    program.chmod(0o755)
    return os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", **more}


def run_shell(
    script: str, directory: Path, environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run a script that stops at the first command that fails."""
    return subprocess.run(
        ["sh", "-eu", "-c", script],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
