"""Why a queued job is not claimed yet, or a running one may never end, in a sentence for the user
who waits for it.

Nothing is decided by it: the rows are read one after the other and may change meanwhile, and a
worker that never sends a sign of life is not known here.
"""

from tenure.core.concurrency import concurrency_limit_of
from tenure.core.ids import JobId, Kind
from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant
from tenure.core.job import Job
from tenure.core.lateness import is_overdue, is_suspect, silent_for
from tenure.core.rates import RateStanding
from tenure.core.vocabulary import JobStatus, WorkerState
from tenure.errors import RequestRefused
from tenure.ports import JobFilter, JobStore
from tenure.protocol.fields import iso

MAX_HOLDERS_READ = 500
"""Among so many live jobs those with the same concurrency key are looked for."""


def why_waiting(store: JobStore, job: Job) -> str | None:
    """Why no worker claims this queued job, or what is wrong with this running one; None if no
    reason is known."""
    now = store.now()
    if job.lease_expires_at is not None:
        return _silence(job, now)
    if job.status is JobStatus.WAITING:
        return "it waits for other jobs of its flow"
    if job.status is not JobStatus.QUEUED:
        return None
    if job.not_before is not None and job.not_before > now:
        return f"it is not due before {iso(job.not_before)}"
    try:
        for queue in store.list_queues(job.namespace):
            if queue.name == job.queue and queue.paused:
                return f"queue {job.queue} is paused"
            if queue.name == job.queue and queue.limit is not None and queue.live >= queue.limit:
                return f"queue {job.queue} is at its limit of {queue.limit}"
        held = _held_by_key(store, job)
        if held is not None:
            return held
        for standing in store.list_rates(job.namespace, job.queue, job.kind, job.rate_key):
            if standing.wait_us > 0:
                return _waits_for(standing)
        if not _takers(store, job):
            return f"no worker is alive that takes kind {job.kind} from queue {job.queue}"
    except RequestRefused:  # a client's token sees neither queues nor workers
        return None
    return None


def _held_by_key(store: JobStore, job: Job) -> str | None:
    """Which jobs with the same concurrency key run, if they are as many as may. [CK4]"""
    holders = _holders(store, job)
    if not holders:
        return None
    known = {each.kind: each for each in store.list_kinds(job.namespace)}
    limit = concurrency_limit_of(known.get(Kind(job.concurrency_group or job.kind)))
    if len(holders) < limit:
        return None
    others = "another job" if limit == 1 else "other jobs"
    return (
        f"waits for {others} with the key {job.concurrency_key} (limit {limit}):"
        f" {', '.join(holders)}"
    )


def _holders(store: JobStore, job: Job) -> list[JobId]:
    """The jobs with the same concurrency key that run, among the live ones that were enqueued
    last. [CK4]"""
    if job.concurrency_key is None:
        return []
    leased = JobFilter(
        namespace=job.namespace,
        statuses=(JobStatus.CLAIMED, JobStatus.RUNNING),
        kind=job.kind if job.concurrency_group == job.kind else None,
        limit=MAX_HOLDERS_READ,
        bodies=False,
    )
    wanted = (job.concurrency_group, job.concurrency_key)
    return [
        each.id
        for each in store.list_jobs(leased)
        if (each.concurrency_group, each.concurrency_key) == wanted
    ]


def _waits_for(standing: RateStanding) -> str:
    """Which rate holds a job back, and until when it holds back all of them. [RL10]"""
    wait_s = standing.wait_us / MICROSECONDS_PER_SECOND
    about = f"{wait_s:.0f} s" if wait_s >= 1 else "a second"
    meter = standing.meter
    key = f" for the rate key {meter.key}" if meter.key else ""
    return (
        f"it waits for the rate limit {standing.rate} of {meter.scope.value} {meter.name}{key},"
        f" which has room for the next job in about {about}"
    )


def _silence(job: Job, now: Instant) -> str | None:
    """What the silence of the worker means for a job that it holds. [L6] [W5]"""
    if is_overdue(job, now):
        return f"the lease of its worker {job.owner} is over, which nobody has recorded yet"
    if not is_suspect(job, now):
        return None
    silent_s = silent_for(job, now) / MICROSECONDS_PER_SECOND
    return (
        f"suspect: its worker {job.owner} has sent no heartbeat for {silent_s:.0f} s; the job can"
        " be claimed again once its lease has ended"
    )


def _takers(store: JobStore, job: Job) -> list[str]:
    """The live workers that claim such jobs; one that names no kinds claims all of them."""
    now = store.now()
    return [
        seen.worker
        for seen in store.list_workers(job.namespace)
        if seen.state(now) is WorkerState.ALIVE
        and job.queue in seen.queues
        and (not seen.kinds or job.kind in seen.kinds)
    ]
