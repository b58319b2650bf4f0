"""How supervisor and child talk: length-prefixed msgpack frames on a socket pair. No pickle."""

import socket
import struct
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

import msgspec

from tenure.errors import Cancelled
from tenure.worker.messages import ToChild, ToSupervisor

_LENGTH = struct.Struct(">I")
READ_BYTES = 64 * 1024  # larger ones are mapped and unmapped by the allocator, each time
LEASE_CHECK_S = 0.1
FRAME_OVERHEAD_BYTES = 256 * 1024  # what a frame may hold besides one body

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
        self._rest = bytearray()  # the beginning of a frame

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete with this piece."""
        if self._rest:
            self._rest += data
            frames, end = self._cut(self._rest)
            del self._rest[:end]
        else:  # as a rule: whole frames, which need not be copied first
            frames, end = self._cut(data)
            self._rest += data[end:]
        return frames

    def _cut(self, buffer: bytes | bytearray) -> tuple[list[bytes], int]:
        """The complete frames, and where the last of them ends."""
        frames: list[bytes] = []
        start, length = 0, len(buffer)
        while length - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, start)
            if size > self._max_bytes:
                raise FrameError(f"a frame of {size} bytes is over the limit of {self._max_bytes}")
            end = start + _LENGTH.size + size
            if length < end:
                break
            frames.append(bytes(buffer[start + _LENGTH.size : end]))
            start = end
        return frames, start


class Channel:
    """The child's end: blocking, any thread may send, one thread receives."""

    def __init__(self, sock: socket.socket, *, max_bytes: int) -> None:
        self._sock = sock
        self._lock = threading.Lock()
        self._reader = FrameReader(max_bytes=max_bytes)

    def send(self, *messages: ToSupervisor) -> None:
        """Send frames together; those of several threads do not mix."""
        frames = b"".join(map(encode_frame, messages))
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
        return [decode_to_child(frame) for frame in frames]


class Numbered(Protocol):
    """An answer that says which request it is about."""

    @property
    def number(self) -> int:
        """The request's number."""


_A = TypeVar("_A", bound=Numbered)


class Answers(Generic[_A]):
    """The answers to one attempt's requests of one sort. Callers hold a lock of their own."""

    def __init__(self, still_mine: Callable[[], bool]) -> None:
        self._still_mine = still_mine
        self._last_number = 0
        self._heard: SimpleQueue[_A] = SimpleQueue()

    def next_number(self) -> int:
        """The number of the next request."""
        self._last_number += 1
        return self._last_number

    def wait_for(self, number: int) -> _A:
        """The answer to this request; `Cancelled` if the lease is lost before it comes."""
        while True:
            try:
                answer = self._heard.get(timeout=LEASE_CHECK_S)
            except Empty:
                if not self._still_mine():
                    raise Cancelled("the lease is lost") from None
                continue
            if answer.number == number:  # else it answers a request that was given up
                return answer

    def put(self, answer: _A) -> None:
        """The supervisor's answer. Any thread."""
        self._heard.put(answer)
