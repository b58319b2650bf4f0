"""`tenure schedules …`."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tenure.coordinator.service import Coordinator
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    DEFAULT_QUEUE,
    ScheduleName,
    WorkerId,
    worker_actor,
)
from tenure.core.instants import Duration
from tenure.core.workers import WorkerProcess
from tenure_conformance.spec import spec
from tests.cli.harness import Run

JOBS = """
from tenure import Tenure

app = Tenure()


@app.job(every="1h", queue="slow")
def report(full: bool = False) -> None: ...


app.schedule("nightly", report.call(full=True), cron="15 3 * * *", tz="Europe/Berlin")
"""
NIGHTLY = JOBS.splitlines(keepends=True)[-1]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An application that declares two schedules."""
    name = f"shop_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(JOBS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"{name}:app"


def sign_of_life(serving: Coordinator, *schedules: str) -> None:
    """A worker lives whose application declares these schedules."""
    serving.store.workers.see(
        WorkerProcess(
            namespace=DEFAULT_NAMESPACE,
            worker=WorkerId("w"),
            actor=worker_actor("w"),
            host="h",
            pid=1,
            queues=(DEFAULT_QUEUE,),
            concurrency=1,
            version="1",
            uptime_us=Duration(0),
            schedules=tuple(map(ScheduleName, schedules)),
        )
    )


def listed(run: Run) -> dict[str, Any]:
    found = json.loads(run("schedules", "ls", "--json").stdout)
    return {each["schedule"]["name"]: each for each in found}


def test_a_schedule_is_made_shown_and_listed(run: Run) -> None:
    made = run(
        "schedules", "add", "nightly", "report", "--cron", "15 3 * * *", "--tz", "Asia/Tokyo"
    )
    shown = run("schedules", "show", "nightly")
    ls = run("schedules", "ls")

    assert made.exit_code == 0
    assert "03:15:00+09:00" in made.stdout
    assert shown.stdout.count("03:15:00+09:00") == 5, shown.stdout
    assert "15 3 * * * Asia/Tokyo" in shown.stdout
    assert [line.split()[:2] for line in ls.stdout.splitlines()[1:]] == [["nightly", "active"]]


@spec("SC9")
def test_a_schedule_is_paused_resumed_and_removed(run: Run) -> None:
    run("schedules", "add", "ping", "check", '{"host": "a"}', "--every", "10m")

    said = [run("schedules", verb, "ping").stdout for verb in ("pause", "resume", "rm")]

    assert said[0] == "ping: paused\n"
    assert said[1].startswith("ping: fires next at ")
    assert said[2] == "ping: removed\n"
    assert listed(run) == {}
    gone = run("schedules", "pause", "ping")
    assert (gone.exit_code, "no schedule ping" in gone.stderr) == (2, True)


@spec("SC11")
def test_a_run_by_hand_prints_the_job_which_names_its_schedule(run: Run) -> None:
    run("schedules", "add", "ping", "check", "--every", "10m")
    job_id = run("schedules", "run", "ping").stdout.strip()

    shown = run("jobs", "show", job_id).stdout
    of_schedule = json.loads(run("schedules", "show", "ping", "--json").stdout)

    assert "ping, for 20" in shown
    assert [each["id"] for each in of_schedule["runs"]] == [job_id]
    assert of_schedule["schedule"]["fired"] == 1
    assert len(of_schedule["next_times"]) == 5


def test_a_name_that_is_taken_is_changed_only_on_request(run: Run) -> None:
    add = ("schedules", "add", "ping", "check", "--every")
    run(*add, "10m")

    refused, replaced = run(*add, "5m"), run(*add, "5m", "--replace")

    assert (refused.exit_code, "`replace` changes it" in refused.stderr) == (2, True)
    assert replaced.exit_code == 0
    assert listed(run)["ping"]["schedule"]["every_s"] == 300


def test_a_mistyped_name_is_explained(run: Run) -> None:
    run("schedules", "add", "nightly", "report", "--every", "1h")

    missing = run("schedules", "show", "nihgtly")

    assert missing.exit_code == 2
    assert "did you mean nightly?" in missing.stderr


@spec("SC12")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--cron", "0 0 30 2 *"), "cron"),
        (("--cron", "0 0 * * *", "--tz", "Nowhere/Land"), "Nowhere/Land"),
        (("--cron", "0 0 * * *", "--every", "1h"), "both are given"),
        ((), "neither is given"),
        (("--every", "1h", "--catch-up", "all"), "overlap skip"),
        (("--every", "10ms"), "less than a second"),
    ],
)
def test_bad_input_is_refused_and_writes_nothing(
    run: Run, serving: Coordinator, options: tuple[str, ...], said: str
) -> None:
    refused = run("schedules", "add", "s", "k", *options)

    assert refused.exit_code == 2
    assert said in refused.stderr
    name = ScheduleName("s")
    assert serving.store.schedules.load(DEFAULT_NAMESPACE, name).schedule is None


def test_a_name_that_is_too_long_is_refused(run: Run) -> None:
    refused = run("schedules", "add", "x" * 129, "k", "--every", "1h")

    assert (refused.exit_code, "limit of 128" in refused.stderr) == (2, True)


@spec("SC10")
def test_sync_writes_what_the_code_declares_and_prunes_what_it_no_longer_does(
    run: Run, shop: str, serving: Coordinator
) -> None:
    run("schedules", "add", "by-hand", "check", "--every", "1h")
    first = run("schedules", "sync", shop)
    run("schedules", "pause", "report")
    again = json.loads(run("schedules", "sync", shop, "--json").stdout)

    assert sorted(first.stdout.split("\n")) == ["", "nightly: new", "report: new"]
    assert {each["action"] for each in again} == {"unchanged"}
    found = listed(run)
    assert found["report"]["schedule"]["paused_at"] is not None
    assert found["report"]["schedule"]["queue"] == "slow"
    assert [name for name, each in found.items() if each["undeclared"]] == [], "no worker lives"
    assert "undeclared" not in run("schedules", "ls").stdout

    sign_of_life(serving, "report")

    found = listed(run)
    assert [name for name, each in found.items() if each["undeclared"]] == ["nightly"]


@spec("SC10")
def test_a_schedule_that_is_no_longer_declared_is_kept_until_it_is_pruned(
    run: Run, shop: str
) -> None:
    run("schedules", "sync", shop)
    module = sys.modules.pop(shop.partition(":")[0])
    assert module.__file__ is not None
    Path(module.__file__).write_text(JOBS.replace(NIGHTLY, ""))

    kept = run("schedules", "sync", shop).stdout
    pruned = run("schedules", "sync", shop, "--prune").stdout

    assert "nightly: kept" in kept
    assert "nightly: removed" in pruned
    assert list(listed(run)) == ["report"]


@spec("SC22")
def test_what_an_application_declared_under_a_former_name_is_named_and_pruned(
    run: Run, shop: str, serving: Coordinator, tmp_path: Path
) -> None:
    run("schedules", "sync", shop)
    (tmp_path / "moved.py").write_text(JOBS.replace('"nightly"', '"nocturnal"'))

    moved = run("schedules", "sync", "moved:app", "--prune").stdout
    declared_by = {name: each["schedule"]["declared_by"] for name, each in listed(run).items()}

    assert f"nightly: kept: {shop} declared it, and no live worker is seen" in moved
    assert f"--prune --from {shop} removes it" in moved
    assert declared_by == {"nightly": shop, "nocturnal": "moved:app", "report": "moved:app"}

    pruned = run("schedules", "sync", "moved:app", "--prune", "--from", shop)
    again = run("schedules", "sync", "moved:app", "--prune", "--from", shop)

    assert "nightly: removed" in pruned.stdout
    assert sorted(listed(run)) == ["nocturnal", "report"]
    assert f"no schedule is declared by {shop}" in again.stderr


@spec("SC22")
def test_schedules_of_an_application_whose_workers_live_are_not_named_by_another(
    run: Run, shop: str, serving: Coordinator, tmp_path: Path
) -> None:
    run("schedules", "sync", shop)
    (tmp_path / "other_shop.py").write_text("from tenure import Tenure\n\napp = Tenure()\n")
    sign_of_life(serving, "nightly", "report")

    other = run("schedules", "sync", "other_shop:app", "--prune")

    assert other.stdout == ""


@spec("SC22")
def test_lists_and_doctor_name_schedules_that_no_live_worker_declares(
    run: Run, shop: str, serving: Coordinator
) -> None:
    run("schedules", "sync", shop)
    before = {each["name"]: each for each in json.loads(run("doctor", "--json").stdout)}
    sign_of_life(serving, "report")

    ls = run("schedules", "ls")
    after = {each["name"]: each for each in json.loads(run("doctor", "--json").stdout)}

    said = f"`tenure schedules sync MODULE:APP --prune --from {shop}`"
    assert said in ls.stderr
    assert before["undeclared_schedules"]["value"] == 0
    assert after["undeclared_schedules"]["value"] == 1
    assert after["undeclared_schedules"]["state"] == "warning"
    assert "nightly" in after["undeclared_schedules"]["advice"]


def test_a_kinds_settings_come_from_its_application(run: Run, shop: str) -> None:
    made = run("schedules", "add", "s", "report", '{"full": true}', "--every", "1h", "--app", shop)
    wrong = run("schedules", "add", "t", "report", '{"ful": true}', "--every", "1h", "--app", shop)
    unknown = run("schedules", "add", "t", "other", "--every", "1h", "--app", shop)

    assert made.exit_code == 0
    assert listed(run)["s"]["schedule"]["queue"] == "slow"
    assert (wrong.exit_code, "it has no parameter ful (did you mean full?)" in wrong.stderr) == (
        2,
        True,
    )
    assert unknown.exit_code == 2
