"""Evolution by chance walks: which fields an event may change, and that a log makes its row."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from tenure.core.commands import Command, Outage
from tenure.core.events import Event, Facts
from tenure.core.evolution import NEW_ROW_FIELDS, TOUCHES, digested, evolve, fold, fold_step
from tenure.core.instants import Instant, seconds
from tenure.core.job import Job, JobError, Progress, row_violations
from tenure.core.outcomes import Applied
from tenure.core.policy import Policy
from tenure.core.transitions import EDGES
from tenure.core.vocabulary import (
    CancelMode,
    ErrorClass,
    EventClass,
    EventType,
    JobStatus,
    OnExhausted,
    OnLost,
    ReleaseKind,
    Stage,
)
from tenure_conformance.spec import spec
from tests.support.cases import each_case
from tools import lives
from tools.driver import OTHER_OWNER, OTHER_WORKER, Driver

BIRTH = {
    "id",
    "namespace",
    "queue",
    "kind",
    "priority",
    "payload",
    "policy",
    "dedupe_key",
    "unique_for_us",
    "concurrency_key",
    "rate_key",
    "correlation_id",
    "trace_id",
    "meta",
    "origin_id",
    "origin_cause",
    "flow_id",
    "flow_step",
    "schedule",
    "scheduled_for",
    "on_dead_letter",
    "enqueued_at",
}

# --- Chance walks --------------------------------------------------------------------------------

ERRORS = st.builds(
    JobError,
    error_class=st.sampled_from(ErrorClass),
    stage=st.none() | st.sampled_from(Stage),
    message=st.sampled_from(["", "no"]),
)
POLICIES = st.builds(
    Policy,
    lease_us=st.just(seconds(60)),
    max_attempts=st.integers(1, 3),
    max_releases=st.integers(0, 2),
    timeout_us=st.sampled_from([None, seconds(45), seconds(90)]),
    start_within_us=st.sampled_from([seconds(30), seconds(600)]),
    grace_us=st.sampled_from([seconds(0), seconds(30), seconds(300)]),
    on_exhausted=st.sampled_from(OnExhausted),
    on_lost=st.sampled_from(OnLost),
    compensation=st.sampled_from([None, lives.UNDOABLE.compensation]),
)
WAITS_S = st.sampled_from([-20, 0, 0.5, 7, 31, 61, 400])
VERBS = st.sampled_from(
    [
        "claim",
        "claim",
        "start",
        "start",
        "heartbeat",
        "news",
        "complete",
        "fail",
        "fail",
        "release",
        "snooze",
        "undelivered",
        "sweep",
        "sweep",
        "outage",
        "cancel",
        "kill",
        "requeue",
        "bury",
    ]
)

EXAMPLES = settings().max_examples
"""Of the profile: fewer in `make quick`."""


def command(driver: Driver, verb: str, error: JobError) -> Command:
    outage = Outage(Instant(driver.now - seconds(60)), driver.now)
    commands: dict[str, Command] = {
        "claim": driver.claim(),
        "start": driver.start(),
        "heartbeat": driver.heartbeat(),
        "news": driver.heartbeat(progress=Progress(done=driver.draws), checkpoint=b"[%d]" % 1),
        "complete": driver.complete(),
        "fail": driver.fail(error),
        "release": driver.release(delay_s=1),
        "snooze": driver.release(ReleaseKind.SNOOZE),
        "undelivered": driver.undelivered(),
        "sweep": driver.sweep(),
        "outage": driver.sweep(outage),
        "cancel": driver.cancel(),
        "kill": driver.cancel(CancelMode.HARD),
        "requeue": driver.requeue(),
        "bury": driver.dead_letter(),
    }
    return commands[verb]


@st.composite
def walks(draw: st.DrawFn) -> Driver:
    """A job that lived as chance wanted it. The driver asserts law, row and fold at every step."""
    driver = Driver(policy=draw(POLICIES))
    driver.do(driver.enqueue())
    for verb in draw(st.lists(VERBS, min_size=5, max_size=40)):
        driver.advance(draw(WAITS_S))
        driver.do(command(driver, verb, draw(ERRORS)))
    return driver


def rows(driver: Driver) -> list[Job]:
    """The digested row after each event."""
    found: list[Job] = []
    job: Job | None = None
    for event in driver.events:
        job = fold_step(job, event)
        found.append(job)
    return found


def changed(before: Job, after: Job) -> set[str]:
    return {name for name in Job.__struct_fields__ if getattr(before, name) != getattr(after, name)}


@given(walks())
@settings(max_examples=EXAMPLES * 3 // 2)
def test_an_event_changes_no_field_outside_its_list(driver: Driver) -> None:
    history = rows(driver)

    for before, after, event in zip(history, history[1:], driver.events[1:], strict=False):
        assert changed(before, after) <= set(TOUCHES[event.type]), event.type


@spec("E13", "A2", "I12")
@given(walks())
@settings(max_examples=EXAMPLES * 3 // 2)
def test_every_history_has_no_gap_is_in_order_of_time_and_folds_to_its_row(
    driver: Driver,
) -> None:
    log = driver.events

    assert [event.seq for event in log] == list(range(1, driver.job.rev + 1))
    assert [event.ts for event in log] == sorted(event.ts for event in log)
    assert all((e.from_status, e.type, e.to_status) in EDGES for e in log)
    assert all(one.to_status is two.from_status for one, two in pairwise(log))
    assert driver.job.attempt == sum(event.type is EventType.CLAIMED for event in log)
    assert fold(log) == digested(driver.job)
    assert driver.job.failures <= driver.job.policy.max_attempts


@spec("G1", "I12")
@given(walks())
@settings(max_examples=EXAMPLES * 3 // 2)
def test_a_log_without_the_renewals_of_ended_attempts_folds_to_the_same_row(
    driver: Driver,
) -> None:
    before = fold(driver.events)

    driver.prune_renewals()

    assert fold(driver.events) == before


@given(walks(), st.sampled_from(["claim", "complete", "fail", "sweep", "cancel", "bury"]))
@settings(max_examples=EXAMPLES * 3 // 5)
def test_a_decision_depends_on_its_arguments_alone(driver: Driver, verb: str) -> None:
    asked = command(driver, verb, JobError())

    assert driver.ask(asked) == driver.ask(asked)


# --- The list itself -----------------------------------------------------------------------------


def test_every_field_is_set_by_the_enqueue_or_by_some_later_event() -> None:
    touched = {name for names in TOUCHES.values() for name in names}

    assert touched | BIRTH == set(Job.__struct_fields__)
    assert touched & BIRTH == set()
    assert TOUCHES.keys() == set(EventType) - {EventType.ENQUEUED}


@given(walks())
@settings(max_examples=EXAMPLES // 2)
def test_a_new_row_has_values_only_where_it_is_born_with_some(driver: Driver) -> None:
    [born, *_] = rows(driver)

    assert {name for name in Job.__struct_fields__ if getattr(born, name) is not None} <= set(
        NEW_ROW_FIELDS
    )


def test_every_listed_field_is_really_changed_by_some_life() -> None:
    """A field that no event changes would be sent to the store for nothing, or is forgotten."""
    seen: dict[EventType, set[str]] = {kind: set() for kind in TOUCHES}
    for driver in every_life():
        history = rows(driver)
        for before, after, event in zip(history, history[1:], driver.events[1:], strict=False):
            seen[event.type] |= changed(before, after)

    unseen = {kind: set(names) - seen[kind] for kind, names in TOUCHES.items()}
    # An end clears what is set while a job waits, also where it can only happen to one that does
    # not: one list for all ends keeps the store's statements few.
    assert {kind.value: names for kind, names in unseen.items() if names} == {
        "succeeded": {"run_at", "not_before", "stall_cause"},
        "failed": {"run_at", "not_before", "stall_cause"},
    }


def every_life() -> list[Driver]:
    """Lives that between them change everything an event can change."""
    found = [build() for build in lives.IN_STATUS.values()]
    ready = lives.waiting()
    ready.advance(1)
    ready.do(ready.unblock())
    found.append(ready)
    for policy in (Policy(), lives.HOLD, lives.RECLAIM):
        for end in ("complete", "fail", "release", "sweep", "outage", "kill", "bury"):
            short = replace(policy, max_attempts=2, grace_us=seconds(15), keep_us=seconds(60))
            driver = lives.running(short)
            driver.advance(1)
            driver.do(driver.heartbeat(progress=Progress(done=1), checkpoint=b"[1]"))
            driver.advance(10)
            driver.do(driver.heartbeat())
            if end in ("sweep", "outage"):
                driver.advance(60)
            driver.do(command(driver, end, JobError(message="no")))
            driver.advance(61)
            if policy is lives.HOLD:
                driver.do(driver.requeue())
            driver.do(driver.claim(actor=OTHER_WORKER, owner=OTHER_OWNER))
            driver.advance(1)
            driver.do(driver.start(actor=OTHER_WORKER))
            driver.advance(1)
            driver.do(driver.cancel(reason="why"))
            driver.do(driver.fail(JobError(message="other"), actor=OTHER_WORKER))
            found.append(driver)
    once = Policy(max_attempts=1, keep_us=seconds(60))
    for policy in (once, replace(once, on_exhausted=OnExhausted.FAIL)):
        driver = lives.running(policy)
        driver.do(driver.heartbeat())
        driver.do(driver.fail(JobError(message="other", stage=Stage.EXEC)))
        found.append(driver)
    for driver in (lives.running(), lives.claimed()):
        driver.do(driver.heartbeat())
        driver.do(driver.fail(JobError(error_class=ErrorClass.PERMANENT)))
        found.append(driver)
    expiring = Driver()
    expiring.do(replace(expiring.enqueue(), expires_us=seconds(10)))
    expiring.do(expiring.claim(start=True))
    expiring.do(expiring.fail())
    found.append(expiring)
    for verb in ("cancel", "bury"):
        for driver in (lives.held(), lives.reclaimable(), lives.queued()):
            driver.do(command(driver, verb, JobError()))
            found.append(driver)
    return found


@each_case("kind", sorted(set(EventType) - {EventType.ENQUEUED}))
def test_only_a_birth_needs_no_job(kind: EventType) -> None:
    event = replace(lives.running().events[1], type=kind)

    with pytest.raises(AssertionError):
        evolve(None, event)


def test_a_job_is_not_born_twice() -> None:
    driver = lives.queued()

    with pytest.raises(AssertionError):
        evolve(driver.job, driver.events[0], b"null")
    assert fold([]) is None


# --- Events --------------------------------------------------------------------------------------

E1 = [
    "job_id",
    "seq",
    "type",
    "event_class",
    "ts",
    "actor",
    "attempt",
    "lease_id",
    "owner",
    "lease_expires_at",
    "from_status",
    "to_status",
    "request_id",
    "fingerprint",
    "correlation_id",
    "trace_id",
    "cause",
    "payload",
    "version",
]


@spec("E1")
def test_every_event_has_its_documented_fields_and_the_jobs_correlation_id() -> None:
    driver = Driver()
    driver.do(driver.enqueue(correlation_id="order-9", trace_id="t"))
    driver.do(driver.claim())
    driver.do(driver.heartbeat())
    driver.do(driver.fail())

    for event in driver.events:
        assert all(hasattr(event, name) for name in E1)
        assert (event.correlation_id, event.trace_id) == ("order-9", "t")
    assert {field.name for field in fields(Event)} == set(E1) - {"event_class"}
    identities = [(event.job_id, event.seq) for event in driver.events]
    assert len(set(identities)) == len(identities)


@spec("E1")
def test_an_event_under_a_lease_says_whose_and_until_when() -> None:
    driver = lives.running()
    driver.do(driver.heartbeat())
    expiry = driver.job.lease_expires_at
    driver.do(driver.fail())
    started, renewed, stalled, requeued = driver.events[-4:]

    for event in (started, renewed, stalled):
        assert (event.lease_id, event.owner, event.attempt) == (driver.lease_id, "ada-1", 1)
    assert renewed.lease_expires_at == stalled.lease_expires_at == expiry
    assert (requeued.lease_id, requeued.owner, requeued.lease_expires_at) == (None, None, None)


@spec("E1")
def test_lease_renewed_and_heartbeat_are_renewals_and_all_others_transitions() -> None:
    template = lives.queued().events[0]

    renewals = {
        kind for kind in EventType if replace(template, type=kind).event_class is EventClass.RENEWAL
    }

    assert renewals == {EventType.LEASE_RENEWED, EventType.HEARTBEAT}


@spec("G1")
def test_the_end_of_an_attempt_keeps_what_its_renewals_said() -> None:
    driver = lives.running()
    driver.do(driver.heartbeat(hb_seq=3, progress=Progress(done=1), checkpoint=b"[1]"))
    driver.advance(10)
    driver.do(driver.heartbeat(hb_seq=9))
    expiry = driver.job.lease_expires_at

    driver.do(driver.complete())

    end = driver.events[-1]
    assert (end.payload.renewals, end.payload.hb_seq) == (2, 9)
    assert end.payload.progress == Progress(done=1)
    assert end.payload.checkpoint_sha256 == driver.events[3].payload.checkpoint_sha256
    assert end.lease_expires_at == expiry


@spec("G1")
def test_an_attempt_without_renewals_has_nothing_to_keep() -> None:
    driver = lives.succeeded()

    assert driver.events[-1].payload.renewals is None
    assert Facts() == replace(driver.events[-1].payload, sha256=None, size=None)


def test_a_digested_row_has_no_body() -> None:
    driver = lives.running()
    driver.do(driver.heartbeat(checkpoint=b'"secret"'))
    driver.do(driver.complete(result=b'"secret"'))

    row = digested(driver.job)

    assert b"secret" not in (row.payload, row.checkpoint, row.result)
    assert (row.result, row.checkpoint) == (row.checkpoint, row.result)
    assert len(row.payload) == 64
    assert not row_violations(row)
    assert row.status is JobStatus.SUCCEEDED
    assert isinstance(driver.ask(driver.redrive()), Applied)
