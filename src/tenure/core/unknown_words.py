"""Words of a newer version: where a row or an event has one that this version does not know.

Such a word is kept and shown unchanged. [Y4] It may change what the other fields mean, so nothing
is decided about such a job here: it is left to processes of the newer version. [Y5]
"""

from collections.abc import Iterator

from tenure.core.events import Event
from tenure.core.job import Job, JobError
from tenure.core.policy import DeadLetterJob, Policy
from tenure.core.vocabulary import (
    ErrorClass,
    EventCause,
    EventType,
    JobStatus,
    OnExhausted,
    OnLost,
    ReasonCode,
    Stage,
)

# Looked up in sets: a claim asks this of every job, and calling `is_known` costs three times that.
_STATUSES = frozenset({None, *JobStatus})
_TYPES = frozenset(EventType)
_CAUSES = frozenset({None, *EventCause})
_REASONS = frozenset({None, *ReasonCode})
_STAGES = frozenset({None, *Stage})
_CLASSES = frozenset(ErrorClass)
_ON_EXHAUSTED = frozenset(OnExhausted)
_ON_LOST = frozenset(OnLost)


def has_unknown_word(job: Job) -> bool:
    """Whether a newer version wrote a word into the row that this one does not know. [Y5]"""
    policy = job.policy
    if (
        job.status not in _STATUSES
        or job.origin_cause not in _CAUSES
        or job.stall_cause not in _CAUSES
        or policy.on_lost not in _ON_LOST
        or policy.on_exhausted not in _ON_EXHAUSTED
    ):
        return True
    is_plain = policy.compensation is None and job.on_dead_letter is None
    if is_plain and job.last_error is None and job.reason_code is None:
        return False
    return bool(unknown_in_job(job))


def unknown_in_job(job: Job) -> list[str]:
    """Each of them, with its field: `status is 'napping'`."""
    return [
        *_unless(job.status in _STATUSES, "status", job.status),
        *_unless(job.origin_cause in _CAUSES, "origin_cause", job.origin_cause),
        *_unless(job.stall_cause in _CAUSES, "stall_cause", job.stall_cause),
        *_in_policy("policy", job.policy),
        *_in_dead_letter_job(job.on_dead_letter),
        *_in_error("last_error", job.last_error),
        *_in_error("error", job.error),
        *_unless(job.reason_code in _REASONS, "reason_code", job.reason_code),
        *_unless(job.stage in _STAGES, "stage", job.stage),
    ]


def unknown_in_event(event: Event) -> list[str]:
    """The same of an event."""
    facts = event.payload
    if (
        event.type in _TYPES
        and event.from_status in _STATUSES
        and event.to_status in _STATUSES
        and event.cause in _CAUSES
        and facts.policy is None
        and facts.error is None
        and facts.reason_code is None
        and facts.stage is None
    ):
        return []
    return [
        *_unless(event.type in _TYPES, "type", event.type),
        *_unless(event.from_status in _STATUSES, "from_status", event.from_status),
        *_unless(event.to_status in _STATUSES, "to_status", event.to_status),
        *_unless(event.cause in _CAUSES, "cause", event.cause),
        *(() if facts.policy is None else _in_policy("policy", facts.policy)),
        *_in_dead_letter_job(facts.on_dead_letter),
        *_in_error("error", facts.error),
        *_unless(facts.reason_code in _REASONS, "reason_code", facts.reason_code),
        *_unless(facts.stage in _STAGES, "stage", facts.stage),
    ]


def _unless(is_known: bool, field: str, word: str | None) -> tuple[str, ...]:
    return () if is_known else (f"{field} is {str(word)!a}",)


def _in_policy(field: str, policy: Policy) -> Iterator[str]:
    yield from _unless(policy.on_lost in _ON_LOST, f"{field}.on_lost", policy.on_lost)
    known = policy.on_exhausted in _ON_EXHAUSTED
    yield from _unless(known, f"{field}.on_exhausted", policy.on_exhausted)
    if policy.compensation is not None:
        yield from _in_policy(f"{field}.compensation.policy", policy.compensation.policy)


def _in_dead_letter_job(job: DeadLetterJob | None) -> Iterator[str]:
    if job is not None:
        yield from _in_policy("on_dead_letter.policy", job.policy)


def _in_error(field: str, error: JobError | None) -> Iterator[str]:
    if error is not None:
        yield from _unless(error.error_class in _CLASSES, f"{field}.class", error.error_class)
        yield from _unless(error.stage in _STAGES, f"{field}.stage", error.stage)
        yield from _unless(error.reason_code in _REASONS, f"{field}.reason_code", error.reason_code)
