"""What handlers ask of their supervisor and it asks of the coordinator, under the attempt's lease.

A child has neither a token nor the lease; the supervisor has both, and the coordinator decides.
[D8] [D10] [FL7] The handler waits for the answer, so that its success can never be reported before
what it made is stored.
"""

from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from tenure.core.artifacts import MAX_ARTIFACT_BYTES, ArtifactUpload
from tenure.core.commands import Enqueue, EnqueueFlow, FlowMember, FollowUp, ParentAttempt
from tenure.core.ids import (
    Actor,
    JobId,
    LeaseId,
    Namespace,
    follow_up_id,
    handler_flow_id,
    handler_member_id,
)
from tenure.core.leases import HeldLease
from tenure.core.verdicts import Answer, Reply
from tenure.core.vocabulary import Cause
from tenure.errors import (
    InvalidInput,
    RequestRefused,
    TenureError,
)
from tenure.handlers.flows import FlowPlan
from tenure.ports import Coordination
from tenure.protocol.problem_codes import ProblemCode
from tenure.protocol.routes import MAX_FLOW_BYTES
from tenure.worker.frames import (
    ArtifactAnswer,
    ArtifactEnd,
    ArtifactPart,
    FlowEnd,
    FlowPart,
    FollowUpAnswer,
    FollowUpWanted,
    ParentsAnswer,
    ParentsWanted,
)

_decode_plan = msgspec.msgpack.Decoder(FlowPlan).decode

_RETRY_IS_SAFE = "another attempt enqueues it under the same id"


class FollowUpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A follow-up with what only the supervisor knows: the lease it is sent under."""

    wanted: FollowUpWanted
    job_id: JobId
    lease_id: LeaseId

    @property
    def follow_up_id(self) -> JobId:
        """The id of the job to be made. [D8]"""
        return follow_up_id(self.job_id, kind=self.wanted.call.kind, step=self.wanted.step)


def _command(request: FollowUpRequest, *, actor: Actor, namespace: Namespace) -> FollowUp:
    """The command for a handler's request."""
    call, step = request.wanted.call, request.wanted.step
    return FollowUp(
        job_id=request.follow_up_id,
        namespace=namespace,
        actor=actor,
        parent=ParentAttempt(job_id=request.job_id, lease_id=request.lease_id, step=step),
        **msgspec.structs.asdict(call),
    )


def enqueue_follow_up(
    coordination: Coordination,
    request: FollowUpRequest,
    *,
    actor: Actor,
    namespace: Namespace,
    answer: Callable[[FollowUpAnswer], None],
) -> None:
    """Send it without waiting; `answer` is called once, in whatever thread."""

    def heard(future: "Future[list[Answer]]") -> None:
        try:
            [answered] = future.result()
        except Exception as failure:  # handed to the handler that waits, never swallowed
            answer(answer_to(request, failure))
        else:
            answer(answer_to(request, answered))

    command = _command(request, actor=actor, namespace=namespace)
    try:
        coordination.submit_many([command]).add_done_callback(heard)
    except Exception as failure:  # a field is wrong, or the transport failed at once
        answer(answer_to(request, failure))


def answer_to(request: FollowUpRequest, heard: Answer | Exception) -> FollowUpAnswer:
    """The answer that a handler gets about its follow-up."""
    run, number = request.wanted.run, request.wanted.number
    if isinstance(heard, Exception):
        return _answer_to_failure(run, number, heard, "this job")
    assert isinstance(heard, Reply)
    if heard.job is None and heard.cause is None and heard.replayed:
        # The job exists, but the worker's token may not see it. Its id is no secret: it follows
        # from the parent's. [H41]
        return FollowUpAnswer(run, number, job_id=request.follow_up_id)
    if heard.job is None or heard.cause is not None:
        return FollowUpAnswer(run, number, cause=heard.cause or Cause.UNKNOWN_JOB)
    is_new = not (heard.replayed or heard.deduplicated)
    return FollowUpAnswer(run, number, job_id=heard.job.id, is_new=is_new)


def _answer_to_failure(run: int, number: int, heard: Exception, what: str) -> FollowUpAnswer:
    if isinstance(heard, InvalidInput):
        return FollowUpAnswer(
            run, number, field=heard.field, problem=heard.problem, hint=heard.hint
        )
    if isinstance(heard, RequestRefused) and heard.reason == ProblemCode.OUT_OF_SCOPE:
        return FollowUpAnswer(run, number, refusal=f"the worker may not enqueue {what}: {heard}")
    return FollowUpAnswer(run, number, failure=f"{heard}; {_RETRY_IS_SAFE}")


class ReceivedFlow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow whose last piece has arrived, with the lease it is sent under."""

    run: int
    number: int
    job_id: JobId
    lease_id: LeaseId
    body: bytes


class FlowParts:
    """The pieces of one flow; of one that is too large, enough to have it refused."""

    def __init__(self) -> None:
        self._body = bytearray()

    def add(self, part: FlowPart) -> None:
        """The next piece."""
        self._body += part.body[: MAX_FLOW_BYTES + 1 - len(self._body)]

    def whole(self, end: FlowEnd, job_id: JobId, lease_id: LeaseId) -> ReceivedFlow:
        """The whole flow; the next piece begins another one."""
        body = bytes(self._body)
        self._body.clear()
        return ReceivedFlow(
            run=end.run, number=end.number, job_id=job_id, lease_id=lease_id, body=body
        )


def make_flow(
    coordination: Coordination, flow: ReceivedFlow, *, actor: Actor, namespace: Namespace
) -> FollowUpAnswer:
    """Make a handler's flow; what to tell the handler. Waits for the store."""
    try:
        command = _flow_command(flow, actor=actor, namespace=namespace)
        heard = coordination.execute(command)
    except Exception as failure:  # handed to the handler that waits, never swallowed
        return _answer_to_failure(flow.run, flow.number, failure, "this flow")
    assert isinstance(heard, Reply)
    if heard.cause is not None:
        return FollowUpAnswer(flow.run, flow.number, cause=heard.cause)
    made = JobId(command.flow_id)
    return FollowUpAnswer(flow.run, flow.number, job_id=made, is_new=not heard.replayed)


def _flow_command(flow: ReceivedFlow, *, actor: Actor, namespace: Namespace) -> EnqueueFlow:
    """The command for a flow; raises if its child did not send one, which only user code that got
    hold of the socket can bring about."""
    try:
        plan = _decode_plan(flow.body)
    except msgspec.MsgspecError as wrong:
        raise InvalidInput("flow", f"is not one: {wrong}") from wrong
    step = plan.step
    return EnqueueFlow(
        flow_id=handler_flow_id(flow.job_id, step=step),
        name=plan.name,
        members=tuple(
            FlowMember(
                job=Enqueue(
                    job_id=handler_member_id(flow.job_id, step=step, name=job.name),
                    namespace=namespace,
                    actor=actor,
                    **msgspec.structs.asdict(job.call),
                ),
                step=job.name,
                after=job.after,
            )
            for job in plan.jobs
        ),
        handler=ParentAttempt(job_id=flow.job_id, lease_id=flow.lease_id, step=step),
    )


# --- artifacts ---------------------------------------------------------------------------------


class ReceivedArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact whose last piece has arrived."""

    run: int
    number: int
    job_id: JobId
    lease_id: LeaseId
    name: str
    media_type: str
    body: bytes


class ArtifactParts:
    """The pieces of one artifact; of one that is too large, enough to have it refused."""

    def __init__(self) -> None:
        self._body = bytearray()

    def add(self, part: ArtifactPart) -> None:
        """The next piece."""
        self._body += part.body[: MAX_ARTIFACT_BYTES + 1 - len(self._body)]

    def whole(self, end: ArtifactEnd, job_id: JobId, lease_id: LeaseId) -> ReceivedArtifact:
        """The whole artifact; the next piece begins another one."""
        body = bytes(self._body)
        self._body.clear()
        return ReceivedArtifact(
            run=end.run,
            number=end.number,
            job_id=job_id,
            lease_id=lease_id,
            name=end.name,
            media_type=end.media_type,
            body=body,
        )


def store_artifact(
    coordination: Coordination, artifact: ReceivedArtifact, actor: Actor
) -> ArtifactAnswer:
    """Store an artifact; what to tell its handler."""
    try:
        upload = ArtifactUpload(
            job_id=artifact.job_id,
            lease_id=artifact.lease_id,
            actor=actor,
            name=artifact.name,
            body=artifact.body,
            media_type=artifact.media_type,
        )
        staging = coordination.store.artifacts.stage(upload)
    except InvalidInput as wrong:
        return ArtifactAnswer(artifact.run, artifact.number, problem=str(wrong))
    except TenureError as failure:
        return ArtifactAnswer(artifact.run, artifact.number, failure=str(failure))
    if staging.problem is not None:
        return ArtifactAnswer(artifact.run, artifact.number, problem=staging.problem)
    return ArtifactAnswer(artifact.run, artifact.number, cause=staging.cause)


# --- parents -----------------------------------------------------------------------------------


class ParentsRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A page that a handler wants, with what only the supervisor knows: its lease."""

    wanted: ParentsWanted
    job_id: JobId
    lease_id: LeaseId


def load_parents(
    coordination: Coordination, request: ParentsRequest, actor: Actor
) -> ParentsAnswer:
    """The answer to a handler's question."""
    run, number, after = request.wanted.run, request.wanted.number, request.wanted.after
    held = HeldLease(request.job_id, request.lease_id)
    try:
        page = coordination.store.flows.parents(held, actor, after=after)
    except TenureError as failure:
        return ParentsAnswer(run, number, failure=f"the parents could not be read: {failure}")
    return ParentsAnswer(run, number, page=page)
