"""Why a queued job is not claimed yet, or a running one may never end, in a sentence for the user
who waits for it.

Nothing is decided by it: the rows are read one after the other and may change meanwhile, and a
worker that never sends a sign of life is not known here.
"""

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from tenure.core.concurrency import concurrency_limit_of
from tenure.core.ids import JobId
from tenure.core.instants import MICROSECONDS_PER_SECOND, Instant
from tenure.core.job import Job
from tenure.core.leases import is_overdue, is_suspect, silent_for
from tenure.core.rates import RateWait
from tenure.core.views.job_search import JobFilter
from tenure.core.views.overview import is_taken
from tenure.core.vocabulary import JobStatus, WorkerState
from tenure.ports import Store
from tenure.protocol.fields import iso

MAX_NAMED_JOBS = 20
"""Jobs that a reason names."""

MAX_HOLDERS_READ = 500
"""The holders of a concurrency key are searched among this many live jobs."""


class WaitCause(StrEnum):
    """Why a job waits, or why one that runs may never end. Checked in this order."""

    OVERDUE = "overdue"
    SUSPECT = "suspect"
    PARENTS = "parents"
    NOT_DUE = "not_due"
    PAUSED = "paused"
    LIMIT = "limit"
    KEY = "key"
    RATE = "rate"
    NO_WORKER = "no_worker"


class WaitReason(msgspec.Struct, frozen=True, kw_only=True):
    """One reason: in a word, in a sentence, until when if that is known, and which jobs it waits
    for."""

    why: WaitCause
    message: str
    until: Instant | None = None
    job_ids: tuple[JobId, ...] = ()

    @property
    def sentence(self) -> str:
        """The message with the jobs that it is about."""
        return f"{self.message}: {', '.join(self.job_ids)}" if self.job_ids else self.message


def why_waiting(store: Store, job: Job) -> str | None:
    """The first reason in a sentence; None if no reason is known."""
    found = next(_reasons(store, job), None)
    return None if found is None else found.sentence


def reasons_to_wait(store: Store, job: Job) -> list[WaitReason]:
    """Every reason why no worker claims this queued job, or what is wrong with this running one.
    [OB32]"""
    return list(_reasons(store, job))


def _reasons(store: Store, job: Job) -> Iterator[WaitReason]:
    now = store.now()
    if job.lease_expires_at is not None:
        yield from _silence(job, now)
    elif job.status is JobStatus.WAITING:
        yield _parents(store, job)
    elif job.status is JobStatus.QUEUED:
        if job.not_before is not None and job.not_before > now:
            due = f"it is not due before {iso(job.not_before)}"
            yield WaitReason(why=WaitCause.NOT_DUE, message=due, until=job.not_before)
        yield from _blocked_by(store, job, now)


def _blocked_by(store: Store, job: Job, now: Instant) -> Iterator[WaitReason]:
    """What blocks a job that is due."""
    for queue in store.settings.queues(job.namespace):
        if queue.name == job.queue and queue.paused:
            yield WaitReason(why=WaitCause.PAUSED, message=f"queue {job.queue} is paused")
        if queue.name == job.queue and queue.limit is not None and queue.live >= queue.limit:
            full = f"queue {job.queue} is at its limit of {queue.limit}"
            yield WaitReason(why=WaitCause.LIMIT, message=full)
    yield from _key_at_limit(store, job)
    for rate in store.settings.rates(job.namespace, job.queue, job.kind, job.rate_key):
        if rate.wait_us > 0:
            room_at = Instant(now + rate.wait_us)
            yield WaitReason(why=WaitCause.RATE, message=_waits_for(rate), until=room_at)
    workers = store.workers.page(job.namespace)
    live = [each for each in workers if each.state(now) is WorkerState.ALIVE]
    if not is_taken(job.queue, job.kind, live):
        nothing = f"no worker is alive that takes kind {job.kind} from queue {job.queue}"
        yield WaitReason(why=WaitCause.NO_WORKER, message=nothing)


def _parents(store: Store, job: Job) -> WaitReason:
    """The jobs of its flow that it waits for and that have not ended."""
    found = None if job.flow_id is None else store.flows.load(job.namespace, job.flow_id)
    steps = () if found is None else found.current
    after = {name for step in steps if step.job_id == job.id for name in step.after}
    live = [step.job_id for step in steps if step.step in after and not step.status.is_terminal]
    return WaitReason(
        why=WaitCause.PARENTS,
        message="it waits for other jobs of its flow",
        job_ids=tuple(live[:MAX_NAMED_JOBS]),
    )


def _key_at_limit(store: Store, job: Job) -> Iterator[WaitReason]:
    """Which jobs with the same concurrency key run, if the key is at its limit. [CK4]"""
    holders = _holders(store, job)
    if not holders:
        return
    known = {each.kind: each for each in store.settings.kinds(job.namespace)}
    limit = concurrency_limit_of(known.get(job.kind))
    if len(holders) >= limit:
        others = "another job" if limit == 1 else "other jobs"
        message = f"waits for {others} with the key {job.concurrency_key} (limit {limit})"
        named = tuple(holders[:MAX_NAMED_JOBS])
        yield WaitReason(why=WaitCause.KEY, message=message, job_ids=named)


def _holders(store: Store, job: Job) -> list[JobId]:
    """The jobs with the same concurrency key that run, among the live ones that were enqueued
    last. [CK4]"""
    if job.concurrency_key is None:
        return []
    leased = JobFilter(
        namespace=job.namespace,
        statuses=(JobStatus.CLAIMED, JobStatus.RUNNING),
        kind=job.kind,
        limit=MAX_HOLDERS_READ,
        bodies=False,
    )
    return [
        each.id
        for each in store.views.jobs(leased).jobs
        if each.concurrency_key == job.concurrency_key
    ]


def _waits_for(rate: RateWait) -> str:
    """Which rate blocks a job, and for how long it blocks all of them. [RL10]"""
    wait_s = rate.wait_us / MICROSECONDS_PER_SECOND
    about = f"{wait_s:.0f} s" if wait_s >= 1 else "a second"
    meter = rate.meter
    key = f" for the rate key {meter.key}" if meter.key else ""
    return (
        f"it waits for the rate limit {rate.rate} of {meter.scope.value} {meter.name}{key},"
        f" which has room for the next job in about {about}"
    )


def _silence(job: Job, now: Instant) -> Iterator[WaitReason]:
    """What the silence of the worker means for the job that it runs. [L18] [W5]"""
    if is_overdue(job, now):
        over = f"the lease of its worker {job.owner} is over, which is not recorded yet"
        yield WaitReason(why=WaitCause.OVERDUE, message=over)
    elif is_suspect(job, now):
        silent_s = silent_for(job, now) / MICROSECONDS_PER_SECOND
        message = (
            f"suspect: its worker {job.owner} has sent no heartbeat for {silent_s:.0f} s; the job"
            " can be claimed again once its lease has ended"
        )
        yield WaitReason(why=WaitCause.SUSPECT, message=message, until=job.lease_expires_at)
