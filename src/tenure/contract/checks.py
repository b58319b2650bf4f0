"""The row check and the log check, for rows and events that another queue keeps as mappings.

Translates mappings into the core's values and runs the core's and verify's own checks on them. A
missing field is the caller's mistake and raises; everything else that is wrong is returned.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from tenure.core.checks import MAX_DURATION
from tenure.core.events import Event, Facts
from tenure.core.evolution import evolve
from tenure.core.ids import DEFAULT_NAMESPACE, SYSTEM, JobId, Kind, QueueName, RequestId
from tenure.core.instants import Instant
from tenure.core.job import NO_BODY, Job, counter_violations, field_violations
from tenure.core.policy import Policy
from tenure.core.transitions import EDGES
from tenure.core.views.events import parse_type_filter
from tenure.core.vocabulary import (
    ATTEMPT_ENDS,
    RENEWALS,
    EventCause,
    EventType,
    JobStatus,
)
from tenure.errors import InvalidInput
from tenure.ports import JobHistory, Unreadable
from tenure.verify.invariants import INVARIANTS, Violation

Fields = Mapping[str, object]

ROW_FIELDS = (
    "id",
    "status",
    "attempt",
    "rev",
    "owner",
    "lease_id",
    "lease_expires_at",
    "result",
    "error",
)
"""What a row must have; None where it is absent. Other fields of the table of docs/spec/states.md
are checked if the row has them."""

EVENT_FIELDS = ("seq", "type", "from_status", "to_status", "attempt")
"""What an event must have."""

LEASE_EVENT_FIELDS = (
    *EVENT_FIELDS,
    "ts",
    "actor",
    "request_id",
    "owner",
    "lease_id",
    "lease_expires_at",
)
"""What an event must have for `LEASE_RULES`; `at` may stand for `ts`. `ts` and `lease_expires_at`
are integers of one unit, `actor` is `worker:NAME`, `client:NAME`, `operator:NAME` or `system`."""

ORDER_RULES = ("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I15", "P2", "P4")
"""Rules about the order of events: along the table, numbered without gaps, one end."""

LEASE_RULES = ("I9", "I10", "P1", "P3")
"""Rules about leases: one at a time, and nothing under a lease that has ended."""

_RULES = {rule.id: rule for rule in INVARIANTS}

# Of another queue's time-outs nothing is known: only the expiry ends a lease.
_POLICY = Policy(timeout_us=None, start_within_us=MAX_DURATION)


PLAN_OPERATIONS = {
    "enqueue": EventType.ENQUEUED,
    "claimnext": EventType.CLAIMED,
    "start": EventType.STARTED,
    "heartbeat": EventType.HEARTBEAT,
    "complete": EventType.SUCCEEDED,
    "fail": EventType.FAILED,
    "stall": EventType.STALLED,
    "requeuestalled": EventType.REQUEUED,
}
"""The eight operations of the lifecycle plan, in lower case, and the event that each writes."""

_ONLY_SHOULD = frozenset({"owner", "lease_id", "lease_expires_at"})
"""What a finished row SHOULD not have by the lifecycle plan."""


def is_allowed(source: str | None, event: str, target: str) -> bool:
    """Whether a job may go from `source` to `target` by this event; None is before its enqueue. An
    event is a type (`claimed`), a name (`job_claimed`) or an operation of the plan (`claimNext`);
    all words may be in any case. Raises `InvalidInput` for a word that no list has. [N1] [I4]"""
    here = None if source is None else _known_status("source", source)
    return (here, _event_type(event), _known_status("target", target)) in EDGES


def check_row(row: Fields) -> list[str]:
    """Where a row breaks the table of its status; empty for an allowed row. A result is present
    unless it is None, so give JSON's null as "null". [I8]"""
    return [each for each in _row_problems(row) if each not in row_warnings(row)]


def row_warnings(row: Fields) -> list[str]:
    """What a finished row should not have, but may: an owner or a lease. Tenure's own rows never
    do; in the lifecycle plan it is a SHOULD. [I8]"""
    status = _status(row["status"])
    if status is None or not status.is_terminal:
        return []
    lease = {name: row.get(name) for name in _ONLY_SHOULD}
    return field_violations(status, lease)


def _row_problems(row: Fields) -> list[str]:
    _require(row, ROW_FIELDS, of="the row")
    status = _status(row["status"])
    if status is None:
        return [f"status is {row['status']!r}, one of {', '.join(JobStatus)} is expected"]
    return field_violations(status, row) + counter_violations(
        attempt=_integer(row, "attempt"),
        rev=_integer(row, "rev"),
        failures=_integer(row, "failures") if "failures" in row else 0,
    )


def check_log(
    row: Fields, events: Iterable[Fields], rules: Sequence[str] = (*ORDER_RULES, *LEASE_RULES)
) -> list[Violation]:
    """Where a job's events break the rules or lead to another row than this one; empty for a
    history that is allowed. Each violation names the rule of docs/spec, the job and the first
    offending seq. A word that is in no list breaks I24, and then nothing else is checked."""
    _require(row, ROW_FIELDS, of="the row")
    for rule in rules:
        if rule not in (*ORDER_RULES, *LEASE_RULES):
            raise InvalidInput("rules", f"{rule} is neither in ORDER_RULES nor in LEASE_RULES")
    record = _record(row, events, has_leases=not set(rules).isdisjoint(LEASE_RULES))
    unreadable = list(_RULES["I24"].broken_by(record))
    return unreadable or [each for rule in rules for each in _RULES[rule].broken_by(record)]


def _require(found: Fields, names: Sequence[str], *, of: str) -> None:
    for name in names:
        if name not in found:
            raise InvalidInput(name, f"{of} does not have it", hint="give None where it is absent")


def _integer(found: Fields, name: str) -> int:
    value = found[name]
    if type(value) is not int:
        raise InvalidInput(name, f"{value!r} is not an integer")
    return value


def _status(word: object) -> JobStatus | None:
    try:
        return JobStatus.known(word) if isinstance(word, str) else None
    except ValueError:
        return None


def _known_status(field: str, word: str) -> JobStatus:
    status = _status(word)
    if status is None:
        raise InvalidInput(field, f"{word!a} is not one of {', '.join(JobStatus)}")
    return status


def _event_type(word: str) -> EventType:
    operation = PLAN_OPERATIONS.get(word.lower())
    return parse_type_filter(word).type if operation is None else operation


def _record(row: Fields, events: Iterable[Fields], *, has_leases: bool) -> JobHistory:
    """The history as verify reads it, or what of it cannot be read."""
    job_id = JobId(str(row["id"]))
    needed = LEASE_EVENT_FIELDS if has_leases else EVENT_FIELDS
    read: list[Event] = []
    unreadable: list[Unreadable] = []
    for position, given in enumerate(events, start=1):
        found = {**given, "ts": given["at"]} if "at" in given and "ts" not in given else given
        _require(found, needed, of=f"event number {position}")
        try:
            read.append(_event(job_id, found, needed))
        except (msgspec.ValidationError, UnicodeEncodeError) as wrong:
            unreadable.append(Unreadable(_integer(found, "seq"), f"event: {wrong}"))
    status = _status(row["status"])
    wrong_words = [] if status is not None else [f"row: status is {row['status']!r}"]
    for name in ("owner", "lease_id") if has_leases else ():
        if not isinstance(row[name], str | None):
            wrong_words.append(f"row: {name} is {row[name]!r}, not text")
    if status is None or wrong_words:
        unreadable += [Unreadable(_integer(row, "rev"), each) for each in wrong_words]
        return JobHistory(job_id, None, (), unreadable=tuple(unreadable))
    job = _job(job_id, status, row)
    return JobHistory(job_id, job, list(_with_renewals(read)), unreadable=tuple(unreadable))


_OWN_FACTS = ("renewals", "cancel_deadline")


def _event(job_id: JobId, found: Fields, needed: Sequence[str]) -> Event:
    """An event with the fields that the rules read. All others are the other queue's own: its
    causes, payloads, versions."""
    members: dict[str, object] = {
        "job_id": job_id,
        "ts": 0,
        "actor": SYSTEM,
        "request_id": f"{job_id}:{_integer(found, 'seq')}",
    }
    members |= {name: found[name] for name in needed}
    with suppress(InvalidInput):  # a word that no list has stays, and breaks I24
        members["type"] = _event_type(str(found["type"]))
    if found.get("cause") == EventCause.RECLAIM:
        members["cause"] = EventCause.RECLAIM
    payload = found.get("payload")
    if isinstance(payload, Mapping):
        members["payload"] = {name: payload[name] for name in _OWN_FACTS if name in payload}
    return msgspec.convert(members, Event)


def _with_renewals(events: Iterable[Event]) -> Iterator[Event]:
    """The events, each end of an attempt with its number of renewals: a log that does not state
    it has kept all of them. [G1]"""
    renewals = 0
    for event in events:
        if event.type is EventType.CLAIMED:
            renewals = 0
        renewals += event.type in RENEWALS
        if event.type in ATTEMPT_ENDS and event.payload.renewals is None:
            facts = msgspec.structs.replace(event.payload, renewals=renewals)
            yield msgspec.structs.replace(event, payload=facts)
        else:
            yield event


def _job(job_id: JobId, status: JobStatus, row: Fields) -> Job:
    """A row with the fields that the rules read; no rule of this module reads the others."""
    facts = Facts(namespace=DEFAULT_NAMESPACE, queue=QueueName(""), kind=Kind(""), policy=_POLICY)
    enqueued = Event(
        job_id=job_id,
        seq=1,
        type=EventType.ENQUEUED,
        ts=Instant(0),
        actor=SYSTEM,
        attempt=0,
        from_status=None,
        to_status=JobStatus.QUEUED,
        request_id=RequestId(""),
        payload=facts,
    )
    is_over = status.is_terminal  # then the lease is no longer one: see `row_warnings`
    return msgspec.structs.replace(
        evolve(None, enqueued, NO_BODY),
        status=status,
        rev=_integer(row, "rev"),
        attempt=_integer(row, "attempt"),
        owner=None if is_over else row["owner"],
        lease_id=None if is_over else row["lease_id"],
        cancel_requested_at=row.get("cancel_requested_at"),
    )
