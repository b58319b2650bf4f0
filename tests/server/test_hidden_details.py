"""What a failed store says of itself is for the log, not for whoever asked. [H33]"""

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from tenure.core.vocabulary import Role
from tenure.errors import OutcomeUnknown, SchemaTooOld, StoreError, StoreUnavailable
from tenure.stores.postgres.schema import connect
from tenure.stores.sqlite.file import translated
from tenure_conformance.spec import spec
from tests.server.harness import Stage

SECRETS = ("127.0.0.1", "54321", "jobs_owner", "payroll", "/", ".db", "SELECT")


def unreachable() -> StoreError:
    """As libpq says it: with host and port."""
    with pytest.raises(StoreUnavailable) as failure:
        connect("postgresql://jobs_owner@127.0.0.1:54321/payroll?connect_timeout=2")
    assert "54321" in str(failure.value)
    return failure.value


def locked() -> StoreError:
    """As SQLite's file is named in it."""
    with pytest.raises(StoreUnavailable) as failure, translated(Path("/var/lib/payroll/jobs.db")):
        raise sqlite3.OperationalError("database is locked")
    return failure.value


def too_old() -> StoreError:
    return SchemaTooOld(found=1, needed=2, url="sqlite:////var/lib/payroll/jobs.db")


def half_done() -> StoreError:
    return OutcomeUnknown("/var/lib/payroll/jobs.db failed while committing: SELECT 1")


@spec("H33")
@pytest.mark.parametrize("failed", [unreachable, locked, too_old, half_done])
def test_an_unknown_caller_learns_nothing_about_the_store_and_the_log_has_it(
    stage: Stage,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failed: Callable[[], StoreError],
) -> None:
    problem = failed()
    token = stage.token(Role.CLIENT)

    def fail(_: object) -> None:
        raise problem

    monkeypatch.setattr(stage.store.tokens, "load", fail)
    with caplog.at_level(logging.WARNING, logger="tenure.server"):
        answer = stage.ask("GET", "/v1/jobs", token=token, headers={"x-request-id": "r-1"})

    assert (answer.status, answer.code) == (503, problem.code)
    assert answer.json["nothing_changed"] is problem.nothing_changed
    said = answer.json["message"] + answer.json["hint"]
    assert not [secret for secret in SECRETS if secret in said]
    assert any("r-1" in line and problem.message in line for line in caplog.messages)
