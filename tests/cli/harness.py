"""One way to run a command in the tests of this directory: as it is typed, in this process."""

from collections.abc import Callable

from click.testing import CliRunner, Result

from tenure.cli.main import main

Run = Callable[..., Result]


def tenure(*words: str, typed: str | None = None) -> Result:
    """`tenure WORDS…`; `typed` is what the user answers to questions."""
    return CliRunner().invoke(main, list(words), input=typed, catch_exceptions=False)


def enqueued(run: Run, *words: str) -> str:
    """The id of a new job."""
    result = run("enqueue", *words)
    assert result.exit_code == 0, result.stderr
    return result.stdout.strip()
