"""What a coordinator does beside the log: check what comes in, and hand it to the store.

Artifacts, the output of handlers and signs of life decide nothing about a job; none of it waits
in a queue of commands, and none of it is batched.
"""

from collections.abc import Sequence

from tenure.core.artifacts import Artifact, ArtifactUpload, Staging, StoredArtifact
from tenure.core.attempt_logs import AttemptLog, AttemptOutput
from tenure.core.checks import check_job_id, check_name
from tenure.core.ids import Actor, JobId
from tenure.core.leases import HeldLease, lease_news
from tenure.core.validation import Limits
from tenure.core.vocabulary import Cause, LeaseNews
from tenure.core.workers import WorkerProcess
from tenure.ports import Store


class BesideTheLog:
    """The part of `tenure.ports.Coordination` that is not about commands."""

    store: Store
    limits: Limits

    def stage_artifact(self, upload: ArtifactUpload) -> Staging:
        """Leave a file with the attempt."""
        return self.store.stage_artifact(upload, self.limits.artifacts)

    def list_artifacts(self, job_id: JobId) -> list[Artifact]:
        """The artifacts of the attempt that succeeded, by name."""
        check_job_id("job_id", job_id)
        return self.store.list_artifacts(job_id)

    def load_artifact(self, job_id: JobId, name: str) -> StoredArtifact | None:
        """One of them with its body."""
        check_job_id("job_id", job_id)
        check_name("name", name)
        return self.store.load_artifact(job_id, name)

    def put_attempt_log(self, output: AttemptOutput) -> Cause | None:
        """Keep what a handler wrote; None, or why it was not kept."""
        return self.store.put_attempt_log(output)

    def load_attempt_logs(self, job_id: JobId) -> list[AttemptLog]:
        """The kept output of each attempt, in order."""
        check_job_id("job_id", job_id)
        return self.store.load_attempt_logs(job_id)

    def look(self, leases: Sequence[HeldLease], actor: Actor) -> list[LeaseNews]:
        """Which of an actor's leases deserve a heartbeat now, in this order."""
        rows = self.store.load_leases([lease.job_id for lease in leases])
        return [lease_news(rows.get(each.job_id), each.lease_id, actor) for each in leases]

    def see_worker(self, process: WorkerProcess) -> bool:
        """A worker's sign of life; whether it is to drain."""
        return self.store.see_worker(process)
