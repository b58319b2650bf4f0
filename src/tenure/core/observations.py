"""Observations: refused results that are kept for people to read. They never change a job."""

import msgspec

from tenure.core.ids import Actor, JobId, LeaseId, RequestId
from tenure.core.instants import Instant
from tenure.core.vocabulary import ObservationType

MAX_OBSERVATIONS_PER_LEASE = 10


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
