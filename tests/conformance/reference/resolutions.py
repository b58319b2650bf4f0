"""Resolutions of dead letters in the reference store."""

from collections.abc import Collection, Sequence

from tenure.core.ids import JobId
from tenure.core.verdicts import Resolution
from tenure.core.views.dead_letter_groups import (
    MAX_GROUPED,
    MAX_HEADLINE,
    DeadLetterGroupFilter,
    DeadLetterGroups,
    Letter,
    group,
)
from tests.conformance.reference.part import MemoryPart


class MemoryResolutions(MemoryPart):
    """The part of `tenure.ports.Store` about resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self._resolutions: dict[JobId, Resolution] = {}

    def resolve(self, resolutions: Sequence[Resolution]) -> frozenset[JobId]:
        """Record each unless its job has one or is gone. Returns the jobs that got one."""
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

    def group_dead_letters(self, wanted: DeadLetterGroupFilter) -> DeadLetterGroups:
        """The newest dead letters without a resolution, by kind and error. [OB31]"""
        with self._lock:
            self._open()
            dead = [
                job
                for job in self._jobs.values()
                if job.namespace == wanted.namespace and job.reason_code is not None
            ]
            newest = sorted(dead, key=lambda job: job.id, reverse=True)
            letters = [
                Letter(
                    job.id,
                    job.queue,
                    job.kind,
                    job.reason_code,
                    job.stage,
                    job.finished_at,
                    job.error.headline[:MAX_HEADLINE],
                    job.flow_id,
                )
                for job in newest[:MAX_GROUPED]
                if job.id not in self._resolutions
                and job.reason_code is not None
                and job.finished_at is not None
                and job.error is not None
            ]
            complete = len(dead) <= MAX_GROUPED
            return group(letters, wanted, now=self._clock(), complete=complete)

    def load_resolutions(self, ids: Sequence[JobId]) -> dict[JobId, Resolution]:
        """What became of these dead letters."""
        with self._lock:
            self._open()
            return {each: self._resolutions[each] for each in ids if each in self._resolutions}

    def _purge_resolutions(self, gone: Collection[JobId]) -> None:
        for job_id in gone:
            self._resolutions.pop(job_id, None)
