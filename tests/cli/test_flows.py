"""`tenure flows`: what waits for what, and how to end all of it."""

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tenure import Flow, Tenure
from tenure.cli import following
from tenure.coordinator.service import Coordinator
from tenure.core.flow_rows import FlowView
from tenure.core.ids import FlowId
from tenure.core.instants import Duration
from tenure.errors import StoreUnavailable
from tenure.stores.sql.flows import SqlFlows
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.cli.harness import at_a_terminal, tenure
from tests.client.test_flow_operators import make_unreadable


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Flow:
    """Two pages, their merge, and a notice."""
    url = f"sqlite:///{tmp_path / 'tenure.db'}"
    monkeypatch.setenv("TENURE_URL", url)
    with Tenure(url) as app, app.flow("import 42") as made:
        pages = [made.add(app.call("fetch", {"n": n})) for n in range(5)]
        total = made.add(app.call("merge"), after=pages, name="total")
        made.add(app.call("notify"), after=total, when="ended")
    return made


@spec("FL9")
def test_flows_are_listed_with_their_state(flow: Flow) -> None:
    listed = tenure("flows", "ls")
    [record] = json.loads(tenure("flows", "ls", "--json").stdout)

    assert "import 42" in listed.stdout
    assert "live" in listed.stdout
    assert (record["id"], record["jobs"], record["is_live"]) == (flow.id, 7, True)


def test_the_list_of_queues_counts_jobs_that_wait_for_others(flow: Flow) -> None:
    [queue] = json.loads(tenure("queues", "ls", "--json").stdout)
    head, row = tenure("queues", "ls").stdout.splitlines()

    steps = json.loads(tenure("flows", "show", flow.id, "--json").stdout)["steps"]
    waiting = [step for step in steps if step["status"] == "waiting"]
    assert queue["waiting"] == len(waiting) > 0
    assert queue["ready"] == len(steps) - len(waiting)
    place = head.split().index("WAITING")
    assert row.split()[place] == str(len(waiting))


@spec("FL9")
def test_a_flow_is_shown_as_a_graph_with_statuses(flow: Flow) -> None:
    shown = tenure("flows", "show", flow.id).stdout
    steps = json.loads(tenure("flows", "show", flow.id, "--json").stdout)["steps"]

    assert "import 42: 7 jobs: 2 waiting, 5 queued" in shown
    assert "fetch-1, fetch-2, fetch-3 and 2 more" in shown
    assert [step["after"] for step in steps if step["name"] == "notify-1"] == [["total"]]


def test_statuses_of_a_flow_are_plain_text_in_a_pipe(flow: Flow) -> None:
    shown = tenure("flows", "show", flow.id).stdout

    assert "x1b" not in shown
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("fetch-")] == (
        ["queued"] * 5
    )


@pytest.mark.process
def test_statuses_of_a_flow_have_colours_on_a_terminal(flow: Flow, tmp_path: Path) -> None:
    shown = at_a_terminal(tmp_path, "flows", "show", flow.id, stream="stdout")

    assert "x1b" not in shown
    assert "\x1b[34mqueued\x1b[0m" in shown


def test_a_flow_is_found_by_the_beginning_of_its_id(flow: Flow) -> None:
    shown = tenure("flows", "show", flow.id[:13] + "…")
    cancelled = tenure("flows", "cancel", flow.id[:-1])
    waited = tenure("flows", "wait", flow.id[:8].upper())

    assert "import 42: 7 jobs" in shown.stdout
    assert (cancelled.exit_code, waited.exit_code) == (0, 1)
    assert "7 jobs: 7 cancelled" in waited.stdout


def test_an_ambiguous_id_lists_the_flows(flow: Flow) -> None:
    with Tenure() as app, app.flow("import 43") as other:
        other.id = FlowId(flow.id[:13] + "-7000-8000-ffffffffffff")
        other.add(app.call("fetch"))

    refused = tenure("flows", "show", flow.id[:13])
    found = tenure("flows", "show", other.id[:-1])

    head, *lines = refused.stderr.splitlines()
    assert refused.exit_code == 1
    assert head == f"tenure: 2 flows have an id that begins with {flow.id[:13]}; give more of it:"
    assert {line.split("  ")[1] for line in lines} == {flow.id, other.id}
    assert "import 43: 1 job: 1 queued" in found.stdout


def test_the_beginning_of_an_id_that_no_flow_has_is_refused(flow: Flow) -> None:
    first, last = tenure("flows", "show", "00000000"), tenure("flows", "show", "ffffffff-ffff")

    assert (first.exit_code, last.exit_code) == (1, 1)
    assert first.stderr == (
        "tenure: no flow in namespace default has an id that begins with 00000000\n"
    )


@spec("T17", "FL9")
def test_cancel_ends_everything_that_has_not_ended(flow: Flow) -> None:
    cancelled = tenure("flows", "cancel", flow.id, "--reason", "wrong file")
    again = tenure("flows", "cancel", flow.id)
    waited = tenure("flows", "wait", flow.id)

    assert (cancelled.exit_code, again.exit_code, waited.exit_code) == (0, 0, 1)
    assert "7 jobs: 7 cancelled" in waited.stdout
    listed = tenure("flows", "ls").stdout
    assert "ended" in listed
    assert "7 cancelled" in listed


@spec("FL14")
def test_a_cancelled_flow_lets_no_job_begin(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.client.jobs.DECIDED_TOGETHER", 1)  # a transaction for each job

    cancelled = tenure("flows", "cancel", flow.id)

    assert "7 jobs: 7 cancelled" in cancelled.stdout
    with closing(SqliteStore(tmp_path / "tenure.db")) as store:
        logs = store.events.load([job.id for job in flow.jobs])
    assert {each.type.value for log in logs.values() for each in log} == {"enqueued", "cancelled"}
    assert {each.cause for log in logs.values() for each in log} == {None, "soft"}


@spec("FL14")
def test_cancel_names_a_job_that_cannot_be_read_and_cancels_the_others(
    flow: Flow, tmp_path: Path
) -> None:
    broken = flow.jobs[2].id
    make_unreadable(tmp_path / "tenure.db", broken)

    cancelled = tenure("flows", "cancel", flow.id)

    assert cancelled.exit_code == 1
    assert cancelled.stdout == "7 jobs: 1 queued, 6 cancelled\n"
    named, total = cancelled.stderr.splitlines()
    assert named.startswith(f"tenure: job {broken} cannot be read: policy is not the document")
    assert total == "tenure: 1 job was not cancelled"


@spec("FL14")
def test_cancel_names_each_job_that_cannot_be_cancelled_and_how_many_there_are(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.cli.flows.SHOWN_PROBLEMS", 2)
    for job in flow.jobs[:3]:
        make_unreadable(tmp_path / "tenure.db", job.id)

    cancelled = tenure("flows", "cancel", flow.id)

    *named, total = cancelled.stderr.splitlines()
    assert len(named) == 2
    assert {line.split()[2] for line in named} < {job.id for job in flow.jobs[:3]}
    assert (cancelled.exit_code, total) == (1, "tenure: 3 jobs were not cancelled")


def test_what_does_not_exist_or_does_not_end_is_an_error(flow: Flow) -> None:
    unknown = tenure("flows", "show", "01977420-dc00-7000-8000-000000000000")
    wrong = tenure("flows", "show", "album 1")
    slow = tenure("flows", "wait", flow.id, "--timeout", "300ms")

    assert (unknown.exit_code, wrong.exit_code, slow.exit_code) == (1, 2, 1)
    assert "there is no flow 01977420" in unknown.stderr
    assert wrong.stderr == (
        "tenure: FLOW_ID: 'album 1' is not a flow id; give an id as `tenure flows ls` shows it, or"
        " its first 8 or more characters\n"
    )
    assert slow.stderr.splitlines() == [
        "tenure: the flow has not ended: 7 jobs: 2 waiting, 5 queued",
        f"tenure: flow {flow.id} keeps running; `tenure flows show {flow.id}` shows it",
    ]


@spec("LV8")
def test_ctrl_c_while_waiting_says_that_the_flow_keeps_running(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tenure.cli.flows.pause", stop)

    stopped = tenure("flows", "wait", flow.id)

    assert stopped.exit_code == 130
    assert stopped.stderr.splitlines() == [
        "",
        f"tenure: flow {flow.id} keeps running; `tenure flows show {flow.id}` shows it",
    ]


@spec("LV8")
def test_ctrl_c_while_cancelling_says_how_many_jobs_are_done(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Coordinator, "execute_many", stop)

    stopped = tenure("flows", "cancel", flow.id, "--request-id", "r1")

    assert stopped.exit_code == 130
    assert stopped.stderr == (
        "tenure: interrupted; ended: 0 of 7 jobs: 2 waiting, 5 queued; run it again to cancel the"
        " rest\n"
    )


@spec("FL11")
def test_a_flow_that_was_redriven_too_often_is_refused_like_any_other(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.core.flows.MAX_REDRIVES", 1)
    tenure("flows", "cancel", flow.id)
    assert tenure("flows", "redrive", flow.id).exit_code == 0
    tenure("flows", "cancel", flow.id)

    refused = tenure("flows", "redrive", flow.id)

    assert refused.exit_code == 1
    assert refused.stderr == (
        f"tenure: flow {flow.id} was redriven 1 times, which is the limit; make a new flow\n"
    )


@spec("LV8")
def test_a_flow_of_another_namespace_is_shown_by_the_command_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENURE_URL", f"sqlite:///{tmp_path / 'tenure.db'}")
    with Tenure(namespace="shop") as app, app.flow("import 42") as made:
        made.add(app.call("fetch"))

    slow = tenure("flows", "wait", made.id, "--namespace", "shop", "--timeout", "0s")

    [command] = re.findall(r"`tenure (.*)` shows it", slow.stderr)
    assert "import 42: 1 job" in tenure(*command.split()).stdout


@spec("LV5")
def test_a_wait_for_a_flow_keeps_running_after_the_store_was_lost(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, lost = SqlFlows.load, []

    def cancel_and_lose(_: float) -> None:
        tenure("flows", "cancel", flow.id)
        lost.append(True)

    def load_unless_lost(self: SqlFlows, *words: Any) -> FlowView | None:
        if lost:
            lost.pop()
            raise StoreUnavailable("it is away")
        return load(self, *words)

    monkeypatch.setattr("tenure.cli.flows.pause", cancel_and_lose)
    monkeypatch.setattr(SqlFlows, "load", load_unless_lost)
    monkeypatch.setattr(following, "FIRST_RETRY_S", 0.01)

    waited = tenure("flows", "wait", flow.id)

    assert waited.stdout == "7 jobs: 7 cancelled\n"
    assert "lost the connection" in waited.stderr


@spec("FL10", "FL11", "FL12")
def test_a_flow_is_redriven_and_shows_which_job_replaces_which(flow: Flow) -> None:
    live = tenure("flows", "redrive", flow.id)
    tenure("flows", "cancel", flow.id)
    alone = tenure("jobs", "rerun", flow.jobs[0].id)

    made = tenure("flows", "redrive", flow.id, "--request-id", "once")
    again = tenure("flows", "redrive", flow.id, "--request-id", "once", "--json")
    shown = tenure("flows", "show", flow.id).stdout

    assert (live.exit_code, alone.exit_code, made.exit_code, again.exit_code) == (1, 1, 0, 0)
    assert "a job of it has not ended; wait for the flow, or cancel it" in live.stderr
    assert f"`tenure flows redrive {flow.id}`" in alone.stderr
    assert f"{flow.jobs[0].id} cancelled" in made.stdout
    assert len(json.loads(again.stdout)["redrives"]) == 1
    assert "7 jobs: 2 waiting, 5 queued" in shown
    assert "7 new jobs" in shown
    names = [line.split()[0] for line in shown.splitlines() if f" {flow.id[:4]}" in line]
    assert names[-2:] == ["total", "notify-1"]


@spec("FL11")
def test_a_repeated_redrive_makes_nothing(flow: Flow) -> None:
    tenure("flows", "cancel", flow.id)

    made = tenure("flows", "redrive", flow.id, "--request-id", "once")
    again = tenure("flows", "redrive", flow.id, "--request-id", "once")

    assert made.stdout.count(" cancelled") == 7
    assert (again.exit_code, made.stderr, again.stderr) == (0, "", "")
    assert again.stdout.splitlines()[3:] == made.stdout.splitlines()[3:]


def test_a_redrive_of_nothing_is_an_error(flow: Flow) -> None:
    unknown = tenure("flows", "redrive", "01977420-dc00-7000-8000-000000000000")

    assert unknown.exit_code == 1
    assert "there is no flow" in unknown.stderr


@spec("FL6")
def test_waiting_for_a_flow_that_is_partly_purged_says_so(flow: Flow, tmp_path: Path) -> None:
    tenure("flows", "cancel", flow.id)
    with closing(SqliteStore(tmp_path / "tenure.db")) as store:
        assert store.upkeep.delete("jobs", older_than_us=Duration(0), limit=3).deleted == 3

    waited = tenure("flows", "wait", flow.id)
    redriven = tenure("flows", "redrive", flow.id)

    assert (waited.exit_code, redriven.exit_code) == (1, 1)
    assert "ended and purged: 3 of 7 jobs of the flow" in waited.stderr
    assert "refused with jobs_purged" in redriven.stderr
