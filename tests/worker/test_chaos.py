"""Children, supervisors and clocks are killed and stopped at random while jobs run.

Every job ends well, no attempt runs beside another one of its job, and the history holds.
"""

import os
import signal
import time
from collections import defaultdict
from contextlib import closing, suppress
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from tenure.core.ids import JobId
from tenure.core.vocabulary import JobStatus
from tenure.wiring import open_store
from tests.worker.harness import POLICY, Shop, open_shop
from tests.worker.test_signals import Fleet, Runner

pytestmark = pytest.mark.process

JOBS = 300
WORKERS = 3
SECONDS = 40.0
PATIENT = replace(POLICY, max_attempts=1000, max_releases=1000)


def children_of(pid: int) -> list[int]:
    """The processes a supervisor started, its keeper too."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class Chaos:
    """Does one bad thing after the other."""

    def __init__(self, fleet: Fleet, random: Random) -> None:
        self._fleet = fleet
        self._random = random
        self.runners: list[Runner] = [self._start() for _ in range(WORKERS)]
        self.done: dict[str, int] = defaultdict(int)

    def _start(self) -> Runner:
        return self._fleet.start(grace_s=1.5, concurrency=2)

    def act(self) -> None:
        number = self._random.randrange(WORKERS)
        if self.runners[number].process.poll() is not None:  # it gave up, as one whose children
            self.runners[number] = self._start()  # die at every start should
        runner = self.runners[number]
        what = self._random.choice(["child", "child", "child", "kill", "stop", "drain"])
        self.done[what] += 1
        match what:
            case "child":
                victims = children_of(runner.process.pid)
                if victims:
                    _signal(self._random.choice(victims), signal.SIGKILL)
            case "kill":
                runner.end()
                self.runners[number] = self._start()
            case "stop":
                runner.signal(signal.SIGSTOP)
                time.sleep(self._random.choice([0.2, 1.5]))
                runner.signal(signal.SIGCONT)
            case "drain":
                runner.signal(signal.SIGTERM)
                self.runners[number] = self._start()
            case _:
                raise AssertionError(what)


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def overlaps(journal: Path) -> list[str]:
    """Jobs of which two attempts ran at once, by what their handlers wrote."""
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in journal.read_text().splitlines():
        job_id, _, began, ended = line.split()
        spans[job_id].append((float(began), float(ended)))
    return [
        job_id
        for job_id, times in spans.items()
        for (_, ended), (began, _) in zip(sorted(times), sorted(times)[1:], strict=False)
        if began < ended
    ]


@pytest.mark.proof
def test_jobs_survive_chaos_and_attempts_never_overlap(tmp_path: Path) -> None:
    seed = int(os.environ.get("TENURE_SEED", time.time_ns() % 1_000_000))
    random = Random(seed)
    journal = tmp_path / "journal"
    journal.touch()
    url = f"sqlite:///{tmp_path / 'chaos.db'}"
    with open_shop(open_store(url, migrate=True)) as shop, closing(Fleet(shop, url)) as fleet:
        ids = [
            shop.enqueue(
                "careful",
                {"amount_s": random.choice([0.05, 0.3, 1.5]), "journal": str(journal)},
                policy=PATIENT,
            )
            for _ in range(JOBS)
        ]
        chaos = Chaos(fleet, random)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            time.sleep(random.uniform(0.1, 0.6))
            chaos.act()
        statuses = [_settled(shop, job_id) for job_id in ids]

    assert set(statuses) == {JobStatus.SUCCEEDED}, f"seed {seed}, {dict(chaos.done)}"
    assert overlaps(journal) == [], f"seed {seed}, {dict(chaos.done)}"


def _settled(shop: Shop, job_id: JobId) -> JobStatus:
    return shop.wait(job_id, within_s=180).status
