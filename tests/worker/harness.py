"""A coordinator, a worker in a thread or a process, and short words for what its tests do.

Time is real here: these tests are about processes and signals. Leases are short, waits generous.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tenure.coordinator.service import Coordinator
from tenure.coordinator.sweeper import Sweeper
from tenure.core.commands import Cancel, Enqueue
from tenure.core.ids import (
    DEFAULT_NAMESPACE,
    JobId,
    Kind,
    QueueName,
    RequestId,
    client_actor,
    new_job_id,
)
from tenure.core.instants import seconds
from tenure.core.job import Job
from tenure.core.policy import Backoff, LeaseBounds, Policy
from tenure.core.validation import Limits
from tenure.core.verdicts import Reply
from tenure.core.vocabulary import CancelMode, JobStatus
from tenure.ports import Store
from tenure.stores.sqlite.memory import MemoryStore
from tenure.verify import assert_holds
from tenure.worker.application import load_registry
from tenure.worker.session.messages import Stats
from tenure.worker.supervisor.options import WorkerOptions
from tenure.worker.supervisor.worker import Worker
from tests.support.waiting import PATIENCE_S, until
from tests.worker.sample import APP

CLIENT = client_actor("tests")
QUEUE = QueueName("default")
LIMITS = Limits(lease=LeaseBounds(shortest_us=seconds(0.2), longest_us=seconds(120)))
POLICY = Policy(
    lease_us=seconds(1),
    max_attempts=3,
    backoff=Backoff(initial_us=seconds(0.05), cap_us=seconds(0.1)),
    grace_us=seconds(5),
)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # gone, or going while it was read
        return False
    return state not in ("Z", "X")


def read_pids(file: Path) -> list[int]:
    """What a job wrote about its processes, once it has."""
    until(lambda: file.exists() and file.read_text(), f"{file.name} is written")
    return [int(word) for word in file.read_text().split()]


class Shop:
    """A store, its coordinator and sweeper, and the workers of one test."""

    def __init__(self, store: Store | None = None) -> None:
        self.store: Store = store or MemoryStore()
        self.coordinator = Coordinator(self.store, limits=LIMITS)
        self.sweeper = Sweeper(self.coordinator, interval_us=seconds(0.1))
        self._workers: list[tuple[Worker, threading.Thread]] = []

    # --- jobs -----------------------------------------------------------------------------------

    def enqueue(
        self,
        kind: str,
        arguments: dict[str, Any] | None = None,
        *,
        policy: Policy = POLICY,
        payload: bytes | None = None,
        queue: QueueName = QUEUE,
    ) -> JobId:
        job_id = new_job_id(self.store.now(), os.urandom(16))
        body = msgspec.json.encode(arguments or {}) if payload is None else payload
        reply = self.coordinator.execute(
            Enqueue(
                job_id=job_id,
                namespace=DEFAULT_NAMESPACE,
                queue=queue,
                kind=Kind(kind),
                actor=CLIENT,
                payload=body,
                policy=policy,
            )
        )
        assert isinstance(reply, Reply)
        for worker, _ in self._workers:
            worker.wake()
        return job_id

    def cancel(self, job_id: JobId, mode: CancelMode) -> None:
        self.coordinator.execute(
            Cancel(
                job_id=job_id,
                actor=CLIENT,
                request_id=RequestId(os.urandom(8).hex()),
                mode=mode,
                reason="enough",
            )
        )

    def job(self, job_id: JobId) -> Job:
        return self.store.jobs.load([job_id]).jobs[job_id]

    def wait(self, job_id: JobId, *statuses: JobStatus, within_s: float = PATIENCE_S) -> Job:
        """The job once it is in one of these statuses; any terminal one if none is given."""

        def arrived() -> bool:
            status = self.job(job_id).status
            return status in statuses if statuses else status.is_terminal

        what = f"{job_id} is {statuses or 'finished'}"
        until(arrived, what, within_s=within_s, seen=lambda: self.job(job_id))
        return self.job(job_id)

    def types(self, job_id: JobId) -> list[str]:
        return [event.type.value for event in self.store.events.load([job_id])[job_id]]

    # --- workers --------------------------------------------------------------------------------

    def start(self, application: str = APP, **options: Any) -> Worker:
        """A worker in a thread of this process; its children are real."""
        defaults: dict[str, Any] = {
            "concurrency": 2,
            "longest_poll_us": seconds(0.1),
            "grace_us": seconds(10),
            "warm_children": 1,
        }
        worker = Worker(
            self.coordinator,
            load_registry(application),
            app=application,
            options=WorkerOptions(**(defaults | options)),
        )
        thread = threading.Thread(target=worker.run, name="worker")
        thread.start()
        self._workers.append((worker, thread))
        return worker

    def stop(self, worker: Worker, *, times: int = 1) -> Stats:
        """Stop it and wait for its end."""
        for _ in range(times):
            worker.stop()
        return self.join(worker)

    def join(self, worker: Worker) -> Stats:
        """Wait for its end."""
        for each, thread in self._workers:
            if each is worker:
                thread.join(PATIENCE_S)
                assert not thread.is_alive(), "the worker did not stop"
        return worker.stats

    def output_of(self, job_id: JobId) -> bytes:
        """What its last attempt has printed, once it is stored."""
        until(lambda: self.store.artifacts.logs(job_id), "its output is stored")
        return self.store.artifacts.logs(job_id)[-1].text.encode()

    def close(self) -> None:
        for worker, _ in self._workers:
            worker.stop()
            worker.stop()
        for _, thread in self._workers:
            thread.join(PATIENCE_S)
        self.sweeper.stop()
        self.coordinator.close()


@contextmanager
def open_shop(store: Store | None = None) -> Iterator[Shop]:
    """A shop whose history must hold when the test is over."""
    shop = Shop(store)
    shop.sweeper.start()
    try:
        yield shop
    finally:
        shop.close()
    assert_holds(shop.store)
    shop.store.close()
