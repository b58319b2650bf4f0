"""Failover in the middle of work: several processes and threads, an asynchronous standby that lags.

Whatever is lost, no fencing token is given out twice, no worker is told that it did something
wrong, and all processes go on in one new epoch.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tenure.coordinator.sweeper import Sweeper
from tenure.core.failover import SETTLING
from tenure.core.ids import JobId
from tenure.core.instants import MICROSECONDS_PER_SECOND
from tenure.core.verdicts import Verdict
from tenure.core.vocabulary import VerdictKind
from tenure.errors import StoreUnavailable
from tenure.verify import verify
from tenure_conformance.spec import spec
from tests.support.failover import Pair, Process
from tests.support.waiting import joined

pytestmark = pytest.mark.process

THREADS = 3
PAUSE_S = 0.02


class Heard:
    """What the workers of all processes were told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.fences: dict[JobId, list[int]] = defaultdict(list)
        self.verdicts: list[Verdict] = []
        self.stop = threading.Event()

    def work(self, process: Process) -> None:
        """Enqueue, claim and report until the end, through every outage."""
        while not self.stop.is_set():
            try:
                process.enqueue()
                grants = process.claim(2)
                with self._lock:
                    for grant in grants:
                        self.fences[grant.job_id].append(grant.fence)
                for grant in grants:
                    verdicts = [process.heartbeat(grant), process.complete(grant)]
                    with self._lock:
                        self.verdicts += verdicts
            except StoreUnavailable:
                self.stop.wait(PAUSE_S)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.mark.proof
@spec("A6", "A8", "A9", "A10", "R2")
@pytest.mark.parametrize("lag_s", [0.05, 1.0])
def test_a_lossy_failover_amid_work(pair: Pair, lag_s: float) -> None:
    heard = Heard()
    processes = [pair.process(), pair.process()]
    sweepers = [Sweeper(process.coordinator) for process in processes]
    threads = [
        threading.Thread(target=heard.work, args=[process])
        for process in processes
        for _ in range(THREADS)
    ]
    for sweeper in sweepers:
        sweeper.start()
    for thread in threads:
        thread.start()
    time.sleep(1)  # not a wait for anything: the failover comes in the middle of work
    pair.standby.stop_following()
    time.sleep(lag_s)  # what is committed now is lost

    pair.fail_over()
    before = len(heard.fences)
    time.sleep(SETTLING / MICROSECONDS_PER_SECOND + 3)  # the time that is specified, and some work
    heard.stop.set()
    for thread in threads:
        joined(thread, "a thread that claims has ended")
    for sweeper in sweepers:
        sweeper.stop()

    assert len(heard.fences) > before, "nothing was granted after the failover"
    assert [fences for fences in heard.fences.values() if fences != sorted(set(fences))] == []
    rejected = [each for each in heard.verdicts if each.kind is VerdictKind.REJECTED]
    assert rejected == []
    assert {process.epoch() for process in processes} == {2}
    assert verify(processes[0].store).violated == []
