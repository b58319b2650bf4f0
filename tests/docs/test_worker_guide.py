"""The guide to workers: the lines that configure logging do so in every lane."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tenure import Tenure
from tests.docs.commands import environment_with_tenure, run_shell
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "worker.md").read_text()

HANDLERS = """

def say() -> None:
    logging.getLogger(__name__).info("this is logged")


async def say_async() -> None:
    say()


app.job(say, name="process")
app.job(say, name="thread", isolation="thread")
app.job(say_async, name="async")
"""


def test_what_a_handler_logs_is_shown_by_jobs_logs(tmp_path: Path) -> None:
    [example] = re.findall(r"```python no-run\n(import logging\n.*?)```", PAGE, re.DOTALL)
    (tmp_path / "shop.py").write_text(example + HANDLERS)
    url = f"sqlite:///{tmp_path}/shop.db"
    environment = environment_with_tenure(tmp_path, {"TENURE_URL": url})
    worker = subprocess.Popen(
        [sys.executable, "-m", "tenure", "worker", "shop:app"], cwd=tmp_path, env=environment
    )
    try:
        with Tenure(url) as client:
            jobs = [client.enqueue(kind, {}) for kind in ("process", "thread", "async")]
            assert [job.wait(timeout=PATIENCE_S) for job in jobs] == ["succeeded"] * 3
    finally:
        worker.terminate()
        worker.wait(PATIENCE_S)

    for job in jobs:
        shown = run_shell(f"tenure jobs logs {job.id}", tmp_path, environment)
        assert shown.stdout == "INFO shop: this is logged\n", shown
