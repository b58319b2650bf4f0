"""Real servers and workers: their counters equal what they committed, also after a kill."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tenure.client.channel import Link
from tenure.core.ids import JobId, role_of
from tenure.core.vocabulary import JobStatus
from tenure.ports import JobHistory, Store
from tenure.wiring import open_remote, open_store
from tenure_conformance.spec import spec
from tests.e2e import ledger
from tests.e2e.app import app
from tests.server.processes import House, Process
from tests.support.commands import ROOT
from tests.support.waiting import until
from tests.telemetry.logs import assert_agree
from tests.telemetry.scrape import samples, total

pytestmark = pytest.mark.process

WORKER = (sys.executable, "-m", "tenure", "worker", "tests.e2e.app:app", "-c", "2")


class Fleet:
    """Workers, and what they say on stderr."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._directory = directory
        self._environment = os.environ | {"TENURE_LEASE_BOUNDS": "1s,120s"} | environment
        self.workers: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *words: str) -> None:
        with self._log(name).open("wb") as log:
            self.workers[name] = subprocess.Popen(
                [*WORKER, "--name", name, *words], cwd=ROOT, env=self._environment, stderr=log
            )

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def log(self, name: str) -> str:
        return self._log(name).read_text()

    def metrics(self, name: str) -> bytes:
        """What the worker exposes."""
        until(lambda: "metrics at http://" in self.log(name), "the worker says where")
        found = re.search(r"metrics at http://127\.0\.0\.1:(\d+)/metrics", self.log(name))
        assert found is not None
        return read("127.0.0.1", int(found[1]), "/metrics")[1]

    def close(self) -> None:
        for worker in self.workers.values():
            if worker.poll() is None:
                worker.kill()
            worker.wait()


def read(host: str, port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


class Scene:
    """A server with a fleet behind it, and a look into its store."""

    def __init__(self, url: str, directory: Path) -> None:
        self.house = House(url, directory)
        self.server: Process = self.house.serve()
        self.viewer = self.house.token("viewer", "prometheus")
        self.store: Store = open_store(url)
        token = self.house.token("worker", "workers")
        self.fleet = Fleet(directory, {"TENURE_URL": self.server.address, "TENURE_TOKEN": token})
        client = self.house.token("client", "shop")
        self._remote = open_remote(self.server.address, token=client)
        self._link = Link(coordination=self._remote, close=lambda: None)

    def call(self, kind: str, **arguments: Any) -> JobId:
        with app.channel.diverted(self._link):
            return app.enqueue(kind, arguments).id

    def cancel(self, job_id: JobId) -> None:
        with app.channel.diverted(self._link):
            app.get(job_id).cancel()

    def status(self, job_id: JobId) -> JobStatus:
        return self.store.jobs.load([job_id]).jobs[job_id].status

    def until_ended(self, *job_ids: JobId) -> None:
        until(lambda: all(self.status(each).is_terminal for each in job_ids), "all have ended")

    def metrics(self) -> bytes:
        answer = self.server.ask("GET", "/metrics", token=self.viewer)
        assert answer.status == 200, answer
        return answer.body

    def records(self) -> list[JobHistory]:
        return list(self.store.audit.records(page_size=100))

    def close(self) -> None:
        self.fleet.close()
        self._remote.close()
        self.store.close()
        self.house.close()


@pytest.fixture(params=["sqlite", "postgres"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'observed.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
    scene = Scene(url, tmp_path)
    yield scene
    scene.close()


@pytest.fixture(scope="module")
def shared_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """For tests that start workers of their own and look at nothing that others committed."""
    directory = tmp_path_factory.mktemp("shared")
    scene = Scene(f"sqlite:///{directory / 'observed.db'}", directory)
    yield scene
    scene.close()


@spec("I23", "OB24")
def test_a_servers_counters_are_those_of_the_log_after_retries_cancels_and_a_killed_worker(
    scene: Scene,
) -> None:
    scene.fleet.start("doomed")
    taken = scene.call("linger", seconds=4.0)
    until(lambda: scene.status(taken) is JobStatus.RUNNING, "the doomed worker has it")
    scene.fleet.workers["doomed"].send_signal(signal.SIGKILL)
    cancelled = scene.call("linger", seconds=0.1)
    scene.cancel(cancelled)
    scene.fleet.start("second")
    others = [
        scene.call("add", one=1, two=2),
        scene.call("unlucky", how="once"),
        scene.call("unlucky", how="permanent"),
        scene.call("poison", how="exit"),
    ]
    scene.until_ended(taken, cancelled, *others)
    # Counted after the commit, which the store shows at once: the last end may not be yet. [OB24]
    events = sum(len(record.events) for record in scene.records())
    until(lambda: total(scene.metrics(), "tenure_transitions_total") >= events, "all are counted")

    text = scene.metrics()

    assert_agree(text, scene.records())
    assert total(text, "tenure_lease_expiries_total", kind="linger") == 1
    assert total(text, "tenure_retries_total", cause="lease_expired") == 1
    assert total(text, "tenure_retries_total", cause="attempt_failed") == 1
    assert total(text, "tenure_transitions_total", type="cancelled") == 1
    assert total(text, "tenure_dead_letters_total", kind="poison") == 1
    assert total(text, "tenure_store_up") == 1


@spec("OB24", "I23")
@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_a_worker_without_a_server_counts_what_it_committed_itself(
    dialect: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'alone.db'}"
    if dialect == "postgres":
        url = request.getfixturevalue("postgres_url")
    house = House(url, tmp_path)
    store = open_store(url, migrate=True)
    with closing(ledger.connect(url)) as connection:
        connection.execute(ledger.TABLE)
        connection.commit()
    fleet = Fleet(tmp_path, {"TENURE_URL": url, "LEDGER_URL": url})
    fleet.start("shown", "--metrics-port", "0")
    kinds = {"add": {"one": 1, "two": 2}, "post": {"entry": "rent", "how": "well"}}
    if (
        dialect == "sqlite"
    ):  # a handler that enqueues as the application gets no URL with a password
        kinds["delegate"] = {"to": "elsewhere"}
    for kind, arguments in [*kinds.items()] * 3:
        made = house.tenure("enqueue", kind, json.dumps(arguments), "--wait")
        assert made.returncode == 0, made

    def has_counted_all() -> bool:
        return total(fleet.metrics("shown"), "tenure_claims_total") >= 3 * len(kinds)

    until(has_counted_all, "the worker counted its claims")
    text = fleet.metrics("shown")
    fleet.close()

    events = [event for record in store.audit.records(page_size=100) for event in record.events]
    by_worker = [event for event in events if role_of(event.actor) == "worker"]
    by_handlers = 3  # each `post` is completed in a transaction of its handler's own
    assert total(text, "tenure_transitions_total") == len(by_worker) - by_handlers
    assert total(text, "tenure_transitions_total", type="succeeded", kind="add") == 3
    assert total(text, "tenure_transitions_total", type="succeeded", kind="post") == 0
    assert total(text, "tenure_transitions_total", type="enqueued") == 0
    assert total(text, "tenure_store_up") == 1
    store.close()


def test_a_worker_of_a_server_exposes_what_it_saw_itself(shared_scene: Scene) -> None:
    shared_scene.fleet.start("far", "--metrics-port", "0")
    shared_scene.until_ended(shared_scene.call("add", one=1, two=2))

    def has_heard() -> bool:
        text = shared_scene.fleet.metrics("far")
        return total(text, "tenure_worker_events_total", event="succeeded") == 1

    until(has_heard, "the worker knows of its success")
    assert samples(shared_scene.fleet.metrics("far")).keys() == {"tenure_worker_events_total"}


def test_a_port_that_is_taken_is_said_in_one_line(shared_scene: Scene) -> None:
    shared_scene.fleet.start("late", "--metrics-port", str(shared_scene.server.port))
    code = shared_scene.fleet.workers["late"].wait(60)

    assert code == 2
    assert "cannot listen on 127.0.0.1" in shared_scene.fleet.log("late")
    assert "Traceback" not in shared_scene.fleet.log("late")
