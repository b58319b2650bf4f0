"""Resolutions: what became of a dead letter.

A resolution is no part of a job's history and never changes the job: no seq, no rev, no event. The
commands that make one, `Redrive` and `Discard`, are decided in `requests`.
"""

import msgspec

from tenure.core.ids import Actor, Fingerprint, JobId, RequestId
from tenure.core.instants import Instant
from tenure.core.vocabulary import ResolutionKind


class Resolution(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What became of a dead letter: one per job, the first one stays. [B1]"""

    job_id: JobId
    kind: ResolutionKind
    ts: Instant
    actor: Actor
    request_id: RequestId
    fingerprint: Fingerprint
    note: str = ""
    new_job_id: JobId | None = None
