"""`tenure jobs cancel`, `rerun`, `retry`: several ids, or all jobs that a filter leaves."""

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tenure.cli import many
from tenure.client import administration, jobs
from tenure.clock import host_clock
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Command, Enqueue
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    JobId,
    Kind,
    QueueName,
    client_actor,
)
from tenure.core.instants import Instant, seconds
from tenure.core.policy import Policy
from tenure.core.verdicts import Answer
from tenure.errors import StoreUnavailable
from tests.cli.harness import Run, enqueued, started
from tests.client.test_flow_operators import make_unreadable

NOBODY = "01890000-0000-7000-8000-000000000000"


def statuses(run: Run) -> dict[str, str]:
    listed = json.loads(run("jobs", "ls", "--json").stdout)
    return {job["id"]: job["status"] for job in listed}


def cancelled(run: Run, *words: str) -> str:
    job_id = enqueued(run, *words)
    assert run("jobs", "cancel", job_id).exit_code == 0
    return job_id


def enqueue(serving: Coordinator, policy: Policy) -> JobId:
    command = Enqueue(
        job_id=JobId(NOBODY),
        namespace=DEFAULT_NAMESPACE,
        queue=QueueName("default"),
        kind=Kind("mail"),
        actor=client_actor("ann"),
        policy=policy,
    )
    serving.execute(command)
    return command.job_id


def an_hour_later() -> Instant:
    return Instant(host_clock() + seconds(3600))


# --- Cancelling ----------------------------------------------------------------------------------


def test_cancel_takes_several_ids_and_reports_each(run: Run) -> None:
    first, second, other = (enqueued(run, "mail") for _ in range(3))

    done = run("jobs", "cancel", first, second, NOBODY, first)

    assert done.exit_code == 1
    assert done.stdout == f"{first}: cancelled\n{second}: cancelled\n"
    assert f"there is no job {NOBODY}" in done.stderr
    assert done.stderr.endswith("tenure: refused: 1 of 3 jobs\n")
    assert statuses(run)[other] == "queued"


def test_cancel_all_says_how_many_and_asks_first(run: Run) -> None:
    wanted = {enqueued(run, "mail", "-q", "post") for _ in range(3)}
    other = enqueued(run, "mail")

    refused = run("jobs", "cancel", "--all", "--queue", "post", typed="n\n")
    before = statuses(run)
    done = run("jobs", "cancel", "--all", "--queue", "post", typed="y\n")

    assert "Cancel 3 jobs?" in refused.stderr
    assert (refused.exit_code, set(before.values())) == (1, {"queued"})
    assert done.exit_code == 0
    assert {line.partition(":")[0] for line in done.stdout.splitlines()} == wanted
    assert statuses(run)[other] == "queued"


def test_cancel_all_leaves_finished_jobs_alone_and_can_be_repeated(run: Run) -> None:
    old, new = cancelled(run, "mail"), enqueued(run, "mail")

    first = run("jobs", "cancel", "--all", "--yes", "--json")
    second = run("jobs", "cancel", "--all", "--yes")

    [outcome] = json.loads(first.stdout)
    assert (outcome["job_id"], outcome["status"], old != new) == (new, "cancelled", True)
    assert (second.exit_code, second.stdout) == (0, "")
    assert second.stderr == "tenure: nothing to do: no job matches\n"


def test_a_running_job_is_asked_to_stop(run: Run, serving: Coordinator) -> None:
    enqueued(run, "mail")
    job_id = started(serving)["job_id"]

    asked = run("jobs", "cancel", job_id)
    [outcome] = json.loads(run("jobs", "cancel", job_id, "--json").stdout)

    assert asked.stdout == f"{job_id}: cancel requested, still running\n"
    assert (outcome["status"], outcome["pending"]) == ("running", True)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cancel",), "Say which jobs: give IDs, or --all"),
        (("cancel", "--all", NOBODY), "Give IDs or --all, not both"),
        (("cancel", NOBODY, "--queue", "post"), "Filters go with --all"),
        (("cancel", "--all", "--status", "failed"), "a finished job cannot be cancelled"),
        (("cancel", "--all", "--queue", "a b"), "queue"),
        (("rerun", "--all", "--yes"), "Say which jobs"),
        (("rerun", "--all", "--yes", "--status", "queued"), "only jobs that failed, succeeded"),
        (("rerun", "--all", "--yes", "-s", "dead_lettered"), "only jobs that failed, succeeded"),
        (("stall",), "ID..."),
    ],
)
def test_ambiguous_arguments_change_nothing(run: Run, words: tuple[str, ...], said: str) -> None:
    enqueued(run, "mail")

    result = run("jobs", *words)

    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert set(statuses(run).values()) == {"queued"}


# --- Rerunning -----------------------------------------------------------------------------------


def test_rerun_all_makes_one_new_job_of_each_however_often_it_is_run(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = {cancelled(run, "mail") for _ in range(2)}
    cancelled(run, "fax")
    words = ("jobs", "rerun", "--all", "--status", "cancelled", "--kind", "mail")

    first = run(*words, typed="y\n")
    monkeypatch.setenv("LOGNAME", "bob")
    second = run(*words, "--yes")

    new = set(first.stdout.split())
    assert "Rerun 2 jobs?" in first.stderr
    assert len(new) == 2
    assert (second.exit_code, second.stdout) == (0, "")
    assert {job_id for job_id, status in statuses(run).items() if status == "queued"} == new
    assert new.isdisjoint(old)


def test_of_two_operators_who_rerun_the_same_job_one_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelled(run, "mail")
    words = ("jobs", "rerun", "--all", "--status", "cancelled", "--yes")
    chosen = many.Many.chosen

    def beaten(*given: Any, **options: Any) -> Any:
        """Another operator is done between the list and the request."""
        ids = chosen(*given, **options)
        monkeypatch.setattr(many.Many, "chosen", chosen)
        monkeypatch.setenv("LOGNAME", "bob")
        assert run(*words).exit_code == 0
        return ids

    monkeypatch.setattr(many.Many, "chosen", beaten)
    late = run(*words)

    assert (late.exit_code, late.stdout) == (1, "")
    assert list(statuses(run).values()).count("queued") == 1


def test_rerun_by_id_makes_a_new_job_each_time(run: Run) -> None:
    old = cancelled(run, "mail")

    new = [run("jobs", "rerun", old).stdout.strip() for _ in range(2)]

    assert len({old, *new}) == 3


# --- Long work and failures on the way -----------------------------------------------------------


def test_what_was_done_before_a_failure_is_reported(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [enqueued(run, "mail") for _ in range(3)]
    monkeypatch.setattr(many, "PER_BATCH", 1)
    execute_many, sent = Coordinator.execute_many, 0

    def fail_later(self: Coordinator, commands: list[Command]) -> list[Answer]:
        nonlocal sent
        sent += 1
        if sent > 2:
            raise StoreUnavailable("the store is gone")
        return execute_many(self, commands)

    monkeypatch.setattr(Coordinator, "execute_many", fail_later)
    stopped = run("jobs", "cancel", *ids, "--request-id", "c1")
    monkeypatch.undo()

    assert (stopped.exit_code, stopped.stdout) == (
        2,
        f"{ids[0]}: cancelled\n{ids[1]}: cancelled\n",
    )
    assert "the store is gone; answered: 2 of 3 jobs" in stopped.stderr
    assert "again with --request-id c1" in stopped.stderr


def interrupt(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_an_interrupt_while_the_report_prints_says_how_many_were_done(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    ids = [enqueued(run, "mail") for _ in range(3)]
    monkeypatch.setattr(many, "coloured", interrupt)
    monkeypatch.setattr(many, "print_json", interrupt)

    stopped = run("jobs", "cancel", *ids, "--request-id", "c1", *words)

    assert stopped.exit_code == 130
    assert stopped.stderr == (
        "tenure: interrupted; answered: 3 of 3 jobs. Run the same command again with"
        " --request-id c1: what is done is not done twice\n"
    )


def test_an_interrupt_before_the_answer_says_that_none_was_done(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = enqueued(run, "mail")
    monkeypatch.setattr(Coordinator, "execute_many", interrupt)

    stopped = run("jobs", "cancel", job_id)

    assert (stopped.exit_code, stopped.stdout) == (130, "")
    assert "interrupted; answered: 0 of 1 job." in stopped.stderr


def test_a_job_that_cannot_be_read_is_named_and_the_others_are_cancelled(
    run: Run, store_path: Path
) -> None:
    broken, *others = [enqueued(run, "mail") for _ in range(3)]
    make_unreadable(store_path, broken)

    done = run("jobs", "cancel", broken, *others)

    assert (done.exit_code, done.stdout) == (
        1,
        f"{others[0]}: cancelled\n{others[1]}: cancelled\n",
    )
    named, total = done.stderr.splitlines()
    assert named.startswith(f"tenure: job {broken} cannot be read: policy is not the document")
    assert total == "tenure: refused: 1 of 3 jobs"


def test_more_jobs_than_one_batch_are_all_taken(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "PER_PAGE", 2)
    monkeypatch.setattr(jobs, "DECIDED_TOGETHER", 2)
    ids = {enqueued(run, "mail") for _ in range(5)}

    done = run("jobs", "cancel", "--all", "--yes", "--json")

    assert {each["job_id"] for each in json.loads(done.stdout)} == ids
    assert set(statuses(run).values()) == {"cancelled"}
