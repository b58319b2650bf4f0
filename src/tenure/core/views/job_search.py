"""Which jobs a list has, what a search finds, and where the next page starts. [J12]

A list is by what an index has. A search also asks for what no index has (worker, end, error, meta):
a store reads a bounded number of jobs for it.
"""

import msgspec

from tenure.core.checks import (
    MAX_SEARCHED_TEXT,
    check_fields,
    check_integer,
    check_name,
    check_text,
    meta_entry,
)
from tenure.core.ids import (
    FlowId,
    JobId,
    Kind,
    Namespace,
    QueueName,
    ScheduleName,
    WorkerId,
)
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.verdicts import Resolution
from tenure.core.vocabulary import JobStatus, ReasonCode, Stage

MAX_JOBS_READ = 10_000
"""How many jobs are read for one page of a search by worker, time, error or meta."""

ERROR_CHARS = 4096
"""Characters of an error's type and message that a search reads. An error may be longer."""

PREVIEW_CHARS = 120
"""Characters of a payload that a list of jobs has."""


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs a list has; newest first, `before` is the last id of the previous page. If
    that job was deleted, the page starts at the time in its id. [J11]

    By `worker`, by the time of their end, by `error` and by `meta` jobs are searched, because no
    index has them: among the newest `reads` jobs before `before` that match the rest. A worker's
    jobs are the jobs it runs or ran last. `error` is text in the first `ERROR_CHARS` of the
    type and the message of a job's last error, in upper or lower case of ASCII. `meta` is an entry
    that a job has, as `KEY=VALUE`. Times start with `since` and end before `until`. [J12]
    `orphaned` are jobs whose workers have been silent for two heartbeats; it too is searched, among
    jobs with a lease. [L19]
    """

    namespace: Namespace
    statuses: tuple[JobStatus, ...] = ()
    queue: QueueName | None = None
    kind: Kind | None = None
    correlation_id: str | None = None
    reason_code: ReasonCode | None = None
    stage: Stage | None = None
    resolved: bool | None = None
    schedule: ScheduleName | None = None
    flow_id: FlowId | None = None
    worker: WorkerId | None = None
    enqueued_since: Instant | None = None
    enqueued_until: Instant | None = None
    finished_since: Instant | None = None
    finished_until: Instant | None = None
    error: str | None = None
    meta: str | None = None
    orphaned: bool = False
    id_prefix: str | None = None
    before: JobId | None = None
    limit: int = 50
    reads: int = MAX_JOBS_READ
    previews: bool = False
    bodies: bool = True
    """Whether payload, checkpoint and result are read; if not: as `Job.without_bodies` has them."""

    def __post_init__(self) -> None:
        """Refuse names that no job can have: a database may fail on them, for example on bytes that
        are not UTF-8. [J6]"""
        check_fields(self)
        if self.error is not None:
            check_text("error", self.error, most=MAX_SEARCHED_TEXT)
        if self.meta is not None:
            meta_entry("meta", self.meta)
        check_integer("reads", self.reads, low=1, high=MAX_JOBS_READ)

    @property
    def is_search(self) -> bool:
        """Whether it asks for something that no index has."""
        ends = (self.finished_since, self.finished_until)
        unindexed = (self.worker, self.error, self.meta, *ends)
        return self.orphaned or any(each is not None for each in unindexed)


def leased_among(wanted: JobFilter) -> JobFilter:
    """What to read for a list of orphaned jobs: all jobs that can be, without their bodies."""
    statuses = tuple(each for each in wanted.statuses or JobStatus if each.is_leased)
    return msgspec.structs.replace(
        wanted, orphaned=False, statuses=statuses, limit=wanted.reads, bodies=False
    )


def newness(job: Job) -> tuple[Instant, JobId]:
    """The sort key of lists, which have the newest job first. [J11]"""
    return job.enqueued_at, job.id


class FoundJobs(msgspec.Struct, frozen=True):
    """A page of jobs, newest first. `next_before` is the `before` of the next page; None: there are
    no more. A page of a search may have fewer jobs than are wanted, or none, and not be the last:
    then reading stopped at its limit. [J12] `resolutions`: what became of dead letters that were
    asked for as `resolved`; `previews`: the beginnings of payloads, if asked for. [H53]"""

    jobs: list[Job]
    next_before: JobId | None
    resolutions: dict[JobId, Resolution] = {}
    previews: dict[JobId, str] = {}


def found_jobs(jobs: list[Job], last_read: JobId | None, wanted: JobFilter) -> FoundJobs:
    """A page with the place where the next one starts. `last_read` is the last job that was read,
    if reading stopped at its limit."""
    return FoundJobs(jobs, jobs[-1].id if len(jobs) == wanted.limit else last_read)


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """`queues` and `kinds`: only of these, any if empty."""

    namespace: Namespace
    queues: tuple[QueueName, ...] = ()
    kinds: tuple[Kind, ...] = ()

    def __post_init__(self) -> None:
        """Refuse names that nothing can have: a database may fail on them. [J6]"""
        check_fields(self)
        for queue in self.queues:
            check_name("queue", queue)
        for kind in self.kinds:
            check_name("kind", kind)

    def has(self, queue: str, kind: str) -> bool:
        """Whether jobs of this kind in this queue are in scope; the namespace is not checked."""
        return self.has_queue(queue) and (not self.kinds or kind in self.kinds)

    def has_queue(self, queue: str) -> bool:
        """Whether jobs of this queue can be in scope."""
        return not self.queues or queue in self.queues
