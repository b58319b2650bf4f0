"""The demo's worker: a process of its own that claims, starts, heartbeats and reports.

Small on purpose: it shows the contract from a worker's side. It is told what to do by its jobs'
payloads, and says on stdout, one JSON line each, what it did and what it was answered.
"""

import os
import sys
import time
from itertools import count

import msgspec

from tenure.coordinator.service import Coordinator
from tenure.coordinator.sweeper import Sweeper
from tenure.core.claims import ClaimRequest
from tenure.core.commands import Complete, Fail, Heartbeat, Start
from tenure.core.ids import DEFAULT_NAMESPACE, QueueName, RequestId, WorkerId, worker_actor
from tenure.core.job import JobError, Progress
from tenure.core.verdicts import Grant, Verdict
from tenure.core.vocabulary import ErrorClass, Stage, VerdictKind
from tenure.wiring import limits_from_environment, open_store

QUEUE = QueueName("demo")
POLL_S = 0.05
STEP_S = 0.1


class Task(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a demo job asks its worker to do."""

    steps: int = 1
    fails: int = 0  # how many attempts fail before one succeeds
    is_poison: bool = False


class DemoWorker:
    """One worker, one job at a time."""

    def __init__(self, url: str, name: str) -> None:
        self._name = WorkerId(name)
        self._actor = worker_actor(name)
        self._coordinator = Coordinator(open_store(url), limits=limits_from_environment())
        self._sweeper = Sweeper(self._coordinator)
        self._numbers = count(1)

    def run(self) -> None:
        """Work until somebody stops the process."""
        self._sweeper.start()
        self.say("ready", "")
        while True:
            number = next(self._numbers)
            answer = self._coordinator.claim(
                ClaimRequest(
                    namespace=DEFAULT_NAMESPACE,
                    worker=self._name,
                    actor=self._actor,
                    queues=(QUEUE,),
                    limit=1,
                    claim_seq=number,
                    request_id=RequestId(f"{self._name}:{number}"),
                )
            )
            for grant in answer.grants:
                self._work(grant)
            if not answer.grants:
                time.sleep(POLL_S)

    def _work(self, grant: Grant) -> None:
        task = msgspec.json.decode(grant.job.payload, type=Task)
        self.say("claimed", grant.job_id, attempt=grant.attempt)
        job_id, lease_id, actor = grant.job_id, grant.lease_id, self._actor
        self._coordinator.execute(
            Start(job_id=job_id, lease_id=lease_id, actor=actor, request_id=self._request())
        )
        for step in range(1, task.steps + 1):
            time.sleep(STEP_S)
            progress = Progress(done=step, total=task.steps)
            verdict = self._coordinator.execute(
                Heartbeat(
                    job_id=job_id, lease_id=lease_id, actor=actor, hb_seq=step, progress=progress
                )
            )
            assert isinstance(verdict, Verdict)
            if verdict.kind is not VerdictKind.OK:
                self.say("stopped", job_id, verdict=verdict)
                return
            if verdict.cancel is not None:
                self._report_failure(grant, "Cancelled", "stopped on request")
                return
        if task.is_poison:
            self._report_failure(grant, "ValueError", "this payload cannot be processed")
        elif grant.attempt <= task.fails:
            self._report_failure(grant, "TimeoutError", "the upstream did not answer")
        else:
            request_id = self._request()
            report = Complete(
                job_id=job_id,
                lease_id=lease_id,
                actor=actor,
                request_id=request_id,
                result=b'{"by":"%s"}' % self._name.encode(),
            )
            self.say("reported", job_id, verdict=self._coordinator.execute(report))

    def _report_failure(self, grant: Grant, name: str, message: str) -> None:
        error = JobError(
            error_class=ErrorClass.UNCLASSIFIED, type=name, message=message, stage=Stage.EXEC
        )
        report = Fail(
            job_id=grant.job_id,
            lease_id=grant.lease_id,
            actor=self._actor,
            request_id=self._request(),
            error=error,
        )
        self.say("reported", grant.job_id, verdict=self._coordinator.execute(report))

    def _request(self) -> RequestId:
        return RequestId(f"{self._name}:{os.urandom(8).hex()}")

    def say(self, what: str, job_id: str, **facts: object) -> None:
        """One line for the demo to show."""
        line = {"worker": self._name, "what": what, "job_id": job_id, **facts}
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    DemoWorker(sys.argv[1], sys.argv[2]).run()
