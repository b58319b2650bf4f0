"""An id may be shortened, as long as it means one job."""

import json

import pytest

from tests.cli.harness import Run, enqueued

FIRST = "01890000-0000-7000-8000-000000000001"
SECOND = "01890000-0000-7000-8000-000000000002"
LATER = "01890001-0000-7000-8000-000000000003"


@pytest.fixture
def ids(run: Run) -> list[str]:
    """Two jobs of the same moment and a later one."""
    return [enqueued(run, "mail", "--id", job_id) for job_id in (FIRST, SECOND, LATER)]


@pytest.mark.parametrize("typed", ["01890001", "01890001-0000…", LATER[:-1], LATER.upper()])
@pytest.mark.parametrize(
    "words",
    [
        "jobs show {}",
        "jobs events {}",
        "jobs logs {}",
        "jobs artifacts {}",
        "jobs cancel {}",
        "jobs dead-letter {}",
        "jobs ls --before {}",
    ],
)
def test_a_shortened_id_is_taken_wherever_an_id_is(
    run: Run, ids: list[str], words: str, typed: str
) -> None:
    result = run(*words.format(typed).split())

    assert result.exit_code == 0, result.stderr


def test_a_shortened_id_means_the_job_that_begins_with_it(run: Run, ids: list[str]) -> None:
    shown = json.loads(run("jobs", "show", "01890001", "--json").stdout)

    assert shown["job"]["id"] == LATER


def test_an_ambiguous_id_lists_the_candidates(run: Run, ids: list[str]) -> None:
    refused = run("jobs", "cancel", "01890000-0000")

    head, *lines = refused.stderr.splitlines()
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert head == ("tenure: 2 jobs have an id that begins with 01890000-0000; give more of it:")
    assert [line.split()[:3] for line in lines] == [
        [SECOND, "mail,", "queued,"],
        [FIRST, "mail,", "queued,"],
    ]


def test_a_shortened_id_of_no_job_is_refused(run: Run, ids: list[str]) -> None:
    refused = run("jobs", "show", "0189ffff")

    assert refused.exit_code == 1
    assert refused.stderr == (
        "tenure: no job in namespace default has an id that begins with 0189ffff\n"
    )


def test_an_id_that_is_too_short_is_refused(run: Run, ids: list[str]) -> None:
    refused = run("jobs", "show", "0189000")

    assert refused.exit_code == 2
    assert "give at least 8 characters" in refused.stderr


@pytest.mark.parametrize("typed", ["nope", "01890000-zzzz", FIRST + "1"])
def test_what_is_no_id_is_refused_with_how_ids_may_be_given(run: Run, typed: str) -> None:
    enqueued(run, "mail")

    refused = run("jobs", "show", typed)

    assert refused.exit_code == 2
    assert refused.stderr == (
        f"tenure: ID: '{typed}' is not a job id; give an id as `tenure jobs ls` shows it, or its"
        " first 8 or more characters\n"
    )


def test_a_shortened_id_is_looked_up_in_one_namespace(run: Run, ids: list[str]) -> None:
    other = enqueued(run, "mail", "--id", LATER.replace("3", "4"), "--namespace", "lab")

    here = json.loads(run("jobs", "show", "01890001", "--json").stdout)
    there = json.loads(run("jobs", "show", "01890001", "--namespace", "lab", "--json").stdout)
    whole = json.loads(run("jobs", "show", other, "--json").stdout)

    assert (here["job"]["id"], there["job"]["id"]) == (LATER, other)
    assert whole["job"]["id"] == other


@pytest.mark.parametrize(
    "words",
    [
        "jobs show",
        "jobs cancel",
        "jobs rerun",
        "jobs stall",
        "jobs requeue",
        "jobs dead-letter",
        "dlq redrive",
        "dlq discard",
    ],
)
def test_a_whole_id_beside_a_namespace_must_be_of_a_job_in_it(
    run: Run, ids: list[str], words: str
) -> None:
    refused = run(*words.split(), FIRST, "--namespace", "lab")

    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr == f"tenure: there is no job {FIRST} in namespace lab\n"
    assert json.loads(run("jobs", "show", FIRST, "--json").stdout)["job"]["status"] == "queued"


def test_a_whole_id_in_the_namespace_beside_it_is_taken(run: Run, ids: list[str]) -> None:
    cancelled = run("jobs", "cancel", FIRST, "--namespace", "default")

    assert cancelled.stdout == f"{FIRST}: cancelled\n"


def test_dead_letters_are_named_by_shortened_ids_too(run: Run, ids: list[str]) -> None:
    run("jobs", "dead-letter", LATER)

    shown = json.loads(run("jobs", "show", "01890001", "--json").stdout)
    redriven = run("dlq", "redrive", "01890001-0")

    assert shown["job"]["id"] == LATER
    assert redriven.exit_code == 0, redriven.stderr
