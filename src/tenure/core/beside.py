"""What is kept beside the log: the resolutions of dead letters.

None of it is part of a job's history and none of it can change a job: no seq, no rev, no event.
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
