"""A run that asks everything once, in order, and what it leaves behind.

Whoever asks repeats what got no answer, as real callers do: clients and operators by the remote
coordinator's own rules, the worker by this loop, always under the same ids. Time stands still: what
would have to wait for a lease to end would never end.
"""

from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any, TypeVar

from msgspec import to_builtins

from tenure.coordinator.service import Coordinator
from tenure.core.artifacts import ArtifactUpload, AttemptOutput
from tenure.core.claims import ClaimRequest
from tenure.core.commands import (
    Cancel,
    Command,
    Complete,
    DeadLetter,
    Discard,
    Enqueue,
    Fail,
    Heartbeat,
    Redrive,
    Release,
    Requeue,
    Stall,
    Start,
    Sweep,
)
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Actor,
    JobId,
    Kind,
    QueueName,
    RequestId,
    WorkerId,
)
from tenure.core.instants import Duration, seconds
from tenure.core.job import JobError, Progress
from tenure.core.policy import Policy
from tenure.core.verdicts import Grant, Reply, Verdict
from tenure.core.vocabulary import (
    CancelMode,
    ErrorClass,
    EventCause,
    OnLost,
    ReasonCode,
    Role,
    VerdictKind,
)
from tenure.core.workers import WorkerProcess
from tenure.errors import StoreUnavailable
from tenure.ports import Store
from tenure.remote.coordinator import RemoteCoordinator
from tenure.stores.sqlite.memory import MemoryStore
from tests.remote.serving import connect, new_token
from tests.support.coordinators import VirtualClock

QUEUE = QueueName("work")
KIND = Kind("task")
WORKER = WorkerId("w-1")
NOBODY = Actor("worker:nobody")  # who acts is the token's holder, whatever a command says
OPERATOR = Actor("operator:nobody")
HELD = 6
MOST_TRIES = 10

_T = TypeVar("_T")


def job_id(number: int) -> JobId:
    return JobId(f"01900000-0000-7000-8000-{number:012x}")


def new_job(number: int, **fields: Any) -> Enqueue:
    defaults: dict[str, Any] = {
        "job_id": job_id(number),
        "namespace": DEFAULT_NAMESPACE,
        "queue": QUEUE,
        "kind": KIND,
        "actor": NOBODY,
        "payload": b'{"n":%d}' % number,
    }
    return Enqueue(**(defaults | fields))


def claim_of(number: int, **fields: Any) -> ClaimRequest:
    defaults: dict[str, Any] = {
        "namespace": DEFAULT_NAMESPACE,
        "worker": WORKER,
        "actor": NOBODY,
        "queues": (QUEUE,),
        "limit": 1,
        "claim_seq": number,
        "request_id": RequestId(f"claim-{number}"),
    }
    return ClaimRequest(**(defaults | fields))


class World:
    """A store in which no time passes, and its coordinator."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store: Store = MemoryStore(clock=self.clock)
        luck = count(1)
        self.coordinator = Coordinator(
            self.store,
            entropy=lambda size: next(luck).to_bytes(4) * (size // 4 + 1),
            monotonic=self.clock,
        )
        self.tokens = {
            role: new_token(self.store, role, "script")
            for role in (Role.CLIENT, Role.WORKER, Role.OPERATOR)
        }

        self._hold(HELD)

    def _hold(self, number: int) -> None:
        """A job that was lost and waits for an operator, before the run begins."""
        queue = QueueName("held")
        self.coordinator.execute(new_job(number, queue=queue, policy=Policy(on_lost=OnLost.HOLD)))
        claim = claim_of(1, worker=WorkerId("gone"), queues=(queue,))
        [grant] = self.coordinator.claim(claim).grants
        self.clock.advance(grant.ttl_us / 1_000_000)
        self.coordinator.execute(Sweep(job_id=grant.job_id))

    def close(self) -> None:
        self.coordinator.close()
        self.store.close()

    def left_behind(self) -> dict[str, Any]:
        """Rows, logs and what is beside them, without what chance decides."""
        shown: dict[str, Any] = {}
        for record in self.store.audit.records(page_size=100):
            row = to_builtins(record.job)
            events = [to_builtins(event) for event in record.events]
            for part in (row, *events):
                for chance in ("lease_id", "request_id", "run_at", "fingerprint"):
                    part.pop(chance, None)
                part.pop("payload", None)
            kept = [(a.name, a.sha256) for a in self.store.artifacts.of_job(record.job_id)]
            logs = [log.text for log in self.store.artifacts.logs(record.job_id)]
            shown[record.job_id] = (row, events, kept, logs)
        queues = self.store.settings.queues(DEFAULT_NAMESPACE)
        return shown | {"queues": queues, "workers": self.store.workers.page(DEFAULT_NAMESPACE)}


class Script:
    """The run. Each principal has a connection of its own."""

    def __init__(self, url: str, tokens: dict[Role, str]) -> None:
        self.client = connect(url, tokens[Role.CLIENT])
        self.worker = connect(url, tokens[Role.WORKER])
        self.operator = connect(url, tokens[Role.OPERATOR])
        self._claims = count(1)
        self._requests = count(1)

    def close(self) -> None:
        for each in (self.client, self.worker, self.operator):
            each.close()

    # --- words

    def _request_id(self) -> RequestId:
        return RequestId(f"r-{next(self._requests)}")

    def _enqueue(self, *numbers: int) -> None:
        commands = [new_job(number) for number in numbers]
        replies = self.client.submit_many(commands).result()
        assert all(isinstance(reply, Reply) and reply.is_ok for reply in replies)

    def _ask(
        self, of: RemoteCoordinator, kind: Callable[..., Command], number: int, **more: Any
    ) -> Reply:
        fields = {"job_id": job_id(number), "actor": OPERATOR, "request_id": self._request_id()}
        reply = of.execute(kind(**fields, **more))
        assert isinstance(reply, Reply)
        assert reply.is_ok, reply
        return reply

    def _grant(self, limit: int = 1) -> list[Grant]:
        number = next(self._claims)
        request = claim_of(number, limit=limit)
        wait_us = Duration(seconds(5))
        answer = until_heard(lambda: self.worker.submit_claim(request, wait_us=wait_us))
        grants = list(answer.grants)
        assert len(grants) == limit
        return grants

    def bury(self, *numbers: int) -> None:
        """Make dead letters of these."""
        for number in numbers:
            self._ask(self.operator, DeadLetter, number, reason_code=ReasonCode.POLICY_VIOLATION)

    def discard(self, *numbers: int) -> None:
        """And be done with these."""
        for number in numbers:
            self._ask(self.operator, Discard, number, note="enough")

    def complete(self, count: int, result: bytes) -> set[JobId]:
        """Do so many jobs; which."""
        grants = self._grant(count)
        commands = [
            Complete(
                job_id=grant.job_id,
                lease_id=grant.lease_id,
                actor=NOBODY,
                request_id=self._request_id(),
                result=result,
            )
            for grant in grants
        ]
        for verdict in self.worker.submit_many(commands).result():
            assert isinstance(verdict, Verdict)
            assert verdict.kind is VerdictKind.COMMITTED
        return {grant.job_id for grant in grants}

    def _report(self, grant: Grant, kind: Callable[..., Command], **more: Any) -> VerdictKind:
        fields: dict[str, Any] = {
            "job_id": grant.job_id,
            "lease_id": grant.lease_id,
            "actor": NOBODY,
        }
        if kind is not Heartbeat:
            fields["request_id"] = self._request_id()
        command = kind(**fields, **more)
        [verdict] = until_heard(lambda: self.worker.submit_many([command]))
        assert isinstance(verdict, Verdict)
        return verdict.kind

    # --- the run

    def run(self) -> None:
        """Everything once."""
        self.worker.store.workers.see(_process())
        self._enqueue(1)
        self._enqueue(2, 3, 4)
        self._work()
        self._fail_and_release()
        self._cancel()
        self._operate()

    def _work(self) -> None:
        [grant] = self._grant()
        assert self._report(grant, Start) is VerdictKind.OK
        progress = Progress(done=1, total=2, note="half")
        beat = self._report(grant, Heartbeat, hb_seq=1, progress=progress, checkpoint=b"[1]")
        assert beat is VerdictKind.OK
        upload = ArtifactUpload(
            job_id=grant.job_id,
            lease_id=grant.lease_id,
            actor=NOBODY,
            name="report/a.txt",
            body=b"text",
            media_type="text/plain",
        )
        assert self.worker.store.artifacts.stage(upload).cause is None
        output = AttemptOutput(
            job_id=grant.job_id, lease_id=grant.lease_id, actor=NOBODY, text="said"
        )
        assert self.worker.store.artifacts.put_log(output) is None
        assert self._report(grant, Complete, result=b'"done"') is VerdictKind.COMMITTED
        assert self.client.store.artifacts.load(grant.job_id, "report/a.txt") is not None

    def _fail_and_release(self) -> None:
        failing, released = self._grant(2)
        error = JobError(error_class=ErrorClass.PERMANENT, type="E", message="no")
        assert self._report(failing, Fail, error=error) is VerdictKind.COMMITTED
        assert self._report(released, Release) is VerdictKind.COMMITTED

    def _cancel(self) -> None:
        self._ask(self.client, Cancel, 4, mode=CancelMode.HARD)

    def _operate(self) -> None:
        [taken] = self._grant()  # job 3, which was released
        self._ask(self.operator, Stall, 3)
        assert self._report(taken, Complete, result=b'"late"') is VerdictKind.CANCELLED
        self._ask(self.operator, Requeue, HELD)
        self.bury(3)
        self._ask(self.operator, Redrive, 3, cause=EventCause.REDRIVE)
        self._ask(self.operator, Redrive, 1, cause=EventCause.RERUN)
        self._enqueue(5)
        self.bury(5)
        self.discard(5)
        for paused, limit in ((True, None), (False, None), (None, 7)):
            self.operator.store.settings.put_queue(
                DEFAULT_NAMESPACE, QUEUE, paused=paused, limit=limit
            )
        assert self.operator.store.workers.drain(DEFAULT_NAMESPACE, WORKER)


def _process() -> WorkerProcess:
    return WorkerProcess(
        namespace=DEFAULT_NAMESPACE,
        worker=WORKER,
        actor=NOBODY,
        host="here",
        pid=1,
        queues=(QUEUE,),
        concurrency=1,
        version="1",
        uptime_us=seconds(1),
        kinds=(KIND,),
    )


def until_heard(ask: "Callable[[], Future[_T]]") -> _T:
    """Ask again, the same, until there is an answer."""
    for _ in range(MOST_TRIES):
        try:
            return ask().result()
        except StoreUnavailable:
            continue
    raise AssertionError("there is no answer")
