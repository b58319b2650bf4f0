"""How a job that runs looks: its progress, and its renewals in one line."""

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result

from tenure.coordinator.service import Coordinator
from tenure.core.commands import Complete, Enqueue, Heartbeat
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Kind,
    QueueName,
    RequestId,
    client_actor,
    new_job_id,
)
from tenure.core.job import Progress
from tenure.core.policy import Compensation, Policy
from tenure_conformance.spec import spec
from tests.cli.harness import WORKER, Run, at_a_terminal, started


@pytest.fixture
def held(run: Run, serving: Coordinator) -> dict[str, Any]:
    """A running job, as its worker names it."""
    run("enqueue", "mail")
    return started(serving)


def timeline(result: Result) -> list[list[str]]:
    """The rows below the head."""
    lines = [line.split() for line in result.stdout.splitlines()]
    return lines[[line[:1] for line in lines].index(["SEQ"]) + 1 :]


def test_the_renewals_of_a_running_attempt_are_one_line_of_show_and_all_of_events(
    run: Run, serving: Coordinator, held: dict[str, Any]
) -> None:
    serving.execute(Heartbeat(**held, hb_seq=1))
    serving.execute(Heartbeat(**held, hb_seq=2, progress=Progress(done=1, total=9)))
    serving.execute(Heartbeat(**held, hb_seq=3, progress=Progress(done=2, total=9)))
    run("jobs", "cancel", held["job_id"])
    serving.execute(Heartbeat(**held, hb_seq=4, progress=Progress(done=3, total=9)))

    shown = timeline(run("jobs", "show", held["job_id"]))
    every = timeline(run("jobs", "events", held["job_id"]))

    assert [line[0] for line in shown] == ["1", "2", "3", "4–6", "7", "8"]
    assert shown[3] == ["4–6", every[5][1], "renewals", "-", "1", WORKER, "heartbeat"]
    assert shown[5][2] == "heartbeat"
    assert [line[2] for line in every[3:6]] == ["lease_renewed", "heartbeat", "heartbeat"]
    assert [line[0] for line in every] == [str(seq) for seq in range(1, 9)]


@pytest.mark.process
def test_at_80_columns_the_history_keeps_the_attempt(
    run: Run, held: dict[str, Any], store_path: Path
) -> None:
    run("jobs", "dead-letter", held["job_id"])

    said = at_a_terminal(store_path.parent, "jobs", "events", held["job_id"], stream="stdout")

    head, *rows = [click.unstyle(line) for line in said.splitlines()]
    assert head.split() == ["SEQ", "TIME", "EVENT", "ATTEMPT", "BY", "CAUSE"]
    assert max(map(len, rows)) <= 80


@spec("E7")
def test_the_tables_show_the_causes_that_the_documents_have(
    run: Run, serving: Coordinator, held: dict[str, Any]
) -> None:
    serving.execute(Complete(**held, request_id=RequestId("end"), result=b"1"))

    document = json.loads(run("jobs", "events", held["job_id"], "--json").stdout)
    causes = [event["cause"] for event in document["events"]]

    assert causes == ["enqueue", "claim", "start", "complete"]
    for table in ("show", "events"):
        assert [line[-1] for line in timeline(run("jobs", table, held["job_id"]))] == causes


@pytest.mark.parametrize(
    ("progress", "said"),
    [
        (Progress(done=4, total=200), "4/200"),
        (Progress(done=4), "4/?"),
        (Progress(done=4, total=200, note="pages"), "4/200 pages"),
    ],
)
def test_progress_ends_where_its_words_do(
    run: Run, serving: Coordinator, held: dict[str, Any], progress: Progress, said: str
) -> None:
    serving.execute(Heartbeat(**held, hb_seq=1, progress=progress))

    lines = run("jobs", "show", held["job_id"]).stdout.splitlines()

    [line] = [line for line in lines if line.startswith("progress")]
    assert line.removeprefix("progress").lstrip() == said


@spec("U3")
def test_a_refused_result_is_shown_beside_the_log(
    run: Run, serving: Coordinator, held: dict[str, Any]
) -> None:
    run("jobs", "cancel", held["job_id"], "--hard")
    serving.execute(Complete(**held, request_id=RequestId("late"), result=b'"a secret"'))

    shown = timeline(run("jobs", "show", held["job_id"]))
    every = timeline(run("jobs", "events", held["job_id"]))
    plain, bodies = (
        json.loads(run("jobs", "show", held["job_id"], "--json", *words).stdout)
        for words in ((), ("--bodies",))
    )
    history = json.loads(run("jobs", "events", held["job_id"], "--json").stdout)

    beside = ["result_discarded", "beside", "the", "log", "1", WORKER, "job_cancelled"]
    assert [line[0] for line in shown] == ["1", "2", "3", "4", "-"]
    assert shown[-1][2:] == every[-1][2:] == beside
    assert [event["seq"] for event in history["events"]] == [1, 2, 3, 4]
    for seen in (*plain["observations"], *history["observations"]):
        assert (seen["type"], seen["size"], seen["body"]) == ("result_discarded", 10, None)
    assert [seen["body"] for seen in bodies["observations"]] == ['"a secret"']


@spec("U3", "M5")
def test_a_job_and_its_compensation_are_shown_with_each_others_ids(
    run: Run, serving: Coordinator
) -> None:
    undo = Compensation(kind=Kind("undo"), queue=QueueName("undo"), policy=Policy())
    serving.execute(
        Enqueue(
            job_id=new_job_id(serving.store.now(), bytes(16)),
            namespace=DEFAULT_NAMESPACE,
            queue=QueueName("default"),
            kind=Kind("charge"),
            actor=client_actor("tests"),
            policy=Policy(compensation=undo),
        )
    )
    charge = started(serving)["job_id"]
    run("jobs", "cancel", charge, "--hard")
    undoing = started(serving, "undo", claim_seq=2)
    serving.execute(Complete(**undoing, request_id=RequestId("done")))

    shown = run("jobs", "show", charge)
    facts = [line.split() for line in shown.stdout.splitlines()]
    records = [
        json.loads(run("jobs", "show", job_id, "--json").stdout)["job"]
        for job_id in (charge, undoing["job_id"])
    ]

    assert ["compensated", "by", undoing["job_id"]] in facts
    assert timeline(shown)[-1][2:8] == [
        *("compensated", "beside", "the", "log", "-", "job"),
    ]
    assert timeline(shown)[-1][8] == undoing["job_id"]
    assert [(each["compensates"], each["compensated_by"]) for each in records] == [
        (None, undoing["job_id"]),
        (charge, None),
    ]
