"""A wrong worker for each obligation: it is caught, and by the name of what it breaks."""

import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tenure_conformance.spec import spec
from tenure_conformance.worker.obligations import OBLIGATIONS
from tenure_conformance.worker.runner import conform
from tenure_conformance.worker.scenarios import BY_NAME, SCENARIOS
from tests.conformance_worker import wrong
from tests.conformance_worker.worker import Worker

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]

Cases = Mapping[tuple[type[Worker], str], str]

REPORTING: Cases = {
    (wrong.Misspells, "success"): "speaks-the-protocol",
    (wrong.Embellishes, "failure"): "reports-outcome",
    (wrong.KeepsSilent, "long-run"): "heartbeats",
    (wrong.CountsNothing, "long-run"): "heartbeats",
    (wrong.LosesCount, "success"): "claims-in-order",
}

REPEATING: Cases = {
    (wrong.RenamesRequests, "complete-lost"): "same-request-id",
    (wrong.NeverGivesUp, "never-answered"): "bounded-retries",
    (wrong.NeverGivesUp, "claim-never-answered"): "bounded-claims",
    (wrong.GivesUpAtOnce, "claim-never-answered"): "same-request-id",
    (wrong.CannotWait, "retry-after"): "honours-retry-after",
    (wrong.RetriesByItself, "failure"): "executes-once",
    (wrong.RunsWhatComes, "answers-twice"): "executes-once",
    (wrong.Guesses, "heartbeat-fails"): "no-verdict-from-5xx",
}

VERDICTS: Cases = {
    (wrong.Reassures, "success"): "committed-is-final",
    (wrong.Insists, "complete-cancelled"): "cancelled-is-final",
    (wrong.Insists, "fail-cancelled"): "cancelled-is-final",
    (wrong.BlamesTheJob, "heartbeat-cancelled"): "cancelled-is-final",
    (wrong.Argues, "complete-rejected"): "rejected-is-fatal",
    (wrong.Argues, "complete-unknown"): "rejected-is-fatal",
    (wrong.RunsOn, "heartbeat-rejected"): "rejected-is-fatal",
    (wrong.RunsOn, "heartbeat-cancelled"): "no-effects-after-cancelled",
    (wrong.Swallows, "complete-rejected"): "surfaces-rejected",
}

LEASES: Cases = {
    (wrong.BeatsOn, "quick-beats"): "no-heartbeat-after-end",
    (wrong.TrustsItsLease, "silence"): "stops-with-its-lease",
    (wrong.IsDeaf, "cancel-requested"): "heeds-a-cancel-request",
}


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `python -m tests…` finds them."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))


def broken_by(cases: Cases) -> dict[tuple[type[Worker], str], list[str]]:
    """What each breaks. They mostly wait, so they wait together."""

    def play(case: tuple[type[Worker], str]) -> list[str]:
        worker, scenario = case
        module = wrong.__name__
        command = [sys.executable, "-m", module, worker.__name__]
        return conform(command, [BY_NAME[scenario]], at_once=1).broken

    with ThreadPoolExecutor(len(cases)) as pool:
        return dict(zip(cases, pool.map(play, cases), strict=True))


def expected(cases: Cases) -> dict[tuple[type[Worker], str], list[str]]:
    return {case: [name] for case, name in cases.items()}


@spec("WP1", "WP2", "WP3", "WP17")
def test_a_worker_that_reports_wrongly_is_caught() -> None:
    assert broken_by(REPORTING) == expected(REPORTING)


@spec("WP4", "WP5", "WP6", "WP26", "WP20")
def test_a_worker_that_repeats_wrongly_is_caught() -> None:
    assert broken_by(REPEATING) == expected(REPEATING)


@spec("WP7", "WP8", "WP9", "WP11", "WP16")
def test_a_worker_that_does_not_accept_a_verdict_is_caught() -> None:
    assert broken_by(VERDICTS) == expected(VERDICTS)


@spec("WP10", "WP12", "WP13")
def test_a_worker_that_does_not_know_when_its_lease_ends_is_caught() -> None:
    assert broken_by(LEASES) == expected(LEASES)


def test_there_is_a_wrong_worker_for_every_obligation() -> None:
    caught = {name for cases in (REPORTING, REPEATING, VERDICTS, LEASES) for name in cases.values()}

    assert caught == {obligation.name for obligation in OBLIGATIONS}


def test_the_worker_that_the_wrong_ones_are_made_of_breaks_nothing() -> None:
    command = [sys.executable, "-m", "tests.conformance_worker.worker"]

    report = conform(command, SCENARIOS, at_once=12)

    assert report.broken == [], report
    assert {each.state.value for each in report.obligations} == {"kept"}
