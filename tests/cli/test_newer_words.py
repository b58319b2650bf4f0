"""The commands show words of a newer version as they are."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from click.testing import CliRunner

from tenure.cli.main import main
from tenure_conformance.spec import spec

CHANGES = (
    "UPDATE tenure_job SET rev = rev + 1, status = 'napping', origin_cause = 'split',"
    " run_at = NULL, not_before = NULL",
    "INSERT INTO tenure_job_event (job_id, seq, ts, attempt, version, type, from_status, to_status,"
    " actor, request_id, cause, payload, position) SELECT id, 2, updated_at, 0, 1, 'parked',"
    " 'queued', 'napping', 'client:me', 'r', 'weather', '{\"reason_code\": \"bankruptcy\"}', 99"
    " FROM tenure_job",
)


@spec("Y4", "Y5")
def test_a_job_of_a_newer_version_is_shown_and_not_changed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tenure.db'}"

    def run(*words: str) -> str:
        result = CliRunner().invoke(main, [*words, "--url", url])
        assert result.exception is None or isinstance(result.exception, SystemExit), words
        return result.output

    job_id = CliRunner().invoke(main, ["enqueue", "work", "--url", url]).stdout.strip()
    with closing(sqlite3.connect(tmp_path / "tenure.db", isolation_level=None)) as database:
        for change in CHANGES:
            database.execute(change)

    shown, listed, log = (
        run("jobs", "show", job_id),
        run("jobs", "ls"),
        run("jobs", "events", job_id),
    )

    assert json.loads(run("jobs", "show", job_id, "--json"))["job"]["status"] == "napping"
    assert "napping" in shown
    assert "napping" in listed
    assert "parked" in log
    assert "weather" in log
    refused = run("jobs", "cancel", job_id)
    assert "origin_cause is 'split', status is 'napping'; upgrade this process" in refused
    assert json.loads(run("jobs", "show", job_id, "--json"))["job"]["rev"] == 2
