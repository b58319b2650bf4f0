"""The page for people who know Celery: what it shows can be pasted into the module of a worker."""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.commands import check_command
from tests.docs.test_examples import Block, blocks_of

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "coming-from-celery.md").read_text()


def declares_jobs(block: Block) -> bool:
    return "@app.job" in block.code


def enqueues_on_import(code: str) -> bool:
    """Whether a statement outside of functions and classes makes a job."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    statements = [each for each in ast.parse(code).body if not isinstance(each, definitions)]
    calls = [node for each in statements for node in ast.walk(each) if isinstance(node, ast.Call)]
    return any(isinstance(c.func, ast.Attribute) and c.func.attr == "enqueue" for c in calls)


@pytest.mark.parametrize("block", list(blocks_of(PAGE)), ids=lambda block: f"line {block.line}")
def test_an_example_that_declares_jobs_enqueues_none_when_it_is_imported(block: Block) -> None:
    assert not (declares_jobs(block) and enqueues_on_import(block.code))


def test_there_are_both_kinds_of_examples() -> None:
    blocks = list(blocks_of(PAGE))

    assert sum(map(declares_jobs, blocks)) >= 2
    assert any(enqueues_on_import(block.code) for block in blocks)


def test_its_commands_exist() -> None:
    commands = re.findall(r"`tenure ([^`]+)`", PAGE)

    assert "jobs cancel --all --status queued" in commands
    for command in commands:
        check_command(command.split())
