"""The enumerations that reach disk or wire. The glossary explains them; ADR 0001 states why these.

Values are stored: renaming one is a schema change. Extensions only add members, so readers meet
values that only a newer version knows: an `OpenEnum` keeps and renders them unchanged. [Y4] A
request may not use them, and nothing is decided about a job that has one. [Y5]

Also what texts for people are made of: counts in words, and the name that was probably meant.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum
from typing import Self

LONGEST_VALUE = 64


class OpenEnum(StrEnum):
    """A set that may grow. An unknown value of a newer version is read as an extra member: not
    equal to any known one, and not listed by iteration."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        is_word = isinstance(value, str) and value.isascii() and value.isidentifier()
        if not is_word or len(str(value)) > LONGEST_VALUE:
            return None
        word = str.__new__(cls, value)
        word._name_ = word._value_ = str(value)
        return word

    @property
    def is_known(self) -> bool:
        """Whether this version has it."""
        return self._value_ in type(self)._value2member_map_

    @classmethod
    def known(cls, word: str) -> Self:
        """The value of an input. Raises ValueError if this version does not have it."""
        found = cls(word)
        if not found.is_known:
            raise ValueError(f"{word!a} is none of {', '.join(cls)}")
        return found


class JobStatus(OpenEnum):
    """The status of a job. The first five are live, the last four terminal and immutable."""

    WAITING = "waiting"
    QUEUED = "queued"
    CLAIMED = "claimed"
    RUNNING = "running"
    STALLED = "stalled"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD_LETTERED = "dead_lettered"

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        """Input may use the words of older documents, and any case, wherever it has a status.
        [S12]"""
        word = value.lower() if isinstance(value, str) else None
        alias = STATUS_ALIASES.get(word) or cls._value2member_map_.get(word)
        return super()._missing_(value) if alias is None else cls(alias.value)

    @property
    def is_terminal(self) -> bool:
        """Whether nothing may follow."""
        return self in TERMINAL

    @property
    def is_leased(self) -> bool:
        """Whether a job in this status has an owner and a lease."""
        return self is JobStatus.CLAIMED or self is JobStatus.RUNNING


TERMINAL = frozenset(
    {JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.DEAD_LETTERED}
)
STATUS_ALIASES: dict[str | None, JobStatus] = {
    "assigned": JobStatus.CLAIMED,
    "completed": JobStatus.SUCCEEDED,
    "orphaned": JobStatus.STALLED,
}


class EventType(OpenEnum):
    """What happened to a job."""

    ENQUEUED = "enqueued"
    READY = "ready"
    CLAIMED = "claimed"
    STARTED = "started"
    LEASE_RENEWED = "lease_renewed"
    HEARTBEAT = "heartbeat"
    CANCEL_REQUESTED = "cancel_requested"
    STALLED = "stalled"
    REQUEUED = "requeued"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    DEAD_LETTERED = "dead_lettered"

    @property
    def operation(self) -> "Operation":
        """What makes events of this type, where nothing special caused one."""
        return OPERATION_OF.get(self) or Operation(self.value)


class Operation(OpenEnum):
    """What is asked of a job, or done to it by the system."""

    ENQUEUE = "enqueue"
    UNBLOCK = "unblock"
    CLAIM = "claim"
    START = "start"
    HEARTBEAT = "heartbeat"
    CANCEL = "cancel"
    STALL = "stall"
    REQUEUE = "requeue"
    COMPLETE = "complete"
    FAIL = "fail"
    DEAD_LETTER = "dead_letter"


OPERATION_OF = {
    EventType.ENQUEUED: Operation.ENQUEUE,
    EventType.READY: Operation.UNBLOCK,
    EventType.CLAIMED: Operation.CLAIM,
    EventType.STARTED: Operation.START,
    EventType.LEASE_RENEWED: Operation.HEARTBEAT,
    EventType.HEARTBEAT: Operation.HEARTBEAT,
    EventType.CANCEL_REQUESTED: Operation.CANCEL,
    EventType.STALLED: Operation.STALL,
    EventType.REQUEUED: Operation.REQUEUE,
    EventType.SUCCEEDED: Operation.COMPLETE,
    EventType.FAILED: Operation.FAIL,
    EventType.CANCELLED: Operation.CANCEL,
    EventType.DEAD_LETTERED: Operation.DEAD_LETTER,
}


class EventClass(OpenEnum):
    """Transitions stay for as long as the job; renewals may be pruned after their attempt."""

    TRANSITION = "transition"
    RENEWAL = "renewal"


ATTEMPT_ENDS = frozenset(
    {
        EventType.STALLED,
        EventType.SUCCEEDED,
        EventType.FAILED,
        EventType.CANCELLED,
        EventType.DEAD_LETTERED,
    }
)
RENEWALS = frozenset({EventType.LEASE_RENEWED, EventType.HEARTBEAT})


class EventCause(OpenEnum):
    """Why an event happened, where its type alone does not state it."""

    REDRIVE = "redrive"
    RERUN = "rerun"
    COMPENSATION = "compensation"
    FOLLOW_UP = "follow_up"
    PARENT_ENDED = "parent_ended"
    SCHEDULE = "schedule"
    RECLAIM = "reclaim"
    IMPLICIT = "implicit"
    ATTEMPT_FAILED = "attempt_failed"
    RELEASED = "released"
    SNOOZED = "snoozed"
    UNDELIVERED = "undelivered"
    LEASE_EXPIRED = "lease_expired"
    OUTAGE = "outage"
    TIMEOUT = "timeout"
    START_TIMEOUT = "start_timeout"
    GRACE_OVER = "grace_over"
    HARD = "hard"
    SOFT = "soft"
    ACKNOWLEDGED = "acknowledged"
    OPERATOR = "operator"
    EXPIRED = "expired"
    DEAD_LETTER = "dead_letter"


class VerdictKind(StrEnum):
    """The coordinator's verdict on a worker's report."""

    OK = "OK"
    COMMITTED = "COMMITTED"
    CANCELLED = "CANCELLED"
    REJECTED = "REJECTED"


class Cause(OpenEnum):
    """Why a caller was refused."""

    MALFORMED = "malformed"
    UNKNOWN_JOB = "unknown_job"
    INVALID_LEASE = "invalid_lease"
    EPOCH_CHANGED = "epoch_changed"
    LEASE_EXPIRED = "lease_expired"
    TIMED_OUT = "timed_out"
    REVOKED = "revoked"
    SUPERSEDED = "superseded"
    JOB_CANCELLED = "job_cancelled"
    JOB_DEAD_LETTERED = "job_dead_lettered"
    DUPLICATE_COMPLETION = "duplicate_completion"
    IDEMPOTENCY_KEY_REUSE = "idempotency_key_reuse"
    ALREADY_STARTED = "already_started"
    LEASE_SETTLED = "lease_settled"
    STALE_CLAIM = "stale_claim"
    JOB_FINISHED = "job_finished"
    NOT_FINISHED = "not_finished"
    NOT_HELD = "not_held"
    NOT_LEASED = "not_leased"
    NOT_READY = "not_ready"
    DEDUPE_KEY_HELD = "dedupe_key_held"
    COMPENSATION_PROTECTED = "compensation_protected"
    COMPENSATION_PENDING = "compensation_pending"
    REVISION_MISMATCH = "revision_mismatch"
    NOT_DEAD_LETTERED = "not_dead_lettered"
    ALREADY_RESOLVED = "already_resolved"
    PART_OF_FLOW = "part_of_flow"
    NOTHING_TO_REDRIVE = "nothing_to_redrive"
    JOBS_PURGED = "jobs_purged"
    TOO_MANY_ARTIFACTS = "too_many_artifacts"
    JOB_ARTIFACT_QUOTA = "job_artifact_quota"
    NAMESPACE_ARTIFACT_QUOTA = "namespace_artifact_quota"


class Disposition(OpenEnum):
    """What an accepted report did to the job."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    RETRY_SCHEDULED = "retry_scheduled"
    DEAD_LETTERED = "dead_lettered"
    CANCELLED = "cancelled"
    RELEASED = "released"


class ReasonCode(OpenEnum):
    """Why a job is a dead letter."""

    PARSE_ERROR = "parse_error"
    VALIDATION_FAILED = "validation_failed"
    DEPENDENCY_UNAVAILABLE = "dependency_unavailable"
    TIMEOUT = "timeout"
    EXHAUSTED_RETRIES = "exhausted_retries"
    POLICY_VIOLATION = "policy_violation"
    INFRASTRUCTURE_FAILURE = "infrastructure_failure"
    COMPENSATION_FAILED = "compensation_failed"


class ResolutionKind(OpenEnum):
    """What became of a dead letter."""

    REDRIVEN = "redriven"
    DISCARDED = "discarded"


class HealthState(OpenEnum):
    """How serious a fact about a store is."""

    OK = "ok"
    WARNING = "warning"
    BAD = "bad"


class Stage(OpenEnum):
    """Where in an attempt a failure was found."""

    FETCH = "fetch"
    INPUT = "input"
    EXEC = "exec"
    OUTPUT = "output"
    COMMIT = "commit"


class ErrorClass(OpenEnum):
    """The class of a handler's exception. The worker reports it; the core decides what follows."""

    VALIDATION = "validation"
    TRANSIENT = "transient"
    PERMANENT = "permanent"
    UNCLASSIFIED = "unclassified"


class OnExhausted(OpenEnum):
    """Where a failed attempt goes when the budget is spent."""

    DEAD_LETTER = "dead_letter"
    FAIL = "fail"


class OnLost(OpenEnum):
    """Where a lost attempt goes while budget is left."""

    REQUEUE = "requeue"
    HOLD = "hold"
    RECLAIM = "reclaim"


class CatchUp(OpenEnum):
    """Which of a schedule's occurrences are made up for, if they were not fired in time."""

    LATEST = "latest"
    ALL = "all"
    NONE = "none"


class Overlap(OpenEnum):
    """What a schedule does while its last run has not ended."""

    SKIP = "skip"
    ALLOW = "allow"
    CANCEL = "cancel"


class ReleaseKind(StrEnum):
    """Why a worker hands a job back."""

    DEPLOY = "deploy"
    SNOOZE = "snooze"
    UNDELIVERED = "undelivered"


class CancelMode(StrEnum):
    """Soft asks the handler to stop and waits for the grace; hard revokes at once."""

    SOFT = "soft"
    HARD = "hard"


class ObservationType(OpenEnum):
    """Facts that are kept apart from the history and change nothing."""

    RESULT_DISCARDED = "result_discarded"
    FOREIGN_LEASE = "foreign_lease"
    COMPENSATED = "compensated"


class LeaseNews(OpenEnum):
    """What polling a lease finds. It decides nothing. [C2]"""

    NONE = "none"
    CANCEL = "cancel"  # was asked for
    LOST = "lost"


class WorkerState(OpenEnum):
    """The state of a worker process, by its signs of life."""

    ALIVE = "alive"
    DRAINING = "draining"
    SILENT = "silent"


class Role(StrEnum):
    """What a token lets its holder do."""

    CLIENT = "client"
    PRODUCER = "producer"
    WORKER = "worker"
    OPERATOR = "operator"
    VIEWER = "viewer"

    @property
    def sees_bodies(self) -> bool:
        """Whether its holder may see payloads, results, checkpoints and digests of them. [H46]"""
        return self not in (Role.PRODUCER, Role.VIEWER)


# --- Counts in words -----------------------------------------------------------------------------


def noun_after(count: int, noun: str, plural: str = "") -> str:
    """The noun that follows a count: `noun` after one, and `plural` after any other number (by
    itself `noun` with an s). Both may have more words: `noun_after(left, "job is", "jobs are")`."""
    return noun if count == 1 else plural or f"{noun}s"


def counted(count: int, noun: str, plural: str = "", *, thousands: str = ",") -> str:
    """The count and the noun that follows it."""
    number = f"{count:,}".replace(",", thousands)
    return f"{number} {noun_after(count, noun, plural)}"


# --- Close names ---------------------------------------------------------------------------------


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is written most nearly like this one; None if none is close."""
    alike = get_close_matches(name, sorted(known), n=1)
    return alike[0] if alike else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """`did you mean charge?`, or the other text if no known name is close."""
    meant = closest(name, known)
    return otherwise if meant is None else f"did you mean {meant}?"
