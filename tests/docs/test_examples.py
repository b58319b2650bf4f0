"""Every Python example of the guides runs.

The ```python blocks of a page run in order, in one namespace, in an empty directory; a block of
`>>>` lines is checked like a doctest. An application without a URL of its own runs its jobs inline,
so that a result can be waited for. A block that cannot run is opened with ```python no-run.
"""

import doctest
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tenure
from tenure.app import Tenure
from tenure.testing import inline

GUIDES = Path(__file__).parent.parent.parent / "docs" / "guide"
_FENCE = re.compile(r"^```python[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One example and the line its code begins at."""

    code: str
    line: int


def blocks_of(page: str) -> Iterator[Block]:
    for found in _FENCE.finditer(page):
        yield Block(found[1], page.count("\n", 0, found.start(1)) + 1)


def run_page(text: str, name: str) -> None:
    namespace: dict[str, Any] = {"__name__": "example"}
    for block in blocks_of(text):
        if block.code.lstrip().startswith(">>>"):
            _check_session(block, name, namespace)
        else:
            # Moved down to its own line, so that a traceback points into the page.
            source = "\n" * (block.line - 1) + block.code
            exec(compile(source, name, "exec"), namespace)  # noqa: S102 - our own documentation


def _check_session(block: Block, name: str, namespace: dict[str, Any]) -> None:
    parsed = doctest.DocTestParser().get_doctest(block.code, {}, name, name, block.line - 1)
    parsed.globs = namespace
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(parsed, out=said.append, clear_globs=False)
    assert runner.failures == 0, "".join(said)


@pytest.fixture(autouse=True)
def inline_applications(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """`Tenure()` runs inline; one with a URL is what it says, in a directory of its own."""
    with ExitStack() as stack:

        class InlineTenure(Tenure):
            def __init__(self, url: str | None = None, **options: Any) -> None:
                super().__init__(url, **options)
                stack.callback(self.close)
                if url is None:
                    stack.enter_context(inline(self))

        monkeypatch.setattr(tenure, "Tenure", InlineTenure)
        monkeypatch.chdir(tmp_path)
        yield


@pytest.mark.parametrize("page", sorted(GUIDES.rglob("*.md")), ids=lambda page: page.stem)
def test_the_examples_of_a_page_run(page: Path) -> None:
    run_page(page.read_text(encoding="utf-8"), str(page))


def test_the_runner_notices_a_wrong_example() -> None:
    with pytest.raises(ZeroDivisionError):
        run_page("text\n```python\n1 / 0\n```\n", "page.md")
    with pytest.raises(AssertionError, match="Expected"):
        run_page("```python\n>>> 1 + 1\n3\n```\n", "page.md")


def test_the_runner_shares_names_and_skips_what_cannot_run() -> None:
    run_page(
        "```python\nx = 1\n```\n```python no-run\n1 / 0\n```\n```sh\nfalse\n```\n"
        "```python\n>>> x + 1\n2\n```\n",
        "page.md",
    )


def test_the_runner_runs_jobs_inline() -> None:
    run_page(
        "```python\nfrom tenure import Tenure\napp = Tenure()\n"
        "@app.job\ndef add(a: int) -> int:\n    return a + 1\n"
        "assert add.enqueue(1).result() == 2\n```\n",
        "page.md",
    )


def test_there_are_examples() -> None:
    assert any(list(blocks_of(page.read_text())) for page in GUIDES.rglob("*.md"))
