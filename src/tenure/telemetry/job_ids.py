"""The ids that a log line about a job carries. Apart from `logs`, which imports what formats lines:
who writes one needs none of that."""

from typing import Any

from tenure.core.job import Job


def job_ids(job: Job) -> dict[str, Any]:
    """The ids of a job for a line about it: pass them as `extra`."""
    return {
        "job_id": job.id,
        "kind": job.kind,
        "queue": job.queue,
        "attempt": job.attempt,
        "correlation_id": job.correlated_by,
        "trace_id": job.trace_id,
    }
