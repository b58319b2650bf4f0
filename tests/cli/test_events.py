"""`tenure events`, as people type it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tenure.cli import events
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Complete
from tenure.core.ids import RequestId
from tenure_conformance.spec import spec
from tests.cli.harness import Run, at_a_terminal, enqueued, started


def _events(run: Run, *words: str) -> list[dict[str, Any]]:
    result = run("events", *words, "--json")
    assert result.exit_code == 0, result.stderr
    found: list[dict[str, Any]] = json.loads(result.stdout)["events"]
    return found


@spec("E4", "E6", "E7", "E8")
def test_events_are_listed_by_job_type_time_and_correlation_id(
    run: Run, serving: Coordinator
) -> None:
    first = enqueued(run, "mail")
    held = started(serving)
    serving.execute(Complete(**held, request_id=RequestId("end"), result=b"1"))
    second = enqueued(run, "mail", "--correlation-id", "order-7")

    def names(*words: str) -> list[str]:
        return [event["name"] for event in _events(run, "--oldest-first", *words)]

    done = ["job_enqueued", "job_claimed", "job_started", "job_succeeded"]
    assert names() == [*done, "job_enqueued"]
    assert names("--job", first) == names("--correlation-id", first) == done
    assert names("--correlation-id", "order-7") == names("--job", second[:20]) == ["job_enqueued"]
    assert names("-t", "claimed") == names("--type", "job_claimed") == ["job_claimed"]
    assert names("-t", "started", "-t", "job_succeeded") == done[2:]
    assert names("--since", "1h", "--until", "0s") == names("--since", "2020-01-01T00:00Z")
    assert names("--until", "1h") == []
    assert [event["cause"] for event in _events(run, "--job", first)] == [
        "complete",
        "start",
        "claim",
        "enqueue",
    ]


@spec("E8")
def test_a_page_says_how_to_get_the_next_one(run: Run) -> None:
    jobs = [enqueued(run, "mail") for _ in range(3)]

    first = run("events", "-n", "2")
    after = first.stderr.split()[-1]
    rest = run("events", "-n", "2", "--after", after)

    assert [job in first.stdout for job in jobs] == [False, True, True]
    assert "for the next page, add --after" in first.stderr
    assert jobs[0] in rest.stdout
    assert jobs[1] not in rest.stdout
    assert rest.stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--type", "nope"), "each may have job_ in front of it"),
        (("--after", "here"), "is not a place in the log"),
        (("--since", "99999999999d"), "no store holds such a time"),
        (("--until", "99999999999d"), "no store holds such a time"),
        (("--since", "1h", "--until", "2h"), "--since must be earlier than --until"),
        (("--job", "01890000-0000-7000-8000-000000000000"), "no job"),
        (("--namespace", "no spaces"), "namespace"),
    ],
)
def test_a_wrong_question_is_refused_in_one_line(
    run: Run, words: tuple[str, ...], said: str
) -> None:
    enqueued(run, "mail")

    refused = run("events", *words)

    assert refused.exit_code in (1, 2)
    assert said in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


@spec("E9")
def test_events_of_another_namespace_are_not_listed(run: Run) -> None:
    enqueued(run, "mail", "--namespace", "theirs")

    assert _events(run) == []
    assert len(_events(run, "--namespace", "theirs")) == 1


@pytest.mark.process
def test_the_table_fits_the_terminal(run: Run, store_path: Path) -> None:
    job_id = enqueued(run, "mail")

    shown = at_a_terminal(store_path.parent, "events", stream="stdout", columns=80)

    lines = shown.splitlines()
    assert all(len(line) <= 80 + len("\x1b[1m\x1b[0m") for line in lines)
    assert job_id[:18] in lines[1]
    assert lines[1].endswith("enqueue")


@spec("E8")
def test_a_list_names_the_kind_of_each_job(
    run: Run, serving: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_KINDS_READ", 1)  # several reads, as for hundreds of jobs
    enqueued(run, "mail")
    enqueued(run, "report")
    started(serving)

    lines = run("events", "--type", "claimed", "--type", "enqueued").stdout.splitlines()

    at = lines[0].split().index("KIND")
    kinds = [line[lines[0].index("KIND") :].split()[0] for line in lines[1:]]
    assert at == 2
    assert kinds == ["mail", "report", "mail"]


@pytest.mark.process
def test_kinds_fit_a_terminal_of_a_hundred_columns(run: Run, store_path: Path) -> None:
    enqueued(run, "app.mailings.send")

    shown = at_a_terminal(store_path.parent, "events", stream="stdout", columns=100)

    titles, row = shown.splitlines()
    assert "KIND" in titles
    assert "CAUSE" in titles
    assert "app.mailings.send" in row
    assert len(row) <= 100
