"""Artifacts in the reference store."""

from collections.abc import Collection

from tenure.core.artifacts import (
    Artifact,
    ArtifactQuotas,
    ArtifactUpload,
    ArtifactUsage,
    Staging,
    StoredArtifact,
    is_leftover,
    shown_attempt,
    stage,
)
from tenure.core.ids import JobId
from tenure.core.job import Job
from tenure.core.outcomes import Moment, NeedsHistory
from tenure.ports import PruneResult
from tests.conformance.reference.part import MemoryPart

_ArtifactKey = tuple[JobId, int, str]


class MemoryArtifacts(MemoryPart):
    """The part of `tenure.ports.Store` about artifacts."""

    def __init__(self) -> None:
        super().__init__()
        self.artifact_quotas = ArtifactQuotas()
        self._artifacts: dict[_ArtifactKey, StoredArtifact] = {}
        self._last_collected: _ArtifactKey | None = None

    def stage_artifact(self, upload: ArtifactUpload) -> Staging:
        """Keep an artifact if its lease is valid now and the quotas have room."""
        with self._lock:
            self._open()
            job = self._jobs.get(upload.job_id)
            staging = stage(
                job,
                upload,
                Moment(now=self._clock(), epoch=self._epoch, entropy=b""),
                self._events.get(upload.job_id, []),
                usage=self._artifact_usage(job, upload.name),
                quotas=self.artifact_quotas,
            )
            assert not isinstance(staging, NeedsHistory)
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

    def collect_artifacts(self, *, limit: int) -> PruneResult:
        """Delete artifacts that nobody will ever see, among the next `limit` ones."""
        with self._lock:
            self._open()
            after = self._last_collected
            keys = sorted(key for key in self._artifacts if after is None or key > after)[:limit]
            hit_limit = len(keys) == limit
            self._last_collected = keys[-1] if hit_limit else None
            leftover = [key for key in keys if self._is_leftover(key)]
            for key in leftover:
                del self._artifacts[key]
            return PruneResult(len(leftover), hit_limit)

    def _is_leftover(self, key: _ArtifactKey) -> bool:
        job = self._jobs[key[0]]
        return is_leftover(
            key[1], of=job.attempt, leased=job.lease_id is not None, status=job.status
        )

    def _purge_artifacts(self, gone: Collection[JobId]) -> None:
        self._artifacts = {k: v for k, v in self._artifacts.items() if k[0] not in gone}
