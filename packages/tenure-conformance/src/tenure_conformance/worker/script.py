"""The scripted coordinator: one job, one lease, and the faults of a scenario. No sockets, no clock.

A request that meets no fault is answered by the response matrices of docs/spec/responses.md.
"""

import os
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeAlias, assert_never

import msgspec

from tenure.core.commands import start_request_id
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    Epoch,
    JobId,
    Kind,
    LeaseId,
    QueueName,
    fence,
    new_job_id,
    new_lease_id,
)
from tenure.core.instants import Instant, seconds
from tenure.core.lifecycle import EARLY_PART
from tenure.core.policy import Policy
from tenure.core.vocabulary import Cause, Disposition, JobStatus, VerdictKind
from tenure.protocol.codec import encode
from tenure.protocol.replies import (
    CancelRecord,
    ClaimReply,
    GrantRecord,
    Problem,
    VerdictReply,
    VerdictsReply,
)
from tenure.protocol.requests import (
    ClaimMessage,
    CompleteMessage,
    FailMessage,
    HeartbeatMessage,
    HeartbeatsMessage,
    ReleaseMessage,
    ReportsMessage,
    StartMessage,
)
from tenure_conformance.worker.record import Op, Record, WorkerRequest
from tenure_conformance.worker.scenarios import (
    KIND,
    QUEUE,
    CancelRequested,
    Fault,
    GrantAgain,
    Lost,
    Says,
    Scenario,
    Slow,
    Twice,
    Unavailable,
    Unknown,
)

LONGEST_POLL_S = 2.0
_EPOCH = Epoch(1)

Report: TypeAlias = StartMessage | CompleteMessage | FailMessage | ReleaseMessage | HeartbeatMessage
Message: TypeAlias = ClaimMessage | HeartbeatsMessage | ReportsMessage | Report


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An HTTP answer, and how it is delivered."""

    body: bytes
    status: int = 200
    retry_after_s: int | None = None
    delay_s: float = 0.0
    is_lost: bool = False
    is_double: bool = False


class Script:
    """Answers the requests of one scenario. The caller makes sure that calls do not overlap."""

    def __init__(
        self, scenario: Scenario, record: Record, *, effect_url: str, born: Instant
    ) -> None:
        self._scenario = scenario
        self._record = record
        self._effect_url = effect_url
        self._enqueued_us = born
        self._job_id = new_job_id(born, os.urandom(16))
        self.lease_id: LeaseId = new_lease_id(_EPOCH, os.urandom(16))
        self._played: Counter[Op] = Counter()
        self._claimed_by = ""  # the request id of the claim that was granted
        self._gives_again = False
        self._expires_at = 0.0
        self._cancel_at: float | None = None
        self._started_by = ""
        self._hb_seq = 0
        self._rev = 2
        self._settled: tuple[str, bytes, VerdictReply] | None = None
        self._ended: VerdictReply | None = None
        self.granted_at: float | None = None
        self.other_claims: set[str] = set()

    # --- claims --------------------------------------------------------------------------------

    def claim(self, message: ClaimMessage, now: float) -> tuple[list[WorkerRequest], Answer]:
        """Grant the scenario's only job to the first claim that matches it."""
        request = WorkerRequest(
            at=now,
            op=Op.CLAIM,
            who=message.worker,
            request_id=message.request_id,
            sequence=message.claim_seq,
            fingerprint=encode(message),
        )
        self._record.add(request)
        fault = self._next(Op.CLAIM)
        if isinstance(fault, Unavailable):
            return [request], self._unavailable([request], fault)
        if isinstance(fault, Says):
            self._claimed_by = message.request_id
            request.verdict = fault.verdict
            return [request], _answer(ClaimReply(verdict=fault.verdict, cause=fault.cause))
        request.verdict = VerdictKind.OK
        grants, repeated = self._grants(message, now)
        self._gives_again = isinstance(fault, GrantAgain) or (self._gives_again and not grants)
        reply = ClaimReply(verdict=VerdictKind.OK, grants=grants, repeated=repeated)
        delay_s = 0.0 if grants else min(message.wait_s, LONGEST_POLL_S)
        return [request], self._shaped(reply, fault, delay_s=delay_s)

    def _grants(self, message: ClaimMessage, now: float) -> tuple[tuple[GrantRecord, ...], bool]:
        wanted = QUEUE in message.queues and (message.kinds is None or KIND in message.kinds)
        if not wanted:
            self.other_claims.add(", ".join([*message.queues, *(message.kinds or ())]))
            return (), False
        if not self._claimed_by:
            self._claimed_by = message.request_id
            self.granted_at = now
            self._renew(now)
            # A scenario about the start needs one: its grant is only claimed, as an older server's.
            if message.start and Op.START not in self._scenario.faults:
                self._started_by = start_request_id(self.lease_id)
            return (self._grant(now),), False
        if message.request_id == self._claimed_by:
            return (self._grant(now),) if self._is_live(now) else (), True
        if self._gives_again and self.granted_at is not None:
            return (self._grant(now),), False
        return (), False

    def _grant(self, now: float) -> GrantRecord:
        work, lease_s = self._scenario.work, self._scenario.lease_s
        payload = {
            "effects": work.effects,
            "every_s": work.every_s,
            "outcome": work.outcome,
            "effect_url": self._effect_url,
        }
        return GrantRecord(
            job_id=JobId(self._job_id),
            namespace=DEFAULT_NAMESPACE,
            queue=QueueName(QUEUE),
            kind=Kind(KIND),
            attempt=1,
            fence=fence(_EPOCH, 1),
            lease_id=self.lease_id,
            lease_ttl_s=max(0.0, self._expires_at - now),
            lease_s=lease_s,
            heartbeat_s=self._heartbeat_s,
            timeout_s=3600.0,
            grace_s=30.0,
            hb_seq=self._hb_seq,
            job_status=JobStatus.RUNNING if self._started_by else JobStatus.CLAIMED,
            rev=self._rev,
            priority=0,
            failures=0,
            max_attempts=5,
            enqueued_at=datetime.fromtimestamp(self._enqueued_us / 1e6, UTC),
            payload=msgspec.Raw(encode(payload)),
            correlation_id=self._job_id,
            trace_id=None,
            schedule=None,
            scheduled_for=None,
            meta=None,
        )

    # --- reports -------------------------------------------------------------------------------

    def report(
        self, messages: Sequence[Report], now: float, *, is_batch: bool
    ) -> tuple[list[WorkerRequest], Answer]:
        """Answer each report with a verdict, or the whole request with a fault."""
        requests = [_request(message, now) for message in messages]
        for each in requests:
            self._record.add(each)
        faults = [self._next(each.op) for each in requests]
        shape = next((fault for fault in faults if fault is not None), None)
        if isinstance(shape, Unavailable):
            return requests, self._unavailable(requests, shape)
        verdicts = [
            self._verdict(message, each, fault, now)
            for message, each, fault in zip(messages, requests, faults, strict=True)
        ]
        for each, verdict in zip(requests, verdicts, strict=True):
            each.verdict = verdict.verdict
            each.cancel_within_s = None if verdict.cancel is None else verdict.cancel.remaining_s
        if isinstance(shape, Unknown) and not is_batch:
            return requests, _problem(404, Cause.UNKNOWN_JOB.value, VerdictKind.REJECTED)
        if is_batch:
            return requests, self._shaped(VerdictsReply(verdicts=tuple(verdicts)), shape)
        return requests, self._shaped(verdicts[0], shape)

    def _verdict(
        self, message: Report, request: WorkerRequest, fault: Fault | None, now: float
    ) -> VerdictReply:
        match fault:
            case Says():
                self._ended = VerdictReply(verdict=fault.verdict, cause=fault.cause)
                return self._ended
            case Unknown():
                self._ended = VerdictReply(verdict=VerdictKind.REJECTED, cause=Cause.UNKNOWN_JOB)
                return self._ended
            case CancelRequested() if self._cancel_at is None:
                self._cancel_at = now + fault.remaining_s
                self._rev += 1
            case _:
                pass
        return self._judge(message, request, now)

    def _judge(self, message: Report, request: WorkerRequest, now: float) -> VerdictReply:
        """The verdict by the response matrices."""
        if message.lease_id != self.lease_id or message.job_id != self._job_id:
            return _rejected(Cause.INVALID_LEASE)
        if self._settled is not None:
            return self._judge_settled(request, *self._settled)
        if self._ended is None and not self._is_live(now):
            is_cancel = self._cancel_at is not None and now >= self._cancel_at
            cause = Cause.JOB_CANCELLED if is_cancel else Cause.LEASE_EXPIRED
            self._ended = VerdictReply(verdict=VerdictKind.CANCELLED, cause=cause)
        if self._ended is not None:
            return self._ended
        if isinstance(message, HeartbeatMessage):
            if message.hb_seq > self._hb_seq:
                if self._states_another_rev(message):
                    return self._another_rev()
                if self._is_early(message, now):
                    return msgspec.structs.replace(self._ok(now), replayed=True)
                self._rev += 1
                self._hb_seq = message.hb_seq
                self._renew(now)
            return self._ok(now)
        if isinstance(message, StartMessage):
            if self._started_by not in ("", message.request_id):
                return _rejected(Cause.ALREADY_STARTED)
            if self._started_by:
                return msgspec.structs.replace(self._ok(now), replayed=True)
            if self._states_another_rev(message):
                return self._another_rev()
            self._rev += 1
            self._started_by = message.request_id
            self._renew(now)
            return self._ok(now)
        if self._states_another_rev(message):
            return self._another_rev()
        reply = _committed(message, is_cancelled=self._cancel_at is not None)
        self._settled = (message.request_id, request.fingerprint, reply)
        return reply

    def _judge_settled(
        self, request: WorkerRequest, request_id: str, fingerprint: bytes, reply: VerdictReply
    ) -> VerdictReply:
        if request.op is Op.HEARTBEAT:
            return VerdictReply(verdict=VerdictKind.OK, job_status=reply.job_status, settled=True)
        if request.op is Op.START:
            return _rejected(Cause.LEASE_SETTLED)
        if request.request_id != request_id:
            return _rejected(Cause.DUPLICATE_COMPLETION)
        if request.fingerprint != fingerprint:
            return _rejected(Cause.IDEMPOTENCY_KEY_REUSE)
        return msgspec.structs.replace(reply, replayed=True)

    def _states_another_rev(self, message: Report) -> bool:
        return message.expected_rev not in (None, self._rev)

    def _another_rev(self) -> VerdictReply:
        return msgspec.structs.replace(_rejected(Cause.REVISION_MISMATCH), rev=self._rev)  # [K13]

    # --- the lease -----------------------------------------------------------------------------

    def _renew(self, now: float) -> None:
        self._expires_at = now + self._scenario.lease_s

    def _is_early(self, message: HeartbeatMessage, now: float) -> bool:
        """Whether a heartbeat is too early to be recorded. [L16]"""
        has_news = message.progress is not None or message.checkpoint is not msgspec.UNSET
        renewed_at = self._expires_at - self._scenario.lease_s
        is_first = self._hb_seq == 0
        return not (has_news or is_first) and now - renewed_at < self._heartbeat_s / EARLY_PART

    @property
    def _heartbeat_s(self) -> float:
        return Policy(lease_us=seconds(self._scenario.lease_s)).heartbeat_interval_us / 1e6

    def _is_live(self, now: float) -> bool:
        if self._ended is not None or self._settled is not None:
            return False
        return now < self._expires_at and (self._cancel_at is None or now < self._cancel_at)

    def _ok(self, now: float) -> VerdictReply:
        cancel, ends_at = None, self._expires_at
        if self._cancel_at is not None:
            cancel = CancelRecord(
                reason="the scenario asks for a cancel", remaining_s=self._cancel_at - now
            )
            ends_at = min(ends_at, self._cancel_at)
        return VerdictReply(
            verdict=VerdictKind.OK,
            job_status=JobStatus.RUNNING if self._started_by else JobStatus.CLAIMED,
            rev=self._rev,
            lease_ttl_s=ends_at - now,
            cancel=cancel,
        )

    # --- faults --------------------------------------------------------------------------------

    def _next(self, op: Op) -> Fault | None:
        """The fault for this request: the operation's faults in order, then none."""
        faults = self._scenario.faults.get(op, ())
        number = self._played[op]
        self._played[op] += 1
        if number < len(faults):
            return faults[number]
        return faults[-1] if faults and self._scenario.goes_on else None

    def _unavailable(self, requests: Sequence[WorkerRequest], fault: Unavailable) -> Answer:
        for each in requests:
            each.retry_after_s = fault.retry_after_s
        answer = _problem(503, "store_unavailable", None)
        return msgspec.structs.replace(answer, retry_after_s=fault.retry_after_s)

    def _shaped(
        self, reply: msgspec.Struct, fault: Fault | None, *, delay_s: float = 0.0
    ) -> Answer:
        """The answer with this reply, delivered as the fault says."""
        match fault:
            case Lost():
                return _answer(reply, is_lost=True)
            case Slow():
                return _answer(reply, delay_s=fault.delay_s)
            case Twice():
                return _answer(reply, is_double=True)
            case None | Says() | Unknown() | Unavailable() | GrantAgain() | CancelRequested():
                return _answer(reply, delay_s=delay_s)
            case _:
                assert_never(fault)


def _answer(
    reply: msgspec.Struct, *, delay_s: float = 0.0, is_lost: bool = False, is_double: bool = False
) -> Answer:
    return Answer(body=encode(reply), delay_s=delay_s, is_lost=is_lost, is_double=is_double)


def _problem(status: int, code: str, verdict: VerdictKind | None) -> Answer:
    problem = Problem(code=code, message="the scenario asks for this answer", verdict=verdict)
    return Answer(body=encode(problem), status=status)


def _rejected(cause: Cause) -> VerdictReply:
    return VerdictReply(verdict=VerdictKind.REJECTED, cause=cause)


def _committed(
    message: CompleteMessage | FailMessage | ReleaseMessage, *, is_cancelled: bool
) -> VerdictReply:
    status, disposition = JobStatus.QUEUED, Disposition.RELEASED
    if isinstance(message, CompleteMessage):
        status, disposition = JobStatus.SUCCEEDED, Disposition.SUCCEEDED
    elif is_cancelled:
        status, disposition = JobStatus.CANCELLED, Disposition.CANCELLED
    elif isinstance(message, FailMessage):
        disposition = Disposition.RETRY_SCHEDULED
    return VerdictReply(verdict=VerdictKind.COMMITTED, job_status=status, disposition=disposition)


_OPS: tuple[tuple[type[msgspec.Struct], Op], ...] = (
    (StartMessage, Op.START),
    (CompleteMessage, Op.COMPLETE),
    (FailMessage, Op.FAIL),
    (ReleaseMessage, Op.RELEASE),
    (HeartbeatMessage, Op.HEARTBEAT),
)


def _request(message: Report, now: float) -> WorkerRequest:
    op = next(op for kind, op in _OPS if isinstance(message, kind))
    # Encoded field by field: in a batch the same report carries an extra `op` tag.
    values = [getattr(message, name) for name in message.__struct_fields__]
    return WorkerRequest(
        at=now,
        op=op,
        who=message.lease_id,
        request_id="" if isinstance(message, HeartbeatMessage) else message.request_id,
        sequence=message.hb_seq if isinstance(message, HeartbeatMessage) else 0,
        fingerprint=encode([None if value is msgspec.UNSET else value for value in values]),
    )
