"""The types of fields in messages, with the limits that the OpenAPI description states.

The core checks every field again, and more exactly. Durations are seconds, instants are RFC 3339 in
UTC. [H3]
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from msgspec import Meta

from tenure.core.checks import (
    LIMITS_BY_NAME as SAME_AS_IN_THE_CORE,
)
from tenure.core.checks import (
    MAX_DEDUPE_KEY,
    MAX_DURATION,
    MAX_META,
    MAX_META_KEY,
    MAX_META_VALUE,
    MAX_NAME,
    MAX_TEXT,
    META_KEY_PATTERN,
    NAME_PATTERN,
    Count,
    Text,
)
from tenure.core.ids import (
    ANY_CASE_JOB_ID_PATTERN,
    LEASE_ID_PATTERN,
    JobId,
    Kind,
    LeaseId,
    Namespace,
    QueueName,
    RequestId,
    ScheduleName,
    WorkerId,
)
from tenure.core.instants import MICROSECONDS_PER_SECOND, Duration, Instant
from tenure.core.schedules import MAX_CRON

MAX_SECONDS = MAX_DURATION / MICROSECONDS_PER_SECOND


def _whole(pattern: "re.Pattern[str]") -> str:
    """The pattern for a whole text: Python's `$` lets a line feed follow, others' does not."""
    return rf"^{pattern.pattern}$(?!\n)"


_NAME = Meta(pattern=_whole(NAME_PATTERN), max_length=MAX_NAME)

Name = Annotated[str, _NAME]
NamespaceField = Annotated[Namespace, _NAME]
QueueField = Annotated[QueueName, _NAME]
KindField = Annotated[Kind, _NAME]
WorkerField = Annotated[WorkerId, _NAME]
ScheduleField = Annotated[ScheduleName, _NAME]
RequestIdField = Annotated[RequestId, _NAME]
JobIdField = Annotated[JobId, Meta(pattern=_whole(ANY_CASE_JOB_ID_PATTERN))]
LeaseIdField = Annotated[LeaseId, Meta(pattern=_whole(LEASE_ID_PATTERN))]

EventTypeField = Annotated[str, Meta(max_length=MAX_NAME)]
StepField = Annotated[str, Meta(max_length=MAX_DEDUPE_KEY)]
LongText = Annotated[str, Meta(max_length=16 * MAX_TEXT)]
ShortText = Annotated[str, Meta(max_length=MAX_NAME)]

MetaKey = Annotated[str, Meta(pattern=_whole(META_KEY_PATTERN), max_length=MAX_META_KEY)]
MetaField = Annotated[
    dict[MetaKey, Annotated[str, Meta(max_length=MAX_META_VALUE)]], Meta(max_length=MAX_META)
]

Seconds = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
Moment = Annotated[datetime, Meta(tz=True)]

_NAME_IN_WORDS = (
    "a name of ASCII letters, digits and . _ : / -, beginning with a letter or digit,"
    f" at most {MAX_NAME} characters"
)
PATTERNS_IN_WORDS = {
    _whole(NAME_PATTERN): _NAME_IN_WORDS,
    _whole(ANY_CASE_JOB_ID_PATTERN): "a UUID such as 0190163d-8694-739b-aea5-966c26f8ad91",
    _whole(LEASE_ID_PATTERN): "the lease_id of a grant",
    _whole(META_KEY_PATTERN): (
        "keys of ASCII letters, digits and . _ -, beginning with a letter or digit,"
        f" at most {MAX_META_KEY} characters"
    ),
}

LIMITS_BY_TYPE: dict[Any, Any] = {
    Duration: Seconds,
    Instant: Moment,
    JobId: JobIdField,
    Kind: KindField,
    LeaseId: LeaseIdField,
    Namespace: NamespaceField,
    QueueName: QueueField,
    RequestId: RequestIdField,
    ScheduleName: ScheduleField,
    WorkerId: WorkerField,
    dict[str, str]: MetaField,
}
"""What a field of a request may be, by its type in the core."""

LIMITS_BY_NAME: dict[str, Any] = {
    **SAME_AS_IN_THE_CORE,
    "concurrency": Count,
    "cron": Annotated[str, Meta(min_length=1, max_length=MAX_CRON)],
    "message": Text,
    "queues": Annotated[tuple[QueueField, ...], Meta(min_length=1)],
    "tz": Annotated[str, Meta(min_length=1, max_length=MAX_NAME)],
}
"""What a field of a request may be, by its name, where its type in the core allows more. A field
that is neither here nor there is described by its type alone; the core checks it anyway."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = datetime.min.replace(tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def moment(instant: Instant) -> datetime:
    """An instant as it travels; one past the year 9999 becomes its end, one before the year 1 its
    start."""
    try:
        return _EPOCH + timedelta(0, 0, instant)  # by position: twice as fast as by name
    except OverflowError:
        return _FIRST if instant < 0 else _LAST


def iso(instant: Instant | None) -> str | None:
    """An instant as people read it, always of the same length."""
    if instant is None:
        return None
    return moment(instant).isoformat(timespec="microseconds").replace("+00:00", "Z")


def optional_moment(instant: Instant | None) -> datetime | None:
    """The same where there may be none."""
    return None if instant is None else moment(instant)


def instant(at: datetime) -> Instant:
    """A moment of the wire as an instant."""
    return Instant((at - _EPOCH) // _MICROSECOND)


def optional_instant(at: datetime | None) -> Instant | None:
    """The same where there may be none."""
    return None if at is None else instant(at)


def in_seconds(duration: Duration) -> float:
    """A duration as it travels."""
    return duration / MICROSECONDS_PER_SECOND
