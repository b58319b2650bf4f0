"""Ways to break a lawful record, each with the invariant that has to notice.

A corruption takes a record and luck, and gives the broken record, or None where the record has
nothing of the kind to break. It changes what it says and leaves the rest alone.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from tenure.core.events import Event
from tenure.core.ids import Kind, LeaseId, QueueName, WorkerId, client_actor, role_of
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job, JobError, Progress
from tenure.core.policy import DeadLetterJob, Policy
from tenure.core.vocabulary import (
    ATTEMPT_ENDS,
    RENEWALS,
    EventCause,
    EventType,
    JobStatus,
    ReasonCode,
    Stage,
)
from tenure.ports import JobHistory
from tenure.verify.checking import EXTENDING
from tenure.verify.projections import D_UNKNOWN

Corrupt = Callable[[JobHistory, random.Random], JobHistory | None]


def with_events(record: JobHistory, events: Sequence[Event]) -> JobHistory:
    return JobHistory(record.job_id, record.job, tuple(events), record.observations)


def with_job(record: JobHistory, job: Job | None) -> JobHistory:
    return JobHistory(record.job_id, job, record.events, record.observations)


def changed(record: JobHistory, at: int, **fields: Any) -> JobHistory:
    """The record with other fields in its event at this position."""
    events = list(record.events)
    events[at] = replace(events[at], **fields)
    return with_events(record, events)


def _position(
    record: JobHistory, luck: random.Random, wanted: Callable[[int, Event], bool]
) -> int | None:
    found = [at for at, event in enumerate(record.events) if wanted(at, event)]
    return luck.choice(found) if found else None


def _on(
    wanted: Callable[[int, Event], bool], change: Callable[[JobHistory, int], JobHistory | None]
) -> Corrupt:
    def corrupt(record: JobHistory, luck: random.Random) -> JobHistory | None:
        at = _position(record, luck, wanted)
        return None if at is None else change(record, at)

    return corrupt


def _any(_: int, __: Event) -> bool:
    return True


# --- the log's order -----------------------------------------------------------------------------


def _drop(record: JobHistory, at: int) -> JobHistory:
    return with_events(record, [*record.events[:at], *record.events[at + 1 :]])


def _duplicate(record: JobHistory, at: int) -> JobHistory:
    return with_events(record, [*record.events[: at + 1], *record.events[at:]])


def _drop_live_renewal(record: JobHistory, luck: random.Random) -> JobHistory | None:
    lease_id = record.job.lease_id if record.job is not None else None
    if lease_id is None:
        return None
    at = _position(record, luck, lambda _, e: e.type in RENEWALS and e.lease_id == lease_id)
    return None if at is None else _drop(record, at)


def _swap(record: JobHistory, at: int) -> JobHistory:
    events = list(record.events)
    events[at - 1], events[at] = events[at], events[at - 1]
    return with_events(record, events)


def _swap_under_their_seqs(record: JobHistory, luck: random.Random) -> JobHistory | None:
    """Two neighbours change places and take over each other's seq: only the statuses tell."""
    events = list(record.events)
    at = _position(record, luck, lambda i, e: i > 0 and e.to_status is not events[i - 1].to_status)
    if at is None:
        return None
    one, two = events[at - 1], events[at]
    events[at - 1], events[at] = replace(two, seq=one.seq), replace(one, seq=two.seq)
    return with_events(record, events)


def _gap(record: JobHistory, at: int) -> JobHistory | None:
    """Everything from here on is one seq later, the row included: as if an event were gone."""
    job = record.job
    assert job is not None
    events = [
        replace(event, seq=event.seq + 1) if position >= at else event
        for position, event in enumerate(record.events)
    ]
    return with_events(with_job(record, replace(job, rev=job.rev + 1)), events)


def _headless(record: JobHistory, _: random.Random) -> JobHistory | None:
    return with_events(record, record.events[1:]) if len(record.events) > 1 else None


def _other_beginning(record: JobHistory, _: random.Random) -> JobHistory:
    return changed(record, 0, from_status=JobStatus.STALLED, type=EventType.REQUEUED)


def _wrong_from(record: JobHistory, at: int) -> JobHistory:
    here = record.events[at].from_status
    other = JobStatus.STALLED if here is not JobStatus.STALLED else JobStatus.RUNNING
    return changed(record, at, from_status=other)


def _unlawful_type(record: JobHistory, at: int) -> JobHistory:
    return changed(record, at, type=EventType.ENQUEUED)


def _append(record: JobHistory, **fields: Any) -> JobHistory:
    """One more event, of the last one's making, and a row that agrees with its seq and status."""
    last, job = record.events[-1], record.job
    assert job is not None
    event = replace(last, seq=last.seq + 1, from_status=last.to_status, **fields)
    row = replace(job, rev=event.seq, status=event.to_status)
    return with_events(with_job(record, row), [*record.events, event])


def _is_finished(record: JobHistory) -> bool:
    return record.job is not None and record.job.status.is_terminal


def _resurrect(record: JobHistory, _: random.Random) -> JobHistory | None:
    if not _is_finished(record):
        return None
    return _append(record, type=EventType.REQUEUED, to_status=JobStatus.QUEUED, lease_id=None)


def _end_again(record: JobHistory, _: random.Random) -> JobHistory | None:
    if not _is_finished(record):
        return None
    return _append(record, type=EventType.SUCCEEDED, to_status=JobStatus.SUCCEEDED, lease_id=None)


def _fall_back(record: JobHistory, luck: random.Random) -> JobHistory | None:
    """Back to the queue, but not by a requeue."""
    at = _position(record, luck, lambda _, e: e.type is EventType.REQUEUED)
    return None if at is None else changed(record, at, type=EventType.CANCEL_REQUESTED)


def _reclaim_in_disguise(record: JobHistory, luck: random.Random) -> JobHistory | None:
    at = _position(record, luck, lambda _, e: e.cause is EventCause.RECLAIM)
    return None if at is None else changed(record, at, cause=None)


def _wrong_attempt(record: JobHistory, at: int) -> JobHistory:
    return changed(record, at, attempt=record.events[at].attempt + 1)


def _queued_after_cancel_request(record: JobHistory, luck: random.Random) -> JobHistory | None:
    at = _position(record, luck, lambda _, e: e.type is EventType.CANCEL_REQUESTED)
    if at is None:
        return None
    request = record.events[at]
    requeued = replace(
        request, seq=request.seq + 1, type=EventType.REQUEUED, to_status=JobStatus.QUEUED
    )
    return with_events(record, [*record.events[: at + 1], requeued])


def _queued_row_with_cancel_request(record: JobHistory, _: random.Random) -> JobHistory | None:
    job = record.job
    if job is None or job.status is not JobStatus.QUEUED:
        return None
    return with_job(record, replace(job, cancel_requested_at=job.updated_at))


# --- leases and budgets --------------------------------------------------------------------------


def _extends(_: int, event: Event) -> bool:
    return event.type in EXTENDING


def _expiry_beyond_ttl(record: JobHistory, at: int) -> JobHistory:
    expires_at = record.events[at].lease_expires_at
    assert expires_at is not None
    return changed(record, at, lease_expires_at=expires_at + 1)


def _expiry_falls(record: JobHistory, luck: random.Random) -> JobHistory | None:
    at = _position(
        record, luck, lambda _, e: e.lease_id is not None and e.type is not EventType.CLAIMED
    )
    if at is None:
        return None
    before = record.events[at - 1].lease_expires_at
    return None if before is None else changed(record, at, lease_expires_at=before - 1)


def _reuse_lease(record: JobHistory, _: random.Random) -> JobHistory | None:
    leases = [e.lease_id for e in record.events if e.type is EventType.CLAIMED]
    if len(leases) < 2:
        return None
    events = [
        replace(event, lease_id=leases[0]) if event.lease_id == leases[1] else event
        for event in record.events
    ]
    return with_events(record, events)


def _between_attempts(_: int, event: Event) -> bool:
    return event.lease_id is None and event.attempt > 0


def _under_an_ended_lease(record: JobHistory, at: int) -> JobHistory:
    lease_id = next(e.lease_id for e in record.events[at::-1] if e.lease_id is not None)
    return changed(record, at, lease_id=lease_id)


def _under_a_strange_lease(record: JobHistory, at: int) -> JobHistory:
    return changed(record, at, lease_id=LeaseId("1-" + "0" * 32))


def _is_report(_: int, event: Event) -> bool:
    is_workers = role_of(event.actor) == "worker"
    return event.lease_id is not None and is_workers and event.type in ATTEMPT_ENDS


def _too_late(record: JobHistory, at: int) -> JobHistory:
    """A report that came when its lease was over, and everything after it as late."""
    late = seconds(1_000_000)
    events = [
        replace(event, ts=Instant(event.ts + late)) if position >= at else event
        for position, event in enumerate(record.events)
    ]
    return with_events(record, events)


def _claimed_again(record: JobHistory, luck: random.Random) -> JobHistory | None:
    """A second lease while the first one lives."""
    at = _position(record, luck, lambda _, e: e.type is EventType.CLAIMED)
    if at is None:
        return None
    claimed = record.events[at]
    again = replace(
        claimed,
        seq=claimed.seq + 1,
        attempt=claimed.attempt + 1,
        from_status=JobStatus.CLAIMED,
        lease_id=LeaseId("1-" + "1" * 32),
        owner=WorkerId("another"),
    )
    return with_events(record, [*record.events[: at + 1], again])


def _leased_row_without(record: JobHistory, _: random.Random) -> JobHistory | None:
    job = record.job
    if job is None or job.lease_id is None:
        return None
    return with_job(record, replace(job, lease_id=None, owner=None))


def _lease_on_an_idle_row(record: JobHistory, _: random.Random) -> JobHistory | None:
    job = record.job
    if job is None or job.lease_id is not None:
        return None
    return with_job(record, replace(job, lease_id=LeaseId("1-" + "2" * 32)))


def _is_stall(_: int, event: Event) -> bool:
    return event.type is EventType.STALLED


def _free_loss(record: JobHistory, luck: random.Random) -> JobHistory | None:
    costly = (EventCause.LEASE_EXPIRED, EventCause.ATTEMPT_FAILED, EventCause.TIMEOUT)
    at = _position(record, luck, lambda _, e: e.type is EventType.STALLED and e.cause in costly)
    if at is None:
        return None
    facts = replace(record.events[at].payload, failures=None)
    return changed(record, at, payload=facts)


def _credit_after_credit(record: JobHistory, at: int) -> JobHistory:
    facts = replace(record.events[at].payload, outage_credits=4, failures=None)
    return changed(record, at, payload=facts, cause=EventCause.OUTAGE)


def _over_budget(record: JobHistory, at: int) -> JobHistory:
    return changed(record, at, payload=replace(record.events[at].payload, failures=99))


# --- rows ----------------------------------------------------------------------------------------


def _terminal_row_rev(record: JobHistory, _: random.Random) -> JobHistory | None:
    job = record.job
    if job is None or not _is_finished(record):
        return None
    return with_job(record, replace(job, rev=job.rev + 1))


def _terminal_row_finished_at(record: JobHistory, _: random.Random) -> JobHistory | None:
    job = record.job
    if job is None or job.finished_at is None:
        return None
    return with_job(record, replace(job, finished_at=Instant(job.finished_at + 1)))


def _unfinished_log(record: JobHistory, _: random.Random) -> JobHistory | None:
    return with_events(record, record.events[:-1]) if _is_finished(record) else None


def _dead_letter_without(name: str) -> Corrupt:
    def corrupt(record: JobHistory, _: random.Random) -> JobHistory | None:
        job = record.job
        if job is None or job.status is not JobStatus.DEAD_LETTERED or not job.attempt:
            return None
        value: Any = job.attempt + 1 if name == "attempt" else None
        if name == "correlation_id":
            value = f"{job.correlation_id}x"
        if name == "stage":
            value = Stage.COMMIT if job.stage is not Stage.COMMIT else Stage.FETCH
        return with_job(record, replace(job, **{name: value}))

    return corrupt


def _unknown_word(name: str) -> Corrupt:
    def corrupt(record: JobHistory, _: random.Random) -> JobHistory | None:
        job = record.job
        if job is None or job.status is not JobStatus.DEAD_LETTERED:
            return None
        return with_job(record, replace(job, **{name: "made_up"}))

    return corrupt


_OTHER_VALUE: dict[str, Any] = {
    "last_error": JobError(type="Other"),
    "error": JobError(type="Other"),
    "progress": Progress(done=10**6),
    "origin_id": "other",
    "origin_cause": EventCause.RERUN,
    "on_dead_letter": DeadLetterJob(kind=Kind("other"), queue=QueueName("q"), policy=Policy()),
    "stall_cause": EventCause.SNOOZED,
    "reason_code": ReasonCode.INFRASTRUCTURE_FAILURE,
    "stage": Stage.COMMIT,
    "payload": b'"other"',
    "checkpoint": b"0",
    "result": b"0",
}
FIELDS = tuple(field.name for field in msgspec.structs.fields(Job))


def other_value(job: Job, name: str) -> Any:
    """A value of the field's type that the job does not have."""
    value = getattr(job, name)
    if name == "policy":
        return replace(job.policy, max_releases=job.policy.max_releases + 1)
    if name == "status":
        return JobStatus.FAILED if value is JobStatus.SUCCEEDED else JobStatus.SUCCEEDED
    if name in _OTHER_VALUE:
        return None if value == _OTHER_VALUE[name] else _OTHER_VALUE[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    return 1 if name.endswith(("_at", "_deadline")) else "x"


def _row_field(name: str) -> Corrupt:
    def corrupt(record: JobHistory, _: random.Random) -> JobHistory | None:
        assert record.job is not None
        return with_job(record, replace(record.job, **{name: other_value(record.job, name)}))

    return corrupt


# --- projections ---------------------------------------------------------------------------------


def _is_running(_: int, event: Event) -> bool:
    return event.to_status.is_leased and event.type is not EventType.CLAIMED


def _other_owner(record: JobHistory, at: int) -> JobHistory:
    return changed(record, at, owner=WorkerId("another"))


def _straight_back(record: JobHistory, at: int) -> JobHistory:
    return changed(record, at, to_status=JobStatus.QUEUED, type=EventType.REQUEUED)


def _insert_after(record: JobHistory, at: int, event: Event) -> JobHistory:
    return with_events(record, [*record.events[: at + 1], event, *record.events[at + 1 :]])


def _started_twice(record: JobHistory, at: int) -> JobHistory:
    again = replace(record.events[at], from_status=JobStatus.RUNNING)
    return _insert_after(record, at, again)


def _settled_twice(record: JobHistory, at: int) -> JobHistory:
    return _insert_after(record, at, record.events[at])


def _is_claim(_: int, event: Event) -> bool:
    return event.type is EventType.CLAIMED


def _drop_claim(record: JobHistory, luck: random.Random) -> JobHistory | None:
    """Without a claim, and not ended at once: D does not know cancelled and dead_lettered."""
    after = {e.seq for e in record.events if e.to_status not in D_UNKNOWN}
    at = _position(record, luck, lambda _, e: e.type is EventType.CLAIMED and e.seq + 1 in after)
    return None if at is None else _drop(record, at)


def _is_start(_: int, event: Event) -> bool:
    return event.type is EventType.STARTED


def _granted_after_its_time(record: JobHistory, _: random.Random) -> JobHistory | None:
    if not any(event.type is EventType.CLAIMED for event in record.events):
        return None
    facts = replace(record.events[0].payload, start_by=record.events[0].ts)
    return changed(record, 0, payload=facts)


def _expired_after_a_start(record: JobHistory, luck: random.Random) -> JobHistory | None:
    started = any(event.type is EventType.STARTED for event in record.events)
    at = _position(record, luck, lambda _, event: event.type is EventType.CANCELLED)
    return changed(record, at, cause=EventCause.EXPIRED) if started and at is not None else None


def _reported_twice(record: JobHistory, _: random.Random) -> JobHistory | None:
    """As a second job for the same dead letter would look."""
    is_report = bool(record.events) and record.events[0].cause is EventCause.DEAD_LETTER
    facts = record.events[0].payload if is_report else None
    if facts is None:
        return None
    return changed(record, 0, payload=replace(facts, origin_id=record.job_id))


def _reported_by_a_client(record: JobHistory, _: random.Random) -> JobHistory | None:
    is_report = bool(record.events) and record.events[0].cause is EventCause.DEAD_LETTER
    return changed(record, 0, actor=client_actor("eve")) if is_report else None


def _is_transition(_: int, event: Event) -> bool:
    return event.type not in RENEWALS


CORRUPTIONS: dict[str, tuple[str, Corrupt]] = {
    "a transition is dropped": ("I1", _on(_is_transition, _drop)),
    "a live attempt's renewal is dropped": ("I1", _drop_live_renewal),
    "an event is there twice": ("I1", _on(_any, _duplicate)),
    "two neighbours are swapped": ("I1", _on(lambda at, _: at > 0, _swap)),
    "a seq is skipped": ("I1", _on(_is_transition, _gap)),
    "the beginning is gone": ("I2", _headless),
    "another beginning": ("I2", _other_beginning),
    "no events": ("I2", lambda record, _: with_events(record, ())),
    "neighbours swapped under their seqs": ("I3", _swap_under_their_seqs),
    "a wrong from": ("I3", _on(_any, _wrong_from)),
    "no row": ("I3", lambda record, _: with_job(record, None)),
    "a type the table does not have there": ("I4", _on(lambda at, _: at > 0, _unlawful_type)),
    "resurrected": ("I5", _resurrect),
    "ended again": ("I5", _end_again),
    "back without a requeue": ("I6", _fall_back),
    "a reclaim in disguise": ("I6", _reclaim_in_disguise),
    "a wrong attempt": ("I7", _on(_any, _wrong_attempt)),
    "a row with another attempt": ("I7", _row_field("attempt")),
    "a leased row without its lease": ("I9", _leased_row_without),
    "an idle row with a lease": ("I9", _lease_on_an_idle_row),
    "two live leases": ("I9", _claimed_again),
    "a lease is used again": ("I10", _reuse_lease),
    "an event under an ended lease": ("I10", _on(_between_attempts, _under_an_ended_lease)),
    "an event under a strange lease": ("I10", _on(_is_running, _under_a_strange_lease)),
    "a report after its lease's end": ("I10", _on(_is_report, _too_late)),
    "overlapping leases": ("I10", _claimed_again),
    "an expiry beyond the ttl": ("I11", _on(_extends, _expiry_beyond_ttl)),
    "an expiry that falls": ("I11", _expiry_falls),
    "events without a row": ("I12", lambda record, _: with_job(record, None)),
    "requeued after a cancel request": ("I15", _queued_after_cancel_request),
    "a queued row with a cancel request": ("I15", _queued_row_with_cancel_request),
    "a loss that cost nothing": ("I39", _free_loss),
    "a fourth outage credit": ("I39", _on(_is_stall, _credit_after_credit)),
    "over budget": ("I39", _on(_is_stall, _over_budget)),
    "a row with fewer failures": ("I39", _row_field("failures")),
    "a terminal row with another rev": ("I19", _terminal_row_rev),
    "a terminal row that finished later": ("I19", _terminal_row_finished_at),
    "a terminal row without its event": ("I19", _unfinished_log),
    **{
        f"a dead letter with a wrong {name}": ("I20", _dead_letter_without(name))
        for name in (
            "reason_code",
            "stage",
            "last_error",
            "attempt",
            "last_owner",
            "last_lease_expires_at",
            "correlation_id",
        )
    },
    "a reason that is none": ("I24", _unknown_word("reason_code")),
    "a stage that is none": ("I24", _unknown_word("stage")),
    "granted after its time to be started": ("I34", _granted_after_its_time),
    "expired after a start": ("I34", _expired_after_a_start),
    "reported twice": ("I36", _reported_twice),
    "reported by a client": ("I36", _reported_by_a_client),
    "two owners": ("P1", _on(_is_running, _other_owner)),
    "runs without an owner": ("P1", _on(_is_claim, lambda r, at: changed(r, at, owner=None))),
    "leaves its end": ("P1", _resurrect),
    "claimed goes straight back": ("P2", _on(_is_running, _straight_back)),
    "started twice": ("P2", _on(_is_start, _started_twice)),
    "settled twice": ("P3", _on(_is_report, _settled_twice)),
    "granted while granted": ("P3", _claimed_again),
    "running before claimed": ("P4", _drop_claim),
    "straight back": ("P4", _on(_is_running, _straight_back)),
    **{f"the row's {name} changed": ("I12", _row_field(name)) for name in FIELDS if name != "id"},
}
"""Each corruption by name, with the invariant that has to be among those reported."""

STATUS_TABLE: dict[JobStatus, dict[str, Any]] = {
    JobStatus.QUEUED: {"run_at": None, "owner": WorkerId("w"), "result": b"1", "error": JobError()},
    JobStatus.CLAIMED: {"owner": None, "lease_id": None, "claimed_at": None, "run_at": Instant(1)},
    JobStatus.RUNNING: {"started_at": None, "lease_expires_at": None, "result": b"1"},
    JobStatus.STALLED: {
        "stall_cause": None,
        "last_owner": None,
        "last_lease_expires_at": None,
        "finished_at": Instant(1),
    },
    JobStatus.SUCCEEDED: {"result": None, "error": JobError(), "finished_at": None},
    JobStatus.FAILED: {"error": None, "result": b"1", "run_at": Instant(1)},
    JobStatus.CANCELLED: {"cancel_reason": None, "finished_at": None, "error": JobError()},
    JobStatus.DEAD_LETTERED: {"reason_code": None, "error": None, "result": b"1"},
}
"""Per status, fields with a value that the table of docs/spec/states.md forbids there."""
