"""How a child talks to its supervisor: the socket, and what a handler asks and waits for."""

import socket
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar, assert_never

import msgspec

from tenure.errors import (
    Cancelled,
    InvalidInput,
    LeaseConflictError,
    PermanentError,
    TenureError,
    TransientError,
)
from tenure.handlers.options import as_option
from tenure.worker.frames import (
    READ_BYTES,
    Ask,
    AskAnswer,
    Authority,
    BorrowLease,
    FrameReader,
    Question,
    Refusal,
    ToChild,
    ToSupervisor,
    decode_to_child,
    encode_frame,
)

LEASE_CHECK_S = 0.1

_T = TypeVar("_T")


class FrameSocket:
    """The child's end of the socket: blocking, any thread may send, one thread receives."""

    def __init__(self, sock: socket.socket, *, max_bytes: int) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._reader = FrameReader(max_bytes=max_bytes)

    def send(self, *messages: ToSupervisor) -> None:
        """Send frames together; frames of several threads do not mix."""
        frames = encode_frame(*messages)
        with self._lock:
            self._sock.sendall(frames)

    def receive(self) -> list[ToChild]:
        """The next messages; none when the supervisor is gone."""
        frames: list[bytes] = []
        while not frames:
            try:
                data = self._sock.recv(READ_BYTES)
            except ConnectionError:
                return []
            if not data:
                return []
            frames = self._reader.feed(data)
        return [message for frame in frames for message in decode_to_child(frame)]


class Asks:
    """What one attempt asks of its supervisor, one question at a time. Any thread."""

    def __init__(
        self, run: int, send: Callable[[ToSupervisor], None], still_mine: Callable[[], bool]
    ) -> None:
        self._run = run
        self._send = send
        self._still_mine = still_mine
        self._lock = threading.RLock()
        self._last_id = 0
        self._answers: SimpleQueue[AskAnswer] = SimpleQueue()
        self._authority: Authority | None = None
        self._made: set[str] = set()  # ids of jobs and flows

    def ask(self, what: Question, result: type[_T] | None) -> _T:
        """Ask and wait; the result is of this type. Raises why there is none, or `Cancelled` if the
        lease is lost before the answer comes."""
        with self._lock:
            self._last_id += 1
            self._send(Ask(self._run, self._last_id, what))
            answer = self._wait_for(self._last_id)
        if answer.refused is not None:
            raise _error_of(answer.refused)
        found: _T = msgspec.msgpack.decode(answer.result, type=result)
        return found

    def ask_once(self, made_id: str, twice: InvalidInput, what: Question, result: type[_T]) -> _T:
        """Ask for what an attempt makes under one id; raises `twice` if it has made it."""
        with self._lock:
            if made_id in self._made:
                raise twice
            made = self.ask(what, result)
            self._made.add(made_id)
        return made

    def authority(self) -> Authority:
        """The lease, which the supervisor lends once."""
        with self._lock:
            if self._authority is None:
                self._authority = self.ask(BorrowLease(), Authority)
            return self._authority

    def _wait_for(self, ask_id: int) -> AskAnswer:
        while True:
            try:
                answer = self._answers.get(timeout=LEASE_CHECK_S)
            except Empty:
                if not self._still_mine():
                    raise Cancelled("the lease is lost") from None
                continue
            if answer.id == ask_id:  # else it answers a question that was abandoned
                return answer

    def answered(self, answer: AskAnswer) -> None:
        """The supervisor's answer. Any thread."""
        self._answers.put(answer)


def _error_of(refused: Refusal) -> TenureError:
    match refused.why:
        case "invalid":
            return as_option(InvalidInput(refused.field, refused.problem, hint=refused.hint))
        case "lost":
            return LeaseConflictError(refused.problem)
        case "forbidden":
            return PermanentError(refused.problem)
        case "unavailable":
            return TransientError(refused.problem, dependency_unavailable=True)
        case _:
            assert_never(refused.why)
