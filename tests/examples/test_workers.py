"""The reference workers on a real server: jobs succeed, fail, are cancelled and handed back."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tenure.core.ids import JobId
from tenure.core.job import Job
from tenure.verify import verify
from tenure.wiring import open_store
from tests.server.harness import Answer
from tests.server.processes import House, Process
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.process

WORKERS = Path(__file__).resolve().parents[2] / "examples" / "workers"
JOB = "01930000-0000-7000-8000-{:012d}"
BEATEN_S = 9
"""A lease that is renewed every 3 s."""

SCRIPTS = {
    "nap": "#!/bin/sh\nsleep 600\n",
    "broken": "#!/bin/sh\necho 'cannot be done' >&2\nexit 65\n",
    "flaky": "#!/bin/sh\necho 'not now' >&2\nexit 1\n",
}
FUNCTIONS = """
export default {
  count: ({ words }) => words.split(/\\s+/).filter(Boolean).length,
  nap: () => { Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0); },
  broken: () => { throw Object.assign(new Error("cannot be done"), { permanent: true }); },
  flaky: () => { throw new Error("not now"); },
};
"""


class Shared:
    """A server with tokens, for all tests of this file: each has a queue of its own."""

    def __init__(self, directory: Path) -> None:
        self._house = House(f"sqlite:///{directory / 'house.db'}", directory)
        self.store = open_store(self._house.url)
        self.server: Process = self._house.serve()
        self.client_token = self._house.token("client")
        self.worker_token = self._house.token("worker")
        self.numbers = count(1)

    def restart(self) -> None:
        """Stop the server, and start another one at its address."""
        port = str(self.server.port)
        self.server.stop()
        self.server = self._house.serve("--port", port)

    def close(self) -> None:
        """Stop the server and check the history that it left."""
        self._house.close()
        report = verify(self.store)
        self.store.close()
        assert report.violated == [], [finding.first for finding in report.findings]


class Scene:
    """A queue of the shared server, and one reference worker at a time."""

    def __init__(self, shared: Shared, language: str, directory: Path) -> None:
        self._shared = shared
        self._queue = f"q{next(shared.numbers)}"
        self._environment = os.environ | {
            "TENURE_URL": shared.server.address,
            "TENURE_TOKEN": shared.worker_token,
        }
        self._log = directory / "worker.log"
        self._command = self._shell(directory) if language == "sh" else self._node(directory)
        self._worker: subprocess.Popen[bytes] | None = None

    def _shell(self, directory: Path) -> list[str]:
        handlers = directory / "handlers"
        handlers.mkdir()
        scripts = SCRIPTS | {"count": (WORKERS / "handlers" / "count").read_text()}
        for kind, text in scripts.items():
            (handlers / kind).write_text(text)
            (handlers / kind).chmod(0o755)
        return ["bash", str(WORKERS / "worker.sh"), self._queue, str(handlers)]

    def _node(self, directory: Path) -> list[str]:
        (directory / "handlers.mjs").write_text(FUNCTIONS)
        return ["node", str(WORKERS / "worker.mjs"), self._queue, str(directory / "handlers.mjs")]

    def work(self) -> None:
        with self._log.open("ab") as log:
            self._worker = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log
            )

    def stop(self) -> int:
        assert self._worker is not None
        self._worker.send_signal(signal.SIGTERM)
        return self._worker.wait(PATIENCE_S)

    def close(self) -> None:
        if self._worker is not None and self._worker.poll() is None:
            self._worker.kill()
            self._worker.wait()

    def enqueue(self, kind: str, payload: Any = None, **policy: Any) -> str:
        job_id = JOB.format(next(self._shared.numbers))
        # A long lease, unless a test waits for heartbeats: no lease has to end, and a busy machine
        # may be late.
        message = {
            "job_id": job_id,
            "queue": self._queue,
            "kind": kind,
            "payload": payload,
            "policy": {"lease_s": 60, **policy},
        }
        made = self._ask("POST", "/v1/jobs", message)
        assert made.status == 201, made
        return job_id

    def job(self, job_id: str) -> Any:
        return self._ask("GET", f"/v1/jobs/{job_id}?bodies=true").json["job"]

    def cancel(self, job_id: str, mode: str) -> None:
        self._ask("POST", f"/v1/jobs/{job_id}/cancel", {"request_id": "c", "mode": mode})

    def _ask(self, method: str, path: str, message: object = None) -> Answer:
        return self._shared.server.ask(method, path, message, token=self._shared.client_token)

    def until_status(self, job_id: str, status: str) -> Any:
        self.until(job_id, lambda row: row.status.value == status, f"is {status}")
        return self.job(job_id)

    def until(self, job_id: str, condition: Callable[[Job], bool], what: str) -> None:
        """Wait for the job's row, which is read in the store: 200 requests per second would keep
        the server busy that the worker talks to."""
        found = JobId(job_id)
        until(
            lambda: condition(self._shared.store.jobs.load([found]).jobs[found]), f"{job_id} {what}"
        )

    def restart_server(self) -> None:
        self._shared.restart()

    @property
    def said(self) -> str:
        return self._log.read_text()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    shared = Shared(tmp_path_factory.mktemp("shared"))
    yield shared
    shared.close()


@pytest.fixture(params=["mjs", "sh"])
def scene(request: pytest.FixtureRequest, shared: Shared, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(shared, request.param, tmp_path)
    yield scene
    scene.close()


def test_a_reference_worker_succeeds_fails_and_dead_letters(scene: Scene) -> None:
    jobs = [scene.enqueue("count", {"words": words}) for words in ("a b c", "", "d")]
    broken = scene.enqueue("broken")
    flaky = scene.enqueue("flaky", max_attempts=2, backoff={"initial_s": 0.1})

    scene.work()

    assert [scene.until_status(job, "succeeded")["result"] for job in jobs] == [3, 0, 1]
    failed = scene.until_status(broken, "failed")
    assert "cannot be done" in failed["error"]["message"]
    dead = scene.until_status(flaky, "dead_lettered")
    assert (dead["attempt"], dead["failures"]) == (2, 2)
    assert "not now" in dead["last_error"]["message"]
    assert scene.stop() == 0


def test_a_reference_worker_stops_a_handler_that_was_cancelled(scene: Scene) -> None:
    soft, hard = scene.enqueue("nap", lease_s=BEATEN_S), scene.enqueue("nap", lease_s=BEATEN_S)
    scene.work()

    scene.until_status(soft, "running")
    scene.cancel(soft, "soft")
    acknowledged = scene.until_status(soft, "cancelled")
    scene.until_status(hard, "running")
    scene.cancel(hard, "hard")
    until(lambda: "CANCELLED" in scene.said, "the worker never heard of it")
    after = scene.enqueue("count", {"words": "x"})

    assert acknowledged["last_owner"] is not None
    assert scene.until_status(after, "succeeded")["result"] == 1
    assert scene.stop() == 0
    assert "Killed" not in scene.said


def test_a_reference_worker_keeps_its_lease_and_hands_it_back_when_told_to_stop(
    scene: Scene,
) -> None:
    job = scene.enqueue("nap", lease_s=BEATEN_S)
    scene.work()
    scene.until_status(job, "running")
    scene.until(job, lambda row: row.hb_seq >= 4, "was renewed")  # longer than its lease

    code = scene.stop()

    handed_back = scene.job(job)
    assert code == 0
    assert "Killed" not in scene.said, "what was stopped on purpose is no news"
    assert handed_back["status"] == "queued"
    assert (handed_back["attempt"], handed_back["releases"], handed_back["failures"]) == (1, 1, 0)


def test_a_reference_worker_takes_up_its_work_when_its_server_comes_back(scene: Scene) -> None:
    first = scene.enqueue("count", {"words": "x"})
    scene.work()
    scene.until_status(first, "succeeded")

    scene.restart_server()

    assert scene.until_status(scene.enqueue("count", {"words": "x y"}), "succeeded")["result"] == 2


@pytest.mark.parametrize("name", ["worker.mjs", "worker.sh"])
def test_a_reference_worker_is_short_and_stands_in_the_table(name: str) -> None:
    text = (WORKERS / name).read_text()

    assert len(text.splitlines()) <= 110
    assert "tenure" not in "".join(line for line in text.splitlines() if "import" in line)
    assert f"[workers/{name}](workers/{name})" in (WORKERS.parent / "README.md").read_text()
