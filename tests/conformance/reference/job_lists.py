"""Which jobs a list must show, written without a database."""

from collections.abc import Container, Iterable

from tenure.core.ids import JobId, last_instant_of
from tenure.core.instants import Instant
from tenure.core.job import Job
from tenure.core.views.job_search import ERROR_CHARS, FoundJobs, JobFilter, found_jobs, newness


def find_among(jobs: Iterable[Job], wanted: JobFilter, *, resolved: Container[JobId]) -> FoundJobs:
    """The page that a store with exactly these jobs must give; `resolved` are the dead letters that
    have a resolution."""
    jobs = list(jobs)
    listed = [job for job in jobs if _lists(wanted, job, is_resolved=job.id in resolved)]
    if wanted.before is not None:
        enqueued_at = {job.id: job.enqueued_at for job in jobs if job.namespace == wanted.namespace}
        at = enqueued_at.get(wanted.before, last_instant_of(wanted.before))
        listed = [job for job in listed if newness(job) < (at, wanted.before)]
    newest = sorted(listed, key=newness, reverse=True)
    read = newest[: wanted.reads] if wanted.is_search else newest
    page = [job for job in read if _accepts(wanted, job)][: wanted.limit]
    has_stopped = wanted.is_search and len(read) == wanted.reads
    shown = page if wanted.bodies else [job.without_bodies for job in page]
    return found_jobs(shown, read[-1].id if has_stopped else None, wanted)


def _lists(wanted: JobFilter, job: Job, *, is_resolved: bool) -> bool:
    """Whether a job has what is asked for and an index has: a search looks at these."""
    return (
        job.namespace == wanted.namespace
        and (not wanted.statuses or job.status in wanted.statuses)
        and wanted.queue in (None, job.queue)
        and wanted.kind in (None, job.kind)
        and wanted.correlation_id in (None, job.correlated_by)
        and wanted.reason_code in (None, job.reason_code)
        and wanted.stage in (None, job.stage)
        and wanted.resolved in (None, is_resolved)
        and wanted.schedule in (None, job.schedule)
        and wanted.flow_id in (None, job.flow_id)
        and _is_within(job.enqueued_at, wanted.enqueued_since, wanted.enqueued_until)
        and (wanted.finished_until is None or job.enqueued_at < wanted.finished_until)
        and job.id.startswith(wanted.id_prefix or "")
    )


def _accepts(wanted: JobFilter, job: Job) -> bool:
    """Whether a job has what is asked for and no index has."""
    return (
        (wanted.worker is None or wanted.worker == (job.owner or job.last_owner))
        and _is_within(job.finished_at, wanted.finished_since, wanted.finished_until)
        and (wanted.error is None or _lower(wanted.error) in _lower(_error_text(job)))
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
