"""How a job that runs looks: its progress, and its renewals in one line."""

from typing import Any

import pytest
from click.testing import Result

from tenure.coordinator.service import Coordinator
from tenure.core.commands import Heartbeat
from tenure.core.job import Progress
from tests.cli.harness import WORKER, Run, started


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
    assert shown[3] == ["4–6", every[5][1], "renewals", "-", "1", WORKER, "-"]
    assert shown[5][2] == "heartbeat"
    assert [line[2] for line in every[3:6]] == ["lease_renewed", "heartbeat", "heartbeat"]
    assert [line[0] for line in every] == [str(seq) for seq in range(1, 9)]


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
