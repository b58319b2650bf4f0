"""Real `tenure serve` and `tenure worker` processes, with HTTP as all they have in common."""

import os
import re
import signal
import subprocess
from pathlib import Path

from tenure.core.ids import QueueName
from tenure.core.vocabulary import Role
from tests.e2e.workers import APP, Site
from tests.remote.serving import new_token
from tests.server.processes import Process
from tests.support.commands import ROOT, TENURE, text_command

SECRET = re.compile(r"tenure_[0-9a-f]{16}_[0-9a-f]{64}")


class RemoteSite(Site):
    """A store that only servers and this test reach; workers have an address and a token."""

    def __init__(self, url: str, directory: Path) -> None:
        super().__init__(url)
        self.directory = directory
        self.servers: list[Process] = []
        self.worker_token = self.token("worker", "fleet")
        self.logs: dict[str, Path] = {}

    def token(self, role: str, name: str, *, queues: tuple[QueueName, ...] = ()) -> str:
        """The text of a new token."""
        return new_token(self.store, Role(role), name, queues=queues)

    def serve(self, port: int = 0, **settings: str) -> Process:
        """A server; the first one is everybody's unless another is named. `settings` are variables
        of its environment."""
        command = [*TENURE, "serve", "--port", str(port)]
        server = Process(command, self._environment | settings, self.directory)
        self.servers.append(server)
        return server

    def environment(self, address: str, token: str) -> dict[str, str]:
        """What a process needs to know to ask a server: no store, no bounds."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TENURE_")}
        return kept | {"TENURE_URL": address, "TENURE_TOKEN": token}

    def work(self, name: str, address: str, application: str = APP, **settings: str) -> None:
        """A worker of a server. `settings` are variables of its environment."""
        given = ["worker", application, "--name", name, "-c", "2", "-v"]
        self.logs[name] = self.directory / f"{name}.log"
        with self.logs[name].open("wb") as log:
            self.workers[name] = subprocess.Popen(
                [*TENURE, *given],
                cwd=ROOT,
                env=self.environment(address, self.worker_token) | settings,
                stderr=log,
            )

    def ask(self, address: str, token: str, *words: str) -> "subprocess.CompletedProcess[str]":
        """A command of the `tenure` program, of a server."""
        return text_command(*words, environment=self.environment(address, token))

    def close(self) -> None:
        for process in self.workers.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        for server in self.servers:
            server.close()
        super().close()
        for log in [*self.logs.values(), *self.directory.glob("server-*.log")]:
            assert not SECRET.search(log.read_text()), f"{log.name} shows a token"
