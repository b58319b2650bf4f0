"""Eight processes fire the same schedules and are killed at random: one job for each occurrence."""

import subprocess
import sys
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any

import pytest

from tenure.coordinator.service import Coordinator
from tenure.core.ids import DEFAULT_NAMESPACE, Kind, QueueName, ScheduleName, operator_actor
from tenure.core.instants import seconds
from tenure.core.schedules import PauseSchedule, PutSchedule, Schedule, ScheduleSpec
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import CatchUp, Overlap
from tenure.verify import verify
from tenure.wiring import open_store
from tenure_conformance.spec import spec
from tests.chaos.processes import kill, wait_until_it_works

pytestmark = [pytest.mark.proof, pytest.mark.process]

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 8
OCCURRENCES = 200
SCHEDULES = 10
WITHIN_S = 600.0
SECOND = seconds(1)


class Firers:
    """Processes that fire; one of them is killed now and then, and another one started."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._random = Random(seed)
        self._alive: list[subprocess.Popen[bytes]] = []
        self.kills = 0

    def start(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.firer", self._url],
            cwd=ROOT,
            stdout=subprocess.PIPE,
        )
        self._alive.append(process)

    def wait(self) -> None:
        """Until all of them work."""
        for process in self._alive:
            wait_until_it_works(process, "a firer")

    def kill_one(self) -> None:
        """Whichever: also one that does not work yet."""
        kill(self._alive.pop(self._random.randrange(len(self._alive))))
        self.kills += 1

    def pause(self) -> None:
        sleep(self._random.uniform(1.0, 4.0))  # a process needs some seconds until it fires

    def end(self) -> None:
        while self._alive:
            kill(self._alive.pop())


@spec("SC1", "SC2", "SC3", "I28")
def test_each_occurrence_has_one_job_whoever_is_killed(url: str) -> None:
    store = open_store(url, migrate=True)
    coordinator = Coordinator(store)
    names = [ScheduleName(f"s{number}") for number in range(SCHEDULES)]
    first = {name: _put(coordinator, name).next_at for name in names}
    firers = Firers(url, seed=1)
    try:
        for _ in range(PROCESSES):
            firers.start()
        firers.wait()
        give_up = monotonic() + WITHIN_S
        while _dealt_with(coordinator) < OCCURRENCES or firers.kills < PROCESSES:
            assert monotonic() < give_up, store.schedules.page(DEFAULT_NAMESPACE)
            firers.kill_one()
            firers.start()
            firers.pause()
    finally:
        firers.end()
    for name in names:
        _ask(coordinator, PauseSchedule(**_key(name)))

    found = {each.name: each for each in store.schedules.page(DEFAULT_NAMESPACE)}
    for name in names:
        times = sorted(_times(coordinator, name))
        begin, last = first[name], found[name].last_at
        assert begin is not None
        assert last is not None
        assert times == list(range(begin, last + 1, SECOND)), name
        assert (found[name].fired, found[name].missed) == (len(times), 0)
    report = verify(store)
    coordinator.close()
    store.close()
    assert report.holds, report.violated
    assert report.jobs >= OCCURRENCES


def _key(name: ScheduleName) -> dict[str, Any]:
    return {"namespace": DEFAULT_NAMESPACE, "name": name, "actor": operator_actor("tests")}


def _put(coordinator: Coordinator, name: ScheduleName) -> Schedule:
    spec_ = ScheduleSpec(
        kind=Kind("tick"),
        queue=QueueName("default"),
        every_us=SECOND,
        catch_up=CatchUp.ALL,
        overlap=Overlap.ALLOW,
    )
    return _ask(coordinator, PutSchedule(**_key(name), spec=spec_))


def _ask(coordinator: Coordinator, command: PutSchedule | PauseSchedule) -> Schedule:
    reply = coordinator.change_schedule(command)
    assert reply.schedule is not None
    return reply.schedule


def _dealt_with(coordinator: Coordinator) -> int:
    return sum(each.fired for each in coordinator.store.schedules.page(DEFAULT_NAMESPACE))


def _times(coordinator: Coordinator, name: ScheduleName) -> list[int]:
    wanted = JobFilter(namespace=DEFAULT_NAMESPACE, schedule=name, limit=100_000, bodies=False)
    return [job.scheduled_for or 0 for job in coordinator.store.views.jobs(wanted).jobs]
