"""Attempt logs: what handlers wrote to their standard streams, and the limits of it.

The output of an attempt is no part of its job's history and never changes the job.
"""

import msgspec

from tenure.core.checks import check_actor, check_integer, check_job_id, check_lease_id, check_text
from tenure.core.ids import Actor, JobId, LeaseId
from tenure.core.ijson import MAX_EXACT_INTEGER
from tenure.errors import InvalidInput

MAX_ATTEMPT_LOG_BYTES = 64 << 10


MAX_OUTPUT_PARTS = 2**31 - 1  # one every two seconds for a century


MAX_SHOWN_LOGS = 100
"""Attempts whose output is read at once: the latest ones. [B26]"""


class AttemptOutput(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a handler wrote to its standard streams during one attempt, sent under its lease.

    It may be sent again while the attempt runs, whole and with a higher `part`. [B20]"""

    job_id: JobId
    lease_id: LeaseId
    actor: Actor
    text: str
    left_out_bytes: int = 0
    part: int = 0

    def __post_init__(self) -> None:
        """Refuse what is over a limit. [B20]"""
        check_job_id("job_id", self.job_id)
        check_lease_id("lease_id", self.lease_id)
        check_actor(self.actor)
        check_text("text", self.text, most=MAX_ATTEMPT_LOG_BYTES)
        size = len(self.text.encode())
        if size > MAX_ATTEMPT_LOG_BYTES:
            raise InvalidInput(
                "text",
                f"{size} bytes are over the limit of {MAX_ATTEMPT_LOG_BYTES}",
                hint="leave out the middle, and say how much in left_out_bytes",
            )
        check_integer("left_out_bytes", self.left_out_bytes, low=0, high=MAX_EXACT_INTEGER)
        check_integer("part", self.part, low=0, high=MAX_OUTPUT_PARTS)


class AttemptLog(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The kept output of one attempt, and how much of it was not kept."""

    job_id: JobId
    attempt: int
    text: str
    left_out_bytes: int
