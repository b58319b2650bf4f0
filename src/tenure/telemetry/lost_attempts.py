"""One log line for each attempt that a sweep found lost: its worker can no longer say so.

After a crash of many workers at once, most lines would say the same. So at most ten are logged in
half a minute, and then how many there were beyond these.
"""

import logging

from tenure.core.counting import counted
from tenure.core.instants import MICROSECONDS_PER_SECOND, seconds
from tenure.core.job import Job
from tenure.core.lateness import revocation
from tenure.core.vocabulary import EventCause, JobStatus, OnLost
from tenure.telemetry.job_ids import job_ids

MAX_LINES = 10
PERIOD = seconds(30)

_log = logging.getLogger("tenure.sweeper")

_WHY = {
    EventCause.LEASE_EXPIRED: "lost, the lease of {} ended",
    EventCause.TIMEOUT: "lost, {} did not end it within its timeout",
    EventCause.START_TIMEOUT: "lost, {} did not start it in time",
}


class LostAttemptLog:
    """The lines of one sweeper."""

    def __init__(self) -> None:
        self._period_ends_us: int | None = None
        self._lines = 0
        self._left_out = 0

    def swept(self, before: Job, after: Job, now_us: int) -> None:
        """A sweep has changed this job."""
        cause = None if before.lease_expires_at is None else revocation(before, after.updated_at)
        if cause not in _WHY:
            return
        self.tell_left_out(now_us)
        if self._period_ends_us is None:
            self._period_ends_us, self._lines = now_us + PERIOD, 0
        if self._lines >= MAX_LINES:
            self._left_out += 1
            return
        self._lines += 1
        _log.warning(
            "job %s (%s) attempt %d: %s; %s",
            *(before.id, before.kind, before.attempt, _WHY[cause].format(before.owner)),
            _what_follows(after),
            extra=job_ids(before),
        )

    def tell_left_out(self, now_us: int) -> None:
        """At the end of a period: log how many lines were left out."""
        if self._period_ends_us is None or now_us < self._period_ends_us:
            return
        if self._left_out:
            more = counted(self._left_out, "more attempt was", "more attempts were")
            _log.warning("%s lost", more)
        self._period_ends_us, self._left_out = None, 0


def _what_follows(job: Job) -> str:
    if job.status is JobStatus.QUEUED and job.run_at is not None:
        wait_s = max(0, job.run_at - job.updated_at) / MICROSECONDS_PER_SECOND
        return f"next attempt in {wait_s:.1f} s"
    if job.status is JobStatus.STALLED and job.policy.on_lost is OnLost.HOLD:
        return "the job is held until `tenure jobs retry`"
    if job.status is JobStatus.STALLED:
        return "the next worker takes it"
    return f"the job is {job.status.value}"
