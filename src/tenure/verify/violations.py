"""Violations: one broken rule of one job, in one line. The rules are in the other modules."""

import msgspec

from tenure.core.ids import JobId
from tenure.core.policy import Policy
from tenure.ports import Record


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """Which invariant, which job, the first seq that breaks it, and what is wrong there. [X2]

    If only the row breaks it, `seq` is the row's rev; if the job is missing, it is 1.
    """

    invariant: str
    job_id: JobId
    seq: int
    message: str


def broken(invariant: str, record: Record, seq: int, message: str) -> Violation:
    """A violation found in `record`."""
    return Violation(invariant=invariant, job_id=record.job_id, seq=seq, message=message)


def rev_of(record: Record) -> int:
    """The seq for a violation of the row: its rev, or the last seq if there is no row."""
    if record.job is not None:
        return record.job.rev
    return record.events[-1].seq if record.events else 1


def policy_of(record: Record) -> Policy | None:
    """The policy fixed at enqueue: the log's, because the row may have been changed; the row's if
    the log has none."""
    if record.events and record.events[0].payload.policy is not None:
        return record.events[0].payload.policy
    return record.job.policy if record.job is not None else None
