"""Worker processes in the reference store."""

from msgspec.structs import replace

from tenure.core.ids import Namespace, WorkerId
from tenure.core.instants import Duration
from tenure.core.workers import (
    FIRST_WORKER,
    KnownStart,
    WorkerKey,
    WorkerProcess,
    WorkerSeen,
    start_of,
)
from tenure.ports import NO_LIMIT
from tests.conformance.reference.part import MemoryPart


class MemoryWorkers(MemoryPart):
    """The part of `tenure.ports.Store` about worker processes."""

    def __init__(self) -> None:
        super().__init__()
        self._processes: dict[tuple[str, str, str], WorkerSeen] = {}
        self._instances: dict[tuple[str, str, str], str] = {}

    def see_worker(self, process: WorkerProcess) -> bool:
        """Record that this worker is alive. Returns whether it was asked to drain."""
        with self._lock:
            self._open()
            now = self._clock()
            key = (process.namespace, process.worker, process.actor)
            before = self._processes.get(key)
            if process.is_ending:
                if before and (before.host, before.pid) == (process.host, process.pid):
                    del self._processes[key]
                return False
            known = None if before is None else KnownStart(before.started_at, self._instances[key])
            self._instances[key] = process.instance
            seen = WorkerSeen(
                namespace=process.namespace,
                worker=process.worker,
                actor=process.actor,
                host=process.host,
                pid=process.pid,
                queues=process.queues,
                kinds=process.kinds,
                schedules=process.schedules,
                concurrency=process.concurrency,
                version=process.version,
                started_at=start_of(process, known, now=now),
                seen_at=now,
                drain_requested_at=None if before is None else before.drain_requested_at,
                drain_reported=process.is_draining,
            )
            self._processes[key] = seen
            return seen.has_drain_request

    def list_workers(
        self, namespace: Namespace, *, after: WorkerKey = FIRST_WORKER, limit: int = NO_LIMIT
    ) -> list[WorkerSeen]:
        """The workers that were seen lately, by name."""
        with self._lock:
            self._open()
            found = [seen for key, seen in sorted(self._processes.items()) if key[0] == namespace]
        return [seen for seen in found if seen.key > after][:limit]

    def request_drain(self, namespace: Namespace, worker: WorkerId) -> bool:
        """Ask the processes of this name to finish and stop. Returns whether there is one."""
        with self._lock:
            self._open()
            named = [key for key in self._processes if key[:2] == (namespace, worker)]
            for key in named:
                seen = self._processes[key]
                self._processes[key] = replace(seen, drain_requested_at=self._clock())
            return bool(named)

    def delete_workers(self, *, older_than_us: Duration, limit: int) -> int:
        """Delete workers that were not seen for this long. Returns how many."""
        with self._lock:
            self._open()
            before = self._clock() - older_than_us
            silent = sorted(
                (seen.seen_at, key)
                for key, seen in self._processes.items()
                if seen.seen_at < before
            )[:limit]
            for _, key in silent:
                del self._processes[key]
            return len(silent)
