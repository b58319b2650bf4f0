"""The record of one scenario: a worker's requests, our answers to them, and its side effects.

Times are seconds of this process's monotonic clock.
"""

import threading
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from tenure.core.vocabulary import VerdictKind


class Op(StrEnum):
    """The operation that a request asks for, by the name of its route."""

    CLAIM = "claim"
    START = "start"
    HEARTBEAT = "heartbeat"
    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"

    @property
    def settles(self) -> bool:
        """Whether this operation ends an attempt."""
        return self in (Op.COMPLETE, Op.FAIL, Op.RELEASE)


FINAL = frozenset({VerdictKind.COMMITTED, VerdictKind.CANCELLED, VerdictKind.REJECTED})


class WorkerRequest(msgspec.Struct, kw_only=True):
    """One request of a worker and the answer to it. `sequence` is a claim_seq or an hb_seq."""

    at: float
    op: Op
    who: str  # the lease id, or for a claim the worker id
    request_id: str
    sequence: int
    fingerprint: bytes
    answered_at: float | None = None  # None if the worker hung up before the answer
    status: int | None = None
    verdict: VerdictKind | None = None
    retry_after_s: float | None = None
    cancel_within_s: float | None = None

    @property
    def was_answered(self) -> bool:
        """Whether the worker received a verdict."""
        return self.answered_at is not None and self.verdict is not None

    @property
    def is_final(self) -> bool:
        """Whether the worker received a verdict that ends the attempt."""
        return self.was_answered and self.verdict in FINAL

    @property
    def family(self) -> str:
        """Groups requests that replace each other: the reports of a lease, its starts, claims."""
        return "report" if self.op.settles else self.op.value


class Record:
    """The log of one scenario. Thread-safe; requests after `close` are ignored."""

    def __init__(self) -> None:
        self.requests: list[WorkerRequest] = []
        self.effects: list[float] = []
        self.malformed: list[str] = []
        self.signalled_at: float | None = None
        self.closed_at = 0.0
        self.exit_code: int | None = None
        self.output = ""
        self._lock = threading.Lock()
        self._is_closed = False

    def add(self, request: WorkerRequest) -> None:
        """Record a request."""
        with self._lock:
            if not self._is_closed:
                self.requests.append(request)

    def add_effect(self, at: float) -> None:
        """Record a side effect of the handler."""
        with self._lock:
            if not self._is_closed:
                self.effects.append(at)

    def add_malformed(self, what: str) -> None:
        """Record a request that is not legal."""
        with self._lock:
            if not self._is_closed:
                self.malformed.append(what)

    def close(self, at: float) -> None:
        """Stop recording."""
        with self._lock:
            self._is_closed = True
            self.closed_at = at

    # --- reading -------------------------------------------------------------------------------

    def all(self, *ops: Op) -> list[WorkerRequest]:
        """The requests for these operations (default: all), in order."""
        with self._lock:
            return [request for request in self.requests if request.op in ops or not ops]

    def reports(self) -> list[WorkerRequest]:
        """Completions, failures and releases."""
        return [request for request in self.all() if request.op.settles]

    def heard(self, *kinds: VerdictKind) -> list[WorkerRequest]:
        """The requests for which the worker received one of these verdicts."""
        return [
            request for request in self.all() if request.was_answered and request.verdict in kinds
        ]

    def after(
        self, verdict: WorkerRequest, in_flight_s: float, *ops: Op
    ) -> Iterator[WorkerRequest]:
        """The requests sent under the same lease after the worker received `verdict`."""
        assert verdict.answered_at is not None
        for request in self.all(*ops):
            if request.who == verdict.who and request.at > verdict.answered_at + in_flight_s:
                yield request

    def repeats(self) -> Iterator[tuple[WorkerRequest, WorkerRequest]]:
        """Each request that got no verdict, with the next one of its family."""
        waiting: dict[tuple[str, str], WorkerRequest] = {}
        for request in self.all(Op.CLAIM, Op.START, Op.COMPLETE, Op.FAIL, Op.RELEASE):
            key = (request.who, request.family)
            before = waiting.get(key)
            if before is not None and not before.was_answered:
                yield before, request
            waiting[key] = request
