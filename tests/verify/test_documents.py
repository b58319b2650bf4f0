"""The four documents' own states and transitions, copied here word by word.

`verify.projections` has its own copy. A copy that allows more than its document would still pass
every correct history, so these tests compare the two and break each forbidden edge once.
"""

from collections.abc import Iterable
from itertools import product

import pytest

from tenure.contract import ROW_TABLE
from tenure.core.events import COMPENSATED_NAME, NAME_PREFIX, Event
from tenure.core.ids import SYSTEM, JobId, LeaseId, RequestId, WorkerId, worker_actor
from tenure.core.instants import Instant
from tenure.core.vocabulary import (
    ErrorClass,
    EventCause,
    EventType,
    JobStatus,
    ReasonCode,
    Stage,
    VerdictKind,
)
from tenure.ports import JobHistory
from tenure.verify import check_record
from tenure.verify.projections import (
    A_STATE,
    A_TERMINAL,
    B1_TRANSITIONS,
    B2_TRANSITIONS,
    B_EVENTS,
    B_TRANSITIONS,
    C_TRANSITIONS,
    D_OPERATION,
    D_TRANSITIONS,
    D_UNKNOWN,
    AState,
    BState,
    CState,
)
from tenure_conformance.spec import spec
from tests.support.cases import each_case

# --- What the documents say ----------------------------------------------------------------------

A_STATES = {"QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED"}
A_ENDS = {"SUCCEEDED", "FAILED", "CANCELLED"}

B1_STATES = {"queued", "assigned", "running", "succeeded", "failed", "cancelled", "dead_lettered"}
B1_EDGES = {
    ("queued", "assigned"),
    ("assigned", "running"),
    ("running", "succeeded"),
    ("running", "failed"),
    ("running", "cancelled"),
    ("queued", "dead_lettered"),
    ("assigned", "dead_lettered"),
    ("running", "dead_lettered"),
}
B1_EVENT_TYPES = {
    "job_claimed",
    "job_started",
    "job_lease_renewed",
    "job_heartbeat",
    "job_succeeded",
    "job_failed",
    "job_cancelled",
    "job_dead_lettered",
    "job_compensated",
}
B1_REASONS = {
    "parse_error",
    "validation_failed",
    "dependency_unavailable",
    "timeout",
    "exhausted_retries",
    "policy_violation",
    "infrastructure_failure",
    "compensation_failed",
}
B2_STATES = {"queued", "assigned", "running", "succeeded", "failed", "cancelled"}
B2_EDGES = {
    ("queued", "assigned"),
    ("assigned", "running"),
    ("running", "succeeded"),
    ("running", "failed"),
    ("queued", "cancelled"),
    ("assigned", "cancelled"),
    ("running", "cancelled"),
}
B2_STAGES = {"fetch", "input", "exec", "output", "commit"}
B2_ERROR_CLASSES = {"validation", "transient", "permanent"}

C_RESPONSES = {"COMMITTED", "CANCELLED", "REJECTED"}
C_ENDS = {"COMPLETED", "FAILED"}
"""What an accepted report makes of a task. While it has a lease it is LEASED here, and LOST after
a lease that ended without a report: the document describes both and names neither."""

D_STATUSES = {"queued", "claimed", "running", "succeeded", "failed", "stalled"}
D_EDGES = {
    (None, "enqueue", "queued"),
    ("queued", "claimNext", "claimed"),
    ("stalled", "claimNext", "claimed"),
    ("claimed", "start", "running"),
    ("claimed", "heartbeat", "claimed"),
    ("running", "heartbeat", "running"),
    ("running", "complete", "succeeded"),
    ("running", "fail", "failed"),
    ("claimed", "stall", "stalled"),
    ("running", "stall", "stalled"),
    ("stalled", "requeueStalled", "queued"),
}
D_EVENT_TYPES = {
    "enqueued",
    "claimed",
    "started",
    "heartbeat",
    "succeeded",
    "failed",
    "stalled",
    "requeued",
}
D_PRESENT = {
    "queued": set(),
    "claimed": {"owner", "lease_id"},
    "running": {"owner", "lease_id"},
    "succeeded": {"result"},
    "failed": {"error"},
    "stalled": set(),
}
"""Of owner, lease, result and error: all that a row of this status has."""

# --- The copies are equal ------------------------------------------------------------------------


@spec("P1")
def test_the_states_of_the_invariants_are_the_documents() -> None:
    assert set(AState) == A_STATES
    assert set(A_TERMINAL) == A_ENDS
    assert A_STATE == {
        "waiting": "QUEUED",
        "queued": "QUEUED",
        "stalled": "QUEUED",
        "claimed": "RUNNING",
        "running": "RUNNING",
        "succeeded": "SUCCEEDED",
        "failed": "FAILED",
        "dead_lettered": "FAILED",
        "cancelled": "CANCELLED",
    }


@spec("P2")
def test_the_states_and_transitions_of_the_state_machine_are_the_documents() -> None:
    assert set(BState) == B1_STATES == B2_STATES | {"dead_lettered"}
    assert B1_TRANSITIONS == B1_EDGES
    assert B2_TRANSITIONS == B2_EDGES
    assert B_TRANSITIONS == B1_EDGES | B2_EDGES
    assert B_EVENTS == {
        "job_claimed": "assigned",
        "job_started": "running",
        "job_succeeded": "succeeded",
        "job_failed": "failed",
        "job_cancelled": "cancelled",
        "job_dead_lettered": "dead_lettered",
    }
    rank = dict.fromkeys(BState, 3) | {BState.QUEUED: 0, BState.ASSIGNED: 1, BState.RUNNING: 2}
    assert all(rank[one] < rank[two] for one, two in B_TRANSITIONS)


@spec("E6", "F12")
def test_the_words_of_the_state_machine_are_words_here() -> None:
    assert {f"{NAME_PREFIX}{each}" for each in EventType} | {COMPENSATED_NAME} >= B1_EVENT_TYPES
    assert set(ReasonCode) == B1_REASONS
    assert set(Stage) == B2_STAGES
    assert set(ErrorClass) >= B2_ERROR_CLASSES


@spec("P3", "R1")
def test_the_states_and_responses_of_the_worker_contract_are_the_documents() -> None:
    assert set(CState) == C_ENDS | {"LEASED", "LOST"}
    assert {("LEASED", each) for each in (*C_ENDS, "LEASED", "LOST")} == C_TRANSITIONS
    assert set(VerdictKind) == C_RESPONSES | {"OK"}


@spec("P4")
def test_the_statuses_and_transitions_of_the_lifecycle_plan_are_the_documents() -> None:
    assert set(JobStatus) == D_STATUSES | set(D_UNKNOWN) | {"waiting"}
    assert set(D_UNKNOWN) == {"cancelled", "dead_lettered"}
    assert D_TRANSITIONS == D_EDGES
    assert set(EventType) >= D_EVENT_TYPES
    assert D_OPERATION == {
        "enqueued": "enqueue",
        "claimed": "claimNext",
        "started": "start",
        "lease_renewed": "heartbeat",
        "heartbeat": "heartbeat",
        "succeeded": "complete",
        "failed": "fail",
        "stalled": "stall",
        "requeued": "requeueStalled",
    }


@spec("S1", "S2", "S3", "S5", "S6")
def test_the_rows_of_the_lifecycle_plan_have_what_it_demands() -> None:
    fields = {"owner", "lease_id", "result", "error"}
    for status, present in D_PRESENT.items():
        rule = ROW_TABLE[JobStatus(status)]

        assert fields & set(rule.present) == present, status
        assert fields & set(rule.absent) == fields - present, status


# --- Each forbidden edge is found ----------------------------------------------------------------

LEASE = LeaseId("1.lease")
WORKER = WorkerId("w1")
STATUS_AFTER = {
    EventType.ENQUEUED: JobStatus.QUEUED,
    EventType.CLAIMED: JobStatus.CLAIMED,
    EventType.STARTED: JobStatus.RUNNING,
    EventType.STALLED: JobStatus.STALLED,
    EventType.REQUEUED: JobStatus.QUEUED,
    EventType.SUCCEEDED: JobStatus.SUCCEEDED,
    EventType.FAILED: JobStatus.FAILED,
    EventType.CANCELLED: JobStatus.CANCELLED,
    EventType.DEAD_LETTERED: JobStatus.DEAD_LETTERED,
}
WAY_TO = {
    JobStatus.QUEUED: (EventType.ENQUEUED,),
    JobStatus.CLAIMED: (EventType.ENQUEUED, EventType.CLAIMED),
    JobStatus.RUNNING: (EventType.ENQUEUED, EventType.CLAIMED, EventType.STARTED),
} | {
    STATUS_AFTER[end]: (EventType.ENQUEUED, EventType.CLAIMED, EventType.STARTED, end)
    for end in (
        EventType.STALLED,
        EventType.SUCCEEDED,
        EventType.FAILED,
        EventType.CANCELLED,
        EventType.DEAD_LETTERED,
    )
}
WORKERS_OWN = {
    EventType.CLAIMED,
    EventType.STARTED,
    EventType.LEASE_RENEWED,
    EventType.HEARTBEAT,
    EventType.SUCCEEDED,
    EventType.FAILED,
}


def event(
    seq: int, kind: EventType, here: JobStatus | None, there: JobStatus, **changes: object
) -> Event:
    """An event of one lease: the job's first attempt."""
    is_leased = there.is_leased or (here is not None and here.is_leased)
    fields: dict[str, object] = {
        "job_id": JobId("j"),
        "seq": seq,
        "type": kind,
        "ts": Instant(seq),
        "actor": worker_actor(WORKER) if kind in WORKERS_OWN else SYSTEM,
        "attempt": 0 if seq == 1 else 1,
        "from_status": here,
        "to_status": there,
        "request_id": RequestId(f"r{seq}"),
        "lease_id": LEASE if is_leased else None,
        "owner": WORKER if is_leased else None,
        "lease_expires_at": Instant(1000) if is_leased else None,
    }
    return Event(**(fields | changes))  # type: ignore[arg-type]  # fields by name, of their types


def history(kinds: Iterable[EventType]) -> list[Event]:
    """The events of these types, each where the one before it led to."""
    found: list[Event] = []
    here: JobStatus | None = None
    for seq, kind in enumerate(kinds, start=1):
        there = STATUS_AFTER[kind]
        found.append(event(seq, kind, here, there))
        here = there
    return found


def broken_rules(events: Iterable[Event]) -> set[str]:
    return {each.invariant for each in check_record(JobHistory(JobId("j"), None, tuple(events)))}


@spec("P1", "P2", "P3", "P4")
@pytest.mark.parametrize("status", WAY_TO)
def test_the_ways_to_the_edges_are_correct_histories(status: JobStatus) -> None:
    assert broken_rules(history(WAY_TO[status])).isdisjoint({"P1", "P2", "P3", "P4"})


A_FORBIDDEN = [
    (here, there)
    for here, there in product(WAY_TO, STATUS_AFTER.values())
    if here in ("succeeded", "failed", "cancelled", "dead_lettered")
]


@spec("P1")
@each_case(("here", "there"), sorted(set(A_FORBIDDEN)))
def test_no_way_leads_out_of_an_end_of_the_invariants(here: JobStatus, there: JobStatus) -> None:
    before = history(WAY_TO[here])
    kind = next(each for each, status in STATUS_AFTER.items() if status is there)

    assert "P1" in broken_rules([*before, event(len(before) + 1, kind, here, there)])


B_STATUS = {
    "queued": JobStatus.QUEUED,
    "assigned": JobStatus.CLAIMED,
    "running": JobStatus.RUNNING,
    "succeeded": JobStatus.SUCCEEDED,
    "failed": JobStatus.FAILED,
    "cancelled": JobStatus.CANCELLED,
    "dead_lettered": JobStatus.DEAD_LETTERED,
}
B_FORBIDDEN = sorted(set(product(B1_STATES, B1_STATES)) - B1_EDGES - B2_EDGES)


@spec("P2")
@each_case(("here", "there"), B_FORBIDDEN)
def test_an_edge_that_the_state_machine_does_not_have_is_found(here: str, there: str) -> None:
    source, target = B_STATUS[here], B_STATUS[there]
    before = history(WAY_TO[source])

    for kind in (each for each, status in STATUS_AFTER.items() if status is target):
        assert "P2" in broken_rules([*before, event(len(before) + 1, kind, source, target)]), kind


@spec("P2")
@pytest.mark.parametrize("kind", STATUS_AFTER)
def test_an_event_that_leads_elsewhere_than_the_state_machine_says_is_found(
    kind: EventType,
) -> None:
    lawful = STATUS_AFTER[kind]
    before = history(WAY_TO[JobStatus.RUNNING])
    for target in set(B_STATUS.values()) - {lawful, JobStatus.RUNNING}:
        wrong = event(len(before) + 1, kind, JobStatus.RUNNING, target)

        assert "P2" in broken_rules([*before, wrong]), target


END_OF = {
    "COMPLETED": (EventType.SUCCEEDED, JobStatus.SUCCEEDED, worker_actor(WORKER)),
    "FAILED": (EventType.FAILED, JobStatus.FAILED, worker_actor(WORKER)),
    "LOST": (EventType.STALLED, JobStatus.STALLED, SYSTEM),
    "LEASED": (EventType.LEASE_RENEWED, JobStatus.RUNNING, worker_actor(WORKER)),
}
C_FORBIDDEN = list(product(("COMPLETED", "FAILED", "LOST"), END_OF))


@spec("P3")
@each_case(("first", "second"), C_FORBIDDEN)
def test_nothing_follows_the_end_of_an_attempt_under_its_lease(first: str, second: str) -> None:
    events = history(WAY_TO[JobStatus.RUNNING])
    for name in (first, second):
        kind, target, actor = END_OF[name]
        seq = len(events) + 1
        events.append(event(seq, kind, JobStatus.RUNNING, target, actor=actor))

    assert "P3" in broken_rules(events)


@spec("P3")
@pytest.mark.parametrize("name", ["COMPLETED", "FAILED", "LOST", "LEASED"])
def test_nothing_happens_under_a_lease_that_was_never_granted(name: str) -> None:
    kind, target, actor = END_OF[name]
    before = history(WAY_TO[JobStatus.RUNNING])
    strange = LeaseId("1.strange")
    wrong = event(4, kind, JobStatus.RUNNING, target, actor=actor, lease_id=strange)

    assert "P3" in broken_rules([*before, wrong])


def told_of_reports(*request_ids: str) -> list[str]:
    """What P3 says about an attempt that was completed once under each of these request ids."""
    events = history(WAY_TO[JobStatus.RUNNING])
    for seq, request_id in enumerate(request_ids, start=4):
        kind, target, actor = END_OF["COMPLETED"]
        fields = {"actor": actor, "request_id": RequestId(request_id)}
        events.append(event(seq, kind, JobStatus.RUNNING, target, **fields))
    found = check_record(JobHistory(JobId("j"), None, tuple(events)))
    return [each.message for each in found if each.invariant == "P3"]


@spec("P3")
def test_a_report_that_was_decided_twice_is_told_from_two_reports() -> None:
    again = "succeeded makes a COMPLETED attempt COMPLETED"

    assert told_of_reports("one") == []
    assert told_of_reports("one", "another") == [again]
    assert told_of_reports("one", "one") == [again, "report one was decided twice"]


D_TYPES = {
    "enqueue": (EventType.ENQUEUED,),
    "claimNext": (EventType.CLAIMED,),
    "start": (EventType.STARTED,),
    "heartbeat": (EventType.LEASE_RENEWED, EventType.HEARTBEAT),
    "complete": (EventType.SUCCEEDED,),
    "fail": (EventType.FAILED,),
    "stall": (EventType.STALLED,),
    "requeueStalled": (EventType.REQUEUED,),
}
D_FORBIDDEN = sorted(
    set(product((None, *D_STATUSES), D_TYPES, D_STATUSES)) - D_EDGES,
    key=lambda edge: (str(edge[0]), *edge[1:]),
)


@spec("P4")
def test_an_edge_that_the_lifecycle_plan_does_not_have_is_found() -> None:
    missed = []
    for here, operation, there in D_FORBIDDEN:
        source = None if here is None else JobStatus(here)
        before = [] if source is None else history(WAY_TO[source])
        for kind in D_TYPES[operation]:
            wrong = event(len(before) + 1, kind, source, JobStatus(there))
            if "P4" not in broken_rules([*before, wrong]):
                missed.append((here, operation, there))

    assert len(D_FORBIDDEN) == 7 * 8 * 6 - len(D_EDGES)
    assert not missed


@spec("P4")
@each_case("kind", [EventType.READY, EventType.CANCEL_REQUESTED])
@each_case("there", sorted(D_STATUSES - {"running"}))
def test_an_event_that_the_lifecycle_plan_does_not_have_changes_nothing(
    kind: EventType, there: str
) -> None:
    before = history(WAY_TO[JobStatus.RUNNING])
    wrong = event(4, kind, JobStatus.RUNNING, JobStatus(there))

    assert "P4" in broken_rules([*before, wrong])


@spec("P2", "P4")
def test_a_reclaim_is_the_only_claim_of_a_stalled_job() -> None:
    before = history(WAY_TO[JobStatus.STALLED])
    again = {"lease_id": LeaseId("1.other"), "attempt": 2}
    reclaim = event(5, EventType.CLAIMED, JobStatus.STALLED, JobStatus.CLAIMED, **again)

    assert "P2" in broken_rules([*before, reclaim])
    with_cause = event(
        5,
        EventType.CLAIMED,
        JobStatus.STALLED,
        JobStatus.CLAIMED,
        **(again | {"cause": EventCause.RECLAIM}),
    )
    assert broken_rules([*before, with_cause]).isdisjoint({"P1", "P2", "P3", "P4"})
