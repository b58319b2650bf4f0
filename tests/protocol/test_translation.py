"""What goes over the wire comes back as it was, and gives its reader no right it has not."""

import json
from typing import Any, get_args

import msgspec
import pytest

from tenure.core.claims import ClaimAnswer, ClaimRequest
from tenure.core.commands import (
    Cancel,
    Complete,
    DeadLetter,
    Discard,
    Enqueue,
    Fail,
    Heartbeat,
    OperatorCommand,
    Redrive,
    Release,
    Requeue,
    Stall,
    Start,
    WorkerCommand,
    fingerprint,
)
from tenure.core.evolution import fold
from tenure.core.ids import (
    JobId,
    Kind,
    LeaseId,
    Namespace,
    QueueName,
    RequestId,
    WorkerId,
    client_actor,
    operator_actor,
    worker_actor,
)
from tenure.core.instants import Duration, Instant, seconds
from tenure.core.job import Job, JobError, Progress
from tenure.core.policy import Backoff, Compensation, Policy
from tenure.core.verdicts import CancelDirective, Grant, Reply, Verdict
from tenure.core.vocabulary import (
    CancelMode,
    Cause,
    Disposition,
    ErrorClass,
    EventCause,
    EventType,
    JobStatus,
    OnExhausted,
    OnLost,
    ReasonCode,
    ReleaseKind,
    Stage,
    VerdictKind,
)
from tenure.errors import InvalidInput
from tenure.protocol import codec, records, replies, requests
from tenure.protocol.routes import ROUTES, route_of
from tenure.protocol.translation import to_core, to_wire
from tenure_conformance.golden import GoldenLog, golden_logs
from tenure_conformance.spec import spec
from tests.support.cases import each_case
from tools import lives

WORKER = worker_actor("w")
CLIENT = client_actor("c")
OPERATOR = operator_actor("o")
JOB = JobId("018f0000-0000-7000-8000-000000000001")
LEASE = LeaseId("1-" + "ab" * 16)
NOW = Instant(1_700_000_000_123_456)
LOGS = list(golden_logs(1))


def name_of(log: GoldenLog) -> str:
    return log.name


def row_of(log: GoldenLog) -> Job:
    row = fold(log.read_events())
    assert row is not None
    # A fold knows bodies by their digests only.
    result = None if row.result is None else b'{"made":  [1]}'
    return msgspec.structs.replace(row, payload=b'{"a": 1}', result=result, checkpoint=b"[1]")


def over_the_wire(message: Any) -> Any:
    return codec.decode(type(message), codec.encode(message))


@each_case("log", LOGS)
def test_a_job_comes_back_as_it_was_but_for_its_lease_and_its_place(log: GoldenLog) -> None:
    row = row_of(log)

    record = over_the_wire(records.job_record(row, now=NOW, bodies=True))

    shown = msgspec.structs.replace(row, lease_id=None, claimed_run_at=None)
    assert records.job_of(record) == shown


@spec("H7")
@each_case("log", LOGS)
def test_no_record_of_a_job_or_event_carries_a_lease_that_could_be_used(log: GoldenLog) -> None:
    events = log.read_events()
    leases = {event.lease_id for event in events if event.lease_id is not None}

    shown = [codec.encode(records.job_record(row_of(log), now=NOW, bodies=True))]
    shown += [codec.encode(records.event_record(event)) for event in events]

    assert not any(lease.encode() in text for lease in leases for text in shown)


EVENT_NAMES = {
    "enqueued": "job_enqueued",
    "ready": "job_ready",
    "claimed": "job_claimed",
    "started": "job_started",
    "lease_renewed": "job_lease_renewed",
    "heartbeat": "job_heartbeat",
    "cancel_requested": "job_cancel_requested",
    "stalled": "job_stalled",
    "requeued": "job_requeued",
    "succeeded": "job_succeeded",
    "failed": "job_failed",
    "cancelled": "job_cancelled",
    "dead_lettered": "job_dead_lettered",
}
OPERATIONS = {
    "enqueued": "enqueue",
    "ready": "unblock",
    "claimed": "claim",
    "started": "start",
    "lease_renewed": "heartbeat",
    "heartbeat": "heartbeat",
    "requeued": "requeue",
    "succeeded": "complete",
    "failed": "fail",
    "cancelled": "cancel",
}
"""What made an event that nothing special caused, written by hand; see also dead letters below."""


@spec("E1", "E6", "E7")
@each_case("log", LOGS)
def test_an_event_shows_its_id_its_name_and_why_it_happened(log: GoldenLog) -> None:
    for event in log.read_events():
        shown = json.loads(codec.encode(records.event_record(event)))

        assert shown["id"] == f"{event.job_id}:{event.seq}"
        is_compensation = (shown["type"], shown["cause"]) == ("succeeded", "compensation")
        assert shown["name"] == (
            "job_compensated" if is_compensation else EVENT_NAMES[shown["type"]]
        )
        if event.cause is not None:
            assert shown["cause"] == event.cause.value
        elif event.type is EventType.DEAD_LETTERED:
            assert shown["cause"] == (
                "fail" if shown["from_status"] == "running" else "dead_letter"
            )
        else:
            assert shown["cause"] == OPERATIONS[shown["type"]]


@spec("E6", "M2")
def test_the_end_of_a_compensation_is_named_after_what_it_did() -> None:
    driver = lives.running_compensation()
    driver.do(driver.complete())

    shown = records.event_record(driver.events[-1])

    assert (shown.type, shown.name) == ("succeeded", "job_compensated")
    assert shown.cause == "compensation"


@each_case("log", LOGS)
def test_events_come_back_as_they_were_but_for_leases(log: GoldenLog) -> None:
    for event in log.read_events():
        back = records.event_of(over_the_wire(records.event_record(event)))

        kept = {"lease_id": event.lease_id, "request_id": event.request_id}
        assert msgspec.structs.replace(back, **kept) == event


def test_bodies_are_left_out_unless_they_are_wanted() -> None:
    row = msgspec.structs.replace(row_of(LOGS[0]), payload=b'"secret"', checkpoint=b'"secret"')

    text = codec.encode(records.job_record(row, now=NOW, bodies=False))

    assert b"secret" not in text


REPORT: dict[str, Any] = {"job_id": JOB, "lease_id": LEASE, "actor": WORKER}
REPORTS: list[WorkerCommand] = [
    Start(**REPORT, request_id=RequestId("r1")),
    Heartbeat(**REPORT, hb_seq=3),
    Heartbeat(**REPORT, hb_seq=4, progress=Progress(done=1, total=2, note="n"), checkpoint=b"null"),
    Complete(**REPORT, request_id=RequestId("r2"), result=b'{ "spaces":  [1, 2] }'),
    Fail(
        **REPORT,
        request_id=RequestId("r3"),
        error=JobError(
            error_class=ErrorClass.VALIDATION,
            type="ValueError",
            message="no",
            stage=Stage.INPUT,
            reason_code=ReasonCode.PARSE_ERROR,
        ),
        retry_after_us=seconds(1.5),
    ),
    Fail(
        **REPORT,
        request_id=RequestId("r5"),
        error=JobError(type="DeadLetter", reason_code=ReasonCode.POLICY_VIOLATION),
    ),
    Release(
        **REPORT,
        request_id=RequestId("r4"),
        kind=ReleaseKind.SNOOZE,
        delay_us=Duration(1_234_567),
    ),
]


@spec("H42")
def test_a_batch_of_reports_comes_back_in_order_and_with_its_fingerprints() -> None:
    sent = requests.ReportsMessage(reports=tuple(map(requests.report_of, REPORTS)))
    message = over_the_wire(sent)

    back = [requests.worker_command(report, WORKER) for report in message.reports]

    assert back == REPORTS
    assert [fingerprint(each) for each in back] == [fingerprint(each) for each in REPORTS]


def test_a_claim_comes_back_as_it_was() -> None:
    request = ClaimRequest(
        namespace=Namespace("default"),
        worker=WorkerId("w-1"),
        actor=WORKER,
        queues=(QueueName("a"), QueueName("b")),
        limit=7,
        claim_seq=2,
        request_id=RequestId("c2"),
        kinds=(Kind("k"),),
    )

    message = over_the_wire(requests.claim_message(request, wait_s=20.0))

    assert message.wait_s == 20.0
    back = to_core(ClaimRequest, message, actor=WORKER, namespace=Namespace("default"))
    assert back == request


def test_a_claim_for_more_than_an_answer_holds_asks_for_that_much() -> None:
    request = ClaimRequest(
        namespace=Namespace("default"),
        worker=WorkerId("w-1"),
        actor=WORKER,
        queues=(QueueName("a"),),
        limit=requests.MAX_CLAIM + 1,
        claim_seq=2,
        request_id=RequestId("c2"),
    )

    message = over_the_wire(requests.claim_message(request, wait_s=0.0))

    assert message.limit == requests.MAX_CLAIM


ENQUEUE = Enqueue(
    job_id=JOB,
    namespace=Namespace("default"),
    queue=QueueName("q"),
    kind=Kind("k"),
    actor=CLIENT,
    payload=b"[1,  2]",
    priority=-3,
    run_at=NOW,
    dedupe_key="key",
    correlation_id="c",
    trace_id="t",
    policy=Policy(
        lease_us=seconds(31.5),
        max_attempts=2,
        max_releases=0,
        backoff=Backoff(initial_us=Duration(1), factor=3.0, cap_us=seconds(9), floor=0.5),
        timeout_us=None,
        start_within_us=seconds(5),
        grace_us=Duration(0),
        on_exhausted=OnExhausted.FAIL,
        on_lost=OnLost.RECLAIM,
        compensation=Compensation(kind=Kind("undo"), queue=QueueName("u"), policy=Policy()),
    ),
)


@pytest.mark.parametrize(
    "command",
    [
        ENQUEUE,
        Enqueue(
            job_id=JOB,
            namespace=Namespace("default"),
            queue=QueueName("q"),
            kind=Kind("k"),
            actor=CLIENT,
            delay_us=Duration(7),
        ),
    ],
)
def test_an_enqueue_comes_back_as_it_was(command: Enqueue) -> None:
    message = over_the_wire(to_wire(requests.EnqueueMessage, command))

    back = to_core(Enqueue, message, job_id=JOB, actor=CLIENT, namespace=Namespace("default"))

    assert back == command


ASKED: dict[str, Any] = {"job_id": JOB, "actor": OPERATOR, "request_id": RequestId("r")}
GUARD: dict[str, Any] = {"expected_rev": 4, "expected_status": JobStatus.STALLED}


@pytest.mark.parametrize(
    "command",
    [
        Cancel(**ASKED, **GUARD, mode=CancelMode.HARD, reason="why"),
        Stall(**ASKED, **GUARD),
        Requeue(**ASKED, **GUARD),
        DeadLetter(
            **ASKED,
            reason_code=ReasonCode.POLICY_VIOLATION,
            stage=Stage.EXEC,
            message="m",
        ),
        Redrive(**ASKED, payload=b'{"new":1}'),
        Redrive(**ASKED, payload=b"null"),
        Redrive(**ASKED, cause=EventCause.RERUN),
        Discard(**ASKED, note="n"),
    ],
)
def test_what_operators_ask_comes_back_as_it_was(
    command: Cancel | Stall | Requeue | DeadLetter | Redrive | Discard,
) -> None:
    route = route_of(command)
    assert route.request is not None
    assert route.command is not None

    message = over_the_wire(to_wire(route.request, command))

    back = to_core(route.command, message, job_id=JOB, actor=OPERATOR, **route.sets)
    assert back == command


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(kind=VerdictKind.OK, ttl_us=Duration(29_999_999), settled=True),
        Verdict(
            kind=VerdictKind.COMMITTED,
            job_status=JobStatus.QUEUED,
            disposition=Disposition.RETRY_SCHEDULED,
            run_at=NOW,
            replayed=True,
        ),
        Verdict(
            kind=VerdictKind.OK,
            cancel=CancelDirective(reason="stop", remaining_us=Duration(5)),
        ),
        Verdict(kind=VerdictKind.CANCELLED, cause=Cause.SUPERSEDED),
    ],
)
def test_a_verdict_comes_back_as_it_was(verdict: Verdict) -> None:
    assert to_core(Verdict, over_the_wire(to_wire(replies.VerdictReply, verdict))) == verdict


def test_a_grant_brings_what_a_worker_needs() -> None:
    job = msgspec.structs.replace(
        row_of(LOGS[0]), payload=b'{"x":  1}', checkpoint=b"[2]", status=JobStatus.CLAIMED
    )
    grant = Grant(
        job_id=job.id, lease_id=LEASE, attempt=3, fence=1 << 32, ttl_us=seconds(12.5), job=job
    )

    answer = ClaimAnswer(grants=(grant,), is_repeat=True, waited_us=seconds(1.5))
    heard = replies.claim_answer(over_the_wire(replies.claim_reply(answer)))
    [back] = heard.grants

    assert (heard.is_repeat, heard.waited_us) == (True, seconds(1.5))

    assert msgspec.structs.replace(back, job=job) == grant
    for field in ("kind", "queue", "payload", "checkpoint", "hb_seq", "correlation_id", "status"):
        assert getattr(back.job, field) == getattr(job, field)
    for field in ("lease_us", "timeout_us", "grace_us", "heartbeat_interval_us", "max_attempts"):
        assert getattr(back.job.policy, field) == getattr(job.policy, field)


def test_a_reply_comes_back_as_it_was() -> None:
    job = msgspec.structs.replace(row_of(LOGS[0]), lease_id=None)
    reply = Reply(job=job, cause=Cause.JOB_FINISHED, pending=True, deduplicated=True)

    back = replies.reply_of(over_the_wire(replies.job_reply(reply, now=NOW, bodies=True)))

    assert back == reply


@spec("H2")
def test_an_unknown_field_is_refused_in_a_request_and_ignored_in_an_answer() -> None:
    with pytest.raises(InvalidInput, match="unknown field") as refused:
        codec.decode(requests.HeartbeatsMessage, b'{"leases":[{"hb_seq":1,"hb_sec":1}]}')

    read = codec.decode(replies.VerdictReply, b'{"verdict":"OK","added_later":{"a":[1]}}')

    assert refused.value.field == "leases[0].hb_sec"
    assert read == replies.VerdictReply(verdict=VerdictKind.OK)


def test_every_command_about_one_job_has_a_route() -> None:
    routed = {route.command for route in ROUTES if route.command is not None}

    assert routed == {*get_args(OperatorCommand), Discard}
    assert route_of(Redrive(**ASKED, cause=EventCause.RERUN)).name == "rerun"
    assert route_of(Redrive(**ASKED, cause=EventCause.REDRIVE)).name == "redrive"
