"""`tenure conform`: what it prints, and how it ends."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tenure.cli.main import main
from tenure_conformance.worker.obligations import OBLIGATIONS
from tenure_conformance.worker.scenarios import SCENARIOS

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
RIGHT = [sys.executable, "-m", "tests.conformance_worker.worker"]
WRONG = [sys.executable, "-m", "tests.conformance_worker.wrong"]


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `python -m tests…` finds workers."""
    monkeypatch.chdir(ROOT)


def conform(*words: str) -> Result:
    return CliRunner().invoke(main, ["conform", *words])


def test_a_worker_that_keeps_its_obligations_ends_with_0() -> None:
    ran = conform("worker", "--json", "--scenario", "success", "--", *RIGHT)

    assert ran.exit_code == 0, ran.output
    report = json.loads(ran.stdout)
    assert report["passed"] is True
    assert report["scenarios"] == ["success"]
    states = {each["obligation"]: each["state"] for each in report["obligations"]}
    assert states["reports-outcome"] == "kept"
    assert states["stops-with-its-lease"] == "not_seen"
    assert "conform: 1 of 1: success" in ran.stderr


def test_a_broken_obligation_is_named_with_its_scenario_and_ends_with_1() -> None:
    ran = conform("worker", "--scenario", "success", "--", *WRONG, "Reassures")

    assert ran.exit_code == 1, ran.output
    [line] = [line for line in ran.stdout.splitlines() if "BROKEN" in line]
    assert line.startswith("committed-is-final")
    assert (
        "    success: complete 'complete-1' was COMMITTED, then the worker sent complete"
        in ran.stdout
    )
    assert "1 broken" in ran.stdout


def test_a_worker_that_cannot_be_tested_ends_with_2_and_the_reason() -> None:
    absent = conform("worker", "--", "no-such-program-here")
    silent = conform("worker", "--scenario", "success", "--", sys.executable, "-c", "print('hm')")
    other = conform(
        "worker",
        "--scenario",
        "success",
        "--",
        sys.executable,
        "-c",
        "from tests.conformance_worker.worker import Worker\n"
        "class Other(Worker):\n"
        "    def claim_message(self): return super().claim_message() | {'queues': ['mail']}\n"
        "    def main(self): self.claim_seq = 1; self.ask('claim', self.claim_message())\n"
        "Other().main()",
    )

    assert [ran.exit_code for ran in (absent, silent, other)] == [2, 2, 2]
    assert "cannot start 'no-such-program-here'" in absent.stderr
    assert "the worker never sent a claim, it exited with code 0" in silent.stderr
    assert "its output: 'hm" in silent.stderr
    assert "the worker claims other queues or kinds: mail" in other.stderr


def test_a_command_is_needed_and_a_scenario_must_exist() -> None:
    assert conform("worker").exit_code == 2
    unknown = conform("worker", "--scenario", "nonsense", "--", "true")

    assert unknown.exit_code == 2
    assert "there is no scenario 'nonsense'; `--list` shows them" in unknown.stderr


def test_scenarios_and_obligations_can_be_listed() -> None:
    listed = conform("worker", "--list").stdout

    assert all(each.name in listed for each in SCENARIOS)
    assert all(each.name in listed and each.sentence in listed for each in OBLIGATIONS)


def test_conform_store_explains_itself_and_runs_the_kit(capfd: pytest.CaptureFixture[str]) -> None:
    how = conform("store")
    factory = "tenure_conformance.harness:MemoryFactory"
    ran = conform("store", factory, "--", "-q", "-p", "no:cacheprovider", "-k", "closing")
    wrong = conform(
        "store", "no.such:factory", "--", "-q", "-p", "no:cacheprovider", "-k", "closing"
    )

    assert "--tenure-store mypackage.testing:factory" in how.stdout
    assert (how.exit_code, ran.exit_code, wrong.exit_code) == (0, 0, 1)
    assert " passed" in capfd.readouterr().out


def test_conform_without_the_kit_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenure.cli.main.entry_points", lambda **_: ())

    ran = conform("worker", "--list")

    assert ran.exit_code == 2
    assert "pip install 'path/to/the/clone/packages/tenure-conformance'" in ran.stderr


def test_every_obligation_is_a_sentence_of_the_protocol() -> None:
    page = (ROOT / "docs" / "spec" / "worker-protocol.md").read_text()

    for obligation in OBLIGATIONS:
        assert f"**[{obligation.sentence}]**" in page
