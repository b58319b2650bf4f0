"""Ways to make a store hang: it takes requests and does not answer them, and nothing is reset."""

import os
import signal
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

PIECE_BYTES = 64 << 10
STOP_WITHIN_S = 10.0


@contextmanager
def write_lock(path: Path) -> Iterator[None]:
    """Another connection holds a SQLite file's write lock."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield
        holder.execute("ROLLBACK")


@contextmanager
def frozen(postmaster: int) -> Iterator[None]:
    """A PostgreSQL whose every process stands still."""
    os.kill(postmaster, signal.SIGSTOP)  # first: then there are no new children
    stopped = [postmaster, *_children(postmaster)]
    try:
        for pid in stopped[1:]:
            with suppress(ProcessLookupError):  # ended by itself
                os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in reversed(stopped):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(pid) for pid in tasks.split()]


class SilentProxy:
    """Forwards bytes to a local port, except while it is `silent`: then it takes them and forwards
    nothing, in either direction."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._flows = threading.Event()
        self._flows.set()
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where to connect to."""
        port: int = self._listening.getsockname()[1]
        return port

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Nothing passes; connections are accepted and stay open."""
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    def close(self) -> None:
        """Accept no more connections; the open ones end with their peers."""
        self._flows.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(STOP_WITHIN_S)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._flows.wait()
        with client, socket.create_connection(("127.0.0.1", self._port)) as server:
            back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
            back.start()
            self._pump(client, server)
            back.join(STOP_WITHIN_S)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # one of the two has gone
            while piece := source.recv(PIECE_BYTES):
                self._flows.wait()
                sink.sendall(piece)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
