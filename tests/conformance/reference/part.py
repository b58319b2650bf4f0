"""What the parts of the reference store share: its lock, its clock and its jobs."""

import threading
from abc import ABC, abstractmethod

from tenure.core.events import Event
from tenure.core.ids import Epoch, JobId
from tenure.core.job import Job
from tenure.ports import Clock


class MemoryPart(ABC):
    """A mixin of `ReferenceStore`, which sets these."""

    _lock: threading.RLock
    _clock: Clock
    _epoch: Epoch
    _jobs: dict[JobId, Job]
    _events: dict[JobId, list[Event]]

    @abstractmethod
    def _open(self) -> None:
        """Raise `Closed` after `close`."""
