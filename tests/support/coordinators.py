"""A coordinator over a memory store with virtual time: what the coordinator's own tests drive."""

from collections.abc import Sequence
from hashlib import sha256
from itertools import count

from tenure.clock import Monotonic
from tenure.coordinator.service import Coordinator
from tenure.core.claims import ClaimAnswer, ClaimRequest
from tenure.core.commands import Complete, Enqueue, Fail, Start
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Actor,
    JobId,
    Kind,
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    new_job_id,
    worker_actor,
)
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job, JobError
from tenure.core.policy import Policy
from tenure.core.verdicts import Grant, Reply, Verdict
from tenure.deadlines import CALL_TIMEOUT_S
from tenure.ports import Store
from tenure.stores.sqlite.memory import MemoryStore

QUEUE = QueueName("work")
KIND = Kind("demo")
CLIENT = client_actor("tests")
START = Instant(1_700_000_000_000_000)


class VirtualClock:
    """Time that moves when a test says so; also serves as the monotonic clock."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> Instant:
        return self.now

    def advance(self, amount_s: float) -> None:
        """Let time pass."""
        self.now = Instant(self.now + seconds(amount_s))


class World:
    """A store, a coordinator and short words for what tests do with them."""

    def __init__(
        self,
        store: Store | None = None,
        clock: VirtualClock | None = None,
        *,
        threads: int | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
        monotonic: Monotonic | None = None,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.store: Store = store or MemoryStore(clock=self.clock)
        self._luck = count(1)
        self._requests = count(1)
        self.coordinator = Coordinator(
            self.store,
            entropy=self.entropy,
            monotonic=monotonic or self.clock,
            threads=threads,
            timeout_s=timeout_s,
        )

    def entropy(self, size: int) -> bytes:
        """Different bytes each time, the same in every run."""
        pieces = [sha256(str(next(self._luck)).encode()).digest() for _ in range(0, size, 32)]
        return b"".join(pieces)[:size]

    def request_id(self) -> RequestId:
        """A request id not used before."""
        return RequestId(f"request-{next(self._requests)}")

    def enqueue(self, *, policy: Policy | None = None, queue: QueueName = QUEUE) -> Job:
        """One job, acknowledged."""
        command = Enqueue(
            job_id=new_job_id(self.clock(), self.entropy(16)),
            namespace=DEFAULT_NAMESPACE,
            queue=queue,
            kind=KIND,
            actor=CLIENT,
            policy=policy or Policy(),
        )
        reply = self.coordinator.execute(command)
        assert isinstance(reply, Reply)
        assert reply.job is not None
        return reply.job

    def claim_request(self, worker: str = "w1", *, limit: int = 1, seq: int = 0) -> ClaimRequest:
        """A claim nobody sent before."""
        number = next(self._requests)
        return ClaimRequest(
            namespace=DEFAULT_NAMESPACE,
            worker=WorkerId(worker),
            actor=worker_actor(worker),
            queues=(QUEUE,),
            limit=limit,
            claim_seq=seq or number,
            request_id=RequestId(f"claim-{number}"),
        )

    def claim(self, worker: str = "w1", *, limit: int = 1) -> tuple[Grant, ...]:
        """What a worker is granted."""
        answer: ClaimAnswer = self.coordinator.claim(self.claim_request(worker, limit=limit))
        assert answer.cause is None
        return answer.grants

    def running(self, worker: str = "w1", *, policy: Policy | None = None) -> Grant:
        """A job that its worker has started."""
        self.enqueue(policy=policy)
        (grant,) = self.claim(worker)
        started = self.coordinator.execute(
            Start(
                job_id=grant.job_id,
                lease_id=grant.lease_id,
                actor=worker_actor(worker),
                request_id=self.request_id(),
            )
        )
        assert isinstance(started, Verdict)
        return grant

    def complete(
        self, grant: Grant, *, actor: Actor, request_id: RequestId | None = None
    ) -> Verdict:
        """Report success."""
        verdict = self.coordinator.execute(
            Complete(
                job_id=grant.job_id,
                lease_id=grant.lease_id,
                actor=actor,
                request_id=request_id or self.request_id(),
            )
        )
        assert isinstance(verdict, Verdict)
        return verdict

    def fail(self, grant: Grant, *, actor: Actor) -> Verdict:
        """Report a retryable failure."""
        verdict = self.coordinator.execute(
            Fail(
                job_id=grant.job_id,
                lease_id=grant.lease_id,
                actor=actor,
                request_id=self.request_id(),
                error=JobError(type="Boom", message="it broke"),
            )
        )
        assert isinstance(verdict, Verdict)
        return verdict

    def reload(self, job_id: JobId) -> Job:
        """The row as it is."""
        return self.store.jobs.load([job_id]).jobs[job_id]

    def types(self, job_id: JobId) -> Sequence[str]:
        """The types of a job's events."""
        return [event.type.value for event in self.store.events.load([job_id])[job_id]]
