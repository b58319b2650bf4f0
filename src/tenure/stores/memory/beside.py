"""What the memory store keeps beside the log. A mixin of `MemoryStore`, which owns the jobs."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from tenure.core.beside import (
    MAX_SHOWN_LOGS,
    Artifact,
    ArtifactQuotas,
    ArtifactUpload,
    ArtifactUsage,
    AttemptLog,
    AttemptOutput,
    Resolution,
    Staging,
    StoredArtifact,
    WorkerProcess,
    WorkerSeen,
    is_leftover,
    shown_attempt,
    stage,
)
from tenure.core.deadlines import why_not_on_record
from tenure.core.events import Event
from tenure.core.ids import Epoch, JobId, Namespace, WorkerId
from tenure.core.instants import Duration, Instant
from tenure.core.job import Job
from tenure.core.vocabulary import Cause, EventType
from tenure.ports import Bite, Clock, HealthFact, fact

_ArtifactKey = tuple[JobId, int, str]


class MemoryBeside(ABC):
    """The part of `tenure.ports.Store` that is not about jobs and their events."""

    _lock: threading.RLock
    _clock: Clock
    _epoch: Epoch
    _jobs: dict[JobId, Job]
    _events: dict[JobId, list[Event]]

    def __init__(self) -> None:
        self._resolutions: dict[JobId, Resolution] = {}
        self._artifacts: dict[_ArtifactKey, StoredArtifact] = {}
        self._last_looked_at: _ArtifactKey | None = None
        self._logs: dict[tuple[JobId, int], AttemptLog] = {}
        self._log_parts: dict[tuple[JobId, int], int] = {}
        self._processes: dict[tuple[str, str, str], WorkerSeen] = {}
        self._instances: dict[tuple[str, str, str], str] = {}

    @abstractmethod
    def _open(self) -> None:
        """Raise `Closed` after `close`."""

    def health(self) -> list[HealthFact]:
        """What is true of every store in memory."""
        with self._lock:
            self._open()
            return [
                fact(
                    "store",
                    "memory",
                    warning=True,
                    advice="nothing survives this process; use sqlite:///file.db or PostgreSQL",
                ),
                fact("jobs", len(self._jobs)),
                fact("epoch", self._epoch),
            ]

    def _purge_beside(self, gone: Collection[JobId]) -> None:
        for job_id in gone:
            self._resolutions.pop(job_id, None)
        self._artifacts = {k: v for k, v in self._artifacts.items() if k[0] not in gone}
        self._logs = {k: v for k, v in self._logs.items() if k[0] not in gone}
        self._log_parts = {k: v for k, v in self._log_parts.items() if k[0] not in gone}

    # --- resolutions ---------------------------------------------------------------------------

    def resolve(self, resolutions: Sequence[Resolution]) -> frozenset[JobId]:
        """Record each unless its job has one already or is gone; which were."""
        with self._lock:
            self._open()
            return frozenset(each.job_id for each in resolutions if self._keep_resolution(each))

    def _keep_resolution(self, resolution: Resolution) -> bool:
        if not self._is_unresolved(resolution.job_id):
            return False
        self._resolutions[resolution.job_id] = resolution
        return True

    def _is_unresolved(self, job_id: JobId) -> bool:
        return job_id in self._jobs and job_id not in self._resolutions

    def load_resolutions(self, ids: Sequence[JobId]) -> dict[JobId, Resolution]:
        """What became of these dead letters."""
        with self._lock:
            self._open()
            return {each: self._resolutions[each] for each in ids if each in self._resolutions}

    # --- artifacts -----------------------------------------------------------------------------

    def stage_artifact(self, upload: ArtifactUpload, quotas: ArtifactQuotas) -> Staging:
        """Keep an artifact if its lease is valid now and the quotas have room."""
        with self._lock:
            self._open()
            job = self._jobs.get(upload.job_id)
            staging = stage(
                job,
                upload,
                now=self._clock(),
                epoch=self._epoch,
                usage=self._artifact_usage(job, upload.name),
                quotas=quotas,
            )
            made = staging.artifact
            if made is not None:
                for key in [each for each in self._artifacts if each[0] == made.job_id]:
                    if key[1] < made.attempt:
                        del self._artifacts[key]
                key = (made.job_id, made.attempt, made.name)
                self._artifacts[key] = StoredArtifact(made, upload.body)
            return staging

    def _artifact_usage(self, job: Job | None, name: str) -> ArtifactUsage:
        others, replaced, earlier, of_namespace = [], 0, 0, 0
        for (job_id, attempt, known), stored in self._artifacts.items():
            size = stored.artifact.size
            if job is None or self._jobs[job_id].namespace != job.namespace:
                continue
            of_namespace += size
            if job_id != job.id:
                continue
            if attempt < job.attempt:
                earlier += size
            elif known == name:
                replaced = size
            else:
                others.append(size)
        return ArtifactUsage(
            others=len(others),
            others_bytes=sum(others),
            replaced_bytes=replaced,
            earlier_bytes=earlier,
            namespace_bytes=of_namespace,
        )

    def list_artifacts(self, job_id: JobId) -> list[Artifact]:
        """The artifacts of the attempt that succeeded, by name."""
        with self._lock:
            self._open()
            attempt = shown_attempt(self._jobs.get(job_id))
            return [
                stored.artifact
                for key, stored in sorted(self._artifacts.items())
                if key[:2] == (job_id, attempt)
            ]

    def load_artifact(self, job_id: JobId, name: str) -> StoredArtifact | None:
        """One of them with its body."""
        with self._lock:
            for artifact in self.list_artifacts(job_id):
                if artifact.name == name:
                    return self._artifacts[job_id, artifact.attempt, name]
            return None

    def collect_artifacts(self, *, limit: int) -> Bite:
        """Delete artifacts that nobody will ever see, among the next `limit` ones."""
        with self._lock:
            self._open()
            after = self._last_looked_at
            keys = sorted(key for key in self._artifacts if after is None or key > after)[:limit]
            is_full = len(keys) == limit
            self._last_looked_at = keys[-1] if is_full else None
            leftover = [key for key in keys if self._is_leftover(key)]
            for key in leftover:
                del self._artifacts[key]
            return Bite(len(leftover), is_full)

    def _is_leftover(self, key: _ArtifactKey) -> bool:
        job = self._jobs[key[0]]
        return is_leftover(
            key[1], of=job.attempt, leased=job.lease_id is not None, status=job.status
        )

    # --- the output of attempts ----------------------------------------------------------------

    def put_attempt_log(self, output: AttemptOutput) -> Cause | None:
        """Keep the output of the attempt that this lease was issued for."""
        with self._lock:
            self._open()
            for event in self._events.get(output.job_id, ()):
                if (
                    event.type is EventType.CLAIMED
                    and event.lease_id == output.lease_id
                    and event.actor == output.actor
                ):
                    self._keep_output(output, event.attempt)
                    return None
            return why_not_on_record(
                output.lease_id,
                is_known_job=output.job_id in self._jobs,
                epoch=self._epoch,
                is_settling=False,
            )

    def _keep_output(self, output: AttemptOutput, attempt: int) -> None:
        key = (output.job_id, attempt)
        if output.part > self._log_parts.get(key, -1):
            self._log_parts[key] = output.part
            self._logs[key] = AttemptLog(
                job_id=output.job_id,
                attempt=attempt,
                text=output.text,
                left_out_bytes=output.left_out_bytes,
            )

    def load_attempt_logs(self, job_id: JobId) -> list[AttemptLog]:
        """The kept output of the latest attempts, in order. [B26]"""
        with self._lock:
            self._open()
            logs = [log for key, log in sorted(self._logs.items()) if key[0] == job_id]
            return logs[-MAX_SHOWN_LOGS:]

    # --- worker processes ----------------------------------------------------------------------

    def see_worker(self, process: WorkerProcess) -> bool:
        """Remember that this worker lives; whether it was asked to drain."""
        with self._lock:
            self._open()
            now = self._clock()
            key = (process.namespace, process.worker, process.actor)
            before = self._processes.get(key)
            if process.is_ending:
                if before and (before.host, before.pid) == (process.host, process.pid):
                    del self._processes[key]
                return False
            began = Instant(now - process.uptime_us)
            is_known = process.instance and process.instance == self._instances.get(key)  # [B21]
            self._instances[key] = process.instance
            seen = WorkerSeen(
                namespace=process.namespace,
                worker=process.worker,
                actor=process.actor,
                host=process.host,
                pid=process.pid,
                queues=process.queues,
                kinds=process.kinds,
                concurrency=process.concurrency,
                version=process.version,
                started_at=before.started_at if before and is_known else began,
                seen_at=now,
                drain_requested_at=None if before is None else before.drain_requested_at,
            )
            self._processes[key] = seen
            return seen.draining

    def list_workers(self, namespace: Namespace) -> list[WorkerSeen]:
        """The workers that were seen lately, by name."""
        with self._lock:
            self._open()
            return [seen for key, seen in sorted(self._processes.items()) if key[0] == namespace]

    def request_drain(self, namespace: Namespace, worker: WorkerId) -> bool:
        """Ask the processes of this name to finish and stop; whether there is one."""
        with self._lock:
            self._open()
            named = [key for key in self._processes if key[:2] == (namespace, worker)]
            for key in named:
                seen = self._processes[key]
                self._processes[key] = replace(seen, drain_requested_at=self._clock())
            return bool(named)

    def forget_workers(self, *, older_than_us: Duration, limit: int) -> int:
        """Forget workers that were not seen for this long; how many."""
        with self._lock:
            self._open()
            before = self._clock() - older_than_us
            unseen = sorted(
                (seen.seen_at, key)
                for key, seen in self._processes.items()
                if seen.seen_at < before
            )[:limit]
            for _, key in unseen:
                del self._processes[key]
            return len(unseen)
