"""Real `tenure worker` processes over a real store, and a coordinator to watch them with."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from tenure.client.channel import Link
from tenure.coordinator.service import Coordinator
from tenure.core.commands import Cancel, Enqueue
from tenure.core.events import Event
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    JobId,
    Kind,
    RequestId,
    client_actor,
    new_job_id,
)
from tenure.core.job import Job
from tenure.core.vocabulary import CancelMode, EventType, JobStatus
from tenure.settings import limits_from_environment
from tenure.verify import verify
from tenure.wiring import open_store
from tenure.worker.application import load_registry
from tests.e2e.app import app
from tests.support.commands import ROOT, TENURE, command
from tests.support.freezing import freeze_without_lock
from tests.support.waiting import until

APP = "tests.e2e.app:app"
EACH_DATABASE = pytest.mark.parametrize("site", ["sqlite", "postgres"], indirect=True)
BOUNDS = "1s,120s"
CLIENT = client_actor("tests")


class Site:
    """One store, its workers, and what can be asked about its jobs."""

    def __init__(self, url: str, *, settings: Mapping[str, str] | None = None) -> None:
        """`settings` are variables of the environment for the workers and commands of this site."""
        self.url = url
        self.store = open_store(url, migrate=True)
        limits = limits_from_environment({"TENURE_LEASE_BOUNDS": BOUNDS})
        self.coordinator = Coordinator(self.store, limits=limits)
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._application, self._registry = APP, app.registry
        self._environment = os.environ | {
            "TENURE_URL": url,
            "TENURE_LEASE_BOUNDS": BOUNDS,
            "LEDGER_URL": url,
            **(settings or {}),
        }

    def deploy(self, application: str) -> None:
        """Have workers and jobs of another application than the usual one."""
        self._application, self._registry = application, load_registry(application)

    def start(
        self,
        name: str,
        *words: str,
        concurrency: int = 2,
        grace: str = "20s",
        talk: Path | None = None,
    ) -> None:
        """A worker process; jobs wait for it, so nobody else has to. It talks to a file, or to
        whoever reads the tests."""
        given = ["worker", self._application, "--name", name, "--grace", grace]
        given += ["-c", str(concurrency), *words]
        with nullcontext() if talk is None else talk.open("wb") as stderr:
            self.workers[name] = subprocess.Popen(
                [*TENURE, *given], cwd=ROOT, env=self._environment, stderr=stderr
            )

    def tenure(self, *words: str) -> "subprocess.CompletedProcess[bytes]":
        """A command of the `tenure` program on this store."""
        return command(*words, environment=self._environment)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a worker's supervisor alone."""
        self.workers[name].send_signal(number)

    def freeze(self, name: str) -> None:
        """SIGSTOP, while the worker does not hold SQLite's only write lock."""
        freeze_without_lock(self.workers[name].pid, self.url)

    def enqueue(self, kind: str, **arguments: object) -> JobId:
        """A job of the test application, under the policy its decorator gave it."""
        handler = self._registry.get(Kind(kind))
        assert handler is not None
        job_id = new_job_id(self.store.now(), os.urandom(16))
        self.coordinator.execute(
            Enqueue(
                job_id=job_id,
                namespace=DEFAULT_NAMESPACE,
                queue=handler.queue,
                kind=handler.kind,
                actor=CLIENT,
                payload=msgspec.json.encode(arguments),
                policy=handler.policy,
            )
        )
        return job_id

    def call(self, kind: str, /, *, to: str | None = None, **arguments: object) -> JobId:
        """A job as the application itself enqueues it: checked, and with all its policy."""
        link = Link(coordination=self.coordinator, close=lambda: None)
        with app.channel.diverted(link):
            if to is None:
                return app.enqueue(kind, arguments).id
            return app.enqueue(kind, arguments, queue=to).id

    def job(self, job_id: JobId) -> Job:
        """The row as it is."""
        return self.store.jobs.load([job_id]).jobs[job_id]

    def events(self, job_id: JobId) -> list[Event]:
        """The job's history."""
        return self.store.events.load([job_id])[job_id]

    def types(self, job_id: JobId) -> list[EventType]:
        """What happened, renewals left out."""
        renewals = (EventType.LEASE_RENEWED, EventType.HEARTBEAT)
        return [event.type for event in self.events(job_id) if event.type not in renewals]

    def until_status(self, job_id: JobId, *statuses: JobStatus) -> Job:
        """Wait until the job is in one of these."""
        until(
            lambda: self.job(job_id).status in statuses,
            f"{job_id} is {statuses}",
            seen=lambda: self.job(job_id),
        )
        return self.job(job_id)

    def until_ended(self, job_id: JobId) -> Job:
        """Wait until the job is finished."""
        until(
            lambda: self.job(job_id).status.is_terminal,
            f"{job_id} has ended",
            seen=lambda: self.job(job_id),
        )
        return self.job(job_id)

    def cancel(self, job_id: JobId, mode: CancelMode) -> None:
        """Cancel as a client."""
        self.coordinator.execute(
            Cancel(
                job_id=job_id,
                actor=CLIENT,
                request_id=RequestId(f"cancel-{job_id}-{mode}"),
                mode=mode,
            )
        )

    def close(self) -> None:
        """Stop what was started, by pid, and check what it left behind."""
        for process in self.workers.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()
        self.coordinator.close()
        report = verify(self.store)
        self.store.close()
        assert report.violated == [], [finding.first for finding in report.findings]
