"""The row mapper: turns jobs, events and observations into columns and back, for every dialect.

Field names are column names. Bodies are stored as the JSON text that was sent, members of
enumerations by their value, structured fields as JSON text, instants as integers. What is read
equals what was written.

What most rows have in common is not written: a policy is what differs from `_USUAL_POLICY`, an
event leaves out what its type, its job or its own columns state (docs/adr/0097). What replaces it
here must never change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec.structs import astuple, replace

from tenure.core.events import Event, Facts, digest
from tenure.core.evolution import NEW_ROW_FIELDS, TOUCHES
from tenure.core.failover import is_settling
from tenure.core.ids import Epoch
from tenure.core.instants import Instant
from tenure.core.job import NO_BODY, Job, JobError, Progress
from tenure.core.outcomes import Moment, Session, SessionKey
from tenure.core.policy import DeadLetterJob, Policy
from tenure.core.rates import Meter, RateScope
from tenure.core.verdicts import Observation
from tenure.core.vocabulary import (
    EventCause,
    EventType,
    JobStatus,
    ObservationType,
    ReasonCode,
    Stage,
)
from tenure.errors import StoreError, UnreadableRow

Row: TypeAlias = tuple[Any, ...]
Values: TypeAlias = Sequence[Any]
"""The values of one column, one per row."""

JOB_COLUMNS: tuple[str, ...] = Job.__struct_fields__
EVENT_FIELDS: tuple[str, ...] = Event.__struct_fields__
FACT_COLUMNS = ("namespace", "queue", "kind", "policy", "run_at", "sha256", "size")
"""The facts that most events of their type have. The others are the JSON of `payload`."""
EVENT_COLUMNS = (*EVENT_FIELDS, *FACT_COLUMNS)
OF_FIRST_EVENT = ("correlation_id", "trace_id")
"""Only the first event of a job states them; others are read with those of the job's row."""
OBSERVATION_COLUMNS: tuple[str, ...] = Observation.__struct_fields__
SESSION_COLUMNS = (
    "namespace", "actor", "worker", "claim_seq", "request_id", "fingerprint", "claimed_at",
    "is_repeated",
)  # fmt: skip

WITH_BODIES = (("columns", "{job_columns}"),)
WITHOUT_BODIES = (("columns", "{job_columns_without_bodies}"),)
"""The columns of a statement that loads jobs."""

INLINE_BODY_BYTES = 64 << 10
"""A claim reads the bodies of a candidate together with its row up to this size. For a larger one
it first reads only the size: most of the large ones do not fit into its answer. [Z10]"""

BODIES_LEFT_OUT = "#"
"""In place of a payload: the bodies were not read, and their size follows. No JSON starts like
this."""

_POLICIES_REMEMBERED = 1024
"""Jobs of one kind share their policy: decoding it once per text saves a third of a load."""

_encode = msgspec.json.Encoder(order="deterministic").encode
_T = TypeVar("_T")
_W = TypeVar("_W", bound=StrEnum)


# --- Into columns ------------------------------------------------------------------------------


def _bodies(values: Values) -> Values:
    return [None if value is None else value.decode() for value in values]


def _codes(values: Values) -> Values:
    return [None if value is None else value._value_ for value in values]


def encode_document(value: object) -> str:
    """A value as the JSON text of a column."""
    return _encode(value).decode()


_USUAL_POLICY: list[Any] = [
    *(60_000_000, 15, 20, [2_000_000, 2.0, 900_000_000, 0.5], 3_600_000_000, 600_000_000),
    *(30_000_000, "dead_letter", "requeue", None, None, None),
]


@lru_cache(maxsize=_POLICIES_REMEMBERED)
def encode_policy(policy: Policy) -> str:
    """What differs from `_USUAL_POLICY`, by place: `{"1":3}`. A column of full policies was a third
    of a job's row."""
    fields = enumerate(msgspec.to_builtins(policy))
    return encode_document(
        {str(at): value for at, value in fields if [value] != _USUAL_POLICY[at : at + 1]}
    )


def _policies(values: Values) -> Values:
    return [None if value is None else encode_policy(value) for value in values]


def _documents(values: Values) -> Values:
    return [None if value is None else _encode(value).decode() for value in values]


def _flags(values: Values) -> Values:
    return [int(value) for value in values]


Encoder: TypeAlias = Callable[[Values], Values]

JOB_ENCODERS: Mapping[str, Encoder] = {
    "payload": _bodies,
    "policy": _policies,
    "on_dead_letter": _documents,
    "meta": _documents,
    "origin_cause": _codes,
    "status": _codes,
    "was_started": _flags,
    "checkpoint": _bodies,
    "progress": _documents,
    "stall_cause": _codes,
    "last_error": _documents,
    "result": _bodies,
    "error": _documents,
    "reason_code": _codes,
    "stage": _codes,
}
EVENT_ENCODERS: Mapping[str, Encoder] = {
    "type": _codes,
    "from_status": _codes,
    "to_status": _codes,
    "cause": _codes,
    "payload": _documents,
    "policy": _policies,
}

_R, _Q = JobStatus.RUNNING, JobStatus.QUEUED
_USUAL_WAY: Mapping[EventType, tuple[JobStatus | None, JobStatus]] = {
    EventType.ENQUEUED: (None, _Q),
    EventType.READY: (JobStatus.WAITING, _Q),
    EventType.CLAIMED: (_Q, JobStatus.CLAIMED),
    EventType.STARTED: (JobStatus.CLAIMED, _R),
    EventType.LEASE_RENEWED: (_R, _R),
    EventType.HEARTBEAT: (_R, _R),
    EventType.CANCEL_REQUESTED: (_R, _R),
    EventType.STALLED: (_R, JobStatus.STALLED),
    EventType.REQUEUED: (JobStatus.STALLED, _Q),
    EventType.SUCCEEDED: (_R, JobStatus.SUCCEEDED),
    EventType.FAILED: (_R, JobStatus.FAILED),
    EventType.CANCELLED: (_R, JobStatus.CANCELLED),
    EventType.DEAD_LETTERED: (_R, JobStatus.DEAD_LETTERED),
}
"""The statuses that events of a type leave out: both are written if one is another."""
_USUAL_WAYS = frozenset((type_, *way) for type_, way in _USUAL_WAY.items())

_OF_LEASE, _OF_JOB, _WHOLE = "=", "~", "!"
"""What a stored request id starts with: in place of the event's lease id or job id, or before an id
that starts with one of these."""

_NO_FACTS = Facts()
_rare_of = itemgetter(*(name for name in Facts.__struct_fields__ if name not in FACT_COLUMNS))
_WITHOUT_FACT_COLUMNS = dict.fromkeys(FACT_COLUMNS)
_NULL_DIGEST = digest(NO_BODY)


def event_values(events: Sequence[Event]) -> dict[str, Values]:
    """The columns of these events, not encoded yet. What each event leaves out is None, or shorter:
    `event_from` adds it again. Column by column: a loop in Python for each event costs twice."""
    columns: dict[str, Values] = dict(
        zip(EVENT_FIELDS, zip(*map(astuple, events), strict=True), strict=True)
    )
    count = len(events)
    nothing: Values = (None,) * count
    ways = zip(columns["type"], columns["from_status"], columns["to_status"], strict=True)
    if _USUAL_WAYS.issuperset(ways):
        columns["from_status"] = columns["to_status"] = nothing
    if None not in columns["owner"]:
        owned = set(zip(columns["owner"], columns["actor"], strict=True))
        if not [actor for owner, actor in owned if actor != f"worker:{owner}"]:
            columns["owner"] = ("",) * count
    asked = zip(columns["request_id"], columns["lease_id"], columns["job_id"], strict=True)
    columns["request_id"] = [
        _OF_LEASE + request_id[len(lease_id) :]
        if lease_id is not None and request_id.startswith(lease_id)
        else _OF_JOB + request_id[len(job_id) :]
        if request_id.startswith(job_id)
        else _WHOLE + request_id
        if request_id[:1] in (_OF_LEASE, _OF_JOB, _WHOLE)
        else request_id
        for request_id, lease_id, job_id in asked
    ]
    for name in OF_FIRST_EVENT:
        if columns[name].count(None) < count:
            firsts = zip(columns[name], columns["seq"], strict=True)
            columns[name] = [value if seq == 1 else None for value, seq in firsts]
    facts = columns["payload"]
    are_equal = facts.count(facts[0]) == count
    rows = map(astuple, facts[:1] if are_equal else facts)
    by_fact = dict(zip(Facts.__struct_fields__, zip(*rows, strict=True), strict=True))
    for name in FACT_COLUMNS:
        columns[name] = by_fact[name] if not are_equal else (by_fact[name][0],) * count
    if _NULL_DIGEST in columns["sha256"]:
        columns["sha256"] = ["" if each == _NULL_DIGEST else each for each in columns["sha256"]]
    columns["payload"] = nothing
    rare_facts = list(chain.from_iterable(_rare_of(by_fact)))
    if rare_facts.count(None) < len(rare_facts):
        rare = [replace(each, **_WITHOUT_FACT_COLUMNS) for each in facts]
        columns["payload"] = [None if each == _NO_FACTS else each for each in rare]
    return columns


def value_encoder(encode: Encoder) -> Callable[[Any], Any]:
    """Encodes a single value that is not None as `encode` does a column."""
    return _OF_ONE_VALUE[encode]


_OF_ONE_VALUE: Mapping[Encoder, Callable[[Any], Any]] = {
    _bodies: bytes.decode,
    _codes: attrgetter("_value_"),
    _documents: encode_document,
    _policies: encode_policy,
    _flags: int,
}


@lru_cache(maxsize=256)
def job_values(columns: tuple[str, ...]) -> Callable[[Job], Row]:
    """A function that reads only these fields of a job, which is faster than reading all."""
    return attrgetter(*columns)


_GIVES = {EventType.ENQUEUED: NEW_ROW_FIELDS[1:], **TOUCHES}


@lru_cache(maxsize=256)
def touched(types: tuple[EventType, ...]) -> tuple[str, ...]:
    """The columns that events of these types may change, each once, without the id."""
    return tuple(dict.fromkeys(name for each in types for name in _GIVES[each]))


# --- Out of rows -------------------------------------------------------------------------------


class _Members(dict[str, StrEnum]):
    """Members by their value: faster than calling the enumeration."""

    def __init__(self, enumeration: type[StrEnum]) -> None:
        super().__init__({member.value: member for member in enumeration})
        self._enumeration = enumeration

    def __missing__(self, value: str) -> StrEnum:
        """A value of a newer version, unchanged. [Y4]"""
        return self._enumeration(value)


def _member(enumeration: type[StrEnum]) -> Callable[[str], StrEnum]:
    return _Members(enumeration).__getitem__


def value_from(enumeration: type[_W], value: str, *, where: str) -> _W:
    """The member for a column's value. The schema does not refuse other values; values of a newer
    version are read where the set may grow. [Y4]"""
    try:
        return enumeration(value)
    except ValueError as wrong:
        raise StoreError(
            f"{where} is {value[:60]!a}, which this version does not know",
            hint="upgrade Tenure, or correct what was written by hand",
        ) from wrong


def _document(shape: type[_T]) -> Callable[[str], _T]:
    return msgspec.json.Decoder(shape).decode


_Decoder: TypeAlias = Callable[[Any], Any]

_decode_differences = _document(dict[int, Any])


def _policy_from(text: str) -> Policy:
    found = dict(enumerate(_USUAL_POLICY)) | _decode_differences(text)
    return msgspec.convert([found[at] for at in sorted(found)], Policy)


decode_policy: _Decoder = lru_cache(maxsize=_POLICIES_REMEMBERED)(_policy_from)
"""The policy of `encode_policy`."""

_JOB_DECODERS: tuple[tuple[int, _Decoder], ...] = tuple(
    (JOB_COLUMNS.index(name), decode)
    for name, decode in {
        "payload": str.encode,
        "policy": decode_policy,
        "on_dead_letter": _document(DeadLetterJob),
        "meta": _document(dict[str, str]),
        "origin_cause": _member(EventCause),
        "status": _member(JobStatus),
        "was_started": bool,
        "checkpoint": str.encode,
        "progress": _document(Progress),
        "stall_cause": _member(EventCause),
        "last_error": _document(JobError),
        "result": str.encode,
        "error": _document(JobError),
        "reason_code": _member(ReasonCode),
        "stage": _member(Stage),
    }.items()
)
_EVENT_DECODERS: Mapping[str, _Decoder] = {
    "type": _member(EventType),
    "from_status": _member(JobStatus),
    "to_status": _member(JobStatus),
    "cause": _member(EventCause),
    "payload": _document(Facts),
    "policy": decode_policy,
}
_observation_type = _member(ObservationType)


def _problem(what: str, wrong: Exception) -> str:
    """What is wrong with a value. Shows an unknown value, but never a document, which may contain
    secrets."""
    if isinstance(wrong, msgspec.MsgspecError):
        return f"{what} is not the document it should be"
    return f"{what} is {str(wrong)[:80]}"


def job_from(row: Row) -> Job:
    """The job of a row whose columns are `JOB_COLUMNS`."""
    values = list(row)
    position = 0  # of the value being read
    try:
        for position, decode in _JOB_DECODERS:
            value = values[position]
            if value is not None:
                values[position] = decode(value)
    except ValueError as wrong:  # what msgspec raises is one, too
        raise UnreadableRow(str(row[0]), _problem(JOB_COLUMNS[position], wrong)) from wrong
    return Job(*values)


def left_out_bytes(job: Job) -> int | None:
    """The size of a candidate's bodies if they were left out; None if it has them."""
    if not job.payload.startswith(BODIES_LEFT_OUT.encode()):
        return None
    return int(job.payload.removeprefix(BODIES_LEFT_OUT.encode()))


def event_from(row: Row) -> Event:
    """The event of a row whose columns start with `EVENT_COLUMNS`."""
    values: dict[str, Any] = dict(zip(EVENT_COLUMNS, row, strict=False))
    name = ""  # of the value being read
    try:
        for name, decode in _EVENT_DECODERS.items():
            value = values[name]
            if value is not None:
                values[name] = decode(value)
    except ValueError as wrong:
        problem = _problem(f"an event's {name}", wrong)
        raise UnreadableRow(str(values["job_id"]), problem) from wrong
    facts = {name: fact for name in FACT_COLUMNS if (fact := values.pop(name)) is not None}
    if facts.get("sha256") == "":
        facts["sha256"] = _NULL_DIGEST
    values["payload"] = replace(values["payload"] or _NO_FACTS, **facts)
    if values["to_status"] is None and values["type"] in _USUAL_WAY:
        values["from_status"], values["to_status"] = _USUAL_WAY[values["type"]]
    if values["owner"] == "":
        values["owner"] = values["actor"].removeprefix("worker:")
    first, rest = values["request_id"][:1], values["request_id"][1:]
    begin = {_OF_LEASE: values["lease_id"], _OF_JOB: values["job_id"], _WHOLE: ""}.get(first)
    if begin is not None:
        values["request_id"] = begin + rest
    return Event(**values)


def observation_from(row: Row) -> Observation:
    """The observation of a row whose columns are `OBSERVATION_COLUMNS`."""
    values: dict[str, Any] = dict(zip(OBSERVATION_COLUMNS, row, strict=True))
    try:
        values["type"] = _observation_type(values["type"])
    except ValueError as wrong:
        problem = _problem("an observation's type", wrong)
        raise UnreadableRow(str(values["job_id"]), problem) from wrong
    return Observation(**values)


def session_from(row: Row) -> Session:
    """The session of a row whose columns are `SESSION_COLUMNS`."""
    namespace, actor, worker, claim_seq, request_id, fingerprint, claimed_at, is_repeated = row
    return Session(
        key=SessionKey(namespace=namespace, actor=actor, worker=worker),
        claim_seq=claim_seq,
        request_id=request_id,
        fingerprint=fingerprint,
        claimed_at=claimed_at,
        is_repeated=bool(is_repeated),
    )


def rate_states_from(rows: Iterable[Row]) -> dict[Meter, Instant]:
    """States of rates, from rows; rows without one are left out."""
    return {
        Meter(RateScope(scope), name, key): Instant(tat)
        for scope, name, key, tat in rows
        if tat is not None
    }


def moment_from(row: Row) -> Moment:
    """From the row of `moment_to_decide`. Without entropy: no job is made here."""
    now, epoch, settling_since = row
    return Moment(
        now=Instant(now),
        epoch=Epoch(epoch),
        entropy=b"",
        is_settling=is_settling(settling_since, Instant(now)),
    )
