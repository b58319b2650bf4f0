"""From requests to the core's commands, and back: the server reads one way, a client the other.

Who asks and in which namespace is never read off a message: the server says both.
"""

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, assert_never

import msgspec

from tenure.core.attempt_logs import AttemptOutput
from tenure.core.claims import ClaimRequest
from tenure.core.commands import (
    Cancel,
    Complete,
    DeadLetter,
    Discard,
    Enqueue,
    Fail,
    FollowUp,
    Heartbeat,
    ParentAttempt,
    Redrive,
    Release,
    Requeue,
    Start,
    WorkerCommand,
)
from tenure.core.ids import Actor, JobId, Namespace, WorkerId, follow_up_id
from tenure.core.instants import seconds
from tenure.core.job import JobError, Progress
from tenure.core.leases import HeldLease
from tenure.core.vocabulary import EventCause, ReleaseKind
from tenure.core.workers import WorkerProcess
from tenure.protocol.fields import in_seconds, optional_instant, optional_moment
from tenure.protocol.policies import policy_message, policy_of
from tenure.protocol.records import body_of, body_or_null, raw_body
from tenure.protocol.requests import (
    MAX_BATCH,
    MAX_CLAIM,
    AliveMessage,
    CancelMessage,
    ClaimMessage,
    CompleteMessage,
    CompleteReport,
    DeadLetterMessage,
    DiscardMessage,
    EnqueueMessage,
    ErrorMessage,
    FailMessage,
    FailReport,
    FollowUpMessage,
    HeartbeatMessage,
    HeartbeatReport,
    LeaseMessage,
    LookMessage,
    OutputMessage,
    ProgressMessage,
    RedriveMessage,
    ReleaseMessage,
    ReleaseReport,
    Report,
    RequeueMessage,
    StartMessage,
    StartReport,
)

WorkerMessage: TypeAlias = (
    StartMessage | CompleteMessage | FailMessage | ReleaseMessage | HeartbeatMessage
)
OperatorMessage: TypeAlias = (
    CancelMessage | RequeueMessage | DeadLetterMessage | RedriveMessage | DiscardMessage
)

# --- What workers send -------------------------------------------------------------------------


def claim_request(message: ClaimMessage, *, actor: Actor, namespace: Namespace) -> ClaimRequest:
    """The claim that a message asks for."""
    return ClaimRequest(
        namespace=namespace,
        worker=message.worker,
        actor=actor,
        queues=message.queues,
        limit=message.limit,
        claim_seq=message.claim_seq,
        request_id=message.request_id,
        kinds=message.kinds,
    )


def claim_message(request: ClaimRequest, *, wait_s: float) -> ClaimMessage:
    """A claim as it travels; one that wants more than an answer can hold asks for that much."""
    return ClaimMessage(
        worker=request.worker,
        queues=request.queues,
        limit=min(request.limit, MAX_CLAIM),
        claim_seq=request.claim_seq,
        request_id=request.request_id,
        kinds=request.kinds,
        wait_s=wait_s,
        namespace=request.namespace,
    )


def worker_command(message: WorkerMessage, actor: Actor) -> WorkerCommand:
    """The command that a worker's report stands for."""
    match message:
        case HeartbeatMessage():
            told = message.progress
            return Heartbeat(
                job_id=message.job_id,
                lease_id=message.lease_id,
                actor=actor,
                hb_seq=message.hb_seq,
                progress=None
                if told is None
                else Progress(done=told.done, total=told.total, note=told.note),
                checkpoint=body_of(message.checkpoint),
            )
        case StartMessage():
            return Start(**_common(message, actor))
        case CompleteMessage():
            return Complete(**_common(message, actor), result=body_or_null(message.result))
        case FailMessage():
            return Fail(
                **_common(message, actor),
                error=JobError(
                    error_class=message.error.error_class,
                    type=message.error.type,
                    message=message.error.message,
                    traceback=message.error.traceback,
                    stage=message.stage,
                    reason_code=message.reason_code,
                ),
                retry_after_us=seconds(message.retry_after_s),
            )
        case ReleaseMessage():
            return Release(
                **_common(message, actor),
                kind=ReleaseKind(message.kind),
                delay_us=seconds(message.delay_s),
            )
        case _:
            assert_never(message)


def report_of(command: WorkerCommand) -> Report:
    """A worker's command as part of a batch."""
    match command:
        case Heartbeat():
            told = command.progress
            return HeartbeatReport(
                job_id=command.job_id,
                lease_id=command.lease_id,
                hb_seq=command.hb_seq,
                progress=None
                if told is None
                else ProgressMessage(done=told.done, total=told.total, note=told.note),
                checkpoint=raw_body(command.checkpoint),
            )
        case Start():
            return StartReport(**_sent(command))
        case Complete():
            return CompleteReport(**_sent(command), result=msgspec.Raw(command.result))
        case Fail():
            error = command.error
            return FailReport(
                **_sent(command),
                error=ErrorMessage(
                    error_class=error.error_class,
                    type=error.type,
                    message=error.message,
                    traceback=error.traceback,
                ),
                stage=error.stage,
                reason_code=error.reason_code,
                retry_after_s=in_seconds(command.retry_after_us),
            )
        case Release():
            return ReleaseReport(
                **_sent(command),
                kind="snooze" if command.kind is ReleaseKind.SNOOZE else "deploy",
                delay_s=in_seconds(command.delay_us),
            )
        case _:
            assert_never(command)


def _common(
    message: StartMessage | CompleteMessage | FailMessage | ReleaseMessage, actor: Actor
) -> dict[str, Any]:
    return {
        "job_id": message.job_id,
        "lease_id": message.lease_id,
        "request_id": message.request_id,
        "actor": actor,
    }


def _sent(command: Start | Complete | Fail | Release) -> dict[str, Any]:
    return {
        "job_id": command.job_id,
        "lease_id": command.lease_id,
        "request_id": command.request_id,
    }


def attempt_output(message: OutputMessage, actor: Actor) -> AttemptOutput:
    """The output that a message brings."""
    return AttemptOutput(
        job_id=message.job_id,
        lease_id=message.lease_id,
        actor=actor,
        text=message.text,
        left_out_bytes=message.left_out_bytes,
        part=message.part,
    )


def output_message(output: AttemptOutput) -> OutputMessage:
    """An attempt's output as it travels."""
    return OutputMessage(
        job_id=output.job_id,
        lease_id=output.lease_id,
        text=output.text,
        left_out_bytes=output.left_out_bytes,
        part=output.part,
    )


def worker_process(
    message: AliveMessage, *, worker: WorkerId, actor: Actor, namespace: Namespace
) -> WorkerProcess:
    """The worker that a sign of life describes."""
    return WorkerProcess(
        namespace=namespace,
        worker=worker,
        actor=actor,
        host=message.host,
        pid=message.pid,
        queues=message.queues,
        concurrency=message.concurrency,
        version=message.version,
        uptime_us=seconds(message.uptime_s),
        kinds=message.kinds,
        is_ending=message.ending,
        instance=message.instance,
    )


def alive_message(process: WorkerProcess) -> AliveMessage:
    """A sign of life as it travels; the worker's name is in the path."""
    return AliveMessage(
        host=process.host,
        pid=process.pid,
        queues=process.queues,
        concurrency=process.concurrency,
        version=process.version,
        uptime_s=in_seconds(process.uptime_us),
        kinds=process.kinds,
        namespace=process.namespace,
        ending=process.is_ending,
        instance=process.instance,
    )


def look_messages(leases: Sequence[HeldLease]) -> Iterator[LookMessage]:
    """Looks at so many leases at a time as one message holds."""
    messages = [LeaseMessage(job_id=each.job_id, lease_id=each.lease_id) for each in leases]
    for start in range(0, len(messages), MAX_BATCH):
        yield LookMessage(leases=tuple(messages[start : start + MAX_BATCH]))


# --- What clients and operators send -----------------------------------------------------------


def enqueue_command(
    message: EnqueueMessage, *, job_id: JobId, actor: Actor, namespace: Namespace
) -> Enqueue:
    """The job that a message asks for; `job_id` is the caller's, or one made for it."""
    return Enqueue(
        job_id=job_id,
        namespace=namespace,
        queue=message.queue,
        kind=message.kind,
        actor=actor,
        payload=body_or_null(message.payload),
        priority=message.priority,
        delay_us=seconds(message.delay_s),
        run_at=optional_instant(message.run_at),
        dedupe_key=message.dedupe_key,
        correlation_id=message.correlation_id,
        trace_id=message.trace_id,
        policy=policy_of(message.policy),
    )


def follow_up_command(enqueue: Enqueue, message: FollowUpMessage, *, parent: JobId) -> FollowUp:
    """The follow-up that a message asks for; `enqueue` is the job in it."""
    fields = msgspec.structs.asdict(enqueue)
    fields["job_id"] = follow_up_id(parent, kind=enqueue.kind, step=message.step)
    attempt = ParentAttempt(job_id=parent, lease_id=message.lease_id, step=message.step)
    return FollowUp(**fields, parent=attempt)


def follow_up_message(command: FollowUp) -> FollowUpMessage:
    """A follow-up as it travels; its parent is in the path."""
    return FollowUpMessage(
        lease_id=command.parent.lease_id,
        step=command.parent.step,
        job=msgspec.structs.replace(enqueue_message(command), job_id=None),
    )


def enqueue_message(command: Enqueue) -> EnqueueMessage:
    """An enqueue as it travels."""
    return EnqueueMessage(
        queue=command.queue,
        kind=command.kind,
        payload=msgspec.Raw(command.payload),
        job_id=command.job_id,
        priority=command.priority,
        delay_s=in_seconds(command.delay_us),
        run_at=optional_moment(command.run_at),
        dedupe_key=command.dedupe_key,
        correlation_id=command.correlation_id,
        trace_id=command.trace_id,
        policy=policy_message(command.policy),
        namespace=command.namespace,
    )


def cancel_command(message: CancelMessage, *, job_id: JobId, actor: Actor) -> Cancel:
    """The cancellation that a message asks for."""
    return Cancel(
        job_id=job_id,
        actor=actor,
        request_id=message.request_id,
        mode=message.mode,
        reason=message.reason,
        expected_rev=message.expected_rev,
        expected_status=message.expected_status,
    )


def requeue_command(message: RequeueMessage, *, job_id: JobId, actor: Actor) -> Requeue:
    """The requeue that a message asks for."""
    return Requeue(
        job_id=job_id,
        actor=actor,
        request_id=message.request_id,
        expected_rev=message.expected_rev,
        expected_status=message.expected_status,
    )


def dead_letter_command(message: DeadLetterMessage, *, job_id: JobId, actor: Actor) -> DeadLetter:
    """The dead-lettering that a message asks for."""
    return DeadLetter(
        job_id=job_id,
        actor=actor,
        request_id=message.request_id,
        reason_code=message.reason_code,
        stage=message.stage,
        message=message.message,
        expected_rev=message.expected_rev,
        expected_status=message.expected_status,
    )


def redrive_command(
    message: RedriveMessage, *, job_id: JobId, actor: Actor, cause: EventCause
) -> Redrive:
    """The redrive or rerun that a message asks for; the route says which."""
    return Redrive(
        job_id=job_id,
        actor=actor,
        request_id=message.request_id,
        cause=cause,
        payload=body_of(message.payload),
        again=message.again,
        expected_rev=message.expected_rev,
        expected_status=message.expected_status,
    )


def discard_command(message: DiscardMessage, *, job_id: JobId, actor: Actor) -> Discard:
    """The discard that a message asks for."""
    return Discard(
        job_id=job_id,
        actor=actor,
        request_id=message.request_id,
        note=message.note,
        expected_rev=message.expected_rev,
        expected_status=message.expected_status,
    )


def operator_message(
    command: Cancel | Requeue | DeadLetter | Redrive | Discard,
) -> OperatorMessage:
    """A client's or operator's command as it travels; its job's id is in the path."""
    guard: dict[str, Any] = {
        "request_id": command.request_id,
        "expected_rev": command.expected_rev,
        "expected_status": command.expected_status,
    }
    match command:
        case Cancel():
            return CancelMessage(**guard, mode=command.mode, reason=command.reason)
        case Requeue():
            return RequeueMessage(**guard)
        case DeadLetter():
            return DeadLetterMessage(
                **guard,
                reason_code=command.reason_code,
                stage=command.stage,
                message=command.message,
            )
        case Redrive():
            return RedriveMessage(**guard, payload=raw_body(command.payload), again=command.again)
        case Discard():
            return DiscardMessage(**guard, note=command.note)
        case _:
            assert_never(command)
