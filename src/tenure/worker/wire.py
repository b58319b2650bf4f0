"""What supervisor and child say to each other: length-prefixed msgpack frames on a socket pair.

No pickle, and no lease id unless a handler asks for its own: a child knows its attempts by a local
number, so user code that gets hold of the socket can at most spoil the attempts of its own process.
"""

import socket
import struct
import threading

import msgspec

from tenure.core.ids import Actor, JobId, Kind, LeaseId, QueueName
from tenure.core.instants import Duration
from tenure.core.job import Progress
from tenure.core.vocabulary import Cause
from tenure.handlers.context import Call
from tenure.handlers.registry import Isolation
from tenure.worker.clock import Boot
from tenure.worker.outcomes import FromChild

_LENGTH = struct.Struct(">I")
READ_BYTES = 256 * 1024
FRAME_OVERHEAD_BYTES = 256 * 1024  # what a frame may hold besides one body
SAID_BYTES = 16 * 1024


class Setup(msgspec.Struct, frozen=True, tag="setup", kw_only=True):
    """The first frame: what the child serves and within which limits."""

    app: str
    lane: Isolation
    path: tuple[str, ...]
    body_bytes: int
    depth: int
    memory_bytes: int | None = None


class Run(msgspec.Struct, frozen=True, tag="run", kw_only=True):
    """Run this attempt; `until` is when its lease ends unless it is renewed."""

    run: int
    job_id: JobId
    kind: Kind
    queue: QueueName
    attempt: int
    fence: int
    correlation_id: str | None
    checkpoint: bytes | None
    payload: bytes
    until: Boot
    trace_id: str | None = None


class Renewed(msgspec.Struct, frozen=True, tag="renewed"):
    """The lease now lasts until then."""

    run: int
    until: Boot


class SoftCancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Ask the handler to stop, and say why."""

    run: int
    reason: str


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The attempt has no authority any more: stop it."""

    run: int


class Lent(msgspec.Struct, frozen=True, tag="lent"):
    """The lease of an attempt whose handler completes it in a transaction of its own."""

    run: int
    lease_id: LeaseId
    actor: Actor


class Staged(msgspec.Struct, frozen=True, tag="staged"):
    """An artifact is stored; or why not: the lease, the artifact itself, or the store."""

    run: int
    number: int
    cause: Cause | None = None
    problem: str = ""
    failure: str = ""


class FollowUpAnswer(msgspec.Struct, frozen=True, tag="follow_up_answer"):
    """A follow-up is stored; or why not: the lease, the call itself, the token, or the store."""

    run: int
    number: int
    job_id: JobId | None = None
    is_new: bool = False
    cause: Cause | None = None
    field: str = ""
    problem: str = ""
    hint: str = ""
    refusal: str = ""
    failure: str = ""


class Retire(msgspec.Struct, frozen=True, tag="retire"):
    """Finish what runs, then exit."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The application is imported; attempts may come."""


class Ended(msgspec.Struct, frozen=True, tag="ended", kw_only=True):
    """An attempt's handler is gone, and this is how it went."""

    run: int
    outcome: FromChild
    rss_bytes: int = 0


class Saved(msgspec.Struct, frozen=True, tag="saved"):
    """A checkpoint for the next attempt."""

    run: int
    checkpoint: bytes


class Progressed(msgspec.Struct, frozen=True, tag="progressed"):
    """How far the handler says it is."""

    run: int
    progress: Progress


class ArtifactPart(msgspec.Struct, frozen=True, tag="part"):
    """A piece of a file that an attempt leaves behind."""

    run: int
    body: bytes


class ArtifactEnd(msgspec.Struct, frozen=True, tag="artifact"):
    """That was all of it; answered with `Staged`."""

    run: int
    number: int
    name: str
    media_type: str


class FollowUpWanted(msgspec.Struct, frozen=True, tag="follow_up"):
    """A job that the handler enqueues; answered with `FollowUpAnswer`."""

    run: int
    number: int
    step: str
    call: Call


class LeaseWanted(msgspec.Struct, frozen=True, tag="lease_wanted"):
    """The handler is about to complete its attempt in a transaction of its own."""

    run: int


class Settled(msgspec.Struct, frozen=True, tag="settled"):
    """The handler has committed its attempt's success; the report will be a replay."""

    run: int
    result: bytes


class Said(msgspec.Struct, frozen=True, tag="said"):
    """Output of an attempt that shares its process with others."""

    run: int
    text: str


class Blocked(msgspec.Struct, frozen=True, tag="blocked"):
    """The event loop has not turned for this long; `stack` shows what it is doing."""

    for_us: Duration
    stack: str


ToChild = Setup | Run | Renewed | SoftCancel | Lost | Lent | Staged | FollowUpAnswer | Retire
ToSupervisor = (
    Ready
    | Ended
    | Saved
    | Progressed
    | ArtifactPart
    | ArtifactEnd
    | FollowUpWanted
    | LeaseWanted
    | Settled
    | Said
    | Blocked
)

_encode = msgspec.msgpack.Encoder().encode
_to_child: msgspec.msgpack.Decoder[ToChild] = msgspec.msgpack.Decoder(ToChild)
_to_supervisor: msgspec.msgpack.Decoder[ToSupervisor] = msgspec.msgpack.Decoder(ToSupervisor)
decode_to_child = _to_child.decode
decode_to_supervisor = _to_supervisor.decode


class FrameError(Exception):
    """The other side broke the protocol."""


def encode_frame(message: ToChild | ToSupervisor) -> bytes:
    """A message as it goes over the socket."""
    body = _encode(message)
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a stream of bytes into frames; refuses frames over the limit before storing them."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete with this piece."""
        self._buffer += data
        frames: list[bytes] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer, start)
            if size > self._max_bytes:
                raise FrameError(f"a frame of {size} bytes is over the limit of {self._max_bytes}")
            end = start + _LENGTH.size + size
            if len(self._buffer) < end:
                break
            frames.append(bytes(self._buffer[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return frames


class Channel:
    """The child's end: blocking, any thread may send, one thread receives."""

    def __init__(self, sock: socket.socket, *, max_bytes: int) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._reader = FrameReader(max_bytes=max_bytes)
        self._received: list[bytes] = []

    def send(self, message: ToSupervisor) -> None:
        """Whole frames only, whoever sends."""
        frame = encode_frame(message)
        with self._lock:
            self._sock.sendall(frame)

    def receive(self) -> ToChild | None:
        """The next message; None when the supervisor is gone."""
        while not self._received:
            try:
                data = self._sock.recv(READ_BYTES)
            except ConnectionError:
                return None
            if not data:
                return None
            self._received = self._reader.feed(data)
        return decode_to_child(self._received.pop(0))
