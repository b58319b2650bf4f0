"""Queues jobs of flows when their parents have ended.

The process that committed the end of a parent checks its children at once, after its callers have
their answers. If it dies before that, or the store fails, a sweeper does: the end of a parent
leaves a row in `edge_check`, which a sweeper deletes after it has checked the children. [FL5]
Decides nothing: the core does, and compare-and-swap on the row of the waiting job lets one of
several processes succeed.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import msgspec

from tenure.core.commands import Command, ParentEnd, Unblock
from tenure.core.flow_rows import Unblocked
from tenure.core.flows import MAX_FLOW_JOBS
from tenure.core.ids import JobId
from tenure.core.verdicts import Answer
from tenure.errors import Closed, StoreError, StoreUnavailable
from tenure.ports import Store

_log = logging.getLogger("tenure.coordinator")

TOGETHER = 500
"""How many jobs are queued in one transaction."""

Submit = Callable[[Sequence[Command]], "Future[list[Answer]]"]


def unblock_at_once(store: Store, submit: Submit, ids: Sequence[JobId]) -> None:
    """Queue the children of these jobs whose wait is over. No caller waits for it; if it fails, a
    sweeper does it."""
    try:
        submit_unblocks(submit, store.flows.unblocked(ids, limit=MAX_FLOW_JOBS).jobs)
    except (StoreError, Closed) as problem:
        _log.warning("children of ended jobs will be queued by the next sweep: %s", problem)


class UnblockReport(msgspec.Struct, frozen=True):
    """How many jobs were queued, and whether there may be more."""

    jobs: int = 0
    is_behind: bool = False


def unblock_recorded(store: Store, submit: Submit, *, limit: int) -> UnblockReport:
    """Check the jobs in `edge_check`, queue the jobs whose wait is over, and delete the rows. For
    sweepers."""
    checks = store.flows.checks(limit=limit)
    if not checks:
        return UnblockReport()
    ids = list(dict.fromkeys(check.job_id for check in checks))
    found = store.flows.unblocked(ids, limit=MAX_FLOW_JOBS)
    have_worked = [_has_worked(call) for call in submit_unblocks(submit, found.jobs)]
    if not found.hit_limit and all(have_worked):  # else the rest needs these rows
        store.flows.delete_checks(checks)
    return UnblockReport(len(found.jobs), len(checks) == limit or found.hit_limit)


def _has_worked(call: "Future[list[Answer]]") -> bool:
    """Whether it was decided about these jobs. A failure is logged: a job that cannot be read must
    not stop the others."""
    try:
        call.result()
    except (StoreUnavailable, Closed):
        raise
    except Exception:
        _log.exception("jobs whose parents have ended could not be queued")
        return False
    return True


def submit_unblocks(submit: Submit, found: Sequence[Unblocked]) -> "list[Future[list[Answer]]]":
    """Have it decided for each of them."""
    commands = [_command(each) for each in found]
    return [
        submit(commands[start : start + TOGETHER]) for start in range(0, len(commands), TOGETHER)
    ]


def _command(found: Unblocked) -> Unblock:
    if found.parent_id is None or found.outcome is None:
        return Unblock(job_id=found.job_id)
    ended = ParentEnd(job_id=found.parent_id, status=found.outcome)
    return Unblock(job_id=found.job_id, ended_otherwise=ended)
