"""The guide to metrics, traces and logs: its commands run, its queries are those of the metrics."""

import re
from pathlib import Path

import pytest

from tenure.telemetry.catalogue import METRICS, Sort
from tests.docs.commands import environment_with_tenure, run_shell

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "observing.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def ending(line: str) -> str:
    """A command of the guide; one that follows ends with the first line that it prints."""
    command = line.removeprefix("$ ")
    return f"{command} | head -n 1" if " -f" in command else command


@pytest.mark.process
def test_the_commands_run(tmp_path: Path) -> None:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    script = "\n".join(["tenure enqueue mail", *map(ending, lines)])
    environment = environment_with_tenure(
        tmp_path, {"TENURE_URL": f"sqlite:///{tmp_path / 'guide.db'}"}
    )

    ran = run_shell(script, tmp_path, environment)

    assert len(lines) >= 4
    assert ran.returncode == 0, ran


def test_the_queries_are_those_of_the_histograms() -> None:
    [block] = blocks("promql")
    known = [metric.query for metric in METRICS if metric.sort is Sort.HISTOGRAM]

    assert set(block.splitlines()) <= {line for query in known for line in query.splitlines()}
