"""The examples of the guide to limits do what the page says."""

import re
from pathlib import Path
from typing import Any

from tenure import Tenure
from tenure.testing import inline

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "limits.md").read_text()


def test_one_at_a_time_for_each_customer() -> None:
    section = PAGE.split("## One at a time for each customer\n", 1)[1].split("\n## ", 1)[0]
    declaration, other = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    app = Tenure("sqlite:////nonexistent/never-opened.db")
    names: dict[str, Any] = {"app": app}

    with inline(app) as jobs:
        exec(declaration.replace("app = Tenure()\n", ""), names)  # noqa: S102 - our own documentation
        exec(other, names)  # noqa: S102 - our own documentation
        exported = names["export"].enqueue(42, "north")
        listed = app.jobs(kind="bill")
        jobs.drain()
        ended = app.jobs()

        assert sorted(str(job.concurrency_key) for job in listed) == ["42", "42", "43"]
        assert exported.refresh().concurrency_key == "north/42"
        assert {job.status for job in ended} == {"succeeded"}
