"""A store that hangs for longer than a lease costs no job an attempt. [O5] [O6]

In real time, with real databases. `make test` runs each case with short leases and a short outage;
`make proof` runs the times that were seen in the field.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec
import pytest

from tenure.clock import boot_now
from tenure.coordinator.outages import SHORTEST_OUTAGE, OutageWatch
from tenure.coordinator.service import Coordinator
from tenure.coordinator.sweeper import Sweeper
from tenure.core.claims import ClaimRequest
from tenure.core.commands import Command, Complete, Enqueue, Heartbeat, Start
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    JobId,
    Kind,
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    new_job_id,
    worker_actor,
)
from tenure.core.instants import Duration, seconds
from tenure.core.job import Job
from tenure.core.policy import Backoff, LeaseBounds, Policy
from tenure.core.validation import Limits
from tenure.core.verdicts import Grant, Verdict
from tenure.core.vocabulary import JobStatus, VerdictKind
from tenure.errors import StoreUnavailable
from tenure.ports import Store
from tenure.stores.postgres.store import PostgresStore
from tenure.stores.sqlite.store import SqliteStore
from tenure_conformance.spec import spec
from tests.support.hanging import SilentProxy, frozen, write_lock
from tests.support.postgres import PostgresCluster
from tests.support.waiting import until

pytestmark = pytest.mark.process

LIMIT_S = 120.0
QUEUE = QueueName("work")
LIMITS = Limits(lease=LeaseBounds(shortest_us=seconds(0.1), longest_us=seconds(120)))

Hang = Callable[[], AbstractContextManager[None]]


class Length(msgspec.Struct, frozen=True, kw_only=True):
    """How long things take in one variant of a case."""

    hang_s: float
    lease_s: float
    timeout_s: float = 10.0
    shortest_outage_us: Duration = SHORTEST_OUTAGE


SHORT = Length(hang_s=4.0, lease_s=2.5, timeout_s=1.5, shortest_outage_us=seconds(1))


class Process:
    """What a worker process has: a store, a coordinator, a sweeper, and leases to keep alive."""

    def __init__(self, name: str, store: Store, length: Length) -> None:
        self._name = name
        self._actor = worker_actor(name)
        self._numbers = iter(range(1, 1_000_000))
        self._lease_s = length.lease_s
        self._held: dict[JobId, Grant] = {}
        self.may_finish = Event()
        self._stopped = Event()
        watch = OutageWatch(boot_now, shortest_us=length.shortest_outage_us)
        self.coordinator = Coordinator(store, limits=LIMITS, outages=watch)
        self._sweeper = Sweeper(self.coordinator)
        self._thread = Thread(target=self._work, daemon=True)

    def enqueue(self, jobs: int) -> list[JobId]:
        policy = Policy(
            lease_us=seconds(self._lease_s), max_attempts=1, backoff=Backoff(cap_us=seconds(0.5))
        )
        now = self.coordinator.store.now()
        commands = [
            Enqueue(
                job_id=new_job_id(now, os.urandom(16)),
                namespace=DEFAULT_NAMESPACE,
                queue=QUEUE,
                kind=Kind("demo"),
                actor=client_actor("tests"),
                policy=policy,
            )
            for _ in range(jobs)
        ]
        self.coordinator.submit_many(commands).result()
        return [command.job_id for command in commands]

    def start(self, jobs: int) -> None:
        """Claim so many jobs and begin to keep them alive."""
        self._claim(jobs)
        assert len(self._held) == jobs
        self._sweeper.start()
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(LIMIT_S)
        self._sweeper.stop()
        self.coordinator.close()

    def _work(self) -> None:
        while not self._stopped.wait(self._lease_s / 4):
            try:
                self._report()
                if self.may_finish.is_set():
                    self._claim(100)
            except StoreUnavailable:
                continue  # as a worker does: the next report tells what became of its leases

    def _report(self) -> None:
        grants = list(self._held.values())
        report = self._finish if self.may_finish.is_set() else self._renew
        for grant, verdict in zip(grants, self._ask(map(report, grants)), strict=True):
            if verdict.kind is not VerdictKind.OK:
                del self._held[grant.job_id]

    def _claim(self, limit: int) -> None:
        number = next(self._numbers)
        request = ClaimRequest(
            namespace=DEFAULT_NAMESPACE,
            worker=WorkerId(self._name),
            actor=self._actor,
            queues=(QUEUE,),
            limit=limit,
            claim_seq=number,
            request_id=RequestId(f"{self._name}-claim-{number}"),
        )
        grants = self.coordinator.claim(request).grants
        self._ask(map(self._start, grants))
        self._held.update((grant.job_id, grant) for grant in grants)

    def _start(self, grant: Grant) -> Command:
        return Start(**self._about(grant), request_id=self._request_id())

    def _renew(self, grant: Grant) -> Command:
        return Heartbeat(**self._about(grant), hb_seq=next(self._numbers))

    def _finish(self, grant: Grant) -> Command:
        return Complete(**self._about(grant), request_id=self._request_id())

    def _about(self, grant: Grant) -> dict[str, Any]:
        return {"job_id": grant.job_id, "lease_id": grant.lease_id, "actor": self._actor}

    def _request_id(self) -> RequestId:
        return RequestId(f"{self._name}-{next(self._numbers)}")

    def _ask(self, commands: Iterable[Command]) -> list[Verdict]:
        """All of them at once, so that a slow machine keeps its leases."""
        answers = self.coordinator.submit_many(list(commands)).result()
        return [answer for answer in answers if isinstance(answer, Verdict)]


def jobs_after_a_hang(
    stores: list[Store], hang: Hang, length: Length, *, jobs: int
) -> dict[JobId, Job]:
    """The rows of jobs whose store hung while they ran, and whose workers went on afterwards."""
    processes = [Process(f"w{number}", store, length) for number, store in enumerate(stores)]
    ids = processes[0].enqueue(jobs)
    with ExitStack() as running:
        for process in processes:
            running.callback(process.stop)
            process.start(jobs // len(processes))
        time.sleep(0.3)  # sweepers and heartbeats are under way
        with hang():
            time.sleep(length.hang_s)  # the time that passes is what is tested
        for process in processes:
            process.may_finish.set()
        return _when_ended(stores[0], ids)


def _when_ended(store: Store, ids: list[JobId]) -> dict[JobId, Job]:
    def ended() -> dict[JobId, Job]:
        with suppress(StoreUnavailable):
            found = store.jobs.load(ids).jobs
            if all(job.finished_at is not None for job in found.values()):
                return found
        return {}

    return until(ended, "all jobs have ended", within_s=LIMIT_S)


def assert_every_job_got_one_credit(jobs: dict[JobId, Job], *, count: int) -> None:
    ends = [(job.status, job.failures, job.outage_credits) for job in jobs.values()]
    assert ends == [(JobStatus.SUCCEEDED, 0, 1)] * count


# --- SQLite: another connection holds the write lock --------------------------------------------


@spec("O5", "O6", "O10")
@pytest.mark.parametrize(
    "length",
    [
        pytest.param(SHORT, id="short"),
        pytest.param(Length(hang_s=15, lease_s=3), marks=pytest.mark.proof, id="as seen"),
    ],
)
def test_a_lock_on_the_file_costs_no_attempt(tmp_path: Path, length: Length) -> None:
    path = tmp_path / "tenure.db"
    with closing(SqliteStore(path, timeout_s=length.timeout_s)) as store:
        jobs = jobs_after_a_hang([store], lambda: write_lock(path), length, jobs=50)

    assert_every_job_got_one_credit(jobs, count=50)


# --- PostgreSQL: frozen, and behind a proxy that forwards nothing --------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresCluster]:
    """A server of these tests' own: the shared one must not be frozen."""
    with PostgresCluster.start(durable=False) as cluster:
        yield cluster


@spec("O5", "O6")
@pytest.mark.parametrize(
    "length",
    [
        pytest.param(SHORT, id="short"),
        pytest.param(Length(hang_s=87, lease_s=60), marks=pytest.mark.proof, id="as seen"),
    ],
)
def test_a_frozen_server_costs_no_attempt(cluster: PostgresCluster, length: Length) -> None:
    with closing(
        PostgresStore(cluster.create_database(), migrate=True, timeout_s=length.timeout_s)
    ) as store:
        jobs = jobs_after_a_hang([store], lambda: frozen(cluster.pid), length, jobs=12)

    assert_every_job_got_one_credit(jobs, count=12)


@spec("O5", "O6")
@pytest.mark.parametrize(
    "length",
    [
        pytest.param(SHORT, id="short"),
        pytest.param(Length(hang_s=45, lease_s=30), marks=pytest.mark.proof, id="30 s leases"),
    ],
)
def test_a_network_that_forwards_nothing_costs_no_attempt(
    cluster: PostgresCluster, length: Length
) -> None:
    direct = urlsplit(cluster.create_database())
    assert direct.port is not None
    with closing(SilentProxy(direct.port)) as proxy, ExitStack() as opened:
        place = f"{direct.netloc.rpartition(':')[0]}:{proxy.port}"
        url = urlunsplit(direct._replace(netloc=place))
        stores: list[Store] = [
            opened.enter_context(
                closing(PostgresStore(url, migrate=True, timeout_s=length.timeout_s))
            )
            for _ in range(2)
        ]
        jobs = jobs_after_a_hang(stores, proxy.silent, length, jobs=12)

    assert_every_job_got_one_credit(jobs, count=12)
