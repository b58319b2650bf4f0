"""What a worker did in one scenario, in order: its requests with their answers, and its effects.

Times are seconds of this process's monotonic clock.
"""

import threading
from collections.abc import Iterator
from enum import StrEnum

import msgspec

from tenure.core.vocabulary import VerdictKind


class Op(StrEnum):
    """What a worker asks for, by the name of its route."""

    CLAIM = "claim"
    START = "start"
    HEARTBEAT = "heartbeat"
    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"

    @property
    def settles(self) -> bool:
        """Whether it ends an attempt."""
        return self in (Op.COMPLETE, Op.FAIL, Op.RELEASE)


FINAL = frozenset({VerdictKind.COMMITTED, VerdictKind.CANCELLED, VerdictKind.REJECTED})


class Said(msgspec.Struct, kw_only=True):
    """One thing a worker said, and what it heard. `sequence` is a claim_seq or an hb_seq."""

    at: float
    op: Op
    who: str  # the lease, or the worker of a claim
    request_id: str
    sequence: int
    fingerprint: bytes
    answered_at: float | None = None  # the answer was written, and somebody was there to read it
    status: int | None = None
    verdict: VerdictKind | None = None
    retry_after_s: float | None = None
    cancel_within_s: float | None = None

    @property
    def was_answered(self) -> bool:
        """Whether it was decided, and the worker could know."""
        return self.answered_at is not None and self.verdict is not None

    @property
    def is_final(self) -> bool:
        """Whether it heard a verdict that ends the attempt."""
        return self.was_answered and self.verdict in FINAL

    @property
    def family(self) -> str:
        """Requests that follow from one another: the reports of a lease, its starts, claims."""
        return "report" if self.op.settles else self.op.value


class Record:
    """The log of one scenario. Any thread writes; it is read when the scenario is over."""

    def __init__(self) -> None:
        self.said: list[Said] = []
        self.effects: list[float] = []
        self.malformed: list[str] = []
        self.signalled_at: float | None = None
        self.closed_at = 0.0
        self.exit_code: int | None = None
        self.output = ""
        self._lock = threading.Lock()
        self._is_closed = False

    def add(self, said: Said) -> None:
        """A worker said something."""
        with self._lock:
            if not self._is_closed:
                self.said.append(said)

    def add_effect(self, at: float) -> None:
        """A handler had an effect."""
        with self._lock:
            if not self._is_closed:
                self.effects.append(at)

    def add_malformed(self, what: str) -> None:
        """A worker sent what the protocol does not have."""
        with self._lock:
            if not self._is_closed:
                self.malformed.append(what)

    def close(self, at: float) -> None:
        """What comes now is not judged any more."""
        with self._lock:
            self._is_closed = True
            self.closed_at = at

    # --- reading -------------------------------------------------------------------------------

    def all(self, *ops: Op) -> list[Said]:
        """What was said of these kinds, in order."""
        with self._lock:
            return [said for said in self.said if said.op in ops or not ops]

    def reports(self) -> list[Said]:
        """Completions, failures and releases."""
        return [said for said in self.all() if said.op.settles]

    def heard(self, *kinds: VerdictKind) -> list[Said]:
        """What was answered with one of these verdicts, and could be heard."""
        return [said for said in self.all() if said.was_answered and said.verdict in kinds]

    def after(self, verdict: Said, in_flight_s: float, *ops: Op) -> Iterator[Said]:
        """What was said under the same lease once the verdict was known."""
        assert verdict.answered_at is not None
        for said in self.all(*ops):
            if said.who == verdict.who and said.at > verdict.answered_at + in_flight_s:
                yield said

    def repeats(self) -> Iterator[tuple[Said, Said]]:
        """Each request that got no answer, with the next one of its family."""
        waiting: dict[tuple[str, str], Said] = {}
        for said in self.all(Op.CLAIM, Op.START, Op.COMPLETE, Op.FAIL, Op.RELEASE):
            key = (said.who, said.family)
            before = waiting.get(key)
            if before is not None and not before.was_answered:
                yield before, said
            waiting[key] = said
