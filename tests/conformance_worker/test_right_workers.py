"""Tenure's own worker over HTTP, in each lane, and both reference workers keep every obligation."""

import sys
from pathlib import Path

import pytest

from tenure_conformance.spec import spec
from tenure_conformance.worker.report import State
from tenure_conformance.worker.runner import conform
from tenure_conformance.worker.scenarios import SCENARIOS

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "workers"

TENURE = [sys.executable, "-m", "tenure", "worker", "-q", "conform", "-c", "2", "--grace", "2s"]
JOBS = "tenure_conformance.worker.jobs"

COMMANDS = {
    "tenure": [*TENURE, f"{JOBS}:app"],
    "tenure, async lane": [*TENURE, f"{JOBS}:async_app"],
    "tenure, thread lane": [*TENURE, f"{JOBS}:thread_app"],
    "node": ["node", str(EXAMPLES / "worker.mjs"), "conform", str(EXAMPLES / "handlers.mjs")],
    "shell": ["bash", str(EXAMPLES / "worker.sh"), "conform", str(EXAMPLES / "handlers")],
}


@spec("WP8", "WP9", "WP11", "WP12", "WP14")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_right_worker_keeps_every_obligation(name: str) -> None:
    report = conform(COMMANDS[name], SCENARIOS, at_once=8)

    assert [(each.obligation, each.breaches) for each in report.obligations if each.breaches] == []
    assert {each.state for each in report.obligations} == {State.KEPT}
