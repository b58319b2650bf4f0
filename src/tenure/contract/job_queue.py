"""The eight operations of the lifecycle plan: a protocol, and an adapter over any coordinator.

For code that was written against the plan's names. The adapter translates a call into one command
and returns the coordinator's answer; it decides nothing.
"""

import secrets
from collections.abc import Sequence
from itertools import count
from typing import Any, Protocol

from tenure.core.claims import ClaimRequest
from tenure.core.commands import (
    Complete,
    Enqueue,
    Fail,
    Heartbeat,
    Requeue,
    Stall,
    Start,
)
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    DEFAULT_QUEUE,
    ENTROPY_BYTES,
    JobId,
    Kind,
    LeaseId,
    Namespace,
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    new_job_id,
    operator_actor,
    worker_actor,
)
from tenure.core.job import JobError
from tenure.core.policy import Policy
from tenure.core.verdicts import Grant, Reply, Verdict
from tenure.errors import InvalidInput
from tenure.ports import Coordination


class DistributedJobQueue(Protocol):
    """The plan's operations under the plan's names. A call that is repeated under the same request
    id, or the same job id, changes nothing; `expected_rev` is the plan's `cas`."""

    def enqueue(
        self, kind: str, payload: bytes, *, job_id: JobId, dedupe_key: str | None = None
    ) -> Reply:
        """Make a queued job, or find the one that exists under this id or dedupe key."""

    def claimNext(self, request_id: str) -> Grant | None:
        """The next job under a lease, or None. The request id of the last call may be repeated."""

    def start(
        self, job_id: JobId, lease_id: LeaseId, request_id: str, expected_rev: int | None = None
    ) -> Verdict:
        """The owner starts to execute."""

    def heartbeat(
        self, job_id: JobId, lease_id: LeaseId, hb_seq: int, expected_rev: int | None = None
    ) -> Verdict:
        """The owner renews its lease; a number that is not higher renews nothing."""

    def complete(
        self,
        job_id: JobId,
        lease_id: LeaseId,
        request_id: str,
        result: bytes = b"null",
        expected_rev: int | None = None,
    ) -> Verdict:
        """The owner reports success."""

    def fail(
        self,
        job_id: JobId,
        lease_id: LeaseId,
        request_id: str,
        error: JobError,
        expected_rev: int | None = None,
    ) -> Verdict:
        """The owner reports a failed attempt. A permanent error ends the job `failed`."""

    def stall(self, job_id: JobId, request_id: str, expected_rev: int | None = None) -> Reply:
        """Take a job from its worker."""

    def requeueStalled(
        self, job_id: JobId, request_id: str, expected_rev: int | None = None
    ) -> Reply:
        """Send a stalled job back to its queue."""


class CoordinatedQueue:
    """`DistributedJobQueue` over a coordinator, as one worker session. Over HTTP the token decides
    who asks, so a token for each role is needed: worker, operator, and one that enqueues."""

    def __init__(
        self,
        coordination: Coordination,
        worker: str,
        *,
        queue: str = DEFAULT_QUEUE,
        kinds: Sequence[str] | None = None,
        namespace: str = DEFAULT_NAMESPACE,
        policy: Policy | None = None,
    ) -> None:
        """`policy` is that of the jobs that this queue enqueues."""
        self._coordination = coordination
        self._namespace, self._queue = Namespace(namespace), QueueName(queue)
        self._worker, self._principal = WorkerId(worker), worker_actor(worker)
        self._kinds = None if kinds is None else tuple(Kind(each) for each in kinds)
        self._policy = policy or Policy()
        self._claims = count(1)
        self._last_claim: ClaimRequest | None = None

    def enqueue(
        self, kind: str, payload: bytes, *, job_id: JobId, dedupe_key: str | None = None
    ) -> Reply:
        """See the protocol."""
        command = Enqueue(
            job_id=job_id,
            namespace=self._namespace,
            queue=self._queue,
            kind=Kind(kind),
            actor=client_actor(self._worker),
            payload=payload,
            dedupe_key=dedupe_key,
            policy=self._policy,
        )
        return self._replied(command)

    def new_job_id(self) -> JobId:
        """An id for `enqueue`, made by the store's clock."""
        now = self._coordination.store.now()
        return new_job_id(now, secrets.token_bytes(ENTROPY_BYTES))

    def claimNext(self, request_id: str) -> Grant | None:
        """See the protocol. Raises `InvalidInput` if the claim is refused."""
        if self._last_claim is None or self._last_claim.request_id != request_id:
            self._last_claim = ClaimRequest(
                namespace=self._namespace,
                worker=self._worker,
                actor=self._principal,
                queues=(self._queue,),
                kinds=self._kinds,
                limit=1,
                claim_seq=next(self._claims),
                request_id=RequestId(request_id),
            )
        answer = self._coordination.submit_claim(self._last_claim).result()
        if answer.cause is not None:
            raise InvalidInput("request_id", f"the claim is refused: {answer.cause}")
        return answer.grants[0] if answer.grants else None

    def start(
        self, job_id: JobId, lease_id: LeaseId, request_id: str, expected_rev: int | None = None
    ) -> Verdict:
        """See the protocol."""
        return self._report(Start, job_id, lease_id, expected_rev, request_id=request_id)

    def heartbeat(
        self, job_id: JobId, lease_id: LeaseId, hb_seq: int, expected_rev: int | None = None
    ) -> Verdict:
        """See the protocol."""
        return self._report(Heartbeat, job_id, lease_id, expected_rev, hb_seq=hb_seq)

    def complete(
        self,
        job_id: JobId,
        lease_id: LeaseId,
        request_id: str,
        result: bytes = b"null",
        expected_rev: int | None = None,
    ) -> Verdict:
        """See the protocol."""
        return self._report(
            Complete, job_id, lease_id, expected_rev, request_id=request_id, result=result
        )

    def fail(
        self,
        job_id: JobId,
        lease_id: LeaseId,
        request_id: str,
        error: JobError,
        expected_rev: int | None = None,
    ) -> Verdict:
        """See the protocol."""
        return self._report(
            Fail, job_id, lease_id, expected_rev, request_id=request_id, error=error
        )

    def stall(self, job_id: JobId, request_id: str, expected_rev: int | None = None) -> Reply:
        """See the protocol."""
        return self._request(Stall, job_id, request_id, expected_rev)

    def requeueStalled(
        self, job_id: JobId, request_id: str, expected_rev: int | None = None
    ) -> Reply:
        """See the protocol."""
        return self._request(Requeue, job_id, request_id, expected_rev)

    def _report(
        self,
        kind: type[Start | Heartbeat | Complete | Fail],
        job_id: JobId,
        lease_id: LeaseId,
        expected_rev: int | None,
        **fields: Any,
    ) -> Verdict:
        answer = self._coordination.execute(
            kind(
                job_id=job_id,
                lease_id=lease_id,
                actor=self._principal,
                expected_rev=expected_rev,
                **fields,
            )
        )
        assert isinstance(answer, Verdict)
        return answer

    def _request(
        self,
        kind: type[Stall | Requeue],
        job_id: JobId,
        request_id: str,
        expected_rev: int | None,
    ) -> Reply:
        actor = operator_actor(self._worker)
        return self._replied(
            kind(
                job_id=job_id,
                actor=actor,
                request_id=RequestId(request_id),
                expected_rev=expected_rev,
            )
        )

    def _replied(self, command: Enqueue | Stall | Requeue) -> Reply:
        answer = self._coordination.execute(command)
        assert isinstance(answer, Reply)
        return answer
