"""The examples of the guide to limits do what the page says."""

import re
from pathlib import Path
from typing import Any

import pytest

from tenure import Tenure
from tenure.testing import inline
from tests.cli.harness import tenure

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "limits.md").read_text()


def examples(language: str) -> list[str]:
    """The examples of the part about rates."""
    part = PAGE.split("## How many per second\n", 1)[1]
    return re.findall(rf"```{language}\n(.*?)```", part, re.DOTALL)


def test_the_example_runs_and_its_test_passes() -> None:
    names: dict[str, Any] = {}
    for example in examples("python"):
        exec(example, names)  # noqa: S102 - our own documentation

    names["test_letters_are_sent_ten_per_second"]()
    _check_the_rate_of_each_customer(names["app"], names["call_api"])


def _check_the_rate_of_each_customer(app: Tenure, call_api: Any) -> None:
    with inline(app) as jobs:
        for customer_id in (1, 1, 1, 2):
            call_api.enqueue(customer_id)

        assert len(jobs.run_ready()) == 3
        assert len(jobs.advance("6s")) == 1


def test_the_commands_do_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_URL", f"sqlite:///{tmp_path / 'tenure.db'}")
    tenure("enqueue", "send_letter", '{"to": "ada"}', "-q", "mail")
    commands = [line.split()[1:] for text in examples("sh") for line in text.splitlines()]

    said = [tenure(*words) for words in commands]

    assert [each.exit_code for each in said] == [0, 0], said
    assert "at most 100/m, up to 20 at once" in said[0].stdout
    assert "at most 100/m" not in said[1].stdout


def test_one_at_a_time_for_each_customer() -> None:
    section = PAGE.split("## One at a time for each customer\n", 1)[1].split("\n## ", 1)[0]
    declaration, other, limited = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    app = Tenure("sqlite:////nonexistent/never-opened.db")
    names: dict[str, Any] = {"app": app}

    with inline(app) as jobs:
        exec(declaration.replace("app = Tenure()\n", ""), names)  # noqa: S102 - our own documentation
        exec(other, names)  # noqa: S102 - our own documentation
        exec(limited, names)  # noqa: S102 - our own documentation
        exported = names["export"].enqueue(42, "north")
        listed = app.jobs.ls(kind="bill")
        jobs.drain()
        ended = app.jobs.ls()

        assert sorted(str(job.concurrency_key) for job in listed) == ["42", "42", "43"]
        assert exported.refresh().concurrency_key == "north/42"
        assert {job.status for job in ended} == {"succeeded"}
