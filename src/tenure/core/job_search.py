"""Which jobs a list shows, what a search finds, and where the next page begins. [J12]

Pure. A list is by what an index has. A search also asks for what no index has (worker, end, error):
a store reads a bounded number of jobs for it.
"""

from collections.abc import Container, Iterable

import msgspec

from tenure.core.checks import (
    MAX_SEARCHED_TEXT,
    check_correlation_id,
    check_instant,
    check_integer,
    check_job_id,
    check_job_id_prefix,
    check_name,
    check_text,
)
from tenure.core.ids import (
    FlowId,
    JobId,
    Kind,
    Namespace,
    QueueName,
    ScheduleName,
    WorkerId,
    instant_of,
)
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.vocabulary import JobStatus, ReasonCode, Stage

MAX_JOBS_READ = 10_000
"""Jobs that are looked at for one page of a search by worker, time or error."""

ERROR_CHARS = 4096
"""Characters of an error's type and message that a search reads. An error may be longer."""

PREVIEW_CHARS = 120
"""Characters of a payload that a list of jobs shows."""


class JobFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs a listing shows; newest first, `before` is the last id of the previous page. If
    its job was deleted, the time that the id says counts. [J11]

    By `worker`, by the time of their end and by `error` jobs are searched, because no index has
    them: among the newest `reads` jobs before `before` that match the rest. A worker's jobs are
    those that it holds or held last. `error` is text in the first `ERROR_CHARS` of the type and the
    message of a job's last error, in upper or lower case of ASCII. Times begin with `since` and end
    before `until`. [J12]
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
    id_prefix: str | None = None
    before: JobId | None = None
    limit: int = 50
    reads: int = MAX_JOBS_READ
    bodies: bool = True
    """Whether payload, checkpoint and result are read; if not: as `Job.without_bodies` has them."""

    def __post_init__(self) -> None:
        """Refuse names that no job can have: a database may fail on them, for example on bytes that
        are not UTF-8. [J6]"""
        check_name("namespace", self.namespace)
        for field in ("queue", "kind", "schedule", "worker"):
            name = getattr(self, field)
            if name is not None:
                check_name(field, name)
        for field in ("enqueued_since", "enqueued_until", "finished_since", "finished_until"):
            instant = getattr(self, field)
            if instant is not None:
                check_instant(field, instant)
        if self.flow_id is not None:
            check_job_id("flow_id", self.flow_id)
        if self.error is not None:
            check_text("error", self.error, most=MAX_SEARCHED_TEXT)
        check_integer("reads", self.reads, low=1, high=MAX_JOBS_READ)
        if self.correlation_id is not None:
            check_correlation_id("correlation_id", self.correlation_id)
        if self.id_prefix is not None:
            check_job_id_prefix("id_prefix", self.id_prefix)

    @property
    def is_search(self) -> bool:
        """Whether it asks for something that no index has."""
        ends = (self.finished_since, self.finished_until)
        return any(each is not None for each in (self.worker, self.error, *ends))

    def lists(self, job: Job, *, is_resolved: bool) -> bool:
        """Whether a job has what is asked for and an index has: a search looks at these."""
        return (
            job.namespace == self.namespace
            and (not self.statuses or job.status in self.statuses)
            and self.queue in (None, job.queue)
            and self.kind in (None, job.kind)
            and self.correlation_id in (None, job.correlated_by)
            and self.reason_code in (None, job.reason_code)
            and self.stage in (None, job.stage)
            and self.resolved in (None, is_resolved)
            and self.schedule in (None, job.schedule)
            and self.flow_id in (None, job.flow_id)
            and _is_within(job.enqueued_at, self.enqueued_since, self.enqueued_until)
            and job.id.startswith(self.id_prefix or "")
        )

    def accepts(self, job: Job) -> bool:
        """Whether a job has what is asked for and no index has."""
        return (
            (self.worker is None or self.worker == (job.owner or job.last_owner))
            and _is_within(job.finished_at, self.finished_since, self.finished_until)
            and (self.error is None or _lower(self.error) in _lower(_error_text(job)))
        )


def _is_within(at: Instant | None, since: Instant | None, until: Instant | None) -> bool:
    if since is None and until is None:
        return True
    return at is not None and (since is None or at >= since) and (until is None or at < until)


def _error_text(job: Job) -> str:
    error = job.error or job.last_error
    return "" if error is None else f"{error.type}: {error.message}"[:ERROR_CHARS]


def _lower(text: str) -> str:
    """In lower case as databases have it whatever their language: only the letters of ASCII."""
    return "".join(each.lower() if each.isascii() else each for each in text)


def newness(job: Job) -> tuple[Instant, JobId]:
    """Lists are sorted by it, in reverse: by the time of enqueue, then by id. [J11]"""
    return job.enqueued_at, job.id


class FoundJobs(msgspec.Struct, frozen=True):
    """A page of jobs, newest first. `next_before` is the `before` of the next page; None: there are
    no more. A page of a search may have fewer jobs than are wanted, or none, and not be the last:
    then reading stopped at its limit. [J12]"""

    jobs: list[Job]
    next_before: JobId | None


def found_jobs(jobs: list[Job], last_read: JobId | None, wanted: JobFilter) -> FoundJobs:
    """A page with the place where the next one begins. `last_read` is the last job that was looked
    at, if reading stopped at its limit."""
    return FoundJobs(jobs, jobs[-1].id if len(jobs) == wanted.limit else last_read)


def find_among(jobs: Iterable[Job], wanted: JobFilter, *, resolved: Container[JobId]) -> FoundJobs:
    """The page that a store with exactly these jobs must give; `resolved` are the dead letters that
    have a resolution."""
    jobs = list(jobs)
    listed = [job for job in jobs if wanted.lists(job, is_resolved=job.id in resolved)]
    if wanted.before is not None:
        said = {job.id: job.enqueued_at for job in jobs}.get(wanted.before)
        begin = (instant_of(wanted.before) if said is None else said, wanted.before)
        listed = [job for job in listed if newness(job) < begin]
    newest = sorted(listed, key=newness, reverse=True)
    read = newest[: wanted.reads] if wanted.is_search else newest
    page = [job for job in read if wanted.accepts(job)][: wanted.limit]
    has_stopped = wanted.is_search and len(read) == wanted.reads
    shown = page if wanted.bodies else [job.without_bodies for job in page]
    return found_jobs(shown, read[-1].id if has_stopped else None, wanted)
