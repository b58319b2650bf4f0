"""Flows are made, run, cancelled, redriven and purged at the same moment by processes that are
killed: none gets stuck, and the log holds."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from time import sleep

import pytest

from tenure.coordinator.service import Coordinator
from tenure.coordinator.sweeper import Sweeper
from tenure.core.commands import Cancel
from tenure.core.ids import DEFAULT_NAMESPACE, JobId, RequestId, operator_actor
from tenure.core.views.job_search import JobFilter
from tenure.core.vocabulary import CancelMode, EventCause, EventType, JobStatus
from tenure.ports import Store
from tenure.verify import verify
from tenure.wiring import open_store
from tenure_conformance.harness import race
from tenure_conformance.spec import spec
from tests.chaos.flow_hand import LIMITS, new_flow
from tests.chaos.processes import kill, wait_until_it_works
from tests.server.processes import Process
from tests.support.commands import ROOT, TENURE
from tests.support.waiting import until

pytestmark = pytest.mark.process

ROLES = ("make", "work", "work", "operate", "operate", "purge", "sweep")
KILLS = 30
ENOUGH = 3
"""So many jobs have to have been redriven, expired and reported."""
PAUSE_S = (0.2, 1.5)


class Hands:
    """Processes with a role each; one is killed now and then, and another one takes its place."""

    def __init__(self, url: str, address: str | None, seed: int) -> None:
        """`address` is that of a server, if all but retention goes through one."""
        self._url, self._address = url, address
        self._random = Random(seed)
        self._alive: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._seeds = iter(range(seed * 1000, seed * 1000 + 1000))

    def start(self, role: str) -> None:
        near = self._address is None or role in ("purge", "sweep")
        url = self._url if near or self._address is None else self._address
        words = ["-m", "tests.chaos.flow_hand", role, url, str(next(self._seeds))]
        process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE)
        self._alive.append((role, process))

    def wait(self) -> None:
        """Until all of them work."""
        for role, process in self._alive:
            wait_until_it_works(process, role)

    def kill_one(self) -> None:
        """Whichever: also one that does not work yet."""
        self.check()
        role, process = self._alive.pop(self._random.randrange(len(self._alive)))
        kill(process)
        self.start(role)

    def check(self) -> None:
        """Nobody has ended by itself: that would be an error that it did not expect."""
        for role, process in self._alive:
            assert process.poll() is None, f"{role} ended by itself"

    def pause(self) -> None:
        sleep(self._random.uniform(*PAUSE_S))  # kills must fall on odd moments

    def end(self) -> None:
        while self._alive:
            kill(self._alive.pop()[1])


def end_all(store: Store) -> None:
    """Cancel what is left, so that every flow ends by what sweepers do, and nothing else."""
    coordinator = Coordinator(store, limits=LIMITS)
    sweeper = Sweeper(coordinator)

    def is_done() -> bool:
        sweeper.sweep_once()
        waiting = (JobStatus.QUEUED, JobStatus.CLAIMED, JobStatus.RUNNING, JobStatus.STALLED)
        wanted = JobFilter(namespace=DEFAULT_NAMESPACE, statuses=waiting, limit=200)
        for job in store.views.jobs(wanted).jobs:
            coordinator.execute(
                Cancel(
                    job_id=job.id,
                    actor=operator_actor("end"),
                    request_id=RequestId(f"end-{job.id}"),
                    mode=CancelMode.HARD,
                )
            )
        found = store.flows.page(DEFAULT_NAMESPACE, before=None, limit=500)
        return not any(each.is_live for each in found)

    until(is_done, "every flow has ended", within_s=120)
    coordinator.close()


class Seen:
    """Which jobs were seen to be what, before they were purged."""

    def __init__(self) -> None:
        self.jobs: dict[str, set[JobId]] = {"redriven": set(), "expired": set(), "reported": set()}

    def look(self, store: Store) -> None:
        """At every log that there is now. Each job became ready at most once."""
        for record in store.audit.records(page_size=200):
            types = [event.type for event in record.events]
            assert types.count(EventType.READY) <= 1, record
            for event in record.events:
                match event.cause:
                    case EventCause.REDRIVE:
                        self.jobs["redriven"].add(record.job_id)
                    case EventCause.EXPIRED:
                        self.jobs["expired"].add(record.job_id)
                    case EventCause.DEAD_LETTER:
                        self.jobs["reported"].add(record.job_id)
                    case _:
                        pass


def fight(hands: Hands, disturb: Callable[[int], None]) -> None:
    """Let them all work at once, and kill some."""
    try:
        for role in ROLES:
            hands.start(role)
        hands.wait()
        for number in range(KILLS):
            hands.kill_one()
            hands.pause()
            disturb(number)
        hands.check()
    finally:
        hands.end()


def assert_it_holds(store: Store, seen: Seen) -> None:
    seen.look(store)
    end_all(store)
    report = verify(store)
    assert report.holds, report.violated
    counts = {name: len(jobs) for name, jobs in seen.jobs.items()}
    assert min(counts.values()) >= ENOUGH, counts


DIES_BEFORE_THE_RELEASE = """
import os, signal, sys
from tenure.coordinator import service
from tenure.wiring import open_store
from tests.chaos.flow_hand import LIMITS, Hand

service.unblock_at_once = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
coordinator = service.Coordinator(open_store(sys.argv[1]), limits=LIMITS)
hand = Hand(coordinator, "dying", 1)  # with this seed its first job succeeds
while True:
    hand.work()
"""
"""A worker that dies when it has committed the end of a parent and has not released its child."""


@spec("FL5", "FL4")
def test_a_child_is_released_once_if_its_parents_process_dies_after_the_commit(url: str) -> None:
    store = open_store(url, migrate=True)
    coordinator = Coordinator(store, limits=LIMITS)
    command = new_flow(store.now(), {"first": (), "second": ("first",)})
    coordinator.execute(command)
    first, second = (member.job.job_id for member in command.members)
    dying = subprocess.run([sys.executable, "-c", DIES_BEFORE_THE_RELEASE, url], cwd=ROOT)
    assert dying.returncode == -signal.SIGKILL
    assert statuses(store, first, second) == [JobStatus.SUCCEEDED, JobStatus.WAITING]

    rivals = [Coordinator(open_store(url), limits=LIMITS) for _ in range(3)]
    race(*(Sweeper(each).sweep_once for each in rivals))

    assert statuses(store, second) == [JobStatus.QUEUED]
    types = [event.type for event in store.events.load([second])[second]]
    assert types == [EventType.ENQUEUED, EventType.READY]
    assert verify(store).holds
    for each in rivals:
        each.close()
        each.store.close()
    coordinator.close()
    store.close()


def statuses(store: Store, *ids: JobId) -> list[JobStatus]:
    jobs = store.jobs.load(ids).jobs
    return [jobs[each].status for each in ids]


@pytest.mark.proof
@spec("FL5", "FL6", "FL10", "FL11", "I32")
def test_cancels_expiries_redrives_and_purges_of_the_same_flows(url: str) -> None:
    store = open_store(url, migrate=True)
    seen = Seen()

    fight(Hands(url, None, seed=1), lambda _: seen.look(store))

    assert_it_holds(store, seen)
    store.close()


@pytest.mark.proof
@spec("FL5", "FL10", "FL14", "I32")
def test_the_same_through_a_server_that_is_killed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'chaos.db'}"
    store = open_store(url, migrate=True)
    seen = Seen()
    environment = os.environ | {"TENURE_URL": url, "TENURE_LEASE_BOUNDS": "200ms,120s"}
    command = [*TENURE, "serve", "--no-auth", "--port"]
    server = Process([*command, "0"], environment, tmp_path)

    def restart(number: int) -> None:
        nonlocal server
        seen.look(store)
        if number % 10 == 9:
            assert "Traceback" not in server.log
            server.popen.kill()
            server.close()
            server = Process([*command, str(server.port)], environment, tmp_path)

    try:
        fight(Hands(url, server.address, seed=2), restart)
    finally:
        server.close()

    assert_it_holds(store, seen)
    store.close()
