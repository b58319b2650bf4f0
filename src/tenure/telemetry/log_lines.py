"""The lines that coordinators and workers log about jobs and failures, and how many of them.

What can happen ten thousand times in a second is logged a bounded number of times. Apart from
`logs`, which formats lines: a process that only writes them need not import that.
"""

import logging
from typing import Any

import msgspec

from tenure.clock import Boot
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, seconds
from tenure.core.job import Job
from tenure.core.leases import revocation
from tenure.core.verdicts import Observation
from tenure.core.vocabulary import EventCause, JobStatus, ObservationType, OnLost, counted

REMIND_EVERY = seconds(30)
MAX_LINES = 10
"""Lines about lost attempts in `REMIND_EVERY`."""

_coordinator_log = logging.getLogger("tenure.coordinator")
_sweeper_log = logging.getLogger("tenure.sweeper")


def job_ids(job: Job) -> dict[str, Any]:
    """The ids of a job for a line about it: pass them as `extra`."""
    return {
        "job_id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "attempt": job.attempt,
        "correlation_id": job.correlated_by,
        "trace_id": job.trace_id,
    }


# --- limits


class LineLimit:
    """Lets a number of lines through in each period, and counts the others. Pure."""

    def __init__(self, lines: int, period_us: int) -> None:
        self._most = lines
        self._period_us = period_us
        self._ends_us: int | None = None
        self._lines = 0
        self._left_out = 0

    def take(self, now_us: int) -> int | None:
        """How many lines were left out before this one; None if this one is left out, too."""
        if self._ends_us is None or now_us >= self._ends_us:
            self._ends_us, self._lines = now_us + self._period_us, 0
        if self._lines >= self._most:
            self._left_out += 1
            return None
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        return left_out

    def left_out_until(self, now_us: int) -> int:
        """At the end of a period: how many lines it left out. Returns them once."""
        if self._ends_us is None or now_us < self._ends_us:
            return 0
        left_out, self._left_out = self._left_out, 0
        return left_out


class FailureLine(msgspec.Struct, frozen=True):
    """A line to be logged."""

    is_reminder: bool
    lasts_us: Duration


class FailureLog:
    """Which lines about one thing that keeps failing are logged: its beginning, a reminder every
    half minute, and its end. If it comes and goes, that is at most twice in half a minute. Pure:
    callers give the time and write the line."""

    def __init__(self) -> None:
        self.is_reported = False  # it fails, and the log has a line
        self._failing_since: Boot | None = None
        self._beginning_logged_at: Boot | None = None  # of this failure, or of the one before
        self._logged_at: Boot | None = None

    def failed(self, now: Boot) -> FailureLine | None:
        """It failed; the line to be logged, if any."""
        if self._failing_since is None:
            self._failing_since = now
        if self._logged_at is not None and now < self._logged_at + REMIND_EVERY:
            return None
        is_reminder, self.is_reported, self._logged_at = self.is_reported, True, now
        if not is_reminder:
            self._beginning_logged_at = now
        return FailureLine(is_reminder, Duration(now - self._failing_since))

    def succeeded(self, now: Boot) -> Duration | None:
        """It works; how long it did not, if that is to be logged."""
        since, was_reported = self._failing_since, self.is_reported
        self._failing_since, self.is_reported = None, False
        self._logged_at = self._beginning_logged_at
        return Duration(now - since) if since is not None and was_reported else None


# --- observations and lost attempts


def log_observation(observation: Observation, job: Job) -> None:
    """Log who reported and why it was refused, never what: a result may hold a secret. `job` is the
    one that was reported on. [U4]"""
    extra = job_ids(job) | {"observation": observation.type.value}
    match observation.type:
        case ObservationType.RESULT_DISCARDED:
            _coordinator_log.info(
                "job %s: a report of %s was discarded: %s (%s bytes)",
                *(job.id, observation.actor, observation.cause, observation.size),
                extra=extra,
            )
        case ObservationType.FOREIGN_LEASE:
            _coordinator_log.warning(
                "job %s: %s reported under a lease that is not its own",
                *(job.id, observation.actor),
                extra=extra,
            )
        case ObservationType.COMPENSATED:
            _coordinator_log.info(
                "job %s was compensated by job %s", observation.job_id, job.id, extra=extra
            )


_WHY_LOST = {
    EventCause.LEASE_EXPIRED: "lost, the lease of {} ended",
    EventCause.TIMEOUT: "lost, {} did not end it within its timeout",
    EventCause.START_TIMEOUT: "lost, {} did not start it in time",
}


class LostAttemptLog:
    """One line for each attempt that a sweep found lost: its worker can no longer log one. After
    a crash of many workers at once most lines would be alike, so they are limited."""

    def __init__(self) -> None:
        self._limit = LineLimit(MAX_LINES, REMIND_EVERY)

    def swept(self, before: Job, after: Job, now_us: int) -> None:
        """A sweep has changed this job."""
        cause = None if before.lease_expires_at is None else revocation(before, after.updated_at)
        if cause not in _WHY_LOST:
            return
        self.log_left_out(now_us)
        if self._limit.take(now_us) is not None:
            _sweeper_log.warning(
                "job %s (%s) attempt %d: %s; %s",
                *(before.id, before.kind, before.attempt, _WHY_LOST[cause].format(before.owner)),
                _what_follows(after),
                extra=job_ids(before),
            )

    def log_left_out(self, now_us: int) -> None:
        """At the end of a period: log how many lines were left out."""
        left_out = self._limit.left_out_until(now_us)
        if left_out:
            more = counted(left_out, "more attempt was", "more attempts were")
            _sweeper_log.warning("%s lost", more)


def _what_follows(job: Job) -> str:
    if job.status is JobStatus.QUEUED and job.run_at is not None:
        wait_s = max(0, job.run_at - job.updated_at) / MICROSECONDS_PER_SECOND
        return f"next attempt in {wait_s:.1f} s"
    if job.status is JobStatus.STALLED and job.policy.on_lost is OnLost.HOLD:
        return "the job is on hold until `tenure jobs requeue`"
    if job.status is JobStatus.STALLED:
        return "the next worker takes it"
    return f"the job is {job.status.value}"
