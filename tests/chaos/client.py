"""A process that does everything at once and writes down what it was told, until it is killed.

Run as `python -m tests.chaos.client URL NAME ACKS SEED ROUNDS`. It prints `going` once it works,
so that its murderer knows when to begin, and `done` if it lived through its rounds.
"""

import os
import sys
from pathlib import Path
from random import Random

from tenure.coordinator.service import Coordinator
from tenure.core.claims import ClaimRequest
from tenure.core.commands import Cancel, Complete, Enqueue, Fail, Release, Start
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
from tenure.core.instants import seconds
from tenure.core.job import JobError
from tenure.core.policy import Backoff, LeaseBounds, Policy
from tenure.core.validation import Limits
from tenure.core.verdicts import Grant, Reply, Verdict
from tenure.core.vocabulary import CancelMode, ErrorClass
from tenure.verify import AckWriter, answer_line, grant_lines, request_line
from tenure.wiring import open_store

QUEUE = QueueName("chaos")
LIMITS = Limits(lease=LeaseBounds(shortest_us=seconds(0.2), longest_us=seconds(120)))
POLICY = Policy(
    lease_us=seconds(1),
    max_attempts=20,
    backoff=Backoff(initial_us=seconds(0.01), cap_us=seconds(0.05)),
)
KEYS = (*[None] * 20, *[str(number) for number in range(20)])
"""The concurrency keys of the jobs: half of them have none."""
RATE_KEYS = (None, "a", "b", "c")
"""The rate keys of the jobs."""
Report = Start | Complete | Fail | Release


def say(word: str) -> None:
    """One line to whoever started this process."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


class ChaosClient:
    """Producer and worker in one."""

    def __init__(self, url: str, name: str, acks: Path, seed: int) -> None:
        self._store = open_store(url)
        self._coordinator = Coordinator(self._store, limits=LIMITS)
        self._acks = AckWriter(acks)
        self._random = Random(seed)
        self._name = name
        self._worker = worker_actor(name)
        self._session = WorkerId(f"{name}-{os.getpid()}")
        self._numbers = iter(range(1, 10**9))

    def run(self, rounds: int) -> None:
        """One round: enqueue some, cancel one, claim some, report on them."""
        for number in range(rounds):
            made = self._enqueue(self._random.randint(1, 8))
            if self._random.random() < 0.3:
                self._cancel(self._random.choice(made))
            self._work(self._claim(self._random.randint(1, 8)))
            if number == 0:
                say("going")
        say("done")

    def _request_id(self) -> RequestId:
        return RequestId(f"{self._session}:{next(self._numbers)}")

    def _enqueue(self, amount: int) -> list[JobId]:
        commands = [
            Enqueue(
                job_id=new_job_id(self._acks.clock(), os.urandom(16)),
                namespace=DEFAULT_NAMESPACE,
                queue=QUEUE,
                kind=Kind("chaos"),
                actor=client_actor(self._name),
                policy=POLICY,
                payload=b'{"by":"%s"}' % self._name.encode(),
                concurrency_key=self._random.choice(KEYS),
                rate_key=self._random.choice(RATE_KEYS),
            )
            for _ in range(amount)
        ]
        self._acks.write(*[request_line(command, at=self._acks.clock()) for command in commands])
        answers = self._coordinator.submit_many(commands).result()
        for command, answer in zip(commands, answers, strict=True):
            assert isinstance(answer, Reply)
            self._acks.write(answer_line(command, answer, at=self._acks.clock()))
        return [command.job_id for command in commands]

    def _cancel(self, job_id: JobId) -> None:
        mode = self._random.choice(list(CancelMode))
        command = Cancel(
            job_id=job_id,
            actor=client_actor(self._name),
            request_id=self._request_id(),
            mode=mode,
        )
        self._acks.write(request_line(command, at=self._acks.clock()))
        answer = self._coordinator.execute(command)
        assert isinstance(answer, Reply)
        self._acks.write(answer_line(command, answer, at=self._acks.clock()))

    def _claim(self, limit: int) -> tuple[Grant, ...]:
        number = next(self._numbers)
        request = ClaimRequest(
            namespace=DEFAULT_NAMESPACE,
            worker=self._session,
            actor=self._worker,
            queues=(QUEUE,),
            limit=limit,
            claim_seq=number,
            request_id=RequestId(f"{self._session}:{number}"),
        )
        grants = self._coordinator.claim(request).grants
        self._acks.write(*grant_lines(request, grants, at=self._acks.clock()))
        return grants

    def _work(self, grants: tuple[Grant, ...]) -> None:
        starts = [grant for grant in grants if self._random.random() < 0.8]
        self._report(
            [
                Start(
                    job_id=grant.job_id,
                    lease_id=grant.lease_id,
                    actor=self._worker,
                    request_id=self._request_id(),
                )
                for grant in starts
            ]
        )
        self._report([self._outcome(grant) for grant in grants if self._random.random() < 0.9])

    def _outcome(self, grant: Grant) -> Report:
        job_id, lease_id, actor = grant.job_id, grant.lease_id, self._worker
        request_id, choice = self._request_id(), self._random.random()
        if choice < 0.7:
            return Complete(job_id=job_id, lease_id=lease_id, actor=actor, request_id=request_id)
        if choice < 0.8:
            return Release(job_id=job_id, lease_id=lease_id, actor=actor, request_id=request_id)
        kind = self._random.choice(list(ErrorClass))
        error = JobError(error_class=kind, type="Chaos", message="as planned")
        return Fail(
            job_id=job_id, lease_id=lease_id, actor=actor, request_id=request_id, error=error
        )

    def _report(self, commands: list[Report]) -> None:
        self._acks.write(*[request_line(command, at=self._acks.clock()) for command in commands])
        answers = self._coordinator.submit_many(commands).result()
        for command, answer in zip(commands, answers, strict=True):
            assert isinstance(answer, Verdict)
            self._acks.write(answer_line(command, answer, at=self._acks.clock()))


if __name__ == "__main__":
    url, name, acks, seed, rounds = sys.argv[1:]
    ChaosClient(url, name, Path(acks), int(seed)).run(int(rounds))
