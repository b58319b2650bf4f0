"""Real `tenure serve` processes, and callers with sockets of their own."""

import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

from tests.server.harness import Answer
from tests.support.commands import ROOT, TENURE, text_command
from tests.support.waiting import PATIENCE_S, answer_of

CERTIFICATE = Path(__file__).with_name("certificates") / "localhost.crt"
KEY = CERTIFICATE.with_suffix(".key")


class Process:
    """A server; its address is what it prints first."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        directory: Path,
        *,
        stderr: int | None = None,
    ) -> None:
        self._log = directory / f"server-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self.popen = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log if stderr is None else stderr,
            )
        assert self.popen.stdout is not None
        self.address = (
            answer_of(self.popen.stdout.readline, "the server says its address").decode().strip()
        )
        assert self.address.startswith("http"), self.log
        self.scheme, _, rest = self.address.partition("://")
        host, _, port = rest.rpartition(":")
        self.host, self.port = host, int(port)

    @property
    def log(self) -> str:
        """What it said on stderr so far."""
        return self._log.read_text()

    def connect(self) -> http.client.HTTPConnection:
        """A connection of one's own."""
        if self.scheme == "https":
            trusted = ssl.create_default_context(cafile=str(CERTIFICATE))
            return http.client.HTTPSConnection(
                self.host, self.port, timeout=PATIENCE_S, context=trusted
            )
        return http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)

    def socket(self, *, source: str | None = None) -> socket.socket:
        """A bare one, perhaps from another of this machine's addresses."""
        here = None if source is None else (source, 0)
        return socket.create_connection((self.host, self.port), PATIENCE_S, here)

    def ask(
        self, method: str, path: str, message: object = None, *, token: str | None = None
    ) -> Answer:
        """One request on a connection of its own."""
        connection = self.connect()
        try:
            connection.request(method, path, *body_and_headers(message, token))
            return read(connection)
        finally:
            connection.close()

    def stop(self, kind: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end; its exit code."""
        self.popen.send_signal(kind)
        return self.popen.wait(PATIENCE_S)

    def close(self) -> None:
        """End it however it may be."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(PATIENCE_S)
        assert self.popen.stdout is not None
        self.popen.stdout.close()


def body_and_headers(message: object, token: str | None) -> tuple[bytes | None, dict[str, str]]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    if message is None:
        return None, headers
    return json.dumps(message).encode(), {**headers, "Content-Type": "application/json"}


def read(connection: http.client.HTTPConnection) -> Answer:
    response = connection.getresponse()
    headers = {name.lower(): text for name, text in response.getheaders()}
    return Answer(response.status, headers, response.read())


class House:
    """A store with tokens, and the servers that were started on it."""

    def __init__(self, url: str, directory: Path, **settings: str) -> None:
        """`settings` are variables of the environment of its servers and commands."""
        self.url = url
        self._directory = directory
        self._environment = {
            **os.environ,
            "TENURE_URL": url,
            "TENURE_LEASE_BOUNDS": "1s,120s",
            **settings,
        }
        self._servers: list[Process] = []
        self._set_up("migrate")

    def tenure(self, *words: str, **settings: str) -> "subprocess.CompletedProcess[str]":
        """A command on this store; `settings` are variables of its environment."""
        return text_command(*words, environment=self._environment | settings)

    def token(self, role: str, name: str = "somebody", *words: str) -> str:
        """A new token's text."""
        return self._set_up("tokens", "create", name, "--role", role, *words).strip()

    def _set_up(self, *words: str) -> str:
        """What a command prints that must not fail."""
        done = self.tenure(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def serve(self, *words: str, stderr: int | None = None) -> Process:
        """A server on a free port, with stderr in a file unless it is given."""
        command = [*TENURE, "serve", "--port", "0", *words]
        server = Process(command, self._environment, self._directory, stderr=stderr)
        self._servers.append(server)
        return server

    def close(self) -> None:
        for server in self._servers:
            server.close()
