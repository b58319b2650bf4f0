"""Round trips: a value that was accepted comes back equal, field by field, from every store."""

import json
from string import ascii_letters, digits
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.core.checks import MAX_COUNT, MAX_DURATION, MAX_INSTANT, PRIORITIES
from tenure.core.commands import Command, DeadLetter, Outage
from tenure.core.ids import Kind, LeaseId, Namespace, QueueName, RequestId, WorkerId, worker_actor
from tenure.core.instants import Duration, Instant
from tenure.core.job import Job, JobError, Progress
from tenure.core.policy import Backoff, Compensation, Policy
from tenure.core.validation import SHORTEST_LIMIT
from tenure.core.verdicts import Observation
from tenure.core.vocabulary import (
    CancelMode,
    ErrorClass,
    ObservationType,
    OnExhausted,
    OnLost,
    ReasonCode,
    Stage,
)
from tenure_conformance.harness import CLIENT, OPERATOR, WORKER, Kit, policy
from tenure_conformance.spec import spec

MEBIBYTE = 1024 * 1024
NASTY = [
    "NULL",
    "null",
    "None",
    "\\N",
    "\\",
    "\\\\",
    '"',
    "'",
    "''",
    "'; DROP TABLE job; --",
    "{}",
    '{"a"}',
    "{NULL}",
    "()",
    "(,)",
    ",",
    "%s %(x)s ? :name $1",
    "\t",
    " leading and trailing ",
    "日本語",
    "👩‍👩‍👧 \U0010ffff",
    "e\u0301 é",
    "\u2028\u202e\ufeff",
    "0",
    "1e400",
]

# Any character a field may hold: no NUL, no lone surrogate. [J1]
characters = st.characters(exclude_categories=["Cs"], exclude_characters="\x00")
visible = st.characters(exclude_categories=["Cs", "Cc"])
texts = st.text(characters, max_size=60) | st.sampled_from(NASTY)
labels = st.text(visible, min_size=1, max_size=40) | st.sampled_from(
    [text for text in NASTY if "\t" not in text]
)
names = st.builds(
    str.__add__,
    st.sampled_from(ascii_letters + digits),
    st.text(ascii_letters + digits + "._:/-", max_size=20),
) | st.just("n" * 128)
exact_integers = st.integers(-(2**53) + 1, 2**53 - 1)
counts = st.integers(1, MAX_COUNT)
durations = st.integers(0, MAX_DURATION) | st.sampled_from([0, 1, MAX_DURATION])

json_values = st.recursive(
    st.none() | st.booleans() | exact_integers | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
bodies = st.builds(
    lambda value, is_ascii, indent: json.dumps(
        value, ensure_ascii=is_ascii, indent=indent
    ).encode(),
    json_values | texts,
    st.booleans(),
    st.sampled_from([None, 1]),
)

backoffs = st.builds(
    Backoff,
    initial_us=durations,
    cap_us=durations,
    factor=st.floats(1, 100),
    floor=st.floats(0, 1),
)


def _policies(compensations: st.SearchStrategy[Compensation | None]) -> st.SearchStrategy[Policy]:
    return st.builds(
        Policy,
        lease_us=st.integers(1_000_000, 24 * 3600 * 1_000_000),
        max_attempts=counts,
        max_releases=st.integers(0, MAX_COUNT),
        backoff=backoffs,
        timeout_us=st.none() | st.integers(SHORTEST_LIMIT, MAX_DURATION),
        start_within_us=st.integers(SHORTEST_LIMIT, MAX_DURATION),
        grace_us=durations,
        on_exhausted=st.sampled_from(OnExhausted),
        on_lost=st.sampled_from(OnLost),
        compensation=compensations,
    )


policies = _policies(
    st.none()
    | st.builds(
        Compensation,
        kind=names.map(Kind),
        queue=names.map(QueueName),
        policy=_policies(st.none()),
    )
)

errors = st.builds(
    JobError,
    error_class=st.sampled_from(ErrorClass),
    type=st.text(characters, max_size=128),
    message=texts,
    stage=st.none() | st.sampled_from(Stage),
    reason_code=st.sampled_from([None, ReasonCode.PARSE_ERROR, ReasonCode.DEPENDENCY_UNAVAILABLE]),
)
progresses = st.builds(
    Progress,
    done=st.integers(0, 2**53 - 1),
    total=st.none() | st.integers(0, 2**53 - 1),
    note=texts,
)


def examples(count: int) -> settings:
    """Settings of a property here: few examples, each of them several transactions."""
    return settings(
        max_examples=count,
        deadline=None,
        # The store is shared by the examples of one test on purpose: jobs have ids of their own.
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


def _apply(kit: Kit, command: Command) -> Job:
    """Save what a command decides; what comes back must be what went in."""
    change = kit.change(command)

    assert kit.save(change) == {change.job.id}

    assert kit.reload(change.job) == change.job
    assert kit.events(change.job)[-len(change.events) :] == list(change.events)
    for spawned in change.spawned:
        assert kit.reload(spawned.job) == spawned.job
    return change.job


@examples(25)
@given(
    fields=st.fixed_dictionaries(
        {
            "namespace": names.map(Namespace),
            "queue": names.map(QueueName),
            "kind": names.map(Kind),
            "payload": bodies,
            "priority": st.integers(*PRIORITIES) | st.sampled_from(PRIORITIES),
            "run_at": st.none() | st.integers(0, MAX_INSTANT).map(Instant),
            "dedupe_key": st.none() | labels,
            "correlation_id": st.none() | labels,
            "trace_id": st.none() | labels,
            "meta": st.none() | st.dictionaries(st.sampled_from("abc"), texts, min_size=1),
            "policy": policies,
        }
    )
)
def test_a_new_job_comes_back_as_it_went_in(kit: Kit, fields: dict[str, Any]) -> None:
    job = _apply(kit, kit.new(**fields))

    assert job.payload == fields["payload"]
    assert kit.cancel(job).is_ok  # frees the key for the next example


@examples(25)
@given(
    checkpoint=bodies,
    progress=progresses,
    hb_seq=st.integers(1, 2**53 - 1),
    error=errors,
    retry_after_us=durations,
)
def test_what_workers_report_comes_back_as_it_went_in(
    kit: Kit,
    checkpoint: bytes,
    progress: Progress,
    hb_seq: int,
    error: JobError,
    retry_after_us: int,
) -> None:
    job = kit.running_job(lease_s=3600)

    beating = kit.beat(job, hb_seq, progress=progress, checkpoint=checkpoint)
    beaten = _apply(kit, beating)
    failing = kit.failure(
        beaten, ErrorClass.TRANSIENT, error=error, retry_after_us=Duration(retry_after_us)
    )
    failed = _apply(kit, failing)

    assert (beaten.progress, beaten.checkpoint) == (progress, checkpoint)
    assert failed.last_error == error
    kit.cancel(failed)


@examples(25)
@given(result=bodies, reason=texts, message=texts, stage=st.none() | st.sampled_from(Stage))
def test_terminal_jobs_come_back_as_they_went_in(
    kit: Kit, result: bytes, reason: str, message: str, stage: Stage | None
) -> None:
    done, cancelled, dead = (kit.running_job() for _ in range(3))
    dead_letter = DeadLetter(
        job_id=dead.id,
        actor=OPERATOR,
        request_id=RequestId("dead"),
        reason_code=ReasonCode.INFRASTRUCTURE_FAILURE,
        stage=stage,
        message=message,
    )

    assert _apply(kit, kit.completion(done, result=result)).result == result
    requested = _apply(kit, kit.cancellation(cancelled, reason=reason))
    assert requested.cancel_reason == reason
    _apply(kit, kit.cancellation(cancelled, mode=CancelMode.HARD, reason=reason))
    ended = _apply(kit, dead_letter)
    assert ended.error is not None
    assert (ended.error.message, ended.stage) == (message, stage)


@examples(25)
@given(
    actor=labels.map(lambda name: worker_actor(name[:128])),
    request_id=names.map(RequestId),
    cause=st.none() | texts,
    size=st.none() | st.integers(0, 2**31),
    body=st.none() | st.binary(max_size=200),
)
def test_an_observation_comes_back_as_it_went_in(kit: Kit, **fields: Any) -> None:
    job = kit.enqueue()
    note = Observation(
        job_id=job.id,
        type=ObservationType.RESULT_DISCARDED,
        ts=kit.now(),
        lease_id=LeaseId("1-" + "f" * 32),
        sha256="0" * 64,
        **fields,
    )

    kit.store.jobs.observe([note])

    assert kit.observations(job) == [note]


@examples(15)
@given(
    worker=names.map(WorkerId),
    actor=labels.map(lambda name: worker_actor(name[:128])),
    request_id=names.map(RequestId),
    claim_seq=st.integers(1, 2**53 - 1),
)
def test_a_session_is_remembered_as_it_was(kit: Kit, **fields: Any) -> None:
    job = kit.enqueue()
    request = kit.claim_request(**fields)

    granted = kit.coordinator.claim(request)
    repeated = kit.coordinator.claim(request)

    if granted.is_repeat or granted.cause is not None:
        kit.cancel(job)  # the same session was drawn before
        return
    assert [grant.job for grant in granted.grants] == [kit.reload(job)]
    assert repeated.is_repeat
    assert repeated.grants == granted.grants
    assert (granted.grants[0].job.owner, granted.grants[0].job.principal) == (
        fields["worker"],
        fields["actor"],
    )
    kit.complete(granted.grants[0].job, actor=fields["actor"])


def test_text_that_looks_like_something_else_stays_text(kit: Kit) -> None:
    for text in NASTY:
        label = text.replace("\t", "\\t")
        body = json.dumps({text: text}).encode()
        same = {"dedupe_key": label, "correlation_id": label, "trace_id": label}
        _apply(kit, kit.new(payload=body, **same))
        (job,) = kit.claimed()

        _apply(kit, kit.beat(job, progress=Progress(done=0, note=text), checkpoint=body))
        error = JobError(type=text, message=text)
        _apply(kit, kit.failure(job, ErrorClass.PERMANENT, error=error))

        assert {event.correlation_id for event in kit.events(job)} == {label}
        assert kit.reload(job).last_error == error
        kit.cancel(job)


@spec("J2")
def test_bodies_of_a_mebibyte_come_back_whole(kit: Kit) -> None:
    payload, checkpoint, result = (
        b'"' + filler * (MEBIBYTE - 2) + b'"' for filler in (b"p", b"c", b"\x7f")
    )
    assert len(payload) == MEBIBYTE
    job = kit.running_job(payload=payload)

    kit.heartbeat(job, checkpoint=checkpoint)
    kit.complete(job, result=result)

    stored = kit.reload(job)
    assert stored.payload == payload
    assert stored.checkpoint == checkpoint
    assert stored.result == result


def test_text_that_looks_like_something_else_stays_text_in_a_batch(kit: Kit) -> None:
    """What differs over a batch may travel in another way than what is alone."""
    bodies = [json.dumps({text: text}).encode() for text in NASTY]
    bodies += [json.dumps(text, ensure_ascii=False).encode() for text in NASTY]
    labels = [f"{number}{text}".replace("\t", "\\t") for number, text in enumerate(NASTY * 2)]
    new = [
        kit.change(kit.new(payload=body, dedupe_key=label, correlation_id=label))
        for body, label in zip(bodies, labels, strict=True)
    ]
    assert kit.save(*new) == {change.job.id for change in new}
    jobs = kit.claimed(limit=len(new))
    for job in jobs:
        kit.start(job)

    ends = [kit.change(kit.completion(job, result=job.payload)) for job in jobs]

    assert kit.save(*ends) == {change.job.id for change in ends}
    assert [kit.reload(change.job) for change in ends] == [change.job for change in ends]
    assert [kit.events(change.job)[-1] for change in ends] == [each.events[0] for each in ends]
    assert sorted(kit.reload(each.job).payload for each in ends) == sorted(bodies)


@spec("J2")
def test_large_bodies_come_back_whole_from_a_batch(kit: Kit) -> None:
    bodies = [b'"' + bytes([filler]) * (MEBIBYTE // 4) + b'"' for filler in b"pqrstu"]
    new = [kit.change(kit.new(payload=body)) for body in bodies]
    assert kit.save(*new) == {change.job.id for change in new}
    jobs = kit.claimed(limit=len(new))
    for job in jobs:
        kit.start(job)

    ends = [kit.change(kit.completion(job, result=job.payload)) for job in jobs]

    assert kit.save(*ends) == {change.job.id for change in ends}
    stored = [kit.reload(job) for job in jobs]
    assert sorted(job.payload for job in stored) == bodies
    assert all(job.result == job.payload for job in stored)


def test_empty_and_absent_values_are_kept_apart(kit: Kit) -> None:
    job = kit.running_job()
    kit.cancel(job, reason="")
    requested = kit.reload(job)
    kit.fail(job, error=JobError(error_class=ErrorClass.TRANSIENT))

    stored = kit.reload(job)

    assert requested.cancel_reason == stored.cancel_reason == ""
    assert stored.last_error == JobError(error_class=ErrorClass.TRANSIENT)
    assert (stored.correlation_id, stored.dedupe_key, stored.result) == (None, None, None)


@spec("S5")
def test_json_null_is_a_result(kit: Kit) -> None:
    job = kit.running_job()

    kit.complete(job, result=b"null")

    assert kit.reload(job).result == b"null"


def test_body_bytes_are_kept_as_sent(kit: Kit) -> None:
    body = b' {"b" : 1.0, "a":\t[1e2, "\\u00e9"]}\n'
    job = kit.running_job(payload=body)

    kit.complete(job, result=body)

    assert (kit.reload(job).payload, kit.reload(job).result) == (body, body)


def test_run_at_may_be_the_earliest_and_the_latest_instant(kit: Kit) -> None:
    oldest, latest = kit.enqueue(run_at=Instant(0)), kit.enqueue(run_at=Instant(MAX_INSTANT))

    assert [job.id for job in kit.claimed(limit=5)] == [oldest.id]
    assert kit.reload(latest).run_at == MAX_INSTANT


def test_outages_and_long_waits_keep_their_microseconds(kit: Kit) -> None:
    outage = Outage(Instant(kit.now() + 1), Instant(kit.now() + 7))
    kit.store.upkeep.record_outage(outage)
    job = kit.enqueue(delay_us=Duration(MAX_DURATION), policy=policy(lease_s=1.000001))

    assert kit.store.upkeep.outages(since=kit.now()) == [outage]
    assert kit.reload(job).run_at == kit.now() + MAX_DURATION
    assert kit.reload(job).policy.lease_us == 1_000_001
    assert (job.namespace, CLIENT, WORKER) == ("default", "client:kit", "worker:kit")
