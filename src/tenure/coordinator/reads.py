"""Reads that sweep: no reader sees a job as running whose lease is over. [W5]

A store whose reads of jobs have the sweeper record such ends first. A read never fails because the
sweep did, and writes nothing while no lease is over. Decides nothing: the sweeper says when leases
may be expired, and the core what becomes of the job.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from tenure.clock import Boot, boot_now
from tenure.coordinator.service import Coordinator
from tenure.coordinator.sweeper import Sweeper
from tenure.core.ids import JobId
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job
from tenure.core.leases import needs_sweep
from tenure.core.views.job_search import FoundJobs, JobFilter
from tenure.ports import Store
from tenure.telemetry.log_lines import FailureLog

_log = logging.getLogger("tenure.sweeper")

RETRY_AFTER = seconds(5)
"""After a sweep that failed, reads are not delayed by another for this long."""

_Jobs = TypeVar("_Jobs", dict[JobId, Job], FoundJobs)


def sweep_before_reads(coordinator: Coordinator, sweeper: Sweeper) -> None:
    """From now on, reading jobs of the coordinator's store sweeps them first."""
    coordinator.store = cast(Store, _SweepingReads(coordinator, sweeper))


class _SweepingReads:
    def __init__(self, coordinator: Coordinator, sweeper: Sweeper) -> None:
        self._coordinator = coordinator
        self._store = coordinator.store
        self._sweeper = sweeper
        self._failure_log = FailureLog()
        self._retries_at = boot_now()
        self.jobs = _SweepingJobs(self, self._store)
        self.views = _SweepingViews(self, self._store)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, read: Callable[[], _Jobs]) -> _Jobs:
        found = read()
        jobs = found.values() if isinstance(found, dict) else found.jobs
        timed = [job for job in jobs if job.due_at is not None or job.start_by is not None]
        if timed and self.has_swept(timed, self._coordinator.estimated_now()):
            found = read()
        return found

    def has_swept(self, jobs: Iterable[Job], now: Instant) -> bool:
        """Whether some were overdue and could be swept, by this process or another."""
        overdue = [job.id for job in jobs if needs_sweep(job, now)]
        if not overdue or boot_now() < self._retries_at:
            return False
        try:
            self._sweeper.sweep_before_read(overdue)
        except Exception as failure:  # for example a role or a file that may only be read
            self._retries_at = Boot(boot_now() + RETRY_AFTER)
            if self._failure_log.failed(boot_now()) is not None:
                _log.warning("leases that are over could not be recorded: %s", failure)
            return False
        return True


class _SweepingJobs:
    def __init__(self, reads: _SweepingReads, store: Store) -> None:
        self._reads = reads
        self._jobs = store.jobs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._jobs, name)

    def read(self, ids: Sequence[JobId], *, bodies: bool = True) -> dict[JobId, Job]:
        """With the clock that comes with the rows: a caller that waits for a running job asks four
        times a second."""
        if not bodies:
            return self._reads.read(partial(self._jobs.read, ids, bodies=False))
        loaded = self._jobs.load(ids)
        if self._reads.has_swept(loaded.jobs.values(), loaded.now):
            loaded = self._jobs.load(ids)
        return loaded.jobs


class _SweepingViews:
    def __init__(self, reads: _SweepingReads, store: Store) -> None:
        self._reads = reads
        self._views = store.views

    def __getattr__(self, name: str) -> Any:
        return getattr(self._views, name)

    def jobs(self, wanted: JobFilter) -> FoundJobs:
        """Listed again after a sweep: a job may no longer have the status that is wanted."""
        return self._reads.read(partial(self._views.jobs, wanted))
