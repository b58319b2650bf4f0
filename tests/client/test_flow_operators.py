"""`app.flows`: what a program does with flows that it knows by their ids."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tenure import Flow, Tenure
from tenure.client.app import Application
from tenure.client.channel import Link
from tenure.core import validation
from tenure.core.vocabulary import JobStatus, Role
from tenure.errors import Conflict, InvalidInput, UnknownJob, UnreadableRow, WaitTimeout
from tenure.wiring import open_coordinator
from tenure_conformance.spec import spec
from tests.client.scene import Scene
from tests.remote.serving import ThreadedServer, connect, new_token
from tests.support.coordinators import QUEUE

UNKNOWN = "01977420-dc00-7000-8000-000000000000"


def make_flow(app: Application) -> Flow:
    """Two pages and their merge."""
    with app.flow("import 42") as flow:
        pages = [flow.add(app.call("fetch", queue=QUEUE), name=f"page-{n}") for n in (1, 2)]
        flow.add(app.call("merge", queue=QUEUE), after=pages, name="total")
    return flow


# --- cancel --------------------------------------------------------------------------------------


@spec("FL14")
def test_cancel_ends_what_has_not_ended_and_is_safe_to_repeat(
    app: Application, scene: Scene
) -> None:
    flow = make_flow(app)
    done = scene.finish()

    cancelled = app.flows.cancel(flow.id, reason="wrong file")
    again = asyncio.run(app.flows.acancel(flow.id.upper()))

    ended = {step.job_id: step.status for step in cancelled.steps}
    assert ended.pop(done.job_id) is JobStatus.SUCCEEDED
    assert set(ended.values()) == {JobStatus.CANCELLED}
    assert again.steps == cancelled.steps
    assert {app.get(each).refresh().cancel_reason for each in ended} == {"wrong file"}


@spec("FL14", "T19")
def test_cancel_asks_running_handlers_to_stop_or_does_not_wait_for_them(
    app: Application, scene: Scene
) -> None:
    flow = make_flow(app)
    running = scene.claim().job_id

    soft = {step.job_id: step.status for step in app.flows.cancel(flow.id).steps}
    hard = {step.job_id: step.status for step in app.flows.cancel(flow.id, hard=True).steps}

    assert soft[running] is JobStatus.RUNNING
    assert set(hard.values()) == {JobStatus.CANCELLED}


def test_a_flow_that_does_not_exist_is_not_cancelled(app: Application) -> None:
    with pytest.raises(UnknownJob, match="no flow"):
        app.flows.cancel(UNKNOWN)
    with pytest.raises(InvalidInput, match="flow_id"):
        app.flows.cancel("album 1")


def test_a_request_id_that_was_used_for_another_cancel_is_a_conflict(
    app: Application, scene: Scene
) -> None:
    flow = make_flow(app)
    scene.claim()
    app.flows.cancel(flow.id, request_id="once", reason="wrong file")

    with pytest.raises(Conflict, match="idempotency_key_reuse"):
        app.flows.cancel(flow.id, request_id="once", reason="another")


@pytest.fixture(params=["file", "server"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Application]:
    """An application on a SQLite file, and on a server of one."""
    url = f"sqlite:///{tmp_path / 'tenure.db'}"
    if request.param == "file":
        with Tenure(url) as app:
            yield app
        return
    request.getfixturevalue("monkeypatch").setattr("tenure.server.problems.RETRY_AFTER_S", 0)
    server = ThreadedServer()
    with open_coordinator(url, create=True) as serving, closing(server):
        mounted = server.mount(serving)
        token = new_token(serving.store, Role.OPERATOR, "ann")
        remote = connect(server.url, token)
        link = Link(coordination=remote, close=remote.close, retry_for_s=0.0)
        yield Application(lambda: link, namespace="default", name="ann")
        remote.close()
        mounted.close()


@spec("FL14", "H8")
@pytest.mark.parametrize("name", ["page-2", "total"])
def test_a_row_that_cannot_be_read_is_named_and_the_others_are_cancelled(
    shop: Application, tmp_path: Path, name: str
) -> None:
    flow = make_flow(shop)
    [broken] = [job.id for job in flow.jobs if job.name == name]
    make_unreadable(tmp_path / "tenure.db", broken)

    with pytest.raises(UnreadableRow) as named:
        shop.flows.cancel(flow.id)

    statuses = {step.job_id: step.status for step in shop.flows.show(flow.id).steps}
    assert named.value.job_id == broken
    assert str(named.value).startswith(f"job {broken} cannot be read: policy is not the document")
    assert not statuses.pop(broken).is_terminal
    assert set(statuses.values()) == {JobStatus.CANCELLED}


def make_unreadable(path: Path, job_id: str) -> None:
    """Write what no version of Tenure writes, past the guards of the schema."""
    with closing(sqlite3.connect(path)) as database:
        triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        for (trigger,) in database.execute(triggers).fetchall():
            database.execute(f"DROP TRIGGER {trigger}")
        database.execute("UPDATE tenure_job SET policy = '{}x' WHERE id = ?", (job_id,))
        database.commit()


# --- redrive -------------------------------------------------------------------------------------


@spec("FL3", "FL10")
def test_the_limit_of_payloads_holds_for_each_redrive_by_itself(
    app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "MAX_FLOW_PAYLOAD_BYTES", 3 * len("null"))
    flow = make_flow(app)

    for number in (1, 2):
        app.flows.cancel(flow.id)
        assert len(app.flows.redrive(flow.id).redrives) == number

    with pytest.raises(InvalidInput, match="over the limit"), app.flow("too large") as large:
        large.add(app.call("fetch", "x" * 12))


# --- wait ----------------------------------------------------------------------------------------


@spec("FL9")
def test_wait_returns_the_flow_once_every_job_has_ended(app: Application, scene: Scene) -> None:
    flow = make_flow(app)
    scene.then = lambda: app.flows.cancel(flow.id)

    ended = app.flows.wait(flow.id)
    again = asyncio.run(app.flows.await_end(flow.id))

    assert {step.status for step in ended.steps} == {JobStatus.CANCELLED}
    assert again == ended


def test_wait_gives_up_after_its_timeout(app: Application) -> None:
    flow = make_flow(app)

    with pytest.raises(WaitTimeout, match="not ended: 3 of 3 jobs of the flow"):
        app.flows.wait(flow.id, timeout="5s")
    with pytest.raises(UnknownJob, match="no flow"):
        app.flows.wait(UNKNOWN)
