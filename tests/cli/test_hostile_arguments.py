"""Whatever is typed: one of the documented exit codes, no traceback, nothing a terminal obeys.

The commands, their options and arguments are read from the program, so a new one is tried too.
Each of them gets every fourth hostile word, and with the long tests all.
"""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tenure.cli.main import COMMANDS, main

pytestmark = pytest.mark.slow

# They run until told to stop, or run programs and long examinations.
ENDLESS = {"worker", "dev", "demo", "serve", "conform", "sim", "bench"}
# They wait for a job that nobody runs.
WAITING: dict[tuple[str, ...], list[str]] = {
    ("jobs", "wait"): ["--timeout", "1ms"],
    ("jobs", "watch"): ["--timeout", "1ms"],
}
LAWFUL = {"kind": "mail", "payload": "{}", "limit": "1"}
HOSTILE = (
    "",
    "\x1b[31mred",
    "\udcff\udc80",  # bytes that are not UTF-8, as Python hands them over
    "-1",
    "9" * 40,
    "é" * 300,
    "'; DROP TABLE tenure_job; --",
    "../../etc/passwd",
    "\u202elive",
    "NaN",
    "[" * 3000,
    "01890000-0000-7000-8000-000000000000",
)


def commands() -> Iterator[tuple[str, ...]]:
    """The words of every command that ends by itself."""
    for name in COMMANDS.keys() - ENDLESS:
        command = main.get_command(click.Context(main), name)
        if isinstance(command, click.Group):
            yield from ((name, each) for each in command.commands)
        else:
            yield (name,)


def command_of(words: tuple[str, ...]) -> click.Command:
    command: click.Command | None = main
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), word)
    assert command is not None
    return command


def lines(words: tuple[str, ...], job_id: str, *, every: int) -> Iterator[list[str]]:
    """Command lines with one hostile word each: each parameter gets every so many of the words."""
    parameters = command_of(words).params
    arguments = [each.name for each in parameters if isinstance(each, click.Argument)]
    lawful = [
        job_id if name in ("job_id", "job_ids") else LAWFUL.get(name or "", "x")
        for name in arguments
    ]
    start = [*words, *WAITING.get(words, [])]
    options = [each for each in parameters if isinstance(each, click.Option) and not each.is_flag]
    for number in range(len(lawful)):
        for hostile in HOSTILE[number % every :: every]:
            yield [*start, *lawful[:number], hostile, *lawful[number + 1 :]]
    for number, option in enumerate(options):
        for hostile in HOSTILE[number % every :: every]:
            yield [*start, option.opts[0], hostile, *lawful]


@pytest.mark.parametrize("words", sorted(commands()), ids=" ".join)
def test_an_argument_is_answered_without_a_traceback(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_answers(words, tmp_path, monkeypatch, every=4)


@pytest.mark.proof
@pytest.mark.parametrize("words", sorted(commands()), ids=" ".join)
def test_any_argument_is_answered_without_a_traceback(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_answers(words, tmp_path, monkeypatch, every=1)


def check_answers(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, every: int
) -> None:
    monkeypatch.chdir(tmp_path)  # some commands write the files that they are told
    environment = {"TENURE_URL": f"sqlite:///{tmp_path / 'tenure.db'}"}
    runner = CliRunner()
    job_id = runner.invoke(main, ["enqueue", "mail"], env=environment).stdout.strip()

    for line in lines(words, job_id, every=every):
        result = runner.invoke(main, line, env=environment, input="n\n")

        assert result.exception is None or isinstance(result.exception, SystemExit), line
        assert result.exit_code in (0, 1, 2), line
        shown = result.stdout + result.stderr
        assert all(each.isprintable() or each in "\n\t" for each in shown), line
