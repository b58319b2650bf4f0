"""`tenure dlq`: dead letters are found, redriven, edited and put away, one or all of them."""

import json
import re
from pathlib import Path
from typing import Any

import click
import pytest

from tenure.cli import many
from tenure.client import administration
from tenure.core.ids import JobId
from tenure.stores.sql import views
from tenure_conformance.spec import spec
from tests.cli.harness import Run, at_a_terminal, enqueued
from tests.support.documents import REQUIRED_OF_DEAD_LETTERS


def dead_letter(run: Run, *words: str, reason: str = "policy_violation") -> str:
    job_id = run("enqueue", *(words or ("mail",))).stdout.strip()
    assert run("jobs", "dead-letter", job_id, "--reason", reason, "-m", "spam").exit_code == 0
    return job_id


def listed(run: Run, *words: str) -> list[str]:
    return [line["id"] for line in json.loads(run("dlq", "ls", "--json", *words).stdout)]


def test_dead_letters_are_listed_by_filter_and_shown(run: Run) -> None:
    spam = dead_letter(run, "mail", "-q", "post")
    broken = dead_letter(run, "parse", reason="parse_error")

    table = run("dlq", "ls").stdout

    assert listed(run) == [broken, spam]
    assert listed(run, "--reason", "parse_error") == [broken]
    assert listed(run, "--kind", "mail") == listed(run, "--queue", "post") == [spam]
    assert listed(run, "--stage", "exec") == []
    assert "DeadLettered: spam" in table
    assert "resolved" in run("jobs", "show", spam).stdout


def test_an_empty_list_of_dead_letters_says_so(run: Run) -> None:
    enqueued(run, "mail")

    said = [run("dlq", "ls", *words).stderr for words in ((), ("-k", "mail"))]
    resolved = run("dlq", "ls", "--resolved")

    none = "tenure: there are no unresolved dead letters in namespace default\n"
    assert said == [none, "tenure: no unresolved dead letter matches\n"]
    assert resolved.stderr == "tenure: there are no resolved dead letters in namespace default\n"
    assert json.loads(run("dlq", "ls", "--json").stdout) == []


def test_a_letter_without_a_resolution_is_listed_among_the_resolved(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention may delete it after the list was read."""
    job_id = dead_letter(run)
    run("dlq", "discard", job_id)
    monkeypatch.setattr(views, "resolutions_of", lambda _: {})

    table = run("dlq", "ls", "--resolved")

    assert (table.exit_code, job_id[:18] in table.stdout) == (0, True)


@pytest.mark.process
def test_at_80_columns_the_error_stays_and_the_queue_goes(run: Run, store_path: Path) -> None:
    job_id = enqueued(run, "mail", "-q", "post")
    run("jobs", "dead-letter", job_id, "-m", "no such mailbox")

    said = at_a_terminal(store_path.parent, "dlq", "ls", stream="stdout")

    head, row = [click.unstyle(line) for line in said.splitlines()]
    assert "QUEUE" not in head
    assert row.endswith("DeadLettered: no such mailbox")
    assert len(row) <= 80


@spec("F7", "OB26")
def test_the_documents_of_a_dead_letter_have_the_required_fields(run: Run) -> None:
    job_id = dead_letter(run)

    [letter] = json.loads(run("dlq", "ls", "--json").stdout)

    assert set(letter) == {*REQUIRED_OF_DEAD_LETTERS, "id", "job", "resolution"}
    assert (letter["id"], letter["correlation_id"], letter["attempts"]) == (job_id, job_id, 0)
    assert letter["reason_code"] == "policy_violation"
    assert (letter["last_error"]["message"], letter["last_owner"]) == ("spam", None)


def test_a_redriven_dead_letter_is_no_longer_listed_and_names_its_new_job(run: Run) -> None:
    job_id = dead_letter(run, "mail", '{"to":"ada"}')

    new_id = run("dlq", "redrive", job_id, "--payload", '{"to":"bob"}').stdout.strip()

    [listed_letter] = json.loads(run("dlq", "ls", "--resolved", "--json").stdout)
    new = json.loads(run("jobs", "show", new_id, "--json", "--bodies").stdout)["job"]
    facts = run("jobs", "show", job_id)
    document = json.loads(run("jobs", "show", job_id, "--json").stdout)
    assert re.search("^resolved +redriven by operator:", facts.stdout, re.M)
    assert re.search(f"^new job +{new_id}$", facts.stdout, re.M)
    assert document["resolution"] == listed_letter["resolution"]
    assert (listed(run), listed(run, "--resolved")) == ([], [job_id])
    assert document["resolution"]["kind"] == "redriven"
    assert document["resolution"]["new_job_id"] == new_id
    assert (new["payload"], new["origin_id"]) == ({"to": "bob"}, job_id)


def test_a_discarded_dead_letter_keeps_its_note_and_cannot_be_discarded_again(run: Run) -> None:
    job_id = dead_letter(run)

    first = run("dlq", "discard", job_id, "-m", "customer left", "--request-id", "d1")
    repeated = run("dlq", "discard", job_id, "-m", "customer left", "--request-id", "d1")
    again = run("dlq", "discard", job_id)

    assert (first.exit_code, first.stdout, repeated.exit_code) == (0, f"{job_id}\n", 0)
    assert again.exit_code == 1
    assert again.stderr.startswith(f"tenure: job {job_id}: it was discarded by operator:")
    assert "customer left" in run("jobs", "show", job_id).stdout
    assert listed(run) == []


def test_a_dead_letter_is_redriven_again_only_with_again(run: Run) -> None:
    job_id = dead_letter(run)
    words = ("dlq", "redrive", job_id)

    first = run(*words, "--request-id", "r1").stdout.strip()
    refused = run(*words)
    told = json.loads(run(*words, "--json").stdout)
    repeated = run(*words, "--request-id", "r1").stdout.strip()
    again = run(*words, "--again").stdout.strip()
    rerun = run("jobs", "rerun", job_id)

    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.startswith(
        f"tenure: job {job_id}: it was redriven as job {first} by operator:"
    )
    assert "; --again makes another job of it (already_resolved)\n" in refused.stderr
    assert [(each["cause"], each["resolution"]["new_job_id"]) for each in told] == [
        ("already_resolved", first)
    ]
    assert rerun.exit_code == 1
    assert f"it was redriven as job {first} by operator:" in rerun.stderr
    assert repeated == first
    assert again not in ("", first)
    assert len(json.loads(run("jobs", "ls", "-s", "queued", "--json").stdout)) == 2


def test_dead_letters_that_are_resolved_already_are_refused_one_by_one(run: Run) -> None:
    old, new = dead_letter(run), dead_letter(run)
    run("dlq", "discard", old)

    result = run("dlq", "redrive", old, new)

    assert (result.exit_code, result.stdout.count("\n")) == (1, 1)
    assert f"job {old}: it was discarded by" in result.stderr
    assert new not in result.stderr


def test_redrive_all_asks_first_and_redrives_each_dead_letter_once(run: Run) -> None:
    wanted = {dead_letter(run, "mail") for _ in range(3)}
    other = dead_letter(run, "parse")

    refused = run("dlq", "redrive", "--all", "--kind", "mail", typed="n\n")
    before = listed(run)
    done = run("dlq", "redrive", "--all", "--kind", "mail", "--json", "--yes")

    assert "Redrive 3 dead letters?" in refused.stderr
    assert (refused.exit_code, len(before)) == (1, 4)
    assert {each["job_id"] for each in json.loads(done.stdout)} == wanted
    assert listed(run) == [other]
    assert len(json.loads(run("jobs", "ls", "-s", "queued", "--json").stdout)) == 3


def test_of_two_operators_who_redrive_the_same_dead_letter_one_is_refused(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = dead_letter(run)
    chosen = many.Many.chosen

    def beaten(*given: Any, **options: Any) -> list[JobId]:
        """Another operator is done between the list and the decision."""
        ids = chosen(*given, **options)
        monkeypatch.setattr(many.Many, "chosen", chosen)
        monkeypatch.setenv("LOGNAME", "ann")
        assert run("dlq", "redrive", "--all", "--yes").exit_code == 0
        return ids

    monkeypatch.setattr(many.Many, "chosen", beaten)
    late = run("dlq", "redrive", "--all", "--yes", "--json")

    [told] = json.loads(late.stdout)
    [new] = json.loads(run("jobs", "ls", "-s", "queued", "--json").stdout)
    assert late.exit_code == 1
    assert (told["job_id"], told["new_job_id"], told["cause"]) == (
        job_id,
        None,
        "already_resolved",
    )
    assert told["resolution"]["actor"] == "operator:ann"
    assert told["resolution"]["new_job_id"] == new["id"]


def test_discard_all_keeps_running_after_a_yes(run: Run) -> None:
    dead_letter(run)

    result = run("dlq", "discard", "--all", typed="y\n")

    assert (result.exit_code, listed(run)) == (0, [])


def test_a_redrive_whose_key_is_held_says_by_whom(run: Run) -> None:
    job_id = dead_letter(run, "mail", "--key", "k")
    holder = run("enqueue", "mail", "--key", "k").stdout.strip()

    result = run("dlq", "redrive", job_id)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == f"tenure: job {job_id}: its dedupe key is held by job {holder}\n"
    assert listed(run) == [job_id]


def test_dlq_commands_refuse_jobs_that_are_not_dead_letters(run: Run) -> None:
    job_id = run("enqueue", "mail").stdout.strip()

    said = f"tenure: job {job_id}: it is queued, not a dead letter"
    assert run("dlq", "redrive", job_id).stderr == f"{said} (not_dead_lettered)\n"
    assert run("dlq", "discard", job_id).stderr == f"{said} (not_dead_lettered)\n"


@pytest.mark.parametrize(
    "words",
    [
        ("redrive",),
        ("redrive", "--all", "01890000-0000-7000-8000-000000000000"),
        ("redrive", "--all", "--yes", "--payload", "1"),
        ("redrive", "--all", "--yes", "--again"),
        ("discard", "--kind", "mail", "01890000-0000-7000-8000-000000000000"),
        ("discard", "7"),
    ],
)
def test_ambiguous_arguments_are_refused(run: Run, words: tuple[str, ...]) -> None:
    dead_letter(run)

    result = run("dlq", *words)

    assert (result.exit_code, result.stdout) == (2, "")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "Say which jobs: give IDs, or --all with or without filters."),
        (("--kind", "mail"), "Say which jobs: give IDs, or --all with or without filters."),
        (("--all", "01890000"), "Give IDs or --all, not both."),
    ],
)
@pytest.mark.parametrize("command", ["dlq redrive", "dlq discard", "jobs cancel"])
def test_a_command_about_many_jobs_says_what_is_missing(
    run: Run, command: str, words: tuple[str, ...], problem: str
) -> None:
    result = run(*command.split(), *words)

    assert result.exit_code == 2
    assert result.stderr.endswith(f"Error: {problem}\n")


def test_one_dead_letter_is_counted_as_one_and_an_unknown_one_is_explained(run: Run) -> None:
    dead_letter(run)
    nobody = "01890000-0000-7000-8000-000000000000"

    asked = run("dlq", "redrive", "--all", typed="n\n")
    unknown = run("dlq", "redrive", nobody)

    assert "Redrive 1 dead letter?" in asked.stderr
    assert unknown.stderr.startswith(f"tenure: there is no job {nobody}; it was never committed")


def test_redrive_all_says_when_there_are_more_dead_letters_than_it_takes(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        dead_letter(run)
    monkeypatch.setattr(administration, "MAX_IDS", 2)
    monkeypatch.setattr(administration, "PER_PAGE", 1)

    asked = run("dlq", "redrive", "--all", typed="n\n")
    first = run("dlq", "redrive", "--all", "--yes")
    second = run("dlq", "redrive", "--all", "--yes")

    more = "the first 2 dead letters (there may be more; run it again for them)"
    assert f"Redrive {more}?" in asked.stderr
    assert first.stderr == f"tenure: {more}\n"
    assert (len(first.stdout.splitlines()), len(second.stdout.splitlines())) == (2, 1)
    assert second.stderr == ""
