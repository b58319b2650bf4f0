"""One log line for each observation, so that a refused result is ignored and logged. [U4]

Says who reported and why it was refused, never what: a result may hold a secret.
"""

import logging

from tenure.core.job import Job
from tenure.core.observations import Observation
from tenure.core.vocabulary import ObservationType
from tenure.telemetry.job_ids import job_ids

_log = logging.getLogger("tenure.coordinator")


def log_observation(seen: Observation, job: Job) -> None:
    """The line about an observation; `job` is the one that was reported on."""
    extra = job_ids(job) | {"observation": seen.type.value}
    match seen.type:
        case ObservationType.RESULT_DISCARDED:
            _log.info(
                "job %s: a report of %s was discarded: %s (%s bytes)",
                *(job.id, seen.actor, seen.cause, seen.size),
                extra=extra,
            )
        case ObservationType.FOREIGN_LEASE:
            _log.warning(
                "job %s: %s reported under a lease that is not its own",
                job.id,
                seen.actor,
                extra=extra,
            )
        case ObservationType.COMPENSATED:
            _log.info("job %s was compensated by job %s", seen.job_id, job.id, extra=extra)
