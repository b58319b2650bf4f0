"""What the memory store keeps beside the log. A mixin of `MemoryStore`, which owns the jobs."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from tenure.core.beside import Resolution
from tenure.core.ids import JobId
from tenure.core.job import Job


class MemoryBeside(ABC):
    """The part of `tenure.ports.Store` that is not about jobs and their events."""

    _lock: threading.RLock
    _jobs: dict[JobId, Job]

    def __init__(self) -> None:
        self._resolutions: dict[JobId, Resolution] = {}

    @abstractmethod
    def _open(self) -> None:
        """Raise `Closed` after `close`."""

    def _purge_beside(self, gone: Collection[JobId]) -> None:
        for job_id in gone:
            self._resolutions.pop(job_id, None)

    # --- resolutions ---------------------------------------------------------------------------

    def resolve(self, resolutions: Sequence[Resolution]) -> frozenset[JobId]:
        """Record each unless its job has one already or is gone; which were."""
        with self._lock:
            self._open()
            return frozenset(each.job_id for each in resolutions if self._keep_resolution(each))

    def _keep_resolution(self, resolution: Resolution) -> bool:
        if resolution.job_id not in self._jobs or resolution.job_id in self._resolutions:
            return False
        self._resolutions[resolution.job_id] = resolution
        return True

    def load_resolutions(self, ids: Sequence[JobId]) -> dict[JobId, Resolution]:
        """What became of these dead letters."""
        with self._lock:
            self._open()
            return {each: self._resolutions[each] for each in ids if each in self._resolutions}
