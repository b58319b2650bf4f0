"""Every example, run as its head says: a real worker, the program beside it, and a proof."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.waiting import answer_of, until

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PATIENCE_S = 240.0
TENURE = [sys.executable, "-m", "tenure"]


class Place:
    """An empty directory with a store of its own, in which an example runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")]),
            "TENURE_URL": "sqlite:///tenure.db",
        }
        self._started: list[subprocess.Popen[str]] = []

    def start(self, words: list[str]) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            words, cwd=self.directory, env=self.environment, stdout=subprocess.PIPE, text=True
        )
        self._started.append(process)
        return process

    def work(self, app: str, *options: str) -> None:
        self.start([*TENURE, "worker", app, *options])

    def run(self, *words: str) -> str:
        ran = subprocess.run(
            words,
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    def program(self, name: str) -> str:
        return self.run(sys.executable, str(EXAMPLES / name))

    def jobs(self) -> list[dict[str, Any]]:
        listed = json.loads(self.run(*TENURE, "jobs", "ls", "--json", "-n", "500"))
        assert isinstance(listed, list)
        return listed

    def close(self) -> None:
        """Stop what was started, by pid."""
        for process in self._started:
            process.send_signal(signal.SIGTERM)
        for process in self._started:
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    try:
        yield place
    finally:
        place.close()
    place.run(*TENURE, "verify")


def test_an_order_and_its_job_are_committed_together_or_not_at_all(place: Place) -> None:
    place.environment["TENURE_URL"] = "sqlite:///shop.db"
    server = place.start([sys.executable, str(EXAMPLES / "web_app.py"), "0"])
    assert server.stdout is not None
    url = answer_of(server.stdout.readline, "the application says its address").strip()
    place.work("web_app:app")

    status, accepted = _post(url, {"item": "pen", "cents": 250})
    refused_status, _ = _post(url, {"item": "yacht", "cents": 99_000_000})
    orders = _orders_once_confirmed(url)

    assert (status, refused_status) == (201, 402)
    assert orders == [{"order": accepted["order"], "item": "pen", "status": "confirmed"}]
    assert [job["id"] for job in place.jobs()] == [accepted["job"]]


def _post(url: str, order: dict[str, object]) -> tuple[int, Any]:
    request = Request(url, data=json.dumps(order).encode())  # noqa: S310 - the example's own server
    try:
        with urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310 - likewise its own
            return answer.status, json.load(answer)
    except HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def _orders_once_confirmed(url: str) -> Any:
    def orders() -> Any:
        with urlopen(url, timeout=PATIENCE_S) as answer:  # noqa: S310 - the example's own server
            return json.load(answer)

    def are_confirmed() -> bool:
        return all(order["status"] == "confirmed" for order in orders())

    until(are_confirmed, "all orders are confirmed", seen=orders)
    return orders()


def test_the_agent_continues_where_it_was_and_stops_when_cancelled(place: Place) -> None:
    place.work("agent:app")

    said = place.program("agent.py")

    assert "answered in 2 attempts: What is a lease? 42." in said
    paid = re.findall(r"step (\d) was paid for in attempt (\d)", said)
    assert [int(step) for step, _ in paid] == [1, 2, 3, 4, 5, 6]
    assert [attempt for _, attempt in paid] == ["1", "1", "1", "2", "2", "2"]
    stopped = re.search(r"cancelled after (\d+) steps: too expensive", said)
    assert stopped is not None, said
    assert 3 <= int(stopped[1]) < 1000


def test_the_batch_ends_with_a_summary_that_is_right(place: Place) -> None:
    place.work("batch:app", "-c", "4")

    said = place.program("batch.py")

    assert "300 jobs enqueued" in said
    assert "  297 succeeded" in said
    assert "    3 failed" in said
    assert "   30 needed another attempt" in said
    expected = sum(number % 7 + 1 for number in range(1, 301) if number not in (50, 150, 250))
    assert f" {expected} words in total" in said
    for number in (50, 150, 250):
        assert f"failed: document {number} is empty" in said
    assert len(place.jobs()) == 300


def test_a_failed_payment_gives_the_seat_back(place: Place) -> None:
    place.work("compensation:app")

    said = place.program("compensation.py")

    assert "Ann has a seat" in said
    assert "Bob's trip failed: the card was declined" in said
    assert said.endswith("seats taken: Ann\n")
    undoing = [job for job in place.jobs() if job["kind"] == "give_back"]
    assert [job["origin_cause"] for job in undoing] == ["compensation"]


def test_every_example_is_in_the_table_and_stands_alone() -> None:
    table = (EXAMPLES / "README.md").read_text()

    for program in EXAMPLES.glob("*.py"):
        text = program.read_text()
        assert f"[{program.name}]({program.name})" in table
        assert f"tenure worker {program.stem}:app" in text
        assert f"python {program.name}" in text
        assert len(text.splitlines()) <= 90
