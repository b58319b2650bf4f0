"""How a job is shown while it runs: its status, how far it is, and why it waits."""

import time
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

from tenure.cli.common import refuse
from tenure.cli.following import POLL_S, Reconnecting, give_up, goes_on, pause
from tenure.cli.live_lines import LiveLines, bar
from tenure.cli.output import GAP, SHORTEST_ID, in_words, shortened
from tenure.core.counting import counted
from tenure.core.ids import JobId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant
from tenure.core.job import Job
from tenure.errors import UnknownJob
from tenure.ports import Coordination, JobStore
from tenure.telemetry.unclaimed import why_waiting

MAX_WATCHED = 50
"""Jobs that one command watches: so many can be read with their bodies at a time."""

ASK_WHY_EVERY_S = 5.0
"""Why a job waits takes several reads: they are not repeated for each look at the job."""


def progress_words(job: Job, why: str | None, *, now: Instant | None) -> str:
    """What is said after a job's status: the bar, the attempt, or why it waits or has ended.
    Without `now`, nothing that changes while the job does not."""
    if job.status.is_terminal:
        return _end_words(job)
    parts = []
    if job.progress is not None:
        done, total, note = job.progress.done, job.progress.total, job.progress.note
        parts += [bar(done, total)] if total and now is not None else []
        parts.append(f"{done}/{total}" if total else f"{done} done")
        parts += [note] if note else []
    if job.owner is not None:
        parts.append(f"attempt {job.attempt} on {job.owner}")
        since = job.started_at or job.claimed_at
        if since is not None and now is not None:
            parts.append(in_words(max(0, now - since) / MICROSECONDS_PER_SECOND))
    if job.failures and job.last_error is not None:
        spent = f"{job.failures} of {counted(job.policy.max_attempts, 'attempt')} failed"
        parts.append(f"{spent}, the last with {job.last_error.headline}")
    if why is not None:
        parts.append(why)
    return GAP.join(parts)


def _end_words(job: Job) -> str:
    parts = []
    if job.finished_at is not None:
        took_s = (job.finished_at - job.enqueued_at) / MICROSECONDS_PER_SECOND
        parts.append(f"after {in_words(max(0.0, took_s))}, attempts {job.attempt}")
    if job.error is not None:
        parts.append(job.error.headline)
    return GAP.join(parts)


class WaitingReasons:
    """Why jobs wait, asked again only now and then."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._known: dict[JobId, tuple[int, float, str | None]] = {}

    def of(self, job: Job) -> str | None:
        """Why the job waits; None if it does not, or no reason is known."""
        if job.status.is_terminal:
            return None
        rev, asked_at, reason = self._known.get(job.id, (-1, 0.0, None))
        if rev != job.rev or time.monotonic() - asked_at >= ASK_WHY_EVERY_S:
            reason = why_waiting(self._store, job)
            self._known[job.id] = (job.rev, time.monotonic(), reason)
        return reason


# --- Until the end -------------------------------------------------------------------------------


def watch_to_the_end(
    serving: Coordination, ids: Sequence[JobId], timeout: Duration | None, *, err: bool
) -> list[Job]:
    """Show a line for each job until all have ended. Ends the command after the timeout."""
    lines = LiveLines(err=err)
    reading = Reconnecting(timeout=timeout, make_room=lines.erase)
    reasons = WaitingReasons(serving.store)
    while True:
        loaded = reading.ask(lambda: serving.store.jobs.read(ids))
        found = [loaded.get(each) or _refuse_unknown(each) for each in ids]
        now = reading.ask(serving.store.now) if lines.is_terminal else None
        lines.show([job_line(job, reading.ask(partial(reasons.of, job)), now) for job in found])
        live = [job for job in found if not job.status.is_terminal]
        if not live:
            return found
        if reading.is_too_late:
            problem = f"not finished in time: {len(live)} of {counted(len(found), 'job')}"
            give_up(problem, told=going_on([job.id for job in live]))
        pause(POLL_S)


def going_on(ids: Sequence[JobId]) -> str:
    """What somebody is told who stops waiting for these jobs."""
    if len(ids) == 1:
        return goes_on(f"job {ids[0]}", shown_by=f"jobs watch {ids[0]}")
    return "the jobs that have not ended go on; the same command shows them again"


def job_line(job: Job, why: str | None, now: Instant | None) -> tuple[str, str, str]:
    """A job's line: its id and kind, its status, and how far it is. Without `now` the id is whole,
    and nothing is shown that changes while the job does not."""
    job_id = job.id if now is None else shortened(job.id, SHORTEST_ID)
    return f"{job_id}{GAP}{job.kind}", job.status, progress_words(job, why, now=now)


def _refuse_unknown(job_id: JobId) -> NoReturn:
    refuse(str(UnknownJob(job_id)))
