"""Tenure's side: enqueue, drain, one-job callers, and the check that the history still holds.

Every worker is a thread with a session of its own, as a worker process would be; it talks to the
coordinator the way every edge does. Verification is never inside a timed part.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Protocol

from bench.harness import BrokenHistory
from tenure.coordinator.service import Coordinator
from tenure.core.claims import ClaimAnswer, ClaimRequest
from tenure.core.commands import Command, Complete, Enqueue, Start
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    ENTROPY_BYTES,
    Kind,
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    ordered_job_id,
    worker_actor,
)
from tenure.core.instants import Instant
from tenure.core.verdicts import Answer, Grant, Reply, Verdict
from tenure.core.vocabulary import JobStatus, VerdictKind
from tenure.ports import Store
from tenure.verify import verify

QUEUE = QueueName("bench")
KIND = Kind("noop")
PRODUCER = client_actor("bench")


class Service(Protocol):
    """What a worker of these benchmarks calls: the coordinator, or something compared with it."""

    def report(self, commands: Sequence[Command]) -> list[Answer]:
        """Submit commands and wait for their answers."""

    def claim(self, request: ClaimRequest) -> ClaimAnswer:
        """Claim and wait."""


class Coordinated:
    """The coordinator, as every edge uses it."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.claim = coordinator.claim

    def report(self, commands: Sequence[Command]) -> list[Answer]:
        """Submit and wait."""
        return self._coordinator.submit_many(commands).result()


class Worker:
    """One worker session: claims, starts and completes no-op jobs; with `claims_start`, its claims
    start what they are granted, as those of `tenure worker` do."""

    def __init__(
        self,
        service: Service,
        name: str,
        *,
        kinds: tuple[Kind, ...] | None = None,
        queues: tuple[QueueName, ...] = (QUEUE,),
        claims_start: bool = False,
    ) -> None:
        self._service = service
        self._name = name
        self._kinds = kinds
        self._queues = queues
        self._claims_start = claims_start
        self._actor = worker_actor(name)
        self._claims = count(1)

    def run_batch(self, limit: int) -> int:
        """Up to `limit` jobs from claim to completion; how many there were."""
        grants = self.claim(limit)
        if grants:
            self.finish(grants)
        return len(grants)

    def finish(self, grants: Sequence[Grant]) -> None:
        """Start what was claimed, unless the claim did, and complete it."""
        if not self._claims_start:
            self._start(grants)
        accepted(
            self._service.report(
                [
                    Complete(
                        job_id=grant.job_id,
                        lease_id=grant.lease_id,
                        actor=self._actor,
                        request_id=RequestId(f"{grant.lease_id}:complete"),
                    )
                    for grant in grants
                ]
            )
        )

    def _start(self, grants: Sequence[Grant]) -> None:
        accepted(
            self._service.report(
                [
                    Start(
                        job_id=grant.job_id,
                        lease_id=grant.lease_id,
                        actor=self._actor,
                        request_id=RequestId(f"{grant.lease_id}:start"),
                    )
                    for grant in grants
                ]
            )
        )

    def claim(self, limit: int) -> tuple[Grant, ...]:
        """Up to `limit` grants."""
        number = next(self._claims)
        answer = self._service.claim(
            ClaimRequest(
                namespace=DEFAULT_NAMESPACE,
                worker=WorkerId(self._name),
                actor=self._actor,
                queues=self._queues,
                kinds=self._kinds,
                limit=limit,
                claim_seq=number,
                request_id=RequestId(f"{self._name}:{number}"),
                start=self._claims_start,
            )
        )
        if answer.cause is not None:
            raise BrokenHistory(f"a claim was refused: {answer.cause}")
        return answer.grants


def accepted(answers: Sequence[Answer]) -> None:
    """Fail unless every answer says yes: a refused report costs less than an accepted one."""
    for answer in answers:
        if isinstance(answer, Verdict):
            is_ok = answer.kind in (VerdictKind.OK, VerdictKind.COMMITTED)
        else:
            is_ok = isinstance(answer, Reply) and answer.is_ok
        if not is_ok:
            raise BrokenHistory(f"the coordinator refused: {answer}")


def new_jobs(jobs: int) -> list[Enqueue]:
    """Commands for this many small jobs, with ids as a client makes them."""
    now = Instant(time.time_ns() // 1000)
    luck = os.urandom(ENTROPY_BYTES * jobs)
    return [
        Enqueue(
            job_id=ordered_job_id(
                Instant(now + number), luck[number * ENTROPY_BYTES : (number + 1) * ENTROPY_BYTES]
            ),
            namespace=DEFAULT_NAMESPACE,
            queue=QUEUE,
            kind=KIND,
            actor=PRODUCER,
        )
        for number in range(jobs)
    ]


def enqueue(service: Service, *, jobs: int, batch: int, producers: int = 1) -> float:
    """Seconds that `producers` threads need for `jobs` jobs, one call per batch."""
    shares = [jobs // producers + (number < jobs % producers) for number in range(producers)]

    def produce(number: int) -> None:
        for start in range(0, shares[number], batch):
            accepted(service.report(new_jobs(min(batch, shares[number] - start))))

    return in_threads(producers, produce)


def drain(
    service: Service, *, jobs: int, threads: int, batch: int, claims_start: bool = False
) -> float:
    """Seconds until `threads` worker sessions have completed all `jobs` jobs."""
    done = [0] * threads
    session = os.urandom(4).hex()

    def work(number: int) -> None:
        worker = Worker(service, f"bench-{session}-{number}", claims_start=claims_start)
        while completed := worker.run_batch(batch):
            done[number] += completed

    elapsed_s = in_threads(threads, work)
    if sum(done) != jobs:
        raise BrokenHistory(f"{sum(done)} of {jobs} jobs were completed")
    return elapsed_s


def in_threads(threads: int, body: Callable[[int], None]) -> float:
    """Run `body` in so many threads that begin together; seconds until the last one is done."""
    barrier = threading.Barrier(threads + 1)
    failures: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            body(number)
        except BaseException as failure:  # raised again by the caller's thread, below
            failures.append(failure)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    barrier.wait()
    began_s = time.perf_counter()
    for thread in running:
        thread.join()
    elapsed_s = time.perf_counter() - began_s
    if failures:
        raise failures[0]
    return elapsed_s


def check_history(store: Store, *, jobs: int, status: JobStatus | None = None) -> None:
    """Every invariant over the whole result: speed is never measured on a broken history."""
    report = verify(store)
    if not report.holds:
        raise BrokenHistory(f"after a run these invariants are violated: {report.violated}")
    if report.jobs != jobs:
        raise BrokenHistory(f"{report.jobs} jobs were found where {jobs} were enqueued")
    if status is not None:
        for record in store.audit.records(page_size=1000):
            if record.job is None or record.job.status is not status:
                raise BrokenHistory(f"job {record.job_id} is not {status} after the run")
