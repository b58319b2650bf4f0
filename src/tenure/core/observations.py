"""Observations: refused reports, and compensations that succeeded, kept beside the log for people.

They never change a job.
"""

import msgspec

from tenure.core.ids import Actor, JobId, LeaseId, RequestId
from tenure.core.instants import Instant
from tenure.core.vocabulary import ObservationType

MAX_OBSERVATIONS_PER_LEASE = 10
MAX_OBSERVATIONS_READ = 500
"""Of one job; a job whose workers are late every time has ten more with each attempt."""


class Observation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A fact that is kept apart from the job's history: no seq, no rev, never applied. [U1]"""

    job_id: JobId
    type: ObservationType
    ts: Instant
    actor: Actor
    lease_id: LeaseId | None = None
    request_id: RequestId | None = None
    cause: str | None = None
    size: int | None = None
    sha256: str | None = None
    body: bytes | None = None

    @property
    def compensated_by(self) -> JobId | None:
        """The compensation that succeeded. Its id stands for the request: a compensation succeeds
        once. [M2]"""
        is_end = self.type is ObservationType.COMPENSATED and self.request_id is not None
        return JobId(str(self.request_id)) if is_end else None
