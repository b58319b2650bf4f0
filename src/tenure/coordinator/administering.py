"""What operators look at and set: lists, queues and workers, straight from the store.

Nothing here decides about a job; what does is a command like any other.
"""

from collections.abc import Sequence

from tenure.core.claims import QueueState
from tenure.core.ids import JobId, Namespace, QueueName, WorkerId
from tenure.core.job import Job
from tenure.core.resolutions import Resolution
from tenure.core.workers import WorkerSeen
from tenure.ports import DeadLetter, JobFilter, Store


class Administered:
    """The part of `tenure.ports.Administration` that is not `Coordination`."""

    store: Store

    def list_jobs(self, wanted: JobFilter) -> list[Job]:
        """A page of jobs, newest first."""
        return self.store.list_jobs(wanted)

    def list_dead_letters(self, wanted: JobFilter) -> list[DeadLetter]:
        """A page of dead letters, newest first."""
        jobs = self.store.list_jobs(wanted)
        resolutions = self.store.load_resolutions([job.id for job in jobs])
        return [DeadLetter(job, resolutions.get(job.id)) for job in jobs]

    def load_resolutions(self, ids: Sequence[JobId]) -> dict[JobId, Resolution]:
        """What became of these dead letters."""
        return self.store.load_resolutions(ids)

    def list_queues(self, namespace: Namespace) -> list[QueueState]:
        """Every queue that has jobs or settings."""
        return self.store.queues(namespace)

    def put_queue(
        self, namespace: Namespace, name: QueueName, *, paused: bool | None, limit: int | None
    ) -> QueueState:
        """Pause, resume or limit a queue."""
        return self.store.put_queue(namespace, name, paused=paused, limit=limit)

    def list_workers(self, namespace: Namespace) -> list[WorkerSeen]:
        """The workers that were seen lately."""
        return self.store.list_workers(namespace)

    def request_drain(self, namespace: Namespace, worker: WorkerId) -> bool:
        """Ask a worker to finish and stop."""
        return self.store.request_drain(namespace, worker)
