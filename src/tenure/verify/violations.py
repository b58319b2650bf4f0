"""Violations: one broken rule of one job, said in one line. Nothing here judges."""

import msgspec

from tenure.core.ids import JobId
from tenure.core.policy import Policy
from tenure.ports import Record


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """Which invariant, which job, the first offending seq, and what is wrong there. [X2]

    Where the row offends and no event does, `seq` is the row's rev; 1 where the job is missing.
    """

    invariant: str
    job_id: JobId
    seq: int
    message: str


def broken(invariant: str, record: Record, seq: int, message: str) -> Violation:
    """A violation found in `record`."""
    return Violation(invariant=invariant, job_id=record.job_id, seq=seq, message=message)


def rev_of(record: Record) -> int:
    """The seq to name when the row is at fault: its rev, or the last seq where there is no row."""
    if record.job is not None:
        return record.job.rev
    return record.events[-1].seq if record.events else 1


def policy_of(record: Record) -> Policy | None:
    """The policy fixed at enqueue: as the log states it, so that a changed row cannot excuse
    itself; as the row states it where the log does not."""
    if record.events and record.events[0].payload.policy is not None:
        return record.events[0].payload.policy
    return record.job.policy if record.job is not None else None
