"""A proxy that swallows answers: the request arrives and is carried out, its answer never comes.

Understands just enough HTTP to tell one answer from the next. Counts them, in the order in which
they come back from the server.
"""

import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)
_LINE = re.compile(rb"^(\w+) (\S+) HTTP")
PIECE_BYTES = 64 << 10


class SwallowingProxy:
    """Forwards to `port`; drops each answer for whose number and request `swallows` says so."""

    def __init__(self, port: int, swallows: Callable[[int, str], bool]) -> None:
        self._port = port
        self._swallows = swallows
        self._lock = threading.Lock()
        self.answers: list[str] = []
        self.swallowed: list[str] = []
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listening.getsockname()[1]}"

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            while True:
                try:
                    request = read_message(client)
                    if not request:
                        return
                    server.sendall(request)
                    answer = read_message(server)
                except OSError:  # one of the two has gone
                    return
                if not self._passes(request):
                    return  # the connection ends, and with it the hope for an answer
                with suppress(OSError):
                    client.sendall(answer)

    def _passes(self, request: bytes) -> bool:
        found = _LINE.match(request)
        assert found is not None
        name = f"{found[1].decode()} {found[2].decode()}"
        with self._lock:
            self.answers.append(name)
            if not self._swallows(len(self.answers), name):
                return True
            self.swallowed.append(name)
            return False


def read_message(source: socket.socket) -> bytes:
    """A whole request or answer; empty at the end of the connection."""
    data = b""
    while _HEAD_END not in data:
        piece = source.recv(PIECE_BYTES)
        if not piece:
            return b""
        data += piece
    head, _, body = data.partition(_HEAD_END)
    length = _LENGTH.search(head)
    missing = (0 if length is None else int(length[1])) - len(body)
    while missing > 0:
        piece = source.recv(PIECE_BYTES)
        if not piece:
            return b""
        data += piece
        missing -= len(piece)
    return data
