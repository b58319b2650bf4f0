"""Waiting at a terminal: failures are told while they happen, with a real worker."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenure import Tenure
from tenure.cli.output import in_words
from tests.cli.harness import TENURE, at_a_terminal
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.process

SOURCE = """
from tenure import Retry, Tenure

app = Tenure()

@app.job(retry=Retry(max_attempts=3, initial="500ms"))
def unlucky() -> None:
    raise RuntimeError("no luck today")

@app.job(retry=Retry(max_attempts=3, initial="1h", cap="1h"))
def patient() -> None:
    raise RuntimeError("come back later")

@app.job(retry=Retry(max_attempts=1))
def grouped() -> None:
    raise ExceptionGroup("many things\\nwent wrong", [ValueError("one"), ValueError("two")])
"""

Ask = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def ask(tmp_path: Path) -> Iterator[Ask]:
    """Commands beside a worker that runs, in a directory of their own."""
    (tmp_path / "luck.py").write_text(SOURCE)
    environment = os.environ | {"TENURE_URL": "sqlite:///tenure.db"}

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*TENURE, *words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )

    with (tmp_path / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [*TENURE, "worker", "luck:app"], cwd=tmp_path, env=environment, stderr=log
        )
    yield run
    worker.terminate()
    worker.wait(PATIENCE_S)


def until_failed(client: Tenure, job_id: str) -> None:
    """Wait for an attempt to fail."""
    until(lambda: client.get(job_id).refresh().failures, "an attempt has failed")


def test_a_wait_that_times_out_names_the_failures_and_the_next_attempt(
    ask: Ask, tmp_path: Path
) -> None:
    job_id = ask("enqueue", "patient", "--app", "luck:app").stdout.strip()
    with Tenure(f"sqlite:///{tmp_path / 'tenure.db'}") as client:
        until_failed(client, job_id)

    waited = ask("jobs", "wait", job_id, "--timeout", "1ms")

    last = waited.stderr.splitlines()[-2]
    assert waited.returncode == 1
    assert "is still queued: 1 of 3 attempts failed, the last with RuntimeError: come" in last
    assert re.search(r"; it is not due before \d{4}-\d\d-\d\dT", last)
    assert f"store sqlite:///{tmp_path / 'tenure.db'}" in (tmp_path / "worker.log").read_text()


@pytest.mark.parametrize(
    ("span_s", "words"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (12.4, "12 s"), (180, "3 min"), (7200, "2 h"), (2e5, "2 d")],
)
def test_a_span_of_time_is_shown_in_its_largest_unit(span_s: float, words: str) -> None:
    assert in_words(span_s) == words


def test_a_wait_prints_one_line_of_an_error_and_show_prints_all(ask: Ask) -> None:
    waited = ask("enqueue", "grouped", "--app", "luck:app", "--wait")
    last = waited.stderr.splitlines()[-1]

    shown = ask("jobs", "show", last.split()[2]).stdout

    assert last.endswith(" is dead_lettered: ExceptionGroup: many things")
    assert "\nwent wrong (2 sub-exceptions)\n" in shown
    assert "\n    | ValueError: two\n" in shown


def test_at_a_terminal_enqueue_says_that_no_worker_takes_the_job(ask: Ask, tmp_path: Path) -> None:
    # With the settings of its kind: by default it would be tried for an hour.
    served = ask("enqueue", "unlucky", "--app", "luck:app", "--wait")  # the worker signs meanwhile

    known = at_a_terminal(tmp_path, "enqueue", "unlucky", "--url", "sqlite:///tenure.db")
    mistyped = at_a_terminal(tmp_path, "enqueue", "unlucki", "--url", "sqlite:///tenure.db")

    assert served.returncode == 1
    assert "it waits" not in known
    assert "it waits: no worker is alive that takes kind unlucki from queue default" in mistyped
